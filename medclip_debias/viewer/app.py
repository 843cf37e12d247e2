"""The page as a Starlette application: its addresses, what they take, and what they answer."""

from __future__ import annotations

import asyncio
import io
import os
import re
import tempfile
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import unquote

import anyio
from pydantic import Field, StringConstraints, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from medclip_debias.config import Settings
from medclip_debias.errors import UserError
from medclip_debias.grounding.overlay import BOX_COLOUR, FOUND_COLOUR, OverlayStyle
from medclip_debias.grounding.settings import MapMethod
from medclip_debias.viewer.answers import (
    KINDS,
    MOST_HITS,
    MOST_SENTENCES,
    Answers,
    Kind,
    ViewedImage,
)
from medclip_debias.viewer.guard import STALLED
from medclip_debias.viewer.sessions import Sessions

TITLE = "medclip-debias"
SESSION = r"[A-Za-z0-9]{16,64}"
MAX_UPLOAD = 256 << 20  # bytes; no single radiograph comes near
MAX_JSON = 1 << 18  # bytes; 20 sentences of 1,000 characters each are fewer
MOST_UPLOADS = 8  # at once
MOST_WAITING = 32  # requests that may wait for the model, and as many for thumbnails
LISTED = 200  # names of the folder an answer
LONGEST_NAME = 100
BEAT = 15.0  # seconds between signs of life
SWEEP_EVERY = 10.0  # seconds between looks for sessions that nobody uses

_ASSETS = Path(__file__).parent / "assets"

Answer = dict[str, Any]


class _Click(Settings):
    session: Annotated[str, StringConstraints(pattern=f"^{SESSION}$")]


class _Choice(_Click):
    name: str


class _Row(_Click):
    row: int = Field(ge=0, lt=1 << 31)


class _Maps(_Click):
    image: str
    methods: tuple[MapMethod, ...] = Field((), max_length=2)


class _Look(_Maps):
    sentence: str


class _Search(_Click):
    sentence: str | None = None
    image: str | None = None
    count: int = Field(10, ge=1, le=MOST_HITS)


class _Export(_Click):
    image: str
    model: int = Field(0, ge=0, le=1)
    sentences: tuple[str, ...] = Field(max_length=MOST_SENTENCES)
    threshold: float | None = Field(None, ge=-1, le=1)
    kind: Kind
    method: MapMethod | None = None


class Page:
    """Every address that the page needs, and no other."""

    def __init__(self, answers: Answers, uploads: Path) -> None:
        uploads.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.sessions = Sessions()
        self._answers = answers
        self._folder = uploads
        self._uploads = 0
        # One at a time: a model's network uses every core anyway.
        self._model, self._pictures = anyio.CapacityLimiter(1), anyio.CapacityLimiter(1)
        self._clicks: dict[str, tuple[type[_Click], Callable[[Any], Any]]] = {
            "choose": (_Choice, lambda c: self._open(c.session, partial(answers.choose, c.name))),
            "hit": (_Row, lambda c: self._open(c.session, partial(answers.hit, c.row))),
            "maps": (_Maps, lambda c: {"models": answers.opened(self._image(c), c.methods)}),
            "look": (
                _Look,
                lambda c: {"models": answers.look(self._image(c), c.sentence, c.methods)},
            ),
            "search": (_Search, self._search),
            "export": (_Export, self._export),
        }
        described = self._described()
        self.app = Starlette(
            routes=[
                Route("/", lambda _: FileResponse(_ASSETS / "index.html")),
                Mount("/assets", StaticFiles(directory=_ASSETS)),
                Route("/api/about", lambda _: JSONResponse(described)),
                Route("/api/images/{number}", self._images),
                Route("/api/thumbnail/{number}", self._thumbnail),
                Route("/api/prepared/{number}", self._prepared),
                Route("/api/pixels/{session}/{image}", self._pixels),
                Route("/api/alive/{session}", self._alive),
                Route("/api/upload/{session}", self._upload, methods=["POST"]),
                Route("/api/{what}", self._click, methods=["POST"]),
            ],
            exception_handlers={
                HTTPException: _refused,
                ClientDisconnect: lambda *_: Response(status_code=408),  # nobody reads it
            },
            lifespan=self._swept,
        )
        self.app.router.redirect_slashes = False

    @asynccontextmanager
    async def _swept(self, _: Starlette) -> AsyncIterator[None]:
        """End what nobody uses, every few seconds while the server runs."""

        async def sweep() -> None:
            while True:
                await asyncio.sleep(SWEEP_EVERY)
                self.sessions.sweep()

        task = asyncio.create_task(sweep())
        yield
        task.cancel()

    # ------------------------------------------------------------------------------ addresses

    def _images(self, request: Request) -> Response:
        """Names of the folder's images, `LISTED` from the number on."""
        first = _number(request)
        return JSONResponse({"names": self._answers.names[first : first + LISTED]})

    async def _thumbnail(self, request: Request) -> Response:
        make = partial(self._answers.thumbnail, _number(request))
        try:
            small = await _in_turn(self._pictures, make, request)
        except UserError as error:
            raise HTTPException(404, str(error)) from None
        return Response(small, media_type="image/jpeg")

    async def _prepared(self, request: Request) -> Response:
        from PIL import Image

        prepared = partial(self._answers.prepared_image, _number(request))
        pixels = await _in_turn(self._pictures, prepared, request)
        if pixels is None:
            raise HTTPException(404, "This image is not here.")
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        return Response(stream.getvalue(), media_type="image/png")

    def _pixels(self, request: Request) -> Response:
        levels = self.sessions.pixels(_session(request), request.path_params["image"])
        if levels is None:
            raise HTTPException(404, "These pixels are no longer here.")
        return Response(levels, media_type="application/octet-stream")

    async def _alive(self, request: Request) -> Response:
        """The connection that a page holds while it is open; its end is that of the session."""
        session = _session(request)

        async def beats() -> AsyncIterator[bytes]:
            self.sessions.connected(session)
            try:
                while True:
                    yield b": here\n\n"
                    await asyncio.sleep(BEAT)
            finally:
                self.sessions.disconnected(session)

        return StreamingResponse(beats(), media_type="text/event-stream")

    async def _upload(self, request: Request) -> Response:
        """Read a file while it arrives; it is gone before the answer is sent."""
        session, name = _session(request), unquote(request.headers.get("x-file-name", ""))
        if self._uploads >= MOST_UPLOADS:
            sentence = "too many files arrive at once; try again in a minute."
            return JSONResponse({"error": sentence}, 429)
        self._uploads += 1
        try:
            # A private folder of its own, which is gone when this is left, however it is left.
            with tempfile.TemporaryDirectory(dir=self._folder, ignore_cleanup_errors=True) as place:
                path = Path(place) / clean_name(name)
                with path.open("xb") as stream:
                    async for part in _parts(request, MAX_UPLOAD):
                        stream.write(part)
                read = partial(self._open, session, partial(self._answers.read, path))
                return await self._answered(read, request)
        except OSError:
            return JSONResponse({"error": "the server has no room for this file."}, 507)
        finally:
            self._uploads -= 1

    async def _click(self, request: Request) -> Response:
        what = request.path_params["what"]
        if what not in self._clicks:
            raise HTTPException(404)
        body = b"".join([part async for part in _parts(request, MAX_JSON)])
        kind, answer = self._clicks[what]
        return await self._answered(
            lambda: answer(kind.model_validate_json(body, strict=True)), request
        )

    async def _answered(self, answer: Callable[[], Any], request: Request) -> Response:
        """Answer when it is this request's turn; errors are one sentence."""
        try:
            content = await _in_turn(self._model, answer, request)
        except UserError as error:
            return JSONResponse({"error": str(error)}, 422)
        except ValidationError:
            return JSONResponse({"error": "This is not a request of the page."}, 400)
        except HTTPException:
            raise
        except Exception as error:
            # A traceback may quote what was uploaded or written, so it goes nowhere unasked.
            if os.environ.get("MEDCLIP_DEBIAS_DEBUG"):
                traceback.print_exception(error)
            sentence = f"internal error ({type(error).__name__}); please report it."
            return JSONResponse({"error": sentence}, 500)
        if isinstance(content, tuple):
            name, file = content
            headers = {"content-disposition": f'attachment; filename="{name}"'}
            return Response(file, headers=headers, media_type="application/octet-stream")
        return JSONResponse(content)

    # -------------------------------------------------------------------------------- answers

    def _described(self) -> Answer:
        """What the head of the page says, and what the page must know to draw."""
        from matplotlib import colormaps

        answers, style = self._answers, OverlayStyle()
        return {
            "title": TITLE,
            "models": [
                {
                    "name": one.name,
                    "lines": one.described(),
                    "warning": one.warning,
                    "maps": one.maps_warning(one.method),
                    "method": one.method,
                }
                for one in answers.models
            ],
            "methods": get_args(MapMethod),
            "indexed": None if answers.index is None else len(answers.index),
            "images": len(answers.names),
            "listed": LISTED,
            "exports": KINDS,
            "most_sentences": MOST_SENTENCES,
            "alpha": style.alpha,
            # The 256 colours of a map, as red, green and blue.
            "colours": colormaps[style.colormap](range(256), bytes=True)[:, :3].tolist(),
            "boxes": {"true": BOX_COLOUR, "found": FOUND_COLOUR},
        }

    def _open(self, session: str, read: Callable[[], ViewedImage]) -> Answer:
        """Make a radiograph that of a page."""
        self.sessions.clear(session)
        image = read()
        assert image.pixels is not None
        return {
            "image": self.sessions.keep(session, image),
            "name": image.name,
            "dicom": image.source is not None,
            "aside": image.aside,
            "phrases": [{"text": text, "boxes": boxes} for text, boxes in image.phrases],
            **image.pixels.described(),
            "models": self._answers.opened(image),
        }

    def _search(self, click: _Search) -> Answer:
        """Images of the index, by a sentence or by the radiograph of the page."""
        if click.image is None:
            hits = self._answers.find_sentence(click.sentence or "", click.count)
        else:
            hits = self._answers.find_similar(self._image(click), click.count)
        there = self._answers.has_prepared
        return {"hits": [asdict(hit) | {"there": there} for hit in hits]}

    def _export(self, click: _Export) -> tuple[str, bytes]:
        """A file with the results: its name and content."""
        number = min(click.model, len(self._answers.models) - 1)
        settings = click.sentences, click.threshold, click.kind, click.method
        return self._answers.export(self._image(click), number, *settings)

    def _image(self, click: _Maps | _Search | _Export) -> ViewedImage:
        image = self.sessions.image(click.session, click.image or "")
        if image is None:
            raise UserError(
                "open the radiograph again: the server has freed it, as the connection to the page"
                " was lost, or after hours without use."
            )
        return image


async def _in_turn(turn: anyio.CapacityLimiter, answer: Callable[[], Any], request: Request) -> Any:
    """The answer of a function in a thread, when it is this request's turn.

    Raises:
        HTTPException: too many wait already.
        ClientDisconnect: nobody waits for it any more.
    """
    if turn.statistics().tasks_waiting >= MOST_WAITING:
        raise HTTPException(503, "the viewer is busy; try again in a moment.")
    async with turn:
        if await request.is_disconnected():
            raise ClientDisconnect
        return await asyncio.to_thread(answer)


async def _parts(request: Request, most: int) -> AsyncIterator[bytes]:
    """The parts of a body as they arrive.

    Raises:
        HTTPException: there are more than ``most`` bytes, or the request says so.
        ClientDisconnect: the rest does not come.
    """
    size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
    refusal = HTTPException(413, f"this is too large: at most {size}.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise refusal
    arrived, stream = 0, request.stream()
    while True:
        try:
            part = await asyncio.wait_for(anext(stream), STALLED)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ClientDisconnect from None
        arrived += len(part)
        if arrived > most:
            raise refusal
        yield part


def clean_name(name: str) -> str:
    """The last part of a file's name, of characters that are safe everywhere.

    >>> clean_name("C:\\\\images\\\\..\\\\one\\n.dcm"), clean_name("../.."), clean_name("")
    ('one_.dcm', 'upload', 'upload')
    """
    last = re.split(r"[/\\]", name)[-1]
    cleaned = "".join(one if one.isprintable() else "_" for one in last).strip()
    # The end is kept, as the kind of the file is said there.
    cleaned = cleaned.encode("utf-8", "replace")[-LONGEST_NAME:].decode("utf-8", "ignore")
    return cleaned if cleaned.strip(".") else "upload"


def _session(request: Request) -> str:
    session = str(request.path_params["session"])
    if not re.fullmatch(SESSION, session):
        raise HTTPException(404)
    return session


def _number(request: Request) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", request.path_params["number"]):
        raise HTTPException(404)
    return int(request.path_params["number"])


async def _refused(_: Request, error: Exception) -> Response:
    """Refusals with a sentence as the page reads them; nothing else is here."""
    assert isinstance(error, HTTPException)
    if error.status_code in (413, 503):
        return JSONResponse({"error": error.detail}, error.status_code)
    named = error.status_code == 404 and error.detail != "Not Found"
    return PlainTextResponse(f"{error.detail if named else 'There is nothing here.'}\n", 404)
