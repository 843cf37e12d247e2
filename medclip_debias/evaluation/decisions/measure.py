"""Decisions on evaluated images: how good the probabilities, thresholds and sets of answers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.prompts import PromptSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import weighted_mean
from medclip_debias.evaluation.decisions.calibration import (
    FEW,
    Calibration,
    FittedClass,
    fit_classes,
    known_classes,
)
from medclip_debias.evaluation.decisions.options import DecisionOptions
from medclip_debias.evaluation.decisions.probability import Unfit, qualities
from medclip_debias.evaluation.decisions.thresholds import CURVE, net_benefit, thresholds
from medclip_debias.evaluation.metrics import reliability, sigmoid
from medclip_debias.evaluation.protocol import Draw, Measured

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MEANS = {"ece": "probabilities/ece", "coverage": "sets/coverage", "abstention": "sets/abstention"}
"""Means over the classes, and what of a class they are means of."""


@dataclass(frozen=True)
class Decider:
    """What is asked, and a file's calibration; without one the validate images are fitted to."""

    options: DecisionOptions
    calibration: Calibration | None = None

    @classmethod
    def of(
        cls,
        options: DecisionOptions | None,
        model_hash: str | None,
        prompts: PromptSet,
        offsets: str,
    ) -> Self | None:
        """Read and check what the options name; None where nothing is asked."""
        if options is None:
            return None
        known_classes(options.prevalence, prompts)
        if options.calibration is None:
            return cls(options)
        where = str(options.calibration)
        calibration = Calibration.read(options.calibration)
        calibration.check(where, model_hash, prompts)
        calibration.asked(options.prevalence)
        if offsets != "none":
            raise UserError(
                f"{where}: is of scores without offsets; leave the option offsets at 'none'."
            )
        return cls(options, calibration)

    def decide(
        self,
        differences: Mapping[str, Floats],
        truth: Mapping[str, Floats],
        patients: Sequence[str],
        validation: tuple[Mapping[str, Floats], Mapping[str, Floats]] | str,
        *,
        scale: float | None,
        draw: Draw,
    ) -> Measured:
        """Calibrate, decide on the evaluated images, and compare with their truth."""
        about: dict[str, Any] = {"method": self.options.method, "split": "validate"}
        if self.calibration is not None:
            kept = self.calibration
            classes, skipped = dict(kept.classes), dict(kept.skipped)
            about = {"method": kept.method, "data_hash": kept.data_hash, "split": kept.split}
        elif isinstance(validation, str):
            reason = f"no images to calibrate on: {validation}"
            return Measured([], {"method": self.options.method, "reason": reason})
        else:
            classes, skipped = fit_classes(self.options.method, *validation)
        measured = decisions(
            differences, truth, patients, classes, self.options, scale=scale, draw=draw
        )
        details = measured.details
        reasons = {name: s.model_dump() for name, s in skipped.items() if name in differences}
        reasons |= details["skipped"]
        for name in differences:
            if name not in details["classes"] and name not in reasons:
                reasons[name] = {"reason": "one label value only among the evaluated images"}
        asked = {"coverage_asked": self.options.coverage, "conformal": self.options.conformal}
        return Measured(measured.rows, about | asked | details | {"skipped": reasons})


@dataclass(frozen=True)
class ClassDecisions:
    """What is decided about the images of one class with a known truth.

    Attributes:
        known: which of all evaluated images these are.
        positive: their truth.
        stages: log-odds by name: ``uncalibrated`` (the model's own, where it has a scale),
            ``validation`` (calibrated), ``probabilities`` (calibrated, for the target prevalence).
        flagged: by threshold rule, which images count as positive.
        present: which images have "present" in their set of answers.
        absent: which have "absent".
    """

    known: Bools
    positive: Bools
    stages: Mapping[str, Floats]
    flagged: Mapping[str, Bools]
    present: Bools
    absent: Bools

    def statistics(self, weights: Floats) -> dict[str, Floats]:
        """Every metric under each row of ``weights [b, n]`` of these images."""
        y, present, absent = self.positive, self.present, self.absent
        covered, both, none = np.where(y, present, absent), present & absent, ~(present | absent)
        everyone = np.ones_like(y)
        shares = {
            "sets/coverage": (covered, everyone),
            "sets/coverage_present": (covered, y),
            "sets/coverage_absent": (covered, ~y),
            "sets/abstention": (both | none, everyone),
            "sets/both": (both, everyone),
            "sets/none": (none, everyone),
            "sets/right_when_single": (covered, present ^ absent),
        }
        for rule, flagged in self.flagged.items():
            shares |= {
                f"thresholds.{rule}/sensitivity": (flagged, y),
                f"thresholds.{rule}/specificity": (~flagged, ~y),
                f"thresholds.{rule}/ppv": (y, flagged),
                f"thresholds.{rule}/npv": (~y, ~flagged),
                f"thresholds.{rule}/flagged": (flagged, everyone),
            }
        # NaN where a share has no members.
        result = {
            name: weighted_mean(right[members], weights[:, members])
            for name, (right, members) in shares.items()
        }
        for stage, logits in self.stages.items():
            own = qualities(y, logits, weights)
            result |= {f"{stage}/{name}": values for name, values in own.items()}
        return result


def decisions(
    differences: Mapping[str, Floats],
    truth: Mapping[str, Floats],
    patients: Sequence[str],
    fitted: Mapping[str, FittedClass],
    options: DecisionOptions,
    *,
    scale: float | None = None,
    draw: Draw | None = None,
) -> Measured:
    """Decide on images and compare with the truth, with intervals over patients.

    Differences are positive minus negative score of each image; truth is 1, 0 or NaN, and its
    classes are measured. ``scale`` brings the model's own scores to log-odds.

    Returns:
        `MEANS` over the classes and the metrics of each class; ``classes``, ``notes`` and
        ``skipped`` as docs/results.md has them.
    """
    plans: dict[str, ClassDecisions] = {}
    described: dict[str, dict[str, Any]] = {}
    skipped: dict[str, dict[str, Any]] = {}
    for name in (name for name in truth if name in fitted):
        given = (differences[name], truth[name], fitted[name], options, scale)
        try:
            plans[name], described[name] = _plan(name, *given)
        except Unfit as reason:
            skipped[name] = {"reason": str(reason)}
    if not plans:
        why = "no class could be calibrated"
        return Measured([], {"reason": why, "classes": {}, "skipped": skipped})

    def statistics(weights: Floats) -> dict[str, Floats]:
        found: dict[str, Floats] = {}
        for name, plan in plans.items():
            own = plan.statistics(weights[:, plan.known])
            found |= {f"{name}/{key}": values for key, values in own.items()}
        for mean, key in MEANS.items():
            found[f"decisions_{mean}"] = np.mean([found[f"{name}/{key}"] for name in plans], axis=0)
        return found

    estimates = (draw or Draw()).estimates(statistics, patients)
    measured = estimates.rows()
    for name, plan in plans.items():
        groups = {stage: f"{stage}/" for stage in (*plan.stages, "sets")}
        groups |= {f"threshold {rule}": f"thresholds.{rule}/" for rule in plan.flagged}
        for group, prefix in groups.items():
            named = f"decisions, {group}"
            measured += estimates.rows(f"{name}/{prefix}", of_class=name, group=named)
    notes = _notes({name: fitted[name] for name in plans})
    return Measured(measured, {"classes": described, "notes": notes, "skipped": skipped})


def _plan(
    name: str,
    scores: Floats,
    truth: Floats,
    fitted: FittedClass,
    options: DecisionOptions,
    scale: float | None,
) -> tuple[ClassDecisions, dict[str, Any]]:
    """What is decided, and what is told of it before anything is measured."""
    target, source = fitted.chosen_prevalence(name, options.prevalence, scores)
    known = ~np.isnan(truth)
    scores, positive = scores[known], truth[known] == 1
    logits = fitted.logits(scores, target)
    stages = {} if scale is None else {"uncalibrated": scale * scores}
    stages |= {"validation": fitted.logits(scores), "probabilities": logits}
    bounds = thresholds(
        np.array(fitted.positive),
        np.array(fitted.negative),
        sensitivity=options.sensitivity,
        specificity=options.specificity,
        threshold_probability=options.threshold_probability,
        prevalence=target,
    )
    rule, asked = fitted.sets(scores, options.coverage, options.conformal, target)
    flagged: dict[str, Bools] = {name: scores >= bound for name, bound in bounds.items()}
    plan = ClassDecisions(known, positive, stages, flagged, *rule.of(asked))
    return plan, {
        "fitted": {
            "positive": len(fitted.positive),
            "negative": len(fitted.negative),
            "map": fitted.map.model_dump(mode="json"),
        },
        "prevalence": {
            "validation": fitted.prevalence,
            "target": target,
            "from": source,
            "observed": float(positive.mean()),
        },
        "probabilities": {"reliability": reliability(positive, sigmoid(logits))},
        "thresholds": {
            name: {"score": t, "probability": float(sigmoid(fitted.logits(np.array(t), target)))}
            for name, t in bounds.items()
        },
        "net_benefit": _curve(positive, sigmoid(logits)),
        "sets": {
            "present_from": rule.present_from,
            "absent_to": rule.absent_to,
            "images": len(positive),
        },
    }


def _curve(positive: Bools, probability: Floats) -> list[dict[str, float]]:
    """A decision curve: acting where the probability reaches the threshold, on all, on nobody."""
    ones, everyone = np.ones((1, len(positive))), np.ones_like(positive)
    return [
        {
            "threshold_probability": t,
            "model": float(net_benefit(positive, probability >= t, ones, t)[0]),
            "all": float(net_benefit(positive, everyone, ones, t)[0]),
        }
        for t in CURVE
    ]


def _notes(fitted: Mapping[str, FittedClass]) -> list[str]:
    few = [
        f"{name} ({len(found.positive)} with, {len(found.negative)} without)"
        for name, found in fitted.items()
        if min(len(found.positive), len(found.negative)) < FEW
    ]
    sentence = f"Calibrated on fewer than {FEW} images of one label, so take these as rough: "
    return [f"{sentence}{', '.join(few)}."] if few else []
