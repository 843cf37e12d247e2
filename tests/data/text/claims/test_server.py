"""The client of a language model, against a real HTTP server in a thread of this process."""

from __future__ import annotations

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from medclip_debias.cli import run
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims import Claim, load_lexicon
from medclip_debias.data.text.claims.server import CACHE, ServerParser, ServerSettings
from medclip_debias.data.text.claims.table import read_claims
from medclip_debias.errors import UserError

EDEMA = json.dumps({"claims": [{"finding": "edema", "polarity": "absent", "side": ""}]})


@pytest.fixture
def serve():
    """A function that starts a server with an answer to every sentence; its URL and requests."""
    servers = []

    def start(answer, status=200, headers=None):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                asked.append((self.path, json.loads(body)))
                text = answer(asked[-1][1]["messages"][-1]["content"])
                self.send_response(status)
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                content = {"choices": [{"message": {"role": "assistant", "content": text}}]}
                self.wfile.write(json.dumps(content).encode())

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}/v1", asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def parser(url, tmp_path, **settings):
    chosen = ServerSettings(url=url, model="small", **settings)
    return ServerParser(load_lexicon(), chosen, tmp_path / CACHE)


def test_answers_are_read_and_kept_without_their_sentences(serve, tmp_path):
    url, asked = serve(lambda _: EDEMA)
    first = parser(url, tmp_path)
    assert first.parse("Lungs are dry.").claims == (Claim("edema", "absent"),)
    path, body = asked[0]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["temperature"]) == ("small", 0)
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert "pleural_effusion" in body["messages"][0]["content"]
    second = parser(url, tmp_path)
    assert second.parse("Lungs are dry.").claims == (Claim("edema", "absent"),)
    assert len(asked) == 1
    assert second.counts == {"asked": 0, "from_cache": 1, "refused_answers": 0}
    assert "dry" not in (tmp_path / CACHE).read_text()
    with (tmp_path / CACHE).open("a") as file:
        file.write('{"key": "half a li')
    assert parser(url, tmp_path).parse("Lungs are dry.").claims == (Claim("edema", "absent"),)


@pytest.mark.parametrize(
    "answer",
    [
        "The lungs are dry.",
        "[]",
        '{"claims": {}}',
        '{"claims": ["edema"]}',
        '{"claims": [{"finding": "dryness", "polarity": "present"}]}',
        '{"claims": [{"finding": "edema"}]}',
        '{"claims": [{"finding": "edema", "polarity": "present", "side": "both"}]}',
        json.dumps({"claims": [{"finding": "edema", "polarity": "absent"}] * 65}),
        "[" * 100_000,
        None,
    ],
)
def test_an_answer_that_does_not_hold_is_refused_and_counted(serve, tmp_path, answer):
    url, _ = serve(lambda _: answer)
    one = parser(url, tmp_path)
    assert one.parse("Lungs are dry.").claims == ()
    assert one.parse("Lungs are dry.").claims == ()
    assert one.counts == {"asked": 2, "from_cache": 0, "refused_answers": 2}


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/v1",
        "http://10.0.0.7:8080/v1",
        "http://localhost.example.org/v1",
        "http://127.0.0.1.example.org/v1",
        "http://127.0.0.1@example.org/v1",
        "http://0.0.0.0/v1",
        "ftp://127.0.0.1/v1",
        "127.0.0.1:80",
    ],
)
def test_no_sentence_leaves_this_machine_unasked(url, tmp_path):
    with pytest.raises(UserError, match=r"loopback|no address"):
        parser(url, tmp_path)


def test_a_remote_server_must_be_permitted(tmp_path):
    parser("http://example.org/v1", tmp_path, allow_remote=True)  # made, not asked


def test_neither_redirects_nor_proxies_are_followed(serve, tmp_path, monkeypatch):
    other, reached = serve(lambda _: EDEMA)
    url, _ = serve(lambda _: EDEMA, status=307, headers={"Location": f"{other}/chat/completions"})
    with pytest.raises(UserError, match="status 307"):
        parser(url, tmp_path).parse("Secret text.")
    monkeypatch.setenv("http_proxy", other)
    straight, _ = serve(lambda _: EDEMA)
    assert parser(straight, tmp_path).parse("Secret text.").claims
    assert reached == []


def test_a_server_that_is_not_there_is_named_without_the_sentence(serve, tmp_path):
    url, _ = serve(lambda _: EDEMA, status=404)
    with pytest.raises(UserError, match="status 404") as told:
        parser(url, tmp_path).parse("Secret text.")
    assert "Secret" not in str(told.value)
    with pytest.raises(UserError, match="does not answer"):
        parser("http://127.0.0.1:9/v1", tmp_path, timeout=5).parse("Secret text.")


def test_the_verb_stores_what_the_server_reads(prepared_phantom, serve, tmp_path, capsys):
    folder = tmp_path / "set"
    shutil.copytree(prepared_phantom, folder)
    url, _ = serve(lambda text: EDEMA if "edema" in text else '{"claims": []}')
    assert run(["claims", str(folder), "--server", url, "--model", "small", "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)
    prepared = PreparedSet.open(folder)
    expected = [(Claim("edema", "absent"),) if "edema" in t else () for t in prepared.texts]
    assert read_claims(prepared).claims == expected
    assert counts["asked"] == len(prepared.texts)
    assert counts["parser"] == "server small"
    assert run(["claims", str(folder), "--server", "http://10.1.1.1/v1"]) == 2
    assert "loopback" in capsys.readouterr().err
