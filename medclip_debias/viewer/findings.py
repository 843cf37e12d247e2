"""What a model sees on a radiograph, before anybody asks: its prompts' classes, in an order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from medclip_debias.data.prompts import PromptSet, sets_of
from medclip_debias.evaluation.classification import sigmoid
from medclip_debias.evaluation.decisions.calibration import Calibration, FittedClass
from medclip_debias.evaluation.decisions.options import DecisionOptions
from medclip_debias.evaluation.decisions.thresholds import thresholds
from medclip_debias.evaluation.zero_shot import class_scores
from medclip_debias.models.finite import finite

if TYPE_CHECKING:
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

_RULES = DecisionOptions()


@dataclass(frozen=True)
class Finding:
    """One class of one prompt set on one image.

    Attributes:
        name: of the class.
        prompt_set: name of the set.
        sentence: the first prompt that says it is present, by which a click shows where.
        present: mean score of the prompts that say it is present.
        absent: mean score of those that say it is not.
        probability: calibrated, or the logistic function of the scaled difference of the two; None
            for a model without a scale.
        threshold: probability from which on it counts as seen. Calibrated: where sensitivity plus
            specificity is largest among the images of the calibration. Else 0.5, at which both
            kinds of prompts score the same.
        calibrated: whether labelled images made the probability.
        seen: whether the threshold is reached.
    """

    name: str
    prompt_set: str
    sentence: str
    present: float
    absent: float
    probability: float | None
    threshold: float
    calibrated: bool
    seen: bool


class Finder:
    """The prompts of a model, encoded once, and its calibration.

    Args:
        model: its own prompt sets are asked, and the packaged one where it has none.
        calibration: of this model, as `Calibration.check` makes sure; its own prompts take the
            place of the model's for the classes that it has.
    """

    def __init__(self, model: ImageTextModel, calibration: Calibration | None = None) -> None:
        self._model = model
        self._calibration = calibration
        self.prompt_sets = _asked_sets(model, calibration)
        with torch.inference_mode():
            self._vectors: dict[int, Tensor] = {
                number: model.encode_sentences(prompts.texts)
                for number, prompts in enumerate(self.prompt_sets)
            }
        self._cuts = {} if calibration is None else _cuts(calibration.classes)

    @property
    def calibrated(self) -> bool:
        """Whether any probability is calibrated."""
        return self._calibration is not None

    def of(self, features: ImageFeatures) -> list[Finding]:
        """The findings of one image: those seen first, and each part by falling probability."""
        findings = []
        for number, prompts in enumerate(self.prompt_sets):
            with torch.inference_mode():
                scored = self._model.score(features, self._vectors[number])
            scores = finite(scored, "zero-shot classification").astype(np.float64)
            present = class_scores(scores, prompts, "positive")
            absent = class_scores(scores, prompts, "negative")
            fitted = self._fitted(number)
            findings += [
                self._finding(prompts, name, present[name], absent[name], fitted.get(name))
                for name in prompts.classes
            ]
        return sorted(findings, key=_order)

    def _fitted(self, number: int) -> Mapping[str, FittedClass]:
        # The calibration's own prompts are the first set.
        return self._calibration.classes if self._calibration and number == 0 else {}

    def _finding(
        self,
        prompts: PromptSet,
        name: str,
        present: np.ndarray,
        absent: np.ndarray,
        fitted: FittedClass | None,
    ) -> Finding:
        difference = present - absent
        probability: float | None
        if fitted is not None:
            score, threshold = self._cuts[name]
            target, _ = fitted.chosen_prevalence(name, "validation", difference)
            probability = float(sigmoid(fitted.logits(difference, target))[0])
            seen = bool(difference[0] >= score)
        else:
            scale, threshold = self._model.learned_scale, 0.5
            probability = None if scale is None else float(sigmoid(scale * difference)[0])
            seen = bool(difference[0] >= 0)
        return Finding(
            name,
            prompts.name,
            prompts.classes[name].positive[0],
            float(present[0]),
            float(absent[0]),
            probability,
            threshold,
            fitted is not None,
            seen,
        )


def _order(finding: Finding) -> tuple[bool, float, float]:
    probability = -1.0 if finding.probability is None else finding.probability
    return not finding.seen, -probability, finding.absent - finding.present


def _asked_sets(model: ImageTextModel, calibration: Calibration | None) -> list[PromptSet]:
    prompt_sets = sets_of(model.prompts)
    if calibration is None:
        return prompt_sets
    asked = [calibration.prompts]
    for prompts in prompt_sets:
        others = [name for name in prompts.classes if name not in calibration.prompts.classes]
        asked += [prompts.only(others)] if others else []
    return asked


def _cuts(classes: Mapping[str, FittedClass]) -> dict[str, tuple[float, float]]:
    """Score and probability from which on each class counts as seen."""
    cuts = {}
    for name, fitted in classes.items():
        target = fitted.prevalence if fitted.target is None else fitted.target
        score = thresholds(
            np.array(fitted.positive),
            np.array(fitted.negative),
            sensitivity=_RULES.sensitivity,
            specificity=_RULES.specificity,
            threshold_probability=_RULES.threshold_probability,
            prevalence=target,
        )["youden"]
        probability = sigmoid(fitted.logits(np.array([score]), target))
        cuts[name] = score, float(probability[0])
    return cuts
