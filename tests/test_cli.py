"""The verbs, one after the other, as a user gives them: figures, files, and who may read them."""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from pathlib import Path

import pytest
import yaml

from medclip_debias.cli import run
from medclip_debias.errors import counted
from medclip_debias.training.resolve import load_run

REPO = Path(__file__).parents[1]
CONFIG = str(REPO / "configs" / "phantom" / "base.yaml")
UMASK = 0o027


@pytest.fixture
def figures(capsys):
    """Run a command line with --json and return what it printed."""

    def figures(*words):
        capsys.readouterr()
        assert run([*(str(word) for word in words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return figures


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """What the verbs leave, one after the other."""
    root = tmp_path_factory.mktemp("rights")
    tree = tmp_path_factory.mktemp("phantom") / "tree"
    before = os.umask(UMASK)
    try:
        prepared, lm, out = f"{root}/prepared", f"{root}/lm", f"{root}/run"
        sides = ["--studies", "48", "--seed", "3", "--set", "min_side=80", "--set", "max_side=112"]
        small = ["hidden=16", "heads=2", "layers=1", "steps=2", "vocabulary=400", "batch_size=16"]
        settings = ["train.steps=2", "train.batch_size=8", "train.workers=0", "train.keep=best"]
        settings += ["train.validate_every=1", "train.validate_images=8", "train.warmup_steps=1"]
        settings += [f"prepared={prepared}", f"out={out}", f"model.text.folder={lm}"]
        few = ["--set", "landmarks=40", "--set", "queries=10", "--set", "image_queries=2"]
        quick = ["--bootstrap", "0", "--heatmaps", "2"]
        for command in (
            ["phantom", str(tree), "--workers", "1", *sides],
            ["prepare", str(tree), prepared, "--size", "72", "--workers", "1"],
            ["language-model", prepared, lm, *small],
            ["score", prepared, "--language-model", lm],
            ["train", CONFIG, "--loss", "debiased_language_model", *settings],
            ["evaluate", f"{out}/model", prepared, "--out", out, *quick],
            ["report", out],
            ["index", f"{out}/model", prepared, "--out", f"{root}/index", *few],
        ):
            assert run(command) == 0, command
        image = str(next(tree.rglob("*.dcm")))
        ground = ["ground", f"{out}/model", image, "--text", "Clear.", "--out", f"{root}/maps"]
        assert run(ground) == 0
    finally:
        os.umask(before)
    return root


def test_the_umask_decides_who_may_read_and_nothing_hidden_is_left(root):
    found = [path.relative_to(root) for path in root.rglob("*")]
    assert {"prepared", "lm", "run", "index", "maps"} == {path.parts[0] for path in found}
    run_files = {path.parts[1] for path in found if path.parts[0] == "run" and path.parts[1:]}
    assert {"settings.yaml", "metrics.csv", "results.json", "report.html"} <= run_files
    assert {"model", "checkpoints", "heatmaps", "retrieval", "items"} <= run_files
    for path in found:
        expected = (0o777 if (root / path).is_dir() else 0o666) & ~UMASK
        if path.name == "items.key":  # a secret, whatever the umask
            expected = 0o600
        assert (root / path).stat().st_mode & 0o777 == expected, path
        assert path.name[0] != "."


def test_the_whole_way_ends_in_a_report_that_needs_no_other_file(root, figures, tmp_path):
    words = ["--out", tmp_path, "--bootstrap", 20, "--heatmaps", 0]
    results = figures("evaluate", root / "run" / "model", root / "prepared", *words)
    assert results == json.loads((tmp_path / "results.json").read_text())
    values = {(r["protocol"], r["metric"]): r["value"] for r in results["metrics"]}
    assert 0 <= values["zero_shot", "mean_auc"] <= 1
    assert {("grounding", "cnr"), ("retrieval", "recall")} <= values.keys()
    page = (root / "run" / "report.html").read_text()
    pictures = [path.read_bytes() for path in (root / "run" / "heatmaps").glob("*.png")]
    assert len(pictures) >= 2
    for content in pictures:
        assert f"data:image/png;base64,{b64encode(content).decode()}" in page
    assert not re.search(r"https?://(?!www\.w3\.org)", page)


def test_losses_lists_every_loss_and_preset_with_its_row_of_the_paper(figures, capsys):
    listed = figures("losses")
    assert {"debiased", "infonce"} <= {entry["kind"] for entry in listed["losses"]}
    assert all(entry["formula"] and entry["paper"] for entry in listed["losses"])
    assert run(["losses"]) == 0
    out = capsys.readouterr().out
    assert "debiased_0.05 (row 7, debiased, eta 0.05)\n  Debiased contrastive loss" in out
    assert all(entry["name"] in out for entry in listed["presets"])


def test_a_missing_folder_is_named_and_nothing_is_written(tmp_path, capsys):
    none, out = f"{tmp_path}/none", f"{tmp_path}/out"
    for line in (
        ["prepare", none, out],
        ["report", none],
        ["evaluate", none, none, "--out", out],
        ["score", none, "--language-model", f"{tmp_path}"],
    ):
        assert run(line) == 2
        assert none in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


# ----------------------------------------------------------------------------- config, doctor


def shown(capsys, *words):
    capsys.readouterr()
    assert run(["config", "show", CONFIG, "--loss", "sogclr", *words]) == 0
    return capsys.readouterr().out


def test_config_show_prints_settings_that_are_the_run(capsys, tmp_path):
    words = ["train.lr=3e-4", "train.seed=7", "out=here"]
    (tmp_path / "again.yaml").write_text(shown(capsys, *words), encoding="utf-8")
    again = load_run(tmp_path / "again.yaml")
    assert again == load_run(CONFIG, words, "sogclr")
    assert (again.train.lr, again.loss["kind"], again.out) == (3e-4, "sogclr", Path("here"))
    whole = json.loads(shown(capsys, "--json"))
    part = yaml.safe_load(shown(capsys, "--only-changed", "train.lr=3e-4"))
    assert whole == yaml.safe_load(shown(capsys))
    assert "seed" in whole["train"]
    assert "seed" not in part["train"]
    assert part["train"]["lr"] == 3e-4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["config", "show", CONFIG, "train.rate=1"], "unknown setting 'train.rate'"),
        (["doctor", CONFIG, "--loss", "sogclrr"], "--loss: .*'sogclrr' .*did you mean 'sogclr'"),
        (["doctor", "--loss", "sogclr"], "--loss sogclr: is for a run"),
        (["doctor", "train.lr=1e-5"], "train.lr"),
    ],
)
def test_words_that_no_run_would_take_are_refused(capsys, words, said):
    assert run(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(said, captured.err.splitlines()[-1])


def test_the_doctor_looks_at_the_machine_alone_and_prints_a_table(capsys):
    assert run(["doctor"]) == 0
    *lines, summary = capsys.readouterr().out.splitlines()
    rows = dict(line.split("  ", 1) for line in lines if line[0] != " ")
    assert {"versions", "codecs"} <= set(rows)
    assert not {"data", "step"} & set(rows)
    states = {name: row.split()[0] for name, row in rows.items()}
    assert next(state for name, state in states.items() if name.endswith("all-reduce")) == "ok"
    warnings = [*states.values()].count("warning")
    assert summary == f"{counted(warnings, 'warning')}, 0 that would stop the run"
    # What to do stands below every warning, in the column of what was found.
    assert sum(line.lstrip().startswith("->") for line in lines) == warnings
