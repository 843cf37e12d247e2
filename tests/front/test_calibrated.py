"""A calibration at the front door: probabilities by hand, answers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.data.prompts import PromptSet
from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.evaluation.decisions.calibration import Calibration, fit_classes

SIDES = {"Effusion": ("Left pleural effusion.", "No pleural effusion.")}
PROMPTS = PromptSet(
    name="mine", classes={n: {"positive": (p,), "negative": (q,)} for n, (p, q) in SIDES.items()}
)


@pytest.fixture(scope="module")
def difference(model, files):
    scores = model.scores(files, list(SIDES["Effusion"])).to_numpy(dtype=np.float64)
    return scores[:, 0] - scores[:, 1]


@pytest.fixture(scope="module")
def calibration(model, difference):
    rng = np.random.default_rng(0)
    middle, spread = difference.mean(), difference.std()
    truth = (rng.random(400) < 0.4).astype(float)
    scores = middle + spread * (rng.normal(size=400) + 2 * truth - 1)
    classes, _ = fit_classes("platt", {"Effusion": scores}, {"Effusion": truth})
    about = {"model_hash": model.network.content_hash, "data_hash": "d", "split": "validate"}
    return Calibration(**about, prompts=PROMPTS, method="platt", classes=classes)


def test_probabilities_are_those_of_the_calibration(
    model, files, calibration, difference, tmp_path
):
    calibration.write(tmp_path / "c.json")
    line, share = calibration.classes["Effusion"].map, calibration.classes["Effusion"].prevalence
    odds = np.exp(line.slope * difference + line.intercept)
    table = model.zero_shot(files, calibration=tmp_path / "c.json")
    assert table["Effusion"].to_numpy() == pytest.approx(odds / (1 + odds))
    odds *= 0.05 / 0.95 / (share / (1 - share))
    given = {"calibration": calibration, "prevalence": {"Effusion": 0.05}}
    rare = model.zero_shot(files, SIDES, **given)
    assert rare["Effusion"].to_numpy() == pytest.approx(odds / (1 + odds))
    decided = model.decisions(files, calibration, prevalence={"Effusion": 0.05})
    assert decided["probability"].to_numpy() == pytest.approx(odds / (1 + odds))
    assert set(decided["answer"]) <= {"present", "absent", "both", "none"}
    wide = model.decisions(files, calibration, coverage=0.999)
    assert set(wide["answer"]) == {"both"}


def test_what_does_not_fit_the_calibration_is_refused(model, files, calibration):
    other = calibration.model_copy(update={"model_hash": "0" * 16})
    with pytest.raises(UserError, match=r"was made for the model 0+"):
        model.zero_shot(files, calibration=other)
    with pytest.raises(UserError, match="other prompts of the class 'Effusion'"):
        model.zero_shot(files, {"Effusion": ("Water.", "No water.")}, calibration=calibration)
    with pytest.raises(UserError, match="one of the two"):
        model.zero_shot(files, calibration=calibration, scale=3.0)
    with pytest.raises(UserError, match="needs a calibration"):
        model.zero_shot(files, SIDES, scale=3.0, prevalence="estimated")
    with pytest.raises(UserError, match="no bare sentences"):
        model.zero_shot(files, ["Left pleural effusion.", "Nothing."], calibration=calibration)
    with pytest.raises(UserError, match="coverage must be"):
        model.decisions(files, calibration, coverage=1.0)
    far = {"prevalence": "estimated"}
    shifted = calibration.model_copy(deep=True)
    moved = calibration.classes["Effusion"].map.model_copy(update={"intercept": -900.0})
    shifted.classes["Effusion"] = calibration.classes["Effusion"].model_copy(update={"map": moved})
    with (
        pytest.warns(ReportedWarning, match="no prevalence can be estimated"),
        pytest.raises(UserError, match="no probability of any"),
    ):
        model.zero_shot(files, calibration=shifted, **far)
