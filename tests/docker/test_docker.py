"""The Dockerfile and the compose file: what can be known of them without an engine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import check_dockerfile as CHECK

REPO = Path(__file__).parents[2]
INSTALLED_EXTRAS = ("codecs", "dicom", "peers", "timm", "viewer", "wandb")
OUTER, STAGES = CHECK.parse((REPO / "docker/Dockerfile").read_text())


def words(stage, word):
    return [one.rest for one in stage.instructions if one.word == word]


def test_hadolint_has_nothing_to_say():
    tool = Path(sys.executable).with_name("hadolint")
    if not tool.exists():
        pytest.skip("hadolint is not installed beside this Python")
    done = subprocess.run(
        [tool, REPO / "docker/Dockerfile"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_every_copied_file_is_in_the_context_and_the_lock_is_plain():
    assert CHECK.quick(REPO) == []


def test_a_file_that_is_ignored_or_missing_is_found_out(tmp_path):
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/Dockerfile").write_text("FROM x\nCOPY a b ./\nCOPY c ./\n")
    (tmp_path / ".dockerignore").write_text("*\n!a\n")
    (tmp_path / "requirements.lock").write_text("x==1\ny @ https://example.org/y.whl\n")
    for name in ("a", "b"):
        (tmp_path / name).write_text("")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    reported = "\n".join(CHECK.quick(tmp_path))
    assert "COPY b" in reported
    assert "COPY c" in reported
    assert "COPY a" not in reported
    assert "requirements.lock, line 2" in reported


@pytest.mark.parametrize(
    ("path", "out"),
    [
        ("data/mimic/files/p10/image.dcm", True),
        ("runs/demo/model/model.safetensors", True),
        (".venv/bin/python", True),
        (".git/config", True),
        ("reports.csv", True),
        ("medclip_debias/data/store.py", False),
        ("medclip_debias/data/__pycache__/store.cpython-311.pyc", True),
        ("requirements.lock", False),
        ("scripts/train_mimic_cxr.sh", False),
    ],
)
def test_no_data_run_or_environment_enters_the_context(path, out):
    assert CHECK.ignored(path, CHECK.read_rules(REPO)) is out


def test_the_base_is_pinned_and_the_image_is_not_root():
    assert re.fullmatch(r"3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", OUTER["PYTHON_TAG"])
    runtime = next(stage for stage in STAGES if stage.name == "runtime")
    assert words(runtime, "USER")[-1] == "${UID}:${GID}"
    assert {"UID=1000", "GID=1000"} <= set(words(runtime, "ARG"))
    assert STAGES[-1].base == "runtime"
    for stage in (runtime, STAGES[-1]):
        assert not any("apt-get" in text or "gcc" in text for text in words(stage, "RUN"))


def test_the_entry_point_is_the_packages_own_command():
    runtime = next(stage for stage in STAGES if stage.name == "runtime")
    (name,) = yaml.safe_load(words(runtime, "ENTRYPOINT")[0])
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"][name].split(":")
    assert callable(getattr(import_module(module), function))


def test_what_the_image_installs_is_in_the_lock():
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    locked = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (REPO / "requirements.lock").read_text().splitlines()
        if not line.startswith(" ")
    }
    extras = project["optional-dependencies"]
    (install,) = [text for text in words(STAGES[0], "RUN") if "--requirements" in text]
    assert tuple(re.findall(r"--extra (\w+)", install)) == INSTALLED_EXTRAS
    wanted = [*project["dependencies"], "uv", "setuptools"]
    for extra in INSTALLED_EXTRAS:
        wanted += extras[extra]
    for text in wanted:
        assert re.split(r"[\[>=<]", text)[0].lower().replace("_", "-") in locked


def test_every_pin_of_the_lock_has_hashes_and_none_is_under_the_gpl():
    parts = re.split(r"\n(?=\S)", (REPO / "requirements.lock").read_text().strip())
    assert len(parts) > 100
    for part in parts:
        first, *hashes = part.split("\n")
        assert hashes, first
        assert all(line.strip().startswith("--hash=sha256:") for line in hashes), first
        assert hashes[-1][-1] != "\\"
    assert not any(part.startswith("pylibjpeg-libjpeg") for part in parts)


def test_pip_and_uv_come_from_the_lock_with_their_hashes(tmp_path):
    """The line that takes them out of the lock is run; both installers use what it writes."""
    makefile = (REPO / "Makefile").read_text().replace("$(VENV)", "VENV")
    (install,) = [text for text in words(STAGES[0], "RUN") if "--requirements" in text]
    pattern = r"awk '([^']+)' requirements\.lock >"
    (picked,) = {re.search(pattern, text)[1] for text in (makefile, install)}
    lock = REPO / "requirements.lock"
    done = subprocess.run(["awk", picked, lock], capture_output=True, text=True, check=True)
    names = [line.split("==")[0] for line in done.stdout.splitlines() if line[0] != " "]
    assert names == ["pip", "uv"]
    assert "--hash=sha256:" in done.stdout
    for text in (makefile, install):
        assert re.search(r"pip install[^&]*--require-hashes[^&]*installers\.txt", text)
        assert not re.search(r"pip install [^&\n]* (uv|pip)( |\n|$)", text)


# ------------------------------------------------------------------------------ compose


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((REPO / "docker/compose.yaml").read_text())["services"]


def test_compose_offers_the_steps_of_a_run(services):
    assert {"prepare", "score", "train", "evaluate", "viewer"} == set(services)
    for service in services.values():
        build = service["build"]
        assert (REPO / "docker" / build["context"] / build["dockerfile"]).is_file()
        assert build["target"] in {stage.name for stage in STAGES}
        assert "privileged" not in service
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"] is True


def test_only_the_viewer_has_a_network_and_it_is_published_on_loopback_alone(services):
    for name, service in services.items():
        if name != "viewer":
            assert service["network_mode"] == "none"
            assert "ports" not in service
    assert services["viewer"]["ports"] == ["127.0.0.1:${PORT:-7860}:7860"]


def test_the_viewer_keeps_its_token_and_its_names(services, monkeypatch):
    from medclip_debias.viewer.serve import TOKEN_VARIABLE, read_token

    viewer = services["viewer"]
    assert viewer["environment"] == {TOKEN_VARIABLE: "${VIEWER_TOKEN:-}"}
    monkeypatch.setenv(TOKEN_VARIABLE, "")  # what compose gives where nobody chose one
    assert read_token(None) is None
    words = [*viewer["entrypoint"], *viewer["command"]]
    assert "--no-token" not in words
    assert "--allow-host" not in words


def test_training_has_gpus_shared_memory_and_time_to_stop(services):
    train = services["train"]
    (device,) = train["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert train["shm_size"] == "8gb"
    assert train["stop_grace_period"] == "2m"


def test_sources_are_mounted_read_only(services):
    def mode(volume):
        if isinstance(volume, dict):
            return "ro" if volume.get("read_only") else "rw"
        return "ro" if volume.endswith(":ro") else "rw"

    written = {
        name: [str(v).rsplit("}", 1)[-1] for v in service["volumes"] if mode(v) == "rw"]
        for name, service in services.items()
    }
    assert written == {
        "prepare": [":/app/data"],
        "score": [":/app/data"],
        "train": [":/app/runs"],
        "evaluate": [":/app/runs"],
        "viewer": [],
    }


@pytest.mark.parametrize("name", ["prepare", "score", "train", "evaluate", "viewer"])
def test_the_commands_are_verbs_of_the_program(services, name, capsys):
    from medclip_debias.cli import run

    service = services[name]
    verb = [*service.get("entrypoint", ["medclip-debias"]), *service["command"]]
    verb = verb[verb.index("medclip-debias") + 1]
    assert run([verb, "--help"]) == 0
    assert verb == {"viewer": "view"}.get(name, name)

    if name == "train":
        from medclip_debias.training.resolve import load_run

        config, option, loss = service["command"]
        assert option == "--loss"
        folder = str(load_run(config, loss=loss).out)
        assert f"{folder}/model" in services["evaluate"]["command"]
