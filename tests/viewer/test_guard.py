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


def test_only_this_machine_and_allowed_names_are_served(ask):
    names = ("10.0.0.5", "gpu3.example.org", "fe80::1")
    own = ("127.0.0.1:7860", "LOCALHOST:9", "[::1]:7860")
    allowed = ("10.0.0.5:7860", "Gpu3.Example.org", "[fe80::1]:7")
    for host in (*own, *allowed):
        headers = {"host": host}
        assert ask("GET", "/", names=names, headers=headers).status_code == 200, host
        alone = ask("GET", "/", headers=headers).status_code
        assert alone == (200 if host in own else 421), host
    for host in (
        *("", "evil.example", "10.0.0.6:7860", "0.0.0.0:7860", "localhost.evil.example"),
        *("127.0.0.1.evil.example", "evil@127.0.0.1", "[::1", "127.0.0.1/enter?", "127.0.0.1]"),
    ):
        answer = ask("GET", "/", names=names, headers={"host": host})
        assert answer.status_code == 421, host
        assert "--allow-host" in answer.text


def test_changes_come_from_the_page_itself(ask):
    foreign = ("null", "http://127.0.0.1:9999", "http://127.0.0.1", "http://localhost:7860")
    foreign += ("https://evil.example", "http://evil.example@127.0.0.1:7860", f"{HERE}/")
    for path in ("/api/look", f"/api/upload/{SESSION}", "/nothing"):
        assert ask("POST", path, headers={"origin": HERE}).status_code != 403
        for headers in ({}, *({"origin": origin} for origin in foreign)):
            assert ask("POST", path, headers=headers).status_code == 403, (path, headers)


def test_another_page_can_open_this_one_and_nothing_of_it(ask):
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    picture = {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}
    assert ask("GET", "/", headers=link).status_code == 200
    assert ask("GET", "/assets/style.css", headers=link).status_code == 403
    assert ask("GET", "/", headers=picture).status_code == 403
    assert ask("GET", "/api/prepared/0", headers=picture).status_code == 403
    foreign = {"origin": "http://127.0.0.1:9999"}
    assert ask("GET", "/assets/style.css", headers=foreign).status_code == 403


def test_the_token_opens_the_page_once_and_the_cookie_of_this_start_from_then_on(ask):
    entered = ask("GET", f"/?token={TOKEN}", token=TOKEN)
    assert entered.status_code == 200
    cookie = entered.headers["set-cookie"]
    words = {one.strip().lower() for one in cookie.split(";")}
    assert {"httponly", "samesite=strict", "path=/"} <= words
    assert TOKEN not in cookie + entered.text
    assert ask("GET", "/", token=TOKEN, enter=TOKEN).status_code == 200
    style = "/assets/style.css"
    reads = ["/", style, "/api/about", f"/api/alive/{SESSION}", "/api/prepared/0", "/nothing"]
    reads += [f"/api/pixels/{SESSION}/x", f"/?token={TOKEN}x", "/?token=", f"{style}?token={TOKEN}"]
    for path in (*reads, f"/?token={TOKEN}&token=x"):
        refused = ask("GET", path, token=TOKEN)
        assert refused.status_code == 403, path
        assert "token is wrong" in refused.text if "?" in path else "needs a token" in refused.text
    clicks = ("choose", "hit", "maps", "look", "search", "export", f"upload/{SESSION}")
    for path in (*(f"/api/{what}" for what in clicks), f"/?token={TOKEN}"):
        refused = ask("POST", path, token=TOKEN, json=CLICK, headers={"origin": HERE})
        assert refused.status_code == 403, path
    # Of another start or port, or made up.
    name, _, value = cookie.partition("=")
    for given in (f"{name}={value.split(';')[0]}", f"{name}={TOKEN}", name, "é=ü", f"{name}="):
        headers = {"cookie": given.encode()}
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
    right, headers = {"data": {"password": TOKEN}}, {"origin": HERE}
    entered = ask("POST", ENTRANCE, token=TOKEN, headers=headers, **right)
    assert entered.status_code == 200
    assert "HttpOnly" in entered.headers["set-cookie"]
    wrong = [{"data": {"password": word}} for word in (TOKEN + "x", "", "é")]
    wrong += [{"content": b} for b in (b"\xff", b"a=1&b=2&c=3", b"password=" + b"x" * 5000, b"")]
    for form in wrong:
        began = time.monotonic()
        refused = ask("POST", ENTRANCE, token=TOKEN, headers=headers, **form)
        assert time.monotonic() - began >= 0.05
        assert refused.status_code == 403
        assert "set-cookie" not in refused.headers
    foreign = {"origin": "http://127.0.0.1:9999"}
    refused = ask("POST", ENTRANCE, token=TOKEN, headers=foreign, **right)
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
