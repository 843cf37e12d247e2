"""Make a calibration: from a model and the labelled images of a prepared set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from medclip_debias.config import validate
from medclip_debias.data.label_maps import load_label_map
from medclip_debias.data.labels import LabelPolicy
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.records import SPLITS
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.decisions.calibration import Calibration, fit_classes, known_classes
from medclip_debias.evaluation.decisions.options import Choices, checked_prevalence
from medclip_debias.evaluation.encoding import row_scores
from medclip_debias.evaluation.label_table import labels_of
from medclip_debias.evaluation.prompt_checks import unsaid_prompts
from medclip_debias.evaluation.sides import prompt_differences
from medclip_debias.files import check_out
from medclip_debias.grounding.preparation import model_and_set
from medclip_debias.models.finite import NotFiniteError
from medclip_debias.settings_files import apply_overrides


class CalibrateOptions(Choices):
    """The choices of a calibration."""

    labels: LabelPolicy = LabelPolicy()

    @classmethod
    def given(cls, words: Sequence[str]) -> CalibrateOptions:
        """Options of ``key=value``."""
        return validate(cls, apply_overrides({}, words), "--set")


def shares(words: Sequence[str]) -> dict[str, float]:
    """Prevalences of ``CLASS=SHARE``."""
    found: dict[str, float] = {}
    for word in words:
        name, _, text = (part.strip() for part in word.rpartition("="))
        try:
            found[name] = float(text)
        except ValueError:
            name = ""
        if not name:
            raise UserError(f"--prevalence '{word}': give a class and a share, as 'Edema=.05'.")
    if found:
        try:
            checked_prevalence(found)
        except ValueError as error:
            raise UserError(f"--prevalence: {error}.") from None
    return found


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
    found = labels_of(data, split, list(asked.classes), table=labels, label_map=mapped)
    options = options or CalibrateOptions()
    try:
        scores = row_scores(model, data, found.rows, asked.texts, what="calibrate")
    except NotFiniteError as error:
        raise UserError(f"{model_folder}: {error}") from error
    policy = options.labels
    judged = {name: policy.apply(np.asarray(v, np.float64)) for name, v in found.values.items()}
    differences = prompt_differences(scores, asked)
    fitted, skipped = fit_classes(options.method, differences, judged, prevalence)
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
        unsaid=unsaid_prompts(model.provenance, asked.texts, data) or (),
    )
    calibration.write(Path(out))
    return calibration
