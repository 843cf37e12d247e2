"""The page over HTTP: it answers, keeps nothing, sends nobody elsewhere, and ends on a signal."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.viewer.serve import _workplace
from tests.viewer.conftest import Client

pytest.importorskip("uvicorn")


@pytest.fixture
def start(model_folder, index_folder, image_folder, tmp_path):
    """A function that runs the verb in a process of its own: its id, temporary folder, output.

    A fork, as the imports of a fresh process would take longer than all that is asked of it.
    """
    children = []
    work, reported = tmp_path / "tmp", tmp_path / "reported"

    def start(*options):
        work.mkdir()
        child = os.fork()
        if child == 0:  # pragma: no cover
            with reported.open("w", buffering=1) as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
                sys.stdout, sys.stderr, tempfile.tempdir = stream, stream, str(work)
                words = ["view", model_folder, "--index", index_folder, "--images", image_folder]
                code = 1
                try:
                    code = run([*map(str, [*words, *options]), "--device", "cpu"])
                finally:
                    stream.flush()
                    os._exit(code)
        children.append(child)
        return child, _address(child, reported), work, reported

    yield start
    for child in children:
        with suppress(ProcessLookupError, ChildProcessError):  # it has ended
            _end(child, signal.SIGKILL)


def _address(child: int, reported: Path) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not os.waitpid(child, os.WNOHANG)[0]:
        if found := re.search(r"http://\S+", reported.read_text() if reported.exists() else ""):
            time.sleep(0.3)  # it listens already; the lines after it come at once
            return found[0]
        time.sleep(0.1)
    pytest.fail(f"the viewer did not start: {reported.read_text()}")


def _end(child: int, kind: int) -> int:
    """The exit code of a child after a signal, or after a minute after SIGKILL."""
    os.kill(child, kind)
    deadline = time.monotonic() + 60
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.05)
    return os.waitstatus_to_exitcode(ended[1])


def test_the_page_answers_over_http_and_leaves_nothing(start, image_folder):
    child, url, work, reported = start("--port", "0")
    assert re.search(r"/\?token=[\w-]{43}$", url)
    client = Client(url)
    page = client.web.get("/").text
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page)
    for name in re.findall(r'(?:src|href)="(assets/[^"]+)"', page):
        assert client.web.get(f"/{name}").status_code == 200
    assert Client(url.partition("?")[0]).entered.status_code == 403

    opened = client.upload("wide.png", (image_folder / "more/wide.png").read_bytes()).json()
    assert (opened["name"], opened["width"], opened["height"]) == ("wide.png", 110, 60)
    assert not [path for path in work.rglob("*") if path.is_file()]
    pixels = client.web.get(f"/api/pixels/{client.session}/{opened['image']}").content
    assert len(pixels) == 110 * 60 * opened["depth"] // 8
    asked = {"image": opened["image"], "sentence": "Left lung."}
    (seen,) = client.ask("look", **asked).json()["models"]
    geometry = opened["models"][0]["geometry"]
    assert len(seen["grid"]) == geometry["rows"] * geometry["columns"]
    hits = client.ask("search", image=opened["image"], count=3).json()["hits"]
    assert [one["rank"] for one in hits] == [1, 2, 3]
    shown = client.web.get(f"/api/prepared/{hits[0]['row']}")
    assert shown.headers["content-type"] == "image/png"
    assert client.ask("hit", row=hits[0]["row"]).json()["name"] == hits[0]["image_id"]
    assert client.ask("look", **asked).status_code == 422  # the image before is gone
    assert client.ask("choose", name="Mrs Smith.png").status_code == 422

    with client.web.stream("GET", f"/api/alive/{client.session}"):  # a page that is open still
        assert _end(child, signal.SIGTERM) == 0
    assert list(work.iterdir()) == []
    assert reported.read_text().strip() == url  # nothing of what was asked


def test_the_folder_of_a_viewer_that_was_killed_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    child = os.fork()
    if child == 0:  # pragma: no cover
        with _workplace() as work:
            (work / "radiograph.png").write_bytes(b"x")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (left,) = tmp_path.iterdir()
    mine = tmp_path / ".medclip-debias-viewer.notes"
    mine.mkdir()
    with _workplace() as work:
        assert set(tmp_path.iterdir()) == {work, mine}
        assert not left.exists()
    assert list(tmp_path.iterdir()) == [mine]


def test_a_unix_socket_is_served_with_a_token_of_ones_own(
    start, tmp_path, image_folder, monkeypatch
):
    import httpx

    monkeypatch.setenv("MEDCLIP_DEBIAS_VIEWER_TOKEN", "my-own-token-my-own-token")
    path = tmp_path / "viewer.sock"
    child, url, _, reported = start("--socket", path)
    assert url == "http://127.0.0.1:7860/?token=TOKEN"
    assert "my-own" not in reported.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    own = url.replace("TOKEN", "my-own-token-my-own-token")
    client = Client(own, transport=httpx.HTTPTransport(uds=str(path)))
    opened = client.ask("choose", name="good.png").json()
    assert (opened["width"], opened["height"]) == (70, 90)
    assert _end(child, signal.SIGTERM) == 0
    assert not path.exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--socket", "s", "--port", "1"], "either --socket or --host and --port"),
        (["--no-token", "--token-file", "t"], "either --token-file or --no-token"),
        (["--token-file", "none"], "none: the token cannot be read"),
        (["--port", "0", "--host", "192.0.2.1"], "give another --port or --host"),
        (["--port", "0", "--host", "no such host"], "correct --host"),
    ],
)
def test_options_and_addresses_that_do_not_fit_are_a_sentence(
    model_folder, options, sentence, capsys
):
    assert run(["view", str(model_folder), "--device", "cpu", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_port_that_is_taken_is_a_sentence(model_folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["view", str(model_folder), "--device", "cpu", "--port", str(port)]) == 2
    assert f"127.0.0.1:{port}: cannot be listened on" in capsys.readouterr().err
