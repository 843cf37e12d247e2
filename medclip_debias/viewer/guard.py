"""What stands before the page: who may ask, with which headers, and how much may wait unread."""

from __future__ import annotations

import asyncio
import html

from starlette.datastructures import MutableHeaders
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from medclip_debias.viewer.access import ENTRANCE, Access, Refusal

# The browser itself refuses whatever would go to another machine, and every script and style that
# is no file of this package.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:;"
    " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "same-origin",  # without one, a browser's form would name no origin
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
SLOWED = 1.0  # seconds that an answer to a wrong password takes
MOST_PASSWORD = 2048  # bytes of the form
MOST_UNREAD = 1 << 30  # bytes of answers that clients have not taken yet
STALLED = 60.0  # seconds without a byte after which a request is given up
PART = 1 << 20  # bytes that are written at a time

_TOO_MUCH = "Too many answers wait to be read; open the radiograph again in a minute."


class Guard:
    """Lets through who may ask; answers of more than `MOST_UNREAD` unread bytes are refused."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.unread = 0
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        else:
            await self._answer(Request(scope, receive), _Bounded(self, send))

    async def _answer(self, request: Request, send: Send) -> None:
        refusal = self._access.refusal(request)
        app: ASGIApp = self.app
        if request.scope["path"] == ENTRANCE and request.method == "POST" and refusal is None:
            app = await self._password(request)
        elif refusal is not None and refusal.status == 403 and request.scope["path"] == "/":
            app = _form(refusal)
        elif refusal is not None:
            app = PlainTextResponse(f"{refusal.sentence}\n", refusal.status)
        elif self._access.enters(request):
            app = self._entered(request)
        await app(request.scope, request.receive, send)

    async def _password(self, request: Request) -> Response:
        passwords = []
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) <= MOST_PASSWORD:
            try:
                async with asyncio.timeout(STALLED), request.form(max_fields=2) as form:
                    passwords = [str(one) for one in form.getlist("password")]
            except (ClientDisconnect, MultiPartException, TimeoutError, ValueError):
                pass  # it is no password either
        if len(passwords) == 1 and self._access.knows(passwords[0]):
            return self._entered(request)
        await asyncio.sleep(SLOWED)
        return _form(Refusal(403, "This password is wrong."))

    def _entered(self, request: Request) -> Response:
        """Give the cookie, and lead on by a page: a redirect would carry no strict cookie."""
        response = HTMLResponse(
            "<!doctype html><html lang='en'><meta charset='utf-8'>"
            "<meta http-equiv='refresh' content='0;url=./'>"
            "<title>medclip-debias</title><p><a href='./'>Open the viewer</a></p></html>"
        )
        response.set_cookie(**self._access.cookie(request))
        return response


class _Bounded:
    """One answer: its headers, its parts, and its bytes among those that wait."""

    def __init__(self, guard: Guard, send: Send) -> None:
        self._guard, self._send = guard, send
        self._start: Message | None = None
        self._refused = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message["headers"]))
            for name in [one for one in headers if one.startswith("access-control-")]:
                del headers[name]
            headers.update(HEADERS)
            self._start = {**message, "headers": headers.raw}
        elif not self._refused:
            await self._body(message.get("body", b""), message.get("more_body", False))

    async def _body(self, body: bytes, more: bool) -> None:
        guard = self._guard
        if self._start is not None and guard.unread and guard.unread + len(body) > MOST_UNREAD:
            self._refused = True
            refusal = PlainTextResponse(f"{_TOO_MUCH}\n", 503, HEADERS)
            await refusal({"type": "http"}, _nothing, self._send)
            return
        guard.unread += len(body)
        try:
            if self._start is not None:
                start, self._start = self._start, None
                await self._send(start)
            for place in range(0, max(len(body), 1), PART):
                message = {"type": "http.response.body", "body": body[place : place + PART]}
                last = place + PART >= len(body)
                await self._send({**message, "more_body": more or not last})
        finally:
            guard.unread -= len(body)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


def _form(refusal: Refusal) -> Response:
    """Ask for the password; the token in the printed address is one."""
    return HTMLResponse(
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>medclip-debias</title>"
        "<meta name='viewport' content='width=device-width'>"
        f"<main><h1>medclip-debias</h1><p role='alert'>{html.escape(refusal.sentence)}</p>"
        f"<form method='post' action='.{ENTRANCE}'><label>Password, or token:"
        " <input type='password' name='password' autocomplete='off' required autofocus></label>"
        " <button>Open</button></form></main></html>",
        refusal.status,
    )
