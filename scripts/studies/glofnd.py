"""GloFND: do its thresholds find the quantile, and does what they remove deserve it?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from medclip_debias.evaluation.probe import most_similar
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.losses import TwoViewBatch
from medclip_debias.losses.objective import Objective, build_objective, loss_settings
from medclip_debias.losses.policies.glofnd import GloFND, GloFNDSettings
from medclip_debias.reporting.tables import Table
from studies.images import digits, fit, probe
from studies.study import Study, by_seed, gap, lines, split, spread, where

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
QUANTILE = "glofnd quantile"
POLICIES = {"fnc": "FNC", "glofnd one": "GloFND from 1", QUANTILE: "GloFND from a quantile"}
REMOVERS = {
    "own threshold": "own thresholds",
    "batch": "batch top-k (FNC)",
    "global": "one global threshold",
    "exact": "exact quantiles",
}
RULES = ("adam, from 1", "adam, from a quantile", "sgd, from 1", "sgd, from a quantile")
RATES = ("precision", "recall", "f1")
ALPHA = 0.1
"""The alpha nearest to the digits' true rate of false negatives."""


class GloFNDStudy(Study):
    """Thresholds on fixed vectors, then in training on digits."""

    name: ClassVar[str] = "glofnd"
    seconds_a_cell: ClassVar[float] = 10.0

    def cells(self) -> list[dict[str, Any]]:
        s, found = self.settings, []
        fixed = {name: getattr(s, name) for name in ("points", "visits", "rate", "batch")}
        train = {name: getattr(s, name) for name in ("steps", "batch", "temperature")}
        for seed in range(s.seeds):
            common = {"part": "train", "seed": seed, **train}
            found += [
                {"part": "fixed", "alpha": alpha, "rule": rule, "seed": seed, **fixed}
                for alpha, rule in product(s.alphas, RULES)
            ]
            found.append(common | {"policy": "none", "alpha": 0.0, "start": 0.0})
            found += [
                common | {"policy": policy, "alpha": alpha, "start": start}
                for policy, alpha in product(POLICIES, s.alphas)
                for start in (s.starts if alpha == ALPHA else s.starts[:1])
            ]
        return found

    def measure(self, cell: Cell) -> Row:
        return fixed_vectors(cell) if cell["part"] == "fixed" else training(cell)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Distance to the quantile, share removed, detection, probe, start, cost."""
        fixed, train = where(rows, part="fixed"), where(rows, part="train")
        plain = by_seed(where(train, policy="none"), "probe")
        end, at_alpha = "at the end of training", f"alpha = {ALPHA:g}"
        ends = [np.mean([r["distances"][-1] for r in where(fixed, rule=rule)]) for rule in RULES]
        own_thresholds = split(where(train, policy=QUANTILE, start=0.0), "alpha")
        at = own_thresholds[ALPHA]
        detection = [
            [
                label,
                *(spread(at, f"{name} {key}") for key in RATES),
                gap(by_seed(at, f"{name} f1"), by_seed(at, "batch f1")),
            ]
            for name, label in REMOVERS.items()
        ]
        by_start, costs = [], []
        for policy, label in POLICIES.items():
            f1 = "batch f1" if policy == "fnc" else "own threshold f1"
            for start, own in split(where(train, policy=policy, alpha=ALPHA), "start").items():
                said = [spread(own, name) for name in ("removed", "mae", f1, "probe")]
                by_start.append([label, f"{start:g}", *said, gap(by_seed(own, "probe"), plain)])
                if start == 0:
                    ratio = np.median([row["step_ratio"] for row in own])
                    costs.append([label, f"{ratio:.2f}"])
        distance = "Fixed vectors: mean distance of the thresholds to the exact quantile at the end"
        alphas = [f"alpha {alpha:g}" for alpha in own_thresholds]
        removed = [spread(own, "removed") for own in own_thresholds.values()]
        rules = ["rule", "precision", "recall", "F1", "F1 minus batch top-k"]
        head = ["policy", "start", "share removed", "distance to the quantile", "F1", "probe"]
        head.append(f"minus InfoNCE ({np.mean(list(plain.values())):.3f})")
        return [
            Table(distance, RULES, [[f"{value:.3f}" for value in ends]]),
            Table(f"Share of pairs removed {end}", alphas, [removed]),
            Table(f"Removed pairs {end}, {at_alpha}", rules, detection),
            Table(f"When filtering starts, {at_alpha}", head, by_start),
            Table("Time of a step against InfoNCE, median", ["policy", "times"], costs),
        ]

    def figure(self, rows: Sequence[Row]) -> Figure:
        rules = [
            {"alpha": row["alpha"], "rule": label, "f1": row[f"{name} f1"]}
            for row in where(rows, policy=QUANTILE, start=0.0)
            for name, label in REMOVERS.items()
        ]
        return lines({"F1 of removed pairs": (rules, "f1")}, "alpha", "rule")


# --------------------------------------------------------------------------- fixed vectors


def fixed_vectors(cell: Cell) -> Row:
    """Mean distance of the thresholds to the exact quantiles, as visits go by."""
    rng, n, size = np.random.default_rng([cell["seed"], 3]), cell["points"], cell["batch"]
    centres = rng.normal(size=(10, 16))
    points = centres[rng.integers(0, 10, n)] + 0.7 * rng.normal(size=(n, 16))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    exact = exact_quantiles(points, cell["alpha"])
    optimizer, _, start = cell["rule"].partition(", from ")
    how = {"optimizer": optimizer, "init": "one" if start == "1" else "quantile", "samples": n}
    policy = GloFND(GloFNDSettings(alpha=cell["alpha"], lr=cell["rate"], **how)).train()
    data, at, distances = torch.from_numpy(points), [], []
    for epoch in range(cell["visits"]):
        order = torch.from_numpy(rng.permutation(n))
        for rows in order[: n // size * size].split(size):
            batch = TwoViewBatch.from_views(data[rows], data[rows], 1.0, sample_ids=rows)
            policy(batch.anchors("symmetric")[0], batch)
        if epoch % max(1, cell["visits"] // 40) == 0 or epoch == cell["visits"] - 1:
            at.append(epoch + 1)
            distances.append(float(np.abs(thresholds(policy, n) - exact).mean()))
    return {"at": at, "distances": distances}


def exact_quantiles(points: Floats, alpha: float) -> Floats:
    """``1 - alpha`` quantile of each unit vector's cosines with all others: ``[n]``."""
    cosine, others = points @ points.T, ~np.eye(len(points), dtype=bool)
    return np.asarray(np.quantile(cosine[others].reshape(len(points), -1), 1 - alpha, axis=1))


def thresholds(policy: Any, samples: int) -> Floats:
    """The thresholds that a two-view GloFND has learned: ``[samples]``."""
    state = policy.state_dict()
    (name,) = (n for n in state if "view" in n and n.endswith("threshold"))
    values: Floats = state[name][:samples].double().numpy()
    return values


# -------------------------------------------------------------------------------- training


def training(cell: Cell) -> Row:
    """Train on digits under one policy; judge all pairs of the training set."""
    images, labels, test, truth = digits()
    objective = _objective(cell, len(images))
    encoder = fit(
        images,
        objective,
        steps=cell["steps"],
        fields={"sample_ids": np.arange(len(images))},
        **{name: cell[name] for name in ("batch", "temperature", "seed")},
    )
    features = encoder.features(images), labels, encoder.features(test), truth
    row: Row = {"probe": probe(*features, 1.0, cell["seed"], (0,))[0]}
    plain, again = (_objective(c, len(images)) for c in ({**cell, "policy": "none"}, cell))
    row["step_ratio"] = _step_ratio(plain, again, images[: cell["batch"]])
    if cell["alpha"] == 0:
        return row
    vectors, alpha = encoder.embeddings(images).astype(np.float64), cell["alpha"]
    cosine, other = vectors @ vectors.T, ~np.eye(len(images), dtype=bool)
    false = (labels[:, None] == labels[None, :]) & other
    exact = exact_quantiles(vectors, alpha)
    top, met = _batch_top(cosine, alpha, cell["batch"], cell["seed"])
    rules = {
        "exact": (cosine > exact[:, None], other),
        "global": (cosine > np.quantile(cosine[other], 1 - alpha), other),
        "batch": (top, met),
    }
    if cell["policy"].startswith("glofnd"):
        (policy,) = (module for module in objective.modules() if isinstance(module, GloFND))
        learned = thresholds(policy, len(images))
        removed = cosine > learned[:, None]
        rules["own threshold"] = removed, other
        row["removed"] = float(removed[other].mean())
        row["mae"] = float(np.abs(learned - exact).mean())
    for name, (removed, judged) in rules.items():
        found = _scores(removed & judged, false & judged)
        row |= {f"{name} {key}": value for key, value in found.items()}
    return row


def _objective(cell: Cell, samples: int) -> Objective:
    kind, _, init = cell["policy"].partition(" ")
    start, alpha = round(cell["start"] * cell["steps"]), cell["alpha"]
    glofnd = {"kind": "glofnd", "alpha": alpha, "init": init, "filter_step": start}
    negatives: dict[str, list[dict[str, Any]]] = {
        "none": [],
        "fnc": [{"kind": "fnc", "alpha": alpha, "start_step": start}],
        "glofnd": [glofnd | {"samples": samples}],
    }
    settings = {"kind": "infonce", "negatives": negatives[kind]}
    return build_objective(loss_settings(settings, cell["part"]))


def _step_ratio(plain: Objective, objective: Objective, images: Any) -> float:
    """Time of a step under the policy over that of plain InfoNCE: medians, measured in turn."""
    encoder = fit(images, plain, steps=1, batch=len(images), temperature=0.5, seed=0)
    rows, data = torch.arange(len(images)), torch.from_numpy(images)
    times: list[list[float]] = [[], []]
    for place, one in [*enumerate((plain, objective))] * 15:
        began = time.perf_counter()
        first, second = (encoder.head(encoder.trunk(data)) for _ in range(2))
        batch = TwoViewBatch.from_views(first, second, 2.0, sample_ids=rows)
        one(batch).loss.backward()
        times[place].append(time.perf_counter() - began)
    return float(np.median(times[1]) / np.median(times[0]))


def _batch_top(cosine: Floats, alpha: float, batch: int, seed: int) -> tuple[Bools, Bools]:
    """What FNC would remove in random batches, and the pairs that met: only those are judged."""
    removed, met = (np.zeros(cosine.shape, dtype=bool) for _ in range(2))
    order = np.random.default_rng([seed, 9]).permutation(len(cosine))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        if len(rows) > 1:
            place = np.ix_(rows, rows)
            met[place] = ~np.eye(len(rows), dtype=bool)
            removed[place] = most_similar(cosine[place], met[place], alpha)
    return removed, met


def _scores(removed: Bools, false: Bools) -> dict[str, float]:
    hits, taken, there = float((removed & false).sum()), removed.sum(), false.sum()
    values = hits / max(taken, 1), hits / max(there, 1), 2 * hits / max(taken + there, 1)
    return dict(zip(RATES, values, strict=True))
