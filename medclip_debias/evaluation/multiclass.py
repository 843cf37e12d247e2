"""Multi-class zero-shot accuracy, as on CheXpert 5x200: which class's prompts score highest?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.evaluation.bootstrap import bootstrap_intervals, weighted_mean
from medclip_debias.evaluation.protocol import Draw, Skipped

Floats = NDArray[np.float64]
RULE = (
    "One image counts when exactly one of the classes is 1 and every other is 0 or blank; an "
    "uncertain label (-1) of another class leaves it out. A list of images, when given, says "
    "itself. The answer is the class whose positive prompts score highest on average."
)


def exclusive_classes(labels: Mapping[str, Floats], classes: Sequence[str]) -> NDArray[np.intp]:
    """Number of the one positive class of each image, -1 where there is not exactly one.

    Args:
        labels: per class, values 1, 0, -1 or NaN of each image.
        classes: classes in order; one that has no labels is never positive.
    """
    count = len(next(iter(labels.values())))
    values = np.stack([labels.get(name, np.full(count, np.nan)) for name in classes], axis=1)
    single = ((values == 1).sum(axis=1) == 1) & ~(values == -1).any(axis=1)
    return np.where(single, (values == 1).argmax(axis=1), -1)


def multiclass_accuracy(
    scores: Floats,
    truth: NDArray[np.integer],
    classes: Sequence[str],
    patients: Sequence[str],
    draw: Draw,
) -> dict[str, Any]:
    """Accuracy of the highest-scoring class.

    Where several classes share the highest score, each gets an equal share of the prediction.

    Args:
        scores: mean score of each class's positive prompts ``[images, classes]``.
        truth: number of each image's class.
        classes: names.
        patients: patient of each image.
        draw: resamples of the patients.

    Returns:
        ``accuracy``, ``balanced_accuracy`` (mean over the classes that have images),
        ``interval``, ``chance``, ``images``, ``classes`` (images and recall of each) and
        ``confusion`` (rows the truth, columns the predictions).

    Raises:
        Skipped: fewer than two classes have images.
    """
    best = scores == scores.max(axis=1, keepdims=True)
    predicted = best / best.sum(axis=1, keepdims=True)
    hits = predicted[np.arange(len(truth)), truth]
    present = [number for number in range(len(classes)) if (truth == number).any()]
    if len(present) < 2:
        raise Skipped(
            "Multi-class accuracy needs images of at least two classes; there are "
            + ", ".join(f"{(truth == n).sum()} of {name}" for n, name in enumerate(classes))
            + "."
        )

    def statistics(weights: Floats) -> dict[str, Floats]:
        recalls = [weighted_mean(hits[truth == n], weights[:, truth == n]) for n in present]
        return {
            "accuracy": weighted_mean(hits, weights),
            "balanced_accuracy": np.mean(recalls, axis=0),
        }

    point = statistics(np.ones((1, len(truth))))
    return {
        **{name: float(values[0]) for name, values in point.items()},
        "interval": bootstrap_intervals(statistics, patients, **draw.keywords),
        "chance": 1 / len(classes),
        "images": len(truth),
        "classes": {
            name: {
                "images": int((truth == number).sum()),
                "recall": float(hits[truth == number].mean()) if number in present else None,
            }
            for number, name in enumerate(classes)
        },
        "confusion": [predicted[truth == n].sum(axis=0).tolist() for n in range(len(classes))],
    }
