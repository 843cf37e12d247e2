"""The measured part of a page: from grids' results, with Holm over the whole page."""

from __future__ import annotations

import json

import pytest

from medclip_debias.errors import UserError
from studies import grids_page


def contrast(method, difference, p, p_holm, setting=""):
    half = abs(difference) / 2
    return {
        "setting": setting,
        "method": method,
        "against": "InfoNCE",
        "metric": grids_page.MAIN,
        "difference": difference,
        "interval": [difference - half, difference + half],
        "p": p,
        "better": difference > 0,
        "p_holm": p_holm,
    }


def grid_folder(folder, contrasts, settings=("",)):
    mean = {"mean": 0.7, "sd": 0.01, "interval": [0.69, 0.71]}
    means = {s: {m: {grids_page.MAIN: mean} for m in ("InfoNCE", "a", "b")} for s in settings}
    content = {
        "settings": {
            "title": f"Set: {folder.name}",
            "about": "",
            "baseline": "InfoNCE",
            "seeds": [0, 1],
            "metrics": [grids_page.MAIN],
        },
        "cells": 6,
        "seconds": 3600,
        "figures": {"means": means, "contrasts": contrasts},
    }
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(content))
    return folder


def test_stars_are_of_the_grid_and_of_the_page(tmp_path):
    # Holm over the four p of the page: .001 * 4, .02 * 3, .2 * 2, .9.
    one = grid_folder(
        tmp_path / "one", [contrast("a", 0.1, 0.001, 0.002), contrast("b", 0.05, 0.02, 0.02)]
    )
    two = grid_folder(
        tmp_path / "two", [contrast("a", 0.01, 0.2, 0.4), contrast("b", 0.01, 0.9, 0.9)]
    )
    grids = {folder.name: grids_page.grid_of(folder) for folder in (one, two)}
    assert grids_page.corrected(grids) == 4
    assert [c["p_page"] for g in grids.values() for c in g["contrasts"]] == pytest.approx(
        [0.004, 0.06, 0.4, 0.9]
    )
    page = f"before {grids_page.START} old {grids_page.END} after"
    found = grids_page.written(page, grids, 4)
    assert found.startswith("before ")
    assert found.endswith(" after")
    assert "old" not in found
    assert "a minus InfoNCE | +0.100 [+0.050, +0.150] ** |" in found
    assert "b minus InfoNCE | +0.050 [+0.025, +0.075] * |" in found
    assert "a minus InfoNCE | +0.010 [+0.005, +0.015] |" in found


def test_over_settings_the_interval_is_that_of_t(tmp_path):
    from scipy.stats import ttest_1samp

    values = {"split 1": 0.01, "split 2": 0.03, "split 3": 0.02}
    found = [
        contrast(m, v * (1 if m == "a" else -1), 0.5, 1.0, s)
        for s, v in values.items()
        for m in ("a", "b")
    ]
    grid = grids_page.grid_of(grid_folder(tmp_path / "splits", found, tuple(values)))
    low, high = ttest_1samp(list(values.values()), 0).confidence_interval(0.95)
    said = next(x for x in grids_page.section("splits", grid)[-3:] if x.startswith("| a minus"))
    assert f"+0.020 [{low:+.3f}, {high:+.3f}]" in said


def test_a_page_without_markers_and_a_folder_without_a_grid_are_refused(tmp_path):
    with pytest.raises(UserError, match="no lines"):
        grids_page.written("a page", {}, 0)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UserError, match="holds no grid"):
        grids_page.grid_of(tmp_path)


def test_no_line_of_the_plot_is_lost_to_another_of_its_name(tmp_path):
    title = "Open-i: false negatives as positives"
    assert grids_page.line_of(title, grids_page.ONLY) == "Open-i"
    assert grids_page.line_of(f"{title}, once more", grids_page.ONLY) == "Open-i, once more"
    assert grids_page.line_of(f"{title}, other splits", "split 11") == "Open-i, split 11"
    grid = grids_page.grid_of(grid_folder(tmp_path / "one", [contrast("a", 0.1, 0.001, 0.002)]))
    with pytest.raises(UserError, match="two grids have a line"):
        grids_page.plot({"one": grid, "two": grid}, ["a"], tmp_path / "plot.svg")
    assert not (tmp_path / "plot.svg").exists()


def test_a_line_keeps_its_place_in_the_panel_of_a_method_that_its_grid_lacks(tmp_path):
    grids = {}
    for name, methods in {"one": "a", "two": "ab"}.items():
        found = [contrast(method, 0.1, 0.001, 0.002, name) for method in methods]
        grids[name] = grids_page.grid_of(grid_folder(tmp_path / name, found, (name,)))
    grids_page.plot(grids, ["a", "b"], tmp_path / "plot.svg")
    drawn = (tmp_path / "plot.svg").read_text()
    said = ("Set, one", "Set, two", "not measured")
    assert [drawn.count(f"<!-- {text} -->") for text in said] == [1, 1, 1]
