"""The page over HTTP: it answers, keeps nothing, sends nobody elsewhere, and ends when told to."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.viewer.serve import is_loopback

pytest.importorskip("gradio_client")


@pytest.fixture
def started(model_folder, index_folder, films, tmp_path, monkeypatch):
    """The verb in a process of its own on a free port: address, its temporary folder, its output.

    A fork, as the imports of a fresh process would take longer than all that is asked of it.
    """
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1")
    # gradio_client would write what it downloads into the usual place of temporary files.
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "client"))
    work, told = tmp_path / "tmp", tmp_path / "told"
    work.mkdir()
    child = os.fork()
    if child == 0:  # pragma: no cover
        import tempfile

        with told.open("w", buffering=1) as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            sys.stdout, sys.stderr, tempfile.tempdir = stream, stream, str(work)
            words = ["view", model_folder, "--index", index_folder, "--images", films]
            code = 1
            try:
                code = run([*map(str, words), "--port", "0", "--device", "cpu"])
            finally:
                stream.flush()
                os._exit(code)
    try:
        yield child, _address(child, told), work, told
    finally:
        _end(child, signal.SIGKILL)


def _address(child: int, told: Path) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if found := re.search(r"http://\S+", told.read_text() if told.exists() else ""):
            return found[0]
        if os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.1)
    pytest.fail(f"the viewer did not start: {told.read_text()}")


def _end(child: int, kind: int) -> int | None:
    try:
        os.kill(child, kind)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except (ProcessLookupError, ChildProcessError):
        return None


def test_the_page_answers_over_http_and_leaves_nothing(started, films, tmp_path):
    import httpx
    from gradio_client import Client, handle_file

    child, url, work, told = started
    with httpx.Client(trust_env=False, timeout=60) as web:
        answer = web.get(url)
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert "fonts.googleapis.com" not in answer.text
        # Another site's name that was pointed at this machine.
        assert web.get(url, headers={"host": "evil.example"}).status_code == 421
        # Files beside the page's own are not served.
        for path in (films / "good.png", "/etc/passwd", told):
            assert web.get(f"{url}/gradio_api/file={path}").status_code in (403, 404)

    client = Client(url, verbose=False, download_files=str(tmp_path / "got"))
    drawing = ["Left lung.\nRight lung.", True, 0.0, 0.5, "own"]
    upload, choice, status, pictures, sentences, classes, *_ = client.predict(
        handle_file(films / "more" / "wide.png"), *drawing, api_name="/open"
    )
    assert upload is choice is None
    assert "110 x 60 pixels" in status
    assert len(pictures) == 3
    assert [row[0] for row in sentences["data"]] == ["Left lung.", "Right lung."]
    assert all(0 <= float(row[1]) <= 1 for row in classes["data"])
    assert not list(work.rglob("wide*"))  # the upload is gone once it was read

    redrawn = client.predict(*["Left lung.", False, 0.0, 0.5, "image"], api_name="/redraw")
    assert len(redrawn[1]) == 2
    told_of, shown, hits = client.predict(3, api_name="/search_film")
    assert "best first" in told_of
    assert len(shown) == len(hits["data"]) == 3

    # One sentence, and the answer to the film before is gone from the page.
    wrong = client.predict(handle_file(films / "letter.jpg"), *drawing, api_name="/open")
    assert "letter.jpg: this is not a DICOM" in wrong[2]
    assert not wrong[3]
    assert wrong[4]["data"] == wrong[5]["data"] == []
    assert not list(work.rglob("letter*"))
    again = client.predict(*drawing, api_name="/look")
    assert "give a radiograph first" in again[0]

    # Not of the list: refused by the web library itself, which prints the value with a traceback.
    with pytest.raises(Exception, match="choices"):
        client.predict("Mrs Smith.png", *drawing, api_name="/choose")

    assert [path.name for path in work.iterdir()] == [
        path.name for path in work.glob("medclip-debias-viewer-*")
    ]
    assert _end(child, signal.SIGTERM) == 0
    assert list(work.iterdir()) == []
    assert told.read_text().strip() == url  # nothing of what was asked


def test_loopback_is_recognised():
    for name in ("localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "::1"):
        assert is_loopback(name)
    for name in ("0.0.0.0", "::", "10.0.0.1", "example.org", "", "localhost.example.org"):
        assert not is_loopback(name)


def test_a_port_that_is_taken_or_an_address_that_is_not_ours_is_a_sentence(model_folder, capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["view", str(model_folder), "--device", "cpu", "--port"]
        assert run([*words, str(port)]) == 2
        assert f"127.0.0.1:{port}: cannot be listened on" in capsys.readouterr().err
    assert run([*words, "0", "--host", "192.0.2.1"]) == 2
    assert "give another --port or --host" in capsys.readouterr().err
    assert run([*words, "0", "--host", "no such host"]) == 2
    assert "correct --host" in capsys.readouterr().err


def test_without_gradio_the_extra_is_named(model_folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert run(["view", str(model_folder)]) == 2
    assert "pip install 'medclip-debias[viewer]'" in capsys.readouterr().err


def test_the_verb_names_what_is_missing(tmp_path, model_folder, capsys):
    assert run(["view", str(tmp_path / "none")]) == 2
    assert str(tmp_path / "none") in capsys.readouterr().err
    assert run(["view", str(model_folder), "--index", str(tmp_path)]) == 2
    assert "no search index" in capsys.readouterr().err
