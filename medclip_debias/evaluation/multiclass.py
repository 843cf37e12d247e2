"""One of several classes: whose positive prompts score highest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from medclip_debias.evaluation.bootstrap import weighted_mean
from medclip_debias.evaluation.catalogue import CHANCE
from medclip_debias.evaluation.metrics import highest_shares
from medclip_debias.evaluation.protocol import Draw, Measured, Skipped
from medclip_debias.evaluation.table import Row

Floats = NDArray[np.float64]
MULTICLASS_RULE = (
    "One image counts when exactly one of the classes is 1 and every other is 0 or blank; an "
    "uncertain label (-1) of another class leaves it out. A list of images, when given, says "
    "itself. The answer is the class whose positive prompts score highest on average."
)


def exclusive_classes(labels: Mapping[str, Floats], classes: Sequence[str]) -> NDArray[np.intp]:
    """Number of the one positive class of each image, -1 where there is not exactly one."""
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
) -> Measured:
    """Accuracy of the highest-scoring class.

    Where several classes share the highest score, each gets an equal share of the prediction.

    Scores ``[images, classes]`` are means of the positive prompts. Besides the metrics there are
    ``images``, also of each class, and ``confusion`` (rows the truth, columns the predictions).
    """
    predicted = highest_shares(scores)
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
            "multiclass_accuracy": weighted_mean(hits, weights),
            "multiclass_balanced_accuracy": np.mean(recalls, axis=0),
        }

    measured = draw.estimates(statistics, patients).rows(n=len(truth))
    measured += [Row(row.metric, 1 / len(classes), group=CHANCE) for row in measured]
    for number in present:
        of_class = hits[truth == number]
        recall, n = float(of_class.mean()), len(of_class)
        measured.append(Row("multiclass_recall", recall, n=n, of_class=classes[number]))
    images = {name: {"images": int((truth == n).sum())} for n, name in enumerate(classes)}
    confusion = [predicted[truth == n].sum(axis=0).tolist() for n in range(len(classes))]
    details = {"images": len(truth), "classes": images, "confusion": confusion}
    return Measured(measured, details)
