"""Tokens that open the page, and which addresses this machine alone reaches."""

from __future__ import annotations

import os
import re
import secrets
from ipaddress import ip_address
from pathlib import Path

from medclip_debias.errors import UserError

TOKEN_VARIABLE = "MEDCLIP_DEBIAS_VIEWER_TOKEN"
SHORTEST_TOKEN = 20


def new_token() -> str:
    """A token that nobody guesses: 256 random bits."""
    return secrets.token_urlsafe(32)


def read_token(file: Path | None) -> str | None:
    """The token of a file, else that of the environment, else None."""
    token, source = os.environ.get(TOKEN_VARIABLE, "").strip(), f"${TOKEN_VARIABLE}"
    if file is not None:
        try:
            token, source = Path(file).read_text(encoding="utf-8").strip(), str(file)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: the token cannot be read; check --token-file.") from error
    elif not token:
        return None
    if not re.fullmatch(rf"[A-Za-z0-9._~-]{{{SHORTEST_TOKEN},}}", token):
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
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
