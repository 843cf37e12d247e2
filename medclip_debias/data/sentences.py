"""From a section of a report to its sentences: PySBD, repaired for radiology.

PySBD alone leaves "1. No acute disease. 2. Stable nodule." uncut at "1.", cuts behind "Dr." and
loses text around some symbols. Here items of a list are sentences of their own without their
numbers, titles stay with their names, and text that PySBD would lose is cut by a plain rule.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from functools import lru_cache
from typing import Any

DROPPED = ("list number only", "de-identified only", "no word", "too short", "too long", "repeated")
"""Why a sentence may be dropped; the last three by `medclip_debias.data.reports.ReportSettings`."""

MAX_SEGMENTER_LENGTH = 5_000
"""PySBD's time grows faster than the text; a longer item is cut by the plain rule."""

_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_LIST_LINE = re.compile(r"\n[ \t]*(?=(?:\(?\d{1,2}[.)]|[-*•])[ \t]+\S)")
_LIST_NUMBER = re.compile(r"(?:^|(?<=[.;:!?] ))\(?(\d{1,2})[.)] +(?=[A-Za-z_(])")
_LIST_PREFIX = re.compile(r"^(?:\(?\d{1,2}[.)]|[-*•])\s+(?=[^\W\d]|_|\()")
_LIST_MARK = re.compile(r"(?:\(?\d{1,2}[.)]?|[-*•])+")
_DEIDENTIFIED = re.compile(r"_+|\bX{3,}\b")
_ROUGH_END = re.compile(r"(?<=[a-z)\]_][.!?])\s+(?=[A-Z_])")
_TITLE = re.compile(r"\b(?:Drs?|Mr|Ms|Mrs)\.$")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a section, white space joined.

    Items of a list are sentences of their own, without their numbers. Sentences without a word
    (list numbers, ``___`` or ``XXXX`` alone) are dropped.

    >>> split_sentences("1. No acute disease. 2. Stable 1.5 cm nodule.")
    ['No acute disease.', 'Stable 1.5 cm nodule.']
    """
    return split_sentences_counted(text)[0]


def split_sentences_counted(text: str) -> tuple[list[str], Counter[str]]:
    """Return the sentences as `split_sentences` does, and how many were dropped and why.

    >>> split_sentences_counted("1. Clear. ___. 2.")
    (['Clear.'], Counter({'de-identified only': 1, 'list number only': 1}))
    """
    found: list[str] = []
    dropped: Counter[str] = Counter()
    for paragraph in _BLANK_LINE.split(text.replace("\r\n", "\n")):
        for block in _LIST_LINE.split("\n" + paragraph):
            for item in _list_items(" ".join(block.split())):
                for sentence in map(_without_mark, _segment(item)):
                    reason = _wordless(sentence)
                    if reason:
                        dropped[reason] += 1
                    elif sentence:
                        found.append(sentence)
    return found, dropped


def _without_mark(sentence: str) -> str:
    return _LIST_PREFIX.sub("", sentence)


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
def _segment(text: str) -> tuple[str, ...]:
    """Cut one item; hospital text repeats itself, so the slow segmenter is asked once."""
    bare = _LIST_PREFIX.sub("", text).strip()
    if not _has_word(bare):
        return (bare,)
    if len(bare) > MAX_SEGMENTER_LENGTH:
        return tuple(_joined_titles(_ROUGH_END.split(bare)))
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
    joined: list[list[str]] = []
    for piece in pieces:
        if joined and _TITLE.search(joined[-1][-1]):
            joined[-1].append(piece)
        else:
            joined.append([piece])
    return [" ".join(group) for group in joined]


@lru_cache(maxsize=1)
def _segmenter() -> Any:
    with warnings.catch_warnings():  # its regular expressions predate raw strings
        warnings.simplefilter("ignore")
        import pysbd

    return pysbd.Segmenter(language="en", clean=False)
