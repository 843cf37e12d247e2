"""The table of bad inputs as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from case import Outcome

MARK = "<!-- what follows is written by scripts/fuzz/bad_inputs -->\n"


def page(outcomes: list[Outcome]) -> str:
    """Counts, then one table for each kind of input.

    >>> page([]).startswith(MARK)
    True
    """
    counts = Counter(outcome.verdict for outcome in outcomes)
    faults = sum(bool(outcome.fault) for outcome in outcomes)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    lines = [f"{len(outcomes)} bad inputs: {listed}; answered wrongly: {faults}.\n"]
    for area in dict.fromkeys(outcome.case.area for outcome in outcomes):
        lines.append(f"\n### {area[0].upper()}{area[1:]}\n")
        lines.append("| input | verdict | what is said |\n| --- | --- | --- |")
        lines += _rows(outcome for outcome in outcomes if outcome.case.area == area)
    return MARK + "\n".join(lines) + "\n"


def _rows(outcomes: Iterable[Outcome]) -> Iterable[str]:
    for outcome in outcomes:
        verdict = f"**{outcome.fault}**" if outcome.fault else outcome.verdict
        yield f"| {_cell(outcome.case.what)} | {verdict} | {_cell(outcome.said)} |"


def _cell(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= 320 else text[:317] + "..."
