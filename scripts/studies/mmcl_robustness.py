"""Robustness to spurious features: theory in closed form, and coloured digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from medclip_debias.experiments.experiment import Cell, Row, Table
from studies import mmcl_models as models
from studies.plots import lines
from studies.study import Study, spread, where

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHA, BETA, CORE, SPURIOUS = 10.0, 1 / 3, 1.0, 0.1
COLOURS = {"inside": "as in training", "test": "at random", "against": "disagree"}


class MMCLRobustness(Study):
    """Theorems 4.3-4.8, 5.2 and 5.4, and the semi-synthetic experiment."""

    name: ClassVar[str] = "mmcl-robustness"
    seconds_a_cell: ClassVar[float] = 3.0

    def cells(self) -> list[dict[str, Any]]:
        """Parts 1, 1 with captions, 2, 2 with captions, digits; each by seed."""
        s = self.settings
        base, two = {"samples": s.samples, "tests": s.tests}, {"tests": 400}
        digits = {"part": "digits", "steps": s.digit_steps, "agree": s.digit_agree}
        parts: list[dict[str, Any]] = [{"part": "model 1", "agree": p, **base} for p in s.agree]
        parts += [
            {"part": "captions 1", "agree": s.agree[-1], "core": a, "spurious": b, **base}
            for a in s.mentioned
            for b in (0.0, 1.0)
        ]
        parts += [{"part": "model 2", "m": m, **two} for m in s.classes]
        parts += [{"part": "captions 2", "m": s.rich_classes, "pi": pi, **two} for pi in s.rich]
        parts.append(digits | {"kind": "supervised", "core": 1.0, "spurious": 1.0})
        parts += [
            digits | {"kind": "contrastive", "core": a, "spurious": b}
            for a in s.digit_mentioned
            for b in s.digit_mentioned
        ]
        return [{**part, "seed": seed} for seed in range(s.seeds) for part in parts]

    def measure(self, cell: Cell) -> Row:
        """Accuracies of one cell."""
        if cell["part"] in ("model 1", "captions 1"):
            return _model_1(cell)
        if cell["part"] in ("model 2", "captions 2"):
            return _model_2(cell)
        from studies.coloured_digits import accuracy

        mentioned = (cell["core"], cell["spurious"])
        how = {name: cell[name] for name in ("agree", "steps", "seed")}
        return accuracy(cell["kind"], mentioned, **how)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Theorem by theorem, then the digits."""
        captions, two, rich = (
            where(rows, part=part) for part in ("captions 1", "model 2", "captions 2")
        )
        first = []
        for agree in sorted({r["agree"] for r in where(rows, part="model 1")}):
            own = where(rows, part="model 1", agree=agree)
            every, disagree = models.accuracy_1(agree, CORE, SPURIOUS, 1.0)
            for name, theory in (("contrastive", every), ("against", disagree)):
                other = "supervised" + ("" if name == "contrastive" else "_against")
                tested = "all" if name == "contrastive" else "sign disagrees"
                means = [np.mean([r[key] for r in own]) for key in (name, other)]
                first.append(
                    [f"{agree:g}", tested, f"{means[0]:.3f}", f"{theory:.3f}", f"{means[1]:.3f}"]
                )
        by_core = [
            [f"{core:g}"]
            + [
                f"{np.mean([r['against'] for r in where(captions, core=core, spurious=b)]):.3f}"
                for b in (0.0, 1.0)
            ]
            + [f"{where(captions, core=core)[0][name]:.3f}" for name in ("theory", "printed")]
            for core in sorted({r["core"] for r in captions})
        ]
        least = models.least_classes(ALPHA, BETA)
        pi = models.least_mentioned(rich[0]["m"], ALPHA, BETA)
        numbers = [
            [name, f"{value:g}", *(spread(own, side) for side in ("contrastive", "supervised"))]
            for name, every in (("m", two), ("pi", rich))
            for value in sorted({r[name] for r in every})
            for own in (where(every, **{name: value}),)
        ]
        return [
            Table(
                "Data model 1",
                ["p_spu", "tested on", "contrastive", "closed form", "supervised"],
                first,
            ),
            Table(
                "Captions in data model 1: accuracy where the sign disagrees",
                ["pi_core", "pi_spu = 0", "pi_spu = 1", "weight linear in pi_core", "as printed"],
                by_core,
            ),
            Table(
                f"Data model 2: thresholds m = {least:.0f} and pi = {pi:.3f}",
                ["", "value", "contrastive", "supervised"],
                numbers,
            ),
            _digit_table(where(rows, part="digits")),
        ]

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Captions in model 1, and digits."""
        captions = where(rows, part="captions 1")
        digits = where(rows, part="digits", kind="contrastive")
        shown = {
            "data model 1: sign disagrees": (captions, "against"),
            "coloured digits, colours at random": (digits, "test"),
        }
        return lines(shown, "core", "spurious")


def _model_1(cell: Cell) -> Row:
    rng = np.random.default_rng([cell["seed"], round(1000 * cell["agree"]), 1])
    n, d = cell["samples"], 2 * cell["samples"]
    sigma, core = float(np.log(n)), cell.get("core", 1.0)
    z, y, a = models.features_1(rng, n, cell["agree"], CORE, SPURIOUS)
    x = models.inputs(rng, z, d, sigma)
    caption = models.masked_1(rng, z, y, a, core, cell.get("spurious", 1.0))
    text = models.inputs(rng, caption, d, sigma)
    seen, label, sign = models.features_1(rng, cell["tests"], 0.5, CORE, SPURIOUS)
    test = models.inputs(rng, seen, d, sigma)
    prompt = np.zeros((1, d))
    prompt[0, 0] = 1.0  # the centre of class 1; that of class -1 is its negative
    right = np.sign(models.contrastive_scores(x, text, test, prompt)[:, 0]) == label
    row = {"contrastive": float(right.mean()), "against": float(right[sign != label].mean())}
    for name, weight in (("theory", core), ("printed", core**2)):
        row[name] = models.accuracy_1(cell["agree"], CORE, SPURIOUS, weight)[1]
    if cell["part"] == "model 1":
        scores, separable = models.supervised_1(x, y, test)
        right = np.sign(scores) == label
        row |= {"supervised": float(right.mean()), "separable": float(separable)}
        row["supervised_against"] = float(right[sign != label].mean())
    return row


def _model_2(cell: Cell) -> Row:
    rng = np.random.default_rng([cell["seed"], cell["m"], 2])
    z, k, c = models.features_2(rng, cell["tests"], cell["m"], ALPHA, BETA, training=False)
    learned = models.contrastive_weights_2(cell["m"], ALPHA, BETA, cell.get("pi", 1.0))
    return {
        "contrastive": models.accuracy_2(z, k, c, learned),
        "supervised": models.accuracy_2(z, k, c, (1.0, ALPHA)),
    }


def _digit_table(digits: Sequence[Row]) -> Table:
    body = []
    for kind, core, spurious in sorted({(r["kind"], r["core"], r["spurious"]) for r in digits}):
        own = where(digits, kind=kind, core=core, spurious=spurious)
        said = ["-", "-"] if kind == "supervised" else [f"{core:g}", f"{spurious:g}"]
        body.append([kind, *said, *(spread(own, name) for name in COLOURS)])
    colours = [f"colours {words}" for words in COLOURS.values()]
    title = "Coloured digits: accuracy, mean and sd over seeds"
    return Table(title, ["training", "pi_core", "pi_spu", *colours], body)
