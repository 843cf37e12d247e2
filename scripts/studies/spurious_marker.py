"""A marker that comes with a finding in training and not in test: who learns the shortcut?

The marker is a square in a corner of the image; in training and validation it comes with the
finding more or less often, in the test split with every second image whatever it shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from medclip_debias.evaluation.metrics import auc
from medclip_debias.evaluation.statistics import holm, paired_seeds
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.reporting.tables import Table
from studies.phantom import (
    PhantomFolder,
    PhantomStudy,
    PhantomTraining,
    class_prompts,
    train_model,
    trainer_of,
    truth_of,
)
from studies.plots import lines
from studies.study import by_seed, gap, spread, where

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure
    from torch import Tensor

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.dual_encoder import DualEncoder

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Shown = tuple[list[int], Bools, Bools]
"""Rows of the images judged, whether the finding is there, whether the marker is."""
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
        import torch

        torch.set_num_threads(1)
        place, train = PhantomFolder(self.shared_folder(cell)), PhantomTraining(**cell["train"])
        if cell["loss"]["kind"] == "supervised":
            return supervised(place, train, cell["finding"], cell["seed"])
        return contrastive(place, train, cell["loss"], cell["finding"], cell["seed"])

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Every metric of every arm and tie, what the closest tie costs, and who pays less."""
        ties = sorted({row["tie"] for row in rows})
        head, found = ["", *SHOWN.values()], []
        for tie in ties:
            groups = by_method(where(rows, tie=tie)).items()
            body = [[arm, *(spread([*own.values()], m) for m in SHOWN)] for arm, own in groups]
            found.append(Table(f"Tie {tie:g}: mean (sd) over seeds", head, body))
        body = [
            [arm, *(gap(_of(rows, arm, ties[-1], m), _of(rows, arm, ties[0], m)) for m in SHOWN)]
            for arm in (SUPERVISED, CONTRASTIVE, EXCLUDED)
        ]
        title = f"Tie {ties[-1]:g} minus tie {ties[0]:g}"
        return [*found, Table(title, head, body), _contrasts(rows, ties)]

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
        first, *later = (
            [_of(rows, arm, tie, metric) for arm in (CONTRASTIVE, other)] for tie in ties
        )
        for tie, own in zip(ties[1:], later, strict=True):
            one, two = (
                {seed: value - before[seed] for seed, value in values.items()}
                for values, before in zip(own, first, strict=True)
            )
            found = paired_seeds(one, two)
            ps.append(None if found is None else found[2])
            name = f"minus {other}, {SHOWN[metric]}, tie {tie:g}"
            body.append([name, gap(own[0], own[1]), gap(one, two)])
    for row, p in zip(body, holm(ps), strict=True):
        row[-1] += " *" if p is not None and p < 0.05 else ""
    return Table(f"{CONTRASTIVE} against", ["", "at the tie", "in what the tie changes"], body)


# ------------------------------------------------------------------------------ the arms


def contrastive(
    place: PhantomFolder, train: PhantomTraining, loss: Mapping[str, Any], finding: str, seed: int
) -> dict[str, float]:
    """Train image-text; judge by the similarity to "X" minus that to "no X": see `metrics`."""
    with tempfile.TemporaryDirectory() as scratch:
        model, _ = train_model(place, train, loss, seed, "lse_nl", Path(scratch))
    sides = class_prompts().classes[finding]

    def difference(pixels: Tensor) -> Tensor:
        vectors = model.encode_sentences([*sides.positive, *sides.negative])
        scores = model.score(model.encode_images(pixels), vectors)
        return scores[:, 0] - scores[:, 1]

    return judged(place, place.open(), finding, difference)


def supervised(
    place: PhantomFolder, train: PhantomTraining, finding: str, seed: int
) -> dict[str, float]:
    """Train the same image encoder as a classifier on the same batches; judge by its logit.

    The encoder's regions are averaged, then one linear unit; binary cross-entropy against what
    the image shows. Images that show the finding in another form have no part in the loss.
    Optimiser, schedule and clipping are the image-text training's own.
    """
    import torch
    import torch.nn.functional as F

    from medclip_debias.training.optim import make_optimizer, set_rate, trained

    with tempfile.TemporaryDirectory() as scratch:
        trainer = trainer_of(place, train, {"kind": "infonce"}, seed, "lse_nl", Path(scratch))
    model = cast("DualEncoder", trainer.model)  # built anew by every run of a study
    settings = trainer.settings.train
    torch.manual_seed(seed)
    head = torch.nn.Linear(model.image_encoder.width, 1)
    optimizer = make_optimizer(model, [head], settings)
    parameters = trained(optimizer)
    table = truth_of(place, trainer.prepared, [int(own[0]) for own in trainer.studies.rows])
    clear = ~table[other_forms(finding)].to_numpy(dtype=bool).any(axis=1)
    target = torch.from_numpy(table[finding].to_numpy(dtype=bool, copy=True)).float()
    weight = torch.from_numpy(clear.copy()).float()
    for step in range(train.steps):
        set_rate(optimizer, trainer.rate(step))
        batch = trainer.batches[step]
        logits = _logits(model, head, batch.images_on(trainer.device))
        chosen = weight[batch.studies]
        losses = F.binary_cross_entropy_with_logits(
            logits, target[batch.studies], weight=chosen, reduction="sum"
        )
        optimizer.zero_grad(set_to_none=True)
        (losses / chosen.sum().clamp(min=1)).backward()
        if settings.clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
        optimizer.step()
    model.eval()
    return judged(place, trainer.prepared, finding, lambda x: _logits(model, head, x))


def _logits(model: DualEncoder, head: torch.nn.Module, pixels: Tensor) -> Tensor:
    features = model.image_encoder(model.normalise(pixels))
    result: Tensor = head(features.flatten(2).mean(dim=2))[:, 0]
    return result


# --------------------------------------------------------------------------- the measuring


def other_forms(finding: str) -> list[str]:
    """The other classes of the type of ``finding``."""
    from medclip_debias.phantom.catalogue import CLASSES, INDEX

    kind = CLASSES[INDEX[finding]].type
    return [c.name for c in CLASSES if c.type == kind and c.name != finding]


def shown_in(place: PhantomFolder, data: PreparedSet, split: str, finding: str) -> Shown:
    """Frontal images of a split, but for those that show the finding in another form."""
    from medclip_debias.evaluation.protocol import rows_of_split

    rows = rows_of_split(data, split)
    table = truth_of(place, data, rows)
    other = table[other_forms(finding)].to_numpy(dtype=bool).any(axis=1)
    kept = (table["view"] != "LATERAL").to_numpy() & ~other
    chosen = table[kept]
    finding_there, marker = (chosen[name].to_numpy(dtype=bool) for name in (finding, "marker"))
    return np.asarray(rows)[kept].tolist(), finding_there, marker


def judged(
    place: PhantomFolder, data: PreparedSet, finding: str, score: Callable[[Tensor], Tensor]
) -> dict[str, float]:
    """`metrics` of a model, given as a function from prepared pixels to one score an image."""
    import torch

    found: list[tuple[Bools, Bools, Floats]] = []
    for split in ("test", "validate"):
        rows, there, marker = shown_in(place, data, split, finding)
        parts = [np.zeros(0)]
        with torch.inference_mode():
            for start in range(0, len(rows), 64):
                pixels = torch.from_numpy(np.asarray(data.pixels[rows[start : start + 64]]))
                parts.append(score(pixels).double().numpy())
        found.append((there, marker, np.concatenate(parts)))
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
