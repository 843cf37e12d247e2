"""Decisions on evaluated images: how good the probabilities, thresholds and sets of answers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.prompts import PromptSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import Statistics, weighted_mean
from medclip_debias.evaluation.decisions.calibration import (
    FEW,
    Calibration,
    FittedClass,
    fit_classes,
    known_classes,
)
from medclip_debias.evaluation.decisions.probability import (
    CURVE,
    Unfit,
    net_benefit,
    qualities,
    thresholds,
)
from medclip_debias.evaluation.metrics import reliability, sigmoid
from medclip_debias.evaluation.options import DecisionOptions
from medclip_debias.evaluation.protocol import Draw, Measured

Floats = NDArray[np.float64]
MEANS = {"ece": "probabilities/ece", "coverage": "sets/coverage", "abstention": "sets/abstention"}
"""Means over the classes, and what of a class they are means of."""


def read_calibration(
    options: DecisionOptions, model_hash: str | None, prompts: PromptSet, offsets: str
) -> Calibration | None:
    """Read and check the calibration that options name; None where they name none."""
    known_classes(options.prevalence, prompts)
    if options.calibration is None:
        return None
    where = str(options.calibration)
    calibration = Calibration.read(options.calibration)
    calibration.check(where, model_hash, prompts)
    calibration.asked(options.prevalence)
    if "method" in options.model_fields_set and options.method != calibration.method:
        raise UserError(
            f"{where}: was fitted by '{calibration.method}', and the option method asks for"
            f" '{options.method}'; leave it out, or calibrate again by it."
        )
    if offsets != "none":
        raise UserError(
            f"{where}: is of scores without offsets; leave the option offsets at 'none'."
        )
    return calibration


def decide(
    options: DecisionOptions,
    calibration: Calibration | None,
    differences: Mapping[str, Floats],
    truth: Mapping[str, Floats],
    patients: Sequence[str],
    validation: tuple[Mapping[str, Floats], Mapping[str, Floats]] | str,
    *,
    scale: float | None,
    draw: Draw,
) -> Measured:
    """Calibrate, decide on the evaluated images, and compare with their truth.

    Differences are positive minus negative score of each image; truth is 1, 0 or NaN, and its
    classes are measured. Without ``calibration`` the ``validation`` is fitted to: differences and
    labels of other images, or why there are none; with one its sets of answers are measured, but
    for what the options say of them. ``scale`` brings the model's own scores to
    log-odds. Rows are `MEANS` over the classes and the metrics of each; details as docs/results.md
    has them.
    """
    about: dict[str, Any] = {"method": options.method, "split": "validate"}
    if calibration is not None:
        classes, unfitted = dict(calibration.classes), dict(calibration.skipped)
        about = {"method": calibration.method, "split": calibration.split}
        about["data_hash"] = calibration.data_hash
        own = calibration.model_dump(include={"coverage", "conformal"} - options.model_fields_set)
        options = options.model_copy(update=own)
    elif isinstance(validation, str):
        reason = f"no images to calibrate on: {validation}"
        return Measured([], {"method": options.method, "reason": reason})
    else:
        classes, unfitted = fit_classes(options.method, *validation)
    about |= {"coverage_asked": options.coverage, "conformal": options.conformal}
    skipped: dict[str, Any] = {
        name: why.model_dump() for name, why in unfitted.items() if name in differences
    }
    plans: dict[str, _Plan] = {}
    for name in (name for name in truth if name in classes):
        try:
            plans[name] = _plan(name, differences[name], truth[name], classes[name], options, scale)
        except Unfit as reason:
            skipped[name] = {"reason": str(reason)}
    one_value = "one label value only among the evaluated images"
    lacking = [name for name in differences if name not in plans and name not in skipped]
    about["classes"] = {name: plan.details for name, plan in plans.items()}
    skipped |= {name: {"reason": one_value} for name in lacking}
    if not plans:
        why = {"reason": "no class could be calibrated"}
        return Measured([], about | why | {"skipped": skipped})

    def statistics(weights: Floats) -> dict[str, Floats]:
        each = {name: plan.statistics(weights) for name, plan in plans.items()}
        result = {f"{name}/{key}": v for name, own in each.items() for key, v in own.items()}
        for mean, key in MEANS.items():
            result[f"decisions_{mean}"] = np.mean([own[key] for own in each.values()], axis=0)
        return result

    estimates = draw.estimates(statistics, patients)
    measured = estimates.rows()
    for name, plan in plans.items():
        for group, prefix in plan.groups.items():
            named = f"decisions, {group}"
            measured += estimates.rows(f"{name}/{prefix}", of_class=name, group=named)
    sizes = {name: (len(classes[name].positive), len(classes[name].negative)) for name in plans}
    few = [f"{n} ({a} with, {b} without)" for n, (a, b) in sizes.items() if min(a, b) < FEW]
    rough = f"Calibrated on fewer than {FEW} images of one label, so take these as rough: "
    about["notes"] = [f"{rough}{', '.join(few)}."] if few else []
    return Measured(measured, about | {"skipped": skipped})


class _Plan(NamedTuple):
    """What is measured of a class, its groups and their prefixes, and what is told beside it."""

    statistics: Statistics
    groups: dict[str, str]
    details: dict[str, Any]


def _plan(
    name: str,
    scores: Floats,
    truth: Floats,
    fitted: FittedClass,
    options: DecisionOptions,
    scale: float | None,
) -> _Plan:
    """Plan the measures of a class.

    Stages of the log-odds are ``uncalibrated`` (the model's own, where it has a scale),
    ``validation`` (calibrated) and ``probabilities`` (calibrated, for the target prevalence).
    """
    target, source = fitted.chosen_prevalence(name, options.prevalence, scores)
    known = ~np.isnan(truth)
    scores, y = scores[known], truth[known] == 1
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
    present, absent = rule.of(asked)
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
    for bound, score in bounds.items():
        flagged = scores >= score
        shares |= {
            f"thresholds.{bound}/sensitivity": (flagged, y),
            f"thresholds.{bound}/specificity": (~flagged, ~y),
            f"thresholds.{bound}/ppv": (y, flagged),
            f"thresholds.{bound}/npv": (~y, ~flagged),
            f"thresholds.{bound}/flagged": (flagged, everyone),
        }

    def statistics(weights: Floats) -> dict[str, Floats]:
        w = weights[:, known]
        # NaN where a share has no members.
        result = {
            key: weighted_mean(right[members], w[:, members])
            for key, (right, members) in shares.items()
        }
        for stage, log_odds in stages.items():
            of_stage = qualities(y, log_odds, w)
            result |= {f"{stage}/{key}": values for key, values in of_stage.items()}
        return result

    groups = {stage: f"{stage}/" for stage in (*stages, "sets")}
    groups |= {f"threshold {bound}": f"thresholds.{bound}/" for bound in bounds}
    probability, ones = sigmoid(logits), np.ones((1, len(y)))
    details = {
        "fitted": {
            "positive": len(fitted.positive),
            "negative": len(fitted.negative),
            "map": fitted.map.model_dump(mode="json"),
        },
        "prevalence": {
            "validation": fitted.prevalence,
            "target": target,
            "from": source,
            "observed": float(y.mean()),
        },
        "probabilities": {"reliability": reliability(y, probability)},
        "thresholds": {
            name: {"score": t, "probability": float(sigmoid(fitted.logits(np.array(t), target)))}
            for name, t in bounds.items()
        },
        # A decision curve: acting where the probability reaches the threshold, on all, on nobody.
        "net_benefit": [
            {
                "threshold_probability": t,
                "model": float(net_benefit(y, probability >= t, ones, t)[0]),
                "all": float(net_benefit(y, everyone, ones, t)[0]),
            }
            for t in CURVE
        ],
        "sets": {
            "present_from": rule.present_from,
            "absent_to": rule.absent_to,
            "images": len(y),
        },
    }
    return _Plan(statistics, groups, details)
