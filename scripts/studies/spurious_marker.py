"""A marker that comes with a finding in training and not in test: who learns the shortcut?

The marker is a square in a corner of the image; in training and validation it comes with the
finding more or less often, in the test split with every second image whatever it shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from medclip_debias.evaluation.metrics import auc
from medclip_debias.evaluation.protocol import rows_of_split
from medclip_debias.evaluation.statistics import ALPHA, holm, paired_seeds
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.reporting.tables import Table
from medclip_debias.training.optim import make_optimizer
from medclip_debias.training.step import Trainer
from studies.classifier import learn
from studies.phantom import Phantom, PhantomStudy, class_prompts, train_model, trainer_of
from studies.study import by_seed, gap, lines, split, spread, where
from supervised import Classifier

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Shown = tuple[list[int], Bools, Bools]
"""Rows of the images judged, whether the finding is there, whether the marker is."""
Score = Callable[[Tensor], Tensor]
"""From prepared pixels to one score an image."""
SUPERVISED, CONTRASTIVE, EXCLUDED = "supervised", "contrastive", "same class excluded"
SHOWN = {
    "auc_validate": "AUC, marker as in training",
    "auc": "AUC",
    "auc_with": "AUC, with marker",
    "auc_without": "AUC, without marker",
    "auc_against": "AUC against the tie",
    "auc_marker": "reads the marker",
    "accuracy": "bal. acc.",
    "worst_group": "worst group",
}


class SpuriousMarker(PhantomStudy):
    """Supervised, contrastive, and contrastive without pairs of one class."""

    name: ClassVar[str] = "spurious-marker"
    version: ClassVar[int] = 1

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        same = {"kind": "remove_by_label", "match": "equal", "labels": [s.label]}
        arms: dict[str, Any] = {
            SUPERVISED: {"kind": "supervised"},
            CONTRASTIVE: {"kind": "infonce"},
            EXCLUDED: {"kind": "infonce", "negatives": [same]},
        }
        return [
            self.cell(
                loss,
                seed,
                data={"dials": {"marker_class": s.finding, "marker_correlation": tie}},
                **{"method": name, "candidate": name, "tie": tie, "finding": s.finding},
            )
            for seed, tie, (name, loss) in product(s.seeds, s.ties, arms.items())
        ]

    def measure(self, cell: Cell) -> Row:
        torch.set_num_threads(1)
        place, finding = self.place(cell), cell["finding"]
        classified = cell["loss"]["kind"] == "supervised"
        loss = {"kind": "infonce"} if classified else cell["loss"]
        with tempfile.TemporaryDirectory() as scratch:
            trainer = trainer_of(place, cell["train"], loss, cell["seed"], Path(scratch))
            arm = supervised if classified else contrastive
            return judged(place, finding, arm(trainer, place, finding))

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Every metric of every arm and tie, what the closest tie costs, and who pays less."""
        head, found = ["", *SHOWN.values()], []
        for tie, of_tie in split(rows, "tie").items():
            body = [
                [arm, *(spread([*own.values()], m) for m in SHOWN)]
                for arm, own in by_method(of_tie).items()
            ]
            found.append(Table(f"Tie {tie:g}: mean (sd) over seeds", head, body))
        least, *_, most = ties = sorted({row["tie"] for row in rows})
        body = [
            [arm, *(gap(_of(rows, arm, most, m), _of(rows, arm, least, m)) for m in SHOWN)]
            for arm in (SUPERVISED, CONTRASTIVE, EXCLUDED)
        ]
        found.append(Table(f"Tie {most:g} minus tie {least:g}", head, body))
        return [*found, _contrasts(rows, ties)]

    def figure(self, rows: Sequence[Row]) -> Figure:
        shown = ("auc", "auc_against", "auc_marker", "worst_group")
        return lines({SHOWN[m]: (rows, m) for m in shown}, "tie", "method")


def _of(rows: Sequence[Row], arm: str, tie: float, metric: str) -> dict[int, float]:
    return by_seed(where(rows, method=arm, tie=tie), metric)


def _contrasts(rows: Sequence[Row], ties: Sequence[float]) -> Table:
    """Contrastive minus the others; a star for what a tie changes, all comparisons one family."""
    body: list[list[str]] = []
    ps: list[float | None] = []
    for other, metric in product((SUPERVISED, EXCLUDED), ("auc_against", "worst_group")):
        free, *tied = ([_of(rows, arm, t, metric) for arm in (CONTRASTIVE, other)] for t in ties)
        for tie, own in zip(ties[1:], tied, strict=True):
            one, two = ({s: a[s] - b[s] for s in a} for a, b in zip(own, free, strict=True))
            found = paired_seeds(one, two)
            ps.append(None if found is None else found[2])
            body.append(
                [f"minus {other}, {SHOWN[metric]}, tie {tie:g}", gap(own[0], own[1]), gap(one, two)]
            )
    for row, p in zip(body, holm(ps), strict=True):
        row[-1] += " *" if p is not None and p < ALPHA else ""
    return Table(f"{CONTRASTIVE} against", ["", "at the tie", "in what the tie changes"], body)


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

    Binary cross-entropy against what the image shows. Images that show the finding in another form
    have no part in the loss. The optimiser is the image-text training's own.
    """
    settings = trainer.settings.train
    torch.manual_seed(settings.seed)
    network = Classifier(trainer.model.image_encoder, 1)
    table = place.shown([int(own[0]) for own in trainer.studies.rows])
    clear = ~table[other_forms(finding)].to_numpy(dtype=bool).any(axis=1)
    target, weight = (
        torch.from_numpy(values.astype(np.float32)) for values in (table[finding].to_numpy(), clear)
    )

    def loss(logits: Tensor, studies: Tensor) -> Tensor:
        chosen, wanted = weight[studies], target[studies]
        total = binary_cross_entropy_with_logits(
            logits[:, 0], wanted, weight=chosen, reduction="sum"
        )
        return total / chosen.sum().clamp(min=1)

    optimizer = make_optimizer(trainer.model, [network.head], settings)
    score = learn(trainer, network, optimizer, loss)
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
    other = table[other_forms(finding)].to_numpy(dtype=bool).any(axis=1)
    kept = (table["view"] != "LATERAL").to_numpy() & ~other
    there, marker = (table.loc[kept, name].to_numpy(dtype=bool) for name in (finding, "marker"))
    return np.asarray(rows)[kept].tolist(), there, marker


@torch.inference_mode()
def judged(place: Phantom, finding: str, score: Score) -> dict[str, float]:
    """`metrics` of a model by its score."""
    found: list[tuple[Bools, Bools, Floats]] = []
    for part in ("test", "validate"):
        rows, there, marker = shown_in(place, part, finding)
        pixels = torch.from_numpy(np.asarray(place.data.pixels[rows]))
        parts = [score(some).double() for some in pixels.split(64)]
        found.append((there, marker, torch.cat(parts).numpy()))
    (there, marker, scores), (validate, _, others) = found
    return metrics(there, marker, scores, validate, others)


def metrics(
    there: Bools, marker: Bools, scores: Floats, validate: Bools, others: Floats
) -> dict[str, float]:
    """How well scores of test images tell the finding, with and without the marker's help.

    ``validate`` and ``others`` are truth and scores of the images on which the threshold is chosen,
    where the marker is tied to the finding as in training. ``auc_against``: finding without marker
    against marker without finding, the pairs that a model that reads the marker gets wrong;
    ``auc_marker``: how well the score tells the marker among images without finding;
    ``worst_group``: the lowest share of right decisions in the four groups. What a split cannot
    tell is 0.5, and left out of the worst group.
    """
    right = (scores > best_threshold(validate, others)) == there
    groups = [right[(there == f) & (marker == m)] for f in (True, False) for m in (True, False)]
    sides = [right[there == f] for f in (True, False)]
    against = there != marker
    return {
        "auc": _auc(there, scores),
        "auc_with": _auc(there[marker], scores[marker]),
        "auc_without": _auc(there[~marker], scores[~marker]),
        "auc_against": _auc(there[against], scores[against]),
        "auc_marker": _auc(marker[~there], scores[~there]),
        "auc_validate": _auc(validate, others),
        "accuracy": float(np.mean([side.mean() for side in sides if side.size])),
        "worst_group": float(min(own.mean() for own in groups if own.size)),
    }


def best_threshold(truth: Bools, scores: Floats) -> float:
    """The midpoint between neighbouring scores with the best balanced accuracy, the lowest such.

    0 where ``truth`` has one value only.
    """
    if truth.all() or not truth.any():
        return 0.0
    values = np.unique(scores)
    cuts = np.concatenate([[values[0] - 1], (values[1:] + values[:-1]) / 2])
    above = scores[None, :] > cuts[:, None]
    balanced = above[:, truth].mean(axis=1) + (~above)[:, ~truth].mean(axis=1)
    return float(cuts[int(np.argmax(balanced))])


def _auc(truth: Bools, scores: Floats) -> float:
    value = auc(truth, scores)
    return 0.5 if np.isnan(value) else value
