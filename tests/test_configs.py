"""The files of configs/: each is valid alone, and every preset over both bases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.losses.presets import presets
from medclip_debias.training.resolve import changed, resolved

CONFIGS = Path(__file__).parents[1] / "configs"
FAMILIES = ("mimic_cxr", "phantom")
RUNS = (
    *("mimic_cxr/base", "mimic_cxr/radzero_recipe", "openi/base"),
    *("phantom/base", "phantom/demo", "real_cxr/smoke"),
)
ELSEWHERE = {"experiments", "studies"}  # they have tests of their own


def flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else key)
    return found


def test_every_file_is_looked_at():
    files = [path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.rglob("*.yaml")]
    assert {str(name) for name in files if name.parts[0] not in ELSEWHERE} == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_each_is_a_run(name):
    path = CONFIGS / f"{name}.yaml"
    build_objective(loss_settings(resolved(path)["loss"], str(path)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", presets())
def test_a_preset_over_a_base_changes_its_objective_and_its_folder_alone(family, name):
    path = CONFIGS / family / "base.yaml"
    content = resolved(path, loss=name)
    build_objective(loss_settings(content["loss"], str(path)))
    mine, base = flat(content), flat(resolved(path))
    differ = {key for key in mine | base if mine.get(key) != base.get(key)}
    similarity = {"biovil": "aggregator", "siglip": "initial_scale"}
    allowed = {"out", f"model.similarity.{similarity.get(name)}"}
    assert not {key for key in differ if key not in allowed and not key.startswith("loss")}
    assert content["out"] == f"runs/{family}/{name}"
    assert (content["model"]["similarity"]["aggregator"] == "global") == (name == "biovil")


def test_the_base_is_the_papers_setting():
    run = resolved(CONFIGS / "mimic_cxr" / "base.yaml")
    assert run["preprocessing"]["prepare"]["size"] == 512
    assert run["preprocessing"]["input_size"] == 480
    assert run["model"]["image"]["arch"] == "resnet18"
    assert run["model"]["dim"] == 128
    train = run["train"]
    assert (train["batch_size"], train["lr"], train["warmup_steps"]) == (64, 1e-5, 2000)


def test_the_demo_is_the_row_of_the_language_model_in_a_folder_of_its_own():
    demo = flat(changed(CONFIGS / "phantom" / "demo.yaml"))
    base = CONFIGS / "phantom" / "base.yaml"
    row = flat(changed(base, loss="debiased_language_model"))
    differ = {key for key in demo | row if demo.get(key) != row.get(key)}
    assert differ == {"prepared", "out", "model.text.folder"}


def test_the_objective_of_open_i_is_one_word_to_change():
    path = CONFIGS / "openi" / "base.yaml"
    row = resolved(CONFIGS / "phantom" / "base.yaml", loss="debiased_language_model")
    assert resolved(path)["loss"] == row["loss"]
    assert path.read_text(encoding="utf-8").count("loss:debiased_language_model") == 1
