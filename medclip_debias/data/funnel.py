"""The funnel: every step that dropped a row, with counts, so that two people can compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from medclip_debias.errors import UserError

T = TypeVar("T")

ASIDE = (
    *("label rows", "label cells", "rows", "test studies", "reports", "boxes", "projection rows"),
    *("index entries", "locations", "cells", "image files", "studies of the split"),
    *("images by view", "images by split", "patients of test"),
)
"""Units of steps that drop no image and no study."""

_REMEDIES = {
    "view is not blank": "take images without a view with --blank-view include",
    "view is frontal": "name the views to take, as --views AP,PA, or take them all with"
    " --views all",
    "view is one of those asked for": "name other views with --views, or take them all with"
    " --views all",
    "split is known": "split by --split-seed or --split-file, or test on all images with"
    " --all-test",
    "study has a report": "give --reports where they lie elsewhere, or keep images without a"
    " sentence with --without-sentence keep",
}
"""What to do where a step left nothing; other steps are the source's."""


class Funnel:
    """Counts what each step kept and dropped, in order.

    Attributes:
        rows: the steps.
        example: why one of the dropped files was dropped, for the message on an empty set.
        start: number of the first step that may be to blame for an empty set.

    Example:
        >>> funnel = Funnel()
        >>> funnel.step("images listed", "images", 10)
        >>> funnel.step("frontal view", "images", 7, before=10)
        >>> funnel.rows[-1]
        {'step': 'frontal view', 'kept': 7, 'dropped': 3, 'unit': 'images'}
    """

    def __init__(self, rows: Sequence[dict[str, Any]] = ()) -> None:
        self.rows: list[dict[str, Any]] = list(rows)
        self.example = ""
        self.start = 0

    def step(self, name: str, unit: str, kept: int, before: int | None = None) -> None:
        """Record one step; without ``before`` it is a starting count."""
        dropped = 0 if before is None else before - kept
        self.rows.append({"step": name, "kept": kept, "dropped": dropped, "unit": unit})

    def keep(self, items: list[T], name: str, unit: str, test: Callable[[T], Any]) -> list[T]:
        """Return the items that pass a test; record the step."""
        kept = [item for item in items if test(item)]
        self.step(name, unit, len(kept), before=len(items))
        return kept

    def worst(self) -> dict[str, Any]:
        """Return the step that dropped the largest share of what reached it.

        Words of sections and rows of label tables that are left aside empty no set, so they are
        not looked at.
        """
        steps = self.rows[self.start :]
        rows = [
            row for row in steps if row["unit"] not in ASIDE and not row["unit"].startswith("words")
        ] or steps
        return max(rows, key=lambda r: r["dropped"] / max(r["kept"] + r["dropped"], 1))

    def stop_if_empty(self, kept: int) -> None:
        """Stop when a step kept nothing, naming the step that dropped most."""
        if kept:
            return
        worst = self.worst()
        count = worst["kept"] + worst["dropped"]
        remedy = _REMEDIES.get(worst["step"], "check the settings and the source")
        shown = f"; for example {self.example}" if self.example else f"; {remedy}."
        raise UserError(
            f"nothing is left of the source: the step '{worst['step']}' dropped"
            f" {worst['dropped']} of {count} {worst['unit']}{shown}"
        )


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the funnel as a plain text table.

    >>> print(table([{"step": "frontal view", "kept": 7, "dropped": 3, "unit": "images"}]))
    step          kept  dropped  unit
    frontal view     7        3  images
    """
    cells = [("step", "kept", "dropped", "unit")]
    cells += [(r["step"], f"{r['kept']:,}", f"{r['dropped']:,}", r["unit"]) for r in rows]
    a, b, c = (max(len(row[i]) for row in cells) for i in range(3))
    return "\n".join(f"{s:<{a}}  {k:>{b}}  {d:>{c}}  {u}" for s, k, d, u in cells)
