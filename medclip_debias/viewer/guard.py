"""What stands before the page: who may ask, and the headers of every answer."""

from __future__ import annotations

import asyncio
import hmac
import html
import re
import secrets
from collections.abc import Iterable
from ipaddress import ip_address

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
ENTRANCE = "/enter"
"""Where the form of the refusal sends a password, which is the token."""
SLOWED = 1.0  # seconds that an answer to a wrong password takes
MOST_PASSWORD = 2048  # bytes of the form
STALLED = 60.0  # seconds without a byte after which a request is given up

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_READING = ("GET", "HEAD")
# The address of the page leads on by a page: a redirect would carry no strict cookie.
_ENTERED = (
    "<!doctype html><html lang='en'><meta charset='utf-8'>"
    "<meta http-equiv='refresh' content='0;url=./'>"
    "<title>medclip-debias</title><p><a href='./'>Open the viewer</a></p></html>"
)
_FORM = (
    "<!doctype html><html lang='en'><meta charset='utf-8'><title>medclip-debias</title>"
    "<meta name='viewport' content='width=device-width'>"
    "<main><h1>medclip-debias</h1><p role='alert'>{sentence}</p>"
    f"<form method='post' action='.{ENTRANCE}'><label>Password, or token:"
    " <input type='password' name='password' autocomplete='off' required autofocus></label>"
    " <button>Open</button></form></main></html>"
)


class Guard:
    """Lets through who may ask, and gives every answer its headers.

    Args:
        app: the page.
        token: opens it; None lets everybody in.
        names: host names that are served beside those of loopback.
    """

    def __init__(self, app: ASGIApp, token: str | None, names: Iterable[str] = ()) -> None:
        self.app = app
        self._token = token
        self._secret = secrets.token_urlsafe(32)
        self._names = {name.lower().strip("[]") for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        else:
            request = Request(scope, receive)
            try:
                answer = await self._admitted(request)
            except HTTPException as refusal:
                answer = PlainTextResponse(f"{refusal.detail}\n", refusal.status_code)
                if refusal.status_code == 403 and scope["path"] in ("/", ENTRANCE):
                    # Ask for the password; the token in the printed address is one.
                    page = _FORM.format(sentence=html.escape(refusal.detail))
                    answer = HTMLResponse(page, 403)

            async def send_with_headers(message: Message) -> None:
                if message["type"] == "http.response.start":
                    headers = MutableHeaders(scope=message)
                    for name in [one for one in headers if one.startswith("access-control-")]:
                        del headers[name]
                    headers.update(HEADERS)
                await send(message)

            await answer(scope, request.receive, send_with_headers)

    async def _admitted(self, request: Request) -> ASGIApp:
        """What answers a request; a refusal repeats nothing of it."""
        hosts, path = request.headers.getlist("host"), request.scope["path"]
        match = _AUTHORITY.fullmatch(hosts[0]) if len(hosts) == 1 else None
        name = match[1].lower().strip("[]") if match else ""
        if match is None or not (is_loopback(name) or name in self._names):
            raise HTTPException(
                421,
                "This name is not served here. Open the address that the viewer printed, or start"
                " it with --allow-host NAME.",
            )
        if not _from_the_page(request):
            raise HTTPException(403, "This request does not come from the viewer's own page.")
        # Browsers do not keep the cookies of two ports apart; two viewers must not end each other.
        cookie = f"medclip_debias_viewer_{match[2] or 'default'}"
        if path == ENTRANCE and request.method == "POST":
            if not self._is_token(await _passwords(request)):
                await asyncio.sleep(SLOWED)
                raise HTTPException(403, "This password is wrong.")
            return self._entered(cookie, request)
        tokens = request.query_params.getlist("token")
        if path == "/" and request.method in _READING and self._is_token(tokens):
            return self._entered(cookie, request)
        if self._token is None or _same(request.cookies.get(cookie, ""), self._secret):
            return self.app
        if tokens:
            raise HTTPException(403, "This token is wrong: it may be that of an earlier start.")
        raise HTTPException(
            403,
            "This page needs a token. Open the whole address that the viewer printed, with"
            " ?token=... at its end, in this browser, or give the token here.",
        )

    def _is_token(self, tokens: list[str]) -> bool:
        return self._token is not None and len(tokens) == 1 and _same(tokens[0], self._token)

    def _entered(self, cookie: str, request: Request) -> Response:
        """Let the browser in from now on."""
        response = HTMLResponse(_ENTERED)
        secure = request.url.scheme == "https"
        response.set_cookie(cookie, self._secret, httponly=True, samesite="strict", secure=secure)
        return response


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine as seen from itself alone.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "a.org")]
    [True, True, True, False, False]
    """
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def _passwords(request: Request) -> list[str]:
    """The passwords of a form; none where it is no form, too long or does not come."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MOST_PASSWORD:
        return []
    try:
        async with asyncio.timeout(STALLED), request.form(max_fields=2) as form:
            return [str(one) for one in form.getlist("password")]
    except (ClientDisconnect, MultiPartException, TimeoutError, ValueError):
        return []


def _from_the_page(request: Request) -> bool:
    """Whether a request comes from the page itself; a link elsewhere may open the page alone."""
    host = request.headers["host"].lower()
    # A proxy may name the port that browsers leave out.
    ours = {f"{scheme}://{host}" for scheme in ("http", "https")}
    ours |= {f"http://{host.removesuffix(':80')}", f"https://{host.removesuffix(':443')}"}
    origins = request.headers.getlist("origin")
    if origins and (len(origins) != 1 or origins[0].lower() not in ours):
        return False
    if not origins and request.method not in _READING:
        return False
    navigates = "navigate" in request.headers.getlist("sec-fetch-mode")
    return (request.scope["path"] == "/" and navigates) or all(
        site in ("same-origin", "none") for site in request.headers.getlist("sec-fetch-site")
    )


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
