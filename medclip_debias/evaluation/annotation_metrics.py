"""Metrics of an archive's masks and progressions: entries of the catalogue."""

from __future__ import annotations

from typing import Any

from medclip_debias.evaluation.declaration import MEASURED, Metric


def _masks(name: str, title: str, definition: str, **more: Any) -> Metric:
    whole = f"{definition}; mean over classes."
    return Metric("segmentation", name, title, whole, "share", per_class=name, item=name, **more)


def _progression(name: str, title: str, definition: str, chance: float) -> Metric:
    whole = f"{definition}; mean over findings."
    return Metric(
        "progression", name, title, whole, "share", per_class=name, chance=chance, terminal=True
    )


SEGMENTATION = (
    _masks(
        "dice",
        "Dice of masks",
        "Overlap of the map, cut at the share of its range that is best on validation masks, and "
        "the mask: twice the common pixels over the sum of both",
        terminal=True,
    ),
    _masks(
        "iou",
        "IoU of masks",
        "Common pixels of map and mask over those of either, at the threshold of Dice",
    ),
    _masks(
        "dice_fixed",
        "Dice of masks, fixed threshold",
        "Dice of the map cut where the option boxes says, at half of its range by default",
        terminal=True,
    ),
    _masks(
        "pointing_game",
        "Pointing game in masks",
        "Share of maps whose highest-scoring pixel lies inside the mask",
        chance=MEASURED,
        terminal=True,
    ),
    Metric(
        "segmentation",
        "dice_test_threshold",
        "Dice of masks, threshold of the test",
        "Mean over classes of Dice at the share of the range that is best on the judged masks "
        "themselves: a bound that no method reaches, given because papers report it.",
        "share",
        compared=False,
    ),
)

PROGRESSION = (
    _progression(
        "macro_accuracy",
        "Progression accuracy",
        "Share of pairs of images for which the right state's sentences (improving, stable, "
        "worsening) gained most from the earlier image to the later; mean over states",
        1 / 3,
    ),
    _progression(
        "macro_accuracy_current",
        "Progression accuracy, later image alone",
        "The same where the right state's sentences score highest on the later image; mean over "
        "states",
        1 / 3,
    ),
    _progression(
        "order_auc",
        "Worsening above improving (AUC)",
        "How often 'X' minus 'no X' rose more in a pair that worsened than in one that improved",
        0.5,
    ),
)
