"""What a calibration says of new images, for the front door."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.evaluation.decisions.calibration import Calibration, FittedClass
from medclip_debias.evaluation.decisions.options import PrevalenceLike
from medclip_debias.evaluation.decisions.probability import Unfit
from medclip_debias.front.saying import warn

Floats = NDArray[np.float64]
CalibrationLike: TypeAlias = Calibration | Path | str


def read_calibration(calibration: CalibrationLike) -> tuple[Calibration, str]:
    """The calibration, and what messages call it."""
    if isinstance(calibration, Calibration):
        return calibration, "calibration"
    return Calibration.read(calibration), str(calibration)


@dataclass(frozen=True)
class DecidedClass:
    """One class: scores and log-odds ``[images]``, at the prevalence taken."""

    fitted: FittedClass
    scores: Floats
    logits: Floats
    prevalence: float

    def answers(self, calibration: Calibration, coverage: float | None) -> NDArray[np.str_]:
        """One word for each image, at ``coverage`` or at the calibration's."""
        level = calibration.coverage if coverage is None else coverage
        return self.fitted.sets(self.scores, level, calibration.conformal, self.prevalence).words


@dataclass(frozen=True)
class Decided:
    """Every class that could be decided, of images named by ``index``."""

    calibration: Calibration
    index: pd.Index
    classes: Mapping[str, DecidedClass]

    @classmethod
    def of(
        cls,
        calibration: Calibration,
        where: str,
        differences: Mapping[str, Floats],
        prevalence: PrevalenceLike,
        index: pd.Index,
    ) -> Decided:
        """Decide on images by their positive less negative scores, per class.

        Raises:
            UserError: the prevalence cannot be taken, or no class is calibrated.
        """
        asked = calibration.asked(prevalence)
        found: dict[str, DecidedClass] = {}
        for name, scores in differences.items():
            fitted = calibration.classes.get(name)
            if fitted is None:
                why = calibration.skipped.get(name)
                warn(f"{where}: '{name}' is not calibrated ({why.reason if why else 'absent'}).")
                continue
            try:
                target, _ = fitted.chosen_prevalence(name, asked, scores)
            except Unfit as reason:
                warn(f"'{name}' is left out: {reason}.")
                continue
            found[name] = DecidedClass(fitted, scores, fitted.logits(scores, target), target)
        if not found:
            raise UserError(f"{where}: gives no probability of any of these classes.")
        return cls(calibration, index, found)

    def items(self) -> Iterator[tuple[str, DecidedClass]]:
        """Name and decisions of each class."""
        return iter(self.classes.items())
