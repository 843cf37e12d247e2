"""What a calibration says of new images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.evaluation.decisions.calibration import Calibration
from medclip_debias.evaluation.decisions.options import PrevalenceLike
from medclip_debias.evaluation.decisions.probability import Unfit
from medclip_debias.evaluation.metrics import sigmoid
from medclip_debias.front.images import warn

CalibrationLike: TypeAlias = Calibration | Path | str


@dataclass(frozen=True)
class ClassDecisions:
    """Of one class: probabilities and answers ``[images]``, and the prevalence taken."""

    probability: NDArray[np.float64]
    answer: NDArray[np.str_]
    prevalence: float


def decide(
    calibration: Calibration,
    where: str,
    differences: Mapping[str, NDArray[np.float64]],
    prevalence: PrevalenceLike,
    coverage: float | None,
) -> dict[str, ClassDecisions]:
    """Decide on images by positive less negative scores ``[images]``; Unfit classes warn."""
    asked = calibration.asked(prevalence)
    level = calibration.coverage if coverage is None else coverage
    decisions: dict[str, ClassDecisions] = {}
    for name, scores in differences.items():
        fitted = calibration.classes.get(name)
        if fitted is None:
            why = calibration.skipped.get(name)
            warn(f"{where}: '{name}' is not calibrated ({why.reason if why else 'absent'}).")
            continue
        try:
            target, _ = fitted.chosen_prevalence(name, asked, scores)
        except Unfit as reason:
            warn(f"skipped '{name}': {reason}.")
            continue
        rule, values = fitted.sets(scores, level, calibration.conformal, target)
        probability = sigmoid(fitted.logits(scores, target))
        decisions[name] = ClassDecisions(probability, rule.words(values), target)
    if not decisions:
        raise UserError(f"{where}: gives no probability of any of these classes.")
    return decisions
