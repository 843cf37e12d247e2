"""Every choice that changes a figure; stored with the results under its name."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from medclip_debias.config import Settings
from medclip_debias.data.labels import LabelPolicy


class BoxRule(Settings):
    """Where a heatmap is cut to give boxes, the bounding boxes of its connected regions.

    ``share_of_range``: at ``lowest + value (highest - lowest)`` of the map's seen pixels, so that
    maps of different spread are cut alike. ``score``: at the cosine ``value`` itself.
    """

    rule: Literal["share_of_range", "score"] = "share_of_range"
    value: float = Field(0.5, ge=-1, le=1)
    connectivity: Literal[4, 8] = 8


class EvaluationOptions(Settings):
    """The options of all protocols.

    Attributes:
        labels: what uncertain and blank labels stand for.
        smoothing: sigma of the Gaussian over heatmaps, in grid cells; 0 for none.
        boxes: how heatmaps become boxes.
        report_score: a report's score with an image; the ``mean`` or ``max`` of its sentences'.
        precision_match: when a retrieved study counts for precision@K: it has ``all`` of the
            query's positive labels, or ``any`` of them.
        most_studies: studies taken for whole-study retrieval (a function of their ids).
    """

    labels: LabelPolicy = LabelPolicy()
    smoothing: float = Field(0.0, ge=0)
    boxes: BoxRule = BoxRule()
    report_score: Literal["mean", "max"] = "mean"
    precision_match: Literal["all", "any"] = "all"
    most_studies: int = Field(3000, ge=2)
