"""The doctor: it says what is well, and finds what is not."""

from __future__ import annotations

import json
import py_compile
import shutil
import time
from dataclasses import replace
from importlib.util import spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import pydicom.pixels
import pytest

from medclip_debias.cli import run
from medclip_debias.data.store import PreparedSet
from medclip_debias.doctor import findings, machine
from medclip_debias.doctor.findings import GIB, OK, STOPS, WARNING, Examination, Finding
from medclip_debias.doctor.training_run import free_disk

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def root(prepared_phantom, tmp_path_factory):
    root = tmp_path_factory.mktemp("doctor")
    shutil.copytree(prepared_phantom, root / "prepared")
    small = ["hidden=16", "heads=2", "layers=1", "steps=4", "vocabulary=400", "batch_size=16"]
    assert run(["language-model", f"{root}/prepared", f"{root}/lm", *small]) == 0
    assert run(["score", f"{root}/prepared", "--language-model", f"{root}/lm"]) == 0
    return root


def words(root, *more, loss="debiased_language_model"):
    config = [str(REPO / "configs" / "phantom" / "base.yaml"), "--loss", loss]
    settings = [f"prepared={root}/prepared", f"out={root}/run", f"model.text.folder={root}/lm"]
    return ["doctor", *config, *settings, "train.batch_size=8", "train.workers=0", *more, "--json"]


def checks(capsys, command, code):
    capsys.readouterr()
    assert run(command) == code
    captured = capsys.readouterr()
    return {one["name"]: one for one in json.loads(captured.out)["checks"]}, captured.out


def test_a_run_that_can_begin(root, capsys, monkeypatch):
    # tests/test_cli.py has two new processes add up numbers.
    added = Finding("gloo all-reduce", OK, "2 processes agree")
    monkeypatch.setattr(machine, "all_reduce", lambda: added)
    found, out = checks(capsys, words(root), 0)
    data = PreparedSet.open(root / "prepared")
    assert found["data"]["state"] == "ok"
    assert found["data"]["figures"]["content_hash"] == data.content_hash
    assert found["language model"]["state"] == "ok"
    assert found["gloo all-reduce"]["state"] == "ok"
    step, whole = found["step"]["figures"], found["whole run (estimate)"]["figures"]
    assert whole["hours"] == pytest.approx(2000 * step["seconds"] / 3600)
    assert not (root / "run").exists()
    assert not any(text in out for text in data.texts)
    assert not any(name in out for name in data.images["patient_id"])


def test_a_missing_decoder_is_named_with_what_installs_it(monkeypatch):
    assert machine.codecs().state == OK  # what the extra installs is enough
    alone = SimpleNamespace(available_plugins=("pydicom", "pillow"))
    monkeypatch.setattr(pydicom.pixels, "get_decoder", lambda _: alone)
    found = machine.codecs()
    assert found.state == WARNING
    named = found.text.split(": such")[0]
    assert all(form in named for form in ("JPEG Lossless", "JPEG-LS", "High-Throughput JPEG 2000"))
    assert "RLE" not in named
    assert found.remedy == "pip install 'medclip-debias[codecs]'"


def test_modules_that_every_start_compiles_again_are_a_warning(tmp_path, monkeypatch):
    files = [tmp_path / f"plain_{number}.py" for number in range(10)]
    specs = [spec_from_file_location(file.stem, file) for file in files]
    imported = {spec.name: SimpleNamespace(__spec__=spec) for spec in specs}
    monkeypatch.setattr(machine, "sys", SimpleNamespace(modules=imported))
    for file in files:
        file.touch()
    found = machine.compiled()
    assert found.state == WARNING
    assert "PYTHONDONTWRITEBYTECODE" in found.remedy
    for file in files[1:]:
        py_compile.compile(str(file))
    found = machine.compiled()
    assert (found.state, found.numbers) == (OK, {"modules": 10, "not_compiled": 1})


@pytest.fixture
def copy(root, tmp_path, monkeypatch):
    """A copy of the data and the language model, free to be damaged.

    The processes that add up numbers take seconds to start, and are looked at above.
    """
    monkeypatch.setattr(machine, "all_reduce", lambda: Finding("all-reduce", OK, ""))
    shutil.copytree(root / "prepared", tmp_path / "prepared")
    shutil.copytree(root / "lm", tmp_path / "lm")
    return tmp_path


def states(found, state):
    return {name for name, one in found.items() if one["state"] == state}


def test_damaged_pixels_stop_the_run_and_a_step_still_shows_what_else_is_wrong(copy, capsys):
    with (copy / "prepared" / "images.bin").open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    found, _ = checks(capsys, words(copy, "train.batch_size=100000"), 2)
    assert found["data"]["state"] == "failed"
    assert "the first is row 0" in found["data"]["told"]
    assert found["step"]["state"] == "failed"
    assert "batch_size" in found["step"]["told"]


RUN = {"step", "whole run (estimate)", "free disk"}
FAULTS = {  # what is done to a run's files, the one fault, and what is not checked because of it
    "no data": (
        lambda copy: shutil.rmtree(copy / "prepared"),
        "data",
        {"scores", "disk, prepared set", *RUN},
    ),
    "no language model": (
        lambda copy: shutil.rmtree(copy / "lm"),
        "language model",
        {"scores", *RUN},
    ),
    "no scores": (lambda copy: (copy / "prepared/scores.json").unlink(), "scores", RUN),
    "a file in the place of the run": (
        lambda copy: (copy / "run").touch(),
        "run folder",
        {"disk, run folder", "free disk"},
    ),
}


@pytest.mark.parametrize(("damage", "fault", "after"), FAULTS.values(), ids=FAULTS)
def test_what_is_missing_is_one_fault(copy, capsys, damage, fault, after):
    damage(copy)
    found, _ = checks(capsys, words(copy), 2)
    assert states(found, "failed") == {fault}
    assert states(found, "not checked") == after
    if fault != "run folder":
        assert {found[name]["told"] for name in after} == {f"because '{fault}' failed"}


def test_what_is_kept_on_one_disk_is_added_up(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10 * GIB))
    features = SimpleNamespace(folder=tmp_path / "features")
    settings = SimpleNamespace(out=tmp_path / "run", train=SimpleNamespace(features=features))
    for size, state in ((3, OK), (5, STOPS)):
        found = free_disk(settings, {"disk_bytes": 6 * GIB, "feature_bytes": size * GIB})
        assert found.state == state
        assert f"4.0 GiB free where features need {size}.00" in found.text


def test_missing_scores_are_no_fault_where_nothing_reads_them(copy, capsys):
    (copy / "prepared" / "scores.json").unlink()
    found, _ = checks(capsys, words(copy, loss="no_correction"), 0)
    assert "reads none" in found["scores"]["told"]


def test_the_scores_that_count_are_of_the_language_model_that_a_core_names(copy, capsys):
    shutil.copytree(copy / "lm", copy / "other")
    with (copy / "other" / "config.json").open("a") as file:
        file.write("\n")  # another hash
    eta = f"{{kind: language_model, language_model: {copy}/lm}}"
    core = f"{{kind: debiased, eta: {eta}}}"
    loss = f"loss={{kind: multi_positive, evidence: {{kind: study}}, core: {core}}}"
    found, _ = checks(capsys, words(copy, loss, f"model.text.folder={copy}/other"), 0)
    assert found["scores"]["state"] == "ok"
    assert found["language model"]["figures"]["language_model_hash"] not in found["scores"]["told"]


def test_each_finding_is_printed_when_it_is_known(copy, monkeypatch):
    """What is being looked at is said before it, and what was found stands before the next."""
    import typer

    said = []
    monkeypatch.setattr(typer, "echo", lambda text, err=False: said.append((err, str(text))))
    shutil.rmtree(copy / "prepared")
    command = [word for word in words(copy) if word != "--json"]
    assert run(command) == 2
    kinds = ["note" if err else text.split("  ")[0] for err, text in said]
    assert kinds[:2] == ["note", "note"]
    place = kinds.index("language model")
    assert said[place - 1] == (True, "Hashing the language model ...")
    assert kinds.index("data") < place < kinds.index("step")
    assert said[-1][1].endswith("1 that would stop the run, 5 not checked")


def test_a_look_that_takes_long_says_so_and_how_long_it_took(monkeypatch):
    monkeypatch.setattr(findings, "BEAT", 0.05)
    said, told = [], []
    found = Examination(said.append, told.append)
    found.look(
        "disk", "Looking at the disk ...", lambda: time.sleep(0.3) or Finding("disk", OK, "x")
    )
    assert said[0] == "Looking at the disk ..."
    assert 2 <= sum(word.startswith("  still running after") for word in said) <= 8
    assert told[0].seconds >= 0.3
    shown = findings.lines(replace(told[0], seconds=1.26))
    assert shown.endswith("x [1.3 s]")
    assert "[" not in findings.lines(told[0])  # less than half a second is not worth a word
