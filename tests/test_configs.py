"""The packaged configs: each is valid, and the rows of a family differ only in their objective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from medclip_debias.config import load_yaml
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.training.resolve import changed, resolved

CONFIGS = Path(__file__).parents[1] / "configs"
FAMILIES = ("mimic_cxr", "phantom")
TABLE_1 = {
    *("biovil", "no_correction", "remove_by_labels", "resample_by_text", "remove_by_text"),
    *("reweight_by_text", "debiased_0.05", "debiased_0.1", "debiased_language_model"),
}
RIVALS = {"fnc", "glofnd", "sogclr", "sogclr_glofnd", "xclr", "keyword"}


def rows(family: str) -> set[str]:
    return {path.stem for path in (CONFIGS / family).glob("*.yaml")} - {"base", "demo"}


def flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else key)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_each_row_of_table_1_and_each_rival_has_a_config(family):
    assert rows(family) == TABLE_1 | RIVALS


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("row", sorted(TABLE_1 | RIVALS))
def test_a_row_differs_from_its_base_only_in_its_objective(family, row):
    path = CONFIGS / family / f"{row}.yaml"
    content = resolved(path)
    build_objective(loss_settings(content["loss"], str(path)))
    mine, base = flat(content), flat(resolved(CONFIGS / family / "base.yaml"))
    differ = {key for key in mine | base if mine.get(key) != base.get(key)}
    allowed = {"out", "model.similarity.aggregator"}
    assert not {key for key in differ if key not in allowed and not key.startswith("loss")}
    assert content["out"] == f"runs/{family}/{row}"
    assert (content["model"]["similarity"]["aggregator"] == "global") == (row == "biovil")


@pytest.mark.parametrize("row", sorted(TABLE_1 | RIVALS))
def test_the_phantoms_row_has_the_objective_of_the_papers(row):
    losses = [load_yaml(CONFIGS / family / f"{row}.yaml")["loss"] for family in FAMILIES]
    assert losses[0] == losses[1]


def test_no_two_rows_are_the_same_objective():
    seen = [
        (str(content["loss"]), content["model"]["similarity"]["aggregator"])
        for content in (resolved(CONFIGS / "mimic_cxr" / f"{row}.yaml") for row in TABLE_1 | RIVALS)
    ]
    assert len(set(seen)) == len(seen)


def test_the_base_is_the_papers_setting():
    run = resolved(CONFIGS / "mimic_cxr" / "base.yaml")
    assert run["preprocessing"]["prepare"]["size"] == 512
    assert run["preprocessing"]["input_size"] == 480
    assert run["model"]["image"]["arch"] == "resnet18"
    assert run["model"]["dim"] == 128
    train = run["train"]
    assert (train["batch_size"], train["lr"], train["warmup_steps"]) == (64, 1e-5, 2000)


def test_the_constants_of_the_papers_rows():
    def eta(row: str) -> Any:
        return resolved(CONFIGS / "mimic_cxr" / f"{row}.yaml")["loss"]["eta"]

    assert eta("debiased_0.05") == {"kind": "constant", "value": 0.05}
    assert eta("debiased_0.1") == {"kind": "constant", "value": 0.1}
    assert (eta("debiased_language_model")["a"], eta("debiased_language_model")["k"]) == (0.2, 0.35)


def test_the_demo_is_the_row_of_the_language_model_in_a_folder_of_its_own():
    demo = flat(changed(CONFIGS / "phantom" / "demo.yaml"))
    row = flat(changed(CONFIGS / "phantom" / "debiased_language_model.yaml"))
    differ = {key for key in demo | row if demo.get(key) != row.get(key)}
    assert differ == {"prepared", "out", "model.text.folder"}


def test_the_objective_of_open_i_is_one_line_to_change():
    path = CONFIGS / "openi" / "base.yaml"
    content = resolved(path)
    build_objective(loss_settings(content["loss"], str(path)))
    assert content["loss"] == resolved(CONFIGS / "phantom" / "demo.yaml")["loss"]
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "losses/" in line]
    assert [line for line in lines if not line.startswith("#")] == [
        "extends: [../phantom/base.yaml, ../losses/debiased_language_model.yaml]"
    ]
