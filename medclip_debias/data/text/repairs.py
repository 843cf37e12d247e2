"""What PySBD's rules of general English get wrong in reports, put right piece by piece.

`repaired` joins pieces that were cut behind an abbreviation (``3 cm. nodule``, ``approx. 2``,
``No. of``, ``? pneumonia``) and cuts where a blank is missing (``normal.The``) or an abbreviation
ends a sentence. Letters, digits and marks all stay, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# Nobody ends a sentence with these; what follows belongs to them.
_ALWAYS_WORDS = (
    *("dr", "drs", "mr", "mrs", "prof", "approx", "vs", "incl", "esp", "fig", "figs", "ser", "img"),
    *("meas", "avg"),
)
# These end a sentence as well; they do not where the next word is in lower case.
_SOMETIMES_WORDS = (
    *("cm", "mm", "in", "ml", "cc", "kg", "hr", "hrs", "min", "mins", "sec", "secs", "yr", "yrs"),
    *("mo", "mos", "wk", "wks", "yo", "pt", "pts", "bilat", "unilat", "lat", "ant", "post", "sup"),
    *("inf", "med", "lt", "rt", "mod", "max", "prob", "poss", "prev", "stat", "sig", "abd", "hx"),
    *("dx", "fx", "tx", "sx", "rx", "etc", "exam", "comp", "atel", "pneumo", "incr", "decr"),
    *("susp", "eval", "diam", "vol", "loc", "assoc", "consol", "neg", "pos", "norm", "cont", "st"),
    *("lab", "degen", "calc", "cath", "clin", "resp"),
    *("pulm", "cardiopulm", "cardiomed", "cardiomeg", "mediast", "subclav", "jug", "vert", "thor"),
    *("lumb", "cerv", "esoph", "diaph", "hemidiaph", "vasc", "interst", "infil", "effus", "opac"),
    *("atelect", "emphys", "fib", "fract", "calcif", "segm", "periph", "vols", "resid", "subseg"),
    *("symm", "rad", "abn", "abnl", "nl", "enl", "inc", "dec", "sm", "lg", "sl", "slt", "freq"),
)
ABBREVIATIONS = frozenset((*_ALWAYS_WORDS, *_SOMETIMES_WORDS, "ms", "no", "nos"))
"""Words, in lower case, whose full stop may not end a sentence."""

_ALWAYS = re.compile(rf"\b(?:(?i:{'|'.join(_ALWAYS_WORDS)})|Ms|e\.g|i\.e)\.$")
_SOMETIMES = re.compile(
    rf"\b(?:(?i:{'|'.join(_SOMETIMES_WORDS)})|(?:[A-Za-z]\.)+[A-Za-z]|[a-zA-Z])\.$"
)
# "Bilat." or "Lt." alone is not a sentence even before a capital.
_LONE = re.compile(r"^(?:Bilat|Unilat|Lat|Ant|Post|Sup|Inf|Lt|Rt|Mod|Prob|Poss|Prev|Pt|Pts|St)\.$")
_NUMBER = re.compile(r"\b(?:No|Nos|no|nos)\.$")
_COUNTED = re.compile(r"(?:of\b|#|\d)")
_TIME = re.compile(r"^(?:At|On|By|Around|Since|Until) (?:approximately )?[\d:_X]+ ?[ap]\.m\.$")
_QUESTION_OF = re.compile(r"(?:^|\s)\?$")
# First words that start a sentence of a report, whatever stands before them.
_STARTS = (
    *("No", "The", "There", "This", "These", "Heart", "Lungs", "Lung", "Cardiac", "Mediastinum"),
    *("Cardiomediastinal", "Mediastinal", "Pulmonary", "Pleural", "Bones", "Bony", "Osseous"),
    *("Clear", "Stable", "Unchanged", "Normal", "Mild", "Moderate", "Small", "Large", "Both"),
    *("Bilateral", "Trachea", "Aorta", "An", "A", "It", "Is", "Was", "Impression", "Findings"),
    *("Otherwise", "Left", "Right", "Again", "Interval", "New", "Old", "Minimal", "Multiple"),
    "Recommend",
)
# No sentence starts with these in lower case; what stands before is an abbreviation in no list.
_CONTINUES = frozenset(
    ("of", "as", "at", "in", "on", "with", "to", "from", "for", "by", "and", "or", "than")
)
_SURE_STARTS = frozenset(("no", "the", "there", "this", "these", "heart", "lungs", "cardiac"))

# "normal.The", "cm.Heart", "___.No", "clear).The", "RLL.The", "T12.No".
_GLUED = re.compile(
    r"(?<=[a-z\d)\]_][a-z)\]_])[.!?](?=[A-Z](?:[a-z]|\s))"
    r"|(?<=[A-Z\d][A-Z\d])[.!?](?=[A-Z][a-z])"
    r"|(?<=[a-z]\d)[.!?](?=[A-Z][a-z])"
    r"|(?<=[a-z] )[.!?](?=[A-Z](?:[a-z]|\s))"
)
_NO_GLUE = re.compile(r"\b(?:Drs?|Mr|Ms|Mrs|Prof|St|No|vs|approx|Approx|Fig)$")
# "Normal chest No evidence", "markings The lungs are": a full stop is missing.
_NO_STOP = re.compile(
    r"(?<=[a-z]{4}) (?=No [a-z]{3}|There (?:is|are|was|were|has|have) |The [a-z]{3})"
)
_GOES_ON = re.compile(
    r"\b(?:with|without|from|that|into|than|over|upon|under|below|above|then|when|where|which"
    r"|while|since|this|about|between|against|through|during|after|before|near|says|said|reads)$"
)
# Inside brackets PySBD does not cut. Behind a parenthesis, and behind "R.U.L." before a word that starts sentences.
_UNCUT = re.compile(
    r"(?<=[a-z\d_][.!?][)\]])\s+(?=[A-Z])"
    rf"|(?<=\.[A-Z]\.)\s+(?=(?:{'|'.join(_STARTS)})\b)"
    r"|(?<=[a-z]{2}\.\.)\s+(?=[A-Z])"
    rf"|(?<=[a-z]{{4}}\.)\s+(?=(?:{'|'.join(_STARTS)}) )"
)


def repaired(pieces: Iterable[str]) -> list[str]:
    """Return the sentences of the pieces that PySBD made of one item.

    Args:
        pieces: in order, with the white space that stood around them.

    >>> repaired(["A 3 cm. ", "nodule is seen. ", "Heart is normal.The lungs are clear."])
    ['A 3 cm. nodule is seen.', 'Heart is normal.', 'The lungs are clear.']
    """
    joined: list[list[str]] = []
    for piece in pieces:
        for part in _cut(piece):
            if joined and _belongs(joined[-1], part.strip()):
                joined[-1].append(part)
            else:
                joined.append([part])
    return [" ".join("".join(group).split()) for group in joined]


def misses_a_stop(text: str) -> bool:
    """Tell whether a sentence of ``text`` starts where no full stop precedes it."""
    return any(True for _ in _unstopped(text))


def _unstopped(text: str) -> Iterator[int]:
    """Yield where a sentence starts without a full stop before it."""
    for match in _NO_STOP.finditer(text):
        if not _GOES_ON.search(text, max(match.start() - 16, 0), match.start()):
            yield match.end()


def _cut(piece: str) -> list[str]:
    cuts = [0]
    for match in _GLUED.finditer(piece):
        before = piece[max(cuts[-1], match.start() - 12) : match.start()]
        if not _NO_GLUE.search(before) and any(map(str.isalpha, piece[cuts[-1] : match.start()])):
            cuts.append(match.end())
    cuts += [match.end() for match in _UNCUT.finditer(piece)]
    cuts += _unstopped(piece)
    cuts = sorted(set(cuts))
    ends = [*cuts[1:], len(piece)]
    parts = (piece[start:end] for start, end in zip(cuts, ends, strict=True))
    return [part for part in parts if part.strip()]


def _belongs(group: list[str], part: str) -> bool:
    """Tell whether ``part`` goes on with the sentence that ``group`` has so far."""
    last = group[-1].strip()
    if last[-1] == "?":
        return last == "?" or (part[0].islower() and bool(_QUESTION_OF.search(last)))
    if last[-1] != ".":
        return False
    end = last[-16:]
    if _ALWAYS.search(end) or _LONE.match(last) or _TIME.match(last):
        return True
    if _NUMBER.search(end):
        return bool(_COUNTED.match(part))
    if part[0] in "/,;)":
        return True
    if not part.lstrip("(")[0:1].islower():
        return False
    first = part.split(maxsplit=1)[0]
    # In notes without capitals "3 cm. no effusion" is two sentences.
    if group[0].lstrip()[0].islower():
        return bool(_SOMETIMES.search(end)) and first not in _SURE_STARTS
    return first in _CONTINUES or bool(_SOMETIMES.search(end))
