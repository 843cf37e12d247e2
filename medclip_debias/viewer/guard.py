"""What stands before gradio: who may ask, what, and how much."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, urlencode

from medclip_debias.errors import UserError
from medclip_debias.viewer.access import Access
from medclip_debias.viewer.calls import SESSION, Calls, Refused
from medclip_debias.viewer.sessions import Sessions
from medclip_debias.viewer.uploads import MAX_UPLOAD, Uploads

MAX_JSON = 1 << 18  # bytes; 20 sentences of 1,000 characters each are fewer
MULTIPART = 1 << 14  # bytes that the frame around an uploaded file may take

# The browser itself refuses whatever would go to another machine: fonts, scripts, pictures.
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' blob:;"
    " style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'self';"
    " form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
# What gradio gets of a request: no cookie, no origin, nothing that names another place.
_PASSED = (b"host", b"accept", b"accept-language", b"content-type", b"x-forwarded-proto")
_FILES = re.compile(r"/(?:assets|static|svelte)/(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/?)+")
_PAGES = ("/", "/theme.css", "/favicon.ico")
_API = "/gradio_api"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class _TooLarge(Exception):
    pass


class Guard:
    """An ASGI application that lets through to gradio what its page needs, and nothing else.

    Uploads and pictures are answered here, so that gradio neither reads nor serves a file of
    this machine beside those of its own package.

    Args:
        app: gradio's application.
        access: who may ask.
        calls: what may be sent.
        uploads: where files go that are sent.
        sessions: what the open pages show.
    """

    def __init__(
        self, app: Application, access: Access, calls: Calls, uploads: Uploads, sessions: Sessions
    ) -> None:
        self.app = app
        self._access = access
        self._calls = calls
        self._uploads = uploads
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._answer(scope, receive, _with_headers(send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal := self._access.refusal(scope):
            await _plain(send, refusal.status, refusal.sentence)
        elif self._access.enters(scope):
            await self._enter(scope, send)
        else:
            await self._route(scope, receive, send)

    async def _enter(self, scope: Scope, send: Send) -> None:
        """Give the cookie, and redirect to the address without the token.

        By a page of its own: after a link on another site, browsers do not send a strict cookie
        along with a redirect.
        """
        body = (
            b"<!doctype html><meta charset='utf-8'><meta http-equiv='refresh' content='0;url=./'>"
            b"<title>medclip-debias</title><p><a href='./'>Open the viewer</a></p>"
        )
        cookie = self._access.cookie(scope).encode()
        await _send(send, 200, b"text/html; charset=utf-8", body, [(b"set-cookie", cookie)])

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        reading, query = method in ("GET", "HEAD"), scope.get("query_string", b"")
        start, _, last = path.rpartition("/")
        if reading and (path in _PAGES or _FILES.fullmatch(path)):
            await self.app(_only(scope, path), receive, send)
        elif reading and start == "/pictures":
            await self._picture(last, send)
        elif method == "GET" and start == f"{_API}/heartbeat" and SESSION.fullmatch(last):
            await self._heartbeat(scope, receive, send, last)
        elif method == "GET" and path == f"{_API}/queue/data" and (name := _session(query)):
            asked = urlencode({"session_hash": name}).encode()
            await self.app(_only(scope, path, asked), receive, send)
        elif method == "GET" and path == f"{_API}/upload_progress":
            # Nothing to tell: browsers do not ask again after this answer.
            await _send(send, 204, b"text/plain", b"")
        elif method == "POST" and path == f"{_API}/queue/join":
            await self._join(scope, receive, send)
        elif method == "POST" and path == f"{_API}/upload":
            await self._upload(scope, receive, send)
        else:
            await _plain(send, 404, "There is nothing here.")

    async def _picture(self, name: str, send: Send) -> None:
        picture = self._sessions.picture(name.removesuffix(".png"))
        if picture is None:
            await _plain(send, 404, "This picture is not shown any more.")
        else:
            await _send(send, 200, b"image/png", picture)

    async def _heartbeat(self, scope: Scope, receive: Receive, send: Send, session: str) -> None:
        """The connection that a page holds while it is open; its end is that of the session."""
        self._sessions.connected(session)
        try:
            await self.app(_only(scope, scope["path"]), receive, send)
        finally:
            self._sessions.disconnected(session)
            self._uploads.end(session)

    async def _join(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body, _ = self._calls.checked(await _body(scope, receive, MAX_JSON))
        except _TooLarge:
            await _detail(send, 413, f"This is too much text: at most {MAX_JSON >> 10} KiB.")
            return
        except Refused as refused:
            await _detail(send, 400, str(refused))
            return
        await self.app(_only(scope, scope["path"], body=body), _once(body, receive), send)

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Keep one file; the answer is the random name that the page opens it by."""
        from anyio import to_thread
        from starlette.formparsers import MultiPartException
        from starlette.requests import ClientDisconnect, Request

        too_large = f"The file is too large: at most {MAX_UPLOAD >> 20} MiB."
        most = MAX_UPLOAD + MULTIPART
        if _length(scope) > most:
            await _plain(send, 413, too_large)
            return
        bare = {key: value for key, value in scope.items() if key != "app"}
        request = Request(bare, _counted(receive, most))
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            await _plain(send, 400, "A file is expected here, as a browser's form sends it.")
            return
        try:
            async with request.form(max_files=1, max_fields=0, max_part_size=MULTIPART) as form:
                file = form.get("files")
                if file is None or isinstance(file, str):
                    await _plain(send, 400, "There is no file in this upload.")
                    return
                name = file.filename or ""
                ticket = await to_thread.run_sync(self._uploads.add, name, file.file)
        except _TooLarge:
            await _plain(send, 413, too_large)
        except UserError as error:
            await _plain(send, 429, str(error))
        except MultiPartException:
            await _plain(send, 400, "This upload is damaged, or holds more than one file.")
        except ClientDisconnect:
            return
        except OSError:
            await _plain(send, 507, "The server has no room for this file.")
        else:
            await _send(send, 200, b"application/json", json.dumps([ticket]).encode())


# ------------------------------------------------------------------------------------- requests


def _only(scope: Scope, path: str, query: bytes = b"", body: bytes | None = None) -> Scope:
    """A request of this path and query, with nothing else that gradio might heed."""
    headers = [(key, value) for key, value in scope["headers"] if key.lower() in _PASSED]
    if body is not None:
        headers = [(key, value) for key, value in headers if key.lower() != b"content-type"]
        headers.append((b"content-type", b"application/json"))
        headers.append((b"content-length", str(len(body)).encode()))
    return {
        **scope,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": headers,
    }


def _session(query: bytes) -> str | None:
    try:
        names = parse_qs(query.decode("ascii"), max_num_fields=20).get("session_hash", [])
    except ValueError:
        return None
    return names[0] if len(names) == 1 and SESSION.fullmatch(names[0]) else None


def _length(scope: Scope) -> int:
    """The length that a request says it has; the server does not let it send more."""
    values = [value for key, value in scope["headers"] if key.lower() == b"content-length"]
    try:
        return int(values[0]) if values else 0
    except ValueError:
        return 0


def _counted(receive: Receive, most: int) -> Receive:
    """Pass a body on until it is larger than it may be."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise _TooLarge
        return message

    return counted


async def _body(scope: Scope, receive: Receive, most: int) -> bytes:
    if _length(scope) > most:
        raise _TooLarge
    counted, parts = _counted(receive, most), []
    while True:
        message = await counted()
        if message["type"] == "http.disconnect":
            raise Refused("The request ended too early.")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _once(body: bytes, receive: Receive) -> Receive:
    """Receive a body that was read already, and then whatever comes after it."""
    parts: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return parts.pop() if parts else await receive()

    return replayed


# -------------------------------------------------------------------------------------- answers


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            kept = [
                (key, value)
                for key, value in message["headers"]
                if key.decode("latin-1").lower() not in HEADERS
                and not key.lower().startswith(b"access-control-")
            ]
            ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
            message = {**message, "headers": [*kept, *ours]}
        await send(message)

    return guarded


async def _send(
    send: Send, status: int, kind: bytes, body: bytes, more: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *(more or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _plain(send: Send, status: int, sentence: str) -> None:
    await _send(send, status, b"text/plain; charset=utf-8", f"{sentence}\n".encode())


async def _detail(send: Send, status: int, sentence: str) -> None:
    """A refusal in the form that gradio's page shows."""
    await _send(send, status, b"application/json", json.dumps({"detail": sentence}).encode())
