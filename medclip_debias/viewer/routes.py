"""The addresses of the page: files of this package, answers, and one connection that lasts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

from medclip_debias.errors import UserError
from medclip_debias.viewer.api import SESSION, Api, Refused, sentence_of
from medclip_debias.viewer.sessions import Sessions
from medclip_debias.viewer.uploads import MAX_UPLOAD, Uploads
from medclip_debias.viewer.wire import (
    Ended,
    Message,
    Receive,
    Scope,
    Send,
    TooLarge,
    as_json,
    chunks,
    header,
    plain,
    read_body,
    reply,
)

MAX_JSON = 1 << 18  # bytes; 20 sentences of 1,000 characters each are fewer
MOST_WAITING = 32  # requests that may wait for the model
BEAT = 15.0  # seconds between signs of life
_KINDS = {"html": b"text/html", "css": b"text/css", "js": b"text/javascript"}
_NUMBER = re.compile(r"\d{1,9}")
_SESSION = re.compile(SESSION)
_BUSY = "the viewer is busy; try again in a moment."


class Routes:
    """An ASGI application with every address that the page needs, and no other.

    Args:
        api: what answers.
        sessions: what the open pages keep.
        uploads: where files are that are being sent.
    """

    def __init__(self, api: Api, sessions: Sessions, uploads: Uploads) -> None:
        self._api = api
        self._sessions = sessions
        self._uploads = uploads
        self._assets = _assets()
        self._about = api.about()
        # One at a time: a model's network uses every core anyway.
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            await self._route(scope, receive, send)
        except TooLarge:
            most = MAX_UPLOAD if scope["path"].startswith("/api/upload/") else MAX_JSON
            size = f"{most >> 20} MiB" if most >> 20 else f"{most >> 10} KiB"
            await as_json(send, 413, {"error": f"this is too large: at most {size}."})
        except Ended:
            return

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        parts = path.strip("/").split("/")
        reading = method in ("GET", "HEAD")
        if reading and path == "/":
            await reply(send, 200, *self._assets["index.html"])
        elif reading and parts[0] == "assets" and "/".join(parts[1:]) in self._assets:
            await reply(send, 200, *self._assets["/".join(parts[1:])])
        elif method == "GET" and path == "/api/about":
            await as_json(send, 200, self._about)
        elif method == "GET" and parts[:2] == ["api", "alive"] and _is_session(parts[2:]):
            await self._alive(parts[2], receive, send)
        elif method == "GET" and parts[:2] == ["api", "pixels"] and _is_session(parts[2:3]):
            await self._pixels(parts[2:], send)
        elif method == "GET" and parts[:2] == ["api", "prepared"]:
            await self._prepared(parts[2:], send)
        elif method == "POST" and parts[:2] == ["api", "upload"] and _is_session(parts[2:]):
            await self._upload(parts[2], scope, receive, send)
        elif method == "POST" and parts[0] == "api" and "/".join(parts[1:]) in self._api.posts:
            body = await read_body(scope, receive, MAX_JSON)
            await self._asked(partial(self._api.posts[parts[1]], body), send)
        else:
            await plain(send, 404, "There is nothing here.")

    async def _asked(self, answer: Callable[[], Any], send: Send) -> None:
        """Answer when it is this request's turn; errors are one sentence."""
        if self._waiting >= MOST_WAITING:
            await as_json(send, 503, {"error": _BUSY})
            return
        self._waiting += 1
        try:
            async with self._turn:
                found = await asyncio.to_thread(answer)
        except Refused as refused:
            await as_json(send, 400, {"error": str(refused)})
            return
        except Exception as error:
            status = 422 if isinstance(error, UserError) else 500
            await as_json(send, status, {"error": sentence_of(error)})
            return
        finally:
            self._waiting -= 1
        if isinstance(found, tuple):
            name, content = found
            said = [(b"content-disposition", f'attachment; filename="{name}"'.encode())]
            await reply(send, 200, b"application/octet-stream", content, said)
        else:
            await as_json(send, 200, found)

    async def _upload(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Read a file while it arrives; it is gone before the answer is sent."""
        name = unquote(header(scope, b"x-file-name"))
        answered: list[Message] = []

        async def later(message: Message) -> None:
            answered.append(message)

        try:
            with self._uploads.place(name) as (path, stream):
                async for part in chunks(scope, receive, MAX_UPLOAD):
                    stream.write(part)
                stream.close()
                await self._asked(partial(self._api.upload, session, path), later)
        except UserError as error:
            await as_json(send, 429, {"error": str(error)})
        except OSError:
            await as_json(send, 507, {"error": "the server has no room for this file."})
        for message in answered:
            await send(message)

    async def _pixels(self, parts: list[str], send: Send) -> None:
        found = self._sessions.pixels(parts[0], parts[1]) if len(parts) == 2 else None
        if found is None:
            await plain(send, 404, "These pixels are not here any more.")
        else:
            await reply(send, 200, b"application/octet-stream", found)

    async def _prepared(self, parts: list[str], send: Send) -> None:
        found = None
        if len(parts) == 1 and _NUMBER.fullmatch(parts[0]):
            found = await asyncio.to_thread(self._api.prepared, int(parts[0]))
        if found is None:
            await plain(send, 404, "This image is not here.")
        else:
            await reply(send, 200, b"image/png", found)

    async def _alive(self, session: str, receive: Receive, send: Send) -> None:
        """The connection that a page holds while it is open; its end is that of the session."""
        self._sessions.connected(session)
        gone = asyncio.ensure_future(_gone(receive))
        try:
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            while not gone.done():
                await send({"type": "http.response.body", "body": b": here\n\n", "more_body": True})
                await asyncio.wait([gone], timeout=BEAT)
        except (OSError, asyncio.CancelledError):
            pass  # it went while it was written to, or the server ends
        finally:
            gone.cancel()
            self._sessions.disconnected(session)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_session(parts: list[str]) -> bool:
    return len(parts) == 1 and _SESSION.fullmatch(parts[0]) is not None


def _assets() -> dict[str, tuple[bytes, bytes]]:
    """Kind and content of every file of the page; they are read once."""
    folder = files("medclip_debias.viewer") / "assets"
    found = {}
    for entry in folder.iterdir():
        kind = _KINDS.get(entry.name.rpartition(".")[2])
        if kind is not None:
            found[entry.name] = kind + b"; charset=utf-8", entry.read_bytes()
    return found
