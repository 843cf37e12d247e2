"""A small untrained model with an index of the phantom, and images to look at."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from medclip_debias.viewer.answers import Answers

# As for grounding: a model with its index, and functions that make models and images.
from tests.grounding.conftest import make_model  # noqa: F401
from tests.grounding.search.conftest import index_folder, model_folder  # noqa: F401


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory):
    """A folder with one good radiograph, one that is none, and one in a folder of its own."""
    folder = tmp_path_factory.mktemp("viewed") / "images"
    (folder / "more").mkdir(parents=True)
    picture(folder / "good.png", 90, 70)
    picture(folder / "more" / "wide.png", 60, 110)
    (folder / "letter.jpg").write_text("Dear patient")
    return folder


@pytest.fixture(scope="session")
def answers(model_folder, image_folder):  # noqa: F811
    """Answers of a model with a folder of images and no index; do not change them."""
    return Answers.open(model_folder, images=image_folder, device="cpu")


@pytest.fixture(scope="session")
def searching(model_folder, index_folder):  # noqa: F811
    """Answers of a model with an index."""
    return Answers.open(model_folder, index_folder, device="cpu")


TOKEN = "a-token-for-the-tests-of-the-viewer"


class Client:
    """Asks for what the page's own script asks for."""

    def __init__(self, url: str, session: str = "session1" * 4, **options: Any) -> None:
        import httpx

        self.session = session
        address = httpx.URL(url)
        origin = f"http://{address.netloc.decode()}"
        self.web = httpx.Client(
            base_url=origin,
            headers={"origin": origin},
            timeout=60,
            **({"trust_env": False} | options),
        )
        self.entered = self.web.get(address.raw_path.decode())

    def upload(self, name: str, content: bytes) -> Any:
        """The answer to an upload."""
        headers = {"x-file-name": quote(name)}
        return self.web.post(f"/api/upload/{self.session}", content=content, headers=headers)

    def ask(self, what: str, **content: Any) -> Any:
        """The answer to a click."""
        return self.web.post(f"/api/{what}", json={"session": self.session} | content)


@dataclass
class Site:
    """A served page: its address, its parts, and the folder of whatever is on the disk."""

    url: str
    guard: Any
    page: Any
    work: Path

    def client(self, session: str = "session1" * 4) -> Client:
        """One that is let in."""
        return Client(f"{self.url}/?token={TOKEN}", session)


@contextmanager
def served(answers: Answers, work: Path, token: str | None = TOKEN) -> Iterator[Site]:
    """The page, served by a thread of this process."""
    pytest.importorskip("uvicorn")
    from medclip_debias.viewer.app import Page
    from medclip_debias.viewer.guard import Guard
    from medclip_debias.viewer.serve import listening, server_of

    page = Page(answers, work / "uploads")
    guard = Guard(page.app, token)
    server = server_of(guard)
    with listening("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Site(f"http://127.0.0.1:{listener.getsockname()[1]}", guard, page, work)
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def site(model_folder, index_folder, image_folder, tmp_path_factory):  # noqa: F811
    """The page with an index and a folder of radiographs."""
    answers = Answers.open(model_folder, index_folder, image_folder, device="cpu")
    with served(answers, tmp_path_factory.mktemp("work")) as found:
        yield found


def picture(path: Path, height: int, width: int) -> bytes:
    """Write a radiograph of noise as PNG; its bytes."""
    grey = np.random.default_rng(5).integers(0, 256, (height, width)).astype(np.uint8)
    Image.fromarray(grey).save(path)
    return path.read_bytes()
