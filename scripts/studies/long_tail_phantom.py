"""The long-tailed study of section 3.1 on images of the phantom, without their reports."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from medclip_debias.config import PrepareSettings, Settings
from medclip_debias.errors import UserError
from medclip_debias.experiments.differences import mean_sd, with_interval
from medclip_debias.experiments.experiment import Cell, Row, Summary, Table
from medclip_debias.files import atomic_folder
from studies.long_tail import KINDS
from studies.long_tail_images import Floats, Integers
from studies.study import TRAININGS_MOVE, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from medclip_debias.data.store import PreparedSet

TYPES = (
    *("effusion", "cardiomegaly", "nodule", "line"),
    *("pneumonia", "edema", "pneumothorax", "atelectasis"),
)
"""The eight finding types that come in several forms, so that there are enough images of each.

The second four are the ones that are subsampled. Every other type is too rare for a class.
"""
RARE = (4, 5, 6, 7)


class LongTailPhantomSettings(Settings):
    """Grid, and the phantom; ``labels`` are the shares of labels that the linear probe sees."""

    studies: int = Field(12000, ge=400)
    test_studies: int = Field(3000, ge=100)
    size: int = Field(32, ge=16)
    regime: str = "easy"
    shares: tuple[float, ...] = (0.1, 0.25, 0.5)
    kinds: tuple[str, ...] = tuple(KINDS)
    labels: tuple[float, ...] = (1.0, 0.1)
    steps: int = Field(600, ge=1)
    batch: int = Field(64, ge=4)
    temperature: float = Field(0.5, gt=0)
    seeds: int = Field(5, ge=1)
    seconds_per_step: float = Field(0.06, gt=0, description="only for the prediction")


class LongTailPhantom(Study):
    """SimCLR with CL, DCL-low, DCL-high and DCL-true on subsampled finding types."""

    name: ClassVar[str] = "long-tail-phantom"
    title: ClassVar[str] = "Class probability by class: findings with a long tail"
    machines: ClassVar[str] = TRAININGS_MOVE
    source: ClassVar[str] = "Sample-specific debiasing, section 3.1"
    settings_class: ClassVar[type[Settings]] = LongTailPhantomSettings
    about: ClassVar[str] = """
As `long-tail`, on images of the phantom: frontal images whose findings are all of one type, of
eight types, 32 x 32 pixels, no reports. The phantom has equally frequent classes, in the
`easy` regime (findings plain), and every type is cut to the size of the smallest one, so that
before subsampling the types are equally frequent, as the classes of CIFAR-10 are; the test images
are balanced likewise. Of four types (pneumonia, edema, pneumothorax, atelectasis) a share r is
kept. SimCLR (resnet_tiny, mean of its regions; views by shift, contrast, noise) is trained with no
correction (CL), a constant eta as for a rare type (low) or a whole one (high), or each image's true
type probability (true). With K = 8 types, eta_low = (2 / K) r / (1 + r) and eta_high =
(2 / K) / (1 + r); the paper's K is 10.

A linear probe on all or a tenth of the labels is scored on the test images; chance is 1 / 8. Same
budget for all; a seed fixes the subset, the views and the start, so differences are paired; all
seeds have the same phantom, so intervals (not corrected for their number) are over training and
subsets, not over phantoms. A type
is not all there is to see in such an image: side, size and the patient's build differ within it,
and SimCLR may tell images by those.
"""

    @classmethod
    def quick(cls) -> LongTailPhantomSettings:
        """Two shares, two seeds, few steps."""
        return LongTailPhantomSettings(
            studies=600, test_studies=200, shares=(0.25, 0.5), steps=10, batch=32, seeds=2
        )

    def cells(self) -> list[dict[str, Any]]:
        """Share by kind by seed."""
        s = self.settings
        data = {n: getattr(s, n) for n in ("studies", "test_studies", "size", "regime")}
        common = {n: getattr(s, n) for n in ("steps", "batch", "temperature")}
        return [
            {
                **{"share": share, "kind": kind, "seed": seed},
                **{"labels": list(s.labels), "data": data, **common},
            }
            for seed in range(s.seeds)
            for share in s.shares
            for kind in s.kinds
        ]

    def seconds(self, cell: Cell) -> float:
        """Steps of two views, and the probe."""
        each = self.settings.seconds_per_step * cell["batch"] / 64
        return float(2 + each * cell["steps"])

    def shared(self, cell: Cell) -> Mapping[str, Any] | None:
        """The images."""
        return {"images of one type": dict(cell["data"])}

    def make_shared(self, wanted: Mapping[str, Any], folder: Path) -> None:
        """Make them."""
        make_images(wanted["images of one type"], folder)

    def measure(self, cell: Cell) -> Row:
        """Train and probe."""
        import torch

        from medclip_debias.losses import DebiasedContrastive, DebiasedSettings, TableEta
        from studies import long_tail_images as images
        from studies.simclr import fit

        torch.set_num_threads(1)
        pixels, labels, test, truth = load(self.shared_folder(cell))
        rng = np.random.default_rng([cell["seed"], 5])
        keep = long_tailed(labels, cell["share"], rng)
        eta = etas(cell["kind"], cell["share"], labels[keep])
        encoder = fit(
            pixels[keep],
            DebiasedContrastive(DebiasedSettings(eta=TableEta())),
            steps=cell["steps"],
            batch=min(cell["batch"], len(keep)),
            temperature=cell["temperature"],
            seed=cell["seed"],
            fields={"eta": eta},
        )
        found, other = encoder.features(pixels[keep]), encoder.features(test)
        row: Row = {}
        for share in cell["labels"]:
            values = images.probe(
                found, labels[keep], other, truth, share, cell["seed"], len(TYPES), RARE
            )
            for name, value in zip(("all", "rare", "whole"), values, strict=True):
                row[f"{name} at {share:g}"] = value
        return row

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Accuracies, and paired differences from CL over all r and seeds."""
        shares = sorted({r["share"] for r in rows})
        labels = sorted((float(s) for s in rows[0]["labels"]), reverse=True)
        kinds = [kind for kind in KINDS if any(r["kind"] == kind for r in rows)]
        tables = []
        for share in labels:
            for part, said in (("all", "all types"), ("rare", "subsampled types")):
                body = [
                    [
                        KINDS[k],
                        *(mean_sd(_values(rows, f"{part} at {share:g}", k, r)) for r in shares),
                    ]
                    for k in kinds
                ]
                title = f"Accuracy with {share:.0%} of the labels, {said}"
                tables.append(Table(title, ["", *(f"r = {r:g}" for r in shares)], body))
        findings, differences = _differences(rows, kinds, labels)
        return Summary(findings, tables, {"difference from CL": differences})

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Accuracy over r for each share of labels and on the rare types; bars are sd."""
        from studies.plots import labels as named
        from studies.plots import means_with_bars, panels

        shares = sorted({r["share"] for r in rows})
        labels = sorted((float(s) for s in rows[0]["labels"]), reverse=True)
        shown = [("all", s) for s in labels] + [("rare", labels[0])]
        said = {"all": "all types", "rare": "subsampled types"}
        figure, axes = panels(len(shown), [f"{said[p]}, {s:.0%} of the labels" for p, s in shown])
        for place, (one, (part, share)) in enumerate(zip(axes, shown, strict=True)):
            one.axhline(1 / len(TYPES), color="#aaaaaa", linewidth=0.8)
            for style, kind in enumerate(k for k in KINDS if any(r["kind"] == k for r in rows)):
                name = f"{part} at {share:g}"
                own = [_values(rows, name, kind, r) for r in shares]
                means_with_bars(one, shares, own, style, KINDS[kind], 0.01 * (style - 1.5))
            named(one, "share r kept of the subsampled types", "accuracy", legend=place == 0)
        return figure


# ----------------------------------------------------------------------------- the images


def make_images(data: Mapping[str, Any], folder: Path) -> None:
    """Make ``images.npz`` of balanced one-type images of a phantom, only once.

    Args:
        data: ``studies``, ``test_studies``, ``size`` and ``regime``.
        folder: gets the file; it is there whole or not at all.
    """
    if (folder / "images.npz").is_file():
        return
    import pandas as pd

    from medclip_debias.config import validate
    from medclip_debias.data.prepare import prepare
    from medclip_debias.phantom import PhantomSettings, generate

    given = {
        **{name: data[name] for name in ("studies", "test_studies", "regime")},
        # Equally frequent classes, about one in an image: the most images of one type.
        **{"tail_exponent": 0.0, "probability_scale": 0.16, "lateral_share": 0.0},
        **{"min_side": 128, "max_side": 160, "format": "jpg"},
    }
    settings = validate(PhantomSettings, given, "the study's data")
    with atomic_folder(folder) as work:
        tree, made = work / "tree", work / "prepared"
        generate(tree, settings, workers=1)
        prepared = prepare(tree, made, PrepareSettings(size=data["size"]), workers=1)
        truth = pd.read_parquet(tree / "truth" / "images.parquet").set_index("dicom_id")
        parts: dict[str, NDArray[Any]] = {}
        for name in ("train", "test"):
            rows, types = one_type(prepared, truth, name)
            parts[f"{name}_pixels"] = np.asarray(prepared.pixels[rows])
            parts[f"{name}_types"] = types
        np.savez_compressed(work / "images.npz", **parts)  # type: ignore[arg-type]
        shutil.rmtree(tree)
        shutil.rmtree(made)


def one_type(prepared: PreparedSet, truth: Any, split: str) -> tuple[NDArray[np.int64], Integers]:
    """Images of ``split`` whose findings are all of one of `TYPES`, equally many of each.

    Args:
        prepared: the prepared phantom.
        truth: its ``images.parquet``, by image.
        split: whose images.

    Returns:
        Rows in the prepared set, and the number of each one's type in `TYPES`. At most one image
        of a study is taken; of a type with more images than the rarest one, the first.

    Raises:
        UserError: a type has fewer than two images.
    """
    from medclip_debias.phantom.catalogue import CLASS_NAMES, CLASSES

    images = prepared.images[prepared.images["split"] == split].drop_duplicates("study_id")
    shown = truth.loc[images["image_id"].astype(str), list(CLASS_NAMES)].to_numpy(dtype=bool)
    types = list(dict.fromkeys(c.type for c in CLASSES))
    of_type = np.stack(
        [shown[:, [c.type == name for c in CLASSES]].any(axis=1) for name in types], axis=1
    )
    single = of_type.sum(axis=1) == 1
    found = [np.flatnonzero(single & of_type[:, types.index(name)]) for name in TYPES]
    least = min(len(places) for places in found)
    if least < 2:
        few = TYPES[[len(places) for places in found].index(least)]
        raise UserError(
            f"{least} images show {few} alone in the phantom's {split} split, and 2 are needed; "
            "raise 'studies' and 'test_studies'."
        )
    chosen = np.concatenate([places[:least] for places in found])
    numbers = np.repeat(np.arange(len(TYPES)), least)
    order = np.argsort(chosen)
    rows = images.index.to_numpy(dtype=np.int64)[chosen[order]]
    return rows, numbers[order].astype(np.int64)


def load(folder: Path) -> tuple[Floats, Integers, Floats, Integers]:
    """Training and test images ``[n, 1, S, S]`` in 0..1 with the numbers of their types."""
    with np.load(folder / "images.npz", allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    train, test = (
        (found[f"{name}_pixels"].astype(np.float32) / 255)[:, None] for name in ("train", "test")
    )
    return train, found["train_types"], test, found["test_types"]


def long_tailed(labels: Integers, share: float, rng: np.random.Generator) -> Integers:
    """`long_tail_images.long_tailed` for these types."""
    from studies import long_tail_images as images

    return images.long_tailed(labels, share, rng, len(TYPES), RARE)


def etas(kind: str, share: float, labels: Integers) -> Floats:
    """`long_tail_images.etas` for these types."""
    from studies import long_tail_images as images

    return images.etas(kind, share, labels, len(TYPES), RARE)


# --------------------------------------------------------------------------- what is said


def _values(rows: Sequence[Row], name: str, kind: str, share: float) -> list[float]:
    chosen = [r for r in rows if r["kind"] == kind and r["share"] == share]
    return [float(r[name]) for r in sorted(chosen, key=lambda r: r["seed"])]


def _differences(
    rows: Sequence[Row], kinds: Sequence[str], labels: Sequence[float]
) -> tuple[list[str], dict[str, list[float]]]:
    """Sentences, and of each kind and share of labels: mean difference to CL, 95% interval.

    Each seed gives one difference, its mean over r: the cells of one seed share their start.
    """
    from medclip_debias.evaluation.statistics import paired_seeds

    found: dict[str, list[float]] = {}
    said = []
    for share in labels:
        for part, where in (("all", "all types"), ("rare", "the subsampled types")):
            own = {kind: _by_seed(rows, f"{part} at {share:g}", kind) for kind in kinds}
            parts = []
            for kind in kinds:
                gap = None if kind == "none" else paired_seeds(own[kind], own.get("none", {}))
                if gap is None:
                    continue
                value, (low, high), _, _ = gap
                found[f"{kind}, {part} at {share:g}"] = [value, low, high]
                parts.append(f"{KINDS[kind]} {with_interval(value, (low, high), 4)}")
            if parts:
                said.append(
                    f"With {share:.0%} of the labels, {where}, accuracy against CL, mean over r: "
                    f"{'; '.join(parts)}."
                )
    if not said:
        return ["Too few seeds to compare the class probabilities."], found
    level = float(np.mean(list(_by_seed(rows, f"all at {labels[0]:g}", kinds[0]).values())))
    said.insert(
        0,
        f"{KINDS[kinds[0]]} reaches an accuracy of {level:.3f} with {labels[0]:.0%} of the labels; "
        f"chance is {1 / len(TYPES):.3f}.",
    )
    true = found.get(f"true, all at {labels[0]:g}")
    if true is not None:
        _, low, high = true
        judged = "helps" if low > 0 else "hurts" if high < 0 else "makes no difference that shows"
        said.append(
            f"The true type probability {judged} with {labels[0]:.0%} of the labels. The paper "
            "finds it consistently better than CL and both constants, on CIFAR-10."
        )
    return said, found


def _by_seed(rows: Sequence[Row], name: str, kind: str) -> dict[int, float]:
    """Mean over r of each seed."""
    seeds = sorted({int(r["seed"]) for r in rows if r["kind"] == kind})
    return {
        seed: float(np.mean([r[name] for r in rows if (r["kind"], r["seed"]) == (kind, seed)]))
        for seed in seeds
    }
