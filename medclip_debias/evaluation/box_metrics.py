"""Metrics of boxes that may be withheld, and of maps cut by a rule: entries of the catalogue."""

from __future__ import annotations

from typing import Any

from medclip_debias.evaluation.declaration import Metric

MATCH_LEVELS = (0.3, 0.5)
"""IoUs from which on a found box matches a true one, one to one."""

DICE_RULES = (
    ("fixed", "half of its range", "at half of the way from its lowest to its highest score"),
    (
        "validated",
        "threshold chosen on validation",
        "at the share of the way from its lowest to its highest score that is best on phrases of "
        "validation images",
    ),
    (
        "test_threshold",
        "threshold chosen on the test phrases",
        "at the share of the way from its lowest to its highest score that is best on these very "
        "phrases: an upper bound, and no result",
    ),
)
"""How a map is cut for its Dice coefficient: name, title, definition."""


def _dice(rule: str, title: str, where: str) -> Metric:
    return Metric(
        "grounding",
        f"dice_{rule}",
        f"Dice, {title}",
        f"Dice coefficient of the boxes and the map cut {where}.",
        "share",
        item=f"dice_{rule}",
        compared=rule != "test_threshold",
    )


def _match(level: float) -> tuple[Metric, ...]:
    """Boxes of all asked sentences at one IoU, one to one."""

    def metric(name: str, title: str, definition: str, **more: Any) -> Metric:
        name, title = f"{name}_{level}", f"{title}, IoU {level}"
        return Metric("sentence_boxes", name, title, definition, "share", **more)

    given = "after suppression, one to one with true boxes of an IoU of"
    return (
        metric(
            "box_precision",
            "Precision of given boxes",
            f"Share of the boxes given, {given} {level} or more that are right; a box for a "
            "sentence that is not in the image is wrong.",
        ),
        metric(
            "box_recall",
            "Recall of true boxes",
            f"Share of the true boxes that a box given for their sentence matches, {given} {level} "
            "or more.",
        ),
        metric(
            "box_f1",
            "Box F1",
            "Twice the right boxes over the sum of given and true boxes, of all asked sentences, "
            f"{given} {level} or more.",
            terminal=level == MATCH_LEVELS[0],
        ),
        metric(
            "average_precision",
            "Average precision of boxes",
            "Step-wise area under precision over recall of all boxes by falling confidence, those "
            f"of suppressed sentences included, at an IoU of {level} or more.",
            compared=False,
        ),
        metric(
            "recall_loss",
            "Recall lost by suppression",
            f"Share of the true boxes that are matched at an IoU of {level} or more without "
            "suppression and not with it.",
            lower_is_better=True,
        ),
    )


def _suppression(name: str, title: str, definition: str, **more: Any) -> Metric:
    return Metric("sentence_boxes", name, title, definition, "share", **more)


DICE = tuple(_dice(*rule) for rule in DICE_RULES)
SENTENCE_BOXES = (
    *(metric for level in MATCH_LEVELS for metric in _match(level)),
    _suppression(
        "specificity",
        "Specificity of suppression",
        "Share of the asked sentences that are not in the image (denials and sentences from "
        "elsewhere) that get no box.",
        terminal=True,
    ),
    _suppression(
        "specificity_denial",
        "Specificity, denials",
        "Share of the sentences of an image's own report that say only that something is absent or "
        "normal that get no box.",
    ),
    _suppression(
        "specificity_elsewhere",
        "Specificity, not in the image",
        "Share of the sentences about findings that the image does not have that get no box.",
    ),
    _suppression(
        "kept",
        "Sentences kept",
        "Share of the sentences with boxes that are not suppressed.",
        terminal=True,
    ),
    _suppression(
        "suppression_f1",
        "Suppression F1",
        "F1 of suppression over all asked sentences: twice those rightly suppressed over the sum "
        "of those suppressed and those that are not in the image; it depends on how many are asked "
        "of each kind.",
    ),
    _suppression(
        "presence_auc",
        "AUC of presence",
        "How often a sentence with boxes has more evidence in its image than one from elsewhere.",
        chance=0.5,
    ),
)
