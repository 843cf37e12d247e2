"""What a release needs: one version, and workflows that may do no more than they must."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import medclip_debias
from medclip_debias.cli import run

REPO = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = {path.name: path for path in sorted((REPO / ".github/workflows").glob("*.yml"))}
MAY_WRITE = {  # by workflow and job; any other job reads the repository's files alone
    ("docs.yml", "deploy"): {"pages", "id-token"},
    ("release.yml", "publish"): {"id-token"},
}
PINNED = re.compile(r"[\w-]+/[\w./-]+@(v\d+|release/v\d+|[0-9a-f]{40})")


def test_the_version_is_semantic_and_stands_in_one_place(capsys):
    version = medclip_debias.__version__
    assert re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(-[\w.]+)?(\+[\w.]+)?", version)
    assert "version" not in PROJECT["project"]
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == version
    assert citation["license"] == PROJECT["project"]["license"]
    changes = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+?),? ", changes, re.M).group(1) == version


def complaints(name: str, content: dict) -> list[str]:
    """What is wrong with a workflow."""
    found = []
    if content.get("permissions") != {"contents": "read"}:
        found.append("permissions")
    for job, body in content["jobs"].items():
        wanted = {"contents"} if "permissions" not in body else set(body["permissions"])
        if wanted - {"contents"} != MAY_WRITE.get((name, job), set()):
            found.append(f"{job}: permissions")
        for step in body["steps"]:
            action, command = step.get("uses", ""), step.get("run", "")
            if action and not PINNED.fullmatch(action):
                found.append(f"{job}: {action}")
            if "checkout" in action and step.get("with", {}).get("persist-credentials", True):
                found.append(f"{job}: credentials")
            if "${{" in command:  # text of others would be read by the shell
                found.append(f"{job}: an expression in a command")
    return found


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_do_no_more_than_it_must(name):
    text = WORKFLOWS[name].read_text(encoding="utf-8")
    assert complaints(name, yaml.safe_load(text)) == []
    assert "secrets" not in text  # the index trusts the workflow, no token is kept
    assert "pull_request_target" not in text
