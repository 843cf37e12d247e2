"""Models beside each other on every card: values, ranks, paired differences, figures of others.

What can mislead is said where it would: a result on fewer images than its card has is neither
ranked nor best, and compared only with one on the very same images; ranks count the cards alone
that every model has completed; a difference between two trainings is never called more than one
on these patients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from medclip_debias.bench.check import faults_of
from medclip_debias.bench.record import Figure
from medclip_debias.bench.results import (
    KNOWN,
    RESAMPLES,
    Result,
    Results,
    Task,
    can_be_recomputed,
    metric_of,
    read_folder,
)
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.catalogue import Metric
from medclip_debias.evaluation.compare import NOT_SHOWN, NOT_TESTED, ONE_EACH
from medclip_debias.evaluation.statistics import ALPHA, average_ranks, compared, holm
from medclip_debias.reporting import tables
from medclip_debias.reporting.content import interval, number
from medclip_debias.reporting.page import render
from medclip_debias.reporting.tables import PrintedTable, p_value, verdict

PUBLISHED = "published, not reproduced here"


@dataclass
class Cell:
    """What one model reached in one metric of one card, and how far that is from the baseline's."""

    task: Task
    key: str
    model: str
    state: Literal["complete", "incomplete", "not measured", "not run"] = "not run"
    figure: Figure | None = None
    reason: str = ""
    best: bool = False
    difference: float | None = None
    bounds: tuple[float, float] | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: str = NOT_TESTED

    @property
    def metric(self) -> Metric:
        """Title, digits and direction."""
        return metric_of(self.key)

    @property
    def better(self) -> bool | None:
        """Whether the difference is for the better; None for no difference."""
        if not self.difference:
            return None
        return (self.difference < 0) == self.metric.lower_is_better

    @property
    def complete(self) -> float | None:
        """The value of a complete result; None for any other."""
        return self.figure.value if self.state == "complete" and self.figure else None


@dataclass(frozen=True)
class Board:
    """All of it."""

    results: Results
    baseline: str | None
    rows: list[list[Cell]]
    ranks: dict[str, float] = field(default_factory=dict)
    ranked: list[Task] = field(default_factory=list)

    @property
    def cells(self) -> list[Cell]:
        """Of all rows."""
        return [cell for row in self.rows for cell in row]

    @property
    def compared(self) -> list[Cell]:
        """Every difference to the baseline."""
        return [cell for cell in self.cells if cell.difference is not None]


def read_board(
    folder: Path,
    *,
    cards: Sequence[str] | None = None,
    models: Sequence[str] | None = None,
    baseline: str | None = None,
) -> Board:
    """Read a folder of results, check it, and compare its models.

    Args:
        folder: of results.
        cards: names of cards; all by default.
        models: names of models, in the order wanted; all by default.
        baseline: model that the others are compared with; the first by default.
    """
    results = read_folder(folder, cards=cards, models=models)
    faults = faults_of(results.all)
    if faults:
        more = f" ({len(faults)} faults in all; 'bench validate' lists them)"
        raise UserError(faults[0].rstrip(".") + (more if len(faults) > 1 else "") + ".")
    names = list(results.models)
    if baseline is not None and baseline not in names:
        raise UserError(
            f"{folder}: there is no model '{baseline}' to compare with"
            f"{did_you_mean(baseline, names)}; it is one of {', '.join(names)}."
        )
    base = baseline or (names[0] if len(names) > 1 else None)
    rows = [
        [_cell(task, key, name) for name in names] for task in results.tasks for key in task.metrics
    ]
    for row in rows:
        _mark_best(row)
        _compare(row, base)
    cells = [cell for row in rows for cell in row]
    for cell, p_holm in zip(cells, holm([cell.p for cell in cells]), strict=True):
        cell.p_holm = p_holm
        if p_holm is not None:
            cell.verdict = ONE_EACH if p_holm <= ALPHA else NOT_SHOWN
    ranked = [row for row in rows if _leads(row) and None not in [cell.complete for cell in row]]
    if len(names) < 2 or not ranked:
        return Board(results, base, rows)
    values = np.array([[cell.complete for cell in row] for row in ranked], dtype=np.float64)
    ranks = average_ranks(values.T, [row[0].metric.lower_is_better for row in ranked])
    means = dict(zip(names, map(float, ranks), strict=True))
    return Board(results, base, rows, means, [row[0].task for row in ranked])


def _leads(row: Sequence[Cell]) -> bool:
    """Whether the card ranks by this metric."""
    return row[0].key == row[0].task.metrics[0]


def _cell(task: Task, key: str, model: str) -> Cell:
    result = task.results.get(model)
    if result is None:
        return Cell(task, key, model)
    record = result.record
    if key not in record.metrics:
        return Cell(task, key, model, "not measured", reason=record.reasons.get(key, ""))
    return Cell(task, key, model, record.status, record.metrics[key], record.judged.lacks)


def _mark_best(row: Sequence[Cell]) -> None:
    complete = [cell.complete for cell in row if cell.complete is not None]
    if len(complete) > 1:
        best = min(complete) if row[0].metric.lower_is_better else max(complete)
        for cell in row:
            cell.best = cell.complete == best


# ------------------------------------------------------------------------- differences


def _compare(row: Sequence[Cell], base: str | None) -> None:
    """Give every cell with a figure its difference to the baseline's, tested where it can be."""
    reference = next((cell for cell in row if cell.model == base), None)
    for cell in row:
        if reference is None or cell is reference or not (cell.figure and reference.figure):
            continue
        cell.difference = cell.figure.value - reference.figure.value
        results = cell.task.results
        result, other = results[cell.model], results[reference.model]
        cell.reason = _why_unpaired(result, other, cell.key)
        if cell.reason:
            continue
        protocol, metric = cell.metric.protocol, KNOWN[cell.key].name
        ours, theirs = (each.replicates(protocol).get(metric) for each in (result, other))
        if ours is None or theirs is None:
            cell.reason = "the labels are withheld"
            continue
        tested = compared({0: ours}, {0: theirs})
        cell.p, cell.bounds = tested.p, tested.interval
        if tested.interval is None:
            cell.reason = "the metric is undefined in most resamples of the patients"


def _why_unpaired(one: Result, two: Result, key: str) -> str:
    """Why two results cannot be compared over the same patients; "" where they can."""
    if one.record.judged.list_hash != two.record.judged.list_hash:
        return "the two judged different images"
    if not can_be_recomputed(key):
        return "this metric does not follow from the items"
    pairs = [each.items(metric_of(key).protocol)[["item", "patient"]] for each in (one, two)]
    return "" if pairs[0].equals(pairs[1]) else "the items do not match: other crops of the boxes"


# ------------------------------------------------------------------------------- notes


def notes(board: Board) -> Iterator[str]:
    """What a reader must know, in sentences."""
    models, tasks = board.results.models, board.results.tasks
    made = [name for name, model in models.items() if model.synthetic]
    if made and any(not task.generated for task in tasks):
        yield (
            f"Trained on synthetic images: {', '.join(made)}; what such a model says about a real "
            "radiograph means nothing."
        )
    for task in tasks:
        if task.card is None:
            yield (
                f"{task.full_name} is not the card of this version: its title and the figures of "
                "others are not known here."
            )
    results = [(task, name, task.results.get(name)) for task in tasks for name in models]
    at_home = [(name, task.full_name) for task, name, r in results if r and r.trained_there]
    for who, places in _joined(at_home):
        yield f"Trained on the archive that it is judged on: {who}, on {places}."
    lacking = [
        (f"{task.full_name}, {result.record.judged.lacks}", name)
        for task, name, result in results
        if result and not result.complete
    ]
    for where, names in _grouped(lacking).items():
        yield (
            f"Incomplete: {where} for {', '.join(names)}; not ranked, and compared "
            "only with who lacks the same ones."
        )
    for who, places in _joined([(name, task.full_name) for task, name, r in results if r is None]):
        yield f"Not run: {who} on {places}."
    unmeasured = [
        (
            (cell.model, cell.reason or "its record gives no reason"),
            f"{cell.key} of {cell.task.full_name}",
        )
        for cell in board.cells
        if cell.state == "not measured"
    ]
    for (name, reason), keys in _grouped(unmeasured).items():
        yield f"Not measured: {name}, {', '.join(keys)}: {reason.rstrip('.')}."
    untested = Counter(cell.reason for cell in board.compared if cell.p is None)
    for reason, count in untested.items():
        yield f"Not tested: {count} differences ({reason})."


def _grouped(pairs: Sequence[tuple[Any, str]]) -> dict[Any, list[str]]:
    groups: dict[Any, list[str]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _joined(places: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Names that have the same places, and these."""
    of_name = [(", ".join(where), name) for name, where in _grouped(places).items()]
    for where, names in _grouped(of_name).items():
        yield ", ".join(names), where


# --------------------------------------------------------------------------- the tables


def printed(board: Board) -> dict[str, PrintedTable]:
    """Values with ranks; differences to the baseline; where the figures of others stand."""
    found = {
        "Values": _values(board),
        "Differences": _differences(board),
        "Figures of others": _sources(board),
    }
    return {title: table for title, table in found.items() if table.rows}


def _values(board: Board) -> PrintedTable:
    models = board.results.models
    others = list(dict.fromkeys(n for row in board.rows for n in row[0].task.figures(row[0].key)))
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    for row in board.rows:
        first, metric = row[0], row[0].metric
        bold |= {(len(rows), 2 + n) for n, cell in enumerate(row) if cell.best}
        figures = first.task.figures(first.key)
        published = (figures[name].value if name in figures else None for name in others)
        rows.append(
            (
                first.task.full_name if _leads(row) else "",
                f"{metric.title} (lower is better)" if metric.lower_is_better else metric.title,
                *(_words(cell) for cell in row),
                *(number(value, metric.digits) for value in published),
            )
        )
    if board.ranks:
        first_rank = min(board.ranks.values())
        bold |= {(len(rows), 2 + n) for n, r in enumerate(board.ranks.values()) if r == first_rank}
        generated = sum(task.generated for task in board.ranked)
        over = f"{len(board.ranked)} of {len(board.results.tasks)} cards"
        if generated:
            alone = "all" if generated == len(board.ranked) else str(generated)
            over += f", {alone} generated"
        ranks = [number(rank, 2) for rank in board.ranks.values()]
        rows.append(("Mean rank", over, *ranks, *("" for _ in others)))
    titles = [
        f"{name} (trained on synthetic)" if model.synthetic else name
        for name, model in models.items()
    ]
    head = ("card", "metric", *titles, *(f"{name} ({PUBLISHED})" for name in others))
    sentences = ["In brackets 95% intervals over patients."]
    if len(models) > 1:
        sentences.append("Bold: the best complete result of the row measured here.")
        sentences.append(
            f"Mean rank: over the {len(board.ranked)} cards that every model has completed, by"
            " each card's first metric, 1 is best, ties share their mean rank."
            if board.ranks
            else "No ranks: there is no card that every model has completed."
        )
    if others:
        sentences.append(
            "Figures of others are as they were published, not reproduced here, and may have been"
            " measured otherwise; they take no part in ranks or comparisons."
        )
    caption = " ".join([*sentences, *notes(board)])
    return PrintedTable(head, tuple(rows), caption, 2, frozenset(bold))


def _words(cell: Cell) -> str:
    """A figure with its interval, and what it lacks."""
    if cell.figure is None:
        return cell.state
    figure, digits = cell.figure, cell.metric.digits
    shown = number(figure.value, digits)
    if figure.low is not None and figure.high is not None:
        shown += f" ({interval((figure.low, figure.high), digits)})"
    return f"{shown}, incomplete" if cell.state == "incomplete" else shown


def _differences(board: Board) -> PrintedTable:
    rows = tuple(
        (
            cell.task.full_name,
            cell.metric.title,
            cell.model,
            f"{cell.difference:+.{cell.metric.digits}f}",
            interval(cell.bounds, cell.metric.digits),
            p_value(cell.p),
            p_value(cell.p_holm),
            verdict({"verdict": cell.verdict, "better": cell.better}),
        )
        for cell in board.compared
    )
    tests = sum(cell.p is not None for cell in board.compared)
    caption = (
        f"Differences to {board.baseline}. 95% intervals and two-sided p-values: t, with the "
        f"standard error of a paired bootstrap, {RESAMPLES:,} resamples of the patients; Holm's "
        f"correction over the {tests} tests of this table. 'Not shown' is no proof of "
        "equality. Each model is one training: another seed of it may turn a difference round."
    )
    head = ("card", "metric", "model", "difference", "95%", "p", "Holm", "verdict")
    return PrintedTable(head, rows, caption, 3)


def _sources(board: Board) -> PrintedTable:
    firsts = [row[0] for row in board.rows]
    rows = tuple(
        (
            cell.task.full_name,
            cell.metric.title,
            name,
            number(figure.value, cell.metric.digits),
            figure.source,
            figure.protocol,
        )
        for cell in firsts
        for name, figure in cell.task.figures(cell.key).items()
    )
    caption = "Figures of others, as published; none of them was reproduced here."
    head = ("card", "metric", "model", "as published", "source", "protocol, where it differs")
    return PrintedTable(head, rows, caption, 6)


def comma_separated(board: Board) -> str:
    """One row a figure, at full precision; ``source`` is empty for what was measured here."""
    rows = []
    for row in board.rows:
        task, metric = row[0].task, row[0].metric
        common = {
            "card": task.name,
            "version": task.version,
            "metric": row[0].key,
            "lower_is_better": metric.lower_is_better,
        }
        for cell in row:
            result, figure = task.results.get(cell.model), cell.figure
            low, high = cell.bounds or (None, None)
            tested = cell.difference is not None
            figures = figure.model_dump() if figure else dict.fromkeys(("value", "low", "high"))
            rows.append(
                common
                | {
                    "preset": result.record.preset if result else None,
                    "model": cell.model,
                    "source": "",
                    "synthetic": board.results.models[cell.model].synthetic,
                    "state": cell.state,
                    **figures,
                    "best": cell.best if figure else None,
                    "baseline": board.baseline if tested else None,
                    "difference": cell.difference,
                    "difference_low": low,
                    "difference_high": high,
                    "p": cell.p,
                    "p_holm": cell.p_holm,
                    "verdict": cell.verdict if tested else None,
                    "reason": cell.reason,
                }
            )
        for name, published in task.figures(row[0].key).items():
            shown = {"model": name, "source": published.source, "state": PUBLISHED}
            rows.append(common | shown | {"value": published.value, "reason": published.protocol})
    return pd.DataFrame(rows).map(_csv_value).to_csv(index=False, lineterminator="\n")


def _csv_value(value: Any) -> Any:
    """A value that a spreadsheet shows: what it would take for a formula is quoted."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


FORMATS: dict[str, Callable[[Board], str]] = {
    "md": lambda board: "\n".join(map(tables.markdown, printed(board).values())),
    "latex": lambda board: "\n".join(map(tables.latex, printed(board).values())),
    "html": lambda board: render("bench_table.html.j2", tables=list(printed(board).items())),
    "csv": comma_separated,
}
"""All tables in a format; a page of HTML needs no other file, LaTeX needs ``booktabs``."""
