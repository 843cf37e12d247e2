"""A small untrained model with an index of the phantom, and images to look at."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from medclip_debias.grounding.search.build import build_index
from medclip_debias.grounding.search.settings import IndexSettings
from medclip_debias.viewer.answers import Answers

# The same fixtures as for grounding: a model, and a function that makes models and images.
from tests.grounding.conftest import make_model, radiograph  # noqa: F401


@pytest.fixture(scope="session")
def model_folder(make_model, tmp_path_factory):  # noqa: F811
    """The folder of a model whose preprocessing is that of the prepared phantom."""
    folder = tmp_path_factory.mktemp("viewer") / "run" / "model"
    make_model(72, 64, (0.5, 99.5)).save(folder)
    return folder


@pytest.fixture(scope="session")
def index_folder(model_folder, prepared_phantom, tmp_path_factory):
    """An index of the prepared phantom."""
    out = tmp_path_factory.mktemp("indexes") / "index"
    settings = IndexSettings(landmarks=60, queries=10, image_queries=2, batch_size=16)
    build_index(model_folder, prepared_phantom, out, settings)
    return out


@pytest.fixture
def image_folder(tmp_path, radiograph):  # noqa: F811
    """A folder with one good radiograph, one that is none, and one in a folder of its own."""
    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    for name, shape in (("good.png", (90, 70)), ("more/wide.png", (60, 110))):
        grey = radiograph(*shape, (20, 30, 15)).astype(np.uint8)
        Image.fromarray(grey).save(folder / name)
    (folder / "letter.jpg").write_text("Dear patient")
    return folder


@pytest.fixture
def answers(model_folder, image_folder):
    """Answers of a model with a folder of images and no index."""
    return Answers.open(model_folder, images=image_folder, device="cpu")


@pytest.fixture
def searching(model_folder, index_folder):
    """Answers of a model with an index."""
    return Answers.open(model_folder, index_folder, device="cpu")


TOKEN = "a-token-for-the-tests-of-the-viewer"


class Browser:
    """Asks for what the page's own script asks for, in the order in which it does."""

    def __init__(self, url: str, session: str = "session1", **options: Any) -> None:
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
        self.functions: dict[str, int] = {}
        page = self.web.get("/")
        if page.status_code == 200:
            start = page.text.index("window.gradio_config = ") + len("window.gradio_config = ")
            config, _ = json.JSONDecoder().raw_decode(page.text, start)
            self.functions = {one["api_name"]: one["id"] for one in config["dependencies"]}

    def upload(self, name: str, content: bytes) -> Any:
        """The answer to an upload."""
        return self.web.post("/gradio_api/upload", files={"files": (name, content)})

    def uploaded(self, name: str, content: bytes) -> dict[str, Any]:
        """An upload as the page names it afterwards."""
        (ticket,) = self.upload(name, content).json()
        meta = {"_type": "gradio.FileData"}
        return {
            "path": ticket,
            "url": f"/gradio_api/file={ticket}",
            "orig_name": name,
            "meta": meta,
        }

    def join(self, name: str | int, data: list[Any], **more: Any) -> Any:
        """The answer to a click."""
        index = self.functions[name] if isinstance(name, str) else name
        body = {"fn_index": index, "session_hash": self.session, "data": data, **more}
        return self.web.post("/gradio_api/queue/join", json=body)

    def click(self, name: str, *data: Any) -> list[Any]:
        """What a click shows."""
        joined = self.join(name, list(data))
        assert joined.status_code == 200, joined.text
        query = {"session_hash": self.session}
        with self.web.stream("GET", "/gradio_api/queue/data", params=query) as stream:
            for line in stream.iter_lines():
                reported = json.loads(line.removeprefix("data: ")) if line else {}
                if reported.get("msg") == "process_completed":
                    assert reported["success"], reported
                    return reported["output"]["data"]
        raise AssertionError("the answer ended too early")


@dataclass
class Site:
    """A served page: its address, its parts, and the folder of whatever is on the disk."""

    url: str
    guard: Any
    sweep: Any
    work: Path

    @property
    def page(self) -> Any:
        """Gradio's page."""
        return self.guard.app.routes[-1].app.get_blocks()

    def browser(self, session: str = "session1") -> Browser:
        """One that is let in."""
        return Browser(f"{self.url}/?token={TOKEN}", session)


@pytest.fixture(scope="module")
def site(model_folder, index_folder, tmp_path_factory):
    """The page with an index and a folder of radiographs, served by a thread of this process."""
    pytest.importorskip("gradio")
    import uvicorn

    from medclip_debias.viewer.access import Access
    from medclip_debias.viewer.serve import application

    image_folder = tmp_path_factory.mktemp("folder")
    picture(image_folder / "good.png", 90, 70)
    (image_folder / "letter.jpg").write_text("Dear patient")
    work = tmp_path_factory.mktemp("work")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(work))
        answers = Answers.open(model_folder, index_folder, image_folder, device="cpu")
        guard, sweep = application(answers, work, Access(TOKEN))
        config = uvicorn.Config(guard, log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            thread.start()
            try:
                yield Site(f"http://127.0.0.1:{listener.getsockname()[1]}", guard, sweep, work)
            finally:
                server.should_exit = True
                thread.join()


def picture(path: Path, height: int, width: int) -> bytes:
    """Write a radiograph of noise as PNG; its bytes."""
    grey = np.random.default_rng(5).integers(0, 256, (height, width)).astype(np.uint8)
    Image.fromarray(grey).save(path)
    return path.read_bytes()
