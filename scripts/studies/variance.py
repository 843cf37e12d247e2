"""Where the variance over seeds comes from: the seed's data, the training, the two together.

Method m on seed s in training r of it: ``y_msr = mu_m + b_s + c_ms + e_msr``. ``b`` is what a
seed's data do to all methods alike, which paired differences take out; ``c`` what they do to one
method alone; ``e`` is training noise, seen only where a training was replicated. Without replicates
``c + e`` is one number, the rest.

The components are those of the analysis of variance of a balanced layout (Searle, Casella and
McCulloch 1992, section 4.2), cut at 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from medclip_debias.experiments.experiment import Row, Table


@dataclass(frozen=True)
class VarianceParts:
    """Variances of one metric.

    Attributes:
        seed: ``b``, in common to the methods.
        rest: ``c + e`` of one training.
        training: ``e`` alone; None without replicates.
        correlation: mean over the pairs of methods of their correlation over seeds (nan when a
            method does not vary). The variance of a paired difference is ``2 v (1 - correlation)``
            where that of unpaired ones is ``2 v``.
        replicates: trainings of each method and seed.
    """

    seed: float
    rest: float
    training: float | None
    correlation: float
    replicates: int


def variance_parts(rows: Sequence[Row], metric: str, key: str = "method") -> VarianceParts | None:
    """The variance components of a metric.

    Args:
        rows: trainings, each with ``seed`` and what ``key`` names.
        metric: a number of every row.
        key: what names the method.

    Returns:
        None with fewer than two methods or two seeds, or where not every method has equally many
        trainings on every seed.
    """
    cells: dict[tuple[Any, int], list[float]] = {}
    for row in rows:
        cells.setdefault((row[key], row["seed"]), []).append(float(row[metric]))
    methods = list(dict.fromkeys(method for method, _ in cells))
    seeds = sorted({seed for _, seed in cells})
    counts = {len(cells.get((method, seed), ())) for method in methods for seed in seeds}
    if min(len(methods), len(seeds)) < 2 or len(counts) != 1:
        return None
    (replicates,) = counts
    values = np.array([[cells[method, seed] for seed in seeds] for method in methods])
    means = values.mean(axis=2)  # [M, S]
    around = means - means.mean(axis=1, keepdims=True)
    of_seed = around.mean(axis=0)
    m, s = means.shape
    mean_square_seed = m * float((of_seed**2).sum()) / (s - 1)
    mean_square_rest = float(((around - of_seed) ** 2).sum()) / ((m - 1) * (s - 1))
    seed = max(0.0, (mean_square_seed - mean_square_rest) / m)
    training, rest = None, mean_square_rest
    if replicates > 1:
        training = float(values.var(axis=2, ddof=1).mean())
        rest = max(0.0, mean_square_rest - training / replicates) + training
    spread = around.std(axis=1)
    if (spread == 0).any():
        correlation = math.nan
    else:
        each = np.corrcoef(means)[np.triu_indices(m, 1)]
        correlation = float(each.mean())
    return VarianceParts(seed, rest, training, correlation, replicates)


def variance_table(
    title: str, rows: Sequence[Row], metrics: Sequence[str], names: Sequence[str]
) -> list[Table]:
    """A table of the components as standard deviations; none where they cannot be told.

    Args:
        title: of the table.
        rows: as for `variance_parts`.
        metrics: rows of the table.
        names: what they are called.
    """
    found = [variance_parts(rows, metric) for metric in metrics]
    body = []
    for name, parts in zip(names, found, strict=True):
        if parts is None:
            continue
        total = parts.seed + parts.rest
        training = "" if parts.training is None else f"{math.sqrt(parts.training):.3g}"
        body.append(
            [
                name,
                f"{math.sqrt(parts.seed):.3g}",
                f"{math.sqrt(parts.rest):.3g}",
                training or "not measured",
                f"{parts.seed / total:.0%}" if total else "",
                f"{parts.correlation:+.2f}",
            ]
        )
    head = ["", "sd of the seed", "sd of the rest", "of which training", "seed's share"]
    head.append("correlation of methods")
    return [Table(title, head, body)] if body else []
