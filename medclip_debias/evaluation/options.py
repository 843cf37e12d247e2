"""Every choice that changes a metric, decisions among them; stored with the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from medclip_debias.config import Settings, validate
from medclip_debias.data.labels import LabelPolicy
from medclip_debias.data.views import Views
from medclip_debias.errors import UserError
from medclip_debias.evaluation.presets import OURS
from medclip_debias.grounding.settings import MapMethod, Sharpen, SuppressionSettings
from medclip_debias.settings_files import load_yaml

Method = Literal["platt", "temperature", "isotonic"]
Conformal = Literal["class_conditional", "marginal"]
PrevalenceLike = Literal["validation", "estimated"] | dict[str, float]


def checked_prevalence(value: Any) -> Any:
    """``value`` as it is, where it is a `PrevalenceLike`."""
    if value in ("validation", "estimated"):
        return value
    if not isinstance(value, Mapping) or not value:
        raise ValueError("must be 'validation', 'estimated', or a share of each class by its name")
    for name, share in value.items():
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not 0 < share < 1:
            raise ValueError(
                f"the prevalence of '{name}' must lie strictly between 0 and 1: at 0 or 1 no image"
                " could change the answer"
            )
    return dict(value)


class Choices(Settings):
    """What is fitted to labelled images, for each class, and what sets of answers hold.

    ``coverage`` is the share of images whose set holds the truth: with ``class_conditional`` among
    images with the finding and among those without it, at any prevalence; with ``marginal`` over
    all images, at the target's.
    """

    method: Method = "platt"
    coverage: float = Field(0.9, ge=0.5, lt=1)
    conformal: Conformal = "class_conditional"


class DecisionOptions(Choices):
    """How scores become probabilities and decisions (docs/decisions.md); see `Choices`.

    Attributes:
        prevalence: share of positives that the evaluated images are taken to have: that of the
            ``validation`` images, ``estimated`` from the evaluated images' scores without their
            labels, or given for some classes by name.
        sensitivity: least sensitivity of the threshold of that name, on the validate images.
        specificity: least specificity of the threshold of that name.
        threshold_probability: probability from which one would act: ``p / (1 - p)`` false alarms
            are worth one finding more.
        calibration: a file of ``calibrate`` that takes the place of the fit.
    """

    prevalence: PrevalenceLike = "validation"
    sensitivity: float = Field(0.95, gt=0, le=1)
    specificity: float = Field(0.95, gt=0, le=1)
    threshold_probability: float = Field(0.1, gt=0, lt=1)
    calibration: Path | None = None

    @field_validator("prevalence", mode="before")
    @classmethod
    def _shares(cls, value: Any) -> Any:
        return checked_prevalence(value)

    @model_validator(mode="after")
    def _estimable(self) -> DecisionOptions:
        if self.calibration is None:
            check_estimable(self.method, self.prevalence)
        return self


def check_estimable(method: Method, prevalence: PrevalenceLike) -> None:
    """Refuse to estimate a prevalence from probabilities whose mean is off."""
    if method == "temperature" and prevalence == "estimated":
        raise ValueError(
            "a prevalence cannot be estimated after 'temperature', which leaves the mean of the"
            " probabilities wrong; take 'platt' or 'isotonic', or give the prevalence"
        )


Offsets = Literal["none", "evaluated", "validate", "train", "model"]
"""Whose images set the constants of prompts (`medclip_debias.evaluation.offsets`)."""
# How the prompts of one side of a class become one score. hi-ml averages their embeddings instead,
# and brings the mean to unit length.
SEVERAL_PROMPTS = "mean of their scores"


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
        merge_phrases: which phrases of an image count as one, with the boxes of all: those with
            the same words (``phrase``; except letter case, blanks and the full stop), or those of
            one ``category``, represented by its first phrase.
        method: how maps are computed (`medclip_debias.grounding.saliency`).
        sharpen: how maps are sharpened without training (`medclip_debias.grounding.sharpen`).
        suppression: the rule by which a sentence gets no box.
        suppression_from: where the rule is fitted: on the images of ``validate``, or in advance
            (``model``: its folder has it); ``none``: only a sentence's words withhold its boxes.
        sentences_per_image: maximum number of absent sentences of each kind for an image.
        annotation_split: phrases that have a split of their own (MS-CXR 1.1): only those of the
            split that is evaluated (``as_split``), or ``all``.
        report_score: a report's score with an image: the ``mean`` or ``max`` of its sentences'.
        triplet_reports: how a triplet's report is scored: by its ``sentences`` and
            ``report_score``, or the ``whole`` text as one sentence, as CXR-Align's authors do.
        precision_match: when a retrieved study counts for precision@K: it has ``all`` of the
            query's positive labels, or ``any`` of them.
        offsets: whose unlabelled images set one constant per prompt of zero-shot classification:
            ``none``, those ``evaluated``, the split ``validate`` or ``train``, or the constants
            that the ``model`` folder keeps (`medclip_debias.evaluation.offsets`).
        views: which images are judged: ``frontal`` ones (others are counted), or ``all``.
        several_views: for a study with several such images: with ``each`` zero-shot classification
            judges every image and whole-study retrieval uses the first frontal one; with ``mean``
            both judge the study by the mean of its images' scores.
        most_studies: maximum number of studies of whole-study retrieval (chosen by their ids).
        preset: protocols of others, added below ``presets`` of the results
            (`medclip_debias.evaluation.presets`): a name, several between commas, or ``all``;
            ``ours`` adds nothing.
        decisions: probabilities, thresholds and abstention of zero-shot classification
            (`medclip_debias.evaluation.decisions`); None for none.
    """

    labels: LabelPolicy = LabelPolicy()
    smoothing: float = Field(0.0, ge=0)
    boxes: BoxRule = BoxRule()
    merge_phrases: Literal["none", "phrase", "category"] = "none"
    method: MapMethod = "similarity"
    sharpen: Sharpen = "none"
    suppression: SuppressionSettings = SuppressionSettings()
    suppression_from: Literal["validate", "model", "none"] = "validate"
    sentences_per_image: int = Field(4, ge=1)
    annotation_split: Literal["as_split", "all"] = "as_split"
    report_score: Literal["mean", "max"] = "mean"
    triplet_reports: Literal["sentences", "whole"] = "sentences"
    precision_match: Literal["all", "any"] = "all"
    offsets: Offsets = "none"
    views: Views = "frontal"
    several_views: Literal["each", "mean"] = "each"
    most_studies: int = Field(3000, ge=2)
    preset: str = OURS
    decisions: DecisionOptions | None = None


def read_options(path: Path) -> EvaluationOptions:
    """Read a YAML file of options."""
    content = load_yaml(path)
    if not content:
        raise UserError(
            f"{path}: holds no option; write one, such as 'smoothing: 1', or leave --options out "
            "for the defaults."
        )
    return validate(EvaluationOptions, content, str(path))
