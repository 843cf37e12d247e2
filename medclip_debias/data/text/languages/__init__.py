"""The languages of reports: their headings and abbreviations, from ``en.yaml`` and ``es.yaml``."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from medclip_debias.data.text.headings import Headings
from medclip_debias.data.text.repairs import Repairs
from medclip_debias.errors import one_of
from medclip_debias.settings_files import load_yaml

LANGUAGES = ("en", "es")
"""Languages whose reports are read, by their ISO 639-1 codes."""

_SIGNED = (
    r"(?i:(?:electronically|digitally)[ -]+(?:signed|approved|verified|authenticated|finalized)\b)"
    r"|(?i:(?:dictated|transcribed|signed|e-signed|finalized|verified|authenticated|typed|edited"
    r"|approved|interpreted|prepared|released|read|reviewed|reported)"
    r"(?: (?:and|&) (?:signed|approved|reviewed|finalized|authenticated|verified))?"
    r"(?: electronically)? (?:by|on)\b)"
    r"(?:\s*:|(?= (?:Drs?|M\.?D|[A-Z][a-z]+,? [A-Z]|_|X{3}|[A-Z]{3})))"
    r"|(?i:(?:attending|reading|interpreting|signing)(?: physician| radiologist)?\s*:)"
    r"|(?i:(?:radiologist|resident|fellow|transcriptionist|signature|electronic signature)\s*:)"
    r"|(?i:i,? (?:the|as) (?:attending|teaching) (?:physician|radiologist),? )"
    r"|(?i:i have (?:personally )?reviewed the (?:images?|films?|study|examination|resident))"
)
"""How English lines start that say who dictated, signed or approved the report, and when."""


class Language:
    """How reports of one language are read.

    Attributes:
        code: as in `LANGUAGES`.
        name: in English.
        headings: what its headings mean.
        repairs: of what PySBD cuts.
        segmenter: language whose rules PySBD is asked for.
        signature: who signed the report.
        list_line: a list, a sub-heading in capitals or a signature, which starts anew even where
            no full stop precedes.
        rough_end: ends a sentence where PySBD is not asked.
        spaced_stop: a full stop between blanks, which ends a sentence of PadChest's stems.
    """

    def __init__(self, code: str) -> None:
        words = load_yaml(Path(__file__).with_name(f"{code}.yaml"))
        up, low = words["upper"], words["lower"]
        signed = _SIGNED
        if words["signatures"]:  # one of these before a colon, or before a name or a title
            phrases = "|".join(sorted(map(re.escape, words["signatures"]), key=len, reverse=True))
            person = rf"(?:Drs?|Dra|Prof|M|Mme|[{up}]\w+,? [{up}]|_|X{{3}})"
            signed = rf"(?i:(?:{phrases}))(?:\s*:|(?<= por)(?= {person}))"
        self.code = code
        self.name: str = words["name"]
        self.headings = Headings(words)
        self.repairs = Repairs(words)
        self.segmenter: str = words["segmenter"]
        self.signature = re.compile(signed)
        self.list_line = re.compile(
            rf"\n[ \t]*(?=(?:\(?\d{{1,2}}[.)]|[-*•])[ \t]+\S|\d{{1,2}}[.)][{up}][{low}]"
            rf"|[{up}][{up} /&,()\-]{{1,60}}:\s|{signed})"
        )
        self.rough_end = re.compile(rf"(?<=[{low})\]_][.!?])\s+(?=[{up}_])")
        self.spaced_stop = re.compile(r"(?!)" if code == "en" else r" \.(?: |$)")


@lru_cache(maxsize=len(LANGUAGES))
def language(code: str) -> Language:
    """Return a language by its code.

    >>> language("es").headings.kind_of("Impresión diagnóstica", capitals=False)
    ('section', 'impression')
    """
    one_of(code, LANGUAGES, "rules for the language")
    return Language(code)
