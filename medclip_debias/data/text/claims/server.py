"""Claims read by a language model that runs on the user's own machine. Off unless asked for.

The server speaks the chat protocol of OpenAI, as llama.cpp, vLLM and Ollama do. One sentence is
sent at a time, to a loopback address, without proxies and without following redirects. Answers are
checked like a table of another program, and kept in a cache that holds no text.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from medclip_debias.config import Settings
from medclip_debias.data.text.claims.check import checked_claim
from medclip_debias.data.text.claims.claim import FIELDS, Claim, Parsed
from medclip_debias.data.text.claims.lexicon import Lexicon
from medclip_debias.errors import UserError

CACHE = "claims.cache.jsonl"
LONGEST_ANSWER = 1 << 20
"""Bytes of an answer that are read."""
MOST_CLAIMS = 64
"""Claims of one sentence; an answer with more is refused."""


class ServerSettings(Settings):
    """Where the language model is.

    ``url`` is the base of the protocol, as ``http://127.0.0.1:8080/v1``; ``model`` its name there.
    ``allow_remote`` lets sentences leave this machine, which reports of patients must not.
    """

    url: str
    model: str = Field(min_length=1)
    allow_remote: bool = False
    timeout: float = Field(120.0, gt=0)


class ServerParser:
    """Asks the server for the claims of each sentence that the cache does not have.

    Args:
        lexicon: its findings are the only ones that an answer may name.
        settings: of the server.
        cache: file of the answers, by a hash of sentence, model and instruction.

    Raises:
        UserError: the address is not of this machine and ``allow_remote`` is not set.
    """

    def __init__(self, lexicon: Lexicon, settings: ServerSettings, cache: Path) -> None:
        _check_address(settings)
        self.lexicon = lexicon
        self.name = f"server {settings.model}"
        self.counts = {"asked": 0, "from_cache": 0, "refused_answers": 0}
        self._settings = settings
        self._cache = cache
        self._instruction = _instruction(lexicon)
        self._known = self._read_cache()
        # Neither a proxy of the environment nor a redirect may carry a sentence elsewhere.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())

    def parse(self, text: str) -> Parsed:
        """Return what the model says; nothing, and a count, where its answer does not hold.

        Raises:
            UserError: the server does not answer.
        """
        key = self._key(text)
        if key in self._known:
            self.counts["from_cache"] += 1
            content = self._known[key]
        else:
            self.counts["asked"] += 1
            content = self._ask(text)
            self._keep(key, content)
        claims = self._claims(content)
        if claims is None:
            self.counts["refused_answers"] += 1
            return Parsed(())
        return Parsed(claims)

    def _claims(self, content: str) -> tuple[Claim, ...] | None:
        try:
            rows = json.loads(content)["claims"]
            if not isinstance(rows, list) or len(rows) > MOST_CLAIMS:
                return None
            return tuple(sorted({checked_claim("answer", row, self.lexicon) for row in rows}))
        except (UserError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _ask(self, text: str) -> str:
        body = {
            "model": self._settings.model,
            "temperature": 0,
            "response_format": {"type": "json_object"},
            "messages": [
                {"role": "system", "content": self._instruction},
                {"role": "user", "content": text},
            ],
        }
        url = f"{self._settings.url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(
            url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with self._opener.open(request, timeout=self._settings.timeout) as answer:
                raw = answer.read(LONGEST_ANSWER + 1)
        except urllib.error.HTTPError as error:
            raise UserError(
                f"{url}: answered with status {error.code}; check the address and that it has the"
                f" model '{self._settings.model}'."
            ) from None
        except (OSError, ValueError) as error:
            raise UserError(
                f"{url}: does not answer ({type(error).__name__}); start the server, then run"
                " 'claims' again: what it has answered is kept."
            ) from None
        try:
            content = json.loads(raw)["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            return ""
        return content if isinstance(content, str) and len(raw) <= LONGEST_ANSWER else ""

    # ------------------------------------------------------------------------- the cache

    def _key(self, text: str) -> str:
        asked = "\0".join((self._settings.model, self._instruction, text))
        return hashlib.sha256(asked.encode()).hexdigest()

    def _read_cache(self) -> dict[str, str]:
        if not self._cache.is_file():
            return {}
        known = {}
        for line in self._cache.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
                known[str(row["key"])] = json.dumps({"claims": row["claims"]})
            except (ValueError, KeyError, TypeError):
                continue  # the last line of a run that was killed; that sentence is asked again
        return known

    def _keep(self, key: str, content: str) -> None:
        """Keep the claims of an answer, never its words; refused answers are asked for again."""
        claims = self._claims(content)
        if claims is None:
            return
        rows = [{"finding": c.finding} | {f: getattr(c, f) for f in FIELDS} for c in claims]
        self._known[key] = json.dumps({"claims": rows})
        with self._cache.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "claims": rows}) + "\n")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: it may lead off this machine."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""
        return None


def _check_address(settings: ServerSettings) -> None:
    parts = urlsplit(settings.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"The server '{settings.url}' is no address such as http://127.0.0.1:8080/v1."
        )
    if settings.allow_remote:
        return
    try:
        local = ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        local = False  # a name, even "localhost", means what some resolver says
    if not local:
        raise UserError(
            f"The server '{parts.hostname}' is not a loopback address, and sentences of reports are"
            " not sent to other machines; use 127.0.0.1, or --allow-remote if that is permitted."
        )


def _instruction(lexicon: Lexicon) -> str:
    fields = "; ".join(
        f"{name}: {', '.join(v or 'empty' for v in values)}" for name, values in FIELDS.items()
    )
    return (
        "You read one sentence of a chest radiograph report. Answer with a JSON object"
        ' {"claims": [...]} and nothing else. Each claim is an object with the key finding, one'
        f" of: {', '.join(lexicon.names)}; and the keys {fields}. What is bilateral is two claims."
        " Normal statements deny what they exclude. Leave out what the sentence does not state."
    )
