"""The parts of a ``multipart/related`` answer (RFC 2046, RFC 2387), as WADO-RS sends instances."""

from __future__ import annotations

from email.message import Message
from email.utils import collapse_rfc2231_value


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
        # Behind the boundary: blanks, a line break, header lines, an empty line, the content.
        head, empty_line, content = piece.partition(b"\r\n\r\n")
        if not empty_line or not head.lstrip(b" \t").startswith(b"\r\n"):
            if piece.lstrip(b" \t").startswith(b"\r\n\r\n"):  # a part without header lines
                found.append(piece.lstrip(b" \t")[4:])
                continue
            raise ValueError("a part without header")
        found.append(content)
    return found
