"""Metrics that steer a training run: cheap, deterministic, on the validate split.

Zero-shot mean AUC on labelled images, and retrieval of a report's sentence by an image among the
sentences of as many studies. No intervals: for those evaluate the finished model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from medclip_debias.config import SetSettings
from medclip_debias.data.joint import JointSet, open_prepared
from medclip_debias.data.labels import LabelPolicy
from medclip_debias.data.loader import TrainingStudies
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import VALIDATION
from medclip_debias.evaluation.encoding import row_scores
from medclip_debias.evaluation.label_table import labels_of
from medclip_debias.evaluation.metrics import auc, first_relevant_rank
from medclip_debias.evaluation.protocol import Skipped
from medclip_debias.evaluation.sides import labelled_scores, prompt_differences

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

SPLIT = "validate"
_CHOICE = 17  # seed of what is validated, the same for every run


def validator_of(
    prepared: Path | Sequence[SetSettings], limit: int
) -> Callable[[ImageTextModel], dict[str, float]]:
    """A function that validates a model; it reads nothing until it is called.

    With several sets every metric is the mean over those that have it, and ``SET.metric`` that of
    each. ``limit`` bounds the images of classification and the studies of retrieval, the same ones
    for every run on the same data. The function gives ``mean_auc``, ``recall_at_10`` (the share of
    images with a sentence of their own study among the ten best) and ``median_rank`` (1 is best).
    """

    def validate(model: ImageTextModel) -> dict[str, float]:
        data = open_prepared(prepared)
        sets = data.by_name() if isinstance(data, JointSet) else {"": data}
        of_set = {
            name: _zero_shot(model, part, limit) | _retrieval(model, part, limit)
            for name, part in sets.items()
        }
        names = [metric.name for metric in VALIDATION]
        values = {n: [m[n] for m in of_set.values() if n in m] for n in names}
        means = {name: float(np.mean(each)) for name, each in values.items() if each}
        if not means:
            raise UserError(
                f"{data.folder}: its split '{SPLIT}' has neither labels nor sentences to validate "
                "on; set train.validate_every=0."
            )
        if len(of_set) == 1:
            return means
        each = {f"{s}.{name}": v for s, metrics in of_set.items() for name, v in metrics.items()}
        return means | each

    return validate


def _zero_shot(model: ImageTextModel, data: PreparedSet, limit: int) -> dict[str, float]:
    """Mean AUC over the classes that have both labels among the chosen frontal images."""
    prompts = load_prompts()
    try:
        labels = labels_of(data, SPLIT, list(prompts.classes))
    except Skipped:
        return {}
    labelled = ~np.isnan(np.stack(list(labels.values.values()))).all(axis=0)
    places = _some(np.flatnonzero(labelled), limit)
    if not len(places):
        return {}
    rows = np.array(labels.rows)[places]
    differences = prompt_differences(row_scores(model, data, rows, prompts.texts), prompts)
    truth = {name: LabelPolicy().apply(v[places]) for name, v in labels.values.items()}
    areas = [auc(*known) for known in labelled_scores(differences, truth).values()]
    return {"mean_auc": float(np.mean(areas))} if areas else {}


def _retrieval(model: ImageTextModel, data: PreparedSet, limit: int) -> dict[str, float]:
    """Rank of the first sentence of the first image's own study; equal sentences all count."""
    try:
        studies = TrainingStudies.of(data, SPLIT)
    except UserError:
        return {}
    chosen = _some(np.arange(len(studies)), limit)
    numbers = np.unique(np.concatenate([studies.sentences[study] for study in chosen]))
    texts = [studies.texts[number] for number in numbers]
    images = studies.frontal or studies.rows
    rows = np.array([images[study][0] for study in chosen])
    relevant = np.stack([np.isin(numbers, studies.sentences[study]) for study in chosen])
    ranks = first_relevant_rank(row_scores(model, data, rows, texts), relevant)
    return {"recall_at_10": float((ranks <= 10).mean()), "median_rank": float(np.median(ranks))}


def _some(values: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """At most ``limit`` of ``values``, in order, chosen by their places alone."""
    if len(values) <= limit:
        return values
    places = np.random.default_rng(_CHOICE).choice(len(values), limit, replace=False)
    return values[np.sort(places)]
