"""The languages of reports: their headings and abbreviations, from ``en.yaml`` and ``es.yaml``."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from medclip_debias.data.text.headings import Headings
from medclip_debias.data.text.repairs import Repairs
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.settings_files import load_yaml

LANGUAGES = ("en", "es")
"""Languages whose reports are read, by their ISO 639-1 codes."""

_FOLDER = Path(__file__).parent


@dataclass(frozen=True, eq=False)
class Language:
    """How reports of one language are read.

    Attributes:
        code: as in `LANGUAGES`.
        name: in English.
        headings: what its headings mean.
        repairs: of what PySBD cuts.
        segmenter: language whose rules PySBD is asked for.
        signatures: how a line starts that says who signed the report; ``None`` for English, whose
            pattern is in `medclip_debias.data.text.sentences`.
    """

    code: str
    name: str
    headings: Headings
    repairs: Repairs
    segmenter: str
    signatures: str | None


@lru_cache(maxsize=16)
def language(code: str) -> Language:
    """Return a language by its code.

    Raises:
        UserError: it is none of `LANGUAGES`.

    >>> language("es").headings.kind_of("Impresión diagnóstica", capitals=False)
    ('section', 'impression')
    """
    if code not in LANGUAGES:
        raise UserError(
            f"The language '{code}' is not supported{did_you_mean(code, LANGUAGES)}; choose one"
            f" of {', '.join(LANGUAGES)}."
        )
    words = load_yaml(_FOLDER / f"{code}.yaml")
    names = {
        spelling: section
        for section, written in words["sections"].items()
        for heading in written
        for spelling in spellings(heading)
    }
    letters = {name: words[name] for name in ("upper", "lower")}
    short = {
        name: words["abbreviations"][name] for name in ("always", "exact", "sometimes", "lone")
    }
    return Language(
        code=code,
        name=words["name"],
        headings=Headings(
            names=names,
            capitals_only=frozenset(s for w in words["capitals_only"] for s in spellings(w)),
            parts=tuple(words["parts"].items()),
            titles=tuple(words["titles"]),
            no_titles=tuple(words["no_titles"]),
            title_words=frozenset(words["title_words"]),
            organs=tuple(words["organs"]),
            bare=tuple(_loud(words["bare"])),
            preliminary=tuple(_loud(words.get("preliminary", ()))),
            **letters,
        ),
        repairs=Repairs(
            starts=words["starts"],
            continues=words["continues"],
            sure_starts=words["sure_starts"],
            titles=words["honorifics"],
            unstopped=words.get("unstopped", False),
            **short,
            **letters,
        ),
        segmenter=words["segmenter"],
        signatures=_signed(words["signatures"], words["upper"]) if words["signatures"] else None,
    )


def spellings(heading: str) -> list[str]:
    """Return a heading as it is written, and without its accents.

    >>> spellings("conclusión")
    ['conclusión', 'conclusion']
    """
    parted = unicodedata.normalize("NFD", heading)
    bare = "".join(c for c in parted if not unicodedata.combining(c))
    return list(dict.fromkeys((heading, bare)))


def _loud(written: Iterable[str]) -> list[str]:
    """Headings in capitals, longest first."""
    found = {s.upper() for heading in written for s in spellings(heading.lower())}
    return sorted(map(re.escape, found), key=lambda heading: (-len(heading), heading))


def _signed(phrases: Iterable[str], upper: str) -> str:
    """A signature is one of the phrases before a colon, or before a name or a title."""
    known = "|".join(sorted(map(re.escape, phrases), key=len, reverse=True))
    name = rf"(?:Drs?|Dra|Prof|M|Mme|[{upper}]\w+,? [{upper}]|_|X{{3}})"
    return rf"(?i:(?:{known}))(?:\s*:|(?<= por)(?= {name}))"
