"""The central idea in a run's report: what is corrected, by how much, and which pairs count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.reporting.content import Rows, dig
from medclip_debias.reporting.correction import (
    Correction,
    constant,
    correction,
    ends,
    plots,
    summary,
)
from medclip_debias.reporting.learned_from import Learned, learned
from medclip_debias.reporting.pair_classes import SAMPLE, Judged, judged


@dataclass
class Idea:
    """What the section shows.

    Attributes:
        missing: why something is not shown, in a sentence.
        lines: sentences.
        plots: plot, title and caption of each.
        ends: title and rows of the tables of sentences.
        pairs: what parts of the objective make of pairs.
        sampled: studies that those are counted over.
        quotes: it holds words of real reports.
    """

    missing: str = ""
    lines: list[str] = field(default_factory=list)
    plots: list[tuple[Any, str, str]] = field(default_factory=list)
    ends: list[tuple[str, Rows]] = field(default_factory=list)
    pairs: list[Judged] = field(default_factory=list)
    sampled: int = 0
    quotes: bool = False


def idea(folder: Path, settings: Mapping[str, Any], given: Path | None = None) -> Idea:
    """What a run's objective corrects.

    Args:
        folder: of the run.
        settings: content of its ``settings.yaml``.
        given: the set that it learned from, as the user names it.

    Raises:
        UserError: ``given`` is not that set.
    """
    found, why = learned(folder, settings, given)
    shown = Idea(missing=why)
    if found is None:
        return shown
    try:
        _fill(shown, found, int(dig(settings, "train.batch_size") or 64))
    except (UserError, TypeError, ValueError) as error:  # settings may hold anything
        shown.missing = f"Not all can be shown. {error}"
    shown.quotes = not found.synthetic and bool(shown.ends or shown.pairs)
    return shown


def _fill(shown: Idea, found: Learned, batch_size: int) -> None:
    value = constant(found)
    if value:
        rest = batch_size - 1
        shown.lines.append(
            f"Every sentence is corrected alike: eta {value:g} stands for {value * rest:.1f} of "
            f"the {rest} other images in a batch of {batch_size}, whatever the sentence says."
        )
    eta: Correction | None = correction(found)
    if eta is not None:
        shown.lines += summary(eta, batch_size)
        shown.plots = plots(eta)
        most, least = ends(eta)
        shown.ends = [("Corrected most", most), ("Corrected least", least)]
    shown.pairs, notes = judged(found)
    shown.sampled = min(SAMPLE, len(found.run.studies))
    shown.lines += notes
    if not shown.lines and not shown.pairs:
        shown.lines.append(
            "This objective does not correct the negatives of a sentence by what they say: see the "
            "loss above."
        )
