"""The board as tables: Markdown, LaTeX, HTML, and CSV with one row a figure."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import Any

from medclip_debias.bench.board import Board, Cell, Row
from medclip_debias.bench.pairs import RESAMPLES
from medclip_debias.reporting import tables
from medclip_debias.reporting.content import interval, number
from medclip_debias.reporting.page import render
from medclip_debias.reporting.tables import PrintedTable, p_value, verdict

PUBLISHED = "published, not reproduced here"


def printed(board: Board) -> list[PrintedTable]:
    """Values with ranks; differences to the baseline; where the figures of others stand."""
    return [table for _, table in _titled(board)]


def _titled(board: Board) -> list[tuple[str, PrintedTable]]:
    found = {
        "Values": _values(board),
        "Differences": _differences(board),
        "Figures of others": _sources(board),
    }
    return [(title, table) for title, table in found.items() if table is not None]


def markdown(board: Board) -> str:
    """All tables as Markdown, the best of each row bold."""
    return "\n".join(tables.markdown(table) for table in printed(board))


def latex(board: Board) -> str:
    r"""All tables as LaTeX; they need ``\usepackage{booktabs}``."""
    return "\n".join(tables.latex(table) for table in printed(board))


def html(board: Board) -> str:
    """All tables as a page that needs no other file."""
    return render("bench_table.html.j2", tables=_titled(board))


COLUMNS = (
    *("card", "version", "preset", "metric", "lower_is_better", "model", "source", "synthetic"),
    *("state", "value", "low", "high", "best", "baseline", "difference", "difference_low"),
    *("difference_high", "p", "p_holm", "verdict", "reason"),
)


def comma_separated(board: Board) -> str:
    """One row a figure, at full precision; ``source`` is empty for what was measured here."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    for row in board.rows:
        for cells in _csv_rows(board, row):
            writer.writerow({key: _csv_value(value) for key, value in cells.items()})
    return buffer.getvalue()


FORMATS: dict[str, Callable[[Board], str]] = {
    "md": markdown,
    "latex": latex,
    "html": html,
    "csv": comma_separated,
}


# ---------------------------------------------------------------------------- the tables


def model_title(board: Board, name: str) -> str:
    """A model's name as a column's head."""
    return f"{name} (trained on synthetic)" if board.results.models[name].synthetic else name


def words_of(cell: Cell, digits: int) -> str:
    """A figure with its interval, and what it lacks."""
    if cell.figure is None:
        return cell.state
    figure = cell.figure
    shown = number(figure.value, digits)
    if figure.low is not None and figure.high is not None:
        shown += f" ({interval((figure.low, figure.high), digits)})"
    return f"{shown}, incomplete" if cell.state == "incomplete" else shown


def _values(board: Board) -> PrintedTable:
    models, others = list(board.results.models), board.others
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    for row in board.rows:
        metric = row.metric
        bold |= {
            (len(rows), 2 + place) for place, name in enumerate(models) if row.cells[name].best
        }
        figures = [row.published.get(name) for name in others]
        rows.append(
            (
                _title(row),
                f"{metric.title} (lower is better)" if metric.lower_is_better else metric.title,
                *(words_of(row.cells[name], metric.digits) for name in models),
                *(number(figure.value if figure else None, metric.digits) for figure in figures),
            )
        )
    if board.ranks:
        first = min(board.ranks.values())
        bold |= {(len(rows), 2 + n) for n, name in enumerate(models) if board.ranks[name] == first}
        rows.append(
            (
                "Mean rank",
                board.ranked_words,
                *(number(board.ranks[name], 2) for name in models),
                *("" for _ in others),
            )
        )
    titles = [model_title(board, name) for name in models]
    head = ("card", "metric", *titles, *(f"{name} ({PUBLISHED})" for name in others))
    return PrintedTable(head, tuple(rows), _caption(board), 2, frozenset(bold))


def _title(row: Row) -> str:
    return row.task.full_name if row.key == row.task.metrics[0] else ""


def _caption(board: Board) -> str:
    sentences = ["In brackets 95% intervals over patients."]
    if len(board.results.models) > 1:
        sentences.append("Bold: the best complete result of the row measured here.")
        if board.ranks:
            sentences.append(
                f"Mean rank: over the {len(board.ranked)} cards that every model has completed, by"
                " each card's first metric, 1 is best, ties share their mean rank."
            )
        else:
            sentences.append("No ranks: there is no card that every model has completed.")
    if board.others:
        sentences.append(
            "Figures of others are as they were published, not reproduced here, and may have been"
            " measured otherwise; they take no part in ranks or comparisons."
        )
    return " ".join([*sentences, *board.notes])


def _differences(board: Board) -> PrintedTable | None:
    rows = []
    for row in board.rows:
        for name, cell in row.cells.items():
            gap, digits = cell.gap, row.metric.digits
            if gap is None:
                continue
            bounds = None if gap.low is None or gap.high is None else (gap.low, gap.high)
            rows.append(
                (
                    row.task.full_name,
                    row.metric.title,
                    name,
                    f"{gap.value:+.{digits}f}",
                    interval(bounds, digits),
                    p_value(gap.p),
                    p_value(gap.p_holm),
                    verdict({"verdict": gap.verdict, "better": gap.better}),
                )
            )
    if not rows:
        return None
    caption = (
        f"Differences to {board.baseline}. 95% intervals and two-sided p-values: t, with the "
        f"standard error of a paired bootstrap, {RESAMPLES:,} resamples of the patients; Holm's "
        f"correction over the {board.tests} tests of this table. 'Not shown' is no proof of "
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


# --------------------------------------------------------------------------------- CSV


def _csv_rows(board: Board, row: Row) -> Iterator[dict[str, Any]]:
    common = {
        "card": row.task.name,
        "version": row.task.version,
        "metric": row.key,
        "lower_is_better": row.metric.lower_is_better,
    }
    for name, cell in row.cells.items():
        result = row.task.results.get(name)
        entry = common | {
            "model": name,
            "preset": result.record.preset if result else None,
            "synthetic": board.results.models[name].synthetic,
            "state": cell.state,
            "reason": cell.reason,
        }
        if cell.figure is not None:
            entry |= cell.figure.model_dump() | {"best": cell.best}
        if (gap := cell.gap) is not None:
            entry |= {
                "baseline": board.baseline,
                "difference": gap.value,
                "difference_low": gap.low,
                "difference_high": gap.high,
                "p": gap.p,
                "p_holm": gap.p_holm,
                "verdict": gap.verdict,
                "reason": gap.reason or cell.reason,
            }
        yield entry
    for name, figure in row.published.items():
        yield common | {
            "model": name,
            "source": figure.source,
            "state": PUBLISHED,
            "value": figure.value,
            "reason": figure.protocol,
        }


def _csv_value(value: Any) -> Any:
    """A value that a spreadsheet shows: what it would take for a formula is quoted."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
