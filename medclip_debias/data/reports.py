"""From the text of a report to its sentences.

`sections` cuts a report at its headers. It agrees with the public MIMIC-CXR section parser on
well-formed reports (names normalised; the last section of a name wins; without findings and
impression, what follows the last section's first paragraph is ``last_paragraph``). It also reads
mixed case, digits, ``FINDINGS:Lungs``, headers on the first line or inside one, and keeps wet
reads and addenda apart. `report_sentences` cuts the useful sections with PySBD, repaired for
radiology.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from typing import Any, NamedTuple

NOTE = "note"
"""Name of the one section of a text without known headers."""

FALLBACK = ("last_paragraph", NOTE, "comparison")
"""Where sentences come from, first match, when there is neither findings nor impression."""

_ALIASES: dict[str, tuple[str, ...]] = {
    "findings": ("finding", "pertinent findings", "findins", "finidngs", "findnigs", "fidings"),
    "impression": (
        *("impressions", "final impression", "conclusion", "conclusions", "opinion", "summary"),
        *("impresson", "imprssion", "impresion", "imression", "impressoin"),
    ),
    "indication": (
        *("indications", "clinical indication", "clinical information", "clinical data"),
        *("reason for exam", "reason for examination", "reason for study", "reason for the exam"),
        *("reason for this examination", "reason for the study", "inidcation", "indcation"),
    ),
    "history": ("clinical history", "medical history", "patient history", "clinical"),
    "technique": ("techniques", "procedure", "protocol"),
    "comparison": ("comparisons", "comparison studies", "comparision", "comparsion", "compared to"),
    "examination": ("exam", "examinations", "study", "type of examination", "type of exam"),
    "recommendation": ("recommendations",),
    "notification": ("notifications",),
    "addendum": ("addenda", "final addendum"),
    "wet read": ("preliminary report", "preliminary read", "wet reading"),
}
_NAMES = {alias: name for name, others in _ALIASES.items() for alias in (name, *others)}

# Names that make a text a structured report; a wet read alone may precede a plain note.
_STRUCTURE = frozenset(_ALIASES) - {"recommendation", "notification", "addendum", "wet read"}

# Capital headers that no alias names are normalised by the first of these words they hold.
_SUBSTRINGS = (
    *("impression", "finding", "comparison", "addendum", "wet read", "indication", "reason"),
    *("history", "technique", "recommendation", "notification", "exam", "chest", "radiograph"),
)
_BY_SUBSTRING = {
    "finding": "findings",
    "reason": "indication",
    "exam": "examination",
    "chest": "examination",
    "radiograph": "examination",
}

# "LUNGS: Clear." inside findings is a sub-heading, not a section of its own.
_ANATOMY = re.compile(
    r"\b(?:lungs?|pleura|pleural|heart|cardiac|cardiomediastinal|mediastin(?:um|al)|hila|hilar"
    r"|hilum|bones?|bony|osseous|skeletal|soft tissues|airways?|trachea|diaphragm|abdomen|tubes"
    r"|lines|devices|catheters|vessels|vasculature|spine|ribs|thorax|other)\b"
)

_LINE_HEADER = re.compile(r"^[ \t]*([A-Za-z][^:\n]{0,69}?)[ \t]*:", re.MULTILINE)
_CAPITALS = re.compile(r"[A-Z][A-Z0-9 ()/,.\-&'#_]*[A-Z)][A-Z0-9 ()/,.\-&'#_]*|[A-Z]{2,}")
_MAIN = "|".join(
    sorted(
        (alias for alias, name in _NAMES.items() if name in _STRUCTURE and alias != "clinical"),
        key=len,
        reverse=True,
    )
)
# A header inside a line: all capitals, or capitalised after the end of a sentence.
_INLINE_HEADER = re.compile(
    rf"(?<=[^\S\n])({_MAIN.upper()})[ \t]*:"
    rf"|(?<=[.!?;])[ \t]+((?=[A-Z])(?i:{_MAIN}))[ \t]*:"
)
_BARE_HEADER = re.compile(
    rf"^[ \t]*({'|'.join(('FINDINGS', 'IMPRESSION', 'FINAL ADDENDUM', 'ADDENDUM'))})[ \t]*$"
    r"|^[ \t]*(WET READ|PRELIMINARY REPORT)\b[^\n:]*(?::(?=\d)[^\n]*)?$",
    re.MULTILINE,
)
# Ends a section without naming the next one. A full-width line of underscores, not "___".
_SEPARATOR = re.compile(r"^[ \t]*(?:_{10,}|FINAL REPORT)[ \t]*$", re.MULTILINE)
_PARAGRAPH_START = re.compile(r"(?:\A|\n[ \t]*\n)[ \t]*\Z")
_BLANK_LINE = re.compile(r"\n[ \t]*\n")


class _Header(NamedTuple):
    start: int
    end: int
    name: str | None  # None: a separator


def sections(text: str) -> dict[str, str]:
    """Return the sections of a report by normalised name, in reading order.

    Names are lower-case words joined by ``_`` (``findings``, ``wet_read``, ``preamble``). A text
    without known headers is one section `NOTE`. The last non-empty section of a name wins.

    >>> sections("FINDINGS:Clear lungs.\\n Impression: Normal.")
    {'findings': 'Clear lungs.', 'impression': 'Normal.'}
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    headers = _headers(text)
    structured = any(header.name in _STRUCTURE for header in headers)
    if not structured:  # unknown capitals such as "CXR:" are then part of the note
        headers = [h for h in headers if h.name is None or h.name in _ALIASES]
    pieces = _pieces(text, headers)
    if structured and not any(name in ("findings", "impression") for name, _ in pieces):
        pieces = _with_last_paragraph(pieces)
    result: dict[str, str] = {}
    if not structured:
        rest = "\n\n".join(piece for name, piece in pieces if name == "preamble" and piece)
        pieces = [(name, piece) for name, piece in pieces if name != "preamble"] + [(NOTE, rest)]
    for name, piece in pieces:
        if piece or name not in result:
            result.pop(name, None)  # the winner takes its own place in the order
            result[name] = piece
    return {name.replace(" ", "_"): piece for name, piece in result.items() if piece}


def report_sentences(text: str) -> list[tuple[str, str]]:
    """Return ``(section, sentence)`` of findings and impression, in reading order.

    A report with neither gives the sentences of the first of `FALLBACK` that it has.
    """
    found = sections(text)
    wanted = [name for name in found if name in ("findings", "impression")]
    if not wanted:
        wanted = [name for name in FALLBACK if name in found][:1]
    return [(name, sentence) for name in wanted for sentence in split_sentences(found[name])]


def _headers(text: str) -> list[_Header]:
    """Return headers and separators in reading order, none inside another."""
    candidates = [_Header(m.start(), m.end(), None) for m in _SEPARATOR.finditer(text)]
    for match in _BARE_HEADER.finditer(text):
        name = _NAMES[(match[1] or match[2]).lower()]
        candidates.append(_Header(match.start(), match.end(), name))
    for match in _INLINE_HEADER.finditer(text):
        word = match[1] or match[2]
        name = _NAMES[word.lower()]
        candidates.append(_Header(match.start(1 if match[1] else 2), match.end(), name))
    for match in _LINE_HEADER.finditer(text):
        line_name = _line_header_name(text, match)
        if line_name is not None:
            candidates.append(_Header(match.start(), match.end(), line_name))
    candidates.sort(key=lambda header: (header.start, -header.end))
    kept: list[_Header] = []
    for header in candidates:
        inside = kept and header.start < kept[-1].end
        if not inside and not _is_subheading(header, kept[-1].name if kept else None):
            kept.append(header)
    return kept


def _line_header_name(text: str, match: re.Match[str]) -> str | None:
    """Name the header at the start of a line, or ``None`` where it is ordinary text."""
    written = " ".join(match[1].split())
    known = _NAMES.get(written.lower())
    if known is not None:
        # Wrapped prose can start a line with "comparison:"; a header has its own paragraph.
        own_paragraph = bool(_PARAGRAPH_START.search(text[: match.start(1)]))
        return known if written[0].isupper() or own_paragraph else None
    spaced = match.end() == len(text) or text[match.end()].isspace()
    if not spaced or not _CAPITALS.fullmatch(written):
        return None
    lower = written.lower()
    part = next((part for part in _SUBSTRINGS if part in lower), None)
    return lower if part is None else _BY_SUBSTRING.get(part, part)


def _is_subheading(header: _Header, current: str | None) -> bool:
    if header.name is None or header.name in _ALIASES or current not in ("findings", "impression"):
        return False
    return bool(_ANATOMY.search(header.name))


def _pieces(text: str, headers: list[_Header]) -> list[tuple[str, str]]:
    starts = [_Header(0, 0, None), *headers]
    ends = [*(header.start for header in headers), len(text)]
    return [
        (header.name or "preamble", text[header.end : end].strip())
        for header, end in zip(starts, ends, strict=True)
    ]


def _with_last_paragraph(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    named = [index for index, (name, _) in enumerate(pieces) if name != "preamble"]
    name, piece = pieces[named[-1]]
    first, *rest = _BLANK_LINE.split(piece, maxsplit=1)
    if not rest:
        return pieces
    return [*pieces[: named[-1]], (name, first), ("last_paragraph", rest[0].strip())]


# ------------------------------------------------------------------------------ sentences

_LIST_LINE = re.compile(r"\n[ \t]*(?=(?:\(?\d{1,2}[.)]|[-*•])[ \t]+\S)")
_LIST_NUMBER = re.compile(r"(?:^|(?<=[.;:!?] ))\(?(\d{1,2})[.)] +(?=[A-Za-z_(])")
_LIST_PREFIX = re.compile(r"^(?:\(?\d{1,2}[.)]|[-*•])\s+(?=[^\W\d]|_|\()")
_DEIDENTIFIED = re.compile(r"_+|\bX{3,}\b")
_LETTER = re.compile(r"[^\W\d_]")
_ROUGH_END = re.compile(r"(?<=[a-z)\]_][.!?])\s+(?=[A-Z_])")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a section, white space joined.

    Items of a list are sentences of their own, without their numbers. Sentences without a word
    (list numbers, ``___`` or ``XXXX`` alone) are dropped.

    >>> split_sentences("1. No acute disease. 2. Stable 1.5 cm nodule.")
    ['No acute disease.', 'Stable 1.5 cm nodule.']
    """
    found = []
    for paragraph in _BLANK_LINE.split(text.replace("\r\n", "\n")):
        for block in _LIST_LINE.split("\n" + paragraph):
            for item in _list_items(" ".join(block.split())):
                found += [_LIST_PREFIX.sub("", sentence) for sentence in _segment(item)]
    return [sentence for sentence in found if _has_word(sentence)]


def _list_items(text: str) -> list[str]:
    """Cut ``1. A. 2. B.`` before each number that continues the list."""
    cuts, expected = [0], None
    for match in _LIST_NUMBER.finditer(text):
        number = int(match[1])
        if number == expected or (expected is None and number == 1) or match.start() == 0:
            cuts.append(match.start())
            expected = number + 1
    return [text[start:end] for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def _has_word(sentence: str) -> bool:
    return bool(_LETTER.search(_DEIDENTIFIED.sub(" ", sentence)))


@lru_cache(maxsize=50_000)
def _segment(text: str) -> tuple[str, ...]:
    """Cut one item; hospital text repeats itself, so the slow segmenter is asked once."""
    bare = _LIST_PREFIX.sub("", text)
    if not _has_word(bare):
        return ()
    try:
        pieces = [" ".join(piece.split()) for piece in _segmenter().segment(bare)]
    except (re.error, IndexError, AttributeError, TypeError, ValueError):
        pieces = []
    # PySBD substitutes symbols on its way; where text was lost, a plain rule is safer.
    if "".join(pieces).replace(" ", "") != bare.replace(" ", ""):
        pieces = _ROUGH_END.split(bare)
    return tuple(_joined_titles(pieces))


def _joined_titles(pieces: list[str]) -> list[str]:
    """Join what was cut behind a doctor's title."""
    joined: list[str] = []
    for piece in pieces:
        if joined and re.search(r"\b(?:Drs?|Mr|Ms|Mrs)\.$", joined[-1]):
            joined[-1] += " " + piece
        else:
            joined.append(piece)
    return joined


@lru_cache(maxsize=1)
def _segmenter() -> Any:
    with warnings.catch_warnings():  # its regular expressions predate raw strings
        warnings.simplefilter("ignore")
        import pysbd

    return pysbd.Segmenter(language="en", clean=False)
