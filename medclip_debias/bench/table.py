"""Models beside each other on every card: values, ranks, paired differences, figures of others.

What can mislead is said where it would: a result on fewer images than its card has is neither
ranked nor best, and compared only with one on the very same images; ranks count the cards alone
that every model has completed; a difference between two trainings is never called more than one
on these patients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from medclip_debias.bench.check import faults_of
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
from medclip_debias.errors import UserError, counted, one_of
from medclip_debias.evaluation.compare import NOT_SHOWN, NOT_TESTED, ONE_EACH
from medclip_debias.evaluation.statistics import ALPHA, compared, holm
from medclip_debias.reporting import tables
from medclip_debias.reporting.content import estimate, interval, number, render
from medclip_debias.reporting.tables import Table, p_value, verdict

PUBLISHED = "published, not reproduced here"
COLUMNS = (
    *("card", "version", "metric", "lower_is_better", "preset", "model", "source", "synthetic"),
    *("state", "value", "low", "high", "best", "baseline", "difference"),
    *("difference_low", "difference_high", "p", "p_holm", "verdict", "reason"),
)
"""Of `Board.cells` and of the CSV."""


@dataclass(frozen=True)
class Board:
    """All of it.

    Attributes:
        results: models and tasks.
        baseline: model that the others are compared with.
        cells: `COLUMNS`, of each metric of each card a row a model and one a published figure.
        ranks: mean rank of each model.
        ranked: cards that it is over.
    """

    results: Results
    baseline: str | None
    cells: pd.DataFrame
    ranks: dict[str, float] = field(default_factory=dict)
    ranked: list[Task] = field(default_factory=list)

    @property
    def compared(self) -> pd.DataFrame:
        """Every difference to the baseline."""
        return self.cells[self.cells["difference"].notna()]


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
    if baseline is not None:
        one_of(baseline, names, "model to compare with")
    base = baseline or (names[0] if len(names) > 1 else None)
    rows = (
        cell
        for task in results.tasks
        for key in task.metrics
        for cell in _row(results, task, key, base)
    )
    cells = pd.DataFrame(rows, columns=COLUMNS).astype(
        dict.fromkeys(("value", "low", "high", "difference", "p"), float)
    )
    cells["p_holm"] = pd.Series(holm(cells["p"].map(_none).tolist()), dtype=float)
    tested = cells["p"].notna()
    cells.loc[tested, "verdict"] = [
        ONE_EACH if p <= ALPHA else NOT_SHOWN for p in cells.loc[tested, "p_holm"]
    ]
    complete = cells["value"].where(cells["state"] == "complete")
    signed = complete.where(~cells["lower_is_better"], -complete)
    of_row = signed.groupby([cells["card"], cells["metric"]])
    cells["best"] = (of_row.transform("count") > 1) & (signed == of_row.transform("max"))
    measured = cells.assign(signed=signed)[cells["state"] != PUBLISHED]
    first = measured.drop_duplicates(["card", "model"])  # of a card's metrics
    table = first.pivot(index="card", columns="model", values="signed").reindex(columns=names)
    table = table.dropna()
    if len(names) < 2 or table.empty:
        return Board(results, base, cells)
    ranks = table.rank(axis="columns", ascending=False).mean()
    tasks = [task for task in results.tasks if task.named.name in table.index]
    return Board(results, base, cells, {name: float(ranks[name]) for name in names}, tasks)


def _none(value: float) -> float | None:
    return None if pd.isna(value) else value


def _records(frame: pd.DataFrame) -> list[Any]:
    return list(frame.itertuples())


def _row(results: Results, task: Task, key: str, baseline: str | None) -> Iterator[dict[str, Any]]:
    """One metric of a card: what each model reached, and what others published."""
    row = task.named.model_dump(include={"version"}) | {"card": task.named.name, "metric": key}
    row |= {"lower_is_better": metric_of(key).lower_is_better}
    for name, model in results.models.items():
        cell = row | {"model": name, "source": "", "synthetic": model.synthetic}
        yield cell | _reached(task.results.get(name), key) | _difference(task, key, name, baseline)
    for name, figure in task.figures(key).items():
        found = {"model": name, "source": figure.source, "state": PUBLISHED}
        yield row | found | {"value": figure.value, "reason": figure.protocol}


def _reached(result: Result | None, key: str) -> dict[str, Any]:
    """What a model reached in a metric, or why it has none."""
    if result is None:
        return {"state": "not run", "reason": ""}
    record = result.record
    if key not in record.metrics:
        reason = record.reasons.get(key, "")
        return {"preset": record.preset, "state": "not measured", "reason": reason}
    found = {"preset": record.preset, "state": record.status, "reason": record.judged.lacks}
    return found | record.metrics[key].model_dump()


def _difference(task: Task, key: str, model: str, baseline: str | None) -> dict[str, Any]:
    """How far a model is from the baseline in a metric, tested over patients where it can be."""
    result, other = (task.results.get(name or "") for name in (model, baseline))
    if not result or not other or model == baseline:
        return {}
    figures = result.record.metrics.get(key), other.record.metrics.get(key)
    if figures[0] is None or figures[1] is None:
        return {}
    found: dict[str, Any] = {"baseline": baseline, "verdict": NOT_TESTED, "reason": ""}
    found["difference"] = figures[0].value - figures[1].value
    if reason := _why_unpaired(result, other, key):
        return found | {"reason": reason}
    protocol, metric = metric_of(key).protocol, KNOWN[key].name
    ours, theirs = (each.replicates(protocol).get(metric) for each in (result, other))
    if ours is None or theirs is None:
        return found | {"reason": "the labels are withheld"}
    tested = compared({0: ours}, {0: theirs})
    if tested.p is None:
        return found | {"reason": "the metric is undefined without one of the patients, or more"}
    low, high = tested.interval or (None, None)
    return found | {"p": tested.p, "difference_low": low, "difference_high": high}


def _why_unpaired(one: Result, two: Result, key: str) -> str:
    """Why two results cannot be compared over the same patients; "" where they can."""
    if one.record.judged.list_hash != two.record.judged.list_hash:
        return "the two judged different images"
    if not can_be_recomputed(key):
        return "this metric cannot be computed from the items"
    pairs = [each.items(metric_of(key).protocol)[["item", "patient"]] for each in (one, two)]
    return "" if pairs[0].equals(pairs[1]) else "the items do not match: other crops of the boxes"


# ------------------------------------------------------------------------------- notes


def notes(board: Board) -> Iterator[str]:
    """What a reader must know, in sentences."""
    models, tasks = board.results.models, board.results.tasks
    synthetic = [name for name, model in models.items() if model.synthetic]
    if synthetic and any(not task.generated for task in tasks):
        yield (
            f"Trained on synthetic images: {', '.join(synthetic)}; what such a model says about a"
            " real radiograph means nothing."
        )
    for task in tasks:
        if task.card is None:
            yield (
                f"{task.full_name} is not the card of this version: its title and others' figures"
                " are not known here."
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
            f"Incomplete: {where} for {', '.join(names)}; not ranked, and compared only with models"
            " that lack the same ones."
        )
    for who, places in _joined([(name, task.full_name) for task, name, r in results if r is None]):
        yield f"Not run: {who} on {places}."
    unmeasured = board.cells[board.cells["state"] == "not measured"]
    for (name, reason), own in unmeasured.groupby(["model", "reason"], sort=False):
        keys = ", ".join(f"{c.metric} of {c.card}@{c.version}" for c in _records(own))
        why = str(reason or "its record gives no reason").rstrip(".")
        yield f"Not measured: {name}, {keys}: {why}."
    untested = board.compared[board.compared["p"].isna()]
    for reason, count in untested.groupby("reason", sort=False).size().items():
        yield f"Not tested: {counted(count, 'difference')} ({reason})."


def _grouped(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _joined(places: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Names that have the same places, and these."""
    of_name = [(", ".join(where), name) for name, where in _grouped(places).items()]
    for where, names in _grouped(of_name).items():
        yield ", ".join(names), where


# --------------------------------------------------------------------------- the tables


def printed(board: Board) -> list[Table]:
    """Values with ranks; differences to the baseline; where the figures of others stand."""
    return [t for t in (_values(board), _differences(board), _sources(board)) if t.rows]


def _values(board: Board) -> Table:
    models = board.results.models
    others = list(dict.fromkeys(board.cells["model"][board.cells["state"] == PUBLISHED]))
    rows: list[tuple[str, ...]] = []
    bold: set[tuple[int, int]] = set()
    shown = ""
    for _, row in board.cells.groupby(["card", "metric"], sort=False):
        cells = _records(row)
        card, metric = f"{cells[0].card}@{cells[0].version}", metric_of(cells[0].metric)
        ours, figures = cells[: len(models)], {c.model: c.value for c in cells[len(models) :]}
        bold |= {(len(rows), 2 + n) for n, cell in enumerate(ours) if cell.best}
        rows.append(
            (
                card if card != shown else "",
                f"{metric.title} (lower is better)" if metric.lower_is_better else metric.title,
                *(_words(cell, metric.digits) for cell in ours),
                *(number(figures.get(name), metric.digits) for name in others),
            )
        )
        shown = card
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
            " measured differently; they are not part of ranks or comparisons."
        )
    caption = " ".join([*sentences, *notes(board)])
    return Table("Values", head, tuple(rows), caption, 2, frozenset(bold))


def _words(cell: Any, digits: int) -> str:
    """A figure with its interval, and what it lacks."""
    if pd.isna(cell.value):
        return str(cell.state)
    bounds = (cell.low, cell.high) if pd.notna(cell.low) and pd.notna(cell.high) else None
    shown = estimate(cell.value, bounds, digits)
    return f"{shown}, incomplete" if cell.state == "incomplete" else shown


def _differences(board: Board) -> Table:
    rows = []
    for cell in _records(board.compared):
        metric = metric_of(cell.metric)
        ends = cell.difference_low, cell.difference_high
        better = (cell.difference < 0) == metric.lower_is_better if cell.difference else None
        rows.append(
            (
                f"{cell.card}@{cell.version}",
                metric.title,
                cell.model,
                f"{cell.difference:+.{metric.digits}f}",
                interval(None if pd.isna(ends[0]) else ends, metric.digits),
                p_value(_none(cell.p)),
                p_value(_none(cell.p_holm)),
                verdict({"verdict": cell.verdict, "better": better}),
            )
        )
    caption = (
        f"Differences to {board.baseline}. 95% intervals and two-sided p-values: t, with the"
        f" standard error of a paired bootstrap, {RESAMPLES:,} resamples of the patients; Holm's"
        f" correction over the {board.compared['p'].count()} tests of this table. 'Not shown' is"
        " not proof of equality. Each model was trained once: another seed may reverse a"
        " difference."
    )
    head = ("card", "metric", "model", "difference", "95%", "p", "Holm", "verdict")
    return Table("Differences", head, tuple(rows), caption, 3)


def _sources(board: Board) -> Table:
    rows = []
    for cell in _records(board.cells[board.cells["state"] == PUBLISHED]):
        metric = metric_of(cell.metric)
        place = f"{cell.card}@{cell.version}", metric.title, cell.model
        rows.append((*place, number(cell.value, metric.digits), cell.source, cell.reason))
    caption = "Figures of others, as published; none of them was reproduced here."
    head = ("card", "metric", "model", "as published", "source", "protocol, where it differs")
    return Table("Figures of others", head, rows, caption, 6)


def comma_separated(board: Board) -> str:
    """One row a figure, at full precision; ``source`` is empty for what was measured here."""
    measured = board.cells["value"].notna() & (board.cells["state"] != PUBLISHED)
    frame = board.cells.astype(object).assign(
        best=board.cells["best"].astype(object).where(measured)
    )
    return frame.map(_csv_value).to_csv(index=False, lineterminator="\n")


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
    "md": lambda board: "\n".join(map(tables.markdown, printed(board))),
    "latex": lambda board: "\n".join(map(tables.latex, printed(board))),
    "html": lambda board: render(
        "tables.html.j2",
        title="Benchmark",
        lead="For research only, not for diagnosis.",
        sections=[(table.title, [table]) for table in printed(board)],
    ),
    "csv": comma_separated,
}
"""All tables in a format; a page of HTML needs no other file, LaTeX needs ``booktabs``."""
