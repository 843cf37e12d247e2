"""From a section of a report to its sentences: PySBD, repaired for radiology.

PySBD alone leaves "1. No acute disease. 2. Stable nodule." uncut at "1.", cuts behind "cm." and
loses text around some symbols. Here items of a list are sentences of their own without their
numbers, abbreviations stay with what they belong to (`medclip_debias.data.text.repairs`),
text that PySBD would lose is cut by a plain rule, and who signed the report is no sentence.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, pairwise
from typing import Any

from medclip_debias.data.text.languages import Language, language

DROPPED = (
    *("list number only", "de-identified only", "no word", "signature"),
    *("too short", "too long", "mostly de-identified", "repeated"),
)
"""Why a sentence may be dropped; the last four by `ReportSettings` of `text.reports`."""

MAX_SEGMENTER_LENGTH = 5_000
"""PySBD's time grows faster than the text; a longer item is cut by the plain rule."""

_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_SIGNATURE_REST = re.compile(r"(?:[A-Z\d_][\w.,:/\-]*|on|at|by|and|am|pm|a\.m\.|p\.m\.|[,:/\-])+")
# What a list number stands before: a word, or a count and a word ("1. 6 mm nodule").
_ITEM = r" +(?=[^\W\d]|[_(?]|\d+(?:\.\d+)?[ -]?[a-z])|(?=[A-Z][a-z])"
_LIST_NUMBER = re.compile(
    rf"(?:^|(?<=[.;:!?] ))\(?(\d{{1,2}})[.)](?:{_ITEM})"
    r"|(?<=[^\W\d_]{3} )(\d{1,2})\. ?(?=[^\W\d_][a-z]|X{3})"
)
# What a number behind it belongs to: "rib 2. The others", "to 3. There is".
_COUNTED_WORD = re.compile(
    r"\b(?:ribs?|grades?|types?|stages?|levels?|class|zones?|segments?|images?|series|days?|number"
    r"|and|approximately|about|versus|leads?|films?|views?|stations?|score|figures?|page|times"
    r"|weeks?|months?|years?|chambers?|lobes?|tubes?|lines?|from|than|measuring|measures"
    r"|jan\w*|feb\w*|march|april|may|june|july|aug\w*|sept\w*|oct\w*|nov\w*|dec\w*) $",
    re.IGNORECASE,
)
# "Left knee 1. No fracture."
_LIST_TITLE = re.compile(r"(?:^|(?<!\d)[.;:!?] )[^\W\d_]+(?: [a-z]+){0,2} $")
_STOP = ".\x1e"  # a full stop that ends a sentence for sure; the mark is in no report
_LIST_PREFIX = re.compile(rf"^(?:\(?\d{{1,2}}[.)]|[-*•])(?:{_ITEM})")
_LIST_MARK = re.compile(r"(?:\(?\d{1,2}[.)]?|[-*•])+")
_DEIDENTIFIED = re.compile(r"_+|\bX{3,}\b")
_PLAIN = re.compile(
    r"(?:[A-Za-z0-9 ,;:/%+_-]|(?<=\d)\.(?=\d)|(?<=[A-Za-z]{3})\.(?= [A-Z][a-z]|\Z))+"
)
_PLAIN_END = re.compile(r"(?<=[A-Za-z]\.) ")


def split_sentences(text: str, code: str = "en") -> tuple[list[str], Counter[str]]:
    """Return the sentences of a section, white space joined, and how many were dropped and why.

    Items of a list are sentences of their own, without their numbers. Sentences without a word
    (list numbers, ``___`` or ``XXXX`` alone) are dropped, and so are signatures.

    >>> split_sentences("1. No acute disease. 2. Stable 1.5 cm nodule.")[0]
    ['No acute disease.', 'Stable 1.5 cm nodule.']
    >>> split_sentences("1. Clear. ___. 2.")
    (['Clear.'], Counter({'de-identified only': 1, 'list number only': 1}))
    """
    rules = language(code)
    sentences: list[str] = []
    dropped: Counter[str] = Counter()
    for paragraph in _BLANK_LINE.split(text.replace("\r\n", "\n")):
        for block in rules.list_line.split("\n" + paragraph):
            signed = False
            for item in _list_items(rules.spaced_stop.sub(_STOP, " ".join(block.split()))):
                parts = (_segment(part, code) for part in item.split(_STOP.lstrip(".")))
                for sentence in map(_without_mark, chain.from_iterable(parts)):
                    # A signature, or the name and date behind one.
                    signed = bool(rules.signature.match(sentence)) or (
                        signed and all(map(_SIGNATURE_REST.fullmatch, sentence.split()))
                    )
                    reason = "signature" if signed else _wordless(sentence)
                    if reason:
                        dropped[reason] += 1
                    elif sentence:
                        sentences.append(sentence)
    return sentences, dropped


def deidentified_share(sentence: str) -> float:
    """Return the share of a sentence's words that are de-identification marks, 0 to 1.

    >>> deidentified_share("XXXX sternotomy ___ intact.")
    0.5
    """
    words = len(re.findall(r"[^\W_]+|_+", sentence))
    return len(_DEIDENTIFIED.findall(sentence)) / words if words else 0.0


def _without_mark(sentence: str) -> str:
    return _LIST_PREFIX.sub("", sentence)


def _list_items(text: str) -> list[str]:
    """Cut ``1. A. 2. B.`` before each number that continues the list.

    A number without a full stop before it ("1. Cardiomegaly 2. Edema") has to go on with a list,
    begin one that goes on, or stand behind a title ("Left knee 1. No fracture.").
    """
    matches = list(_LIST_NUMBER.finditer(text))
    cuts, expected = [0], None
    for place, match in enumerate(matches):
        number = int(match[1] or match[2])
        goes_on = number == expected or (expected is None and number == 1)
        if match[2]:
            if _COUNTED_WORD.search(text, max(match.start() - 16, 0), match.start()):
                continue
            after = (int(m[1] or m[2]) for m in matches[place + 1 :])
            title = _LIST_TITLE.search(text, max(match.start() - 40, 0), match.start())
            goes_on = (goes_on and (number > 1 or 2 in after)) or (number == 1 and bool(title))
        if goes_on or match.start() == 0:
            cuts.append(match.start())
            expected = number + 1
    return [text[start:end] for start, end in pairwise([*cuts, len(text)])]


def _has_word(sentence: str) -> bool:
    return any(map(str.isalpha, _DEIDENTIFIED.sub(" ", sentence)))


def _wordless(sentence: str) -> str:
    """Say what a sentence without a word is; ``""`` for one with a word, and for nothing."""
    if not sentence or _has_word(sentence):
        return ""
    if _DEIDENTIFIED.search(sentence):
        return "de-identified only"
    mark = _LIST_MARK.fullmatch("".join(sentence.split()))
    return "list number only" if mark else "no word"


@lru_cache(maxsize=50_000)
def _segment(text: str, code: str = "en") -> tuple[str, ...]:
    """Cut one item; hospital text repeats itself, so the slow segmenter is asked once."""
    rules = language(code)
    repairs = rules.repairs
    bare = _without_mark(text).strip()
    if not _has_word(bare):
        return (bare,)
    plain = _plain_pieces(bare) if code == "en" else None
    if plain is not None:
        return plain
    if len(bare) > MAX_SEGMENTER_LENGTH:
        return tuple(repairs.repaired(_rough_pieces(bare, rules)))
    try:
        pieces = _with_blanks(_segmenter(rules.segmenter).segment(bare), bare)
    except (re.error, IndexError, AttributeError, TypeError, ValueError):
        pieces = []
    return tuple(repairs.repaired(pieces or _rough_pieces(bare, rules)))


def _with_blanks(pieces: Iterable[str], text: str) -> list[str]:
    """Return the pieces with the blank behind each that ``text`` has; none if text was lost.

    PySBD substitutes symbols on its way; where it loses one, a plain rule is safer.
    """
    blanked, at = [], 0
    for piece in pieces:
        piece = " ".join(piece.split())
        if not text.startswith(piece, at):
            return []
        at += len(piece)
        blank = " " * text.startswith(" ", at)
        blanked.append(piece + blank)
        at += len(blank)
    return blanked if at == len(text) else []


def _rough_pieces(text: str, rules: Language) -> list[str]:
    cuts = [0, *(match.end() for match in rules.rough_end.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(cuts)]


def _plain_pieces(text: str) -> tuple[str, ...] | None:
    """Cut a text without anything that PySBD has a rule for; ``None`` where it has to be asked.

    Every full stop of such a text stands between a word that is no abbreviation and a capital, or
    at the end, or in a decimal. Most of what hospitals write is so, and PySBD is slow.
    """
    if not _PLAIN.fullmatch(text) or any(language("en").repairs.unstopped(text)):
        return None
    pieces = tuple(_PLAIN_END.split(text))
    words = {piece[piece.rfind(" ") + 1 :].rstrip(".").lower() for piece in pieces}
    return pieces if words.isdisjoint(_abbreviations()) else None


@lru_cache(maxsize=1)
def _abbreviations() -> frozenset[str]:
    _segmenter()
    from pysbd.lang.english import English

    return frozenset(English.Abbreviation.ABBREVIATIONS) | language("en").repairs.abbreviations


@lru_cache(maxsize=8)
def _segmenter(code: str = "en") -> Any:
    with warnings.catch_warnings(action="ignore"):  # its regular expressions predate raw strings
        import pysbd

    return pysbd.Segmenter(language=code, clean=False)
