"""A claim: what a sentence says of one finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

FIELDS: dict[str, tuple[str, ...]] = {
    "polarity": ("present", "absent"),
    "certainty": ("certain", "uncertain"),
    "side": ("", "left", "right"),
    "zone": ("", "upper", "middle", "lower"),
    "severity": ("", "mild", "moderate", "severe"),
    "change": ("", "new", "increased", "decreased", "stable", "resolved"),
}
"""Every field of a claim but its finding, and the values that it may have."""


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """What is said of one finding; an empty text means that it is not said.

    Attributes:
        finding: its name in the lexicon.
        polarity: ``present`` or ``absent``.
        certainty: ``certain`` or ``uncertain`` (possible, may represent, cannot be excluded).
        side: the patient's ``left`` or ``right``; what is bilateral is two claims.
        zone: ``upper``, ``middle`` or ``lower``.
        severity: ``mild``, ``moderate`` or ``severe``; of a range, its lower end.
        change: against an earlier study. What has resolved is absent.
    """

    finding: str
    polarity: str = "present"
    certainty: str = "certain"
    side: str = ""
    zone: str = ""
    severity: str = ""
    change: str = ""

    @property
    def present(self) -> bool:
        return self.polarity == "present"

    @property
    def certain(self) -> bool:
        return self.certainty == "certain"


class Parsed(NamedTuple):
    """What a parser read in one sentence.

    Attributes:
        claims: sorted, each once.
        corrected: words that were read as a word of the lexicon one letter away.
    """

    claims: tuple[Claim, ...]
    corrected: int = 0
