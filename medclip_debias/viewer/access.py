"""Who may ask: those with the token, under the names served here, from the page itself."""

from __future__ import annotations

import hmac
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.errors import UserError

if TYPE_CHECKING:
    from starlette.requests import Request

TOKEN_VARIABLE = "MEDCLIP_DEBIAS_VIEWER_TOKEN"
SHORTEST_TOKEN = 20
ENTRANCE = "/enter"
"""Where the form of the refusal sends a password, which is the token."""

_TOKEN = re.compile(r"[A-Za-z0-9._~-]+")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_READING = ("GET", "HEAD")


@dataclass(frozen=True)
class Refusal:
    """Status and sentence of an answer to who may not ask; nothing of the request is repeated."""

    status: int
    sentence: str


class Access:
    """The token (None lets everybody in), and the host names served beside those of loopback."""

    def __init__(self, token: str | None, names: Iterable[str] = ()) -> None:
        self._token = token
        self._secret = secrets.token_urlsafe(32)
        self._names = {name.lower().strip("[]") for name in names}

    def refusal(self, request: Request) -> Refusal | None:
        """Why a request is refused; None lets it in."""
        match = _host(request)
        name = match[1].lower().strip("[]") if match else ""
        if match is None or not (is_loopback(name) or name in self._names):
            return Refusal(
                421,
                "This name is not served here. Open the address that the viewer printed, or start"
                " it with --allow-host NAME.",
            )
        if not _from_the_page(request):
            return Refusal(403, "This request does not come from the viewer's own page.")
        cookie = request.cookies.get(_cookie_name(request), "")
        if self._token is None or _same(cookie, self._secret) or self.enters(request):
            return None
        if request.scope["path"] == ENTRANCE and request.method == "POST":
            return None  # it brings the password
        if "token" in request.query_params:
            return Refusal(403, "This token is wrong: it may be that of an earlier start.")
        return Refusal(
            403,
            "This page needs a token. Open the whole address that the viewer printed, with"
            " ?token=... at its end, in this browser, or give the token here.",
        )

    def enters(self, request: Request) -> bool:
        """Whether a request opens the page with the right token in its address."""
        tokens = request.query_params.getlist("token")
        reads = request.method in _READING and request.scope["path"] == "/"
        return reads and len(tokens) == 1 and self.knows(tokens[0])

    def knows(self, token: str) -> bool:
        """Whether this is the token."""
        return self._token is not None and _same(token, self._token)

    def cookie(self, request: Request) -> dict[str, Any]:
        """What `Response.set_cookie` takes, so that the browser is let in from now on."""
        return {
            "key": _cookie_name(request),
            "value": self._secret,
            "httponly": True,
            "samesite": "strict",
            "secure": request.url.scheme == "https",
        }


def new_token() -> str:
    """A token that nobody guesses: 256 random bits."""
    return secrets.token_urlsafe(32)


def read_token(file: Path | None) -> str | None:
    """The token of a file, else that of the environment, else None."""
    if file is not None:
        try:
            token, source = Path(file).read_text(encoding="utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: the token cannot be read; check --token-file.") from error
    else:
        token, source = os.environ.get(TOKEN_VARIABLE, "").strip(), f"${TOKEN_VARIABLE}"
        if not token:
            return None
    if len(token) < SHORTEST_TOKEN or not _TOKEN.fullmatch(token):
        raise UserError(
            f"{source}: a token has at least {SHORTEST_TOKEN} characters, all of them letters,"
            " digits or one of . _ ~ -; write one with: openssl rand -hex 32"
        )
    return token


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine as seen from itself alone.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "a.org")]
    [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host(request: Request) -> re.Match[str] | None:
    """Name and port of the only ``Host`` there is."""
    hosts = request.headers.getlist("host")
    return _AUTHORITY.fullmatch(hosts[0]) if len(hosts) == 1 else None


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


def _cookie_name(request: Request) -> str:
    # Browsers do not keep the cookies of two ports apart; two viewers must not end each other.
    match = _host(request)
    return f"medclip_debias_viewer_{(match and match[2]) or 'default'}"


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
