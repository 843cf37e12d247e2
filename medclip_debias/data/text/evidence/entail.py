"""Whether what a report says of a finding agrees with what a sentence claims of it.

Three-valued: 1 agrees, -1 contradicts, 0 unknown. docs/claims.md has the rules in words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from medclip_debias.data.text.claims.claim import FIELDS, Claim
from medclip_debias.data.text.claims.lexicon import Lexicon

AGREE, UNKNOWN, CONTRADICT = 1, 0, -1


class Said(NamedTuple):
    """What is said of one finding; as `Claim`, without the finding's name and the change."""

    present: bool
    certain: bool
    side: str = ""
    zone: str = ""
    severity: str = ""


class Judged(NamedTuple):
    """A verdict, and whether the report says both that and its opposite (then it is unknown)."""

    verdict: int
    conflict: bool


def said(claim: Claim) -> Said | None:
    """What a claim says of its finding; None where one image cannot tell.

    "No new opacity" says nothing of old ones. Other changes are left aside: an image shows that an
    effusion is there, not that it has grown.
    """
    if not claim.present and claim.change == "new":
        return None
    return Said(claim.present, claim.certain, claim.side, claim.zone, claim.severity)


def implied(claim: Claim, lexicon: Lexicon) -> Iterator[tuple[str, Said]]:
    """What a report's claim says of its finding and of the hierarchy around it.

    A consolidation is an opacity of that place (of what severity is not said); where there is no
    opacity, there is no consolidation.
    """
    own = said(claim)
    if own is None:
        return
    related = lexicon.ancestors if claim.present else lexicon.descendants
    for finding in related[claim.finding]:
        other = claim.present and finding != claim.finding
        yield finding, own._replace(severity="") if other else own


def judge(known: Collection[Said], asked: Said, always: bool) -> Judged:
    """What a report says of a claim, by what it says of the claim's finding.

    Args:
        known: what the report says of that finding.
        asked: what the sentence claims of it.
        always: readers always mention this finding, so what is not mentioned is absent.
    """
    if not asked.certain:
        return Judged(UNKNOWN, False)
    seen = [k for k in known if k.present and k.certain]
    denied = [k for k in known if not k.present and k.certain]
    possible = any(
        k.present
        and (not k.side or not asked.side or k.side == asked.side)
        and (not k.zone or not asked.zone or k.zone == asked.zone)
        and not _far(k, asked)
        for k in known
    )
    there = any(_covers(asked, k) for k in seen)
    sides = [asked] if asked.side else [asked._replace(side=side) for side in ("left", "right")]
    # A denial covers what is asked, or denials of both sides together do.
    gone = all(any(_covers(k, side) for k in denied) for side in sides)
    if asked.present:
        agrees = there
        contradicts = gone or (always and not possible)
        # The same place is seen with another severity: mild is not severe.
        same = [k for k in seen if k.side == asked.side and k.zone == asked.zone]
        contradicts = contradicts or (not there and any(_far(k, asked) for k in same))
    else:
        agrees = gone or (always and not possible)
        contradicts = there
    if agrees == contradicts:
        return Judged(UNKNOWN, agrees)
    return Judged(AGREE if agrees else CONTRADICT, False)


def _covers(wide: Said, narrow: Said) -> bool:
    """Whether all that ``narrow`` speaks of is also spoken of by ``wide``: any left is any."""
    return (
        wide.side in ("", narrow.side)
        and wide.zone in ("", narrow.zone)
        and wide.severity in ("", narrow.severity)
    )


def _far(a: Said, b: Said) -> bool:
    """Mild and severe; between neighbours readers differ."""
    grades = FIELDS["severity"]
    apart = abs(grades.index(a.severity) - grades.index(b.severity))
    return bool(a.severity and b.severity) and apart > 1
