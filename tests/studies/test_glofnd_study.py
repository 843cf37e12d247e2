"""The GloFND study: its exact rules against loops, and a small run for sanity."""

from __future__ import annotations

import numpy as np
import pytest

from studies.glofnd import (
    RULES,
    GloFNDStudy,
    GloFNDStudySettings,
    _batch_top,
    _scores,
    exact_quantiles,
)


def unit(seed, n, d=6):
    x = np.random.default_rng(seed).normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_exact_quantiles_leave_each_sample_itself_out():
    points = unit(0, 12)
    for i, found in enumerate(exact_quantiles(points, 0.2)):
        others = [float(points[i] @ points[j]) for j in range(12) if j != i]
        assert found == pytest.approx(np.quantile(others, 0.8))


def test_batches_judge_only_pairs_that_met():
    cosine = unit(1, 30) @ unit(1, 30).T
    removed, met = _batch_top(cosine, 0.25, 10, 0)
    assert met.sum() == 3 * 10 * 9
    assert not (removed & ~met).any()
    assert set(removed.sum(axis=1)) == {2}  # ceil(.25 * 8) of nine


def test_scores_count_pairs():
    removed = np.array([[0, 1], [1, 1]], dtype=bool)
    false = np.array([[1, 1], [0, 1]], dtype=bool)
    assert _scores(removed, false) == {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3}


def test_thresholds_come_nearer_to_the_quantile_and_a_small_run_is_sane():
    study = GloFNDStudy(
        GloFNDStudySettings(
            alphas=(0.1,), points=200, visits=60, batch=50, steps=40, starts=(0.0,), seeds=1
        )
    )
    rows = [dict(cell) | study.measure(cell) for cell in study.cells()]
    fixed = {r["rule"]: r["mae"] for r in rows if r["part"] == "fixed"}
    assert set(fixed) == set(RULES)
    assert fixed["adam, from 1"][-1] < fixed["adam, from 1"][0] / 3
    trained = [r for r in rows if r["part"] == "train"]
    assert {r["policy"] for r in trained} == {"none", "fnc", "glofnd one", "glofnd quantile"}
    assert all(r["probe"] > 0.3 for r in trained)
    found = study.summary(rows)
    assert not any("nan" in sentence for sentence in found.findings)
    study.figure(rows)


def reported(gain, starts=(0.0, 0.5)):
    """Sentences from five made-up seeds, where own thresholds gain ``gain`` in F1 over FNC."""
    settings = GloFNDStudySettings(alphas=(0.1,), starts=starts)
    rows = []
    for cell in GloFNDStudy(settings).cells():
        noise = 0.001 * cell["seed"] ** 2
        if cell["part"] == "fixed":
            rows.append(cell | {"at": [1, 2], "mae": [0.5, 0.1 + noise]})
            continue
        row = cell | {"probe": 0.8 + noise + 0.1 * cell["start"], "step_ratio": 1.1}
        if cell["policy"] != "none":
            for rule in ("exact", "global", "batch", "own threshold"):
                value = 0.4 + (gain + noise) * (rule == "own threshold")
                row |= {f"{rule} {key}": value for key in ("precision", "recall", "f1")}
        if cell["policy"].startswith("glofnd"):
            row |= {"removed": 0.1, "mae": 0.02}
        rows.append(row)
    study = GloFNDStudy(settings)
    study.figure(rows)
    return " ".join(study.summary(rows).findings)


def test_who_finds_false_negatives_better_is_said_only_where_the_interval_says_so():
    assert "as the paper says, GloFND finds false negatives better" in reported(0.1)
    assert "against the paper, FNC finds false negatives better" in reported(-0.1)
    assert "not shown here that GloFND finds false negatives better" in reported(-0.006)


def test_every_policy_starts_late_too_and_the_latest_start_is_held_against_the_first():
    assert "after 50% of training instead of at once: FNC +0.050 [+0.050, +0.050]" in reported(0.1)
    assert "One start only" in reported(0.1, starts=(0.0,))
