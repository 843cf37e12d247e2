"""Requests and answers over ASGI, as far as this page needs them: bodies with limits, replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

STALLED = 60.0  # seconds without a byte after which a request is given up


class TooLarge(Exception):
    """A body that is larger than it may be."""


class Ended(Exception):
    """A client that went away, or sends nothing any more, before its request was whole."""


async def chunks(scope: Scope, receive: Receive, most: int) -> AsyncIterator[bytes]:
    """The parts of a body as they arrive.

    Raises:
        TooLarge: there are more than ``most`` bytes, or the request says so.
        Ended: the rest does not come.
    """
    if _length(scope) > most:
        raise TooLarge
    seen = 0
    while True:
        try:
            message = await asyncio.wait_for(receive(), STALLED)
        except TimeoutError:
            raise Ended from None
        if message["type"] == "http.disconnect":
            raise Ended
        part = message.get("body", b"")
        seen += len(part)
        if seen > most:
            raise TooLarge
        yield part
        if not message.get("more_body"):
            return


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """A whole body; raises as `chunks`."""
    return b"".join([part async for part in chunks(scope, receive, most)])


def header(scope: Scope, name: bytes) -> str:
    """A header's only value, or ``""``."""
    values = [value for key, value in scope["headers"] if key.lower() == name]
    return values[0].decode("latin-1") if len(values) == 1 else ""


def _length(scope: Scope) -> int:
    """The length that a request says it has; the server does not let it send more."""
    said = header(scope, b"content-length")
    return int(said) if said.isdecimal() else 0


async def reply(
    send: Send, status: int, kind: bytes, body: bytes, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    """A whole answer."""
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def plain(send: Send, status: int, sentence: str) -> None:
    """One sentence."""
    await reply(send, status, b"text/plain; charset=utf-8", f"{sentence}\n".encode())


async def as_json(send: Send, status: int, content: Any) -> None:
    """JSON, without NaN."""
    body = json.dumps(content, allow_nan=False, ensure_ascii=False).encode()
    await reply(send, status, b"application/json", body)
