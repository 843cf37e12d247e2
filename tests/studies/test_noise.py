"""What the study of mismatched reports says of invented metrics."""

from __future__ import annotations

import numpy as np
import pytest

from studies.noise import Noise, NoiseSettings
from studies.phantom_run import METRICS

FIVE = NoiseSettings(seeds=(0, 1, 2, 3, 4))


def rows(worse, by, settings=FIVE):
    """Noise takes .1 of everything, and ``by`` more from the AUC of ``worse``; a little jitter."""
    rng = np.random.default_rng(5)
    found = []
    for cell in Noise(settings).cells():
        noisy = cell["noise"] > 0
        row = cell | {m: 0.8 - 0.1 * noisy + 0.002 * rng.normal() for m in [*METRICS, "loss"]}
        row["auc"] -= by * (noisy and cell["method"] == worse)
        found.append(row)
    return found


@pytest.mark.parametrize(("by", "said"), [(0.05, "worse in AUC"), (-0.05, "better in AUC")])
def test_a_method_that_noise_hurts_more_than_infonce_is_named(by, said):
    found = Noise(FIVE).summary(rows("FNC", by)).findings
    sentences = {f.split(" against")[0]: f for f in found if f.startswith("What noise takes")}
    assert len(sentences) == 5
    assert said in sentences["What noise takes, FNC"]
    assert "no statistically significant difference" in sentences["What noise takes, constant .05"]
    at_worst = {f.split(" against")[0]: f for f in found if f.startswith("At 30% mismatched")}
    assert len(at_worst) == 5
    assert said in at_worst["At 30% mismatched, FNC"]


def test_what_is_lost_stands_beside_what_is_left():
    found = Noise(FIVE).summary(rows("FNC", 0.05)).findings
    auc = next(f for f in found if f.startswith("AUC at 30%"))
    most = auc.split("most by FNC ")[1]
    was, left = map(float, most.split("from ")[1].split(")")[0].split(" to "))
    assert was == pytest.approx(0.8, abs=0.005)
    assert left == pytest.approx(0.65, abs=0.005)
    assert float(most.split(" ")[0].strip("(")) == pytest.approx(left - was, abs=0.0011)


def test_one_seed_is_too_few_to_say_anything_and_is_drawn():
    settings = NoiseSettings(seeds=(0,), noise=(0.0, 0.3))
    study, own = Noise(settings), rows("FNC", 0.05, settings)
    assert all("too few seeds" in sentence.lower() for sentence in study.summary(own).findings)
    assert len(study.figure(own).axes) == 5
