"""The fine-grained objective: its two toy examples, solved exactly, and severity on the phantom."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import minimize

from medclip_debias.data.prompts import load_prompts
from medclip_debias.evaluation.catalogue import Metric
from medclip_debias.evaluation.protocol import rows_of_split
from medclip_debias.experiments.differences import SeedTables, by_method
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.phantom.catalogue import CLASSES
from medclip_debias.reporting.tables import Table
from studies import phantom
from studies.phantom import METRICS, Phantom, PhantomStudy
from studies.study import Study, lines, where

Floats = NDArray[np.float64]

# Example 1 (definition 5.1): image points and a 1, their label, probability given the label.
DESIGN = np.c_[[1.01, 0.01, 0.0, 1.0, 0.0], [1.0, 0.0, 10.0, 1.0, 0.0], np.ones(5)]
SIGNS = np.array([1.0, 1.0, 1.0, -1.0, -1.0])
SHARES = np.array([0.499, 0.499, 0.002, 0.5, 0.5])
TAU_1 = 5e-5
SEPARATOR = np.array([0.1, -0.1, -0.0005])
LOSSES = {"clip": "CLIP", "g1": "L_g, g1", "g2": "L_g, g2"}


class FineGrained(Study):
    """Examples 1 and 2 of the paper, by exact population losses."""

    name: ClassVar[str] = "fine-grained"
    seconds_a_cell: ClassVar[float] = 0.3

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        first = [{"example": 1, "g": g, "starts": s.starts} for g in ("g1", "g2")]
        return first + [
            {"example": 2, "rare": p, "tau": tau, "angles": s.angles}
            for p, tau in product(s.rare, s.temperatures)
        ]

    def measure(self, cell: Cell) -> Row:
        if cell["example"] == 1:
            return example_1(cell["g"], cell["starts"])
        return example_2(cell["rare"], cell["tau"], cell["angles"])

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """The minimisers of example 1, with the paper's separator; the errors of example 2."""
        body = [
            [
                row["g"],
                *(f"{row[name]:.3g}" for name in "abc"),
                *(f"{row[name]:.6f}" for name in ("loss", "separator_loss")),
                *(f"{row[name]:.4f}" for name in ("error", "separator_error")),
            ]
            for row in where(rows, example=1)
        ]
        head = ["", "a", "b", "c", "loss", "of the paper's separator", "top-1 error"]
        head.append("of the paper's separator")
        errors = [
            [f"{r['rare']:g}", f"{r['tau']:g}", *(f"{r[f'{name}_error']:.4f}" for name in LOSSES)]
            for r in where(rows, example=2)
        ]
        return [
            Table(f"Example 1 (bound of Theorem 4.7 for g2: {BOUND_FOR_G2:.4f})", head, body),
            Table("Example 2: top-1 error", ["p2", "tau", *LOSSES.values()], errors),
        ]

    def figure(self, rows: Sequence[Row]) -> Figure:
        points = [row | {"seed": 0} for row in where(rows, example=2)]
        return lines({"CLIP: top-1 error at the minimiser": (points, "clip_error")}, "rare", "tau")


# ------------------------------------------------------------------------------ example 1


def loss_1(scaled: Floats, g: str) -> float:
    """Population loss of a batch of 2 at the parameters ``(a, b, c)`` over tau.

    The other sample has the other label with probability 1/2; then the argument of g is
    ``exp(-u/tau)`` for label .5 and ``exp(u/tau)`` for -.5, with ``u = a x1 + b x2 + c``.
    """
    return 0.25 * float(_g(g, -SIGNS * (DESIGN @ scaled)) @ SHARES)


def _g(name: str, logarithm: Floats) -> Floats:
    """``log(1 + x)`` or ``x / (1 + x)`` of a number whose logarithm is given."""
    if name == "g1":
        return np.logaddexp(0, logarithm)
    return np.asarray(1 / (1 + np.exp(-np.clip(logarithm, -700, 700))))


def error_1(scaled: Floats) -> float:
    """Top-1 error over both labels; a tie is an error."""
    return 0.5 * float((SIGNS * (DESIGN @ scaled) <= 0) @ SHARES)


def example_1(g: str, starts: int) -> Row:
    """Minimiser of the population loss and its top-1 error; g2's is searched from many starts."""
    paper, rng, found = SEPARATOR / TAU_1, np.random.default_rng(0), []
    for number in range(starts if g == "g2" else 1):  # with g1 the loss is convex
        # The separator's own direction is among the starts, at scales from 1e-3 to 1.
        direction = SEPARATOR if number % 4 == 0 else rng.normal(size=3) * 0.1
        start = direction / TAU_1 * 10 ** rng.uniform(-3, 0)
        how = {"maxiter": 2000, "xatol": 1e-9, "fatol": 1e-15}
        found.append(minimize(loss_1, start, (g,), "Nelder-Mead", options=how))
    best = np.asarray(min(found, key=lambda one: one.fun).x)
    row: Row = dict(zip("abc", (best * TAU_1).tolist(), strict=True))
    row |= {"loss": loss_1(best, g), "error": error_1(best)}
    return row | {"separator_loss": loss_1(paper, g), "separator_error": error_1(paper)}


BOUND_FOR_G2 = 8 * (2 * (0.002 + math.exp(-5e-4 / TAU_1)) + 0.001)
"""``epsilon'`` of Theorem 4.7 for example 1 with g2: batch of 2, alpha .002, gamma 5e-4, C_B = 6,
epsilon = .001; ``exp(2 / tau)`` is so large that ``x / (1 + x)`` is 1 in float64."""


# ------------------------------------------------------------------------------ example 2


def losses_2(theta: Floats, rare: float, tau: float) -> tuple[dict[str, Floats], Floats]:
    """Population losses (batch of 2) and top-1 error at each ``theta``: ``[len(theta)]``.

    Four kinds of pairs: images ``x``, texts ``y`` around theta0 = pi / 12, the last two rare.
    """
    unit, common = math.pi / 12, 1 - rare
    x, y = np.array([1.0, 1.0, 1.0, -1.0]), unit * np.array([-1.0, 1.0, -5.0, 3.0])
    p = np.array([(common - rare) / 2, (common - rare) / 2, rare, rare])
    score = x[:, None, None] * np.cos(y[None, :, None] + theta)  # [image, text, theta]
    pairs = np.arange(4)
    own = score[pairs, pairs]  # [pair, theta]
    to_text = (score - own[:, None]) / tau  # image i, text j
    to_image = (score - own[None, :]) / tau  # image i, text j; anchor is text j
    weight = p[:, None, None] * p[None, :, None]
    clip = (weight * (np.logaddexp(0, to_text) + np.logaddexp(0, to_image))).sum((0, 1))
    other = weight * (x[:, None, None] != x[None, :, None])
    own_text = {name: (other * _g(name, to_text)).sum((0, 1)) for name in ("g1", "g2")}
    # A text of each label is sampled; both images decide by the same comparison.
    wrong = np.cos(y[:3, None] + theta) <= np.cos(y[3] + theta)
    return {"clip": clip, **own_text}, np.asarray(p[:3] / p[:3].sum() @ wrong)


def example_2(rare: float, tau: float, angles: int) -> Row:
    """For each loss the ``theta`` of least loss on the grid, and its top-1 error."""
    theta = np.linspace(-math.pi, math.pi, angles)
    losses, error = losses_2(theta, rare, tau)
    row: Row = {}
    for name, values in losses.items():
        place = int(np.argmin(values))
        row |= {f"{name}_theta": float(theta[place]), f"{name}_error": float(error[place])}
    return row


# ------------------------------------------------------------- severity on the phantom (section 6)

PAIRS = {
    "effusion": ("Small pleural effusion", "Large pleural effusion"),
    "pneumothorax": ("Small pneumothorax", "Large pneumothorax"),
    "cardiomegaly": ("Mild cardiomegaly", "Severe cardiomegaly"),
    "edema": ("Mild pulmonary edema", "Severe pulmonary edema"),
}
"""Finding types that come in two severities: the prompt of the lesser and of the greater."""
PLAIN = "weight 0"
SEVERITY = {"severity_auc": Metric("", "severity_auc", "severity AUC", "", "share")}
GENERAL = {
    name: replace(METRICS[name], digits=3)
    for name in ("auc", "accuracy", "fine_auc", "cnr", "recall")
}


class FineGrainedPhantom(PhantomStudy):
    """Does naming true negatives by their severity words teach severity?"""

    name: ClassVar[str] = "fine-grained-phantom"

    def metrics(self, model: DualEncoder, place: Phantom) -> Row:
        return phantom.measure(model, place) | {"severity_auc": severity_auc(model, place)}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        groups, every = by_method(rows), SeedTables(SEVERITY | GENERAL)
        title = f"Mean (sd) over {len(groups[PLAIN])} seeds"
        return [
            every.means(title, groups),
            every.difference_table("Difference", groups, PLAIN),
        ]


def severity_auc(model: DualEncoder, place: Phantom) -> float:
    """Mean AUC over the types in `PAIRS`, among test images with one of their severities.

    How often an image of the greater one has the greater difference of similarity between the two
    prompts. A type of which the split lacks one severity counts as 0.5: they cannot be told apart.
    """
    data, values = place.data, {}
    rows = rows_of_split(data, "test")
    shown = place.shown(rows)
    for name in PAIRS:
        forms = [c for c in CLASSES if c.type == name]
        lesser, greater = (
            shown[[c.name for c in forms if (c.severity in ("large", "severe")) == side]]
            .to_numpy(dtype=bool)
            .any(axis=1)
            for side in (False, True)
        )
        values[name] = np.where(lesser == greater, np.nan, greater)
    sides = {n: {"positive": [b], "negative": [a]} for n, (a, b) in PAIRS.items()}
    prompts = load_prompts({"name": "severity", "classes": sides})
    labels = phantom.true_labels(rows, values)
    (found,) = phantom.measured(model, data, phantom.zero_shot(model, data, labels, prompts))
    aucs = found.by_class("auc")
    return float(np.mean([aucs.get(name, 0.5) for name in PAIRS]))
