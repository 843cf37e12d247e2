"""Grids of `medclip-debias experiment` on a study's page: published, tabulated, recomputed.

    python scripts/studies/grids.py page docs/studies/NAME.md [GRID_FOLDER ...] [--plot METHOD]...
    python scripts/studies/grids.py moved ONE_FOLDER OTHER_FOLDER
    python scripts/studies/grids.py publish GRID_FOLDER ... --out docs/studies/NAME_cells.parquet
    python scripts/studies/grids.py intervals NAME_cells.parquet METHOD AGAINST

``page`` takes measured grids into ``NAME.parquet`` (a row for each mean and difference) and writes
the tables between the page's markers anew, all or those whose numbers the first marker names;
Holm's correction stands twice, over the differences of each grid and over all of the page.
``moved`` says how far cells that two grids share are apart, as when another kind of processor
measured them. ``publish`` writes a row for each image, class and cell: digests of item and patient,
label, and the rank of the image's score among the cell's by both prompts and by each; every figure
that rests on AUC follows from it. ``intervals`` recomputes them, grid by grid: over patients; over
patients and seeds crossed (both drawn anew, Owen 2007, The pigeonhole bootstrap); over settings
Student's t, which is too short where splits overlap, and the corrected t of Nadeau and Bengio
(2003, Inference for the generalization error).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray

from medclip_debias.reporting.plots import intervals, panels

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from commands import run_script
from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import weighted_auc
from medclip_debias.evaluation.catalogue import COMPARED
from medclip_debias.evaluation.statistics import ALPHA, holm, seed_summary
from medclip_debias.experiments.differences import marks
from medclip_debias.experiments.runner import tables as table_lines
from medclip_debias.files import atomic_file, read_json, write_text
from medclip_debias.reporting.tables import Table
from studies.command import renewed, shown

Floats = NDArray[np.float64]
METRICS = {metric.key: metric for metric in COMPARED}
MAIN = "zero_shot.mean_auc"
ON_THE_PAGE = (MAIN, "study_retrieval.report.recall", "grounding.cnr", "retrieval.recall")
"""The columns of a page's tables; the file beside the page has all."""
SCORES = {"both": "score", "positive": "positive", "negative": "negative"}
"""Columns of published cells, and what they are called in a cell's items."""
DRAWS, SEED = 2000, 0
TEST_TO_TRAIN = 0.1 / 0.8
"""Of the splits that this project draws."""


def results_of(folder: Path) -> dict[str, Any]:
    results = read_json(folder / "results.json", "run 'medclip-debias experiment' to write it")
    if "rows" not in results or "contrasts" not in (results.get("figures") or {}):
        raise UserError(f"{folder}/results.json: holds no grid of 'medclip-debias experiment'.")
    return results


# -------------------------------------------------------------------------------- the page


def grid_rows(name: str, results: dict[str, Any]) -> pd.DataFrame:
    """A row for each mean (``against`` empty) and each difference of a measured grid."""
    settings, figures = results["settings"], results["figures"]
    known = {"grid": name, "title": settings["title"], "baseline": settings["baseline"]}
    known |= {"cells": results["cells"], "hours": round(results["seconds"] / 3600, 2)}
    known |= {"seeds": len(settings["seeds"])}
    rows = [
        {"setting": setting, "method": method, "against": "", "metric": metric}
        | {"value": own["mean"], "sd": own["sd"], "ends": own["interval"]}
        for setting, methods in figures["means"].items()
        for method, metrics in methods.items()
        for metric, own in metrics.items()
    ]
    rows += [
        {key: one[key] for key in ("setting", "method", "against", "metric", "p", "p_holm")}
        | {"value": one["difference"], "ends": one["interval"]}
        for one in figures["contrasts"]
    ]
    table = pd.DataFrame([known | row for row in rows])
    table[["low", "high"]] = [ends or (np.nan, np.nan) for ends in table.pop("ends")]
    return table


def page_tables(grids: pd.DataFrame) -> list[Table]:
    """A table for each grid and setting: every method's AUC and its differences to the baseline.

    One star marks p of at most .05 after Holm's correction over the differences of the grid, two
    after that over all differences of the page.
    """
    p: list[float | None] = [None if np.isnan(value) else value for value in grids["p"]]
    grids = grids.assign(p_page=np.array(holm(p), dtype=np.float64))
    grids["cell"] = [_cell(row) for _, row in grids.iterrows()]
    found = []
    for (_, setting), own in grids.groupby(["grid", "setting"], sort=False):
        first, measured = own.iloc[0], set(own["metric"])
        metrics = [metric for metric in ON_THE_PAGE if metric in measured]
        means = own[(own["against"] == "") & (own["metric"] == metrics[0])].set_index("method")
        gaps = own[own["against"] == first["baseline"]].pivot(
            index="method", columns="metric", values="cell"
        )
        gaps = gaps.reindex(index=means.index, columns=metrics).fillna("")
        body = [[name, cell, *gaps.loc[name]] for name, cell in means["cell"].items()]
        main, *titles = (METRICS[metric].title for metric in metrics)
        seeds = f"{first['seeds']} seed{'s' * bool(first['seeds'] > 1)}"
        part = "" if setting == "all" else f", {setting}"
        title = f"{first['title']}{part} (`{first['grid']}`, {seeds})"
        head = ["", main, f"minus {first['baseline']}: {main}", *titles]
        found.append(Table(title, head, body))
    return found


def _cell(row: Any) -> str:
    signed, digits = bool(row["against"]), METRICS[row["metric"]].digits
    value, low, high = (f"{row[n]:{'+' * signed}.{digits}f}" for n in ("value", "low", "high"))
    stars = "*" * sum(row[name] <= ALPHA for name in ("p_holm", "p_page")) * signed
    return value if np.isnan(row["low"]) else f"{value} [{low}, {high}] {stars}".strip()


def page_lines(name: str, grids: pd.DataFrame, numbers: Sequence[int] = ()) -> list[str]:
    """The lines of a page between its markers: `page_tables`, or those with these numbers."""
    found = page_tables(grids)
    left_out = [table.title for table in found if table not in shown(found, numbers)]
    names = dict.fromkeys(re.findall(r"`\w+`", " ".join(left_out)))
    lines = table_lines(shown(found, numbers))
    if names:
        lines += [f"Only in [{name}.parquet]({name}.parquet): {', '.join(names)}.", ""]
    return lines


def write_page(page: Path, folders: Sequence[Path]) -> pd.DataFrame:
    """Take grids into the table beside the page, and renew the page's tables; all of its rows."""
    store = page.with_suffix(".parquet")
    taken = [grid_rows(folder.name, results_of(folder)) for folder in folders]
    if store.is_file():
        old = pd.read_parquet(store)
        taken = [old[~old["grid"].isin([folder.name for folder in folders])], *taken]
    grids = pd.concat(taken, ignore_index=True)
    text = renewed(page, partial(page_lines, page.stem, grids))
    with atomic_file(store) as temporary:
        grids.to_parquet(temporary, compression="zstd", index=False)
    write_text(page, text)
    return grids


def plot(grids: pd.DataFrame, methods: Sequence[str], path: Path) -> None:
    """Difference in AUC to the baseline: a panel for each method, a line for each grid."""
    own = grids[(grids["metric"] == MAIN) & (grids["against"] == grids["baseline"])]
    own = own[own["method"].isin(methods)].dropna(subset=["low"]).fillna({"p_holm": 1.0})
    own["line"] = own["title"] + own["setting"].map(lambda one: "" if one == "all" else f", {one}")
    lines = list(dict.fromkeys(own["line"]))
    figure, axes = panels(len(methods), [f"{method}: AUC" for method in methods])
    for number, (axis, method) in enumerate(zip(axes, methods, strict=True)):
        rows = own.loc[own["method"] == method, ["line", "value", "low", "high", "p_holm"]]
        found = {str(name): (v, (low, high), p) for name, v, low, high, p in rows.to_numpy()}
        intervals(axis, marks(found), lines, named=number == 0)
    figure.set_size_inches(4 * len(methods) + 3, 1 + 0.3 * len(lines))
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110, metadata={"Software": None})


def moved(one: Path, other: Path) -> list[str]:
    """For each metric: how far cells that both grids hold are apart, and how far seeds are."""
    lines, grids = [], [results_of(folder) for folder in (one, other)]
    for metric in grids[1]["settings"]["metrics"]:
        first, second = (
            pd.Series({(r["method"], r["seed"]): r["metrics"][metric] for r in grid["rows"]})
            for grid in grids
        )
        apart = (first - second).dropna()
        if apart.empty:
            raise UserError("the two grids share no cell: same methods, same seeds are needed.")
        machines = np.sqrt((apart**2).mean() / 2)  # the sd that a machine adds to a cell
        seeds = np.sqrt(first[apart.index].groupby(level=0).var().mean())
        lines.append(
            f"{metric}: {len(apart)} cells, sd of machines {machines:.4f}, of seeds {seeds:.4f}, "
            f"largest {apart.abs().max():.4f}"
        )
    return lines


# --------------------------------------------------------------------------- published cells


def cells_of(folder: Path) -> pd.DataFrame:
    results, parts = results_of(folder), []
    for cell in results["rows"]:
        path = folder / "runs" / cell["folder"] / "items/zero_shot.parquet"
        if not path.is_file():
            raise UserError(f"{path}: is missing; run the grid's experiment again.")
        items = pd.read_parquet(path)
        known = {key: cell[key] for key in ("setting", "method", "seed")}
        for label in map(str, items.filter(regex=r"^label\.")):
            own = label.removeprefix("label.")
            ranks = {
                score: items[f"{column}.{own}"].rank(method="dense") - 1
                for score, column in SCORES.items()
            }
            part = items[["item", "patient"]].assign(**known, label=items[label], **ranks)
            parts.append(part[part["label"].isin((0, 1))].assign(**{"class": own}))
    table = pd.concat(parts, ignore_index=True).assign(grid=results["settings"]["name"])
    words = dict.fromkeys(("grid", "setting", "method", "class", "item", "patient"), "category")
    return table.astype(
        {**words, "label": "int8", "seed": "int32", **dict.fromkeys(SCORES, "uint16")}
    )


def mean_auc(cell: pd.DataFrame, score: str, patients: pd.Index, weights: Floats) -> Floats:
    """Mean AUC over the classes of one cell in each draw of patients ``[draws, patients]``.

    A class without images of both sides is left out, in the whole or in a draw.
    """
    aucs = []
    for _, own in cell.groupby("class", observed=True):
        labels = own["label"].to_numpy() == 1
        if labels.any() and not labels.all():
            places = patients.get_indexer(pd.Index(own["patient"]))
            ranks = own[score].to_numpy(dtype=np.float64)
            if score == "negative":  # the lower, the likelier is the finding
                ranks = ranks.max() - ranks
            aucs.append(weighted_auc(labels, ranks, weights[:, places]))
    return np.asarray(np.nanmean(aucs, axis=0))


def differences(
    table: pd.DataFrame, method: str, against: str, score: str, draws: int = DRAWS
) -> dict[str, tuple[Floats, Floats]]:
    """Per setting: ``method`` minus ``against`` by seed ``[seeds]``, and by draw and seed."""
    found = {}
    for setting, part in table.groupby("setting", observed=True):
        patients = pd.Index(part["patient"].unique())
        count = len(patients)
        rng = np.random.default_rng(SEED)
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=draws)
        weights = np.concatenate([np.ones((1, count)), drawn])  # the first: every patient once
        by_seed = []
        for _, own in part.groupby("seed"):
            cells = [own[own["method"] == name] for name in (method, against)]
            if all(len(cell) for cell in cells):
                one, other = (mean_auc(cell, score, patients, weights) for cell in cells)
                by_seed.append(one - other)
        if not by_seed:
            raise UserError(f"setting '{setting}': no seed has both '{method}' and '{against}'.")
        every = np.array(by_seed).T
        found[str(setting)] = (every[0], every[1:])
    return found


def crossed(drawn: Floats) -> Floats:
    """Means of ``[draws, seeds]`` with the seeds drawn anew in each draw of the patients."""
    rng = np.random.default_rng(SEED + 1)
    chosen = rng.integers(0, drawn.shape[1], size=drawn.shape)
    return np.asarray(np.take_along_axis(drawn, chosen, axis=1).mean(axis=1))


def over_settings(means: Sequence[float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """95% over splits: Student's t interval, and the one corrected for their overlap."""
    found = seed_summary(means)
    assert found.interval is not None
    half = (found.interval[1] - found.interval[0]) / 2
    wider = half * float(np.sqrt(1 + len(means) * TEST_TO_TRAIN))
    return found.interval, (found.mean - wider, found.mean + wider)


def report(table: pd.DataFrame, method: str, against: str) -> list[str]:
    """The lines that ``intervals`` prints."""

    def between(values: Floats) -> str:
        low, high = np.nanpercentile(values, [2.5, 97.5])
        return f"[{low:+.4f}, {high:+.4f}]"

    lines = []
    methods = table.groupby("grid", observed=True)["method"].unique()
    both = [name for name in methods.index if {method, against} <= set(methods[name])]
    names = both or list(methods.index)
    for name, score in product(names, SCORES):
        cells = table[table["grid"] == name]
        of_grid = f"{name}: " if len(names) > 1 else ""
        lines.append(f"{of_grid}{method} minus {against}, AUC by {score}:")
        found = differences(cells, method, against, score)
        for setting, (seeds, drawn) in found.items():
            line = f"  {setting}: {seeds.mean():+.4f}, patients {between(drawn.mean(axis=1))}"
            if len(seeds) > 1:
                line += f", patients and {len(seeds)} seeds {between(crossed(drawn))}"
            lines.append(line)
        if len(found) > 1:
            means = [float(seeds.mean()) for seeds, _ in found.values()]
            plain, corrected = (f"[{a:+.4f}, {b:+.4f}]" for a, b in over_settings(means))
            said = f"{mean(means):+.4f}, t {plain}, corrected {corrected}"
            lines.append(f"  over {len(means)} splits: {said}")
    return lines


# -------------------------------------------------------------------------- the command line

app = typer.Typer(help=__doc__, add_completion=False)
Plots = Annotated[list[str] | None, typer.Option("--plot", help="a method of the plot")]
Grids = Annotated[list[Path] | None, typer.Argument(help="folders of measured grids")]


@app.command("page")
def print_page(page: Path, folders: Grids = None, plots: Plots = None) -> None:
    grids = write_page(page, folders or [])
    if plots:
        plot(grids, plots, page.with_suffix(".png"))
    print(f"{page}: {grids['grid'].nunique()} grids")


@app.command("publish")
def publish_cells(folders: list[Path], out: Annotated[Path, typer.Option()]) -> None:
    table = pd.concat([cells_of(folder) for folder in folders], ignore_index=True)
    table.to_parquet(out, compression="zstd", index=False)
    print(f"{out}: {len(table):,} rows, {out.stat().st_size:,} bytes")


@app.command("intervals")
def print_intervals(table: Path, method: str, against: str) -> None:
    print("\n".join(report(pd.read_parquet(table), method, against)))


@app.command("moved")
def print_moved(one: Path, other: Path) -> None:
    print("\n".join(moved(one, other)))


if __name__ == "__main__":
    sys.exit(run_script(app))
