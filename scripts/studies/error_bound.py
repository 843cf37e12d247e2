"""Proposition 1 of sample-specific debiasing, by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.reporting.tables import Table
from studies.study import Study, lines, where

Floats = NDArray[np.float64]


class ErrorBound(Study):
    """|L - L_bar| against the three terms of equations 9 and 10."""

    name: ClassVar[str] = "error-bound"

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        names = ("classes", "points", "draws", "negatives", "positives", "etas")
        shared = {name: getattr(s, name) for name in names}
        axes = product(s.exponents, s.spreads, range(s.seeds))
        return [{"exponent": e, "spread": v, "seed": seed, **shared} for e, v, seed in axes]

    def measure(self, cell: Cell) -> Row:
        return {"points_of_grid": _world(cell)}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        points = flat(rows)
        # Two standard errors below: a violation must not be Monte Carlo noise.
        broken = [p for p in points if p["error"] - 2 * p["standard_error"] > p["bound"]]
        ratios = sorted(p["bound"] / p["error"] for p in points if p["error"] > 0)
        held = [f"{len(points)}", f"{len(broken)}", f"{np.median(ratios):.0f}", f"{ratios[0]:.1f}"]
        n = max(p["N"] for p in points)
        errors = pd.DataFrame(where(points, N=n)).pivot_table("error", "eta", "M", sort=False)
        errors = errors.sort_index(axis=1)
        body = [
            [str(eta), *(f"{value:.4f}" for value in own)]
            for eta, own in errors.sort_values(errors.columns[-1]).iterrows()
        ]
        head = ["settings", "violations", "bound / error, median", "tightest"]
        return [
            Table("The bound", head, [held]),
            Table(f"Mean error at N = {n}", ["eta", *(f"M = {m}" for m in errors)], body),
        ]

    def figure(self, rows: Sequence[Row]) -> Figure:
        points, ms = flat(rows), self.settings.positives
        shown = {f"M = {m}": (where(points, M=m), "error") for m in (ms[0], ms[-1])}
        figure = lines(shown, "N", "eta", log=True)
        for axes in figure.axes:
            axes.set_yscale("log")
        return figure


def flat(rows: Sequence[Row]) -> list[Row]:
    return [{"seed": row["seed"], **point} for row in rows for point in row["points_of_grid"]]


# ---------------------------------------------------------------------------- simulation


def class_probabilities(classes: int, exponent: float) -> Floats:
    """``rho`` of each class, falling with its rank; sums to 1."""
    weights = np.arange(1, classes + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def misspecified(rho: Floats, kind: str) -> Floats:
    """``eta`` of each class; the mean is over samples, and a rotation leaves no class its own."""
    kinds = {
        "true": rho,
        "zero": np.zeros_like(rho),
        "mean": np.full_like(rho, float(rho @ rho)),
        "half": rho / 2,
        "double": np.minimum(2 * rho, 0.95),
        "shuffled": np.roll(rho, len(rho) // 2),
    }
    return kinds[kind]


def bound_terms(rho: Floats, eta: Floats, n: int, m: int) -> tuple[float, ...]:
    """The three terms of equations 9 and 10."""
    root = 3 * math.e**2 * math.sqrt(math.pi / 2)
    first = root / math.sqrt(n) * float(rho @ (1 / (1 - rho)))
    second = root / math.sqrt(m) * float(rho @ (rho / (1 - rho)))
    third = 3 * math.e**2 * float(rho @ np.abs(1 / (1 - eta) - 1 / (1 - rho)))
    return first, second, third


def _world(cell: Cell) -> list[Row]:
    """The loss against its limit, on points around the centres of classes, by eta, N and M."""
    rng = np.random.default_rng([cell["seed"], round(1e3 * cell["exponent"])])
    nominal = class_probabilities(cell["classes"], cell["exponent"])
    counts = np.maximum(2, np.round(nominal * cell["points"]).astype(int))
    labels, total = np.repeat(np.arange(cell["classes"]), counts), counts.sum()
    rho, repeats = counts / total, cell["draws"]
    centres = rng.normal(size=(cell["classes"], 8))
    points = centres[labels] + cell["spread"] * np.sqrt(8) * rng.normal(size=(total, 8)) / 2
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    kernel = np.exp(points @ points.T)
    other = labels[:, None] != labels[None, :]
    # Exact mean over the other classes, weighted as the data are: E_c of the paper.
    outside = (kernel * other).sum(axis=1) / other.sum(axis=1)
    # Means of exp(s) over the first N negatives and M positives, and the pair: [points, draws].
    starts = np.r_[0, np.cumsum(counts)]
    low, high = starts[labels][:, None], starts[labels + 1][:, None]
    u = {n: np.empty((total, repeats)) for n in cell["negatives"]}
    v = {m: np.empty((total, repeats)) for m in cell["positives"]}
    pair = np.empty((total, repeats))
    for draw in range(repeats):
        for means, start, end in ((u, 0, total), (v, low, high), ({1: pair}, low, high)):
            drawn = np.take_along_axis(
                kernel, rng.integers(start, end, (total, max(means))), axis=1
            )
            for count, mean in means.items():
                mean[:, draw] = drawn[:, :count].mean(axis=1)
    found = []
    for kind in cell["etas"]:
        each = misspecified(rho, kind)
        eta = each[labels][:, None]
        for n, m in product(cell["negatives"], cell["positives"]):
            g = np.maximum((u[n] - eta * v[m]) / (1 - eta), math.exp(-1))
            ours, limit = (np.log1p(n * h / pair) for h in (g, outside[:, None]))
            difference = (ours - limit).mean(axis=0)
            error = float(difference.std(ddof=1) / math.sqrt(repeats))
            row = {"eta": kind, "N": n, "M": m, "error": float(abs(difference.mean()))}
            bound = sum(bound_terms(rho, each, n, m))
            found.append(row | {"standard_error": error, "bound": bound})
    return found
