"""Keyword classes of sentences, by word lists in YAML.

A sentence that names one class belongs to it; ``several`` says what happens with more than one: no
class (``none``), the one named ``first``, or a class for each combination (``combine``). With
``negations`` a class that is denied ("no effusion") is another one. A negation reaches to the end
of its clause; ``not_negations`` look like one but deny nothing ("no change").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError
from medclip_debias.settings_files import load_yaml

Word = Annotated[str, StringConstraints(strip_whitespace=True, to_lower=True, min_length=1)]

_CLAUSE_ENDS = re.compile(r"[.;:]|\b(?:but|however|although|except)\b")


class KeywordList(Settings):
    """One list of keyword classes."""

    name: str = Field(min_length=1)
    classes: dict[str, tuple[Word, ...]] = Field(min_length=1)
    several: Literal["none", "first", "combine"] = "none"
    negations: tuple[Word, ...] = ()
    not_negations: tuple[Word, ...] = ()

    def classify(self, sentences: Sequence[str]) -> list[int]:
        """Class number of each sentence, from 1; 0 for none.

        In the order of ``classes``, then of their denied forms, then combinations in order of use.
        """
        names = list(self.classes)
        numbers: dict[tuple[str, ...], int] = {(n,): i for i, n in enumerate(names, start=1)}
        numbers |= {(f"no {n}",): i for i, n in enumerate(names, start=len(names) + 1)}
        result = []
        for sentence in sentences:
            key = self.named(sentence)
            result.append(numbers.setdefault(key, len(numbers) + 1) if key else 0)
        return result

    def named(self, sentence: str) -> tuple[str, ...]:
        """The class of one sentence: its name, ``no <name>`` if denied, or a combination."""
        text = " ".join(sentence.lower().split())
        classes: dict[str, None] = {}
        for match in self._pattern.finditer(text):
            name = self._class_of[match.group()]
            classes[f"no {name}" if self._denied(text[: match.start()]) else name] = None
        if len(classes) > 1 and self.several == "none":
            return ()
        if len(classes) > 1 and self.several == "first":
            return tuple(classes)[:1]
        return tuple(sorted(classes))

    @cached_property
    def _class_of(self) -> dict[str, str]:
        owner: dict[str, str] = {}
        for name, words in self.classes.items():
            for word in words:
                if owner.setdefault(word, name) != name:
                    raise UserError(
                        f"keyword list '{self.name}': '{word}' is in the classes '{owner[word]}'"
                        f" and '{name}'; keep one."
                    )
        return owner

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return _any_of(self._class_of)

    def _denied(self, before: str) -> bool:
        if not self.negations:
            return False
        clause = _CLAUSE_ENDS.split(before)[-1]
        if self.not_negations:
            clause = _any_of(self.not_negations).sub(" ", clause)
        return bool(_any_of(self.negations).search(clause))


def _any_of(words: Sequence[str] | Mapping[str, Any]) -> re.Pattern[str]:
    """Any of the words, whole, the longest first."""
    ordered = sorted(words, key=len, reverse=True)
    return re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, ordered)) + r")(?![\w-])")


def load_keywords(source: Path | str) -> KeywordList:
    """Read the packaged keyword list ``source``, or one from a YAML file."""
    packaged = Path(__file__).with_name(f"{Path(source).name}.yaml")
    is_packaged = source == packaged.stem and packaged.is_file()
    content = load_yaml(packaged if is_packaged else Path(source))
    words = validate(KeywordList, content, str(source))
    words._class_of  # noqa: B018  a word in two classes is an error now, not in the middle of a run
    return words
