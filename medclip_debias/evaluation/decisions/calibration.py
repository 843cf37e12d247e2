"""A calibration: what turns a model's scores of prompts into probabilities; made, and its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from medclip_debias.config import Settings, validate
from medclip_debias.data.label_maps import load_label_map
from medclip_debias.data.labels import LabelPolicy
from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.data.records import SPLITS
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.decisions.probability import (
    ScoreMap,
    Sets,
    Unfit,
    class_conditional,
    estimated_prevalence,
    fit,
    marginal,
    shifted,
)
from medclip_debias.evaluation.encoding import row_scores
from medclip_debias.evaluation.label_table import labels_of
from medclip_debias.evaluation.options import (
    Choices,
    Conformal,
    Method,
    PrevalenceLike,
    check_estimable,
    checked_prevalence,
)
from medclip_debias.evaluation.prompt_checks import (
    inverted_warnings,
    unsaid_prompts,
    unsaid_warning,
)
from medclip_debias.evaluation.sides import prompt_differences
from medclip_debias.evaluation.statistics import auc_interval
from medclip_debias.files import check_out, read_json, write_json
from medclip_debias.grounding.preparation import model_and_set
from medclip_debias.models.finite import NotFiniteError
from medclip_debias.settings_files import apply_overrides

Floats = NDArray[np.float64]
Source = Literal["given", "calibration", "estimated", "validation"]
FEW = 20
"""Fewer images of a label than this make a calibration of the class a rough one."""


class FittedClass(Settings):
    """One class: how scores become log-odds, and the scores that it was fitted to.

    ``map`` goes from score to log-odds at `prevalence`; ``positive`` and ``negative`` are scores of
    the images with and without the finding, from low to high, ``left_out`` how many others have
    neither label; ``target`` is the prevalence that probabilities are for, None for that of the
    fit.
    """

    map: ScoreMap
    positive: tuple[float, ...] = Field(min_length=1)
    negative: tuple[float, ...] = Field(min_length=1)
    left_out: int = Field(0, ge=0)
    target: float | None = Field(None, gt=0, lt=1)

    @property
    def prevalence(self) -> float:
        """Share of positives among the images of the fit."""
        return len(self.positive) / (len(self.positive) + len(self.negative))

    def logits(self, scores: Floats, target: float | None = None) -> Floats:
        """Log-odds of ``scores`` at the prevalence ``target``, by default that of the fit."""
        logits = self.map.logits(scores)
        return logits if target is None else shifted(logits, self.prevalence, target)

    def chosen_prevalence(
        self, name: str, asked: PrevalenceLike, scores: Floats
    ) -> tuple[float, Source]:
        """The prevalence to take for the images with ``scores``, and where it is from.

        A class that ``asked`` does not name has the prevalence of the file, or of the fit.
        """
        if asked == "estimated":
            return estimated_prevalence(self.map.logits(scores), self.prevalence), "estimated"
        if isinstance(asked, Mapping) and name in asked:
            return float(asked[name]), "given"
        if self.target is not None:
            return self.target, "calibration"
        return self.prevalence, "validation"

    def sets(
        self, scores: Floats, coverage: float, kind: Conformal, target: float
    ) -> tuple[Sets, Floats]:
        """The rule of sets of answers, and the values of ``scores`` that it is asked of."""
        positive, negative = np.array(self.positive), np.array(self.negative)
        if kind == "class_conditional":
            return class_conditional(positive, negative, coverage), scores
        ends = self.logits(positive, target), self.logits(negative, target)
        return marginal(*ends, coverage, target), self.logits(scores, target)


class Skipped(Settings):
    """A class without a calibration."""

    reason: str
    positive: int
    negative: int


class Calibration(Settings):
    """Calibrations of several classes of one model and prompt set.

    Attributes:
        model_hash: of the model whose scores they are; None for one in memory.
        data_hash: of the prepared set.
        split: whose images.
        prompts: the classes' prompts, word for word.
        method: what was fitted.
        coverage: of the sets of answers.
        conformal: what the coverage is kept among.
        classes: per class.
        skipped: classes that could not be fitted, and why.
        source: where the labels are from, and how many images and rows of it were left aside.
        unsaid: prompts that the model's training text does not say, as far as it is known.
    """

    format: Literal[1] = 1
    model_hash: str | None
    data_hash: str
    split: str
    prompts: PromptSet
    method: Method
    coverage: float = Field(0.9, ge=0.5, lt=1)
    conformal: Conformal = "class_conditional"
    classes: dict[str, FittedClass] = Field(min_length=1)
    skipped: dict[str, Skipped] = Field({})
    source: dict[str, str | int] = Field({})
    unsaid: tuple[str, ...] = ()

    @field_validator("classes")
    @classmethod
    def _sorted(cls, classes: dict[str, FittedClass]) -> dict[str, FittedClass]:
        for name, fitted in classes.items():
            if any(np.any(np.diff(side) < 0) for side in (fitted.positive, fitted.negative)):
                raise ValueError(f"the scores of '{name}' must go from low to high")
        return classes

    @property
    def warnings(self) -> list[str]:
        """A sentence for each class that is read the wrong way round, and for unsaid prompts."""
        aucs = {name: auc_interval(c.positive, c.negative) for name, c in self.classes.items()}
        return [*inverted_warnings(aucs), *unsaid_warning(self.unsaid, len(self.prompts.texts))]

    def write(self, path: Path) -> None:
        """Write it to ``path``; nothing in it names a patient or an image."""
        write_json(Path(path), self.model_dump(mode="json"))

    @classmethod
    def read(cls, path: Path | str) -> Calibration:
        """Read what `write` wrote."""
        remedy = "make it with 'medclip-debias calibrate'"
        content = read_json(Path(path), remedy, keys=("model_hash", "classes", "prompts"))
        return validate(cls, content, str(path))

    def check(self, where: str, model_hash: str | None, prompts: PromptSet) -> None:
        """Refuse another model or other prompts than it was made with."""
        again = "make one with 'medclip-debias calibrate'"
        if model_hash is None or model_hash != self.model_hash:
            raise UserError(
                f"{where}: was made for the model {self.model_hash}, and this one is"
                f" {model_hash or 'in memory, without a hash'}, whose scores mean something else;"
                f" {again} for it."
            )
        for name, sides in prompts.classes.items():
            if name not in self.prompts.classes:
                raise UserError(
                    f"{where}: knows no class '{name}'{did_you_mean(name, self.prompts.classes)};"
                    f" {again} with a prompt set that has it."
                )
            if self.prompts.classes[name] != sides:
                raise UserError(
                    f"{where}: was made with other prompts of the class '{name}' than these, which"
                    f" score differently; use its own, or {again} with these."
                )

    def described(self, name: str) -> dict[str, float | int]:
        """What a terminal should show of a class."""
        fitted = self.classes[name]
        counts = {"positive": len(fitted.positive), "negative": len(fitted.negative)}
        counts["left_out"] = fitted.left_out
        given = {} if fitted.target is None else {"used_at": fitted.target}
        return counts | {"prevalence": fitted.prevalence} | given

    def asked(self, prevalence: PrevalenceLike) -> PrevalenceLike:
        """``prevalence``, once it is sure that it can be taken."""
        try:
            checked: PrevalenceLike = checked_prevalence(prevalence)
            check_estimable(self.method, checked)
        except ValueError as error:
            raise UserError(f"prevalence: {error}.") from None
        known_classes(checked, self.prompts)
        return checked


def known_classes(prevalence: PrevalenceLike | Mapping[str, float], prompts: PromptSet) -> None:
    """Refuse a prevalence of a class that the prompts do not have."""
    for name in prevalence if isinstance(prevalence, Mapping) else ():
        if name not in prompts.classes:
            raise UserError(
                f"prevalence: there is no class '{name}'{did_you_mean(name, prompts.classes)}; the"
                f" prompts have: {', '.join(prompts.classes)}."
            )


def fit_classes(
    method: Method,
    differences: Mapping[str, Floats],
    judged: Mapping[str, Floats],
    prevalence: Mapping[str, float] | None = None,
) -> tuple[dict[str, FittedClass], dict[str, Skipped]]:
    """Fit each class to its own images.

    Returns:
        The classes that could be fitted, and the others with the reason.
    """
    classes: dict[str, FittedClass] = {}
    skipped: dict[str, Skipped] = {}
    for name, scores in differences.items():
        if name not in judged:
            reason = "no such label column on the images to calibrate on"
            skipped[name] = Skipped(reason=reason, positive=0, negative=0)
            continue
        positive, negative = (np.sort(scores[judged[name] == value]) for value in (1, 0))
        truth = np.repeat([True, False], [len(positive), len(negative)])
        try:
            score_map = fit(method, np.concatenate([positive, negative]), truth)
        except Unfit as reason:
            counts = {"positive": len(positive), "negative": len(negative)}
            reasons = [str(reason)]
            if all(counts.values()):
                wrong = inverted_warnings({name: auc_interval(positive, negative)})
                reasons += [sentence.rstrip(".") for sentence in wrong]
            skipped[name] = Skipped(reason="; ".join(reasons), **counts)
            continue
        classes[name] = FittedClass(
            map=score_map,
            positive=tuple(positive.tolist()),
            negative=tuple(negative.tolist()),
            left_out=len(scores) - len(truth),
            target=(prevalence or {}).get(name),
        )
    return classes, skipped


class CalibrateOptions(Choices):
    """The choices of a calibration."""

    labels: LabelPolicy = LabelPolicy()

    @classmethod
    def given(cls, words: Sequence[str]) -> CalibrateOptions:
        """Options of ``key=value``."""
        return validate(cls, apply_overrides({}, words), "--set")


def shares(words: Sequence[str]) -> dict[str, float]:
    """Prevalences of ``CLASS=SHARE``."""
    prevalences: dict[str, float] = {}
    for word in words:
        name, _, text = (part.strip() for part in word.rpartition("="))
        if name in prevalences:
            raise UserError(f"--prevalence: '{name}' is given twice; give each class once.")
        try:
            prevalences[name] = float(text)
        except ValueError:
            name = ""
        if not name:
            raise UserError(f"--prevalence '{word}': give a class and a share, as 'Edema=.05'.")
    if prevalences:
        try:
            checked_prevalence(prevalences)
        except ValueError as error:
            raise UserError(f"--prevalence: {error}.") from None
    return prevalences


def calibrate(
    model_folder: Path,
    prepared: Path,
    out: Path,
    *,
    split: str = "validate",
    prompts: Path | str | None = None,
    classes: Sequence[str] | None = None,
    labels: Path | None = None,
    label_map: Path | str | None = None,
    prevalence: Mapping[str, float] | None = None,
    options: CalibrateOptions | None = None,
    device: str = "cpu",
) -> Calibration:
    """Calibrate a model's scores on the frontal images of a split, and write ``out``.

    ``split`` is not that of images judged later, nor ``train``, whose scores are better than those
    of new patients. ``labels`` is a table in the place of the set's own. ``skipped`` of what is
    returned has the classes without a calibration.
    """
    if split not in SPLITS or split == "train":
        raise UserError(
            f"A calibration is made on the split 'validate' or another that the model has not"
            f" learned from, not on '{split}'{did_you_mean(split, SPLITS)}."
        )
    check_out(Path(out).parent)
    if Path(out).is_dir():
        raise UserError(f"{out}: is a folder; give the file to write, as calibration.json in it.")
    model, data = model_and_set(model_folder, prepared, device)
    asked = load_prompts(prompts or model.prompts.get("chex5") or "chex5").only(classes)
    prevalence = prevalence or {}
    known_classes(prevalence, asked)
    mapped = load_label_map(label_map) if label_map is not None else None
    of_images = labels_of(data, split, list(asked.classes), table=labels, label_map=mapped)
    options = options or CalibrateOptions()
    try:
        scores = row_scores(model, data, of_images.rows, asked.texts, what="calibrate")
    except NotFiniteError as error:
        raise UserError(f"{model_folder}: {error}") from error
    policy = options.labels
    judged = {name: policy.apply(np.asarray(v, np.float64)) for name, v in of_images.values.items()}
    differences = prompt_differences(scores, asked)
    fitted, skipped = fit_classes(options.method, differences, judged, prevalence)
    for name, why in (of_images.mapped.not_judged if of_images.mapped else {}).items():
        skipped[name] = Skipped(reason=why, positive=0, negative=0)
    if not fitted:
        reasons = "; ".join(f"{name}: {why.reason}" for name, why in skipped.items())
        raise UserError(f"{prepared}: no class can be calibrated ({reasons}).")
    calibration = Calibration(
        model_hash=model.content_hash,
        data_hash=data.content_hash,
        split=split,
        prompts=asked,
        method=options.method,
        coverage=options.coverage,
        conformal=options.conformal,
        classes=fitted,
        skipped=skipped,
        source=of_images.source,
        unsaid=unsaid_prompts(model.provenance, asked.texts, data) or (),
    )
    calibration.write(Path(out))
    return calibration
