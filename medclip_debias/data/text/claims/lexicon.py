"""The lexicon: which words name a finding, and which change what is said of it (YAML)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from pydantic import Field

from medclip_debias.config import Settings, json_hash, validate
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.settings_files import load_yaml

DEFAULT = "english"
PACKAGED = (DEFAULT, "phantom")
MAX_TERMS = 20_000
_FOLDER = Path(__file__).parent / "lexicons"
_PART = re.compile(r"\([^()]*\)|[^\s()]+")
_TOKEN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+(?:\.\d+)?|[.,;:()/&><?]")


class Finding(Settings):
    """A finding.

    ``is_a`` names what it also is (a consolidation is an opacity), so that whoever denies that
    denies it; ``chexpert`` the label that it counts for.
    """

    terms: tuple[str, ...] = ()
    is_a: tuple[str, ...] = ()
    chexpert: str | None = None


class Statement(Settings):
    """What is said of many findings at once; whoever denies it denies them."""

    terms: tuple[str, ...] = ()
    denies: tuple[str, ...] = ()


class Structure(Settings):
    """A part of the body and what its states claim.

    ``states`` lists the findings that a state of the lexicon claims present, ``denies`` those
    that are absent where it is in one of the ``fine`` states, and ``clear``, if it is there, what
    is absent where it is clear.
    """

    terms: tuple[str, ...] = ()
    states: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    denies: tuple[str, ...] = ()
    fine: tuple[str, ...] = ("normal", "clear")
    clear: tuple[str, ...] | None = None


class Lexicon(Settings):
    """All words of one language; see docs/claims.md for every key."""

    base: str | None = None
    name: str = Field(min_length=1)
    findings: dict[str, Finding] = Field(default_factory=dict)
    statements: dict[str, Statement] = Field(default_factory=dict)
    structures: dict[str, Structure] = Field(default_factory=dict)
    states: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    cues: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    modifiers: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)
    words: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    join: dict[str, str] = Field(default_factory=dict)
    remove: tuple[str, ...] = ()

    @cached_property
    def hash(self) -> str:
        """16 hex digits that name the content."""
        return json_hash(self.model_dump(mode="json"))[:16]

    def named(self, finding: str) -> str:
        """The finding itself, or the one that it is joined into."""
        return self.join.get(finding, finding)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({self.named(name) for name in self.findings}))

    @cached_property
    def ancestors(self) -> dict[str, frozenset[str]]:
        """What each finding also is, itself included."""
        parents: dict[str, set[str]] = {name: set() for name in self.names}
        for name, finding in self.findings.items():
            parents[self.named(name)] |= set(map(self.named, finding.is_a))
        return {name: above | {name} for name, above in _reachable(parents).items()}

    @cached_property
    def descendants(self) -> dict[str, frozenset[str]]:
        """What is an instance of each finding, itself included."""
        return {
            name: frozenset(n for n in self.names if name in self.ancestors[n])
            for name in self.names
        }

    def terms(self) -> Iterator[tuple[str, str, str]]:
        """Yield ``(kind, value, term)`` of every term."""
        for name, finding in self.findings.items():
            yield from (("finding", self.named(name), term) for term in finding.terms)
        for name, statement in self.statements.items():
            yield from (("statement", name, term) for term in statement.terms)
        for name, structure in self.structures.items():
            yield from (("structure", name, term) for term in structure.terms)
        for name, terms in self.states.items():
            yield from (("state", name, term) for term in terms)
        for kind, terms in (*self.cues.items(), *self.words.items()):
            yield from ((kind, "", term) for term in terms)
        for kind, values in self.modifiers.items():
            yield from ((kind, value, term) for value, terms in values.items() for term in terms)

    @cached_property
    def phrases(self) -> dict[tuple[str, ...], dict[str, tuple[str, ...]]]:
        """Every phrase that its terms stand for, thousands: the kinds of each, and their values.

        Raises:
            UserError: there are too many.
        """
        count = sum(phrase_count(term) for *_, term in self.terms())
        count += sum(map(phrase_count, self.remove))
        if count > MAX_TERMS:
            raise UserError(
                f"The lexicon '{self.name}' has terms for {count:,} phrases, more than"
                f" {MAX_TERMS:,}; give it fewer words that may be left out."
            )
        removed = {words for term in self.remove for words in expanded(term)}
        phrases: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
        for kind, value, term in self.terms():
            for words in expanded(term):
                if words in removed:
                    continue
                kinds = phrases.setdefault(words, {})
                values = kinds.get(kind, ())
                kinds[kind] = values if value in values else (*values, value)
        return phrases


CUES = (
    *("negation_before", "negation_after", "not_a_negation", "uncertainty_before"),
    *("uncertainty_list", "uncertainty_here", "uncertainty_after", "alternative", "set_aside"),
    *("ends", "exception", "affirmed", "otherwise", "explains"),
)
MODIFIERS = {
    "side": ("left", "right", "both"),
    "zone": ("upper", "middle", "lower"),
    "severity": ("mild", "moderate", "severe"),
    "change": ("new", "increased", "decreased", "stable", "resolved"),
}
WORDS = ("verbs", "prepositions", "joins", "neither")


def load_lexicon(source: Path | str | None = None) -> Lexicon:
    """Read a lexicon.

    Args:
        source: name of one that comes with the package (``english``, ``phantom``), or the path of
            a YAML file. A file that names a ``base`` adds to it: its terms are appended, what it
            lists under ``remove`` is no longer a term, and ``join`` reads one finding as another.
            None for ``english``.
    """
    source = DEFAULT if source is None else source
    if isinstance(source, str) and source in PACKAGED:
        return _packaged(source)
    return _checked(_content(Path(source)), str(source))


@lru_cache(maxsize=len(PACKAGED))
def _packaged(name: str) -> Lexicon:
    return _checked(_content(_FOLDER / f"{name}.yaml"), name)


def _content(path: Path) -> dict[str, Any]:
    """Read a file, on top of its base."""
    content = load_yaml(path)
    base = content.get("base")
    if base is None:
        return content
    if base not in PACKAGED:
        known = ", ".join(PACKAGED)
        raise UserError(f"{path}: 'base' must be a lexicon of the package: {known}.")
    return _merged(_content(_FOLDER / f"{base}.yaml"), content)


def _merged(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        both = {key: _merged(base[key], over[key]) for key in base.keys() & over.keys()}
        return {**base, **over, **both}
    if isinstance(base, list) and isinstance(over, list):
        return [*base, *over]
    return over


def _checked(content: Mapping[str, Any], where: str) -> Lexicon:
    lexicon = validate(Lexicon, content, where)
    _known(where, "cues", lexicon.cues, CUES)
    _known(where, "words", lexicon.words, WORDS)
    _known(where, "modifiers", lexicon.modifiers, MODIFIERS)
    for kind, values in lexicon.modifiers.items():
        _known(where, f"modifiers.{kind}", values, MODIFIERS[kind])
    above = _reachable({name: finding.is_a for name, finding in lexicon.findings.items()})
    for name, finding in lexicon.findings.items():
        _known(where, f"findings.{name}.is_a", finding.is_a, lexicon.findings)
        if name in above[name]:
            raise UserError(
                f"{where}: findings.{name}.is_a leads back to '{name}'; remove one of them."
            )
    for name, statement in lexicon.statements.items():
        _known(where, f"statements.{name}.denies", statement.denies, lexicon.findings)
    for name, structure in lexicon.structures.items():
        place = f"structures.{name}"
        _known(where, f"{place}.states", structure.states, lexicon.states)
        _known(where, f"{place}.fine", structure.fine[2:], lexicon.states)
        claimed = [f.removesuffix("?") for names in structure.states.values() for f in names]
        denied = (*structure.denies, *(structure.clear or ()))
        _known(where, place, (*claimed, *denied), lexicon.findings)
    _known(where, "join", (*lexicon.join, *lexicon.join.values()), lexicon.findings)
    chained = sorted(set(lexicon.join) & set(lexicon.join.values()))
    if chained:
        raise UserError(
            f"{where}: join maps '{chained[0]}' to another finding and others to it; map to one"
            " name."
        )
    return lexicon


def _reachable(parents: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    """Return what each name leads to; itself where it leads back."""
    above = {name: frozenset(names) for name, names in parents.items()}
    while True:
        wider = {
            name: names.union(*(above.get(parent, ()) for parent in names))
            for name, names in above.items()
        }
        if wider == above:
            return above
        above = wider


def _known(where: str, key: str, given: Iterable[str], known: Iterable[str]) -> None:
    for name in given:
        if name not in known:
            raise UserError(
                f"{where}: {key}: there is no '{name}'{did_you_mean(name, known)}; use a name"
                " that the lexicon has."
            )


# ------------------------------------------------------------------------------------ terms


def tokens(text: str) -> list[str]:
    """Cut a text into lower-case words without plural s, numbers and marks.

    >>> tokens("No left-sided pleural effusions.")
    ['no', 'left', 'sided', 'pleural', 'effusion', '.']
    """
    plain = text.lower().replace("’", "'").replace("and/or", "and or")
    return [_singular(word) for word in _TOKEN.findall(plain)]


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 5 and word.endswith("sses"):
        return word[:-2]
    if len(word) > 3 and word.endswith("s") and word[-2] not in "sui'":
        return word[:-1]
    return word


def phrase_count(term: str) -> int:
    """How many phrases a term stands for, some of them perhaps alike."""
    return prod(map(len, _choices(term)))


def _choices(term: str) -> list[list[str]]:
    return [
        [*part[1:-1].split("|"), ""] if part.startswith("(") else part.split("|")
        for part in _PART.findall(term)
    ]


def expanded(term: str) -> list[tuple[str, ...]]:
    """Every sequence of tokens that a term of the lexicon stands for.

    >>> expanded("(small) effusion|fluid")
    [('small', 'effusion'), ('small', 'fluid'), ('effusion',), ('fluid',)]
    """
    choices = _choices(term)
    phrases = (tuple(tokens(" ".join(words))) for words in product(*choices))
    return [words for words in dict.fromkeys(phrases) if words]
