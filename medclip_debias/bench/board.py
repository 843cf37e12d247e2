"""Models beside each other on every card: values, ranks, paired differences, figures of others.

What can mislead is said where it would: a result on fewer images than its card has is neither
ranked nor best, and compared only with one on the very same images; ranks count the cards alone
that every model has completed; a difference between two trainings is never called more than one
on these patients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from medclip_debias.bench.card import Published
from medclip_debias.bench.pairs import by_protocol, has_truth, resample
from medclip_debias.bench.record import Figure
from medclip_debias.bench.results import KNOWN, Results, Task, metric_of, read_results
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.catalogue import Metric
from medclip_debias.evaluation.compare import NOT_SHOWN, NOT_TESTED, ONE_EACH
from medclip_debias.evaluation.item_metrics import ITEMS
from medclip_debias.evaluation.runs import Group, Run, mismatch
from medclip_debias.evaluation.statistics import ALPHA, average_ranks, difference, holm

State = Literal["complete", "incomplete", "not measured", "not run"]


@dataclass
class Gap:
    """A model's metric minus the baseline's, over the same patients.

    Attributes:
        value: the difference.
        low, high: its 95% interval; None where the two cannot be paired.
        p: two-sided; None where it was not tested.
        p_holm: corrected over every difference of the board.
        verdict: in words, as `medclip_debias.evaluation.compare` says it.
        better: whether it is for the better; None for no difference.
        reason: why it was not tested.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: str = NOT_TESTED
    better: bool | None = None
    reason: str = ""


@dataclass
class Cell:
    """What one model reached in one metric of one card.

    Attributes:
        state: whether it was run, measured, and on all of the card's images.
        figure: value and interval; None for what was not run or measured.
        reason: why it was not measured, or how many images are missing.
        best: no complete result of the row is better.
        gap: to the baseline; None for the baseline itself and where there is no figure.
    """

    state: State
    figure: Figure | None = None
    reason: str = ""
    best: bool = False
    gap: Gap | None = None


@dataclass(frozen=True)
class Row:
    """One metric of one card.

    Attributes:
        task: the card and its results.
        key: of the metric.
        cells: by model.
        published: figures of others, by whose they are; not reproduced.
    """

    task: Task
    key: str
    cells: dict[str, Cell]
    published: dict[str, Published]

    @property
    def metric(self) -> Metric:
        """Title, digits and direction."""
        return metric_of(self.key)


@dataclass(frozen=True)
class Board:
    """All of it.

    Attributes:
        results: models and tasks.
        baseline: name of the model that the others are compared with; None for a single one.
        rows: by card and metric.
        ranks: mean rank of each model over ``ranked``, 1 for the best; empty for none.
        ranked: cards that every model has completed.
    """

    results: Results
    baseline: str | None
    rows: tuple[Row, ...]
    ranks: dict[str, float]
    ranked: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def ranked_words(self) -> str:
        """Over how many cards the ranks are, and whose radiographs those are."""
        generated = sum(
            task.generated for task in self.results.tasks if task.full_name in self.ranked
        )
        words = f"{len(self.ranked)} of {len(self.results.tasks)} cards"
        if generated:
            every = generated == len(self.ranked)
            words += ", all generated" if every else f", {generated} generated"
        return words

    @property
    def others(self) -> list[str]:
        """Names of those who published a figure of one of the cards."""
        return list(dict.fromkeys(name for row in self.rows for name in row.published))

    @property
    def tests(self) -> int:
        """How many differences were tested."""
        return sum(gap.p is not None for _, gap in _gaps(self.rows))


def read_board(
    folder: Path,
    *,
    cards: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    baseline: str | None = None,
) -> Board:
    """Read a folder of results, and compare its models.

    Args:
        folder: of results, or a results repository.
        cards: names of cards; all by default.
        models: names of models, in the order wanted; all by default.
        baseline: model that the others are compared with; the first by default.

    Raises:
        UserError: the results cannot be read, or are not of one task each.
    """
    results = read_results(folder, cards=cards, models=models)
    names = list(results.models)
    if baseline is not None and baseline not in names:
        raise UserError(
            f"{folder}: there is no model '{baseline}' to compare with"
            f"{did_you_mean(baseline, names)}; it is one of {', '.join(names)}."
        )
    base = baseline or (names[0] if len(names) > 1 else None)
    rows = [_row(task, key, names) for task in results.tasks for key in task.metrics]
    for row in rows:
        _mark_best(row)
    if base is not None:
        for task in results.tasks:
            _compare(task, [row for row in rows if row.task is task], base)
        _judge(rows)
    ranks, ranked = _ranks(rows, names)
    return Board(results, base, tuple(rows), ranks, ranked, tuple(_notes(results, rows)))


def _row(task: Task, key: str, models: Sequence[str]) -> Row:
    published = task.card.published if task.card else ()
    return Row(
        task,
        key,
        {name: _cell(task, key, name) for name in models},
        {figure.model: figure for figure in published if figure.metric == key},
    )


def _cell(task: Task, key: str, model: str) -> Cell:
    if model not in task.results:
        return Cell("not run")
    result = task.results[model]
    record = result.record
    if key not in record.metrics:
        return Cell("not measured", reason=record.reasons.get(key, ""))
    judged = record.judged
    of = "" if judged.wanted is None else f" of {judged.wanted}"
    lacking = "" if result.complete else f"{judged.missing}{of} images are missing"
    return Cell("complete" if result.complete else "incomplete", record.metrics[key], lacking)


def _mark_best(row: Row) -> None:
    whole = [value for cell in row.cells.values() if (value := _whole(cell)) is not None]
    if len(whole) < 2:
        return
    best = min(whole) if row.metric.lower_is_better else max(whole)
    for cell in row.cells.values():
        cell.best = _whole(cell) == best


def _whole(cell: Cell) -> float | None:
    """The value of a complete result; None for any other."""
    return cell.figure.value if cell.state == "complete" and cell.figure else None


def _ranks(rows: Sequence[Row], models: Sequence[str]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Mean ranks over the cards that every model has completed, by each card's first metric."""
    leading = [row for row in rows if row.key == row.task.metrics[0]]
    values = [[_whole(row.cells[name]) for name in models] for row in leading]
    whole = [row for row, found in zip(leading, values, strict=True) if None not in found]
    if len(models) < 2 or not whole:
        return {}, ()
    table = [found for found in values if None not in found]
    lower = [row.metric.lower_is_better for row in whole]
    ranks = average_ranks(np.array(table, dtype=np.float64).T, lower)
    means = {name: float(rank) for name, rank in zip(models, ranks, strict=True)}
    return means, tuple(row.task.full_name for row in whole)


# ------------------------------------------------------------------------- differences


def _compare(task: Task, rows: Sequence[Row], base: str) -> None:
    """Give every cell with a figure its difference to the baseline's."""
    paired = by_protocol(tuple(row.key for row in rows))
    done = {key for keys in paired.values() for key in keys}
    for row in rows:
        for name, cell in row.cells.items():
            reference = row.cells[base].figure
            if name == base or cell.figure is None or reference is None:
                continue
            cell.gap = Gap(cell.figure.value - reference.value)
            judged = [task.results[model].record.judged.list_hash for model in (name, base)]
            if judged[0] != judged[1]:
                cell.gap.reason = "the two judged different images"
            elif row.key not in done:
                cell.gap.reason = "this metric does not follow from the items"
    for protocol, keys in paired.items():
        _pair(task, [row for row in rows if row.key in keys], base, protocol)


def _pair(task: Task, rows: Sequence[Row], base: str, protocol: str) -> None:
    """Test what can be paired: results on the same items of the same patients."""
    models = {
        name
        for row in rows
        for name, cell in row.cells.items()
        if cell.gap is not None and not cell.gap.reason
    }
    if not models:
        return
    base_items, base_found = resample(task.results[base], protocol)
    for name in models:
        items, found = resample(task.results[name], protocol)
        differs = _differs(protocol, items, base_items)
        for row in rows:
            gap = row.cells[name].gap
            if gap is None or gap.reason:
                continue
            metric = KNOWN[row.key].name
            if differs:
                gap.reason = differs
            elif metric not in found or metric not in base_found:
                gap.reason = "the labels are withheld, and no resamples are given"
            else:
                tested = difference(found[metric], base_found[metric])
                gap.p = tested.p
                if tested.interval is None:
                    gap.reason = "the metric is undefined in most resamples of the patients"
                else:
                    gap.low, gap.high = tested.interval


def _differs(protocol: str, one: pd.DataFrame, two: pd.DataFrame) -> str:
    """Why two item tables cannot be paired; empty where they can."""
    if not (has_truth(one, protocol) and has_truth(two, protocol)):
        truth = ITEMS[protocol].truth
        one, two = (
            table[[name for name in table.columns if not str(name).startswith(truth or "\0")]]
            for table in (one, two)
        )
    sides = [
        Group(label, (Run(Path(label), {}, {protocol: table}),))
        for label, table in (("one", one), ("two", two))
    ]
    if mismatch(protocol, sides) is None:
        return ""
    return "the items do not match: other images, another preparation, or another key"


def _gaps(rows: Sequence[Row]) -> Iterator[tuple[Row, Gap]]:
    for row in rows:
        for cell in row.cells.values():
            if cell.gap is not None:
                yield row, cell.gap


def _judge(rows: Sequence[Row]) -> None:
    """Holm's correction over all that was tested, and what each difference is called."""
    for row, gap in _gaps(rows):
        if gap.value:
            gap.better = (gap.value < 0) == row.metric.lower_is_better
    tested = [gap for _, gap in _gaps(rows) if gap.p is not None]
    adjusted = holm([gap.p for gap in tested if gap.p is not None])
    for gap, p_holm in zip(tested, adjusted, strict=True):
        gap.p_holm = p_holm
        gap.verdict = ONE_EACH if p_holm <= ALPHA else NOT_SHOWN


# ------------------------------------------------------------------------------- notes


def _notes(results: Results, rows: Sequence[Row]) -> Iterator[str]:
    """What a reader must know, in sentences."""
    made = [name for name, model in results.models.items() if model.synthetic]
    if made and any(not task.generated for task in results.tasks):
        yield (
            f"Trained on synthetic images: {', '.join(made)}; what such a model says about a real "
            "radiograph means nothing."
        )
    for task in results.tasks:
        if task.card is None:
            yield (
                f"{task.full_name} is not the card of this version: its title and the figures of "
                "others are not known here."
            )
    at_home: dict[str, list[str]] = {}
    partial: dict[tuple[str, str], list[str]] = {}
    for task in results.tasks:
        for name, result in task.results.items():
            if result.trained_there:
                at_home.setdefault(name, []).append(task.full_name)
            if not result.complete:
                judged = result.record.judged
                of = "" if judged.wanted is None else f" of {judged.wanted}"
                key = (task.full_name, f"{judged.missing}{of} images are missing")
                partial.setdefault(key, []).append(name)
    for names, where in _swapped(at_home).items():
        yield f"Trained on the archive that it is judged on: {names}, on {where}."
    for (where, what), lacking_it in partial.items():
        yield (
            f"Incomplete: {where}, {what} for {', '.join(lacking_it)}; not ranked, and compared "
            "only with who lacks the same ones."
        )
    lacking: dict[str, list[str]] = {}
    for task in results.tasks:
        for name in results.models:
            if name not in task.results:
                lacking.setdefault(name, []).append(task.full_name)
    for names, where in _swapped(lacking).items():
        yield f"Not run: {names} on {where}."
    why: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for name, cell in row.cells.items():
            if cell.state == "not measured":
                key = (name, cell.reason or "its record gives no reason")
                why.setdefault(key, []).append(f"{row.key} of {row.task.full_name}")
    for (name, reason), keys in why.items():
        yield f"Not measured: {name}, {', '.join(keys)}: {reason.rstrip('.')}."
    untested: dict[str, int] = {}
    for _, gap in _gaps(rows):
        if gap.p is None and gap.reason:
            untested[gap.reason] = untested.get(gap.reason, 0) + 1
    for reason, count in untested.items():
        yield f"Not tested: {count} differences ({reason})."


def _swapped(places: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Names that have the same places, to the places; both as words."""
    found: dict[str, list[str]] = {}
    for name, where in places.items():
        found.setdefault(", ".join(where), []).append(name)
    return {", ".join(each): where for where, each in found.items()}
