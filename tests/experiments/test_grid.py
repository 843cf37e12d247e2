"""Grid files: what each run of them is, what names it, and what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from medclip_debias.errors import UserError
from medclip_debias.experiments.grid import read_grid, runs
from medclip_debias.experiments.trainings import Trainings
from medclip_debias.training.resolve import resolved

CONFIGS = Path(__file__).parents[2] / "configs"
GRIDS = sorted((CONFIGS / "experiments").glob("*.yaml"))
SMALL = CONFIGS / "experiments/phantom_small.yaml"
ROWS = {
    "BioViL": "biovil",
    "no correction": "no_correction",
    "remove by labels": "remove_by_labels",
    "resample by text": "resample_by_text",
    "remove by text": "remove_by_text",
    "reweight by text": "reweight_by_text",
    "eta 0.05": "debiased_0.05",
    "eta 0.1": "debiased_0.1",
    "eta of the language model": "debiased_language_model",
}


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_each_packaged_grid_is_valid(path):
    grid = read_grid(path)
    found = list(runs(grid))
    assert len(found) == len(grid.settings) * len(grid.methods) * len(grid.seeds)
    assert {(run.method, run.seed) for run in found} == {
        (method, seed) for method in grid.methods for seed in grid.seeds
    }


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_a_grid_written_out_names_no_preset_and_is_the_same(path, tmp_path):
    grid, again = read_grid(path), tmp_path / "settings.yaml"
    content = grid.model_dump(mode="json")
    again.write_text(yaml.safe_dump(content, sort_keys=False))
    assert not re.search(r"loss:\w|extends", again.read_text())
    assert list(runs(read_grid(again))) == list(runs(grid))


@pytest.mark.parametrize("method", ROWS)
def test_table_1_as_a_grid_trains_the_rows_of_the_paper(method):
    grid = read_grid(CONFIGS / "experiments/table1_mimic_cxr.yaml")
    row = resolved(CONFIGS / "mimic_cxr/base.yaml", loss=ROWS[method])
    del row["out"]
    for run in runs(grid):
        if run.method == method:
            assert run.content == row | {"train": row["train"] | {"seed": run.seed}}


def test_the_controls_of_table_1_differ_from_its_method_only_in_eta():
    grid = read_grid(CONFIGS / "experiments/table1_mimic_cxr.yaml", ["seeds=[3]"])
    found = {run.method: run.content for run in runs(grid)}
    (method, controls), *_ = grid.controls.items()
    for control in controls:
        eta = found[control]["loss"].pop("eta")
        assert (eta["a"], eta["k"]) == (0.2, 0.35)
    expected = found[method]
    assert expected["loss"].pop("eta")["kind"] == "language_model"
    assert all(found[control] == expected for control in controls)


def test_a_share_of_the_steps_becomes_a_step():
    policy = '{"kind": "fnc", "start_step": "@0.4"}'
    words = ['methods.FNC={"loss": {"kind": "clip", "negatives": [' + policy + "]}}"]
    (run,) = [r for r in runs(read_grid(SMALL, [*words, "seeds=[0]"])) if r.method == "FNC"][:1]
    assert run.content["loss"]["negatives"][0]["start_step"] == 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["baseline=CLAP"], "'baseline' names 'CLAP', which is no method (did you mean 'CLIP'?)"),
        (["controls.CLIP=[other]"], "'controls.CLIP' names 'other'"),
        (["controls.CLIP=[CLIP]"], "its own control"),
        (["metrics=[grounding.cnrr]"], "did you mean 'grounding.cnr'"),
        (["seeds=[1, 1]"], "different numbers"),
        (["seeds=[]"], "setting 'seeds' is wrong"),
        (["seed=[1]"], "did you mean 'seeds'"),
        (['methods={"a,b": {}}', 'baseline="a,b"'], "must be without"),
        (["evaluate.splits=test"], "did you mean 'split'"),
        (["base.prepared=[runs/a, runs/b]"], "lists several sets, but an experiment evaluates"),
        (["base.train.stepz=4"], "method 'CLIP' of setting 'rate 2e-3': unknown setting"),
        (["methods.CLIP.loss.kind=clop"], "did you mean 'clip'"),
        (['methods.twin={"loss": {"kind": "clip"}}'], "its settings are those of 'CLIP'"),
    ],
)
def test_what_fits_nothing_is_one_sentence(words, said):
    with pytest.raises(UserError) as caught:
        list(runs(read_grid(SMALL, words)))
    assert said in str(caught.value)


def test_a_file_that_extends_itself_in_a_part_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("extends: a.yaml\n")
    (tmp_path / "grid.yaml").write_text("base: a.yaml\nmethods: {x: {}}\nseeds: [0]\nbaseline: x\n")
    with pytest.raises(UserError, match="goes round in a circle"):
        read_grid(tmp_path / "grid.yaml")


def test_a_preset_as_a_method_leaves_nothing_of_the_bases_loss(tmp_path):
    base = "{prepared: p, model: {text: {folder: m}}, loss: {kind: clip, negatives: [{kind: fnc}]}}"
    methods = (
        "{a: loss:clip, b: {extends: loss:clip, loss: {negatives: [{kind: fnc, alpha: 0.2}]}}}"
    )
    path = tmp_path / "grid.yaml"
    path.write_text(f"base: {base}\nmethods: {methods}\nseeds: [0]\nbaseline: a\n")
    found = {run.method: run.content["loss"]["negatives"] for run in runs(read_grid(path))}
    assert found["a"] == []
    assert [policy["alpha"] for policy in found["b"]] == [0.2]


# ------------------------------------------------------------------------ what names a cell


def keys(place, *words, **more):
    grid = read_grid(SMALL, place.words(seeds="[0]", **more) + list(words))
    experiment = Trainings(grid, Path("runs"))
    return [experiment.key(cell) for cell in experiment.cells()]


def test_a_cell_is_named_by_what_its_result_depends_on(place, tmp_path):
    plain = keys(place)
    assert len(set(plain)) == 6
    moved = tmp_path / "elsewhere"
    shutil.copytree(place.prepared, moved)
    same = [
        {"base.prepared": moved},
        {"base.train.workers": 1, "base.train.log_every": 1, "base.train.checkpoint_every": 1},
        {"base.train.device": "cpu", "name": "another", "metrics": "[grounding.cnr]"},
        {"evaluate.bootstrap": 10, "evaluate.batch_size": 3},
    ]
    for change in same:
        assert keys(place, **change) == plain, change
    other = [
        {"base.train.steps": 5},
        {"base.train.lr": 1e-3},
        {"base.model.dim": 8},
        {"evaluate.split": "validate"},
        {"evaluate.options.smoothing": 1},
    ]
    for change in other:
        # One of the settings changes the learning rate itself.
        count = 3 if "base.train.lr" in change else 6
        assert len(set(keys(place, **change)) - set(plain)) == count, change


def test_another_content_of_a_file_is_another_cell(place, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("image,Edema\na,1\n")
    first = keys(place, **{"evaluate.labels": table})
    table.write_text("image,Edema\na,0\n")
    assert not set(first) & set(keys(place, **{"evaluate.labels": table}))
    other = tmp_path / "the same.csv"
    shutil.copy(table, other)
    assert keys(place, **{"evaluate.labels": other}) == keys(place, **{"evaluate.labels": table})


def test_another_language_model_is_another_cell(place, tmp_path):
    plain, model = keys(place), tmp_path / "lm"
    shutil.copytree(place.language_model, model)
    assert keys(place, **{"base.model.text.folder": model}) == plain
    with (model / "vocab.txt").open("a") as stream:
        stream.write("\nanother")
    assert not set(keys(place, **{"base.model.text.folder": model})) & set(plain)
