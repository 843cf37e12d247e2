"""The Dockerfile and the compose file: what can be known of them without an engine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import check_dockerfile as CHECK
from medclip_debias.cli import run
from medclip_debias.training.resolve import load_run
from medclip_debias.viewer.serve import TOKEN_VARIABLE, read_token

REPO = Path(__file__).parents[2]
SERVICES = yaml.safe_load((REPO / "docker/compose.yaml").read_text())["services"]


def test_hadolint_has_nothing_to_say():
    tool = Path(sys.executable).with_name("hadolint")
    if not tool.exists():
        pytest.skip("hadolint is not installed beside this Python")
    done = subprocess.run([tool, REPO / "docker/Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_image_gets_what_it_copies_and_installs_and_no_data():
    assert CHECK.quick(REPO) == []
    rules = CHECK.read_rules(REPO)
    for path in ("medclip_debias/data/store.py", "scripts/train_mimic_cxr.sh"):
        assert not CHECK.ignored(path, rules)
    for path in (
        "data/mimic/files/p10/image.dcm",
        "runs/demo/model/model.safetensors",
        ".venv/bin/python",
        ".git/config",
        "reports.csv",
        "medclip_debias/data/__pycache__/store.cpython-311.pyc",
    ):
        assert CHECK.ignored(path, rules), path


def test_what_the_image_installs_is_in_the_lock_and_nothing_under_the_gpl():
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    extras = re.findall(r"--extra (\w+)", (REPO / "docker/Dockerfile").read_text())
    assert {"codecs", "dicom", "viewer"} <= set(extras)
    wanted = [*project["dependencies"], "uv", "setuptools"]
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    lock = (REPO / "requirements.lock").read_text()
    locked = {name.lower().replace("_", "-") for name in re.findall(r"^(\S+)==", lock, re.M)}
    assert {re.split(r"[\[>=<]", text)[0].lower().replace("_", "-") for text in wanted} <= locked
    assert "pylibjpeg-libjpeg" not in locked


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_can_do_its_step_and_nothing_else(name, capsys):
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    written = [volume.rsplit("}", 1)[-1] for volume in service["volumes"] if volume[-3:] != ":ro"]
    data, runs = [":/app/data"], [":/app/runs"]
    steps = {"prepare": data, "score": data, "train": runs, "evaluate": runs, "viewer": []}
    assert written == steps[name]
    if name != "viewer":
        assert service["network_mode"] == "none"
        assert "ports" not in service
    words = [*service.get("entrypoint", ["medclip-debias"]), *service["command"]]
    assert run([words[words.index("medclip-debias") + 1], "--help"]) == 0


def test_evaluation_takes_the_model_that_training_leaves():
    config, _, loss = SERVICES["train"]["command"]
    assert f"{load_run(config, loss=loss).out}/model" in SERVICES["evaluate"]["command"]


def test_the_viewer_is_published_on_loopback_alone_with_a_token(monkeypatch):
    viewer = SERVICES["viewer"]
    assert viewer["ports"] == ["127.0.0.1:${PORT:-7860}:7860"]
    assert viewer["environment"] == {TOKEN_VARIABLE: "${VIEWER_TOKEN:-}"}
    monkeypatch.setenv(TOKEN_VARIABLE, "")  # what compose gives where nobody chose one
    assert read_token(None) is None  # so one is drawn
    words = [*viewer["entrypoint"], *viewer["command"]]
    assert not {"--no-token", "--allow-host"} & set(words)
