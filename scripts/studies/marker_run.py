"""One cell of the study of a spurious marker: train a classifier or an image-text model, measure.

The marker is a square in a corner of the image; in training and validation it comes with the
finding more or less often, in the test split with every second image whatever it shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from medclip_debias.evaluation.metrics import auc
from studies.phantom_data import PhantomFolder, class_prompts
from studies.phantom_run import PhantomTraining, train_model, trainer_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.dual_encoder import DualEncoder

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Shown:
    """What each image of a prepared set shows.

    Attributes:
        rows: of the images judged, in ``PreparedSet.pixels``.
        finding: ``[n]`` whether the finding is there.
        marker: ``[n]`` whether the marker is there.
    """

    rows: list[int]
    finding: Bools
    marker: Bools

    @classmethod
    def of(cls, place: PhantomFolder, data: PreparedSet, split: str, finding: str) -> Shown:
        """Frontal images of ``split``, but for those that show the finding in another form.

        Left out are the images that show another class of the finding's type (the other
        severity, or the other side), which a prompt or a classifier may well take for it, and
        the lateral ones, which never show anything.
        """
        from medclip_debias.evaluation.protocol import rows_of_split

        rows = np.array(rows_of_split(data, split), dtype=np.int64)
        table = truth_of(place, data, rows)
        other = table[other_forms(finding)].to_numpy(dtype=bool).any(axis=1)
        kept = (table["view"] != "LATERAL").to_numpy() & ~other
        chosen = table[kept]
        return cls(
            rows[kept].tolist(),
            chosen[finding].to_numpy(dtype=bool),
            chosen["marker"].to_numpy(dtype=bool),
        )


def truth_of(place: PhantomFolder, data: PreparedSet, rows: NDArray[np.int64]) -> Any:
    """The phantom's truth table for these images, in their order."""
    import pandas as pd

    table = pd.read_parquet(place.truth / "images.parquet").set_index("dicom_id")
    return table.loc[[str(name) for name in data.images["image_id"].iloc[rows]]]


def other_forms(finding: str) -> list[str]:
    """The other classes of the type of ``finding``."""
    from medclip_debias.phantom.catalogue import CLASSES, INDEX

    kind = CLASSES[INDEX[finding]].type
    return [c.name for c in CLASSES if c.type == kind and c.name != finding]


# ------------------------------------------------------------------------------ the arms


def contrastive(
    place: PhantomFolder, train: PhantomTraining, loss: Mapping[str, Any], finding: str, seed: int
) -> dict[str, float]:
    """Train image-text; judge by the similarity to "X" minus that to "no X".

    Args:
        place: the phantom.
        train: of the training.
        loss: settings of the objective.
        finding: class that is judged.
        seed: of batches and weights.

    Returns:
        See `metrics`.
    """
    from medclip_debias.data.store import PreparedSet

    with tempfile.TemporaryDirectory() as scratch:
        model, _ = train_model(place, train, loss, seed, "lse_nl", Path(scratch))
    sides = class_prompts().classes[finding]
    data = PreparedSet.open(place.prepared)

    def difference(pixels: Tensor) -> Tensor:
        vectors = model.encode_sentences([*sides.positive, *sides.negative])
        scores = model.score(model.encode_images(pixels), vectors)
        return scores[:, 0] - scores[:, 1]

    return judged(place, data, finding, difference)


def supervised(
    place: PhantomFolder, train: PhantomTraining, finding: str, seed: int
) -> dict[str, float]:
    """Train the same image encoder as a classifier on the same batches; judge by its logit.

    The encoder's regions are averaged, then one linear unit; binary cross-entropy against what
    the image shows. Images that show the finding in another form have no part in the loss.
    Optimiser, schedule and clipping are the image-text training's own.

    Args:
        place: the phantom.
        train: of the training.
        finding: class to learn.
        seed: of batches and weights.

    Returns:
        See `metrics`.
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
    target, weight = _targets(place, trainer.prepared, trainer.studies.rows, finding)
    for step in range(train.steps):
        set_rate(optimizer, trainer.rate(step))
        batch = trainer.batches[step]
        pixels = batch.images_on(trainer.device)
        logits = _logits(model, head, pixels)
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


def _targets(
    place: PhantomFolder, data: PreparedSet, rows: list[NDArray[np.int64]], finding: str
) -> tuple[Tensor, Tensor]:
    """Of each training study whether it has the finding, and whether that is clear (1) or not."""
    import torch

    table = truth_of(place, data, np.array([own[0] for own in rows]))
    clear = ~table[other_forms(finding)].to_numpy(dtype=bool).any(axis=1)
    present = table[finding].to_numpy(dtype=bool, copy=True)
    return torch.from_numpy(present).float(), torch.from_numpy(clear.copy()).float()


# --------------------------------------------------------------------------- the measuring


def judged(
    place: PhantomFolder, data: PreparedSet, finding: str, score: Any, group: int = 64
) -> dict[str, float]:
    """`metrics` of a model, given as a function from prepared pixels to one score an image."""
    found = {}
    for split in ("validate", "test"):
        shown = Shown.of(place, data, split, finding)
        found[split] = shown, _scores(data, shown.rows, score, group)
    return metrics(*found["test"], *found["validate"])


def _scores(data: PreparedSet, rows: list[int], score: Any, group: int) -> Floats:
    import torch

    parts = [np.zeros(0)]
    with torch.inference_mode():
        for start in range(0, len(rows), group):
            pixels = torch.from_numpy(np.asarray(data.pixels[rows[start : start + group]]))
            parts.append(score(pixels).double().numpy())
    return np.concatenate(parts)


def metrics(test: Shown, scores: Floats, validate: Shown, others: Floats) -> dict[str, float]:
    """How well scores tell the finding, with and without the marker's help.

    Args:
        test: what the test images show.
        scores: of them.
        validate: what the images show on which the decision's threshold is chosen; the marker is
            tied to the finding there as in training.
        others: scores of those.

    Returns:
        ``auc`` on all test images; ``auc_with`` and ``auc_without`` among those with and without
        marker; ``auc_against``: images with finding and no marker against images with marker and
        no finding, the pairs that a model that reads the marker gets wrong; ``auc_validate``;
        ``auc_marker``, how well the score tells the marker among test images without finding (0.5
        when it ignores it); ``accuracy``, balanced, and ``worst_group``, the lowest share of right
        decisions in the four groups of finding and marker, at the threshold that has the best
        balanced accuracy on ``validate``. What a split cannot tell, because it lacks a group, is
        0.5 for an AUC and left out of the worst group.
    """
    threshold = best_threshold(validate.finding, others)
    right = (scores > threshold) == test.finding
    with_finding, with_marker = test.finding, test.marker
    groups = [
        right[(with_finding == f) & (with_marker == m)]
        for f in (True, False)
        for m in (True, False)
    ]
    sides = [right[with_finding == f] for f in (True, False)]
    against = with_finding != with_marker
    bare = ~with_finding
    return {
        "auc": _auc(with_finding, scores),
        "auc_with": _auc(with_finding[with_marker], scores[with_marker]),
        "auc_without": _auc(with_finding[~with_marker], scores[~with_marker]),
        "auc_against": _auc(with_finding[against], scores[against]),
        "auc_marker": _auc(with_marker[bare], scores[bare]),
        "auc_validate": _auc(validate.finding, others),
        "accuracy": float(np.mean([side.mean() for side in sides if side.size])),
        "worst_group": float(min(own.mean() for own in groups if own.size)),
    }


def best_threshold(truth: Bools, scores: Floats) -> float:
    """The midpoint between two neighbouring scores with the best balanced accuracy.

    The lowest of equals; 0 where ``truth`` has one value only.
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
