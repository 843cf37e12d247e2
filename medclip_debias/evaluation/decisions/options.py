"""What is asked of decisions; `EvaluationOptions.decisions` holds it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from medclip_debias.config import Settings

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
