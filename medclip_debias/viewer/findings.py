"""What a model sees on a radiograph, before anybody asks: its prompts' classes, in an order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from medclip_debias.data.prompts import sets_of
from medclip_debias.evaluation.decisions.calibration import Calibration, FittedClass
from medclip_debias.evaluation.decisions.options import DecisionOptions
from medclip_debias.evaluation.decisions.thresholds import thresholds
from medclip_debias.evaluation.metrics import sigmoid
from medclip_debias.evaluation.zero_shot import SideScores
from medclip_debias.models.finite import finite

if TYPE_CHECKING:
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel


@dataclass(frozen=True)
class Finding:
    """One class of one prompt set on one image; ``present`` and ``absent`` are mean scores."""

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
    """The prompts of a model, encoded once, and its calibration."""

    def __init__(self, model: ImageTextModel, calibration: Calibration | None = None) -> None:
        self._model, self.calibrated = model, calibration is not None
        self.prompt_sets = sets_of(model.prompts)
        self._fitted: dict[str, FittedClass] = {}
        if calibration is not None:
            first, self._fitted = calibration.prompts, calibration.classes
            others = [[n for n in p.classes if n not in first.classes] for p in self.prompt_sets]
            pairs = zip(self.prompt_sets, others, strict=True)
            self.prompt_sets = [first, *(p.only(names) for p, names in pairs if names)]
        with torch.inference_mode():
            self._vectors = [model.encode_sentences(one.texts) for one in self.prompt_sets]
        self._youden = {name: _youden(fitted) for name, fitted in self._fitted.items()}

    def of(self, features: ImageFeatures) -> list[Finding]:
        """The findings of one image: those seen first, and each part by falling probability."""
        findings, scale = [], self._model.learned_scale
        for prompts, vectors in zip(self.prompt_sets, self._vectors, strict=True):
            with torch.inference_mode():
                scored = self._model.score(features, vectors)
            scores = finite(scored, "zero-shot classification").astype(np.float64)
            both = SideScores.of(scores, prompts)
            for name, sides in prompts.classes.items():
                difference = both.differences[name]
                fitted = self._fitted.get(name) if prompts is self.prompt_sets[0] else None
                score, threshold = 0.0, 0.5
                logit = None if scale is None else scale * difference
                if fitted is not None:
                    score, threshold = self._youden[name]
                    target, _ = fitted.chosen_prevalence(name, "validation", difference)
                    logit = fitted.logits(difference, target)
                findings.append(
                    Finding(
                        name=name,
                        prompt_set=prompts.name,
                        sentence=sides.positive[0],
                        present=float(both.positive[name][0]),
                        absent=float(both.negative[name][0]),
                        probability=None if logit is None else float(sigmoid(logit)[0]),
                        threshold=threshold,
                        calibrated=fitted is not None,
                        seen=bool(difference[0] >= score),
                    )
                )

        def order(finding: Finding) -> tuple[bool, float, float]:
            probability = -1.0 if finding.probability is None else finding.probability
            return not finding.seen, -probability, finding.absent - finding.present

        return sorted(findings, key=order)


def _youden(fitted: FittedClass) -> tuple[float, float]:
    """Score and probability from which on a class counts as seen."""
    target = fitted.prevalence if fitted.target is None else fitted.target
    rules = {"sensitivity", "specificity", "threshold_probability"}
    score = thresholds(
        np.array(fitted.positive),
        np.array(fitted.negative),
        prevalence=target,
        **DecisionOptions().model_dump(include=rules),
    )["youden"]
    return score, float(sigmoid(fitted.logits(np.array([score]), target))[0])
