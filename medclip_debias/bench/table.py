"""Models beside each other on every card: values, ranks, paired differences, figures of others.

What can mislead is said where it would: a result on fewer images than its card has is neither
ranked nor best, and compared only with one on the very same images; ranks count the cards alone
that every model has completed; a difference between two trainings is never called more than one
on these patients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from medclip_debias.bench.card import Published
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
from medclip_debias.evaluation.crossed import compared
from medclip_debias.evaluation.statistics import ALPHA, average_ranks, holm
from medclip_debias.reporting import tables
from medclip_debias.reporting.content import interval, number
from medclip_debias.reporting.page import render
from medclip_debias.reporting.tables import PrintedTable, p_value, verdict

PUBLISHED = "published, not reproduced here"
State = Literal["complete", "incomplete", "not measured", "not run"]


@dataclass
class Cell:
    """What one model reached in one metric of one card, and how far that is from the baseline's.

    Attributes:
        state: whether it was run, measured, and on all of the card's images and boxes.
        figure: value and interval; None for what was not run or measured.
        reason: why it was not measured or tested, or what is missing.
        best: no complete result of the row is better.
        difference: to the baseline; None for the baseline itself and where there is no figure.
        low, high: its 95% interval over the same patients; None where the two cannot be paired.
        p, p_holm: two-sided, and corrected over every difference of the table.
        verdict: in words, as `medclip_debias.evaluation.compare` says it.
        better: whether it is for the better; None for no difference.
    """

    state: State
    figure: Figure | None = None
    reason: str = ""
    best: bool = False
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    verdict: str = NOT_TESTED
    better: bool | None = None

    @property
    def complete(self) -> float | None:
        """The value of a complete result; None for any other."""
        return self.figure.value if self.state == "complete" and self.figure else None


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

    @property
    def leads(self) -> bool:
        """Whether the card ranks by it."""
        return self.key == self.task.metrics[0]


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
    ranked: tuple[Task, ...]

    @property
    def compared(self) -> list[tuple[Row, str, Cell]]:
        """Every difference to the baseline, with its row and model."""
        return [
            (row, name, cell)
            for row in self.rows
            for name, cell in row.cells.items()
            if cell.difference is not None
        ]


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

    Raises:
        UserError: the results cannot be read, are not of one task each, or have faults
            (`medclip_debias.bench.check.faults_of`).
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
    rows = tuple(_row(task, key, names) for task in results.tasks for key in task.metrics)
    if base is not None:
        for row in rows:
            _compare(row, base)
        _judge(rows)
    return Board(results, base, rows, *_ranks(rows, names))


def _row(task: Task, key: str, models: Sequence[str]) -> Row:
    published = task.card.published if task.card else ()
    cells = {name: _cell(task.results.get(name), key) for name in models}
    complete = [cell.complete for cell in cells.values() if cell.complete is not None]
    if len(complete) > 1:
        best = min(complete) if metric_of(key).lower_is_better else max(complete)
        for cell in cells.values():
            cell.best = cell.complete == best
    figures = {figure.model: figure for figure in published if figure.metric == key}
    return Row(task, key, cells, figures)


def _cell(result: Result | None, key: str) -> Cell:
    if result is None:
        return Cell("not run")
    record = result.record
    if key not in record.metrics:
        return Cell("not measured", reason=record.reasons.get(key, ""))
    return Cell(record.status, record.metrics[key], record.judged.lacks)


def _ranks(rows: Sequence[Row], models: Sequence[str]) -> tuple[dict[str, float], tuple[Task, ...]]:
    """Mean ranks over the cards that every model has completed, by each card's first metric."""
    ranked = [
        row
        for row in rows
        if row.leads and all(row.cells[name].complete is not None for name in models)
    ]
    if len(models) < 2 or not ranked:
        return {}, ()
    values = [[row.cells[name].complete for name in models] for row in ranked]
    lower = [row.metric.lower_is_better for row in ranked]
    ranks = average_ranks(np.array(values, dtype=np.float64).T, lower)
    means = {name: float(rank) for name, rank in zip(models, ranks, strict=True)}
    return means, tuple(row.task for row in ranked)


# ------------------------------------------------------------------------- differences


def _compare(row: Row, base: str) -> None:
    """Give every cell with a figure its difference to the baseline's, tested where it can be."""
    reference = row.cells[base].figure
    for name, cell in row.cells.items():
        if name == base or cell.figure is None or reference is None:
            continue
        cell.difference = cell.figure.value - reference.value
        if cell.difference:
            cell.better = (cell.difference < 0) == row.metric.lower_is_better
        result, other = row.task.results[name], row.task.results[base]
        cell.reason = _why_unpaired(result, other, row.key)
        if cell.reason:
            continue
        protocol, metric = row.metric.protocol, KNOWN[row.key].name
        ours, theirs = (each.replicates(protocol).get(metric) for each in (result, other))
        if ours is None or theirs is None:
            cell.reason = "the labels are withheld"
            continue
        tested = compared({0: ours}, {0: theirs})
        cell.p = tested.p
        if tested.interval is None:
            cell.reason = "the metric is undefined in most resamples of the patients"
        else:
            cell.low, cell.high = tested.interval


def _why_unpaired(one: Result, two: Result, key: str) -> str:
    """Why two results cannot be compared over the same patients; "" where they can."""
    if one.record.judged.list_hash != two.record.judged.list_hash:
        return "the two judged different images"
    if not can_be_recomputed(key):
        return "this metric does not follow from the items"
    tables = [each.items(metric_of(key).protocol)[["item", "patient"]] for each in (one, two)]
    return "" if tables[0].equals(tables[1]) else "the items do not match: other crops of the boxes"


def _judge(rows: Sequence[Row]) -> None:
    """Holm's correction over all that was tested, and what each difference is called."""
    cells = [cell for row in rows for cell in row.cells.values()]
    for cell, p_holm in zip(cells, holm([cell.p for cell in cells]), strict=True):
        cell.p_holm = p_holm
        if p_holm is not None:
            cell.verdict = ONE_EACH if p_holm <= ALPHA else NOT_SHOWN


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
    at_home: dict[str, list[str]] = {}
    not_run: dict[str, list[str]] = {}
    incomplete: dict[tuple[str, str], list[str]] = {}
    for task in tasks:
        for name in models:
            result = task.results.get(name)
            if result is None:
                not_run.setdefault(name, []).append(task.full_name)
                continue
            if result.trained_there:
                at_home.setdefault(name, []).append(task.full_name)
            if not result.complete:
                key = task.full_name, result.record.judged.lacks
                incomplete.setdefault(key, []).append(name)
    for where, names in _by_places(at_home).items():
        yield f"Trained on the archive that it is judged on: {', '.join(names)}, on {where}."
    for (where, lacks), names in incomplete.items():
        yield (
            f"Incomplete: {where}, {lacks} for {', '.join(names)}; not ranked, and compared "
            "only with who lacks the same ones."
        )
    for where, names in _by_places(not_run).items():
        yield f"Not run: {', '.join(names)} on {where}."
    unmeasured: dict[tuple[str, str], list[str]] = {}
    for row in board.rows:
        for name, cell in row.cells.items():
            if cell.state == "not measured":
                key = name, cell.reason or "its record gives no reason"
                unmeasured.setdefault(key, []).append(f"{row.key} of {row.task.full_name}")
    for (name, reason), keys in unmeasured.items():
        yield f"Not measured: {name}, {', '.join(keys)}: {reason.rstrip('.')}."
    untested = Counter(cell.reason for _, _, cell in board.compared if cell.p is None)
    for reason, count in untested.items():
        yield f"Not tested: {count} differences ({reason})."


def _by_places(places: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Names that have the same places, by these."""
    names: dict[str, list[str]] = {}
    for name, where in places.items():
        names.setdefault(", ".join(where), []).append(name)
    return names


# --------------------------------------------------------------------------- the tables


def printed(board: Board) -> dict[str, PrintedTable]:
    """Values with ranks; differences to the baseline; where the figures of others stand."""
    found = {
        "Values": _values(board),
        "Differences": _differences(board),
        "Figures of others": _sources(board),
    }
    return {title: table for title, table in found.items() if table is not None}


def markdown(board: Board) -> str:
    """All tables as Markdown, the best of each row bold."""
    return "\n".join(tables.markdown(table) for table in printed(board).values())


def latex(board: Board) -> str:
    r"""All tables as LaTeX; they need ``\usepackage{booktabs}``."""
    return "\n".join(tables.latex(table) for table in printed(board).values())


def html(board: Board) -> str:
    """All tables as a page that needs no other file."""
    return render("bench_table.html.j2", tables=list(printed(board).items()))


def _values(board: Board) -> PrintedTable:
    models = board.results.models
    others = list(dict.fromkeys(name for row in board.rows for name in row.published))
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    for row in board.rows:
        metric = row.metric
        bold |= {(len(rows), 2 + n) for n, name in enumerate(models) if row.cells[name].best}
        figures = [row.published.get(name) for name in others]
        rows.append(
            (
                row.task.full_name if row.leads else "",
                f"{metric.title} (lower is better)" if metric.lower_is_better else metric.title,
                *(_words(row.cells[name], metric.digits) for name in models),
                *(number(figure.value if figure else None, metric.digits) for figure in figures),
            )
        )
    if board.ranks:
        first = min(board.ranks.values())
        bold |= {(len(rows), 2 + n) for n, name in enumerate(models) if board.ranks[name] == first}
        ranks = [number(board.ranks[name], 2) for name in models]
        rows.append(("Mean rank", _ranked_words(board), *ranks, *("" for _ in others)))
    titles = [
        f"{name} (trained on synthetic)" if model.synthetic else name
        for name, model in models.items()
    ]
    head = ("card", "metric", *titles, *(f"{name} ({PUBLISHED})" for name in others))
    return PrintedTable(head, tuple(rows), _caption(board, others), 2, frozenset(bold))


def _words(cell: Cell, digits: int) -> str:
    """A figure with its interval, and what it lacks."""
    if cell.figure is None:
        return cell.state
    figure = cell.figure
    shown = number(figure.value, digits)
    if figure.low is not None and figure.high is not None:
        shown += f" ({interval((figure.low, figure.high), digits)})"
    return f"{shown}, incomplete" if cell.state == "incomplete" else shown


def _ranked_words(board: Board) -> str:
    """Over how many cards the ranks are, and whose radiographs those are."""
    generated = sum(task.generated for task in board.ranked)
    words = f"{len(board.ranked)} of {len(board.results.tasks)} cards"
    if generated:
        words += ", all generated" if generated == len(board.ranked) else f", {generated} generated"
    return words


def _caption(board: Board, others: Sequence[str]) -> str:
    sentences = ["In brackets 95% intervals over patients."]
    if len(board.results.models) > 1:
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
    return " ".join([*sentences, *notes(board)])


def _differences(board: Board) -> PrintedTable | None:
    rows = [
        (
            row.task.full_name,
            row.metric.title,
            name,
            f"{cell.difference:+.{row.metric.digits}f}",
            interval(
                None if cell.low is None or cell.high is None else (cell.low, cell.high),
                row.metric.digits,
            ),
            p_value(cell.p),
            p_value(cell.p_holm),
            verdict({"verdict": cell.verdict, "better": cell.better}),
        )
        for row, name, cell in board.compared
    ]
    if not rows:
        return None
    tests = sum(cell.p is not None for _, _, cell in board.compared)
    caption = (
        f"Differences to {board.baseline}. 95% intervals and two-sided p-values: t, with the "
        f"standard error of a paired bootstrap, {RESAMPLES:,} resamples of the patients; Holm's "
        f"correction over the {tests} tests of this table. 'Not shown' is no proof of "
        "equality. Each model is one training: another seed of it may turn a difference round."
    )
    head = ("card", "metric", "model", "difference", "95%", "p", "Holm", "verdict")
    return PrintedTable(head, tuple(rows), caption, 3)


def _sources(board: Board) -> PrintedTable | None:
    rows = [
        (
            row.task.full_name,
            row.metric.title,
            name,
            number(figure.value, row.metric.digits),
            figure.source,
            figure.protocol,
        )
        for row in board.rows
        for name, figure in row.published.items()
    ]
    if not rows:
        return None
    caption = "Figures of others, as published; none of them was reproduced here."
    head = ("card", "metric", "model", "as published", "source", "protocol, where it differs")
    return PrintedTable(head, tuple(rows), caption, 6)


def comma_separated(board: Board) -> str:
    """One row a figure, at full precision; ``source`` is empty for what was measured here."""
    rows = [entry for row in board.rows for entry in _csv_rows(board, row)]
    return pd.DataFrame(rows).map(_csv_value).to_csv(index=False, lineterminator="\n")


def _csv_rows(board: Board, row: Row) -> Iterator[dict[str, Any]]:
    common = {
        "card": row.task.name,
        "version": row.task.version,
        "metric": row.key,
        "lower_is_better": row.metric.lower_is_better,
    }
    for name, cell in row.cells.items():
        result, figure = row.task.results.get(name), cell.figure
        tested = cell.difference is not None
        yield common | {
            "preset": result.record.preset if result else None,
            "model": name,
            "source": "",
            "synthetic": board.results.models[name].synthetic,
            "state": cell.state,
            "value": figure.value if figure else None,
            "low": figure.low if figure else None,
            "high": figure.high if figure else None,
            "best": cell.best if figure else None,
            "baseline": board.baseline if tested else None,
            "difference": cell.difference,
            "difference_low": cell.low,
            "difference_high": cell.high,
            "p": cell.p,
            "p_holm": cell.p_holm,
            "verdict": cell.verdict if tested else None,
            "reason": cell.reason,
        }
    for name, published in row.published.items():
        yield common | {
            "model": name,
            "source": published.source,
            "state": PUBLISHED,
            "value": published.value,
            "reason": published.protocol,
        }


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
    "md": markdown,
    "latex": latex,
    "html": html,
    "csv": comma_separated,
}
