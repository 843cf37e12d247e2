"""What a calibration says of new images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.evaluation.decisions.calibration import Calibration
from medclip_debias.evaluation.decisions.probability import Unfit
from medclip_debias.evaluation.metrics import sigmoid
from medclip_debias.evaluation.options import PrevalenceLike
from medclip_debias.front.images import warn

CalibrationLike: TypeAlias = Calibration | Path | str


def decide(
    calibration: Calibration,
    where: str,
    differences: Mapping[str, NDArray[np.float64]],
    prevalence: PrevalenceLike,
    coverage: float | None,
) -> dict[str, pd.DataFrame]:
    """Decide on images by positive less negative scores ``[images]``; Unfit classes warn.

    Of each class ``probability`` and ``answer``, a row an image, and the ``prevalence`` taken.
    """
    prevalences = calibration.asked(prevalence)
    level = calibration.coverage if coverage is None else coverage
    decisions: dict[str, pd.DataFrame] = {}
    for name, scores in differences.items():
        fitted = calibration.classes.get(name)
        if fitted is None:
            why = calibration.skipped.get(name)
            warn(f"{where}: '{name}' is not calibrated ({why.reason if why else 'absent'}).")
            continue
        try:
            target, _ = fitted.chosen_prevalence(name, prevalences, scores)
        except Unfit as reason:
            warn(f"skipped '{name}': {reason}.")
            continue
        rule, values = fitted.sets(scores, level, calibration.conformal, target)
        probability = sigmoid(fitted.logits(scores, target))
        decisions[name] = pd.DataFrame(
            {"probability": probability, "answer": rule.words(values), "prevalence": target}
        )
    if not decisions:
        raise UserError(f"{where}: gives no probability of any of these classes.")
    return decisions
