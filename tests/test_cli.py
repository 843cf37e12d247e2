"""The console command: the whole way, its figures, and one sentence for each kind of bad input."""

from __future__ import annotations

import json
import shutil
from base64 import b64encode
from pathlib import Path

import numpy as np
import pytest
import typer
import yaml
from PIL import Image

from medclip_debias.cli import app, run
from medclip_debias.cli.help import ORDER, help_of
from medclip_debias.data.store import PreparedSet, write_scores

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


def test_help_lists_every_verb_in_a_panel_in_the_order_of_the_work():
    command = typer.main.get_command(app)
    context = command.make_context("medclip-debias", [], resilient_parsing=True)
    verbs = [command.get_command(context, name) for name in command.list_commands(context)]
    panels = {verb.name: verb.rich_help_panel for verb in verbs}
    assert None not in panels.values(), "name a panel, or --help lists the verb apart from all"
    order = ["First steps", "Data", "Training", "Evaluation", "Looking and searching"]
    order += ["Experiments", "Sharing"]
    assert list(dict.fromkeys(panels.values())) == order
    assert panels["train"] == panels["doctor"] == "Training"
    assert panels["compare"] == panels["evaluate"] == "Evaluation"


def test_help_fits_on_a_screen_and_knows_the_place_of_every_verb():
    command = typer.main.get_command(app)
    shown = help_of(command, "medclip-debias", ["--help"])
    assert len(shown.splitlines()) <= 50
    assert set(command.commands) == set(ORDER)


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


def test_ground_writes_a_picture_and_a_map_for_each_sentence(trained, figures, tmp_path):
    grey = np.random.default_rng(0).integers(0, 255, (90, 130), dtype=np.uint8)
    Image.fromarray(grey).save(tmp_path / "image.png")
    model = trained / "run" / "model"
    words = ["ground", model, tmp_path / "image.png", "--text", "Left lung.", "--text", "Nodule."]
    maps = figures(*words, "--out", tmp_path / "out")["images"][0]["sentences"]
    assert [entry["text"] for entry in maps] == ["Left lung.", "Nodule."]
    for entry in maps:
        assert np.load(entry["map"], allow_pickle=False).shape == (90, 130)
        assert Image.open(entry["picture"]).format == "PNG"


def test_a_run_can_be_repeated_and_resumed_by_the_same_command(trained, figures):
    again = figures("train", *run_words(trained))
    assert again["resumed_at"] == again["steps"] == 4


# ------------------------------------------------------------------------------ bad input


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


def test_an_unknown_setting_names_key_and_file(reported, trained):
    sentence = reported("train", *run_words(trained, "train.learning_rate=1"))
    assert "'train.learning_rate'" in sentence
    assert "demo.yaml" in sentence
    assert "'vocabulry'" in reported(
        "language-model", trained / "prepared", trained / "lm2", "vocabulry=5"
    )


def test_a_checkpoint_of_another_architecture_is_refused(reported, trained, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(trained, root)
    settings = root / "run" / "settings.yaml"
    words = run_words(root, "model.dim=32")
    assert "model.dim" in reported("train", *words)
    # Where settings.yaml says so too, the checkpoint still tells what it was written under.
    content = yaml.safe_load(settings.read_text())
    content["model"]["dim"] = 32
    content["model"]["text"]["folder"] = f"{root}/lm"  # the copy's own
    settings.write_text(yaml.safe_dump(content))
    assert "holds a run with other settings (model.dim" in reported("train", *words)


def test_scores_from_another_language_model_are_refused(reported, trained, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(trained, root)
    data = PreparedSet.open(root / "prepared")
    write_scores(
        data.folder, data.texts, np.zeros(len(data.texts)), np.ones(len(data.texts), int), "other"
    )
    words = ["--loss", "debiased_language_model"]
    assert "other" in reported("train", *run_words(root, f"out={root}/new"), *words)


def test_a_model_is_never_used_with_another_preprocessing(reported, trained, tiny_tree, tmp_path):
    words = ["prepare", str(tiny_tree.root), f"{tmp_path}/other", "--size", "80"]
    assert run([*words, "--workers", "1"]) == 0
    sentence = reported(
        "evaluate", trained / "run" / "model", tmp_path / "other", "--out", tmp_path / "out"
    )
    assert "size" in sentence
    assert not (tmp_path / "out" / "results.json").exists()


def test_words_that_do_not_parse_exit_with_2(capsys):
    for words in (["bogus"], ["train"], ["phantom", "out", "--studies", "none"]):
        assert run(words) == 2
        assert "Traceback" not in capsys.readouterr().err
