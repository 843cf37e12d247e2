"""What stands before the page: who may ask, under which name, and with which headers."""

from __future__ import annotations

import asyncio
import html
from urllib.parse import parse_qs

from medclip_debias.viewer.access import ENTRANCE, Access, Refusal
from medclip_debias.viewer.wire import (
    Application,
    Message,
    Receive,
    Scope,
    Send,
    TooLarge,
    plain,
    read_body,
    reply,
)

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
_HTML = b"text/html; charset=utf-8"


class Guard:
    """An ASGI application that lets through who may ask.

    Args:
        app: what answers them.
        access: who may ask.
    """

    def __init__(self, app: Application, access: Access) -> None:
        self.app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            await self._answer(scope, receive, _with_headers(send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._access.refusal(scope)
        if scope["path"] == ENTRANCE and scope["method"] == "POST" and refusal is None:
            await self._password(scope, receive, send)
        elif refusal is not None and refusal.status == 403 and scope["path"] == "/":
            await _form(send, refusal)
        elif refusal is not None:
            await plain(send, refusal.status, refusal.sentence)
        elif self._access.enters(scope):
            await self._enter(scope, send)
        else:
            await self.app(scope, receive, send)

    async def _password(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(scope, receive, 2048)
            given = parse_qs(body.decode("ascii"), max_num_fields=2).get("password", [])
        except (TooLarge, ValueError):
            given = []
        if len(given) == 1 and self._access.knows(given[0]):
            await self._enter(scope, send)
            return
        await asyncio.sleep(SLOWED)
        await _form(send, Refusal(403, "This password is wrong."))

    async def _enter(self, scope: Scope, send: Send) -> None:
        """Give the cookie, and redirect to the address without the token.

        By a page of its own: after a link on another site, browsers do not send a strict cookie
        along with a redirect.
        """
        body = (
            b"<!doctype html><html lang='en'><meta charset='utf-8'>"
            b"<meta http-equiv='refresh' content='0;url=./'>"
            b"<title>medclip-debias</title><p><a href='./'>Open the viewer</a></p></html>"
        )
        cookie = self._access.cookie(scope).encode()
        await reply(send, 200, _HTML, body, [(b"set-cookie", cookie)])


async def _form(send: Send, refusal: Refusal) -> None:
    """Ask for the password; the token in the printed address is one."""
    body = (
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>medclip-debias</title>"
        "<meta name='viewport' content='width=device-width'>"
        f"<main><h1>medclip-debias</h1><p role='alert'>{html.escape(refusal.sentence)}</p>"
        f"<form method='post' action='.{ENTRANCE}'><label>Password, or token:"
        " <input type='password' name='password' autocomplete='off' required autofocus></label>"
        " <button>Open</button></form></main></html>"
    )
    await reply(send, refusal.status, _HTML, body.encode())


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
