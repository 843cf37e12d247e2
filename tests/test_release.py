"""What a release needs: one version, named extras, workflows that may do no more than they must."""

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


def test_the_citation_names_authors_and_the_paper():
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "type"} <= set(citation)
    paper = citation["preferred-citation"]
    assert {"type", "title", "authors", "year"} <= set(paper)
    assert all({"family-names", "given-names"} <= set(author) for author in paper["authors"])


def test_every_extra_is_named_where_people_install():
    page = (REPO / "docs/install.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    assert named == set(PROJECT["project"]["optional-dependencies"])


def complaints(name: str, content: dict) -> list[str]:
    """What is wrong with a workflow."""
    found = []
    if content.get("permissions") != {"contents": "read"}:
        found.append("permissions")
    targets = re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(encoding="utf-8"), re.M)
    for job, body in content["jobs"].items():
        wanted = {"contents"} if "permissions" not in body else set(body["permissions"])
        if wanted - {"contents"} != MAY_WRITE.get((name, job), set()):
            found.append(f"{job}: permissions")
        if "timeout-minutes" not in body or not re.fullmatch(r"ubuntu-\d\d\.04", body["runs-on"]):
            found.append(f"{job}: machine")
        needs = [body["needs"]] if isinstance(body.get("needs"), str) else body.get("needs", [])
        found += [f"{job}: needs {other}" for other in needs if other not in content["jobs"]]
        for step in body["steps"]:
            action, command = step.get("uses", ""), step.get("run", "")
            if bool(action) == bool(command):
                found.append(f"{job}: a step does one thing")
            if action and not PINNED.fullmatch(action):
                found.append(f"{job}: {action}")
            if "checkout" in action and step.get("with", {}).get("persist-credentials", True):
                found.append(f"{job}: credentials")
            if "${{" in command:  # text of others would be read by the shell
                found.append(f"{job}: an expression in a command")
            made = re.findall(r"make ([\w-]+)", command)
            found += [f"{job}: make {target}" for target in made if target not in targets]
            scripts = re.findall(r"scripts/[\w./]+", command)
            found += [f"{job}: {path}" for path in scripts if not (REPO / path).is_file()]
    return found


def read(name: str) -> dict:
    return yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_do_no_more_than_it_must_and_names_what_is_there(name):
    assert complaints(name, read(name)) == []
    text = WORKFLOWS[name].read_text(encoding="utf-8")
    assert "secrets" not in text  # the index trusts the workflow, no token is kept
    assert "pull_request_target" not in text


def test_tests_docs_and_release_are_there_and_run_what_the_project_runs():
    assert set(WORKFLOWS) == {"tests.yml", "docs.yml", "release.yml"}
    commands = {
        name: [s.get("run", "") for job in read(name)["jobs"].values() for s in job["steps"]]
        for name in WORKFLOWS
    }
    assert {"make test", "python scripts/newcomer.py"} <= set(commands["tests.yml"])
    assert "make docs" in commands["docs.yml"]
    assert {"make test", "make dist"} <= set(commands["release.yml"])
