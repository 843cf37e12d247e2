"""The phantom's settings, validated (see docs/phantom.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from medclip_debias.config import Settings
from medclip_debias.errors import did_you_mean
from medclip_debias.phantom.catalogue import CLASS_NAMES

REGIMES: dict[str, dict[str, float]] = {
    "easy": {
        "negation_single": 0.2,
        "negation_combined": 0.3,
        "boilerplate": 0.15,
        "visibility": 1.0,
        "impression_share": 0.5,
        "typo_rate": 0.005,
    },
    "natural": {
        "negation_single": 0.25,
        "negation_combined": 0.5,
        "boilerplate": 0.3,
        "visibility": 0.8,
        "impression_share": 0.75,
        "typo_rate": 0.01,
    },
    "hospital": {
        "negation_single": 0.6,
        "negation_combined": 0.75,
        "boilerplate": 0.5,
        "visibility": 0.65,
        "impression_share": 0.85,
        "typo_rate": 0.015,
    },
}


class PhantomSettings(Settings):
    """How many studies are generated, of which kind, and how visible and well reported they are.

    A ``regime`` names a set of defaults; any setting given overrides it. ``easy`` is close
    to a saturated benchmark, ``natural`` (the default) is harder, ``hospital`` denies effusion
    and pneumothorax in most reports and shows findings faintly.
    """

    studies: int = Field(3000, ge=20, le=1_000_000)
    test_studies: int | None = Field(None, ge=1)
    seed: int = Field(0, ge=0)
    format: Literal["dicom", "jpg"] = "dicom"
    regime: Literal["easy", "natural", "hospital"] = "natural"

    # files
    monochrome1_share: float = Field(0.2, ge=0, le=1)
    window_share: float = Field(0.4, ge=0, le=1)
    min_side: int = Field(128, ge=64, le=1024)
    max_side: int = Field(320, ge=64, le=1024)
    aspect: tuple[float, float] = (0.8, 1.25)
    lateral_share: float = Field(0.1, ge=0, le=1)
    second_frontal_share: float = Field(0.04, ge=0, le=1)
    blank_view_share: float = Field(0.02, ge=0, le=1)

    # findings
    classes: int = Field(28, ge=1, le=28)
    probability_scale: float = Field(1.0, gt=0, le=4)
    tail_exponent: float = Field(0.8, ge=0, le=3)
    visibility: float = Field(0.8, gt=0, le=1.5)

    # reports
    negation_single: float = Field(0.25, ge=0, le=1)
    negation_combined: float = Field(0.5, ge=0, le=1)
    boilerplate: float = Field(0.3, ge=0, le=1)
    mention_rate: float = Field(0.95, ge=0, le=1)
    naming_rate: float = Field(0.67, ge=0, le=1)
    hedge_rate: float = Field(0.1, ge=0, le=1)
    compound_rate: float = Field(0.2, ge=0, le=1)
    typo_rate: float = Field(0.01, ge=0, le=1)
    impression_share: float = Field(0.75, ge=0, le=1)
    odd_report_share: float = Field(0.06, ge=0, le=1)
    report_noise: float = Field(0.0, ge=0, le=1)

    # shortcut: a square marker in the corner, tied to one class in training and to none in test
    marker_class: str | None = None
    marker_correlation: float = Field(0.8, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_regime(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        defaults = REGIMES.get(str(given.get("regime", "natural")), {})
        return {**defaults, **given}

    @model_validator(mode="after")
    def _consistent(self) -> PhantomSettings:
        if self.min_side > self.max_side:
            raise ValueError(f"min_side {self.min_side} is larger than max_side {self.max_side}")
        low, high = self.aspect
        if not 0.5 <= low <= high <= 2:
            raise ValueError(f"aspect must be two rising numbers in 0.5..2, got {low}, {high}")
        if self.test_studies is not None and self.test_studies > self.studies - 10:
            raise ValueError("test_studies must leave at least 10 studies for training")
        if self.marker_class is not None:
            names = CLASS_NAMES[: self.classes]
            if self.marker_class not in names:
                hint = did_you_mean(self.marker_class, names)
                raise ValueError(f"marker_class is not a finding class{hint}")
        return self

    def counts(self) -> dict[str, int]:
        """Studies in each split: about 80% train, 5% validate, 15% test."""
        test = self.test_studies or round(0.15 * self.studies)
        validate = max(1, round(0.05 / 0.85 * (self.studies - test)))
        return {"train": self.studies - test - validate, "validate": validate, "test": test}
