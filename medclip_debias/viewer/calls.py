"""What the page may send when something is clicked: checked before gradio sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

SESSION = re.compile(r"[A-Za-z0-9]{1,64}")

Check = Callable[[Any, str], Any]


class Refused(Exception):
    """A request that the page would not have sent; its text repeats nothing of it."""


class Calls:
    """The functions of a page, and what each of their inputs takes.

    Gradio takes any value at any input, and wherever it finds a dictionary that looks like a file
    it copies the file of that path. Here a text is a text, a number is within its slider, a choice
    is one of the list; no dictionary or list reaches gradio at all. The upload alone may name a
    file, by the random name that the server gave it, and only once.

    Args:
        functions: index of each function, and its input components.
        claim: binds an upload (its random name) to a session; False if there is none.

    Raises:
        TypeError: a component has no rule here.
    """

    def __init__(
        self, functions: Mapping[int, list[Any]], claim: Callable[[str, str], bool]
    ) -> None:
        self._claim = claim
        self._functions = {
            index: [self._check(block) for block in inputs] for index, inputs in functions.items()
        }

    def checked(self, body: bytes) -> tuple[bytes, str]:
        """The same request with nothing in it but what its function takes, and its session.

        Args:
            body: JSON with ``fn_index``, ``session_hash`` and ``data``.

        Raises:
            Refused: it is anything else.
        """
        try:
            asked = json.loads(body, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise Refused("This is not JSON.") from error
        if not isinstance(asked, dict):
            raise Refused("This is not a request of the page.")
        session, index, data = (asked.get(key) for key in ("session_hash", "fn_index", "data"))
        if not isinstance(session, str) or not SESSION.fullmatch(session):
            raise Refused("This is not a session of the page.")
        if isinstance(index, bool) or not isinstance(index, int) or index not in self._functions:
            raise Refused("The page has no such function.")
        checks = self._functions[index]
        if not isinstance(data, list) or len(data) != len(checks):
            raise Refused(f"This function takes {len(checks)} values.")
        values = [check(value, session) for check, value in zip(checks, data, strict=True)]
        cleaned = {"data": values, "fn_index": index, "session_hash": session}
        return json.dumps(cleaned).encode(), session

    def _check(self, block: Any) -> Check:
        kind = block.get_block_name()
        if kind == "textbox":
            return _text
        if kind == "checkbox":
            return _tick
        if kind == "slider":
            return _number(float(block.minimum), float(block.maximum))
        if kind in ("dropdown", "radio"):
            return _choice([value for _, value in block.choices])
        if kind == "file":
            return self._upload
        raise TypeError(f"there is no rule for what a {kind} may send; write one.")

    def _upload(self, value: Any, session: str) -> str | None:
        if value is None:
            return None
        ticket = value.get("path") if isinstance(value, dict) else None
        if not isinstance(ticket, str) or not self._claim(ticket, session):
            raise Refused("This upload is not there any more; give the file once more.")
        return ticket


def _text(value: Any, session: str) -> str | None:
    del session
    if value is not None and not isinstance(value, str):
        raise Refused("A text is expected here.")
    return value


def _tick(value: Any, session: str) -> bool:
    del session
    if not isinstance(value, bool):
        raise Refused("Yes or no is expected here.")
    return value


def _number(lowest: float, highest: float) -> Check:
    def check(value: Any, session: str) -> float:
        del session
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Refused("A number is expected here.")
        if not lowest <= value <= highest:  # nor if it is no number at all (NaN)
            raise Refused(f"A number from {lowest:g} to {highest:g} is expected here.")
        return value

    return check


def _choice(values: list[Any]) -> Check:
    def check(value: Any, session: str) -> Any:
        del session
        if value is not None and (not isinstance(value, str) or value not in values):
            raise Refused("One of the list is expected here.")
        return value

    return check


def _no_constant(name: str) -> float:
    raise ValueError(name)
