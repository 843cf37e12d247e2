"""Only what is listed goes out, and only when asked; against a hub that listens on this machine."""

from __future__ import annotations

import base64
import json
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

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
def hub():
    """A hub that keeps what it is sent: the calls of ``create_repo`` and ``create_commit``."""
    seen = {"paths": [], "files": {}, "repo": None, "answer": 200}

    class Hub(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen["paths"].append(self.path)
            answer = {}
            if self.path.endswith("/repos/create"):
                seen["repo"] = json.loads(body)
                answer = {"url": "http://127.0.0.1/group/model"}
            elif "/preupload/" in self.path:
                asked = json.loads(body)["files"]
                same = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
                answer = {"files": [{"path": one["path"]} | same for one in asked]}
            elif "/commit/" in self.path:
                for line in body.splitlines():
                    said = json.loads(line)
                    if said["key"] == "file":
                        value = said["value"]
                        seen["files"][value["path"]] = base64.b64decode(value["content"])
                answer = {"commitUrl": "http://127.0.0.1/group/model/commit/1", "commitOid": "1"}
            self.reply(answer)

        def do_GET(self):
            seen["paths"].append(self.path)
            self.reply({"id": "group/model", "sha": "0" * 40, "siblings": []})

        def reply(self, answer):
            text = json.dumps(answer).encode()
            self.send_response(seen["answer"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    seen["endpoint"] = f"http://127.0.0.1:{server.server_port}"
    yield seen
    server.shutdown()
    server.server_close()


def test_without_online_files_are_listed_and_nothing_leaves(folder, capsys, monkeypatch):
    monkeypatch.setattr("medclip_debias.hub.push.push", None)  # not even called
    assert run(["hub", "push", str(folder), "group/model", "--json"]) == 0
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert [line.split(" (")[0] for line in said["files"]] == sorted(FILES)
    assert "stay here: notes.txt" in captured.err
    assert "add --online" in said["uploaded"]


def test_what_is_listed_goes_out_without_paths_and_loads_as_the_same_model(folder, hub, tmp_path):
    url = push(folder, "group/model", endpoint=hub["endpoint"], token="hf_of_nobody")
    assert url.endswith("/commit/1")
    private = {"private": True, "visibility": "private"}  # in the words of older and newer clients
    assert private.items() & hub["repo"].items()
    assert set(hub["files"]) == set(outgoing(folder)[0]) == set(FILES)
    assert not any(b"someone" in content for content in hub["files"].values())
    for name, content in hub["files"].items():
        (tmp_path / "there").mkdir(exist_ok=True)
        (tmp_path / "there" / name).write_bytes(content)
    there, here = (DualEncoder.load(place) for place in (tmp_path / "there", folder))
    assert there.content_hash == here.content_hash
    assert there.self_test["status"] == here.self_test["status"] == "passed"
    assert there.provenance["data"] == here.provenance["data"]


def test_what_cannot_go_out_is_refused_in_a_sentence(folder, hub):
    hub["answer"] = 403
    with pytest.raises(UserError, match="its answer is 403"):
        push(folder, "group/model", endpoint=hub["endpoint"], token="hf_of_nobody")
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to("/etc/hostname")
    with pytest.raises(UserError, match="is a link out of its folder"):
        outgoing(folder)
