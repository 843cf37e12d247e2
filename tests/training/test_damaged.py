"""Whatever befalls a run's folder, the next start resumes rightly or says one sentence."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

import pytest
import torch
import yaml

from medclip_debias.cli import run as command
from medclip_debias.training.checkpoint import hash_path
from medclip_debias.training.train import train
from tests.training.conftest import train_until

# Checkpoints after steps 1 and 2 of 3, so that a start that finds them takes one step.
TRAIN = {
    "steps": 3,
    "log_every": 1,
    "checkpoint_every": 1,
    "validate_every": 1,
    "validate_images": 8,
    "keep": "best",
}


@pytest.fixture(autouse=True)
def same_figures(monkeypatch):
    """Validations that get better and better, cheaper than real ones."""
    from medclip_debias.evaluation import validation

    figures = iter(range(1, 100))
    better = lambda *_: lambda _: {"recall_at_10": 1.0 + next(figures)}  # noqa: E731
    monkeypatch.setattr(validation, "validator_of", better)


def model_files(folder):
    """What a model folder holds, but for where the run was."""
    contents = {path.name: path.read_bytes() for path in folder.iterdir()}
    config = json.loads(contents["config.json"])
    del config["provenance"]["out"]
    return contents | {"config.json": config}


@pytest.fixture(scope="module")
def saved(run_in, tmp_path_factory):
    """The folder of a run with checkpoints after steps 1 and 2, and the files of the whole one."""
    run = run_in(tmp_path_factory.mktemp("damaged"))
    whole, begun = run("whole", **TRAIN), run("begun", **TRAIN)
    figures = iter([0.5, 0.6, 0.7, 0.5, 0.6])
    model = train(whole, validator=lambda _: {"recall_at_10": next(figures)}).model
    train_until(begun, 2, validator=lambda _: {"recall_at_10": next(figures)})
    return begun.out, model_files(model)


@pytest.fixture
def judged(run, saved, capsys):
    """A function that starts the run after damage: its code and output, either of them right."""
    folder, whole = saved
    settings = run("run", **TRAIN)
    shutil.copytree(folder, settings.out)

    def start():
        path = settings.out.parent / "run.yaml"
        path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
        capsys.readouterr()
        code = command(["train", str(path)])
        stderr = capsys.readouterr().err
        assert "internal error" not in stderr
        assert "Traceback" not in stderr
        if code:
            lines = [line for line in stderr.splitlines() if line.startswith("medclip-debias: ")]
            assert (code, len(lines)) == (2, 1), stderr
            assert len(lines[0]) > 60, "a sentence says what to do"
        else:
            assert model_files(settings.out / "model") == whole
        return code, stderr

    start.out = settings.out
    return start


def noise(path):
    path.write_bytes(hashlib.shake_128(b"noise").digest(max(64, path.stat().st_size)))


def truncated(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def missing(path):
    path.unlink()


def full_folder(path):
    path.unlink()
    path.mkdir()
    (path / "file").write_text("x")


def loop(path):
    path.unlink()
    path.symlink_to(path.name)


def of_something_else(path):
    torch.save({"step": "four", "model": [], "best": {}}, path)
    hash_path(path).write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n")


NEWEST = "checkpoints/step_00000002.pt"
CASES = {
    "settings.yaml": (noise, missing, full_folder, loop),
    "metrics.csv": (noise, loop),
    "validation.csv": (full_folder,),
    "finished.json": (noise, loop),
    NEWEST: (noise, truncated, missing, full_folder, loop, of_something_else),
    f"{NEWEST}.sha256": (missing, full_folder),
}


@pytest.mark.parametrize(
    ("name", "damage"), [(name, damage) for name, damages in CASES.items() for damage in damages]
)
def test_a_damaged_file_is_a_sentence_or_no_matter(judged, name, damage):
    path = judged.out / name
    if not path.exists():
        path.write_text("{}")
    damage(path)
    code, _ = judged()
    assert code == 2 or damage is not of_something_else


def test_what_is_not_read_is_no_matter(judged):
    """Older checkpoints, and odd things that a run does not write."""
    for name in ("step_00000001.pt", "best_00000002.pt", "best_00000002.pt.sha256"):
        loop(judged.out / "checkpoints" / name)
    os.mkfifo(judged.out / "other")
    os.mkfifo(judged.out / "checkpoints" / ".hidden")
    (judged.out / "checkpoints" / "step_00000009.pt").mkdir()
    (judged.out / "checkpoints" / "best_00000009.pt").symlink_to("nowhere")
    assert judged()[0] == 0


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_something_else_in_place_of_a_folder(judged, name):
    shutil.rmtree(judged.out / name, ignore_errors=True)
    (judged.out / name).write_text("")
    assert judged()[0] == 2


def test_a_table_whose_rows_are_lost_is_begun_anew_and_said(judged):
    damaged = {"metrics.csv": "", "validation.csv": "a\n1\n"}
    for name, content in damaged.items():
        (judged.out / name).write_text(content)
    code, stderr = judged()
    assert code == 0
    for name, content in damaged.items():
        assert f"{name}: is damaged, so its rows up to step 2 are lost" in stderr
        lines = (judged.out / name).read_text().splitlines()
        assert lines[0].startswith("step,")
        assert [line.partition(",")[0] for line in lines[1:]] == ["3"]
        assert (judged.out / name.replace(".csv", ".damaged.csv")).read_text() == content
