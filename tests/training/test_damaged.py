"""Whatever befalls a run's folder, the next start resumes rightly or says one sentence."""

from __future__ import annotations

import hashlib
import os
import shutil

import pytest
import torch
import yaml

from medclip_debias.cli import run as command
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.checkpoint import checkpoints, hash_path
from medclip_debias.training.run import train

TRAIN = {"steps": 6, "validate_every": 2, "keep": "best", "validate_images": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture
def begun(run, folders):
    """Settings of a run whose folder holds checkpoints after steps 2 and 4, and of a whole one."""
    saved = folders / "begun"
    whole = run("run", **TRAIN).model_copy(update={"out": folders / "whole"})
    settings = run("run", **TRAIN)
    figures = iter([0.5, 0.6, 0.7] * 2)

    def judge(_):
        return {"recall_at_10": next(figures)}

    def at_five(done, total, loss):
        if done == 5:
            raise KeyboardInterrupt

    if not saved.exists():
        train(whole, validator=judge)
        with pytest.raises(KeyboardInterrupt):
            train(
                settings.model_copy(update={"out": saved}),
                validator=lambda _: {"recall_at_10": next(figures)},
                progress=at_five,
            )
    shutil.copytree(saved, settings.out)
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
    "checkpoints/step_00000004.pt",
    "checkpoints/step_00000004.pt.sha256",
    "checkpoints/step_00000002.pt",
    "checkpoints/step_00000002.pt.sha256",
    "checkpoints/best_00000004.pt",
    "checkpoints/best_00000004.pt.sha256",
]


def judged(settings, whole, capsys):
    """Start the run's command; what it said, after a sentence or the weights were right."""
    path = settings.out.parent / "run.yaml"
    plain = settings.model_dump(mode="json")
    path.write_text(yaml.safe_dump(plain))
    capsys.readouterr()
    code = command(["train", str(path), "train.log_every=2"])
    said = capsys.readouterr().err
    assert "internal error" not in said
    assert "Traceback" not in said
    if code:
        reported = [line for line in said.splitlines() if line.startswith("medclip-debias: ")]
        assert (code, len(reported)) == (2, 1), said
        assert len(reported[0]) > 60, "a sentence says what to do"
    else:
        expected = DualEncoder.load(whole.out / "model").state_dict()
        found = DualEncoder.load(settings.out / "model").state_dict()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
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
    for kind in (KINDS if number in (0, 1, 4) else (empty, noise, folder, loop, locked))
]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_damaged_file_is_a_sentence_or_no_matter(begun, capsys, name, kind):
    settings, whole = begun
    path = settings.out / name
    if not path.exists():
        path.write_text("{}")
    kind(path)
    judged(settings, whole, capsys)


@pytest.mark.parametrize(
    "name",
    [
        "other",
        "tensorboard/other",
        "checkpoints/other",
        "checkpoints/.hidden",
        "checkpoints/step_00000009.pt",
        "checkpoints/best_00000001.pt",
    ],
)
@pytest.mark.parametrize("what", ["folder", "fifo", "loop"])
def test_odd_things_in_the_folder_are_a_sentence_or_no_matter(begun, capsys, name, what):
    settings, whole = begun
    path = settings.out / name
    if what == "folder":
        path.mkdir()
        (path / "file").write_text("x")
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name)
    judged(settings, whole, capsys)


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
        {"step": 4},
        {"step": "four", "model": {}, "best": {}},
        {"step": 4, "model": {"a": torch.zeros(1)}, "best": {}},
        {"step": 4, "model": [], "best": None},
    ],
    ids=["bare", "words", "foreign", "lists"],
)
def test_a_checkpoint_that_is_whole_but_of_something_else(begun, capsys, content):
    settings, whole = begun
    path = checkpoints(settings.out / "checkpoints")[-1]
    torch.save(content, path)
    hash_path(path).write_text(hashlib.sha256(path.read_bytes()).hexdigest() + "\n")
    assert judged(settings, whole, capsys)[0] == 2


@pytest.mark.parametrize(
    "content", ["[]", "1", "a: [", "a: " + "[" * 5000, "\x00", "? {a: b}\n: 1"]
)
def test_settings_that_are_none(begun, capsys, content):
    settings, whole = begun
    (settings.out / "settings.yaml").write_text(content)
    code, said = judged(settings, whole, capsys)
    assert code == 2
    assert "settings.yaml" in said


@pytest.mark.parametrize("name", ["metrics.csv", "validation.csv"])
@pytest.mark.parametrize("content", ["", "a", "a,b\n1,2\n"])
def test_a_table_whose_rows_are_lost_is_begun_anew_and_said(begun, capsys, name, content):
    settings, whole = begun
    (settings.out / name).write_text(content)
    code, said = judged(settings, whole, capsys)
    assert code == 0
    assert f"{name}: is damaged, so its rows up to step 4 are lost" in said
    lines = (settings.out / name).read_text().splitlines()
    assert lines[0].startswith("step,")
    assert [line.partition(",")[0] for line in lines[1:]] == ["6"]
    aside = settings.out / name.replace(".csv", ".damaged.csv")
    assert aside.exists() == bool(content)
