"""Who may ask and how much: names, origins, the token, sizes; with the models out of the way."""

from __future__ import annotations

import asyncio
import time

import pytest

from medclip_debias.errors import UserError
from medclip_debias.viewer import app as app_module
from medclip_debias.viewer import guard as guard_module
from medclip_debias.viewer.app import Page
from medclip_debias.viewer.guard import ENTRANCE, Guard
from medclip_debias.viewer.serve import read_token

httpx = pytest.importorskip("httpx")
TOKEN = "0123456789abcdefghij"
SESSION = "a" * 32
HERE = "http://127.0.0.1:7860"
CLICK = {"session": SESSION, "image": "x", "sentence": "Left lung."}


@pytest.fixture
def ask(answers, tmp_path):
    """A function that sends requests to a guarded page, by default one that lets in."""

    def ask(method, path, *, token=None, names=(), base=HERE, **options):
        async def send():
            page = Page(answers, tmp_path / "uploads")
            transport = httpx.ASGITransport(app=Guard(page.app, token, names))
            async with httpx.AsyncClient(transport=transport, base_url=base) as web:
                if cookies := options.pop("enter", None):
                    entered = await web.get(f"/?token={cookies}")
                    web.cookies.update(entered.cookies)
                return await web.request(method, path, **options)

        return asyncio.run(send())

    return ask


HOSTS = "127.0.0.1:7860 localhost LOCALHOST:9 [::1]:7860 10.0.0.5:7860 Gpu3.Example.org [fe80::1]:7"
FOREIGN = """evil.example 10.0.0.6:7860 0.0.0.0:7860 localhost.evil.example 127.0.0.1.evil.example
evil@127.0.0.1 [::1 127.0.0.1/enter? 127.0.0.1] gpu3.example.org.evil"""


@pytest.mark.parametrize(
    ("host", "served"),
    [*((h, True) for h in HOSTS.split()), *((h, False) for h in ["", *FOREIGN.split()])],
)
def test_only_this_machine_and_allowed_names_are_served(ask, host, served):
    names = ("10.0.0.5", "gpu3.example.org", "fe80::1")
    answer = ask("GET", "/", names=names, headers={"host": host})
    assert answer.status_code == (200 if served else 421)
    assert served or "--allow-host" in answer.text
    own = host.lower().startswith(("127.0.0.1", "localhost", "[::1]")) and served
    assert ask("GET", "/", headers={"host": host}).status_code == (200 if own else 421)


ORIGINS = """null http://127.0.0.1:9999 http://127.0.0.1 http://localhost:7860 https://evil.example
file:// http://evil.example@127.0.0.1:7860 http://127.0.0.1:7860/"""


@pytest.mark.parametrize("origin", [HERE, None, *ORIGINS.split()])
def test_changes_come_from_the_page_itself(ask, origin):
    headers = {"origin": origin} if origin else {}
    for path in ("/api/look", f"/api/upload/{SESSION}", "/nothing"):
        answer = ask("POST", path, headers=headers)
        assert (answer.status_code == 403) == (origin != HERE), (path, answer.text)


def test_another_page_can_open_this_one_and_nothing_of_it(ask):
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    picture = {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}
    assert ask("GET", "/", headers=link).status_code == 200
    assert ask("GET", "/assets/style.css", headers=link).status_code == 403
    assert ask("GET", "/", headers=picture).status_code == 403
    assert ask("GET", "/api/prepared/0", headers=picture).status_code == 403
    foreign = {"origin": "http://127.0.0.1:9999"}
    assert ask("GET", "/assets/style.css", headers=foreign).status_code == 403


def test_the_token_opens_the_page_once_and_the_cookie_from_then_on(ask):
    entered = ask("GET", f"/?token={TOKEN}", token=TOKEN)
    assert entered.status_code == 200
    cookie = entered.headers["set-cookie"]
    words = {one.strip().lower() for one in cookie.split(";")}
    assert {"httponly", "samesite=strict", "path=/"} <= words
    assert TOKEN not in cookie
    assert TOKEN not in entered.text
    assert ask("GET", "/", token=TOKEN, enter=TOKEN).status_code == 200
    style = "/assets/style.css"
    reads = ["/", style, "/api/about", f"/api/alive/{SESSION}", "/api/prepared/0", "/nothing"]
    reads += [f"/api/pixels/{SESSION}/x", f"/?token={TOKEN}x", "/?token=", f"{style}?token={TOKEN}"]
    for path in reads:
        refused = ask("GET", path, token=TOKEN)
        assert refused.status_code == 403, path
        assert "token is wrong" in refused.text if "?" in path else "needs a token" in refused.text
    for what in ("choose", "hit", "maps", "look", "search", "export", f"upload/{SESSION}"):
        refused = ask("POST", f"/api/{what}", token=TOKEN, json=CLICK, headers={"origin": HERE})
        assert refused.status_code == 403, what
    twice = ask("GET", f"/?token={TOKEN}&token=x", token=TOKEN)
    assert twice.status_code == 403
    posted = ask("POST", f"/?token={TOKEN}", token=TOKEN, headers={"origin": HERE})
    assert posted.status_code == 403


def test_a_cookie_of_another_start_or_port_lets_nobody_in(ask):
    entered = ask("GET", f"/?token={TOKEN}", token=TOKEN)
    name, _, value = entered.headers["set-cookie"].partition("=")
    for cookie in (f"{name}={value.split(';')[0]}", f"{name}={TOKEN}", name, "é=ü", f"{name}="):
        headers = {"cookie": cookie.encode()}
        assert ask("GET", "/", token=TOKEN, headers=headers).status_code == 403


def test_headers_are_set_and_those_that_open_the_page_to_others_removed(ask):
    async def inner(scope, receive, send):
        headers = [(b"access-control-allow-origin", b"*"), (b"cache-control", b"max-age=9")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def get():
        transport = httpx.ASGITransport(app=Guard(inner, None))
        async with httpx.AsyncClient(transport=transport, base_url=HERE) as web:
            return await web.get("/")

    for answer in (ask("GET", "/"), asyncio.run(get())):
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
    assert "content-security-policy" in ask("GET", "/nothing").headers


def test_the_form_takes_the_token_as_a_password_and_slows_down_who_guesses(ask, monkeypatch):
    monkeypatch.setattr(guard_module, "SLOWED", 0.05)
    page = ask("GET", "/", token=TOKEN)
    assert page.status_code == 403
    assert "type='password'" in page.text
    headers = {"origin": HERE}
    entered = ask("POST", ENTRANCE, token=TOKEN, data={"password": TOKEN}, headers=headers)
    assert entered.status_code == 200
    assert "HttpOnly" in entered.headers["set-cookie"]
    for data in ({"password": TOKEN + "x"}, {"password": ""}, {}, {"password": "é"}):
        began = time.monotonic()
        refused = ask("POST", ENTRANCE, token=TOKEN, data=data, headers=headers)
        assert time.monotonic() - began >= 0.05
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers
    for wrong in (b"\xff", b"a=1&b=2&c=3", b"password=" + b"x" * 5000):
        refused = ask("POST", ENTRANCE, token=TOKEN, content=wrong, headers=headers)
        assert refused.status_code == 403
    foreign = {"origin": "http://127.0.0.1:9999"}
    refused = ask("POST", ENTRANCE, token=TOKEN, data={"password": TOKEN}, headers=foreign)
    assert refused.status_code == 403
    assert "set-cookie" not in refused.headers


@pytest.mark.parametrize(
    ("limit", "path", "status", "words"),
    [
        ("MOST_WAITING", "/api/look", 503, "busy"),
        ("MOST_UPLOADS", f"/api/upload/{SESSION}", 429, "too many files"),
    ],
)
def test_only_so_many_requests_are_there_at_once(ask, monkeypatch, limit, path, status, words):
    monkeypatch.setattr(app_module, limit, 0)
    answer = ask("POST", path, json=CLICK, headers={"origin": HERE})
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_a_body_that_is_too_large_is_refused_before_it_is_kept(ask, monkeypatch, tmp_path):
    monkeypatch.setattr(app_module, "MAX_UPLOAD", 1000)
    monkeypatch.setattr(app_module, "MAX_JSON", 1000)
    asked = []

    async def chunks():
        for _ in range(100):
            asked.append(1)
            yield b"x" * 100

    for said in ({}, {"content-length": "1000000"}):
        for path in (f"/api/upload/{SESSION}", "/api/look"):
            asked.clear()
            answer = ask("POST", path, content=chunks(), headers={"origin": HERE} | said)
            assert answer.status_code == 413
            assert "too large" in answer.json()["error"]
            assert len(asked) < 20
    headers = {"origin": HERE, "x-file-name": "a%20b.png"}
    fine = ask("POST", f"/api/upload/{SESSION}", headers=headers, content=b"x" * 900)
    assert fine.json()["error"].startswith("a b.png: this is not a DICOM")
    assert list((tmp_path / "uploads").iterdir()) == []


def test_an_upload_that_breaks_off_or_stalls_is_removed(answers, monkeypatch, tmp_path):
    monkeypatch.setattr(app_module, "STALLED", 0.05)
    page, uploads = Page(answers, tmp_path / "uploads"), tmp_path / "uploads"
    scope = {"type": "http", "method": "POST", "path": f"/api/upload/{SESSION}", "headers": []}

    def run(after):
        parts = [{"type": "http.request", "body": b"x", "more_body": True}]
        sent = []

        async def receive():
            if parts:
                return parts.pop()
            (place,) = uploads.iterdir()
            assert place.stat().st_mode & 0o777 == 0o700
            assert [path.name for path in place.iterdir()] == ["upload"]
            return await after()

        async def send(message):
            sent.append(message.get("status"))

        asyncio.run(page.app(scope | {"query_string": b""}, receive, send))
        return sent

    async def gone():
        return {"type": "http.disconnect"}

    async def silent():
        await asyncio.sleep(10)

    for after in (gone, silent):
        assert run(after)[0] == 408
        assert list(uploads.iterdir()) == []


def test_a_token_of_ones_own_is_read_from_a_file_or_the_environment(tmp_path, monkeypatch):
    for value, token in ((None, None), ("", None), ("e" * 20, "e" * 20)):
        monkeypatch.delenv("MEDCLIP_DEBIAS_VIEWER_TOKEN", raising=False)
        if value is not None:
            monkeypatch.setenv("MEDCLIP_DEBIAS_VIEWER_TOKEN", value)
        assert read_token(None) == token
    path = tmp_path / "token"
    path.write_text("f" * 20 + "\n")
    assert read_token(path) == "f" * 20
    for content in ("short", "f" * 20 + "&x", "f" * 10 + "\n" + "f" * 10, ""):
        path.write_text(content)
        with pytest.raises(UserError, match="at least 20") as caught:
            read_token(path)
        assert "ffff" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be read"):
        read_token(tmp_path / "none")
