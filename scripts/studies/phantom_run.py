"""One cell of a study on the phantom: train with one objective, measure everything."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from pydantic import Field

from medclip_debias.config import Settings
from medclip_debias.evaluation.catalogue import find
from medclip_debias.experiments import doses
from medclip_debias.experiments.doses import (
    dose,
    is_dose,
    with_etas,
    with_policies,
    with_start,
    write_eta,
)
from studies.phantom_data import PhantomFolder, class_prompts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.evaluation.protocol import Protocol
    from medclip_debias.models.dual_encoder import DualEncoder
    from medclip_debias.training.step import Trainer

HEAD, TAIL = 9, 9
"""How many of the 28 classes, by frequency, are called head and tail."""

_AUC, _RECALL = find("zero_shot", "mean_auc"), find("retrieval", "recall")
METRICS = {
    "auc": replace(_AUC, title="AUC"),
    "accuracy": replace(find("zero_shot", "balanced_accuracy"), title="bal. acc."),
    "ece": replace(find("zero_shot", "ece"), title="ECE"),
    "fine_auc": replace(_AUC, title="fine AUC"),
    "head_auc": replace(_AUC, title="head AUC"),
    "tail_auc": replace(_AUC, title="tail AUC"),
    "cnr": find("grounding", "cnr"),
    "miou": find("grounding", "miou"),
    "pointing": replace(find("grounding", "pointing_game"), title="pointing"),
    "recall": replace(_RECALL, title="Recall"),
    "median_rank": replace(find("retrieval", "median_rank"), title="MedR", digits=0),
    "lenient_recall": replace(_RECALL, title="Recall, lenient"),
}
"""What every cell measures, with the short titles of the studies' tables."""


class PhantomTraining(Settings):
    """The training of every cell of a study: the same for every method."""

    steps: int = Field(1000, ge=1)
    batch_size: int = Field(64, ge=2)
    sentences_per_study: int = Field(2, ge=1)
    lr: float = Field(2e-3, gt=0)
    warmup_steps: int = 100
    input_size: int = 48
    arch: str = "resnet_tiny"
    dim: int = 64
    device: str = "cpu"
    precision: Literal["fp32", "bf16"] = "fp32"


def train_and_measure(
    folder: Path,
    train: PhantomTraining,
    loss: Mapping[str, Any],
    *,
    seed: int,
    aggregator: str = "lse_nl",
) -> dict[str, Any]:
    """Train on the phantom in ``folder`` and measure on its validate and test splits.

    Args:
        folder: as `studies.phantom_data.make_phantom` leaves it.
        train: of the training.
        loss: settings of the objective. A policy's or a table's ``path`` may be ``@agreement``
            or ``@eta_true``; a policy's ``start_step`` may be ``@0.4``, a share of the steps; an
            ``eta`` may be of kind ``mean_of`` or ``shuffled`` with the ``a`` and ``k`` of a
            language-model eta: its mean over all occurrences for all sentences, or the values of
            each batch permuted over its sentences.
        seed: of batches, weights and shuffling.
        aggregator: of the similarity.

    Returns:
        `METRICS` on the test split; ``auc_by_class`` and ``fine_auc_by_class``, the AUC of each
        class that has one; ``validate_auc`` and ``validate_recall`` on the validate split; the
        loss, the scale and, where the objective reports them, ``removed``, ``clamped`` and
        ``mean_eta`` over the last tenth of the steps.
    """
    import torch

    torch.set_num_threads(1)
    place = PhantomFolder(folder)
    with tempfile.TemporaryDirectory() as scratch:
        model, metrics = train_model(place, train, loss, seed, aggregator, Path(scratch))
    return metrics | measure(model, place)


def trainer_of(
    place: PhantomFolder,
    train: PhantomTraining,
    loss: Mapping[str, Any],
    seed: int,
    aggregator: str,
    scratch: Path,
) -> Trainer:
    """The trainer of one cell, before its first step; arguments as for `train_and_measure`.

    Args:
        place: the phantom.
        train: of the training.
        loss: settings of the objective, with place holders.
        seed: of batches, weights and shuffling.
        aggregator: of the similarity.
        scratch: a folder for tables of the objective; it must live as long as the trainer.
    """
    from medclip_debias.config import validate
    from medclip_debias.training.settings import RunSettings
    from medclip_debias.training.step import Trainer

    content = {
        "prepared": str(place.prepared),
        "out": str(scratch / "run"),
        "preprocessing": {"prepare": {"size": _size(place)}, "input_size": train.input_size},
        "model": {
            "image": {"arch": train.arch},
            "text": {"folder": str(place.language_model), "max_tokens": 48},
            "dim": train.dim,
            "similarity": {"aggregator": aggregator},
        },
        "loss": resolve(loss, place, scratch, train.steps),
        "train": {
            **train.model_dump(
                include={
                    *("steps", "batch_size", "sentences_per_study", "lr", "warmup_steps"),
                    *("device", "precision"),
                }
            ),
            **{"seed": seed, "workers": 0},
        },
    }
    return Trainer(validate(RunSettings, content, "the study"), "the study")


def train_model(
    place: PhantomFolder,
    train: PhantomTraining,
    loss: Mapping[str, Any],
    seed: int,
    aggregator: str,
    scratch: Path,
) -> tuple[DualEncoder, dict[str, Any]]:
    """Train one model; arguments as for `trainer_of`.

    Returns:
        The model in evaluation mode, and the means of what the objective reported over the last
        tenth of the steps.
    """
    trainer = trainer_of(place, train, loss, seed, aggregator, scratch)
    last = max(1, train.steps // 10)
    kept: dict[str, list[float]] = {}
    for step in range(train.steps):
        metrics = trainer.step(step)
        if step >= train.steps - last:
            for name in ("loss", "scale", "removed", "clamped", "mean_eta"):
                if name in metrics:
                    kept.setdefault(name, []).append(float(metrics[name]))
    model = cast("DualEncoder", trainer.result)  # built anew by every run of a study
    model.eval()
    return model, {name: float(np.mean(values)) for name, values in kept.items()}


def _size(place: PhantomFolder) -> int:
    from medclip_debias.data.store import PreparedSet

    return PreparedSet.open(place.prepared).settings.size


# ------------------------------------------------------------------------------ the losses


def resolve(
    loss: Mapping[str, Any], place: PhantomFolder, scratch: Path, steps: int
) -> dict[str, Any]:
    """Settings of an objective with every place holder filled in; see `train_and_measure`."""

    def eta(given: Mapping[str, Any]) -> Mapping[str, Any]:
        table = scratch / "eta.parquet"
        if given.get("path") == "@eta_true":
            return write_eta(eta_true(place), table)
        if is_dose(given):
            return dose(given, PreparedSet.open(place.prepared))
        return given

    def policy(given: Mapping[str, Any]) -> Mapping[str, Any]:
        known = {"path": str(place.agreement)} if given.get("path") == "@agreement" else {}
        return with_start({**given, **known}, steps)

    from medclip_debias.data.store import PreparedSet

    return with_policies(with_etas(loss, eta), policy)


def eta_true(place: PhantomFolder) -> dict[str, float]:
    """True class probability of every distinct training sentence."""
    from medclip_debias.phantom.truth import Truth

    texts = list(training_counts(place))
    return dict(zip(texts, Truth(place.truth).eta(texts).tolist(), strict=True))


def training_counts(place: PhantomFolder) -> dict[str, int]:
    """How often each distinct sentence is said in the training studies."""
    from medclip_debias.data.store import PreparedSet

    return doses.training_counts(PreparedSet.open(place.prepared))


# --------------------------------------------------------------------------- the measuring


def measure(model: DualEncoder, place: PhantomFolder) -> dict[str, Any]:
    """Every metric of a trained model; see `train_and_measure`."""
    from medclip_debias.data.prompts import load_prompts
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.evaluation.encoding import Network, encode
    from medclip_debias.evaluation.label_table import labels_of
    from medclip_debias.evaluation.options import EvaluationOptions
    from medclip_debias.evaluation.phrase_selection import select_phrases
    from medclip_debias.evaluation.protocol import Draw
    from medclip_debias.evaluation.protocols.phrase_grounding import PhraseGrounding
    from medclip_debias.evaluation.protocols.retrieval import BoxRetrieval
    from medclip_debias.evaluation.protocols.zero_shot import ZeroShot
    from medclip_debias.evaluation.validation import validator_of

    data, options, draw = PreparedSet.open(place.prepared), EvaluationOptions(), Draw(0)
    prompts = load_prompts("chex5")
    names = list(prompts.classes)
    phrases = select_phrases(data, "test", model.preprocessing.input_size)
    five = ZeroShot(
        data,
        labels_of(data, "test", names),
        prompts,
        options.labels,
        validation="not chosen here",
    )
    fine = fine_classes(data, place.truth)
    grounding = PhraseGrounding(phrases, options=options, prompts=model.prompts)
    boxes = BoxRetrieval(phrases)
    protocols: list[Protocol] = [five, fine, grounding, boxes]
    encode(model, Network(model, data), protocols, batch_size=64)
    found = five.measure(draw)
    of_fine = fine.measure(draw).by_class("auc")
    each = list(of_fine.values())
    maps = grounding.measure(draw)
    ranks = boxes.measure(draw)
    validate = validator_of(place.prepared, 400)(model)
    metrics = {
        "auc": found.value("mean_auc"),
        "accuracy": found.value("balanced_accuracy"),
        "ece": found.value("ece"),
        "fine_auc": np.mean(each),
        "head_auc": np.mean(each[:HEAD]),
        "tail_auc": np.mean(each[-TAIL:]),
        "cnr": maps.value("cnr"),
        "miou": maps.value("miou"),
        "pointing": maps.value("pointing_game"),
        "recall": ranks.value("recall"),
        "median_rank": ranks.value("median_rank"),
        "lenient_recall": ranks.value("recall", group="lenient"),
        "validate_auc": validate["mean_auc"],
        "validate_recall": validate["recall_at_10"],
    }
    return {name: float(value) for name, value in metrics.items()} | {
        "auc_by_class": found.by_class("auc"),
        "fine_auc_by_class": of_fine,
    }


def fine_classes(data: PreparedSet, truth: Path) -> Any:
    """Zero-shot on the 28 true classes of the test images, in the order of their frequency.

    Args:
        data: the phantom's prepared set.
        truth: its folder of what is true.
    """
    import pandas as pd

    from medclip_debias.evaluation.label_table import Labels
    from medclip_debias.evaluation.options import EvaluationOptions
    from medclip_debias.evaluation.protocol import rows_of_split
    from medclip_debias.evaluation.protocols.zero_shot import ZeroShot

    prompts = class_prompts()
    rows = rows_of_split(data, "test")
    table = pd.read_parquet(truth / "images.parquet").set_index("dicom_id")
    shown = table.loc[[str(name) for name in data.images["image_id"].iloc[rows]]]
    values: dict[str, NDArray[np.float64]] = {
        name: shown[name].to_numpy(dtype=np.float64) for name in prompts.classes
    }
    labels = Labels(rows, values, {"labels": "the phantom's truth"})
    return ZeroShot(data, labels, prompts, EvaluationOptions().labels, validation="not chosen here")
