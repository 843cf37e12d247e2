"""Contrastive learning of images whose classes are of very different size (section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from medclip_debias.config import Settings
from medclip_debias.experiments.experiment import Cell, Row, Summary, Table
from studies.study import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"none": "CL", "low": "DCL, eta low", "high": "DCL, eta high", "true": "DCL, eta true"}


class LongTailSettings(Settings):
    """Grid; ``labels`` are the shares of labels that the linear probe sees."""

    data: Literal["digits", "cifar10"] = "digits"
    root: str | None = None
    shares: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
    kinds: tuple[str, ...] = tuple(KINDS)
    labels: tuple[float, ...] = (1.0, 0.1, 0.03)
    steps: int = Field(1000, ge=1)
    batch: int = Field(128, ge=4)
    temperature: float = Field(0.5, gt=0)
    picture_share: float = 0.1
    seeds: int = Field(10, ge=1)


class LongTail(Study):
    """SimCLR with CL, DCL-low, DCL-high and DCL-true on a subsampled set."""

    name: ClassVar[str] = "long-tail"
    title: ClassVar[str] = "Class probability by class: images with a long tail"
    source: ClassVar[str] = "Sample-specific debiasing, section 3.1, figures 2 and 4"
    settings_class: ClassVar[type[Settings]] = LongTailSettings
    machines: ClassVar[str] = """\
**Other machines.** Ten cells, trained with the libraries held to the instructions of a
processor without AVX-512, differ by at most .017 in the accuracy of all classes at one share and
.048 in that of the rare ones ([how](index.md#other-machines))."""
    about: ClassVar[str] = """
Of five of ten classes a share r is kept; SimCLR is trained on what is left with no correction (CL),
a constant eta as for a rare class (low) or a whole one (high), or each image's true class
probability (true). A linear probe on all or a few labels is scored on the balanced test set. By
default the images are scikit-learn's 8 x 8 digits and the encoder has two layers;
`data=cifar10 root=FOLDER` takes CIFAR-10 and a ResNet-18 (for a GPU). Same budget for all; a seed
fixes the subset, the views and the start, so differences are paired. Intervals are over all r and
seeds together."""

    @classmethod
    def quick(cls) -> LongTailSettings:
        """Two shares, two seeds."""
        return LongTailSettings(shares=(0.1, 0.5), labels=(1.0, 0.1), steps=500, seeds=2)

    def cells(self) -> list[dict[str, Any]]:
        """Share by kind by seed."""
        s = self.settings
        common = {n: getattr(s, n) for n in ("data", "root", "steps", "batch", "temperature")}
        return [
            {
                "share": share,
                "kind": kind,
                "seed": seed,
                "labels": list(s.labels),
                "picture": seed == 0 and share == s.picture_share,
                **common,
            }
            for seed in range(s.seeds)
            for share in s.shares
            for kind in s.kinds
        ]

    def seconds(self, cell: Cell) -> float:
        """Proportional to steps; CIFAR-10 on a CPU is not meant."""
        each = 0.005 if cell["data"] == "digits" else 6.0
        return float(each * cell["steps"] * cell["batch"] / 128) + (4.0 if cell["picture"] else 0)

    def measure(self, cell: Cell) -> Row:
        """Train, probe, and for one seed a t-SNE picture of the test images."""
        from medclip_debias.losses import DebiasedContrastive, DebiasedSettings, TableEta
        from studies import long_tail_images as images
        from studies.simclr import fit

        pixels, labels, test, truth = images.load(cell["data"], cell["root"])
        rng = np.random.default_rng([cell["seed"], 5])
        keep = images.long_tailed(labels, cell["share"], rng)
        eta = images.etas(cell["kind"], cell["share"], labels[keep])
        objective = DebiasedContrastive(DebiasedSettings(eta=TableEta()))
        encoder = fit(
            pixels[keep],
            objective,
            steps=cell["steps"],
            batch=cell["batch"],
            temperature=cell["temperature"],
            seed=cell["seed"],
            fields={"eta": eta},
        )
        found, other = encoder.features(pixels[keep]), encoder.features(test)
        row: Row = {}
        for share in cell["labels"]:
            values = images.probe(found, labels[keep], other, truth, share, cell["seed"])
            for name, value in zip(("all", "rare", "whole"), values, strict=True):
                row[f"{name} at {share:g}"] = value
        if cell["picture"]:
            from sklearn.manifold import TSNE

            flat = TSNE(random_state=0, init="pca").fit_transform(other[:600])
            row["picture_points"] = np.round(flat, 2).tolist()
            row["picture_classes"] = truth[:600].tolist()
        return row

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Paired differences from CL, with intervals over seeds."""
        shares = sorted({r["share"] for r in rows})
        labels = sorted((float(s) for s in rows[0]["labels"]), reverse=True)
        findings, tables = [], []
        for share in labels:
            name = f"all at {share:g}"
            body = []
            for kind in (k for k in KINDS if any(r["kind"] == k for r in rows)):
                cells = [_spread(_values(rows, name, kind, r)) for r in shares]
                body.append([KINDS[kind], *cells])
            columns = ["", *(f"r = {r:g}" for r in shares)]
            tables.append(Table(f"Accuracy with {share:.0%} of the labels", columns, body))
        differences: dict[str, Any] = {}
        for share in labels:
            for kind in ("low", "high", "true"):
                name = f"all at {share:g}"
                gaps = [
                    _values(rows, name, kind, r) - _values(rows, name, "none", r) for r in shares
                ]
                mean, half = _interval(np.concatenate(gaps))
                differences[f"{kind} at {share:g}"] = [mean, mean - half, mean + half]
        for share in labels:
            parts = [
                f"{KINDS[kind]} {_signed(differences[f'{kind} at {share:g}'])}"
                for kind in ("low", "high", "true")
            ]
            findings.append(
                f"With {share:.0%} of the labels, against CL, over all r and seeds: "
                f"{'; '.join(parts)}."
            )
        findings.append(_verdict(differences, labels))
        return Summary(findings, tables, {"difference from CL": differences})

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Accuracy over r, over the share of labels, and two pictures."""
        from studies.plots import labels as named
        from studies.plots import line, panels

        shares = sorted({r["share"] for r in rows})
        labels = sorted(float(s) for s in rows[0]["labels"])
        pictures = [r for r in rows if "picture_points" in r and r["kind"] in ("none", "true")]
        middle = 0.5 if 0.5 in shares else shares[0]
        titles = [f"{labels[-2]:.0%} of the labels", f"r = {middle:g}"]
        titles += [f"{KINDS[r['kind']]}, r = {r['share']:g}; triangles are rare" for r in pictures]
        figure, axes = panels(2 + len(pictures), titles)
        for style, kind in enumerate(k for k in KINDS if any(r["kind"] == k for r in rows)):
            name = f"all at {labels[-2]:g}"
            means = [float(_values(rows, name, kind, r).mean()) for r in shares]
            line(axes[0], shares, means, style, KINDS[kind])
            means = [float(_values(rows, f"all at {s:g}", kind, middle).mean()) for s in labels]
            line(axes[1], labels, means, style, KINDS[kind])
        axes[1].set_xscale("log")
        named(axes[0], "share r kept of the rare classes", "accuracy")
        named(axes[1], "share of labels", "accuracy")
        for one, row in zip(axes[2:], pictures, strict=True):
            _scatter(one, row)
        return figure


def _scatter(axes: Any, row: Row) -> None:
    from studies.long_tail_images import RARE

    points, classes = np.array(row["picture_points"]), np.array(row["picture_classes"])
    greys = ["#000000", "#444444", "#777777", "#999999", "#bbbbbb"]
    for number in range(10):
        rare = number in RARE
        chosen = points[classes == number]
        colour = ["#D55E00", "#E69F00", "#CC79A7", "#8c2d04", "#fdae6b"] if rare else greys
        axes.scatter(*chosen.T, s=9, marker="^" if rare else "o", color=colour[number % 5])
    axes.set_xticks([])
    axes.set_yticks([])


def _values(rows: Sequence[Row], name: str, kind: str, share: float) -> Any:
    chosen = [r for r in rows if r["kind"] == kind and r["share"] == share]
    return np.array([r[name] for r in sorted(chosen, key=lambda r: r["seed"])])


def _spread(values: Any) -> str:
    sd = f" ({values.std(ddof=1):.3f})" if len(values) > 1 else ""
    return f"{values.mean():.3f}{sd}"


def _interval(values: Any) -> tuple[float, float]:
    """Mean and half the 95% t-interval."""
    from scipy.stats import t

    if len(values) < 2:
        return float(values.mean()), float("inf")
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(half)


def _signed(interval: Sequence[float]) -> str:
    mean, low, high = interval
    return f"{mean:+.4f} ({low:+.4f} to {high:+.4f})"


def _verdict(differences: dict[str, Any], labels: Sequence[float]) -> str:
    """Whether the true class probability helps, in the words of its own intervals."""
    parts = []
    for share in labels:
        _, low, high = differences[f"true at {share:g}"]
        said = "helps" if low > 0 else "hurts" if high < 0 else "makes no difference that is shown"
        parts.append(f"{said} with {share:.0%} of the labels")
    return (
        f"The true class probability {', '.join(parts)}. The paper finds it consistently better "
        "than CL and both constants, on CIFAR-10."
    )
