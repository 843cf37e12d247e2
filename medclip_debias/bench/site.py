"""A leaderboard: one page with its own style and script, from a results repository."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medclip_debias.bench.board import Board, Cell, Gap, Row, read_board
from medclip_debias.bench.pairs import RESAMPLES
from medclip_debias.bench.record import Figure
from medclip_debias.bench.repository import validate_repository
from medclip_debias.bench.results import Task
from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import Metric
from medclip_debias.files import write_text
from medclip_debias.reporting.content import interval, number
from medclip_debias.reporting.page import render

WIDTH, EDGE = 120.0, 5.0
"""Of a plot of an interval, and what is left free at its ends, in pixels."""


@dataclass(frozen=True)
class Bar:
    """A value and its interval on the scale of its column, in pixels."""

    at: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Shown:
    """One figure of one line.

    Attributes:
        words: value as text, or why there is none.
        bounds: interval as text; blank for none.
        value: to sort by; None sorts last.
        bar: its plot; None for no value.
        best: whether it is the best complete one.
        lacks: it was not measured on all images, or not at all.
    """

    words: str
    bounds: str = ""
    value: float | None = None
    bar: Bar | None = None
    best: bool = False
    lacks: bool = False


@dataclass(frozen=True)
class Line:
    """One model in the table of a card; also one that only published a figure."""

    name: str
    shown: list[Shown]
    published: bool = False
    peer: bool = False
    synthetic: bool = False
    complete: bool = True
    trained_there: bool = False
    note: str = ""
    gap: str = ""
    gap_bounds: str = ""
    verdict: str = ""


@dataclass(frozen=True)
class Sheet:
    """One card."""

    task: Task
    metrics: list[Metric]
    lines: list[Line]
    scales: list[tuple[str, str]]

    @property
    def anchor(self) -> str:
        """For links within the page."""
        return f"card-{self.task.name.replace('/', '-').replace('.', '-')}"


def write_site(folder: Path, out: Path, *, baseline: str | None = None) -> Path:
    """Check a results repository and write its leaderboard.

    Args:
        folder: the repository.
        out: folder of the page.
        baseline: model that the others are compared with; the first by default.

    Returns:
        Path of ``index.html``.

    Raises:
        UserError: the repository has faults; nothing is written.
    """
    faults = validate_repository(folder).faults
    if faults:
        more = f" ({len(faults)} faults in all; 'bench validate' lists them)"
        raise UserError(faults[0].rstrip(".") + (more if len(faults) > 1 else "") + ".")
    path = out / "index.html"
    write_text(path, page(read_board(folder, baseline=baseline)))
    return path


def page(board: Board) -> str:
    """The leaderboard's HTML."""
    sheets = [sheet(board, task) for task in board.results.tasks]
    return render(
        "leaderboard.html.j2",
        board=board,
        sheets=sheets,
        overview=_overview(board),
        models=board.results.models,
        kinds=sorted({task.kind for task in board.results.tasks}),
        archives=sorted({task.archive for task in board.results.tasks}),
        number=number,
        width=WIDTH,
        resamples=RESAMPLES,
    )


def sheet(board: Board, task: Task) -> Sheet:
    """A card's table: who was measured, best first, then who only published."""
    rows = [row for row in board.rows if row.task is task]
    scales = [_scale(row) for row in rows]
    lines = [
        _line(board, task, name, rows, scales)
        for name in board.results.models
        if name in task.results
    ]
    sign = 1 if rows[0].metric.lower_is_better else -1
    lines.sort(key=lambda line: _order(line.shown[0].value, sign))
    others = dict.fromkeys(name for row in rows for name in row.published)
    published = [_published(name, rows, scales) for name in others]
    published.sort(key=lambda line: _order(line.shown[0].value, sign))
    ends = [
        (number(low, row.metric.digits), number(high, row.metric.digits))
        for row, (low, high) in zip(rows, scales, strict=True)
    ]
    return Sheet(task, [row.metric for row in rows], [*lines, *published], ends)


def _order(value: float | None, sign: int) -> tuple[bool, float]:
    return value is None, 0.0 if value is None else sign * value


def _line(
    board: Board, task: Task, name: str, rows: Sequence[Row], scales: Sequence[tuple[float, float]]
) -> Line:
    model, result = board.results.models[name], task.results[name]
    judged = result.record.judged
    of = f"{judged.found:,}" if judged.wanted is None else f"{judged.found:,} of {judged.wanted:,}"
    gap = rows[0].cells[name].gap
    words = (
        ("baseline" if name == board.baseline else "", "", "")
        if gap is None
        else _gap(gap, rows[0])
    )
    return Line(
        name,
        [_shown(row.cells[name], row, scale) for row, scale in zip(rows, scales, strict=True)],
        peer=model.kind != "medclip_debias",
        synthetic=model.synthetic,
        complete=result.complete,
        trained_there=result.trained_there,
        note=f"{of} images",
        gap=words[0],
        gap_bounds=words[1],
        verdict=words[2],
    )


def _gap(gap: Gap, row: Row) -> tuple[str, str, str]:
    """A difference, its interval and what it is called."""
    digits = row.metric.digits
    verdict = gap.verdict
    if gap.p_holm is not None and gap.better is not None and not verdict.startswith("not"):
        verdict = f"{'better' if gap.better else 'worse'} on these patients"
    bounds = None if gap.low is None or gap.high is None else (gap.low, gap.high)
    return (
        f"{gap.value:+.{digits}f}",
        interval(bounds, digits) if bounds else "",
        f"{verdict}: {gap.reason}" if gap.reason else verdict,
    )


def _shown(cell: Cell, row: Row, scale: tuple[float, float]) -> Shown:
    figure, digits = cell.figure, row.metric.digits
    if figure is None:
        why = f": {cell.reason.rstrip('.')}" if cell.reason else ""
        return Shown(f"{cell.state}{why}", lacks=True)
    bounds = (
        interval((figure.low, figure.high), digits)
        if figure.low is not None and figure.high is not None
        else ""
    )
    return Shown(
        number(figure.value, digits),
        bounds,
        figure.value,
        _bar(figure, scale),
        cell.best,
        cell.state != "complete",
    )


def _published(name: str, rows: Sequence[Row], scales: Sequence[tuple[float, float]]) -> Line:
    shown, sources = [], []
    for row, scale in zip(rows, scales, strict=True):
        figure = row.published.get(name)
        if figure is None:
            shown.append(Shown(""))
            continue
        sources += [figure.source, *([figure.protocol] if figure.protocol else [])]
        bar = _bar(Figure(value=figure.value), scale)
        shown.append(Shown(number(figure.value, row.metric.digits), "", figure.value, bar))
    return Line(name, shown, published=True, peer=True, note="; ".join(dict.fromkeys(sources)))


def _scale(row: Row) -> tuple[float, float]:
    """Lowest and highest of all that a column shows."""
    figures = [cell.figure for cell in row.cells.values() if cell.figure]
    ends = [
        value
        for figure in figures
        for value in (figure.value, figure.low, figure.high)
        if value is not None
    ]
    ends += [figure.value for figure in row.published.values()]
    return (min(ends), max(ends)) if ends else (0.0, 1.0)


def _bar(figure: Figure, scale: tuple[float, float]) -> Bar:
    low, high = scale

    def place(value: float | None) -> float | None:
        if value is None:
            return None
        share = 0.5 if high == low else (value - low) / (high - low)
        return round(EDGE + share * (WIDTH - 2 * EDGE), 1)

    at = place(figure.value)
    assert at is not None
    return Bar(at, place(figure.low), place(figure.high))


def _overview(board: Board) -> tuple[list[Row], list[tuple[str, float | None, list[Cell]]]]:
    """The first row of every card, and each model's mean rank and cells in them, best first."""
    leading = [row for row in board.rows if row.key == row.task.metrics[0]]
    lines = [
        (name, board.ranks.get(name), [row.cells[name] for row in leading])
        for name in board.results.models
    ]
    return leading, sorted(lines, key=lambda line: _order(line[1], 1))
