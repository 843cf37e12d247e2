"""Requests to one DICOMweb server: the address that the user gave, and no other.

No proxy of the environment and no redirect is followed, certificates are verified, answers have a
size limit, and a time limit from the connection to the last byte. Credentials come from the
environment alone, and are sent over TLS or to this machine only. Nothing that the server says is
quoted in messages.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from email.message import Message
from email.utils import collapse_rfc2231_value
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from medclip_debias.data.images.files import MAX_BYTES
from medclip_debias.errors import UserError
from medclip_debias.files import json_or_none

TOKEN = "MEDCLIP_DICOMWEB_TOKEN"
USER, PASSWORD = "MEDCLIP_DICOMWEB_USER", "MEDCLIP_DICOMWEB_PASSWORD"
PAGE = 200
"""Matches asked for at a time; a server may give fewer."""
MOST_JSON = 64 << 20
"""Bytes of a list of matches."""
MOST_SECONDS = 300.0
"""Of an answer, from the connection to its last byte."""
_HEAD = re.compile(rb"[ \t]*\r\n(?:[^\r]++\r\n)*+\r\n")
"""Of a part, behind its boundary: blanks, a line break, header lines if any, an empty line."""
_ANY_SYNTAX = 'multipart/related; type="application/dicom"; transfer-syntax=*'

Match = dict[str, Any]
"""An object of the DICOM JSON model (PS3.18, F): elements by tag."""


class DicomWeb:
    """One server.

    Args:
        url: base of its services, as ``https://pacs.example/dicom-web``.
        timeout: seconds that a connection, or the next bytes of an answer, may take.
        total: seconds that a whole answer may take.
        environment: where credentials are looked for: `TOKEN` (sent as a bearer token), or `USER`
            and `PASSWORD` (HTTP basic).
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        total: float = MOST_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.url = _checked(url)
        self._timeout, self._total = timeout, total
        self._secret = _secret(os.environ if environment is None else environment)
        if self._secret and not (self.is_local or self.url.startswith("https://")):
            raise UserError(
                f"{self.url}: credentials are not sent without encryption; use https, or remove"
                f" {TOKEN}, {USER} and {PASSWORD} from the environment."
            )

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, by a loopback address given as a number."""
        try:
            return ipaddress.ip_address(urlsplit(self.url).hostname or "").is_loopback
        except ValueError:
            return False

    @property
    def is_encrypted(self) -> bool:
        """Whether what it sends cannot be read on the way."""
        return self.url.startswith("https://") or self.is_local

    def search(self, path: str, query: Mapping[str, str], most: int) -> Iterator[Match]:
        """Yield the matches of a QIDO-RS search, page by page, ``most`` at most."""
        seen: set[str] = set()
        offset = 0
        while offset < most:
            # A query's own limit and offset would break the paging.
            asked = {**query, "limit": str(min(PAGE, most - offset)), "offset": str(offset)}
            page = self._matches(f"{path}?{urlencode(asked, quote_via=quote)}")
            # Servers without paging send the first page again and again.
            fresh = [match for match in page if not _known(match, seen)]
            yield from fresh[: most - offset]
            if not fresh:
                return
            offset += len(page)

    def retrieve(self, path: str) -> bytes:
        """One instance by WADO-RS, as the bytes of a DICOM file, in the syntax it is stored in."""
        content_type, body = self._get(path, _ANY_SYNTAX, MAX_BYTES)
        kind, parameters = media_type(content_type)
        if kind == "application/dicom":
            return body
        try:
            if kind != "multipart/related":
                raise ValueError(kind)
            parts = parts_of(body, parameters.get("boundary", ""))
        except (ValueError, UnicodeError):
            raise UserError(
                f"{self.url}: the answer to a request for an image is not a DICOM file, or was cut"
                " off; check the address, or try again."
            ) from None
        if len(parts) != 1:
            raise UserError(
                f"{self.url}: answered a request for one image with {len(parts)} files; check the"
                " address."
            )
        return parts[0]

    def _matches(self, path: str) -> list[Match]:
        _, body = self._get(path, "application/dicom+json", MOST_JSON)
        if not body:  # 204: no match
            return []
        found = json_or_none(body)
        if not isinstance(found, list) or not all(isinstance(match, dict) for match in found):
            raise UserError(
                f"{self.url}: the answer to a search is not a list of DICOM matches; check that the"
                " address is the base of QIDO-RS, as https://HOST/dicom-web."
            )
        return found

    def _get(self, path: str, accept: str, most: int) -> tuple[str, bytes]:
        # http.client asks no proxy, follows no redirect, and reads no netrc.
        parts, late = urlsplit(self.url), threading.Event()
        host, port = parts.hostname or "", parts.port
        connection = HTTPConnection(host, port, timeout=self._timeout)
        if parts.scheme == "https":
            tls = ssl.create_default_context()
            connection = HTTPSConnection(host, port, timeout=self._timeout, context=tls)
        secret = {"Authorization": self._secret} if self._secret else {}
        try:
            connection.connect()
            with _deadline(connection.sock, self._total, late):
                connection.request(
                    "GET", f"{parts.path}/{path}", headers={"Accept": accept} | secret
                )
                answer = connection.getresponse()
                body = answer.read(most + 1)
            if late.is_set():
                raise TimeoutError
        except (OSError, HTTPException, ValueError) as error:
            problem = (
                f"does not answer ({type(error).__name__}); check the address, the network and the"
                " server's certificate."
            )
            if late.is_set():
                problem = (
                    f"had not finished an answer after {self._total:g} s; ask for less, or try"
                    " again."
                )
            raise UserError(f"{self.url}: {problem}") from None
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise UserError(f"{self.url}: {_of_status(answer.status)}")
        if len(body) > most:
            raise UserError(f"{self.url}: sent more than {most >> 20} MiB at once; ask for less.")
        return answer.getheader("Content-Type") or "", body


# ----------------------------------------------------------------------- what a server says


def media_type(content_type: str) -> tuple[str, dict[str, str]]:
    """Media type in lower case, and its parameters without quotes."""
    message = Message()
    message["Content-Type"] = content_type
    pairs = message.get_params(failobj=[]) or []
    # RFC 2231 writes boundary*=utf-8''B, of which the email package makes three values.
    return message.get_content_type(), {
        name.lower(): collapse_rfc2231_value(value) for name, value in pairs[1:]
    }


def parts_of(body: bytes, boundary: str) -> list[bytes]:
    """The contents of the parts of ``body``, without their headers.

    Text before the first and after the last boundary counts for nothing. A boundary stands at the
    start of a line, so the same letters inside a line of a part do not end it.

    Raises:
        ValueError: the boundary does not occur, or the last part is not closed: the answer was
            cut off.
    """
    mark = b"--" + boundary.encode("latin-1")
    # A line break before the first boundary makes it like all others.
    pieces = (b"\r\n" + body).split(b"\r\n" + mark)
    if not boundary or len(pieces) < 2:
        raise ValueError("no boundary")
    if not pieces[-1].startswith(b"--"):
        raise ValueError("not closed")
    found = []
    for piece in pieces[1:-1]:
        head = _HEAD.match(piece)
        if head is None:
            raise ValueError("a part without header")
        found.append(piece[head.end() :])
    return found


def first(match: Match, tag: str) -> str:
    """The first value of an element, by its tag as ``0020000D``, as text; ``""`` for none."""
    element = match.get(tag)
    found = element.get("Value") if isinstance(element, dict) else None
    value = found[0] if isinstance(found, list) and found else None
    return str(value).strip() if isinstance(value, str | int | float) else ""


def _known(match: Match, seen: set[str]) -> bool:
    """Whether this very study, series or instance was in an earlier match; remembers it."""
    ids = [first(match, tag) for tag in ("0020000D", "0020000E", "00080018")]
    key = "|".join(ids) if any(ids) else json.dumps(match, sort_keys=True)
    if key in seen:
        return True
    seen.add(key)
    return False


@contextmanager
def _deadline(connection: socket.socket, seconds: float, late: threading.Event) -> Iterator[None]:
    """End a connection, and set ``late``, when its answer takes too long.

    A limit on each read is none on the answer: a server may send a byte now and then, or one
    "100 Continue" after the other.
    """

    def end() -> None:
        late.set()
        with suppress(OSError):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.username or parts.password:
        raise UserError(
            "a DICOMweb address must not hold a user or password: it is shown in lists of"
            f" processes; set {USER} and {PASSWORD}, or {TOKEN}, in the environment."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise UserError(
            "this is not a DICOMweb address; give the base of the services, as"
            " https://HOST/dicom-web or http://127.0.0.1:8042/dicom-web."
        )
    return url.strip().rstrip("/")


def _secret(environment: Mapping[str, str]) -> str:
    """The value of the header ``Authorization``; ``""`` for none."""
    token, user = environment.get(TOKEN, ""), environment.get(USER, "")
    if token and user:
        raise UserError(f"both {TOKEN} and {USER} are set; keep one of them.")
    pair = f"{user}:{environment.get(PASSWORD, '')}".encode()
    value = f"Bearer {token}" if token else f"Basic {base64.b64encode(pair).decode()}"
    if not (token or user):
        return ""
    if not value.isascii() or not value.isprintable():
        raise UserError(
            f"{TOKEN} holds characters that no token can hold (line breaks?); set it again."
        )
    return value


def _of_status(code: int) -> str:
    if code in (401, 403):
        return (
            f"refuses the request (status {code}); set {TOKEN}, or {USER} and {PASSWORD}, in the"
            " environment."
        )
    if 300 <= code < 400:
        return f"answers with a redirect (status {code}), which is not followed; give that address."
    if code == 404:
        return "has nothing at this address (status 404); check address and identifiers."
    return f"answers with status {code}; check the address and the query."
