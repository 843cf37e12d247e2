"""The doctor: it says what is well, and finds what is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.data.store import PreparedSet

REPO = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def root(prepared_phantom, tmp_path_factory):
    root = tmp_path_factory.mktemp("doctor")
    shutil.copytree(prepared_phantom, root / "prepared")
    small = ["hidden=16", "heads=2", "layers=1", "steps=4", "vocabulary=400", "batch_size=16"]
    assert run(["language-model", f"{root}/prepared", f"{root}/lm", *small]) == 0
    assert run(["score", f"{root}/prepared", "--language-model", f"{root}/lm"]) == 0
    return root


def words(root, *more):
    config = str(REPO / "configs" / "phantom" / "debiased_language_model.yaml")
    settings = [f"prepared={root}/prepared", f"out={root}/run", f"model.text.folder={root}/lm"]
    return ["doctor", config, *settings, "train.batch_size=8", "train.workers=0", *more, "--json"]


def checks(capsys, command, code):
    capsys.readouterr()
    assert run(command) == code
    captured = capsys.readouterr()
    return {one["name"]: one for one in json.loads(captured.out)["checks"]}, captured.out


def test_a_run_that_can_begin(root, capsys):
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


def test_damaged_pixels_stop_the_run(root, capsys, tmp_path):
    shutil.copytree(root / "prepared", tmp_path / "prepared")
    shutil.copytree(root / "lm", tmp_path / "lm")
    with (tmp_path / "prepared" / "images.bin").open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    found, _ = checks(capsys, words(tmp_path, "train.batch_size=100000"), 2)
    assert found["data"]["state"] == "failed"
    assert found["step"]["state"] == "failed"
    assert "batch_size" in found["step"]["told"]
