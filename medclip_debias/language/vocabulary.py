"""Which words of reports a tokenizer may learn: those of several patients that are no names.

A vocabulary is published with every model, and a word in it is a word of some report. So a word
must have been said of at least a number of patients, however often it was said of one, and must
not look like what de-identification takes out: a name, a date, a number of a person.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_TITLE = re.compile(
    r"\b(?:dr|drs|mr|mrs|ms|miss|prof|nurse|doctor|signed by|dictated by)\.?\s+$", re.I
)
_EPONYMS = frozenset(
    (
        *("swan", "ganz", "kerley", "dobhoff", "dobbhoff", "hickman", "foley", "cobb", "schmorl"),
        *("bochdalek", "morgagni", "chilaiditi", "hampton", "westermark", "fleischner", "ranke"),
        *("harrington", "blakemore", "sengstaken", "ghon", "kartagener", "hodgkin", "jude", "x"),
    )
)
"""Names of signs, diseases and devices, which no report needs to hide."""
_LONGEST_NUMBER = 2


def allowed_words(said: Mapping[str, Collection[str]], min_patients: int) -> tuple[set[str], int]:
    """The words that a tokenizer may learn, in lower case, and how many others there are.

    Args:
        said: patients of each distinct sentence.
        min_patients: patients that a word needs.
    """
    patients: defaultdict[str, set[str]] = defaultdict(set)
    capital: Counter[str] = Counter()
    inside: Counter[str] = Counter()
    titled: set[str] = set()
    for sentence, whose in said.items():
        for found in _WORD.finditer(sentence):
            word = found[0].lower()
            patients[word].update(whose)
            before = sentence[: found.start()]
            if _TITLE.search(before[-20:]):
                titled.add(word)
            if re.search(r"[\w,;)]\s*$", before):  # not the first word of a sentence or list
                inside[word] += 1
                capital[word] += found[0][0].isupper() and found[0][1:].islower()
    allowed = {
        word
        for word, whose in patients.items()
        if len(whose) >= min_patients
        and sum(letter.isdigit() for letter in word) <= _LONGEST_NUMBER
        and (word in _EPONYMS or (word not in titled and 2 * capital[word] <= inside[word]))
    }
    return allowed, len(patients) - len(allowed)


def without_others(sentence: str, allowed: Collection[str]) -> str:
    """``sentence`` without the words that are not ``allowed``."""
    return _WORD.sub(lambda found: found[0] if found[0].lower() in allowed else " ", sentence)
