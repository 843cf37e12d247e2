"""Published cells: AUC, its intervals and the corrected t, against libraries and closed forms."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from medclip_debias.errors import UserError
from studies.cells import (
    cells_of,
    crossed,
    differences,
    over_settings,
    report,
    weighted_auc,
)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(4, 30), st.integers(1, 6))
def test_weighted_auc_is_scikit_learns(seed, count, values):
    rng = np.random.default_rng(seed)
    labels = rng.permutation([True, False, *(rng.random(count - 2) < 0.5)])
    ranks = rng.integers(0, values, count).astype(float)
    weights = rng.multinomial(count, np.full(count, 1 / count), size=5).astype(float)
    for draw, found in zip(weights, weighted_auc(labels, ranks, weights), strict=True):
        sides = draw[labels].sum(), draw[~labels].sum()
        expected = roc_auc_score(labels, ranks, sample_weight=draw) if all(sides) else np.nan
        assert found == pytest.approx(expected, nan_ok=True)


@pytest.fixture
def grid(tmp_path):
    """Two settings, two methods, two seeds of 40 images: a good method and a bad one."""
    rng = np.random.default_rng(0)
    rows = []
    for setting in ("one", "two"):
        labels = rng.permutation(np.arange(40) % 2)
        for method, shift in (("good", 2.0), ("bad", 0.0)):
            for seed in (0, 1):
                name = f"{method}_{setting}_{seed}/evaluate"
                folder = tmp_path / "runs" / name / "items"
                folder.mkdir(parents=True)
                content = {"item": [f"{n:02x}" for n in range(40)]}
                content["patient"] = [f"{n // 2:02x}" for n in range(40)]
                for kept, sign in (("score", 1), ("positive", 1), ("negative", -1)):
                    values = rng.normal(size=40) + sign * shift * labels
                    content[f"{kept}.Edema"] = values
                content["label.Edema"] = np.where(np.arange(40) < 2, np.nan, labels)
                pd.DataFrame(content).to_parquet(folder / "zero_shot.parquet")
                rows.append({"setting": setting, "method": method, "seed": seed, "folder": name})
    figures, settings = {"contrasts": []}, {"name": "small"}
    results = {"rows": rows, "figures": figures, "settings": settings}
    (tmp_path / "results.json").write_text(json.dumps(results))
    return tmp_path


def test_every_auc_follows_from_the_table(grid):
    table = cells_of(grid)
    assert len(table) == 8 * 38
    assert set(table["grid"]) == {"small"}
    for score in ("both", "positive", "negative"):
        found = differences(table, "good", "bad", score, draws=10)
        for setting, (seeds, drawn) in found.items():
            assert drawn.shape == (10, 2)
            for seed, difference in enumerate(seeds):
                aucs = {}
                for method in ("good", "bad"):
                    folder = grid / "runs" / f"{method}_{setting}_{seed}" / "evaluate" / "items"
                    items = pd.read_parquet(folder / "zero_shot.parquet")[2:]
                    kept = {"both": "score"}.get(score, score)
                    sign = -1 if score == "negative" else 1
                    aucs[method] = roc_auc_score(
                        items["label.Edema"], sign * items[f"{kept}.Edema"]
                    )
                assert difference == pytest.approx(aucs["good"] - aucs["bad"])


def test_the_report_names_settings_seeds_and_splits(grid):
    lines = report(cells_of(grid), "good", "bad")
    assert sum("patients and 2 seeds" in line for line in lines) == 6
    assert sum("over 2 splits" in line for line in lines) == 3
    with pytest.raises(UserError, match="no seed has both"):
        report(cells_of(grid), "good", "none")


def test_crossed_draws_cover_the_seeds_as_well_as_the_patients():
    rng = np.random.default_rng(1)
    patients, seeds = rng.normal(size=(4000, 1)), np.linspace(-1, 1, 8)[None]
    drawn = crossed(0.1 * patients + seeds)
    # Independent sources: variances add; that of a mean of 8 values drawn anew is their own by 8.
    assert drawn.var() == pytest.approx(0.01 * patients.var() + seeds.var() / 8, rel=0.1)


def test_the_correction_for_overlapping_splits_is_nadeaus_and_bengios():
    values = [0.016, 0.034, 0.039, 0.020]
    plain, corrected = over_settings(values)
    sd, t = np.std(values, ddof=1), 3.182446305284263  # of 3 degrees of freedom
    mean = np.mean(values)
    assert plain == pytest.approx((mean - t * sd / 2, mean + t * sd / 2))
    reach = t * sd * np.sqrt(1 / 4 + 1 / 8)
    assert corrected == pytest.approx((mean - reach, mean + reach))
