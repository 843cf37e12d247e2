"""Only what is listed goes out, and only when asked."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi

from medclip_debias.cli import run
from medclip_debias.errors import UserError
from medclip_debias.hub.card import write_card
from medclip_debias.hub.push import FILES, outgoing, push
from medclip_debias.models.dual_encoder import DualEncoder


@pytest.fixture
def folder(model_folder, tmp_path):
    place = tmp_path / "study" / "model"
    shutil.copytree(model_folder, place)
    write_card(place)
    (place / "notes.txt").write_text("of Quackenbush")
    return place


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """What the hub's client is told to make and to send; the latter lies in ``there``."""
    asked = {"there": tmp_path / "there", "error": None}

    def upload_folder(_, *, repo_id, folder_path, commit_message):
        if asked["error"] is not None:
            raise asked["error"]
        shutil.copytree(folder_path, asked["there"])
        return SimpleNamespace(commit_url=f"https://hub/{repo_id}/commit/1")

    monkeypatch.setattr(HfApi, "create_repo", lambda _, repo, **how: asked.update(repo=repo, **how))
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    return asked


def test_without_online_files_are_listed_and_nothing_leaves(folder, capsys, monkeypatch):
    monkeypatch.setattr("medclip_debias.hub.push.push", None)  # not even called
    assert run(["hub", "push", str(folder), "group/model", "--json"]) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert [line.split(" (")[0] for line in said["files"]] == sorted(FILES)
    assert "stay here: notes.txt" in captured.err
    assert "add --online" in said["uploaded"]


def test_what_is_listed_goes_out_without_paths_and_loads_as_the_same_model(folder, hub):
    assert push(folder, "group/model").endswith("/commit/1")
    assert (hub["repo"], hub["private"]) == ("group/model", True)
    sent = {path.name: path.read_bytes() for path in hub["there"].iterdir()}
    assert set(sent) == set(outgoing(folder)[0]) == set(FILES)
    assert not any(b"someone" in content for content in sent.values())
    there, here = (DualEncoder.load(place) for place in (hub["there"], folder))
    assert there.content_hash == here.content_hash
    assert there.self_test["status"] == here.self_test["status"] == "passed"
    assert there.provenance["data"] == here.provenance["data"]


def test_what_cannot_go_out_is_refused_in_a_sentence(folder, hub):
    hub["error"] = OSError("no")
    hub["error"].response = SimpleNamespace(status_code=403)
    with pytest.raises(UserError, match="its answer is 403"):
        push(folder, "group/model")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="is a link out of its folder"):
        outgoing(folder)
