"""A calibration's file: what it keeps, what it refuses, which classes it leaves out."""

from __future__ import annotations

import json

import numpy as np
import pytest

from medclip_debias.data.prompts import PromptSet
from medclip_debias.errors import UserError
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


def test_another_model_and_other_prompts_are_refused():
    calibration, _, _ = made()
    calibration.check("c.json", "m" * 16, PROMPTS)
    for own in ("x", None):
        with pytest.raises(UserError, match=r"c\.json: was made for the model m+, and this one is"):
            calibration.check("c.json", own, PROMPTS)
    other = PROMPTS.model_dump() | {}
    other["classes"]["Edema"]["negative"] = ("Dry lungs",)
    with pytest.raises(UserError, match="other prompts of the class 'Edema'"):
        calibration.check("c.json", "m" * 16, PromptSet.model_validate(other))
    new = PromptSet(name="x", classes={"Masses": PROMPTS.classes["Mass"]})
    with pytest.raises(UserError, match=r"no class 'Masses' \(did you mean 'Mass'\?\)"):
        calibration.check("c.json", "m" * 16, new)


@pytest.mark.parametrize(
    ("prevalence", "sentence"),
    [
        ({"Edema": 0}, "prevalence of 'Edema' must lie strictly between 0 and 1"),
        ({"Edema": 1.0}, "must lie strictly between 0 and 1"),
        ({"Edema": NAN}, "must lie strictly between 0 and 1"),
        ({"Edma": 0.1}, r"no class 'Edma' \(did you mean 'Edema'\?\)"),
        ("guessed", "must be 'validation', 'estimated', or a share"),
    ],
)
def test_a_prevalence_that_is_none_is_refused(prevalence, sentence):
    with pytest.raises(UserError, match=sentence):
        made()[0].asked(prevalence)
    with pytest.raises(UserError, match="cannot be estimated after 'temperature'"):
        made("temperature")[0].asked("estimated")


def broken(change):
    content = made()[0].model_dump(mode="json")
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "is not a JSON object"),
        ("{}", "lacks the key 'model_hash'"),
        (broken(lambda c: c["classes"]["Edema"]["positive"].reverse()), "from low to high"),
        (broken(lambda c: c["classes"]["Edema"]["map"].update(slope=-1)), "slope"),
        (broken(lambda c: c["classes"]["Edema"].update(positive=[])), "positive"),
        (broken(lambda c: c.update(format=2)), "format"),
        (broken(lambda c: c["classes"]["Edema"]["map"].update(slope=float("nan"))), "slope"),
    ],
)
def test_a_damaged_file_is_one_sentence(text, sentence, tmp_path):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        Calibration.read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
