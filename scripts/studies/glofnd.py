"""GloFND: do its thresholds find the quantile, and does what they remove deserve it?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from medclip_debias.config import Settings
from medclip_debias.experiments.experiment import Cell, Row, Summary
from studies.glofnd_findings import (
    POLICIES,
    REMOVERS,
    RULES,
    column,
    detection_table,
    findings,
    last_distances,
    main_alpha,
    start_table,
    step_ratios,
)
from studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from medclip_debias.losses.objective import Objective

Floats = NDArray[np.float64]


class GloFNDStudySettings(Settings):
    """Grids of the two parts."""

    alphas: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    points: int = Field(1000, ge=100)
    visits: int = Field(200, ge=1)
    rate: float = Field(0.05, gt=0)
    steps: int = Field(1500, ge=10)
    batch: int = Field(128, ge=8)
    temperature: float = Field(0.5, gt=0)
    starts: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    seeds: int = Field(5, ge=1)


class GloFNDStudy(Study):
    """Thresholds on fixed vectors, then in training on digits."""

    name: ClassVar[str] = "glofnd"
    title: ClassVar[str] = "GloFND: thresholds, and what they remove"
    source: ClassVar[str] = "GloFND, equations 2-4, figures 2 and 3, table 6"
    settings_class: ClassVar[type[Settings]] = GloFNDStudySettings
    machines: ClassVar[str] = """\
**Other machines.** Ten cells, computed with the libraries held to the instructions of a
processor without AVX-512, differ by at most .009 in a precision, recall or F1, .005 in a mean
error of thresholds, .003 in a probe's accuracy and .15 in a ratio of steps
([how](index.md#other-machines))."""
    about: ClassVar[str] = """
**Fixed vectors** (10 clusters on a sphere): the thresholds of GloFND are learned from random
batches and compared with the exact (1 - alpha) quantile of each sample's similarity to all others,
for SGD (equation 4) and Adam (published code), started at 1 or at the quantile of the first batch.

**Training**: SimCLR on scikit-learn's digits, where two images of one digit are a false negative
(about a tenth of all pairs), under InfoNCE alone, with FNC, and with GloFND, same budget for all.
At the end all pairs of the training set are judged: GloFND removes above each sample's threshold,
FNC the top alpha of random batches, the global threshold above one quantile of all pairs, and the
exact rule above each sample's own quantile, all with the vectors of the same network. `start` is
the share of training without filtering (GloFND learns its thresholds from the first step on).
Differences are paired over seeds, with 95% t intervals, not corrected for their number."""

    @classmethod
    def quick(cls) -> GloFNDStudySettings:
        """Few values of each."""
        return GloFNDStudySettings(
            alphas=(0.1,), points=400, visits=60, steps=300, starts=(0.0, 0.5), seeds=2
        )

    def cells(self) -> list[dict[str, Any]]:
        """Rules by alpha by seed; policies by alpha and start by seed."""
        s = self.settings
        found: list[dict[str, Any]] = []
        fixed = {"points": s.points, "visits": s.visits, "rate": s.rate, "batch": s.batch}
        train = {"steps": s.steps, "batch": s.batch, "temperature": s.temperature}
        for seed in range(s.seeds):
            found += [
                {"part": "fixed", "alpha": alpha, "rule": rule, "seed": seed, **fixed}
                for alpha in s.alphas
                for rule in RULES
            ]
            common = {"part": "train", "seed": seed, **train}
            found.append(common | {"policy": "none", "alpha": 0.0, "start": 0.0})
            found += [
                common | {"policy": policy, "alpha": a, "start": start}
                for policy in POLICIES
                for a in s.alphas
                for start in (s.starts if a == main_alpha(s.alphas) else s.starts[:1])
            ]
        return found

    def seconds(self, cell: Cell) -> float:
        """Batches taken."""
        if cell["part"] == "train":
            return 0.007 * float(cell["steps"])
        return 0.003 * float(cell["visits"] * cell["points"] / cell["batch"])

    def measure(self, cell: Cell) -> Row:
        """One rule on fixed vectors, or one training."""
        return fixed_vectors(cell) if cell["part"] == "fixed" else training(cell)

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Distance to the quantile, removal rate, detection, probe, cost."""
        fixed = [r for r in rows if r["part"] == "fixed"]
        train = [r for r in rows if r["part"] == "train"]
        alpha = main_alpha(sorted({r["alpha"] for r in fixed}))
        return Summary(
            findings(fixed, train, alpha),
            [detection_table(train, alpha), start_table(train, alpha)],
            {"mae": last_distances(fixed), "step_ratio": step_ratios(train, alpha)},
        )

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Distance to the quantile; share removed and F1 over alpha; probe over the start."""
        from studies.plots import labels, line, means_with_bars, panels

        fixed = [r for r in rows if r["part"] == "fixed"]
        train = [r for r in rows if r["part"] == "train"]
        alpha = main_alpha(sorted({r["alpha"] for r in fixed}))
        alphas = sorted({r["alpha"] for r in train if r["alpha"] > 0})
        at = f"alpha = {alpha:g}"
        titles = ["share removed", "F1 of removed pairs", f"linear probe, {at}"]
        figure, (first, second, third, fourth) = panels(
            4, [f"fixed vectors, {at}", *(f"training: {title}" for title in titles)], rows=2
        )
        for style, rule in enumerate(RULES):
            chosen = [r for r in fixed if r["rule"] == rule and r["alpha"] == alpha]
            curve = np.mean([r["mae"] for r in chosen], axis=0)
            line(first, chosen[0]["at"], curve, style, rule, markevery=max(1, len(curve) // 8))
        first.set_yscale("log")
        labels(first, "visits a sample", "mean |lambda - quantile|")
        second.plot(alphas, alphas, color="#777777", linewidth=1, label="alpha")
        for style, policy in enumerate(("glofnd one", "glofnd quantile")):
            own = [list(column(train, "removed", policy, a).values()) for a in alphas]
            means_with_bars(second, alphas, own, style, POLICIES[policy], 0.012 * (style - 1))
        labels(second, "alpha", "share of pairs removed")
        for style, name in enumerate(REMOVERS):
            own = [list(column(train, f"{name} f1", "glofnd quantile", a).values()) for a in alphas]
            means_with_bars(third, alphas, own, style, REMOVERS[name], 0.012 * (style - 1))
        labels(third, "alpha", "F1")
        starts = sorted({r["start"] for r in train})
        plain = float(np.mean(list(column(train, "probe", "none", 0.0).values())))
        fourth.axhline(plain, color="#777777", linewidth=1, label="InfoNCE")
        for style, policy in enumerate(POLICIES):
            own = [list(column(train, "probe", policy, alpha, start).values()) for start in starts]
            means_with_bars(fourth, starts, own, style, POLICIES[policy], 0.012 * (style - 1))
        labels(fourth, "share of training before filtering", "accuracy of the probe")
        return figure


# --------------------------------------------------------------------------- fixed vectors


def fixed_vectors(cell: Cell) -> Row:
    """Mean distance of the thresholds to the exact quantiles, as visits go by."""
    import torch

    from medclip_debias.losses import TwoViewBatch
    from medclip_debias.losses.policies.glofnd import GloFND, GloFNDSettings

    rng = np.random.default_rng([cell["seed"], 3])
    n = cell["points"]
    centres = rng.normal(size=(10, 16))
    points = centres[rng.integers(0, 10, n)] + 0.7 * rng.normal(size=(n, 16))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    exact = exact_quantiles(points, cell["alpha"])
    optimizer, _, start = cell["rule"].partition(", from ")
    settings = GloFNDSettings(
        alpha=cell["alpha"],
        optimizer=optimizer,
        lr=cell["rate"],
        init="one" if start == "1" else "quantile",
        samples=n,
    )
    policy = GloFND(settings).train()
    data = torch.from_numpy(points)
    at, mae = [], []
    per_epoch = n // cell["batch"]
    for epoch in range(cell["visits"]):
        order = torch.from_numpy(rng.permutation(n))
        for number in range(per_epoch):
            rows = order[number * cell["batch"] : (number + 1) * cell["batch"]]
            batch = TwoViewBatch.from_views(data[rows], data[rows], 1.0, sample_ids=rows)
            policy(batch.anchors("symmetric")[0], batch)
        if epoch % max(1, cell["visits"] // 40) == 0 or epoch == cell["visits"] - 1:
            at.append(epoch + 1)
            mae.append(float(np.abs(thresholds(policy, n) - exact).mean()))
    return {"at": at, "mae": mae}


def exact_quantiles(points: Floats, alpha: float) -> Floats:
    """``1 - alpha`` quantile of each unit vector's cosines with all others: ``[n]``."""
    cosine = points @ points.T
    np.fill_diagonal(cosine, np.nan)
    return np.asarray(np.nanquantile(cosine, 1 - alpha, axis=1))


def thresholds(policy: Any, samples: int) -> Floats:
    """The thresholds that a two-view GloFND has learned: ``[samples]``."""
    state = policy.state_dict()
    (name,) = (n for n in state if "view" in n and n.endswith("threshold"))
    values: Floats = state[name][:samples].double().numpy()
    return values


# -------------------------------------------------------------------------------- training


def training(cell: Cell) -> Row:
    """Train on digits under one policy; judge all pairs of the training set."""
    from studies.long_tail_images import load, probe
    from studies.simclr import fit

    images, labels, test, truth = load("digits", None)
    how = {name: cell[name] for name in ("batch", "temperature", "seed")}
    objective = _objective(cell, len(images))
    encoder = fit(
        images,
        objective,
        steps=cell["steps"],
        fields={"sample_ids": np.arange(len(images))},
        **how,
    )
    accuracy, _, _ = probe(
        encoder.features(images), labels, encoder.features(test), truth, 1.0, cell["seed"]
    )
    row: Row = {"probe": accuracy, "step_ratio": _step_ratio(cell, images)}
    if cell["alpha"] == 0:
        return row
    vectors = encoder.embeddings(images).astype(np.float64)
    cosine = vectors @ vectors.T
    other = ~np.eye(len(images), dtype=bool)
    false = (labels[:, None] == labels[None, :]) & other
    alpha = cell["alpha"]
    top, met = _batch_top(cosine, alpha, cell["batch"], cell["seed"])
    rules = {
        "exact": cosine > exact_quantiles(vectors, alpha)[:, None],
        "global": cosine > np.quantile(cosine[other], 1 - alpha),
        "batch": top,
    }
    if cell["policy"].startswith("glofnd"):
        learned = thresholds(_policy(objective), len(images))
        rules["own threshold"] = cosine > learned[:, None]
        row["removed"] = float((rules["own threshold"] & other)[other].mean())
        exact = exact_quantiles(vectors, alpha)
        row["mae"] = float(np.abs(learned - exact).mean())
    for name, removed in rules.items():
        judged = met if name == "batch" else other
        found = _scores(removed & judged, false & judged)
        row |= {f"{name} {key}": value for key, value in found.items()}
    return row


def _objective(cell: Cell, samples: int) -> Objective:
    from medclip_debias.losses.objective import build_objective, loss_settings

    kind, _, init = cell["policy"].partition(" ")
    negatives: list[dict[str, Any]] = []
    start = round(cell["start"] * cell["steps"])
    if kind == "fnc":
        negatives = [{"kind": "fnc", "alpha": cell["alpha"], "start_step": start}]
    elif kind == "glofnd":
        negatives = [
            {"kind": "glofnd", "alpha": cell["alpha"], "init": init, "filter_step": start}
            | {"samples": samples}
        ]
    return build_objective(loss_settings({"kind": "infonce", "negatives": negatives}, cell["part"]))


def _policy(objective: Objective) -> Any:
    from medclip_debias.losses.policies.glofnd import GloFND

    (found,) = (module for module in objective.modules() if isinstance(module, GloFND))
    return found


def _step_ratio(cell: Cell, images: Any) -> float:
    """Time of a step under the policy over that of plain InfoNCE: medians, measured in turn."""
    import torch

    from medclip_debias.losses import TwoViewBatch
    from studies.simclr import fit

    plain = dict(cell) | {"policy": "none", "alpha": 0.0}
    objectives = [_objective(c, len(images)) for c in (plain, cell)]
    encoder = fit(images, objectives[0], steps=1, batch=cell["batch"], temperature=0.5, seed=0)
    rows = torch.arange(cell["batch"])
    data = torch.from_numpy(images[: cell["batch"]])
    times: list[list[float]] = [[], []]
    for _ in range(15):
        for place, objective in enumerate(objectives):
            began = time.perf_counter()
            first, second = (encoder.head(encoder.trunk(data)) for _ in range(2))
            batch = TwoViewBatch.from_views(first, second, 2.0, sample_ids=rows)
            objective(batch).loss.backward()
            times[place].append(time.perf_counter() - began)
    return float(np.median(times[1]) / np.median(times[0]))


def _batch_top(
    cosine: Floats, alpha: float, batch: int, seed: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """What FNC would remove, the top alpha of each sample's negatives in random batches.

    Returns:
        The removed pairs, and the pairs that met in a batch: only those can be judged.
    """
    from medclip_debias.evaluation.false_negatives import most_similar

    rng = np.random.default_rng([seed, 9])
    removed, met = (np.zeros(cosine.shape, dtype=bool) for _ in range(2))
    order = rng.permutation(len(cosine))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        if len(rows) > 1:
            place = np.ix_(rows, rows)
            met[place] = ~np.eye(len(rows), dtype=bool)
            removed[place] = most_similar(cosine[place], met[place], alpha)
    return removed, met


def _scores(removed: NDArray[np.bool_], false: NDArray[np.bool_]) -> dict[str, float]:
    hits = float((removed & false).sum())
    precision, recall = hits / max(removed.sum(), 1), hits / max(false.sum(), 1)
    f1 = 2 * hits / max(removed.sum() + false.sum(), 1)
    return {"precision": precision, "recall": recall, "f1": f1}
