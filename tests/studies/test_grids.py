"""Grids on a page, and their published cells: against libraries and closed forms."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from medclip_debias.errors import UserError
from studies import grids
from studies.grids import cells_of, crossed, differences, over_settings, report


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


def test_every_auc_follows_from_the_table_and_is_reported(grid):
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

    lines = report(table, "good", "bad")
    assert sum("patients and 2 seeds" in line for line in lines) == 6
    assert sum("over 2 splits" in line for line in lines) == 3
    with pytest.raises(UserError, match="no seed has both"):
        report(table, "good", "none")


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


# -------------------------------------------------------------------------------- the page


def measured(folder, contrasts):
    """The results of a grid with these (method, difference, p, p_holm)."""
    mean = {"mean": 0.7, "sd": 0.01, "interval": [0.69, 0.71]}
    keys = {"setting": "all", "against": "InfoNCE", "metric": grids.MAIN}
    found = [
        {**keys, "method": method, "difference": value, "p": p, "p_holm": corrected}
        | {"interval": [value / 2, value * 1.5]}
        for method, value, p, corrected in contrasts
    ]
    means = {"all": {method: {grids.MAIN: mean} for method in ("InfoNCE", "a", "b")}}
    rows = [
        {"method": m, "seed": s, "metrics": {grids.MAIN: 0.7 + 0.1 * (m == "a") + 0.01 * s}}
        for m in ("InfoNCE", "a")
        for s in range(3)
    ]
    settings = {"title": folder.name, "baseline": "InfoNCE", "seeds": [0, 1]}
    settings["metrics"] = [grids.MAIN]
    content = {"settings": settings, "cells": 6, "seconds": 3600, "rows": rows}
    folder.mkdir()
    figures = {"means": means, "contrasts": found}
    (folder / "results.json").write_text(json.dumps(content | {"figures": figures}))
    return folder


def test_stars_are_of_the_grid_and_of_the_page_which_keeps_what_it_took(tmp_path):
    # Holm over the four p of the page: .001 * 4, .02 * 3, .2 * 2, .9.
    one = measured(tmp_path / "one", [("a", 0.1, 0.001, 0.002), ("b", 0.05, 0.02, 0.02)])
    two = measured(tmp_path / "two", [("a", 0.01, 0.2, 0.4), ("b", 0.01, 0.9, 0.9)])
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tables -->\nold\n<!-- /tables -->\nafter\n")
    grids.write_page(page, [one, two])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| a | 0.700 [0.690, 0.710] | +0.100 [+0.050, +0.150] ** |" in text
    assert "| +0.050 [+0.025, +0.075] * |" in text
    assert "| +0.010 [+0.005, +0.015] |" in text
    grids.write_page(page, [])  # from its table alone
    assert page.read_text() == text
    grids.plot(pd.read_parquet(page.with_suffix(".parquet")), ["a", "b"], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 1000
    page.write_text("no markers")
    with pytest.raises(UserError, match="must hold"):
        grids.write_page(page, [one])


def test_a_grid_is_as_far_from_itself_as_no_machine(tmp_path):
    folder = measured(tmp_path / "one", [])
    (line,) = grids.moved(folder, folder)
    assert line == (
        "zero_shot.mean_auc: 6 cells, sd of machines 0.0000, of seeds 0.0100, largest 0.0000"
    )
    content = json.loads((folder / "results.json").read_text()) | {"rows": []}
    (folder / "results.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="share no cell"):
        grids.moved(folder, folder)
