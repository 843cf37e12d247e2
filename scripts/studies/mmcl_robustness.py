"""Robustness to spurious features: theory in closed form, and coloured digits."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from medclip_debias.config import Settings
from medclip_debias.experiments.experiment import Cell, Row, Summary, Table
from studies import mmcl_models as models
from studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RobustnessSettings(Settings):
    """Grids of the two data models and of the digits."""

    samples: int = Field(1000, ge=100)
    tests: int = Field(4000, ge=500)
    agree: tuple[float, ...] = (0.95, 0.99)
    mentioned: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    classes: tuple[int, ...] = (400, 1200, 1700, 1780, 1800, 2400)
    rich: tuple[float, ...] = (0.25, 0.5, 0.7, 0.74, 0.76, 1.0)
    rich_classes: int = 2400
    digit_steps: int = Field(2000, ge=10)
    digit_agree: float = Field(0.995, ge=0.5, le=1)
    digit_mentioned: tuple[float, ...] = (0.0, 0.5, 1.0)
    seeds: int = Field(5, ge=1)


ALPHA, BETA, CORE, SPURIOUS = 10.0, 1 / 3, 1.0, 0.1


class MMCLRobustness(Study):
    """Theorems 4.3-4.8, 5.2 and 5.4, and the semi-synthetic experiment."""

    name: ClassVar[str] = "mmcl-robustness"
    title: ClassVar[str] = "Robustness of contrastive learning to spurious features"
    source: ClassVar[str] = "Understanding the Robustness of Multi-Modal Contrastive Learning"
    settings_class: ClassVar[type[Settings]] = RobustnessSettings
    machines: ClassVar[str] = """\
**Other machines.** Ten cells, computed with the libraries held to the instructions of a
processor without AVX-512: what is computed in closed form is equal; accuracies of networks trained
on digits move by up to .047 ([how](index.md#other-machines))."""
    about: ClassVar[str] = """
**Data model 1** (sigma_core = 1, sigma_spurious = 0.1): features through an orthonormal dictionary
into twice as many dimensions as samples, with noise of norm log n. The contrastive solution is the
exact minimiser of the linear loss (the cross-covariance of the sample); the supervised one the
maximum-margin classifier that gradient descent on the logistic loss reaches. Tested on the true
distribution. Captions mention the variation of the core and of the spurious feature with
probabilities pi_core and pi_spu.

**Data model 2** (alpha = 10, beta = 1/3): both solutions in closed form, tested on draws of the
true distribution, for numbers of classes m and caption richness pi around their thresholds.

**Coloured digits**: scikit-learn's digits on blue and red backgrounds that agree with the class in
99.5% of training images and in half of the test images; the same small network trained by
cross-entropy, or by symmetric InfoNCE against captions that name digit and shade with
probabilities pi_core and pi_spu."""

    @classmethod
    def quick(cls) -> RobustnessSettings:
        """Fewer samples, classes, seeds."""
        return RobustnessSettings(
            samples=400,
            tests=2000,
            classes=(1200, 1780, 1800),
            rich=(0.5, 0.74, 0.76),
            digit_steps=600,
            digit_mentioned=(0.0, 1.0),
            seeds=2,
        )

    def cells(self) -> list[dict[str, Any]]:
        """Parts 1, 1 with captions, 2, 2 with captions, digits; each by seed."""
        s = self.settings
        base = {"samples": s.samples, "tests": s.tests}
        found: list[dict[str, Any]] = []
        for seed in range(s.seeds):
            found += [{"part": "model 1", "agree": p, "seed": seed, **base} for p in s.agree]
            found += [
                {
                    "part": "captions 1",
                    "agree": s.agree[-1],
                    "core": a,
                    "spurious": b,
                    "seed": seed,
                    **base,
                }
                for a in s.mentioned
                for b in (0.0, 1.0)
            ]
            found += [{"part": "model 2", "m": m, "seed": seed, "tests": 400} for m in s.classes]
            found += [
                {"part": "captions 2", "m": s.rich_classes, "pi": pi, "seed": seed, "tests": 400}
                for pi in s.rich
            ]
            digits = {
                "part": "digits",
                "seed": seed,
                "steps": s.digit_steps,
                "agree": s.digit_agree,
            }
            found.append(digits | {"kind": "supervised", "core": 1.0, "spurious": 1.0})
            found += [
                digits | {"kind": "contrastive", "core": a, "spurious": b}
                for a in s.digit_mentioned
                for b in s.digit_mentioned
            ]
        return found

    def seconds(self, cell: Cell) -> float:
        """Digits are the work."""
        return 0.003 * cell["steps"] if cell["part"] == "digits" else 0.4

    def measure(self, cell: Cell) -> Row:
        """Accuracies of one cell."""
        match cell["part"]:
            case "model 1" | "captions 1":
                return _model_1(cell)
            case "model 2" | "captions 2":
                return _model_2(cell)
        from studies.coloured_digits import accuracy

        return accuracy(
            cell["kind"],
            (cell["core"], cell["spurious"]),
            agree=cell["agree"],
            steps=cell["steps"],
            seed=cell["seed"],
        )

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Theorem by theorem, then the digits."""
        one = [r for r in rows if r["part"] == "model 1"]
        captions = [r for r in rows if r["part"] == "captions 1"]
        two = [r for r in rows if r["part"] == "model 2"]
        rich = [r for r in rows if r["part"] == "captions 2"]
        digits = [r for r in rows if r["part"] == "digits"]
        threshold = models.least_classes(ALPHA, BETA)
        agree = max(r["agree"] for r in one)
        theory, theory_against = models.contrastive_accuracy_1(agree, CORE, SPURIOUS)
        ours = _mean(one, "contrastive", agree=agree)
        above = [r["contrastive"] for r in two if r["m"] > threshold]
        below = [r["contrastive"] for r in two if r["m"] < threshold]
        pi = models.least_mentioned(max(r["m"] for r in rich), ALPHA, BETA)
        richer = [r["contrastive"] for r in rich if r["pi"] > pi]
        poorer = [r["contrastive"] for r in rich if r["pi"] < pi]
        cores = {r["core"] for r in captions}
        shade = _mean(captions, "against", spurious=1.0) - _mean(captions, "against", spurious=0.0)
        linear = [abs(r["against"] - r["theory"]) for r in captions]
        printed = [abs(r["against"] - r["printed"]) for r in captions]
        findings = [
            f"Data model 1, p_spu = {agree:g}: contrastive {ours:.3f} (closed form {theory:.3f}, "
            f"the paper: at least .81), supervised {_mean(one, 'supervised', agree=agree):.3f} "
            f"(at most 2/3), best possible {models.best_accuracy_1(CORE):.3f}; where the spurious "
            f"sign disagrees {_mean(one, 'against', agree=agree):.3f} (closed form "
            f"{theory_against:.3f}) against {_mean(one, 'supervised_against', agree=agree):.3f}.",
            f"Captions in data model 1, where the sign disagrees: accuracy goes from "
            f"{_mean(captions, 'against', core=min(cores)):.3f} to "
            f"{_mean(captions, 'against', core=max(cores)):.3f} as pi_core grows, and changes by "
            f"{shade:+.3f} with pi_spu. Mean difference from a variance weight linear in pi_core "
            f"{np.mean(linear):.3f}, from the square that Theorem 5.2 prints "
            f"{np.mean(printed):.3f}.",
            f"Data model 2: the threshold is m = {threshold:.0f}; contrastive accuracy is at "
            f"least {min(above, default=nan):.3f} above it and at most "
            f"{max(below, default=nan):.3f} below; supervised "
            f"{max(r['supervised'] for r in two):.3f} at most (the paper: at most .60).",
            f"Captions in data model 2 (m = {max(r['m'] for r in rich)}): threshold pi = {pi:.3f}; "
            f"accuracy at least {min(richer, default=nan):.3f} above, at most "
            f"{max(poorer, default=nan):.3f} below.",
            *_digit_findings(digits),
        ]
        return Summary(
            findings, [_digit_table(digits)], {"threshold_m": threshold, "threshold_pi": pi}
        )

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Captions in model 1, classes in model 2, digits."""
        from studies.plots import labels, line, panels

        figure, (first, second, third) = panels(
            3,
            ["data model 1: sign disagrees", "data model 2", "coloured digits, colours at random"],
        )
        captions = [r for r in rows if r["part"] == "captions 1"]
        cores = sorted({r["core"] for r in captions})
        for style, spurious in enumerate((0.0, 1.0)):
            values = [_mean(captions, "against", core=c, spurious=spurious) for c in cores]
            line(first, cores, values, style, f"pi_spu = {spurious:g}")
        for style, name in ((2, "theory"), (3, "printed")):
            values = [_mean(captions, name, core=c) for c in cores]
            label = "weight linear in pi_core" if name == "theory" else "Theorem 5.2 as printed"
            line(first, cores, values, style, label, marker=None)
        labels(first, "pi_core", "accuracy")
        two = [r for r in rows if r["part"] == "model 2"]
        ms = sorted({r["m"] for r in two})
        for style, name in enumerate(("contrastive", "supervised")):
            line(second, ms, [_mean(two, name, m=m) for m in ms], style, name)
        second.axvline(models.least_classes(ALPHA, BETA), color="#777777", linewidth=1)
        labels(second, "classes m", "accuracy")
        digits = [r for r in rows if r["part"] == "digits"]
        learned = [r for r in digits if r["kind"] == "contrastive"]
        cores = sorted({r["core"] for r in learned})
        for style, spurious in enumerate(sorted({r["spurious"] for r in learned})):
            values = [_mean(learned, "test", core=c, spurious=spurious) for c in cores]
            line(third, cores, values, style, f"contrastive, pi_spu = {spurious:g}")
        flat = _mean([r for r in digits if r["kind"] == "supervised"], "test")
        third.axhline(flat, color="#777777", linewidth=1.2, label="supervised")
        labels(third, "pi_core", "accuracy")
        return figure


def _model_1(cell: Cell) -> Row:
    rng = np.random.default_rng([cell["seed"], round(1000 * cell["agree"]), 1])
    n, d = cell["samples"], 2 * cell["samples"]
    sigma = float(np.log(n))
    core, spurious = cell.get("core", 1.0), cell.get("spurious", 1.0)
    z, y, a = models.features_1(rng, n, cell["agree"], CORE, SPURIOUS)
    x = models.inputs(z, models.noise(rng, n, d, sigma))
    caption = models.masked_1(rng, z, y, a, core, spurious)
    text = models.inputs(caption, models.noise(rng, n, d, sigma))
    seen, label, sign = models.features_1(rng, cell["tests"], 0.5, CORE, SPURIOUS)
    test = models.inputs(seen, models.noise(rng, cell["tests"], d, sigma))
    prompt = np.zeros((1, d))
    prompt[0, 0] = 1.0  # the centre of class 1; that of class -1 is its negative
    right = np.sign(models.contrastive_scores(x, text, test, prompt)[:, 0]) == label
    row = {"contrastive": float(right.mean()), "against": float(right[sign != label].mean())}
    _, theory = models.masked_accuracy_1(cell["agree"], CORE, SPURIOUS, core)
    row |= {"theory": theory}
    row |= {"printed": models.printed_accuracy_1(cell["agree"], CORE, SPURIOUS, core)}
    if cell["part"] == "model 1":
        scores, separable = models.supervised_1(x, y, test)
        right = np.sign(scores) == label
        row |= {
            "supervised": float(right.mean()),
            "supervised_against": float(right[sign != label].mean()),
            "separable": float(separable),
        }
    return row


def _model_2(cell: Cell) -> Row:
    rng = np.random.default_rng([cell["seed"], cell["m"], 2])
    z, k, c = models.features_2(rng, cell["tests"], cell["m"], ALPHA, BETA, training=False)
    mentioned = cell.get("pi", 1.0)
    weights = models.contrastive_weights_2(cell["m"], ALPHA, BETA, mentioned)
    return {
        "contrastive": models.accuracy_2(z, k, c, weights),
        "supervised": models.accuracy_2(z, k, c, models.supervised_weights_2(ALPHA)),
    }


def _mean(rows: Sequence[Row], name: str, **where: Any) -> float:
    chosen = [r[name] for r in rows if all(r[key] == value for key, value in where.items())]
    return float(np.mean(chosen)) if chosen else float("nan")


def _digit_findings(digits: Sequence[Row]) -> list[str]:
    learned = [r for r in digits if r["kind"] == "contrastive"]
    plain = [r for r in digits if r["kind"] == "supervised"]
    rich = [r for r in learned if r["core"] == 1.0]
    poor = [r for r in learned if r["core"] == 0.0]

    def said(name: str) -> str:
        return (
            f"supervised {_spread([r[name] for r in plain])}, contrastive with captions that name "
            f"the digit {_spread([r[name] for r in rich])}, only the class "
            f"{_spread([r[name] for r in poor])}"
        )

    digit = _mean(rich, "test") - _mean(poor, "test")
    shade = _mean(learned, "test", spurious=1.0) - _mean(learned, "test", spurious=0.0)
    return [
        f"Coloured digits, colours at random (the paper's figure 2): {said('test')} (mean and sd). "
        f"Naming the digit changes it by {digit:+.3f}, naming the shade by {shade:+.3f}.",
        f"Where the colour disagrees: {said('against')}. With colours as in training: "
        f"{said('inside')}. What rich captions gain on the one they may lose on the other: a "
        "caption that names the digit says little about the class once its colour is known.",
    ]


def _digit_table(digits: Sequence[Row]) -> Table:
    rows = []
    for key in sorted({_kind(r) for r in digits}):
        chosen = [r for r in digits if _kind(r) == key]
        said = ["-", "-"] if key[0] == "supervised" else [f"{value:g}" for value in key[1:]]
        figures = [_spread([r[n] for r in chosen]) for n in ("inside", "test", "against")]
        rows.append([key[0], *said, *figures])
    colours = ["colours as in training", "colours at random", "colour disagrees"]
    return Table(
        "Coloured digits: accuracy, mean and sd over seeds",
        ["training", "pi_core", "pi_spu", *colours],
        rows,
    )


def _kind(row: Row) -> tuple[str, float, float]:
    return row["kind"], row["core"], row["spurious"]


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{np.mean(values):.3f}"
    return f"{np.mean(values):.3f} ({np.std(values, ddof=1):.3f})"
