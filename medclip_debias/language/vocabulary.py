"""Which words of reports a tokenizer may learn: those of several patients that are no names.

A vocabulary is published with every model, and a word in it is a word of some report. So a word
must stand in the reports of at least ``min_patients`` patients, however often in those of one, and
must not look like what de-identification takes out: a name, a date, a number of a person.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_TITLE = re.compile(
    r"\b(?:dr|drs|mr|mrs|ms|miss|prof|nurse|doctor|signed by|dictated by)\.?\s+$", re.I
)
_EPONYMS = (
    "swan ganz kerley dobhoff dobbhoff hickman foley cobb schmorl bochdalek morgagni chilaiditi "
    "hampton westermark fleischner ranke harrington blakemore sengstaken ghon kartagener hodgkin "
    "jude x"
)
"""Names of signs, diseases and devices, which no report needs to hide."""
_LONGEST_NUMBER = 2


def allowed_words(
    patients_of: Mapping[str, Collection[str]], min_patients: int
) -> tuple[set[str], int]:
    """The words that a tokenizer may learn, in lower case, and how many others there are."""
    patients: defaultdict[str, set[str]] = defaultdict(set)
    capital: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    titled: set[str] = set()
    eponyms = set(_EPONYMS.split())
    for sentence, its_patients in patients_of.items():
        for match in _WORD.finditer(sentence):
            word = match[0].lower()
            patients[word].update(its_patients)
            before = sentence[: match.start()]
            if _TITLE.search(before[-20:]):
                titled.add(word)
            if re.search(r"[\w,;)]\s*$", before):  # not the first word of a sentence or list
                inside[word] += 1
                capital[word] += match[0][0].isupper() and match[0][1:].islower()
    allowed = {
        word
        for word, its_patients in patients.items()
        if len(its_patients) >= min_patients
        and sum(letter.isdigit() for letter in word) <= _LONGEST_NUMBER
        and (word in eponyms or (word not in titled and 2 * capital[word] <= inside[word]))
    }
    return allowed, len(patients) - len(allowed)


def without_others(sentence: str, allowed: Collection[str]) -> str:
    """``sentence`` without the words that are not ``allowed``."""
    return _WORD.sub(lambda match: match[0] if match[0].lower() in allowed else " ", sentence)
