"""No client gets a file of the server's user, whatever it sends and wherever it sends it."""

from __future__ import annotations

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest

from tests.data.images.test_limits import dicom, item, sequence
from tests.viewer.conftest import picture

SECRET = "planted-4711-secret"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A file that its user alone may read."""
    path = tmp_path_factory.mktemp("home") / "secret.png"
    path.write_text(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def client(site):
    return site.client("hostile1" * 3)


def files(site):
    return [path for path in site.work.rglob("*") if path.is_file()]


def test_no_address_takes_a_path(site, client, planted):
    """A path at each place of an address where something is named."""
    absolute = quote(str(planted).lstrip("/"), safe="")
    hostile = [quote(str(planted)), "..%2f" * 12 + absolute, "../" * 12 + str(planted)[1:]]
    hostile += ["http://127.0.0.1:1/", "-1", "9" * 12, ""]
    session = client.session
    names = ("alive", "pixels", f"pixels/{session}", "prepared", "images", "thumbnail")
    starts = ["/assets/", "/assets/../", "/api/", "/file=", *(f"/api/{name}/" for name in names)]
    for start in starts:
        for word in hostile:
            answer = client.web.get(start + word)
            assert SECRET not in answer.text
            assert answer.status_code == 404 or answer.url.path == "/", start + word
    web = client.web
    for answer in (
        *(web.post(f"/api/upload/{word}", content=b"x") for word in hostile),
        *(web.post(f"/api/{word}", json={"session": session}) for word in hostile),
        web.put("/assets/main.js", content=b"x"),
        web.get("/api/choose"),
    ):
        assert answer.status_code == 404, answer.url
    assert files(site) == []


def test_no_request_takes_more_than_it_is_for(site, client, planted):
    """Every field of every request: another kind of value, a path, or one field more."""
    image, path = "x" * 22, str(planted)
    fine = {
        "choose": {"name": "good.png"},
        "hit": {"row": 0},
        "maps": {"image": image, "methods": ["similarity"]},
        "look": {"image": image, "sentence": "Left lung.", "methods": ["similarity"]},
        "search": {"sentence": "Left lung.", "count": 3},
        "export": {"image": image, "model": 0, "sentences": ["a"], "kind": "json"},
    }
    for what, fields in fine.items():
        for name in fields:
            for value in ({"path": path}, [[path]], True, 1e9, -1, 10**400):
                answer = client.ask(what, **{**fields, name: value})
                assert answer.status_code == 400, (what, name, value)
                assert path not in answer.text
        assert client.ask(what, **fields, path=path).status_code == 400
        for wrong in ("", "../a", "a" * 65, None, 7, [client.session]):
            assert client.ask(what, **{**fields, "session": wrong}).status_code == 400
        for body in (b"", b"[]", b"null", b"{", b"[" * 100_000, b"\xff\xfe", b'{"a": NaN}'):
            answer = client.web.post(f"/api/{what}", content=body)
            assert answer.status_code == 400
            assert answer.json() == {"error": "This is not a request of the page."}
    # Where words are expected, a path is words.
    assert client.ask("choose", name=path).status_code == 422
    assert client.ask("look", image=path, sentence=path).status_code == 422
    assert client.ask("search", sentence=path).status_code == 200
    assert files(site) == []


def test_names_of_uploads_stay_in_their_folder(site, client, tmp_path):
    content = picture(tmp_path / "one.png", 60, 50)
    names = ["../../../x.png", "/etc/x.png", "..", ".", "a\\..\\x.png", "é" * 300, "a\tb.png", ""]
    for name in names:
        answer = client.upload(name, content).json()
        assert (answer["width"], answer["height"]) == (50, 60)
        assert "/" not in answer["name"]
        assert files(site) == []


def test_a_small_file_of_a_million_items_holds_no_other_page_up(site, client, tmp_path):
    bomb = dicom(sequence(0x8, 0x1115, item() * 1_000_000, "undefined"))
    assert len(bomb) < 20_000
    content = picture(tmp_path / "one.png", 60, 50)
    with ThreadPoolExecutor() as pool:
        began = time.monotonic()
        uploads = [pool.submit(site.client(f"bombing{n}" * 4).upload, "a.dcm", bomb) for n in "123"]
        time.sleep(0.2)
        assert client.upload("one.png", content).status_code == 200
        assert time.monotonic() - began < 10  # 47 seconds where the items are built
        for upload in uploads:
            assert upload.result().json()["error"].startswith("a.dcm: holds more elements")


def test_nobody_sees_the_radiograph_of_another_page(site, client, tmp_path):
    image = client.upload("one.png", picture(tmp_path / "one.png", 60, 50)).json()["image"]
    other = site.client("another1" * 3)
    assert other.ask("look", image=image, sentence="Left lung.").status_code == 422
    assert other.web.get(f"/api/pixels/{other.session}/{image}").status_code == 404
    address = f"/api/pixels/{client.session}/{image}"
    assert len(client.web.get(address).content) == 60 * 50
    assert client.web.get(address).status_code == 404  # they are handed over once
    assert client.ask("look", image=image, sentence="Left lung.").status_code == 200


def test_no_answer_names_a_place_on_the_server(site, client, tmp_path):
    opened = client.upload("one.png", picture(tmp_path / "one.png", 60, 50))
    asked = {"image": opened.json()["image"], "sentence": "Left lung."}
    reported = [
        client.web.get("/").text,
        client.web.get("/api/about").text,
        opened.text,
        client.ask("look", **asked).text,
        client.ask("export", image=asked["image"], sentences=["Left lung."], kind="json").text,
        client.ask("search", sentence="Left lung.").text,
        client.upload("bad.png", b"not a picture").text,
    ]
    for place in (site.work, site.work.parent, "/home/", "/tmp/", "site-packages"):
        assert not any(str(place) in one for one in reported), place


def test_an_unforeseen_error_says_neither_where_nor_what(site, client, monkeypatch):
    def broken(*_):
        raise RuntimeError("Mrs Smith")

    monkeypatch.delenv("MEDCLIP_DEBIAS_DEBUG", raising=False)
    monkeypatch.setattr(site.page._answers, "find_sentence", broken)
    answer = client.ask("search", sentence="Left lung.")
    assert answer.status_code == 500
    assert answer.json() == {"error": "internal error (RuntimeError); please report it."}


def test_everything_of_a_session_is_freed_when_its_page_is_closed(site, tmp_path):
    client, sessions = site.client("closing1" * 2), site.page.sessions
    content = picture(tmp_path / "one.png", 60, 50)
    with client.web.stream("GET", f"/api/alive/{client.session}") as beat:
        assert beat.status_code == 200
        image = client.upload("one.png", content).json()["image"]
        kept = weakref.ref(sessions.image(client.session, image))
        assert kept() is not None
    deadline = time.monotonic() + 20
    while sessions.image(client.session, image) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    gc.collect()
    assert kept() is None
    answer = client.ask("look", image=image, sentence="Left lung.")
    assert "open the radiograph again" in answer.json()["error"]
