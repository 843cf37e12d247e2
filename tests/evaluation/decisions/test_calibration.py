"""A calibration's file: what it keeps, what it refuses, which classes it leaves out."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.data.prompts import PromptSet
from medclip_debias.evaluation.decisions.calibration import Calibration, fit_classes

NAN = float("nan")
PROMPTS = PromptSet(
    name="mine",
    classes={
        "Edema": {"positive": ("Edema",), "negative": ("No edema",)},
        "Mass": {"positive": ("Mass",), "negative": ("No mass",)},
    },
)


def made(method="platt", n=200, seed=0, **more):
    rng = np.random.default_rng(seed)
    truth = (rng.random(n) < 0.4).astype(float)
    scores = rng.normal(size=n) + 1.5 * truth
    none = np.where(np.arange(n) < 3, NAN, 0.0)
    classes, skipped = fit_classes(
        method, {"Edema": scores, "Mass": scores}, {"Edema": truth, "Mass": none}, **more
    )
    about = {"model_hash": "m" * 16, "data_hash": "d", "split": "validate", "method": method}
    return Calibration(**about, prompts=PROMPTS, classes=classes, skipped=skipped), scores, truth


@pytest.mark.parametrize("method", ["platt", "temperature", "isotonic"])
def test_a_calibration_is_the_same_after_its_file(method, tmp_path):
    calibration, scores, truth = made(method, prevalence={"Edema": 0.05})
    calibration.write(tmp_path / "c.json")
    again = Calibration.read(tmp_path / "c.json")
    assert again == calibration
    edema = again.classes["Edema"]
    assert edema.prevalence == truth.mean()
    assert edema.chosen_prevalence("Edema", "validation", scores) == (0.05, "calibration")
    assert edema.chosen_prevalence("Edema", {"Edema": 0.2}, scores) == (0.2, "given")
    np.testing.assert_array_equal(
        edema.logits(scores, 0.05), calibration.classes["Edema"].logits(scores, 0.05)
    )


def test_a_class_without_positives_is_named_and_counted():
    calibration, _, _ = made()
    assert list(calibration.classes) == ["Edema"]
    why = calibration.skipped["Mass"]
    assert (why.positive, why.negative) == (0, 197)
    assert "one label value only" in why.reason
