"""GloFND in training: are its thresholds the quantile, and does what they remove deserve it?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from medclip_debias.evaluation.probe import detection, most_similar
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.losses import TwoViewBatch
from medclip_debias.losses.objective import Objective, build_objective, loss_settings
from medclip_debias.losses.policies.glofnd import GloFND
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
RATES = ("precision", "recall", "f1")
ALPHA = 0.1
"""The alpha nearest to the digits' true rate of false negatives."""


class GloFNDStudy(Study):
    """Each policy and alpha on digits; at one alpha also later starts."""

    name: ClassVar[str] = "glofnd"
    seconds_a_cell: ClassVar[float] = 10.0

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        how = {name: getattr(s, name) for name in ("steps", "batch", "temperature")}
        arms = [("none", 0.0, 0.0)] + [
            (policy, alpha, start)
            for policy, alpha in product(POLICIES, s.alphas)
            for start in (s.starts if alpha == ALPHA else s.starts[:1])
        ]
        return [
            {"policy": policy, "alpha": alpha, "start": start, "seed": seed, **how}
            for seed, (policy, alpha, start) in product(range(s.seeds), arms)
        ]

    def measure(self, cell: Cell) -> Row:
        """Train on digits under one policy; judge all pairs of the training set."""
        images, labels, test, truth = digits()
        objective = _objective(cell, len(images))
        encoder = fit(
            images,
            objective,
            fields={"sample_ids": np.arange(len(images))},
            **{name: cell[name] for name in ("steps", "batch", "temperature", "seed")},
        )
        features = encoder.features(images), labels, encoder.features(test), truth
        row: Row = {"probe": probe(*features, 1.0, cell["seed"])[0]}
        plain, again = (_objective(c, len(images)) for c in ({**cell, "policy": "none"}, cell))
        row["step_ratio"] = _step_ratio(plain, again, images[: cell["batch"]])
        if cell["alpha"] == 0:
            return row
        vectors, alpha = encoder.embeddings(images).astype(np.float64), cell["alpha"]
        cosine, other = vectors @ vectors.T, ~np.eye(len(images), dtype=bool)
        exact = exact_quantiles(vectors, alpha)
        rules = {
            "exact": (cosine > exact[:, None], other),
            "global": (cosine > np.quantile(cosine[other], 1 - alpha), other),
            "batch": _batch_top(cosine, alpha, cell["batch"], cell["seed"]),
        }
        if cell["policy"].startswith("glofnd"):
            (policy,) = (module for module in objective.modules() if isinstance(module, GloFND))
            learned = thresholds(policy, len(images))
            rules["own threshold"] = cosine > learned[:, None], other
            row["mae"] = float(np.abs(learned - exact).mean())
        false = (labels[:, None] == labels[None, :]) & other
        for name, (removed, judged) in rules.items():
            found = detection(removed, false, judged)
            row |= {f"{name} {key}": found[key] for key in RATES}
        return row

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Detection, when filtering starts, cost."""
        plain = by_seed(where(rows, policy="none"), "probe")
        at = where(rows, policy=QUANTILE, start=0.0, alpha=ALPHA)
        detection = [
            [
                label,
                *(spread(at, f"{name} {key}") for key in RATES),
                gap(by_seed(at, f"{name} f1"), by_seed(at, "batch f1")),
            ]
            for name, label in REMOVERS.items()
        ]
        by_start, costs = [], []
        for (policy, start), own in split(where(rows, alpha=ALPHA), "policy", "start").items():
            f1 = "batch f1" if policy == "fnc" else "own threshold f1"
            said = [spread(own, name) for name in ("mae", f1, "probe")]
            more = gap(by_seed(own, "probe"), plain)
            by_start.append([POLICIES[policy], f"{start:g}", *said, more])
            if start == 0:
                ratio = np.median([row["step_ratio"] for row in own])
                costs.append([POLICIES[policy], f"{ratio:.2f}"])
        rules = ["rule", "precision", "recall", "F1", "F1 minus batch top-k"]
        head = ["policy", "start", "distance to the quantile", "F1", "probe", "minus InfoNCE"]
        at_alpha = f"alpha = {ALPHA:g}"
        return [
            Table(f"Removed pairs at the end of training, {at_alpha}", rules, detection),
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


def exact_quantiles(points: Floats, alpha: float) -> Floats:
    """``1 - alpha`` quantile of each unit vector's cosines with all others: ``[n]``."""
    cosine, others = points @ points.T, ~np.eye(len(points), dtype=bool)
    return np.asarray(np.quantile(cosine[others].reshape(len(points), -1), 1 - alpha, axis=1))


def thresholds(policy: GloFND, samples: int) -> Floats:
    """The thresholds that a two-view GloFND has learned: ``[samples]``."""
    state = policy.state_dict()
    (name,) = (n for n in state if "view" in n and n.endswith("threshold"))
    values: Floats = state[name][:samples].double().numpy()
    return values


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
    return build_objective(loss_settings(settings, "the study"))


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
