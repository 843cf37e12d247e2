"""Which sentences can be grounded at all, and how often training reports say them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

RULE = (
    "A phrase is not groundable when its category says that nothing was found ('No Finding', "
    "'Normal', 'None'), or when its sentence opens with a negation ('no', 'without', 'absence of', "
    "'negative for', 'free of', 'there is no'; not 'no change', 'no longer' or 'no less'), ends in "
    "'is/are not seen' (present, identified, visualized, ...), or says only that something is "
    "clear, normal or unremarkable."
)
FREQUENCIES = ((0, 0), (1, 9), (10, None))
"""Groups of how many training studies say a sentence: first and last number, None for open."""

_EMPTY = {"no finding", "no findings", "normal", "none"}
_OPENS = re.compile(
    r"^(?:there (?:is|are|was|were)(?: \w+)? )?"
    r"(?:no|without|absence of|absent|negative for|free of)\b"
    r"(?! (?:\w+ )?(?:change|longer|less|improvement|increase|decrease|progression)\b)"
)
_ENDS = re.compile(
    r"\b(?:is|are|was|were|has been|have been) (?:no longer |not |no )"
    r"(?:\w+ )?(?:seen|present|identified|visuali[sz]ed|noted|evident|detected|appreciated)$"
)
_CLEAR = re.compile(
    r"^[\w ]*\b(?:is|are|appears?|remains?)(?: \w+)? (?:clear|normal|unremarkable)"
    r"(?: in (?:size|contour|appearance))?$"
)


def normalised(text: str) -> str:
    """A sentence as it is compared: lower case, single blanks, no closing full stop.

    >>> normalised("Left  effusion. ")
    'left effusion'
    """
    return " ".join(text.lower().split()).rstrip(".! ")


def is_groundable(text: str, category: str = "") -> bool:
    """Whether a box can show what the sentence says; see `RULE`.

    >>> is_groundable("No pneumothorax."), is_groundable("No change in left effusion")
    (False, True)
    """
    words = normalised(text)
    if " ".join(category.replace("_", " ").split()).lower() in _EMPTY:
        return False
    return not (_OPENS.search(words) or _ENDS.search(words) or _CLEAR.search(words))


def study_counts(texts: Iterable[str], studies: Iterable[str]) -> Counter[str]:
    """How many studies say each normalised sentence; a study that says it twice counts once."""
    pairs = {(normalised(text), study) for text, study in zip(texts, studies, strict=True)}
    return Counter(text for text, _ in pairs)


def frequency_group(count: int) -> str:
    """Name of the group in `FREQUENCIES` that a count falls into.

    >>> frequency_group(0), frequency_group(3), frequency_group(10)
    ('0', '1-9', '10+')
    """
    first, last = next(pair for pair in FREQUENCIES if pair[1] is None or count <= pair[1])
    if last is None:
        return f"{first}+"
    return str(first) if first == last else f"{first}-{last}"
