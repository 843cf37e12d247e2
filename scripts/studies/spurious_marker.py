"""A marker that comes with a finding in training and not in test: who learns the shortcut?

The marker is a square in a corner of the image; in training and validation it comes with the
finding more or less often, in the test split with every second image whatever it shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.metrics import roc_curve
from torch import Tensor

from medclip_debias.evaluation.catalogue import Metric
from medclip_debias.evaluation.metrics import auc
from medclip_debias.evaluation.protocol import rows_of_split
from medclip_debias.experiments.differences import SeedTables, by_method
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.reporting.tables import Table
from medclip_debias.training.step import Trainer
from studies.classifier import Score, fit
from studies.phantom import Phantom, PhantomStudy, class_prompts, minus, train_model, trainer_of
from studies.study import lines, means, split

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Shown = tuple[list[int], Bools, Bools]
"""Rows of the images judged, whether the finding is there, whether the marker is."""
SUPERVISED, CONTRASTIVE, EXCLUDED = "supervised", "contrastive", "same class excluded"
SHOWN = {
    "auc": "AUC",
    "auc_against": "AUC against the tie",
    "auc_marker": "reads the marker",
    "worst_group": "worst group",
}
JUDGED = ("auc_against", "worst_group")
TABLES = SeedTables({name: Metric("", name, title, "", "share") for name, title in SHOWN.items()})


class SpuriousMarker(PhantomStudy):
    """Supervised, contrastive, and contrastive without pairs of one class."""

    name: ClassVar[str] = "spurious-marker"

    def axes(self) -> list[dict[str, Any]]:
        finding = self.settings.finding
        return [
            {"tie": tie, "finding": finding}
            | {"data": {"dials": {"marker_class": finding, "marker_correlation": tie}}}
            for tie in self.settings.ties
        ]

    def measure(self, cell: Cell) -> Row:
        torch.set_num_threads(1)
        place, classified = self.place(cell), cell["loss"]["kind"] == "supervised"
        loss = {"kind": "infonce"} if classified else cell["loss"]
        with tempfile.TemporaryDirectory() as scratch:
            trainer = trainer_of(place, {**cell, "loss": loss}, Path(scratch))
            arm = supervised if classified else contrastive
            return judged(place, cell["finding"], arm(trainer, place, cell["finding"]))

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Every arm at each tie, seed by seed at the closest, and who pays less for a tie."""
        none, *ties = sorted({row["tie"] for row in rows})
        own = {key: by_method(part) for key, part in split(rows, "tie").items()}
        lost = {
            (arm, tie): minus(own[tie][arm], own[none][arm], JUDGED)
            for arm, tie in product((CONTRASTIVE, SUPERVISED, EXCLUDED), ties)
        }
        pairs = {
            f"minus {other}, tie {tie:g}": (lost[CONTRASTIVE, tie], lost[other, tie])
            for other, tie in product((SUPERVISED, EXCLUDED), ties)
        }
        seeds = [
            [arm, *(f"{row['auc_against']:.2f}" for row in of_seed.values())]
            for arm, of_seed in own[ties[-1]].items()
        ]
        each = ["", *(f"seed {seed}" for seed in own[none][CONTRASTIVE])]
        return [
            means("Mean (sd) over seeds", rows, {"tie": "tie", "method": "arm"}, SHOWN),
            Table(f"{SHOWN['auc_against']} of {ties[-1]:g}, by seed", each, seeds),
            TABLES.contrast_table(f"What a tie changes: {CONTRASTIVE} against", pairs, JUDGED),
        ]

    def figure(self, rows: Sequence[Row]) -> Figure:
        return lines({title: (rows, metric) for metric, title in SHOWN.items()}, "tie", "method")


# ------------------------------------------------------------------------------ the arms


def contrastive(trainer: Trainer, place: Phantom, finding: str) -> Score:  # noqa: ARG001
    """Train image-text; the score is the similarity to "X" minus that to "no X"."""
    model, _ = train_model(trainer)
    sides = class_prompts().classes[finding]

    def difference(pixels: Tensor) -> Tensor:
        vectors = model.encode_sentences([*sides.positive, *sides.negative])
        scores = model.score(model.encode_images(pixels), vectors)
        return scores[:, 0] - scores[:, 1]

    return difference


def supervised(trainer: Trainer, place: Phantom, finding: str) -> Score:
    """Train the same image encoder as a classifier on the same batches; the score is its logit.

    Images that show the finding in another form have no part in the loss.
    """
    table = place.shown([int(own[0]) for own in trainer.studies.rows])
    wanted = table[finding].astype(np.float32).mask(table[other_forms(finding)].any(axis=1))
    score = fit(trainer, torch.tensor(wanted.to_numpy())[:, None])
    return lambda pixels: score(pixels)[:, 0]


# --------------------------------------------------------------------------- the measuring


def other_forms(finding: str) -> list[str]:
    """The other classes of the type of ``finding``."""
    kind = CLASSES[INDEX[finding]].type
    return [c.name for c in CLASSES if c.type == kind and c.name != finding]


def shown_in(place: Phantom, split: str, finding: str) -> Shown:
    """Frontal images of a split, but for those that show the finding in another form."""
    rows = rows_of_split(place.data, split)
    table = place.shown(rows)
    kept = (table["view"] != "LATERAL") & ~table[other_forms(finding)].any(axis=1)
    there, marker = (table.loc[kept, name].to_numpy(dtype=bool) for name in (finding, "marker"))
    return np.asarray(rows)[kept.to_numpy()].tolist(), there, marker


@torch.inference_mode()
def judged(place: Phantom, finding: str, score: Score) -> dict[str, float]:
    """`metrics` of a model by its score."""
    found: list[Any] = []
    for part in ("validate", "test"):
        rows, there, marker = shown_in(place, part, finding)
        pixels = torch.from_numpy(np.asarray(place.data.pixels[rows]))
        scores = torch.cat([score(some).double() for some in pixels.split(64)]).numpy()
        found += [there, scores] if part == "validate" else [there, marker, scores]
    return metrics(*found)


def metrics(
    validate: Bools, others: Floats, there: Bools, marker: Bools, scores: Floats
) -> dict[str, float]:
    """How well scores of test images tell the finding, with and without the marker's help.

    ``validate`` and ``others`` are truth and scores of the images on which the threshold is chosen,
    where the marker is tied to the finding as in training. ``auc_against``: finding without marker
    against marker without finding, the pairs that a model that reads the marker gets wrong;
    ``auc_marker``: how well the score tells the marker among images without finding;
    ``worst_group``: the lowest share of right decisions in the four groups. What a split cannot
    tell is 0.5, and left out of the worst group.
    """
    cut = 0.0
    if validate.any() and not validate.all():
        false, true, cuts = roc_curve(validate, others)
        cut = cuts[np.argmax(true - false)]  # the best balanced accuracy
    right = (scores >= cut) == there
    groups = [right[(there == f) & (marker == m)] for f in (True, False) for m in (True, False)]
    against = there != marker
    pairs = {
        "auc": (there, scores),
        "auc_against": (there[against], scores[against]),
        "auc_marker": (marker[~there], scores[~there]),
    }
    found = {name: float(np.nan_to_num(auc(*pair), nan=0.5)) for name, pair in pairs.items()}
    return found | {"worst_group": float(min(own.mean() for own in groups if own.size))}
