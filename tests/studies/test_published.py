"""The pages of the studies say what their published cells say."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from studies import grids
from studies.command import MARKED, page_lines, study_of
from studies.study import STUDIES, find_study

DOCS = Path(__file__).parents[2] / "docs/studies"
NOT_PUBLISHED = {"long-tail"}
"""Cells that were not kept."""
GRIDS = ("positives", "eta-dose", "models")


def between_markers(name):
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    ((numbers, body),) = MARKED.findall(text)
    return [int(number) for number in numbers.split()], body.strip()


@pytest.mark.parametrize("name", sorted(set(STUDIES.all()) - NOT_PUBLISHED))
def test_the_tables_of_a_page_are_the_analysis_of_its_cells(name):
    study, found = study_of(DOCS / f"{name}.parquet")
    numbers, body = between_markers(name)
    assert body == "\n".join(page_lines(study, found["rows"], numbers)).strip()
    assert study.figure(found["rows"]).axes
    assert (DOCS / f"{name}.png").stat().st_size < 100_000


@pytest.mark.parametrize("name", GRIDS)
def test_the_tables_of_a_page_of_grids_are_those_of_its_differences(name):
    measured = pd.read_parquet(DOCS / f"{name}.parquet")
    numbers, body = between_markers(name)
    assert body == "\n".join(grids.page_lines(name, measured, numbers)).strip()


def test_the_index_has_a_row_for_every_study():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for name in (*STUDIES.all(), *GRIDS):
        assert f"| [{name}]({name}.md) |" in index
    for name in STUDIES.all():
        assert f"medclip-debias study {name}" in (DOCS / f"{name}.md").read_text(encoding="utf-8")


def test_a_table_of_false_negatives_is_the_mean_over_its_seeds():
    """By pandas, from the columns alone."""
    cells = pd.read_parquet(DOCS / "false-negatives.parquet")
    own = cells[cells["method"] == "remove by label"]["auc"]
    said = next(
        line
        for line in between_markers("false-negatives")[1].splitlines()
        if "remove by label" in line
    )
    assert f"{own.mean():.3f} ({own.std():.3f})" in said


def test_the_settings_of_table1_are_the_best_of_the_candidates_on_other_phantoms():
    """By pandas: the best mean rank over the paper's six metrics, of means over the phantoms."""
    cells = pd.read_parquet(DOCS / "table1.parquet")
    lower = {"median_rank": 1} | dict.fromkeys(["auc", "accuracy", "cnr", "miou", "recall"], -1)
    tried = cells[cells["role"] == "choose"]
    for method, own in tried.groupby("method"):
        means = own.groupby("candidate", sort=False)[list(lower)].mean() * pd.Series(lower)
        best = means.rank().mean(axis=1).idxmin()
        assert find_study("table1").usual["arms"][method] == best
    assert tried["method"].nunique() == 9
