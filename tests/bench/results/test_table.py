"""Tables of the benchmark against values worked out by hand."""

from __future__ import annotations

import csv
import io

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from medclip_debias.bench.record import Judged
from medclip_debias.bench.table import FORMATS, read_board
from medclip_debias.cli import run

AUC, MEDIAN = "zero_shot.mean_auc", "study_retrieval.report.median_rank"
ZERO = "phantom.zero-shot@1"


def cell(board, key, model):
    (found,) = (c for c in board.cells.itertuples() if (c.metric, c.model) == (key, model))
    return found


def test_values_are_those_of_the_records_and_the_best_complete_one_is_bold(results, make):
    text = FORMATS["md"](read_board(results))
    lines = text.splitlines()
    assert lines[0] == (
        "| card | metric | a | b | c (trained on synthetic) "
        "| CARZero & Co (published, not reproduced here) |"
    )
    assert lines[2] == (
        "| openi/retrieval@2 | Report median rank (lower is better) | **4.5** | 9.0 | not run | – |"
    )
    assert lines[4] == (
        "| phantom/zero-shot@1 | Zero-shot AUC | 0.938 (0.600 to 1.000) "
        "| **1.000 (1.000 to 1.000)** | 0.500 (0.500 to 0.500) | 0.900 |"
    )
    assert lines[5] == "| Mean rank | 1 of 2 cards, all generated | 2.00 | **1.00** | 3.00 |  |"
    assert "Not run: c on openi/retrieval@2." in text
    assert "Lai et al. 2024, table 2" in text
    board = read_board(results, models=["a"], cards=["openi/retrieval"])
    assert not board.ranks
    assert board.compared.empty
    assert "**" not in FORMATS["md"](board)
    make.retrieval(results, "c")
    # Median ranks 4.5, 9, 1 give the ranks 2, 3, 1; AUCs .94, 1, .5 give 2, 1, 3.
    assert read_board(results).ranks == {"a": 2.0, "b": 2.0, "c": 2.0}


def test_what_is_incomplete_is_marked_and_neither_best_nor_ranked_nor_tested(results, make):
    judged = Judged(
        archive="x", set_hash="d" * 64, list_hash="f" * 16, wanted=10, found=8, missing=2
    )
    make.zero(results, "b", status="incomplete", judged=judged)
    board = read_board(results)
    assert not board.ranks
    assert cell(board, AUC, "a").best
    assert not cell(board, AUC, "b").best
    assert cell(board, AUC, "b").reason == "the two judged different images"
    text = FORMATS["md"](board)
    assert "1.000 (1.000 to 1.000), incomplete" in text
    assert "Incomplete: phantom/zero-shot@1, 2 of 10 images are missing for b" in text
    path = results / "c" / ZERO / "items" / "zero_shot.parquet"
    pd.read_parquet(path).drop(columns="label.Edema").to_parquet(path)
    board = read_board(results)
    assert np.isnan(cell(board, AUC, "c").p)
    assert "Not tested: 1 difference (the labels are withheld)." in FORMATS["md"](board)


def test_paired_differences_are_holm_corrected_over_the_whole_table(results):
    gaps = [*read_board(results, baseline="b").compared.itertuples()]
    assert [round(gap.difference, 6) for gap in gaps] == [-4.5, 0.125, -0.0625, -0.5]
    p = np.array([gap.p for gap in gaps])
    order = np.argsort(p)
    expected = np.empty(4)
    expected[order] = np.minimum(1, np.maximum.accumulate(p[order] * [4, 3, 2, 1]))
    assert [gap.p_holm for gap in gaps] == pytest.approx(expected)
    recall = gaps[1]
    each = np.array([0] * 5 + [1 / 3] * 3)  # ranks 12, 14 and 16 miss the first ten alone
    exact = stats.t.sf(each.mean() / (each.std(ddof=1) / np.sqrt(8)), 7) * 2
    assert recall.difference == pytest.approx(each.mean())
    assert recall.p == pytest.approx(exact, rel=0.3)


def test_a_result_of_another_card_without_figures_is_named(results, make):
    def change(content):
        content["card"]["hash"] = "0" * 16
        content["metrics"] = {}

    make.edit(results / "a" / ZERO / "record.json", change)
    board = read_board(results, models=["a"], cards=["phantom/zero-shot"])
    assert board.cells.empty
    text = FORMATS["html"](board)
    assert "For research only" in text
    assert FORMATS["csv"](board).count("\n") == 1


NASTY = "=<img src=x onerror=alert(1)>_x_ 100% & **b** \\input{f}"


def test_names_cannot_become_markup_or_formulas(results, make):
    make.edit(results / "c" / "model.json", lambda model: model.update(name=NASTY))
    board = read_board(results)
    text = {form: write(board) for form, write in FORMATS.items()}
    assert "<img" not in text["html"] + text["md"]
    assert "&lt;img src=x onerror=alert(1)&gt;" in text["html"]
    assert r"\*\*b\*\*" in text["md"]
    assert r"\_x\_ 100\% \& {*}{*}b{*}{*} \textbackslash{}input\{f\}" in text["latex"]
    assert r"\textbf{1.000 (1.000 to 1.000)}" in text["latex"]
    assert "<strong>1.000 (1.000 to 1.000)</strong>" in text["html"]
    rows = list(csv.DictReader(io.StringIO(text["csv"])))
    by_key = {(row["metric"], row["model"]): row for row in rows}
    assert len(rows) == 10
    assert float(by_key[AUC, "a"]["value"]) == 15 / 16
    assert by_key[AUC, f"'{NASTY}"]["synthetic"] == "true"
    assert by_key[MEDIAN, f"'{NASTY}"]["state"] == "not run"
    assert by_key[AUC, "CARZero & Co"]["state"] == "published, not reproduced here"
    assert by_key[AUC, "CARZero & Co"]["source"] == "Lai et al. 2024, table 2"


def test_the_verb_writes_a_file(results, tmp_path):
    out = tmp_path / "table.tex"
    assert run(["bench", "table", str(results), "--format", "latex", "--out", str(out)]) == 0
    assert out.read_text().startswith(r"\begin{table}")
