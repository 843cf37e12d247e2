"""What bad input leads to, as one Markdown table: a row for each kind of input, with counts."""

from __future__ import annotations

from collections import Counter

from case import Outcome

MARK = "<!-- what follows is written by scripts/fuzz/bad_inputs -->\n"
VERDICTS = ("refused", "counted", "read")


def page(outcomes: list[Outcome]) -> str:
    """Counts over everything, then by the kind of input.

    >>> page([]).startswith(MARK)
    True
    """
    faults = sum(bool(outcome.fault) for outcome in outcomes)
    by_area: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        by_area.setdefault(outcome.case.area, Counter())[outcome.verdict] += 1
    totals = sum(by_area.values(), Counter[str]())
    listed = ", ".join(f"{totals[verdict]} {verdict}" for verdict in VERDICTS)
    lines = [
        f"{len(outcomes)} bad inputs: {listed}; answered wrongly: {faults}.\n",
        f"| input | {' | '.join(VERDICTS)} |",
        "| --- | --: | --: | --: |",
    ]
    for area, counts in sorted(by_area.items(), key=lambda row: row[0].lower()):
        cells = " | ".join(str(counts[verdict] or "") for verdict in VERDICTS)
        lines.append(f"| {area[0].upper()}{area[1:]} | {cells} |")
    return MARK + "\n".join(lines) + "\n"
