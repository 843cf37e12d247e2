"""The doctor: it says what is well, and finds what is not."""

from __future__ import annotations

import importlib
import json
import py_compile
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.data.store import PreparedSet
from medclip_debias.doctor import findings, machine
from medclip_debias.doctor.findings import OK, WARNING, Examination, Finding

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
    # tests/test_cli_ops.py has two new processes add up numbers.
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


def test_every_decoder_that_the_extra_installs_is_enough():
    """12-bit lossy JPEG has only a decoder under the GPL-3, which nothing here installs."""
    assert machine.codecs().state == OK


def test_a_missing_decoder_is_named_with_what_installs_it():
    # A None in sys.modules is how Python says that a package is not there.
    program = (
        "import sys\n"
        "for name in ('gdcm', 'pylibjpeg', 'openjpeg', 'jpeg_ls'):\n    sys.modules[name] = None\n"
        "from medclip_debias.doctor import machine\n"
        "found = machine.codecs()\n"
        "print(found.state, found.text, found.remedy, sep='|')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    state, text, remedy = done.stdout.strip().split("|")
    assert state == WARNING
    assert all(form in text for form in ("JPEG Lossless", "JPEG-LS", "High-Throughput JPEG 2000"))
    assert "JPEG 2000 Image Compression (Lossless Only), JPEG" not in text
    assert "RLE" not in text  # pydicom itself reads these two
    assert remedy == "pip install 'medclip-debias[codecs]'"


def test_modules_that_every_start_compiles_again_are_a_warning(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    mine = [f"plain_{number}" for number in range(1 + len(sys.modules) // 5)]
    try:
        for name in mine:
            (tmp_path / f"{name}.py").touch()
            importlib.import_module(name)
        found = machine.compiled()
        assert found.state == WARNING
        assert "PYTHONDONTWRITEBYTECODE" in found.remedy
        for name in mine:
            py_compile.compile(str(tmp_path / f"{name}.py"))
        left = machine.compiled().numbers["not_compiled"]
        # Other processes of the tests may compile theirs meanwhile.
        assert left <= found.numbers["not_compiled"] - len(mine)
    finally:
        for name in mine:
            sys.modules.pop(name, None)


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


@pytest.mark.parametrize(
    ("missing", "fault", "after"),
    [
        (
            "prepared",
            "data",
            {"scores", "disk, prepared set", "step", "whole run (estimate)", "free disk"},
        ),
        ("lm", "language model", {"scores", "step", "whole run (estimate)", "free disk"}),
        ("prepared/scores.json", "scores", {"step", "whole run (estimate)", "free disk"}),
    ],
)
def test_what_is_missing_is_one_fault(copy, capsys, missing, fault, after):
    path = copy / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    found, _ = checks(capsys, words(copy), 2)
    assert states(found, "failed") == {fault}
    assert states(found, "not checked") == after
    assert {found[name]["told"] for name in after} == {f"because '{fault}' failed"}
    if fault == "scores":
        assert "--language-model" in found["scores"]["remedy"]


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


def test_a_file_in_the_place_of_the_run_is_one_fault(copy, capsys):
    (copy / "run").write_text("")
    found, _ = checks(capsys, words(copy), 2)
    assert states(found, "failed") == {"run folder"}
    assert states(found, "not checked") == {"disk, run folder", "free disk"}


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


def test_the_doctor_speaks_before_its_first_slow_import(capsys, monkeypatch):
    monkeypatch.setattr(machine, "all_reduce", lambda: Finding("all-reduce", OK, ""))
    said = []

    def versions():
        said.append(capsys.readouterr().err)
        return Finding("versions", OK, "")

    monkeypatch.setattr(machine, "versions", versions)
    assert run(["doctor"]) == 0
    assert said == ["Checking torch and other libraries ...\n"]
