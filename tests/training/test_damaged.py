"""Whatever befalls a run's folder, the next start resumes rightly or says one sentence."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys

import pytest
import torch
import yaml

from medclip_debias.cli import run as command
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.checkpoint import checkpoints, hash_path
from medclip_debias.training.train import train

# Checkpoints after steps 1 and 2 of 3, so that a start that finds them takes one step.
TRAIN = {
    **{"steps": 3, "log_every": 1, "checkpoint_every": 1},
    **{"validate_every": 1, "keep": "best", "validate_images": 8},
}


def model_files(folder):
    """What a model folder holds, but for where the run was."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    config = json.loads(found["config.json"])
    del config["provenance"]["out"]
    return found | {"config.json": config}


@pytest.fixture(scope="module")
def saved(run_in, tmp_path_factory):
    """A run whose folder holds checkpoints after steps 1 and 2, and the model of a whole one."""
    run = run_in(tmp_path_factory.mktemp("damaged"), "tiny")
    whole, begun = run("whole", **TRAIN), run("begun", **TRAIN)
    figures = iter([0.5, 0.6, 0.7] * 2)

    def judge(_):
        figure = next(figures)
        if judge.stops and figure == 0.7:  # the row of step 3 is written, its checkpoint is not
            raise KeyboardInterrupt
        return {"recall_at_10": figure}

    judge.stops = False
    model = train(whole, validator=judge).model
    DualEncoder.load(model)  # else its copies would be of no use either
    judge.stops = True
    with pytest.raises(KeyboardInterrupt):
        train(begun, validator=judge)
    assert len((begun.out / "metrics.csv").read_text().splitlines()) == 4
    return begun.out, model_files(model)


@pytest.fixture
def begun(run, saved):
    """Settings of an interrupted run, whose folder is free to be damaged, and the whole model."""
    folder, whole = saved
    settings = run("run", **TRAIN)
    shutil.copytree(folder, settings.out)
    return settings, whole


def empty(path):
    path.write_bytes(b"")


def missing(path):
    path.unlink()


def truncated(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def noise(path):
    path.write_bytes(hashlib.shake_128(b"noise").digest(max(64, path.stat().st_size)))


def zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def folder(path):
    path.unlink()
    path.mkdir()


def full_folder(path):
    folder(path)
    (path / "file").write_text("x")


def loop(path):
    path.unlink()
    path.symlink_to(path.name)


def nowhere(path):
    path.unlink()
    path.symlink_to("nowhere")


def locked(path):
    if os.geteuid() == 0:
        pytest.skip("nothing is locked for root")
    path.chmod(0)


KINDS = [empty, missing, truncated, noise, zeros, folder, full_folder, loop, nowhere, locked]
FILES = [
    "settings.yaml",
    "metrics.csv",
    "validation.csv",
    "finished.json",
    "checkpoints/step_00000002.pt",
    "checkpoints/step_00000002.pt.sha256",
    "checkpoints/step_00000001.pt.sha256",
]
# Those that a run which goes on after step 2 does not read, each looked at by itself.
OLDER = ["step_00000001.pt", "best_00000002.pt", "best_00000002.pt.sha256"]
SOME = (empty, noise, folder, loop, locked)


def judged(settings, whole, capsys):
    """Start the run's command; what it said, after a sentence or the weights were right."""
    path = settings.out.parent / "run.yaml"
    plain = settings.model_dump(mode="json")
    path.write_text(yaml.safe_dump(plain))
    capsys.readouterr()
    code = command(["train", str(path)])
    said = capsys.readouterr().err
    assert "internal error" not in said
    assert "Traceback" not in said
    if code:
        reported = [line for line in said.splitlines() if line.startswith("medclip-debias: ")]
        assert (code, len(reported)) == (2, 1), said
        assert len(reported[0]) > 60, "a sentence says what to do"
    else:
        assert model_files(settings.out / "model") == whole
    return code, said


@pytest.fixture(autouse=True)
def same_figures(monkeypatch):
    """Validations that get better and better, cheaper than real ones."""
    from medclip_debias.evaluation import validation

    figures = iter(range(1, 100))
    better = lambda *_: lambda _: {"recall_at_10": 1.0 + next(figures)}  # noqa: E731
    monkeypatch.setattr(validation, "validator_of", better)


# Files that are parsed get every kind of damage, the others those that differ for them.
CASES = [
    pytest.param(name, kind, id=f"{name}-{kind.__name__}")
    for number, name in enumerate(FILES)
    for kind in (KINDS if number in (0, 1, 4) else SOME)
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_damaged_file_is_a_sentence_or_no_matter(begun, capsys, name, kind):
    settings, whole = begun
    path = settings.out / name
    if not path.exists():
        path.write_text("{}")
    kind(path)
    judged(settings, whole, capsys)


@pytest.mark.parametrize("kind", SOME, ids=lambda kind: kind.__name__)
def test_damage_to_all_that_is_older_is_no_matter(begun, capsys, kind):
    settings, whole = begun
    for name in OLDER:
        path = settings.out / "checkpoints" / name
        assert path.exists()
        kind(path)
    assert judged(settings, whole, capsys)[0] == 0


@pytest.mark.parametrize("what", ["folder", "fifo", "loop"])
def test_odd_things_in_the_folder_are_no_matter(begun, capsys, what):
    settings, whole = begun
    for name in (
        "other",
        "tensorboard/other",
        "checkpoints/other",
        "checkpoints/.hidden",
        "checkpoints/step_00000009.pt",
        "checkpoints/best_00000009.pt",
    ):
        path = settings.out / name
        if what == "folder":
            path.mkdir()
            (path / "file").write_text("x")
        elif what == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to(path.name)
    assert judged(settings, whole, capsys)[0] == 0


@pytest.mark.parametrize("name", ["checkpoints", "tensorboard", "model"])
@pytest.mark.parametrize("kind", [empty, loop, nowhere], ids=lambda kind: kind.__name__)
def test_something_else_in_place_of_a_folder(begun, capsys, name, kind):
    settings, whole = begun
    path = settings.out / name
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("")
    kind(path)
    code, _ = judged(settings, whole, capsys)
    assert code == 2 or name in ("model", "checkpoints")


@pytest.mark.parametrize(
    "content",
    [
        {"step": 2},
        {"step": "four", "model": {}, "best": {}},
        {"step": 2, "model": {"a": torch.zeros(1)}, "best": {}},
        {"step": 2, "model": [], "best": None},
    ],
    ids=["bare", "words", "foreign", "lists"],
)
def test_a_checkpoint_that_is_whole_but_of_something_else(begun, capsys, content):
    settings, whole = begun
    path = checkpoints(settings.out / "checkpoints")[-1]
    torch.save(content, path)
    hash_path(path).write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n")
    assert judged(settings, whole, capsys)[0] == 2


DEEP = "a: " + "[" * sys.getrecursionlimit()


@pytest.mark.parametrize(
    "content", ["[]", "1", "a: [", DEEP, "\x00", "? {a: b}\n: 1"], ids=lambda text: repr(text[:9])
)
def test_settings_that_are_none(begun, capsys, content):
    settings, whole = begun
    (settings.out / "settings.yaml").write_text(content)
    code, said = judged(settings, whole, capsys)
    assert code == 2
    assert "settings.yaml" in said
    assert ("RecursionError" in said) == (content == DEEP)


@pytest.mark.parametrize("name", ["metrics.csv", "validation.csv"])
@pytest.mark.parametrize("content", ["", "a", "a,b\n1,2\n"])
def test_a_table_whose_rows_are_lost_is_begun_anew_and_said(begun, capsys, name, content):
    settings, whole = begun
    (settings.out / name).write_text(content)
    code, said = judged(settings, whole, capsys)
    assert code == 0
    assert f"{name}: is damaged, so its rows up to step 2 are lost" in said
    lines = (settings.out / name).read_text().splitlines()
    assert lines[0].startswith("step,")
    assert [line.partition(",")[0] for line in lines[1:]] == ["3"]
    assert (settings.out / name.replace(".csv", ".damaged.csv")).read_text() == content
