"""The GloFND study: its exact rules against loops, and a small run for sanity."""

from __future__ import annotations

import numpy as np
import pytest

from studies.glofnd import GloFNDStudy, _batch_top, exact_quantiles
from studies.images import digits


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


def test_thresholds_come_to_the_quantile_and_a_small_run_is_sane(monkeypatch):
    fewer = [part[:250] for part in digits()]
    monkeypatch.setattr("studies.glofnd.digits", lambda: fewer)
    small = {"batch": 50, "steps": 25, "starts": [0.0], "seeds": 1}
    study = GloFNDStudy(GloFNDStudy.small | small)
    rows = [dict(cell) | study.measure(cell) for cell in study.cells()]
    assert {row["policy"] for row in rows} == {"none", "fnc", "glofnd one", "glofnd quantile"}
    assert all(row["probe"] > 0.3 for row in rows)
    assert rows[-1]["mae"] < 0.3
    assert not any("nan" in cell for t in study.tables(rows) for row in t.rows for cell in row)
    study.figure(rows)
