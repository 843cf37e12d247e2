"""Proposition 1 of sample-specific debiasing, by simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from medclip_debias.config import Settings
from medclip_debias.experiments.experiment import Cell, Row, Summary, Table
from studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
ETAS = ("true", "zero", "mean", "half", "double", "shuffled")


class ErrorBoundSettings(Settings):
    """The grid; ``draws`` Monte Carlo draws of negatives and positives for each anchor."""

    negatives: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    positives: tuple[int, ...] = (1, 4, 16, 64)
    etas: tuple[str, ...] = ETAS
    classes: int = Field(10, ge=3)
    exponents: tuple[float, ...] = (0.0, 1.0)
    spreads: tuple[float, ...] = (0.3, 1.0)
    points: int = Field(2000, ge=100)
    draws: int = Field(40, ge=2)
    seeds: int = Field(3, ge=1)


class ErrorBound(Study):
    """|L - L_bar| against the three terms of equations 9 and 10."""

    name: ClassVar[str] = "error-bound"
    title: ClassVar[str] = "The approximation error of the debiased loss against its bound"
    source: ClassVar[str] = "Sample-specific debiasing, Proposition 1 (equations 9-11, A.1)"
    settings_class: ClassVar[type[Settings]] = ErrorBoundSettings
    machines: ClassVar[str] = """\
**Other machines.** Ten cells, computed with the libraries held to the instructions of a
processor without AVX-512, differ by at most 6e-17 ([how](index.md#other-machines))."""
    about: ClassVar[str] = """
A finite world: unit vectors in 8 dimensions around one direction a class, class probabilities
`rho ~ rank^-exponent`, similarity the inner product (scale 1, as in the proof). The asymptotic loss
(eq. 11) is computed exactly over all points of the other classes; the loss itself by drawing, for
each anchor, N negatives from all points and M positives from its class, with the estimator of eq. 8
and its floor `1/e`. `eta` is the true `rho`, 0 (InfoNCE), the mean of `rho`, half, double (at most
.95), or `rho` shuffled over classes."""

    @classmethod
    def quick(cls) -> ErrorBoundSettings:
        """One world, fewer draws."""
        return ErrorBoundSettings(exponents=(1.0,), spreads=(0.3,), draws=8, seeds=1, points=600)

    def cells(self) -> list[dict[str, Any]]:
        """One world a cell: all N, M and eta of it share their points."""
        s = self.settings
        return [
            {
                "exponent": exponent,
                "spread": spread,
                "seed": seed,
                **{n: getattr(s, n) for n in ("classes", "points", "draws")},
                **{n: list(getattr(s, n)) for n in ("negatives", "positives", "etas")},
            }
            for exponent in s.exponents
            for spread in s.spreads
            for seed in range(s.seeds)
        ]

    def seconds(self, cell: Cell) -> float:
        """Proportional to the numbers sampled."""
        largest = max(cell["negatives"]) + max(cell["positives"])
        return 1.3e-8 * cell["points"] * cell["draws"] * largest * len(cell["positives"]) + 1

    def measure(self, cell: Cell) -> Row:
        """Errors and bounds of one world."""
        return {"points_of_grid": _world(cell)}

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Whether the bound held, and how loose it is."""
        points = flat(rows)
        # Two standard errors below: a violation must not be Monte Carlo noise.
        broken = [p for p in points if p["error"] - 2 * p["standard_error"] > p["bound"]]
        ratios = sorted(p["bound"] / p["error"] for p in points if p["error"] > 0)
        true = [p for p in points if p["eta"] == "true"]
        largest_n = max(p["N"] for p in points)
        largest_m = max(p["M"] for p in points)

        def mean_error(eta: str, n: int, m: int) -> float:
            chosen = [p["error"] for p in points if (p["eta"], p["N"], p["M"]) == (eta, n, m)]
            return float(np.mean(chosen))

        far = {eta: mean_error(eta, largest_n, largest_m) for eta in _present(points)}
        near = mean_error("true", largest_n, 1)
        held = f"The bound holds in all {len(points)} settings."
        if broken:
            held = f"The bound is violated in {len(broken)} of {len(points)} settings."
        findings = [
            held,
            f"It is loose: the median bound is {np.median(ratios):.0f} times the error, the "
            f"tightest {ratios[0]:.1f} times.",
            f"Its last term is {max(p['term_eta'] for p in true):.1g} for the true eta, and with "
            f"N = {largest_n} and M = {largest_m} the error is then {far['true']:.4f}; with "
            f"eta = 0 it stays at {far['zero']:.4f}, with the mean of rho at "
            f"{far.get('mean', math.nan):.4f}.",
            f"With a single positive (M = 1), the paper's training, the true eta leaves an error "
            f"of {near:.4f} at N = {largest_n}: the second term, which no number of negatives "
            "removes.",
        ]
        order = sorted(far, key=far.__getitem__)
        rows_of_table = [
            [eta, *(_cell(points, eta, largest_n, m) for m in _ms(points))] for eta in order
        ]
        table = Table(
            f"Mean error at N = {largest_n}",
            ["eta", *(f"M = {m}" for m in _ms(points))],
            rows_of_table,
        )
        return Summary(
            findings,
            [table],
            {"settings": len(points), "violations": len(broken), "tightest_ratio": ratios[0]},
        )

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Error and bound over N for each M; error over N for each eta."""
        from studies.plots import labels, line, panels

        points = flat(rows)
        figure, (left, right) = panels(
            2, ["true eta: error (lines) and bound (thin)", "error by eta, largest M"]
        )
        ns, ms = sorted({p["N"] for p in points}), _ms(points)

        def mean(field: str, **where: Any) -> list[float]:
            return [
                float(
                    np.mean(
                        [
                            p[field]
                            for p in points
                            if p["N"] == n and all(p[k] == v for k, v in where.items())
                        ]
                    )
                )
                for n in ns
            ]

        for style, m in enumerate(ms):
            line(left, ns, mean("error", eta="true", M=m), style, f"M = {m}")
            line(left, ns, mean("bound", eta="true", M=m), style, None, marker=None, linewidth=0.7)
        for style, eta in enumerate(_present(points)):
            line(right, ns, mean("error", eta=eta, M=ms[-1]), style, eta)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            labels(axes, "negatives N", "|L - asymptotic L|")
        return figure


# ---------------------------------------------------------------------------- simulation


def class_probabilities(classes: int, exponent: float) -> Floats:
    """``rho`` of each class, falling with its rank; sums to 1."""
    weights = np.arange(1, classes + 1, dtype=np.float64) ** -exponent
    return weights / weights.sum()


def misspecified(rho: Floats, kind: str, rng: np.random.Generator) -> Floats:
    """``eta`` of each class, of the ``kind`` that the page explains."""
    match kind:
        case "true":
            return rho
        case "zero":
            return np.zeros_like(rho)
        case "mean":
            # Mean over samples, not over classes: frequent classes count more.
            return np.full_like(rho, float(rho @ rho))
        case "half":
            return rho / 2
        case "double":
            return np.minimum(2 * rho, 0.95)
        case "shuffled":
            # A rotation by half: no class keeps its own.
            del rng
            return np.roll(rho, len(rho) // 2)
    raise ValueError(kind)


def bound_terms(rho: Floats, eta: Floats, n: int, m: int, weights: Floats) -> tuple[float, ...]:
    """The three terms of equations 9 and 10; expectations over classes with ``weights``."""
    root = 3 * math.e**2 * math.sqrt(math.pi / 2)
    first = root / math.sqrt(n) * float(weights @ (1 / (1 - rho)))
    second = root / math.sqrt(m) * float(weights @ (rho / (1 - rho)))
    third = 3 * math.e**2 * float(weights @ np.abs(1 / (1 - eta) - 1 / (1 - rho)))
    return first, second, third


def _world(cell: Cell) -> list[Row]:
    rng = np.random.default_rng([cell["seed"], round(1e3 * cell["exponent"])])
    rho_nominal = class_probabilities(cell["classes"], cell["exponent"])
    counts = np.maximum(2, np.round(rho_nominal * cell["points"]).astype(int))
    labels = np.repeat(np.arange(cell["classes"]), counts)
    rho = counts / counts.sum()
    centres = rng.normal(size=(cell["classes"], 8))
    points = centres[labels] + cell["spread"] * np.sqrt(8) * rng.normal(size=(len(labels), 8)) / 2
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    kernel = np.exp(points @ points.T)
    same = labels[:, None] == labels[None, :]
    # Exact mean over the other classes, weighted as the data are: E_c of the paper.
    outside = (kernel * ~same).sum(axis=1) / (~same).sum(axis=1)
    weights = np.bincount(labels) / len(labels)
    found: list[Row] = []
    sums = _draws(cell, kernel, labels, rng)
    for kind in cell["etas"]:
        eta = misspecified(rho, kind, rng)[labels]
        for n in cell["negatives"]:
            for m in cell["positives"]:
                negatives, positives, pair = sums["u", n], sums["v", m], sums["pair"]
                g = (negatives - eta[:, None] * positives) / (1 - eta[:, None])
                g = np.maximum(g, math.exp(-1))
                ours = np.log1p(n * g / pair)
                limit = np.log1p(n * outside[:, None] / pair)
                difference = (ours - limit).mean(axis=0)
                terms = bound_terms(rho, misspecified(rho, kind, rng), n, m, weights)
                found.append(
                    {
                        "eta": kind,
                        "N": n,
                        "M": m,
                        "error": float(abs(difference.mean())),
                        "standard_error": float(
                            difference.std(ddof=1) / math.sqrt(len(difference))
                        ),
                        "bound": float(sum(terms)),
                        "term_eta": float(terms[2]),
                    }
                )
    return found


def _draws(
    cell: Cell, kernel: Floats, labels: NDArray[np.int64], rng: np.random.Generator
) -> dict[Any, Floats]:
    """Means of ``exp(s)`` over the first N or M of the draws: ``[points, draws]`` each."""
    total, repeats = len(labels), cell["draws"]
    most_n, most_m = max(cell["negatives"]), max(cell["positives"])
    starts = np.r_[0, np.cumsum(np.bincount(labels))]
    low, high = starts[labels][:, None], starts[labels + 1][:, None]
    result: dict[Any, Floats] = {
        **{("u", n): np.empty((total, repeats)) for n in cell["negatives"]},
        **{("v", m): np.empty((total, repeats)) for m in cell["positives"]},
        "pair": np.empty((total, repeats)),
    }
    for draw in range(repeats):
        u = np.take_along_axis(kernel, rng.integers(0, total, (total, most_n)), axis=1)
        v = np.take_along_axis(kernel, rng.integers(low, high, (total, most_m)), axis=1)
        for n in cell["negatives"]:
            result["u", n][:, draw] = u[:, :n].mean(axis=1)
        for m in cell["positives"]:
            result["v", m][:, draw] = v[:, :m].mean(axis=1)
        pair = np.take_along_axis(kernel, rng.integers(low, high, (total, 1)), axis=1)
        result["pair"][:, draw] = pair[:, 0]
    return result


def flat(rows: Sequence[Row]) -> list[Row]:
    """One row for each world, eta, N and M."""
    return [
        {"exponent": row["exponent"], "spread": row["spread"], "seed": row["seed"], **point}
        for row in rows
        for point in row["points_of_grid"]
    ]


def _present(points: Sequence[Row]) -> list[str]:
    return [eta for eta in ETAS if any(p["eta"] == eta for p in points)]


def _ms(points: Sequence[Row]) -> list[int]:
    return sorted({p["M"] for p in points})


def _cell(points: Sequence[Row], eta: str, n: int, m: int) -> str:
    chosen = [p["error"] for p in points if (p["eta"], p["N"], p["M"]) == (eta, n, m)]
    return f"{np.mean(chosen):.4f}"
