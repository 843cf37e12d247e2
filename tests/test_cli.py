"""The console command: its help, the whole way, and its figures."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64encode
from pathlib import Path

import pytest
import typer

from medclip_debias.cli import app, run
from medclip_debias.cli.help import help_of
from medclip_debias.data.store import PreparedSet

REPO = Path(__file__).parents[1]


@pytest.fixture
def reported(capsys):
    """Run a command line that must fail, and return its one sentence."""

    def reported(*words):
        capsys.readouterr()
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        assert code == 2
        assert captured.out == ""
        # What a source was found to be may stand before it; the sentence is the last line.
        *before, sentence = captured.err.splitlines()
        assert sentence.startswith("medclip-debias: ")
        assert not any(line.startswith("medclip-debias: ") for line in before)
        assert "Traceback" not in captured.err
        return sentence

    return reported


@pytest.fixture
def figures(capsys):
    """Run a command line with --json and return what it printed."""

    def _figures(*words):
        capsys.readouterr()
        assert run([*(str(word) for word in words), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return _figures


@pytest.fixture(scope="module")
def trained(prepared_phantom, tmp_path_factory):
    """A prepared, scored phantom and a model trained on it for four steps, by the commands."""
    root = tmp_path_factory.mktemp("cli")
    shutil.copytree(prepared_phantom, root / "prepared")
    small = ["hidden=16", "heads=2", "layers=1", "steps=4", "vocabulary=400", "batch_size=16"]
    assert run(["language-model", f"{root}/prepared", f"{root}/lm", *small]) == 0
    assert run(["score", f"{root}/prepared", "--language-model", f"{root}/lm"]) == 0
    assert run(["claims", f"{root}/prepared", "--lexicon", "phantom"]) == 0
    assert run(["train", *run_words(root)]) == 0
    return root


def run_words(root, *more):
    words = [
        f"prepared={root}/prepared",
        f"out={root}/run",
        f"model.text.folder={root}/lm",
        "train.steps=4",
        "train.batch_size=8",
        "train.log_every=2",
        "train.workers=0",
    ]
    return [str(REPO / "configs" / "phantom" / "demo.yaml"), *words, *more]


def test_help_lists_every_verb_once_in_a_panel_and_fits_on_a_screen():
    command = typer.main.get_command(app)
    shown = help_of(command, "medclip-debias", ["--help"]).splitlines()
    assert len(shown) <= 50
    order = ["First steps:", "Data:", "Training:", "Evaluation:", "Looking and searching:"]
    order += ["Experiments:", "Sharing:", "Options:"]
    panels = {}
    for line in (re.sub(r"\x1b\[\d+m", "", line) for line in shown):
        if line.endswith(":") and not line.startswith(" "):
            panels[line] = []
        elif panels and line.startswith("  ") and line[2] not in " -":
            panels[[*panels][-1]].append(line.split()[0])
    assert list(panels) == order, "name a panel, or --help lists the verb apart from all"
    assert sorted(name for names in panels.values() for name in names) == sorted(command.commands)
    assert {"train", "doctor"} <= set(panels["Training:"])
    assert {"compare", "evaluate"} <= set(panels["Evaluation:"])


def test_help_of_a_verb_with_further_verbs_is_that_of_the_usual_one(capsys):
    assert run(["evaluate", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--bootstrap" in shown
    assert "evaluate probe" in shown


def test_the_whole_way_ends_in_a_report(trained, figures):
    root = trained
    results = figures(
        "evaluate",
        root / "run" / "model",
        root / "prepared",
        "--out",
        root / "run",
        "--bootstrap",
        20,
        "--heatmaps",
        2,
    )
    assert results == json.loads((root / "run" / "results.json").read_text())
    values = {(r["protocol"], r["metric"]): r["value"] for r in results["metrics"]}
    assert 0 <= values["zero_shot", "mean_auc"] <= 1
    assert {("grounding", "cnr"), ("retrieval", "recall")} <= values.keys()
    report = figures("report", root / "run")["report"]
    page = Path(report).read_text()
    pictures = {
        (path.name, path.read_bytes()) for path in (root / "run" / "heatmaps").glob("*.png")
    }
    assert len(pictures) >= 2
    for name, content in pictures:
        assert f"data:image/png;base64,{b64encode(content).decode()}" in page, name
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_phantom_prepare_and_losses_print_their_results(figures, tmp_path):
    small = ["--set", "min_side=80", "--set", "max_side=112"]
    words = ["--studies", 20, "--format", "jpg", "--seed", 5, *small]
    made = figures("phantom", tmp_path / "tree", *words)
    assert made["studies"] == 20
    prepared = figures("prepare", tmp_path / "tree", tmp_path / "set", "--size", 32)
    assert prepared["images"] == len(PreparedSet.open(tmp_path / "set"))
    assert prepared["funnel"] == json.loads((tmp_path / "set" / "funnel.json").read_text())
    listed = figures("losses")
    listing = listed["losses"]
    assert {"debiased", "infonce"} <= {entry["kind"] for entry in listing}
    assert all(entry["formula"] and entry["paper"] for entry in listing)
    assert "debiased_language_model" in {entry["name"] for entry in listed["presets"]}


def test_a_missing_folder_is_named(reported, tmp_path):
    none, out = tmp_path / "none", tmp_path / "out"
    for line in (
        ("prepare", none, out),
        ("report", none),
        ("evaluate", none, none, "--out", out),
        ("score", none, "--language-model", tmp_path),
    ):
        assert str(none) in reported(*line)
    assert not out.exists()


def test_words_that_do_not_parse_exit_with_2(capsys):
    for words in (["bogus"], ["train"], ["phantom", "out", "--studies", "none"]):
        assert run(words) == 2
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "hint"), [("train", True), ("experiment", True), ("index", False)]
)
def test_a_setting_with_dashes_is_shown_how_it_is_given(verb, hint, capsys):
    assert run([verb, "phantom/demo", "somewhere", "--seed-of-all", "3"]) == 2
    assert ("as seed-of-all=VALUE" in capsys.readouterr().err) is hint
