"""Contrastive learning of images whose classes are of very different size (section 3.1).

On digits, and on images of the phantom without their reports.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from medclip_debias.config import PrepareSettings, validate
from medclip_debias.data.prepare import prepare
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.experiments.experiment import Cell, Row, Shared
from medclip_debias.losses import DebiasedContrastive, DebiasedSettings, TableEta
from medclip_debias.phantom import PhantomSettings, generate
from medclip_debias.phantom.catalogue import CLASS_NAMES, CLASSES
from medclip_debias.reporting.tables import Table
from studies.images import Floats, Integers, Split, digits, fit, probe
from studies.study import Study, by_seed, gap, lines, means, split

KINDS = {"none": "CL", "low": "DCL, eta low", "high": "DCL, eta high", "true": "DCL, eta true"}
TYPES = (
    *("effusion", "cardiomegaly", "nodule", "line"),
    *("pneumonia", "edema", "pneumothorax", "atelectasis"),
)
"""The finding types of the phantom that come in several forms; the second four are subsampled."""


class LongTail(Study):
    """SimCLR with CL, DCL-low, DCL-high and DCL-true; of the second half of classes a share."""

    name: ClassVar[str] = "long-tail"
    parts: ClassVar[dict[str, str]] = {"all": "all classes", "rare": "subsampled classes"}

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        names = ("data", "steps", "batch", "temperature", "labels")
        common = {name: getattr(s, name) for name in names if hasattr(s, name)}
        axes = product(range(s.seeds), s.shares, s.kinds)
        return [
            {"share": share, "kind": kind, "seed": seed, **common} for seed, share, kind in axes
        ]

    def images(self, cell: Cell) -> Split:  # noqa: ARG002
        return digits()

    def measure(self, cell: Cell) -> Row:
        torch.set_num_threads(1)
        pixels, labels, test, truth = self.images(cell)
        classes = len(np.unique(truth))
        keep = long_tailed(labels, cell["share"], np.random.default_rng([cell["seed"], 5]), classes)
        encoder = fit(
            pixels[keep],
            DebiasedContrastive(DebiasedSettings(eta=TableEta())),
            steps=cell["steps"],
            batch=min(cell["batch"], len(keep)),
            temperature=cell["temperature"],
            seed=cell["seed"],
            fields={"eta": etas(cell["kind"], cell["share"], labels[keep], classes)},
        )
        found, other = encoder.features(pixels[keep]), encoder.features(test)
        row: Row = {}
        for share in cell["labels"]:
            rare = tuple(range(classes // 2, classes))
            values = probe(found, labels[keep], other, truth, share, cell["seed"], rare)
            names = (f"{part} at {share:g}" for part in self.parts)
            row |= dict(zip(names, values, strict=True))
        return row

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        kinds = split(rows, "kind")
        plain, *others = [kind for kind in KINDS if kind in kinds]
        names = {
            f"{part} at {share:g}": f"{share:.0%} of the labels, {title}"
            for share, (part, title) in product(_labels(rows), self.parts.items())
        }
        gaps = [
            [of, *(gap(by_seed(kinds[o], name), by_seed(kinds[plain], name), 4) for o in others)]
            for name, of in names.items()
        ]
        own = [{**row, "kind": KINDS[row["kind"]]} for row in rows]
        return [
            means("Accuracy", own, {"kind": "", "share": "r"}, names),
            Table("Minus CL, mean over r", ["", *(KINDS[kind] for kind in others)], gaps),
        ]

    def figure(self, rows: Sequence[Row]) -> Figure:
        named = [{**row, "kind": KINDS[row["kind"]]} for row in rows]
        shown = {f"{s:.0%} of the labels": (named, f"all at {s:g}") for s in _labels(rows)}
        return lines(shown, "share", "kind")


def _labels(rows: Sequence[Row]) -> list[float]:
    return sorted((float(share) for share in rows[0]["labels"]), reverse=True)


class LongTailPhantom(LongTail):
    """The same on images of the phantom whose findings are all of one type."""

    name: ClassVar[str] = "long-tail-phantom"
    parts: ClassVar[dict[str, str]] = {"all": "all types", "rare": "subsampled types"}
    seconds_a_cell: ClassVar[float] = 40.0

    def shared(self, cell: Cell) -> Shared:
        return Shared({"images of one type": dict(cell["data"])}, make_images)

    def images(self, cell: Cell) -> Split:
        with np.load(self.shared_folder(cell) / "images.npz", allow_pickle=False) as file:
            train, types, test, truth = (
                file[f"{part}_{what}"] for part in ("train", "test") for what in ("pixels", "types")
            )
        pixels = [(part.astype(np.float32) / 255)[:, None] for part in (train, test)]
        return pixels[0], types, pixels[1], truth


def long_tailed(
    labels: Integers, share: float, rng: np.random.Generator, classes: int = 10
) -> Integers:
    """Rows that stay when of the second half of classes a ``share`` is kept, at least two each."""
    kept = []
    for number in range(classes):
        rows = rng.permutation(np.flatnonzero(labels == number))
        rare = number >= classes // 2
        kept.append(rows[: max(2, round(share * len(rows)))] if rare else rows)
    return np.sort(np.concatenate(kept))


def etas(kind: str, share: float, labels: Integers, classes: int = 10) -> Floats:
    """Class probability of each image: the paper's eta_low, eta_high, or the true one.

    With K classes ``eta_low = 2 / K r / (1 + r)`` is that of a subsampled class, ``eta_high = 2 / K
    / (1 + r)`` that of a whole one (section 3.1); ``none`` is plain contrastive learning.
    """
    low, high = (2 / classes * part / (1 + share) for part in (share, 1))
    known = {"none": 0.0, "low": low, "high": high}
    true = np.where(labels >= classes // 2, low, high)
    eta = true if kind == "true" else np.full(len(labels), known[kind])
    return eta.astype(np.float32)


# ------------------------------------------------------------------- images of the phantom


def make_images(content: Mapping[str, Any], folder: Path) -> None:
    """Write ``images.npz`` of balanced one-type images of a phantom into ``folder``."""
    data, tree, made = content["images of one type"], folder / "tree", folder / "prepared"
    # Equally frequent classes, about one in an image: the most images of one type.
    dials = {"tail_exponent": 0.0, "probability_scale": 0.16, "lateral_share": 0.0}
    dials |= {"min_side": 128, "max_side": 160}
    sizes = {name: data[name] for name in ("studies", "test_studies", "regime")}
    settings = validate(PhantomSettings, sizes | dials | {"format": "jpg"}, "the study's data")
    generate(tree, settings, workers=1)
    prepared = prepare(tree, made, PrepareSettings(size=data["size"]), workers=1)
    truth = pd.read_parquet(tree / "truth" / "images.parquet").set_index("dicom_id")
    parts: dict[str, NDArray[Any]] = {}
    for name in ("train", "test"):
        rows, types = one_type(prepared, truth, name)
        parts |= {f"{name}_pixels": np.asarray(prepared.pixels[rows]), f"{name}_types": types}
    np.savez_compressed(folder / "images.npz", **parts)  # type: ignore[arg-type]
    shutil.rmtree(tree)
    shutil.rmtree(made)


def one_type(prepared: PreparedSet, truth: Any, split: str) -> tuple[Integers, Integers]:
    """Images of ``split`` whose findings are all of one of `TYPES`, equally many of each.

    Rows in the prepared set, and the number of each one's type in `TYPES`. At most one image of a
    study is taken; of a type with more images than the rarest one, the first. ``truth`` is the
    phantom's ``images.parquet``, by image.
    """
    images = prepared.images[prepared.images["split"] == split].drop_duplicates("study_id")
    shown = truth.loc[images["image_id"].astype(str), list(CLASS_NAMES)].set_axis(images.index)
    types = shown.T.groupby([c.type for c in CLASSES]).any().T
    single = types[types.sum(axis=1) == 1].idxmax(axis=1)
    least = single.value_counts().reindex(TYPES, fill_value=0).min()
    if least < 2:
        raise UserError(
            f"{split}: fewer than 2 images show a type alone; raise 'studies' and 'test_studies'."
        )
    kept = single[single.isin(TYPES)].groupby(single).head(least)
    return kept.index.to_numpy(dtype=np.int64), kept.map(TYPES.index).to_numpy(dtype=np.int64)
