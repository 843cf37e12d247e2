"""Base of the parts of ``results.json``, and the metrics that the catalogue declares for each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from medclip_debias.evaluation.catalogue import Metric, of_protocol

Interval = tuple[float, float] | None
Intervals = dict[str, Interval]


class Part(BaseModel):
    """Base of all parts: what is declared is checked, what is not is kept."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


def _with_metrics(protocol: str, *, per_class: bool = False) -> type[Part]:
    """A part that holds the metrics of ``protocol``, as the catalogue declares them.

    Args:
        protocol: whose metrics stand directly in the part.
        per_class: the metrics of one class instead of their means.
    """
    fields: dict[str, Any] = {}
    for metric in of_protocol(protocol):
        key = metric.per_class if per_class else metric.name
        if metric.path or not key:
            continue
        about = _about(metric, per_class)
        name = key.replace(".", "_")  # a key may hold a dot, the name of a field may not
        if metric.required:
            fields[name] = (float, Field(alias=key, description=about))
        else:
            fields[name] = (float | None, Field(None, alias=key, description=about))
    return create_model("Metrics", __base__=Part, **fields)


def _about(metric: Metric, per_class: bool) -> str:
    return re.split("; (?:mean|sum) over", metric.definition)[0] if per_class else metric.definition


if TYPE_CHECKING:  # their fields are known when the program runs

    class ClassMetrics(Part):
        """Zero-shot metrics of one class."""

    class ZeroShotMetrics(Part):
        """Zero-shot metrics, means over the classes."""

    class PhraseMetrics(Part):
        """Metrics of phrase grounding."""

    class SentenceBoxMetrics(Part):
        """Metrics of boxes for sentences that may not be there."""

    class RetrievalMetrics(Part):
        """Metrics of a retrieval."""

    class TripletMetrics(Part):
        """Metrics of report triplets."""

    class LateralityMetrics(Part):
        """Metrics of sentences against their mirrors."""

    class MaskMetrics(Part):
        """Metrics of segmentation."""

    class ProgressionMetrics(Part):
        """Metrics of progression."""

else:
    ClassMetrics = _with_metrics("zero_shot", per_class=True)
    ZeroShotMetrics = _with_metrics("zero_shot")
    PhraseMetrics = _with_metrics("grounding")
    SentenceBoxMetrics = _with_metrics("sentence_boxes")
    RetrievalMetrics = _with_metrics("retrieval")
    TripletMetrics = _with_metrics("triplets")
    LateralityMetrics = _with_metrics("laterality")
    MaskMetrics = _with_metrics("segmentation")
    ProgressionMetrics = _with_metrics("progression")
