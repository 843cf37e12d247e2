"""The scripts that print a part of an evaluation, through their main functions."""

from __future__ import annotations

from importlib import import_module

import pytest

from commands import run_script
from medclip_debias.evaluation.table import read_results
from tests.evaluation.conftest import measuring_only


def table(text):
    """Cells of the rows of a Markdown table, by the words of their first columns."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]


@pytest.mark.usefixtures("only_zero_shot")
def test_zero_shot_prints_the_metrics_of_the_results(small_prepared, small_model, tmp_path, capsys):
    words = [str(small_model), str(small_prepared.folder), str(tmp_path), "--device", "cpu"]
    assert run_script(import_module("zero_shot_chex5").main, words) == 0
    printed = capsys.readouterr().out
    found = read_results(tmp_path / "results.json")
    rows = {row[0]: row for row in table(printed)}
    for name, counts in found.details("zero_shot")["classes"].items():
        assert rows[name][1:3] == [str(counts["positive"]), str(counts["negative"])]
        assert rows[name][3].startswith(f"{found.value('zero_shot', 'auc', name):.3f}")
    assert rows["mean"][3].startswith(f"{found.value('zero_shot', 'mean_auc'):.3f}")
    assert "Pneumothorax, one label value only" in printed


def test_retrieval_prints_the_metrics_of_the_results(small_prepared, small_model, tmp_path, capsys):
    words = [str(small_model), str(small_prepared.folder), str(tmp_path), "--device", "cpu"]
    with measuring_only("retrieval", "study_retrieval"):
        assert run_script(import_module("retrieval_ms_cxr").main, words) == 0
    rows = {tuple(row[:3]): row for row in table(capsys.readouterr().out)}
    results = read_results(tmp_path / "results.json")
    way = {"group": "strict, sentence to box"}
    recall, rank = (
        results.row("retrieval", name, **way) for name in ("recall_at_1", "median_rank")
    )
    row = rows["boxes", "strict", "sentence to box"]
    assert row[3] == str(recall["n"])
    assert row[4] == f"{recall['value']:.3f}"
    assert row[-1] == f"{rank['value']:g}"
    assert ("studies, sentence", "lenient", "image to sentence") in rows


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zero_shot_chex5", ["{}/model", "{}/none", "{}/out"]),
        ("retrieval_ms_cxr", ["{}/model", "{}/none", "{}/out"]),
        ("choose_prompts", ["{}/set", "{}/none.yaml"]),
        ("openi", ["{}/none", "--out", "{}/none", "--table"]),
        ("openi_splits", ["{}/none", "--grid", "{}/none.yaml"]),
        ("phantom_archive", ["{}/none", "--layout", "none"]),
        ("phantom_triplets", ["{}/none", "{}/table.csv"]),
        ("real_job", ["{}/none"]),
        ("supervised", ["{}/none.yaml", "--out", "{}/out"]),
    ],
)
def test_what_cannot_be_used_is_one_sentence(name, words, tmp_path, capsys):
    words = [word.format(tmp_path) for word in words]
    assert run_script(import_module(name).main, words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "none" in said
