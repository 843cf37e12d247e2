"""What PySBD's rules of general English get wrong in reports, put right piece by piece.

`repaired` joins pieces that were cut behind an abbreviation (``3 cm. nodule``, ``approx. 2``,
``No. of``, ``? pneumonia``) and cuts where a blank is missing (``normal.The``) or an abbreviation
ends a sentence. Letters, digits and marks all stay, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

_NUMBER = re.compile(r"\b(?:No|Nos|no|nos)\.$")
_COUNTED = re.compile(r"(?:of\b|#|\d)")
_TIME = re.compile(r"^(?:At|On|By|Around|Since|Until) (?:approximately )?[\d:_X]+ ?[ap]\.m\.$")
_QUESTION_OF = re.compile(r"(?:^|\s)\?$")

# "Normal chest No evidence", "markings The lungs are": a full stop is missing.
_NO_STOP = re.compile(
    r"(?<=[a-z]{4}) (?=No [a-z]{3}|There (?:is|are|was|were|has|have) |The [a-z]{3})"
)
_GOES_ON = re.compile(
    r"\b(?:with|without|from|that|into|than|over|upon|under|below|above|then|when|where|which"
    r"|while|since|this|about|between|against|through|during|after|before|near|says|said|reads)$"
)


class Repairs:
    """The repairs of one language.

    Attributes:
        abbreviations: in lower case, whose full stop may not end a sentence.
    """

    def __init__(self, words: Mapping[str, Any]) -> None:
        up, low = words["upper"], words["lower"]
        always, exact, sometimes, lone = (
            words["abbreviations"][name] for name in ("always", "exact", "sometimes", "lone")
        )
        short = (word.lower() for word in (*always, *exact, *sometimes))
        self.abbreviations = frozenset((*short, "no", "nos"))
        self._may_lack_a_stop = words.get("unstopped", False)
        self._continues = frozenset(words["continues"])
        self._sure_starts = frozenset(words["sure_starts"])
        begins = _either(words["starts"])
        self._always = re.compile(rf"\b(?:(?i:{_either(always)})|{_either(exact)})\.$")
        self._sometimes = re.compile(
            rf"\b(?:(?i:{_either(sometimes)})|(?:[{up}{low}]\.)+[{up}{low}]|[{up}{low}])\.$"
        )
        self._lone = re.compile(rf"^(?:{_either(lone)})\.$")
        # "normal.The", "cm.Heart", "___.No", "clear).The", "RLL.The", "T12.No".
        self._glued = re.compile(
            rf"(?<=[{low}\d)\]_][{low})\]_])[.!?](?=[{up}](?:[{low}]|\s))"
            rf"|(?<=[{up}\d][{up}\d])[.!?](?=[{up}][{low}])"
            rf"|(?<=[{low}]\d)[.!?](?=[{up}][{low}])"
            rf"|(?<=[{low}] )[.!?](?=[{up}](?:[{low}]|\s))"
        )
        self._no_glue = re.compile(rf"\b(?:{_either(words['honorifics'])})$")
        # Behind a parenthesis, and behind "R.U.L." before a word that starts sentences; inside
        # brackets, where PySBD does not cut.
        self._uncut = re.compile(
            rf"(?<=[{low}\d_][.!?][)\]])\s+(?=[{up}])"
            rf"|(?<=\.[{up}]\.)\s+(?=(?:{begins})\b)"
            rf"|(?<=[{low}]{{2}}\.\.)\s+(?=[{up}])"
            rf"|(?<=[{low}]{{4}}\.)\s+(?=(?:{begins}) )"
        )

    def repaired(self, pieces: Iterable[str]) -> list[str]:
        """Return the sentences of the pieces that PySBD made of one item."""
        joined: list[list[str]] = []
        for piece in pieces:
            for part in self._cut(piece):
                if joined and self._belongs(joined[-1], part.strip()):
                    joined[-1].append(part)
                else:
                    joined.append([part])
        return [" ".join("".join(group).split()) for group in joined]

    def unstopped(self, text: str) -> Iterator[int]:
        """Yield where a sentence starts without a full stop before it."""
        for match in _NO_STOP.finditer(text) if self._may_lack_a_stop else ():
            if not _GOES_ON.search(text, max(match.start() - 16, 0), match.start()):
                yield match.end()

    def _cut(self, piece: str) -> list[str]:
        cuts = [0]
        for match in self._glued.finditer(piece):
            before = piece[max(cuts[-1], match.start() - 12) : match.start()]
            worded = any(map(str.isalpha, piece[cuts[-1] : match.start()]))
            if not self._no_glue.search(before) and worded:
                cuts.append(match.end())
        cuts += [match.end() for match in self._uncut.finditer(piece)]
        cuts = sorted({*cuts, *self.unstopped(piece)})
        parts = (piece[start:end] for start, end in pairwise([*cuts, len(piece)]))
        return [part for part in parts if part.strip()]

    def _belongs(self, group: list[str], part: str) -> bool:
        """Tell whether ``part`` goes on with the sentence that ``group`` has so far."""
        last = group[-1].strip()
        if last[-1] == "?":
            return last == "?" or (part[0].islower() and bool(_QUESTION_OF.search(last)))
        if last[-1] != ".":
            return False
        end = last[-16:]
        if self._always.search(end) or self._lone.match(last) or _TIME.match(last):
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
            return bool(self._sometimes.search(end)) and first not in self._sure_starts
        return first in self._continues or bool(self._sometimes.search(end))


def _either(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, words)) or "(?!)"
