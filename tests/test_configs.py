"""Settings that come along: each is valid, has a name, can be copied; presets over both bases."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from medclip_debias.cli import run
from medclip_debias.experiments.grid import read_grid
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.losses.presets import presets
from medclip_debias.training.resolve import resolved

CONFIGS = Path(__file__).parents[1] / "configs"
ELSEWHERE = {"clusters", "experiments", "studies"}  # they have tests of their own
NAMES = sorted(
    path.relative_to(CONFIGS).with_suffix("").as_posix() for path in CONFIGS.rglob("*.y*")
)


def flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else key)
    return found


@pytest.mark.parametrize("name", [n for n in NAMES if n.split("/")[0] not in ELSEWHERE])
def test_each_is_a_run(name):
    content = resolved(name)
    build_objective(loss_settings(content["loss"], name))
    assert content == resolved(CONFIGS / f"{name}.yaml")


def test_each_is_named_and_says_what_it_is(capsys):
    assert run(["config", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["configs"]
    assert list(listed) == NAMES
    assert all(" " in about and about[0] not in '#"' for about in listed.values())
    assert run(["config", "list"]) == 0
    assert f"phantom/demo\n  {listed['phantom/demo']}\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["phantom/demo", "experiments/positives_phantom_300"])
def test_a_copy_elsewhere_says_the_same_and_is_never_written_over_unasked(tmp_path, name, capsys):
    mine = tmp_path / "new" / "mine.yaml"
    assert run(["config", "new", name, str(mine)]) == 0
    assert mine.read_bytes() == (CONFIGS / f"{name}.yaml").read_bytes()
    if name.startswith("experiments"):
        assert read_grid(mine) == read_grid(name).model_copy(update={"name": "mine"})
    else:
        assert resolved(mine) == resolved(name)
    mine.write_text("train: {steps: 3}\n", encoding="utf-8")
    assert run(["config", "new", name, str(mine)]) == 2
    assert "is already there" in capsys.readouterr().err
    assert mine.read_text(encoding="utf-8") == "train: {steps: 3}\n"
    assert run(["config", "new", name, str(mine), "--overwrite"]) == 0
    assert mine.read_bytes() == (CONFIGS / f"{name}.yaml").read_bytes()


def test_a_file_of_ones_own_inherits_a_name_and_goes_before_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: [config:phantom/demo]\ntrain: {steps: 7}\n", encoding="utf-8")
    named, own = flat(resolved("phantom/demo")), flat(resolved(mine))
    assert {key for key in named if named[key] != own[key]} == {"train.steps"}
    (tmp_path / "phantom").mkdir()
    (tmp_path / "phantom" / "demo").write_text(mine.read_text("utf-8"), encoding="utf-8")
    assert resolved("phantom/demo")["train"]["steps"] == 7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["config", "show", "configs/phantom/demo.yaml"], "no such file; .*mean 'phantom/demo'"),
        (["config", "new", "phantom/dem", "a.yaml"], "config new: .*'phantom/dem'.*'phantom/demo'"),
    ],
)
def test_a_name_that_is_none_ends_with_one_sentence(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert run(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(said, captured.err), captured.err
    assert len(captured.err.splitlines()) == 1
    assert not (tmp_path / "a.yaml").exists()


@pytest.mark.parametrize("name", presets())
def test_a_preset_over_a_base_changes_its_objective_and_its_folder_alone(name):
    path = CONFIGS / "mimic_cxr" / "base.yaml"
    content = resolved(path, loss=name)
    build_objective(loss_settings(content["loss"], str(path)))
    mine, base = flat(content), flat(resolved(path))
    differ = {key for key in mine | base if mine.get(key) != base.get(key)}
    similarity = {"biovil": "aggregator", "siglip": "initial_scale"}
    allowed = {"out", f"model.similarity.{similarity.get(name)}"}
    assert not {key for key in differ if key not in allowed and not key.startswith("loss")}
    assert content["out"] == f"runs/mimic_cxr/{name}"
    assert (content["model"]["similarity"]["aggregator"] == "global") == (name == "biovil")


def test_the_base_is_the_papers_setting():
    content = resolved("mimic_cxr/base")
    assert content["preprocessing"]["prepare"]["size"] == 512
    assert content["preprocessing"]["input_size"] == 480
    assert content["model"]["image"]["arch"] == "resnet18"
    assert content["model"]["dim"] == 128
    train = content["train"]
    assert (train["batch_size"], train["lr"], train["warmup_steps"]) == (64, 1e-5, 2000)
    whole = resolved("mimic_cxr/base", loss="debiased_language_model")
    assert resolved("mimic_cxr/debiased") == whole
