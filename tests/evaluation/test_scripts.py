"""The scripts that print a part of an evaluation, through their main functions."""

from __future__ import annotations

from importlib import import_module

import pytest

from commands import run_script
from medclip_debias.evaluation.table import read_results
from tests.evaluation.conftest import measuring_only


@pytest.mark.parametrize(
    ("script", "protocol", "metric"),
    [
        ("zero_shot_chex5", "zero_shot", "mean_auc"),
        ("retrieval_ms_cxr", "retrieval", "recall_at_1"),
    ],
)
def test_scripts_print_the_metrics_of_the_results(
    small_prepared, small_model, tmp_path, capsys, script, protocol, metric
):
    words = [str(small_model), str(small_prepared.folder), str(tmp_path), "--device", "cpu"]
    with measuring_only(protocol):
        assert run_script(import_module(script).main, words) == 0
    results = read_results(tmp_path / "results.json")
    group = None if metric == "mean_auc" else "strict, sentence to box"
    assert f"| {results.value(protocol, metric, None, group):.3f}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("zero_shot_chex5", ["{}/model", "{}/none", "{}/out"]),
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
