"""Grid files: what each run of them is, what names it, and what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from medclip_debias.data.text.claims.table import claim_set
from medclip_debias.errors import UserError
from medclip_debias.experiments.grid import read_grid, runs
from medclip_debias.experiments.trainings import Trainings
from medclip_debias.training.resolve import resolved
from tests.experiments.conftest import GRID

CONFIGS = Path(__file__).parents[2] / "configs"
GRIDS = sorted((CONFIGS / "experiments").glob("*.yaml"))
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
def test_a_packaged_grid_written_out_names_no_preset_and_is_the_same(path, tmp_path):
    grid, again = read_grid(path), tmp_path / "settings.yaml"
    found = list(runs(grid))
    assert len(found) == len(grid.settings) * len(grid.methods) * len(grid.seeds)
    again.write_text(yaml.safe_dump(grid.model_dump(mode="json"), sort_keys=False))
    assert not re.search(r"loss:\w|extends", again.read_text())
    assert list(runs(read_grid(again))) == found


def test_table_1_as_a_grid_trains_the_rows_of_the_paper_and_its_controls():
    grid = read_grid(CONFIGS / "experiments/table1_mimic_cxr.yaml", ["seeds=[3]"])
    found = {run.method: run.content for run in runs(grid)}
    for method, loss in ROWS.items():
        row = resolved(CONFIGS / "mimic_cxr/base.yaml", loss=loss)
        del row["out"]
        assert found[method] == row | {"train": row["train"] | {"seed": 3}}
    (method, controls), *_ = grid.controls.items()
    assert found[method]["loss"].pop("eta")["kind"] == "language_model"
    for control in controls:
        eta = found[control]["loss"].pop("eta")
        assert (eta["a"], eta["k"]) == (0.2, 0.35)
        assert found[control] == found[method]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["baseline=CLAP"], "'CLAP', which is not a method (did you mean 'CLIP'?)"),
        (["controls.CLIP=[CLIP]"], "its own control"),
        (["metrics=[grounding.cnrr]"], "did you mean 'grounding.cnr'"),
        (["seeds=[1, 1]"], "different numbers"),
        (["base.prepared=[runs/a, runs/b]"], "lists several sets, but an experiment evaluates"),
        (["base.train.stepz=4"], "method 'CLIP' of setting 'rate 2e-3': unknown setting"),
        (['methods.twin={"loss": {"kind": "clip"}}'], "the same settings as 'CLIP'"),
    ],
)
def test_what_fits_nothing_is_one_sentence(words, sentence):
    with pytest.raises(UserError) as caught:
        list(runs(read_grid(GRID, words)))
    assert sentence in str(caught.value)


def test_a_preset_as_a_method_leaves_nothing_of_the_bases_loss_and_shares_become_steps(tmp_path):
    base = "{prepared: p, model: {text: {folder: m}}, loss: {kind: clip, negatives: [{kind: fnc}]}}"
    other = "{extends: loss:clip, loss: {negatives: [{kind: fnc, alpha: 0.2}]}}"
    path = tmp_path / "grid.yaml"
    path.write_text(
        f"base: {base}\nmethods: {{a: loss:clip, b: {other}}}\nseeds: [0]\nbaseline: a\n"
    )
    share = 'methods.c={loss: {kind: clip, negatives: [{kind: fnc, start_step: "@0.4"}]}}'
    words = [share, "base.train.steps=200"]
    found = {run.method: run.content["loss"]["negatives"] for run in runs(read_grid(path, words))}
    assert found["a"] == []
    assert [policy["alpha"] for policy in found["b"]] == [0.2]
    assert found["c"][0]["start_step"] == 80  # a share of the steps becomes a step


# ------------------------------------------------------------------------ what names a cell


def keys(place, *words, **more):
    grid = read_grid(GRID, place.words(seeds="[0]", **more) + list(words))
    experiment = Trainings(grid, Path("runs"))
    return [experiment.key(cell) for cell in experiment.cells()]


def test_a_cell_is_named_by_what_its_result_depends_on(place, tmp_path):
    plain = keys(place)
    assert len(set(plain)) == 6
    moved, language = tmp_path / "elsewhere", tmp_path / "lm"
    shutil.copytree(place.prepared, moved)
    shutil.copytree(place.language_model, language)
    for same in (
        {"base.prepared": moved, "base.model.text.folder": language},
        {"base.train.workers": 1, "base.train.log_every": 1, "base.train.checkpoint_every": 1},
        {"base.train.device": "cpu", "name": "another", "metrics": "[grounding.cnr]"},
        {"evaluate.bootstrap": 10, "evaluate.batch_size": 3},
    ):
        assert keys(place, **same) == plain, same
    with (language / "vocab.txt").open("a") as stream:
        stream.write("\nanother")
    for other, count in (
        ({"base.train.steps": 5}, 6),
        ({"base.train.lr": 1e-3}, 3),  # one of the settings changes the learning rate itself
        ({"base.model.dim": 8}, 6),
        ({"base.model.text.folder": language}, 6),
        ({"evaluate.split": "validate"}, 6),
        ({"evaluate.options.smoothing": 1}, 6),
    ):
        assert len(set(keys(place, **other)) - set(plain)) == count, other


def test_another_content_of_a_file_is_another_cell(place, tmp_path):
    table, other = tmp_path / "labels.csv", tmp_path / "the same.csv"
    table.write_text("image,Edema\na,1\n")
    first = keys(place, **{"evaluate.labels": table})
    table.write_text("image,Edema\na,0\n")
    assert not set(first) & set(keys(place, **{"evaluate.labels": table}))
    shutil.copy(table, other)
    assert keys(place, **{"evaluate.labels": other}) == keys(place, **{"evaluate.labels": table})


def test_another_content_of_a_folder_that_a_run_names_is_another_cell(place, tmp_path):
    folder = shutil.copytree(place.language_model, tmp_path / "lm")
    scored = f"{{kind: debiased, eta: {{kind: language_model, language_model: {folder}}}}}"
    for words, count in (
        ({"base.model.image.weights": folder}, 6),
        ({"methods.scored.loss": scored}, 2),
    ):
        first = keys(place, **words)
        assert keys(place, **words) == first
        (folder / "config.json").write_text(f"of {count}")
        assert len(set(keys(place, **words)) - set(first)) == count


def test_a_cell_is_named_by_the_claims_that_it_reads_and_by_no_others(place, tmp_path):
    prepared = tmp_path / "prepared"
    shutil.copytree(place.prepared, prepared)
    loss = "{kind: multi_positive, evidence: {kind: claims}}"
    words = {"base.prepared": prepared, "methods.positives": f"{{loss: {loss}}}"}
    found = []
    for lexicon in ("phantom", "phantom", "english"):
        claim_set(prepared, lexicon)
        found.append(keys(place, **words))
    first, again, other = found
    assert first == again
    assert [a == b for a, b in zip(first, other, strict=True)] == 2 * [True, True, True, False]
