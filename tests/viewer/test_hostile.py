"""No client gets a file of the server's user, whatever it sends and wherever it sends it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from urllib.parse import quote

import pytest

from medclip_debias.viewer.calls import Refused
from tests.viewer.conftest import TOKEN, Browser

SECRET = "planted-4711-secret"
DRAWING = ["Left lung.", False, 0.3, 0.55, "each"]
USUAL = {
    "file": None,
    "textbox": "Left lung.",
    "checkbox": False,
    "slider": 1,
    "radio": "each",
    "dropdown": "good.png",
}
USED = {
    ("GET", "/"),
    ("HEAD", "/"),
    ("GET", "/theme.css"),
    ("GET", "/favicon.ico"),
    ("GET", "/gradio_api/heartbeat/{session_hash}"),
    ("GET", "/gradio_api/upload_progress"),
    ("GET", "/gradio_api/queue/data"),
    ("POST", "/gradio_api/queue/join"),
    ("POST", "/gradio_api/upload"),
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A file that its user alone may read."""
    path = tmp_path_factory.mktemp("home") / "secret.png"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def browser(site):
    return site.browser("hostile1")


def file_data(path, **more):
    return {"path": str(path), "meta": {"_type": "gradio.FileData"}, **more}


def endpoints(site):
    """Methods and paths of all that gradio answers in this version."""

    def walk(routes, before=""):
        for route in routes:
            if methods := getattr(route, "methods", None):
                for method in methods:
                    yield method, before + route.path
            elif router := getattr(route, "original_router", None):
                yield from walk(router.routes, before)
            elif hasattr(route, "routes"):
                yield from walk(route.routes, before + route.path.rstrip("/"))

    return sorted(set(walk(site.guard.app.routes)))


def places(path, hostile):
    """A path with something hostile at each of its parameters."""
    if "{" not in path:
        return [path]
    return [re.sub(r"\{[^}]*\}", lambda _, word=word: word, path) for word in hostile]


def finite(browser, method, path, fields):
    """The answer, without the content of one that does not end."""
    with browser.web.stream(method, path, params=fields) as answer:
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            answer._content = b""
        else:
            answer.read()
    return answer


def assert_nothing_taken(site, planted):
    for found in site.work.rglob("*"):
        assert found.name != planted.name
        assert not found.is_file() or SECRET not in found.read_text(errors="replace")


def test_the_list_of_endpoints_is_that_of_gradio(site):
    found = endpoints(site)
    for known in ("/gradio_api/call/{api_name}", "/gradio_api/file={path_or_url:path}", "/config"):
        assert any(path == known for _, path in found), known
    assert len(found) > 60


def test_endpoints_that_the_page_does_not_need_are_not_served(site, browser, planted, monkeypatch):
    """Every endpoint of the installed version, with a path in each place where one fits."""
    reached, found = [], endpoints(site)

    async def spy(scope, receive, send, inner=site.guard.app):
        reached.append(scope["path"])
        await inner(scope, receive, send)

    monkeypatch.setattr(site.guard, "app", spy)
    hostile = [
        quote(str(planted)),
        "..%2f" * 12 + quote(str(planted).lstrip("/"), safe=""),
        "http://127.0.0.1:1/",
        "opened",
    ]
    fields = {"path": str(planted), "deep_link": str(planted), "session_hash": "../x", "url": "a"}
    body = {
        "data": [file_data(planted), *DRAWING],
        "session_hash": browser.session,
        "fn_index": 0,
        "component_id": 1,
        "fn_name": "preprocess",
        "event_id": "x",
    }
    for method, pattern in found:
        for path in places(pattern, hostile):
            reached.clear()
            if method in ("GET", "HEAD"):
                answers = [finite(browser, method, path, fields)]
            else:
                answers = [
                    browser.web.request(method, path, json=body),
                    browser.web.request(
                        method, path, data={k: json.dumps(v) for k, v in body.items()}
                    ),
                ]
            for answer in answers:
                assert SECRET not in answer.text, (method, path)
                if (method, pattern) not in USED:
                    assert answer.status_code == 404, (method, path, answer.status_code)
            if (method, pattern) not in USED and not pattern.startswith(
                ("/assets/", "/static/", "/svelte/")
            ):
                assert reached == [], (method, path)
    assert_nothing_taken(site, planted)


def hostile_values(planted, url):
    for where in (planted, f"file://{planted}", url, "../../../etc/passwd", "/etc/passwd"):
        yield file_data(where)
        yield file_data(where, url=url, is_stream=True, size=1)
        yield [file_data(where)]
        yield {"video": file_data(where), "image": file_data(where)}
    yield {"path": str(planted)}
    yield {"__type__": "update", "value": file_data(planted)}
    yield {"url": url, "meta": {"_type": "gradio.FileData"}}
    yield [[str(planted)]]
    yield [None] * 1000
    yield {}


def test_no_input_takes_a_file_or_anything_else_that_it_is_not_for(site, browser, planted):
    """Every input of every function: only an upload takes a dictionary, and only one we gave."""
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0)
        url = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/x.png"
        asked = 0
        for index, fn in site.page.fns.items():
            fine = [USUAL[block.get_block_name()] for block in fn.inputs]
            for place, block in enumerate(fn.inputs):
                values = [*hostile_values(planted, url), True, 1e9, 10**400, float("nan"), "\0"]
                kind = block.get_block_name()
                for number, value in enumerate(values):
                    if (type(value), kind) in ((bool, "checkbox"), (str, "textbox")):
                        continue
                    data = [*fine[:place], value, *fine[place + 1 :]]
                    content = json.dumps({"fn_index": index, "session_hash": "a", "data": data})
                    with pytest.raises(Refused) as refused:
                        site.guard._calls.checked(content.encode())
                    assert str(planted) not in str(refused.value)
                    asked += 1
                    if number == 0:  # and once over the wire, as that takes longer
                        answer = browser.web.post("/gradio_api/queue/join", content=content)
                        assert answer.status_code == 400, (fn.api_name, kind, value)
                        assert answer.json() == {"detail": str(refused.value)}
        assert asked > 500
        with pytest.raises(BlockingIOError):
            elsewhere.accept()  # nobody was sent there
    assert_nothing_taken(site, planted)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"[" * 100_000,
        b'{"fn_index": 0}',
        b'{"fn_index": true, "session_hash": "a", "data": []}',
        b'{"fn_index": 999, "session_hash": "a", "data": []}',
        b'{"fn_index": 0, "session_hash": "../a", "data": []}',
        b'{"fn_index": 0, "session_hash": "", "data": []}',
        b'{"fn_index": 0, "session_hash": "a", "data": {}}',
        b'{"fn_index": 0, "session_hash": "a", "data": []}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_click_of_the_page_is_refused(browser, body):
    answer = browser.web.post("/gradio_api/queue/join", content=body)
    assert answer.status_code == 400
    assert set(answer.json()) == {"detail"}


def test_gradio_itself_would_refuse_a_path_too(site, planted):
    """Were the guard not there: gradio's check of paths is on, and uploads take no path."""
    from gradio.context import LocalContext
    from gradio.exceptions import InvalidPathError

    page = site.page
    token = LocalContext.blocks.set(page)
    try:
        for fn in page.fns.values():
            for place, block in enumerate(fn.inputs):
                inputs = [USUAL[one.get_block_name()] for one in fn.inputs]
                inputs[place] = file_data(planted)
                with pytest.raises(InvalidPathError):
                    asyncio.run(page.preprocess_data(fn, inputs, None))
                if block.get_block_name() == "file":
                    assert block.preprocess(file_data(planted)) is None
    finally:
        LocalContext.blocks.reset(token)
    assert_nothing_taken(site, planted)


def test_an_upload_is_opened_once_by_the_session_that_asks_first(site, browser, tmp_path):
    from tests.viewer.conftest import picture

    upload = browser.uploaded("one.png", picture(tmp_path / "one.png", 60, 50))
    other = site.browser("other1")
    assert other.join("opened", [{**upload, "path": "guess"}, *DRAWING]).status_code == 400
    assert "50 x 60 pixels" in other.click("opened", upload, *DRAWING)[2]
    assert browser.join("opened", [upload, *DRAWING]).status_code == 400
    assert [path for path in site.work.rglob("*") if path.is_file()] == []


def test_names_of_uploads_stay_in_their_folder(site, browser, tmp_path):
    from tests.viewer.conftest import picture

    content = picture(tmp_path / "one.png", 60, 50)
    names = [
        "../../../x.png",
        "/etc/x.png",
        "..",
        ".",
        "a\\..\\x.png",
        "é" * 300 + ".png",
        "a\tb.png",
    ]
    for name in names:
        before = {path for path in site.work.rglob("*") if path.is_file()}
        upload = browser.uploaded(name, content)
        (path,) = {path for path in site.work.rglob("*") if path.is_file()} - before
        assert path.parent.parent == site.work / "uploads"
        assert path.stat().st_mode & 0o777 == 0o600
        assert "50 x 60 pixels" in browser.click("opened", upload, *DRAWING)[2]
        assert not path.exists()


def test_uploads_that_are_none_are_refused_and_leave_nothing(site, browser):
    web, to = browser.web, "/gradio_api/upload"
    two = [("files", ("a.png", b"a")), ("files", ("b.png", b"b"))]
    for answer in (
        web.post(to, files=two),
        web.post(to, files={"other": ("a.png", b"a")}),
        web.post(to, data={"files": "/etc/passwd"}),
        web.post(to, json={"files": "/etc/passwd"}),
        web.post(to, content=b"x", headers={"content-type": "multipart/form-data; boundary=b"}),
        web.post(to, content=b"x", headers={"content-type": "multipart/form-data"}),
    ):
        assert answer.status_code == 400
    assert [path for path in site.work.rglob("*") if path.is_file()] == []


def test_no_answer_names_a_place_on_the_server(site, browser, tmp_path):
    import gradio

    from tests.viewer.conftest import picture

    reported = [browser.web.get("/").text, json.dumps(browser.upload("a.png", b"a").json())]
    upload = browser.uploaded("one.png", picture(tmp_path / "one.png", 60, 50))
    reported.append(json.dumps(browser.click("opened", upload, *DRAWING)))
    upload = browser.uploaded("bad.png", b"not a picture")
    reported.append(json.dumps(browser.click("opened", upload, *DRAWING)))
    reported.append(json.dumps(browser.click("by_sentence", "Left lung.", 3)))
    for place in (site.work, site.work.parent, gradio.__path__[0], "/home/", "/tmp/"):
        assert not any(str(place) in one for one in reported), place


def test_without_the_token_nothing_is_served(site):
    stranger = Browser(site.url)
    wrong = Browser(f"{site.url}/?token={TOKEN}x")
    for method, pattern in endpoints(site):
        path = re.sub(r"\{[^}]*\}", "x", pattern)
        for browser in (stranger, wrong):
            assert browser.web.request(method, path).status_code == 403, (method, path)
    assert "needs a token" in stranger.entered.text
    assert "token is wrong" in wrong.entered.text


def test_everything_of_a_session_is_freed_when_its_page_is_closed(site, tmp_path):
    import gc
    import time
    import weakref

    from tests.viewer.conftest import picture

    browser, sessions = site.browser("closing1"), site.guard._sessions
    with browser.web.stream("GET", "/gradio_api/heartbeat/closing1") as beat:
        assert beat.status_code == 200
        upload = browser.uploaded("one.png", picture(tmp_path / "one.png", 60, 50))
        shown = browser.click("opened", upload, *DRAWING)
        addresses = [one["image"]["url"] for one in shown[3]]
        assert len(addresses) == 2
        pictures = [browser.web.get(f"/{one}") for one in addresses]
        assert all(one.content.startswith(b"\x89PNG") for one in pictures)
        image = weakref.ref(sessions.image("closing1"))
        waiting = browser.uploaded("two.png", b"never opened")
        assert site.guard._uploads.claim(waiting["path"], "closing1")
    deadline = time.monotonic() + 10
    while sessions.image("closing1") is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [browser.web.get(f"/{one}").status_code for one in addresses] == [404, 404]
    gc.collect()
    assert image() is None
    assert "closing1" not in site.page.state_holder.session_data
    assert not list(site.work.rglob("two.png"))
    assert "give a radiograph first" in browser.click("looked", *DRAWING)[0]
