"""The languages of reports: their headings and abbreviations, from ``en.yaml`` and ``es.yaml``."""

from __future__ import annotations

import re
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


@dataclass(frozen=True, eq=False)
class Language:
    """How reports of one language are read.

    Attributes:
        code: as in `LANGUAGES`.
        name: in English.
        headings: what its headings mean.
        repairs: of what PySBD cuts.
        upper: the capitals, as in a character class.
        lower: the small letters.
        segmenter: language whose rules PySBD is asked for.
        signatures: how a line starts that says who signed the report; ``None`` for English, whose
            pattern is in `medclip_debias.data.text.sentences`.
    """

    code: str
    name: str
    headings: Headings
    repairs: Repairs
    upper: str
    lower: str
    segmenter: str
    signatures: str | None


@lru_cache(maxsize=len(LANGUAGES))
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
    words = load_yaml(Path(__file__).with_name(f"{code}.yaml"))
    plain = {name: words[name] for name in ("name", "upper", "lower", "segmenter")}
    signed = _signed(words["signatures"], words["upper"]) if words["signatures"] else None
    return Language(
        code, headings=Headings(words), repairs=Repairs(words), signatures=signed, **plain
    )


def _signed(phrases: Iterable[str], upper: str) -> str:
    """A signature is one of the phrases before a colon, or before a name or a title."""
    known = "|".join(sorted(map(re.escape, phrases), key=len, reverse=True))
    name = rf"(?:Drs?|Dra|Prof|M|Mme|[{upper}]\w+,? [{upper}]|_|X{{3}})"
    return rf"(?i:(?:{known}))(?:\s*:|(?<= por)(?= {name}))"
