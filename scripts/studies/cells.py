"""Publish the cells of grids as one table, and recompute zero-shot intervals from such a table.

    python scripts/studies/cells.py publish GRID_FOLDER ... --out docs/studies/NAME_cells.parquet
    python scripts/studies/cells.py intervals TABLE METHOD AGAINST

A row of the table is one image and one class of one cell: ``grid``, ``setting``, ``method``,
``seed``, digests of ``item`` and ``patient`` (under the key of the set, which is not published),
``class``, ``label``, and the rank of the image's score among the cell's (0 the lowest, equal
scores one rank) by both prompts, the positive and the negative one. An AUC depends on ranks alone,
so every figure that rests on AUC follows from the table: by seed, by class, by patient.

``intervals`` prints, for both prompts and for each alone, the mean difference in AUC over classes

- of each setting: with 95% over patients (percentiles of a bootstrap) and, from two seeds on, over
  patients and seeds crossed (both drawn anew, Owen 2007, The pigeonhole bootstrap);
- over the settings, from two on: Student's t, which is too short where splits overlap, and the
  corrected t of Nadeau and Bengio (2003, Inference for the generalization error), whose variance is
  (1/n + test/train) times that of the differences.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from medclip_debias.errors import UserError
from studies.pooled import results_of

Floats = NDArray[np.float64]
SCORES = {"both": "score", "positive": "positive", "negative": "negative"}
"""Columns of the table, and what they are called in a cell's items."""
DRAWS, SEED = 2000, 0
TEST_TO_TRAIN = 0.1 / 0.8
"""Of the splits that this project draws."""


def cells_of(folder: Path) -> pd.DataFrame:
    """The rows of every cell of a measured grid.

    Raises:
        UserError: the folder holds no grid, or a cell's items are gone.
    """
    parts, results = [], results_of(folder)
    for row in results["rows"]:
        path = folder / "runs" / row["folder"] / "items" / "zero_shot.parquet"
        if not path.is_file():
            raise UserError(f"{path}: is missing; run the grid's experiment again.")
        items = pd.read_parquet(path)
        columns = [str(name) for name in items.columns]
        names = [name.removeprefix("label.") for name in columns if name.startswith("label.")]
        for name in names:
            scores = {own: items[f"{kept}.{name}"] for own, kept in SCORES.items()}
            ranks = {own: values.rank(method="dense") - 1 for own, values in scores.items()}
            part = items[["item", "patient"]].assign(
                grid=results["settings"]["name"],
                setting=row["setting"],
                method=row["method"],
                seed=row["seed"],
                label=items[f"label.{name}"],
                **{"class": name},
                **ranks,
            )
            parts.append(part[part["label"].isin((0, 1))])
    table = pd.concat(parts, ignore_index=True)
    for name in ("grid", "setting", "method", "class", "item", "patient"):
        table[name] = table[name].astype("category")
    kinds = {"label": "int8", "seed": "int32", **dict.fromkeys(SCORES, "uint16")}
    return table.astype(kinds)


def weighted_auc(labels: NDArray[np.bool_], ranks: Floats, weights: Floats) -> Floats:
    """AUC of each draw, ties counting half; NaN where a draw has no image of one side.

    Args:
        labels: of n images.
        ranks: of their scores.
        weights: of the images in each draw, ``[draws, n]``.
    """
    order = np.argsort(ranks, kind="stable")
    labels, weights = labels[order], weights[:, order]
    starts = np.flatnonzero(np.diff(ranks[order], prepend=-1))
    positive = np.add.reduceat(weights * labels, starts, axis=1)
    negative = np.add.reduceat(weights * ~labels, starts, axis=1)
    below = np.cumsum(negative, axis=1) - negative / 2
    total = positive.sum(1) * negative.sum(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((positive * below).sum(1) / total)


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
    """Per setting: ``method`` minus ``against`` by seed ``[seeds]``, and by draw and seed.

    Raises:
        UserError: the table lacks one of the methods.
    """
    found = {}
    for setting, part in table.groupby("setting", observed=True):
        patients = pd.Index(part["patient"].unique())
        count = len(patients)
        rng = np.random.default_rng(SEED)
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=draws).astype(np.float64)
        weights = np.concatenate([np.ones((1, count)), drawn])  # the first: every patient once
        by_seed = []
        for seed in sorted(part["seed"].unique()):
            cells = [
                part[(part["seed"] == seed) & (part["method"] == m)] for m in (method, against)
            ]
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
    chosen = np.random.default_rng(SEED + 1).integers(0, drawn.shape[1], drawn.shape)
    return np.asarray(np.take_along_axis(drawn, chosen, axis=1).mean(axis=1))


def over_settings(means: Sequence[float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """95% over splits: Student's t interval, and the one corrected for their overlap."""
    from scipy.stats import t

    values, count = np.array(means), len(means)
    reach = float(t.ppf(0.975, count - 1)) * values.std(ddof=1)
    mean = float(values.mean())
    plain, corrected = (reach * np.sqrt(1 / count + extra) for extra in (0, TEST_TO_TRAIN))
    return (mean - plain, mean + plain), (mean - corrected, mean + corrected)


def report(table: pd.DataFrame, method: str, against: str) -> list[str]:
    """The lines that ``intervals`` prints."""
    lines = []
    for score in SCORES:
        lines.append(f"{method} minus {against}, AUC by {score}:")
        found = differences(table, method, against, score)
        for setting, (seeds, drawn) in found.items():
            low, high = np.nanpercentile(drawn.mean(axis=1), [2.5, 97.5])
            line = f"  {setting}: {seeds.mean():+.4f}, patients [{low:+.4f}, {high:+.4f}]"
            if len(seeds) > 1:
                low, high = np.nanpercentile(crossed(drawn), [2.5, 97.5])
                line += f", patients and {len(seeds)} seeds [{low:+.4f}, {high:+.4f}]"
            lines.append(line)
        if len(found) > 1:
            means = [float(seeds.mean()) for seeds, _ in found.values()]
            plain, corrected = over_settings(means)
            lines.append(
                f"  over {len(means)} splits: {np.mean(means):+.4f}, t [{plain[0]:+.4f}, "
                f"{plain[1]:+.4f}], corrected [{corrected[0]:+.4f}, {corrected[1]:+.4f}]"
            )
    return lines


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    publish = verbs.add_parser("publish")
    publish.add_argument("folders", type=Path, nargs="+", help="of measured grids")
    publish.add_argument("--out", type=Path, required=True)
    intervals = verbs.add_parser("intervals")
    intervals.add_argument("table", type=Path)
    intervals.add_argument("method")
    intervals.add_argument("against")
    options: Any = parser.parse_args()
    try:
        if options.verb == "publish":
            table = pd.concat([cells_of(folder) for folder in options.folders], ignore_index=True)
            table.to_parquet(options.out, compression="zstd", index=False)
            print(f"{options.out}: {len(table):,} rows, {options.out.stat().st_size:,} bytes")
        else:
            table = pd.read_parquet(options.table)
            print("\n".join(report(table, options.method, options.against)))
    except (UserError, FileNotFoundError) as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
