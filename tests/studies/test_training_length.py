"""What the study of longer training says of invented metrics, and what it shares."""

from __future__ import annotations

import json

import numpy as np
import pytest

from medclip_debias.errors import UserError
from medclip_debias.experiments.runner import plan
from studies.command import run_named
from studies.phantom_run import METRICS
from studies.phantom_study import SECONDS_PER_STUDY, measurement_key
from studies.study import find_study
from studies.training_length import TrainingLength, TrainingLengthSettings, gains


def rows(arm, by, settings):
    """Twice the steps give .1; ``arm`` gains ``by`` in AUC at the longest only; some jitter."""
    rng = np.random.default_rng(5)
    found = []
    for cell in TrainingLength(settings).cells():
        late = cell["steps"] == settings.steps()[-1]
        row = cell | {m: 0.7 + 0.1 * late + 0.002 * rng.normal() for m in METRICS}
        row["auc"] += by * (late and cell["method"] == arm)
        found.append(row)
    return found


def test_a_gain_that_comes_with_longer_training_is_said_at_that_length_and_as_a_change():
    settings = TrainingLengthSettings()
    own = rows("true pairs removed", 0.05, settings)
    found = TrainingLength(settings).summary(own).findings
    assert len(found) == 3 * len(settings.steps()) + 3
    starts = {line.split(" against")[0]: line for line in found[:9]}
    assert "better in AUC" in starts["3,000 steps: true pairs removed"]
    assert "better in AUC" not in starts["1,000 steps: true pairs removed"]
    assert "better in AUC" not in starts["3,000 steps: language model"]
    assert "after 3,000 steps minus that after 300: AUC +0.05" in found[-3]
    assert ": AUC" not in found[-1]
    each = gains(own, "true pairs removed")
    assert np.mean([row["auc"] for row in each[3000].values()]) == pytest.approx(0.05, abs=0.005)
    assert np.mean([row["auc"] for row in each[300].values()]) == pytest.approx(0, abs=0.005)


def test_one_seed_is_too_few_to_say_anything_and_is_drawn():
    settings = TrainingLengthSettings(seeds=(0,))
    own = rows("language model", 0.05, settings)
    study = TrainingLength(settings)
    assert all("too few seeds" in line for line in study.summary(own).findings)
    assert len(study.figure(own).axes) == 6


def test_the_usual_length_is_what_the_study_of_false_negatives_measures():
    longer, usual = TrainingLength(), find_study("false-negatives")()
    known = {measurement_key(c) for c in usual.cells() if c["part"] == "train"}
    shared = [c for c in longer.cells() if measurement_key(c) in known]
    assert {c["steps"] for c in shared} == {1000}
    assert len(shared) == len(longer.cells()) / 3
    assert all(c["train"]["steps"] == c["steps"] for c in longer.cells())


def test_what_another_study_has_measured_is_not_counted_in_the_predicted_time(tmp_path):
    study = TrainingLength(TrainingLengthSettings(seeds=(0,)), tmp_path / "inputs")
    before = plan(study, tmp_path / "out", 1).seconds
    cell = next(c for c in study.cells() if c["steps"] == 3000)
    path = tmp_path / "inputs" / "measured" / f"{measurement_key(cell)}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({}))
    after = plan(study, tmp_path / "out", 1).seconds
    assert before - after == pytest.approx(study.settings.seconds_per_step * 3000 + 6, abs=0.2)


def test_a_phantom_to_be_made_counts_once_in_the_predicted_time(tmp_path):
    study = TrainingLength(TrainingLengthSettings(seeds=(0, 1)), tmp_path / "inputs")
    before = plan(study, tmp_path / "out", 1)
    assert [cell["seed"] for cell in before.inputs] == [0, 1]
    study.shared_path(study.shared(before.inputs[0])).mkdir(parents=True)
    after = plan(study, tmp_path / "out", 1)
    assert [cell["seed"] for cell in after.inputs] == [1]
    assert before.seconds - after.seconds == pytest.approx(SECONDS_PER_STUDY * 3900)
    assert plan(study, tmp_path / "out", 2).seconds < after.seconds


@pytest.mark.parametrize(
    "words",
    [
        "lengths=[1]",
        "lengths=[1,.3]",
        "lengths=[1,1]",
        "lengths=[0,1]",
        "lengths=[1,.inf]",
        "lengths=[.nan,1]",
    ],
)
def test_lengths_that_do_not_grow_are_refused(words, tmp_path):
    with pytest.raises(UserError, match="lengths"):
        run_named("training-length", tmp_path / "out", words=[words])
    assert not (tmp_path / "out").exists()
