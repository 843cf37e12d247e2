"""One bad input, what it may lead to, and what it did lead to."""

from __future__ import annotations

import io
import json
import re
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bad_inputs.world import World

CANARIES = ("quackenbush", "zebulon", "19876543", "59876543", "haemoptysis")
"""A patient's name, ids and complaint that stand in every source: none of them may be said."""

LONGEST = 600
"""Letters of a sentence to a user, the paths in it aside."""

LIMIT = 60
"""Seconds that an answer may take."""


class TooLongError(BaseException):
    """An answer took longer than `LIMIT`; no handler of the program's may catch it."""


@dataclass(frozen=True)
class Case:
    """A bad input.

    Attributes:
        area: what kind of file it is about.
        what: what is wrong with it, in a few words.
        build: makes the input in a fresh world, returns the command line.
        shows: None where the input is refused: exit code 2 and one sentence, nothing left behind.
            Else exit code 0, and what was left aside or mended: a pattern of what is said on
            standard error, or stored in the results, in the list of rejected files, or in a step of
            the funnel that dropped some; empty where the input means one thing.
    """

    area: str
    what: str
    build: Callable[[World], list[str]]
    shows: str | None = None


class Outcome(NamedTuple):
    """What a case led to; ``fault`` is empty when that was right."""

    said: str
    fault: str = ""


CASES: list[Case] = []


class Counted(NamedTuple):
    """A value of a table of `cases` that is counted (or read, where nothing needs to be said)."""

    shows: str
    value: Any


def cases(
    area: str, build: Callable[..., list[str]], table: Mapping[str, Any], before: str = ""
) -> None:
    """Register a case for each entry of ``table``: what is wrong, and the value.

    ``build`` is called with the world and the value: its keywords where it is a dictionary, its
    arguments where it is a tuple; ``before`` begins what is wrong.
    """
    for what, value in table.items():
        shows, value = value if isinstance(value, Counted) else (None, value)

        def make(world: World, value: Any = value) -> list[str]:
            if isinstance(value, dict):
                return build(world, **value)
            return build(world, *(value if isinstance(value, tuple) else (value,)))

        CASES.append(Case(area, before + what, make, shows))


def case(
    area: str, what: str, shows: str | None = None
) -> Callable[[Callable[[World], list[str]]], Callable[[World], list[str]]]:
    """Register the function below as a case."""

    def register(build: Callable[[World], list[str]]) -> Callable[[World], list[str]]:
        CASES.append(Case(area, what, build, shows))
        return build

    return register


def play(case: Case, world: World) -> Outcome:
    """Run one case in its own world."""
    from medclip_debias.cli import run

    words = case.build(world)
    before = world.listing()
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err), _limited():
            code = run(words)
    except TooLongError:
        return Outcome("", f"takes longer than {LIMIT} s")
    except BaseException as error:
        said = "".join(traceback.format_exception_only(error)).strip()
        return Outcome(said, f"a {type(error).__name__} reached the user")
    said = err.getvalue() + out.getvalue()
    fault = _judge(case, code, err.getvalue(), world)
    if any(canary in said.lower() for canary in CANARIES):
        fault = "says a patient's name or id"
    elif "Traceback" in said:
        fault = "shows a traceback"
    elif code == 2 and (extra := sorted(world.listing() - before)):
        fault = f"leaves {', '.join(extra[:3])} behind"
    return Outcome(said, fault)


@contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _judge(case: Case, code: int, err: str, world: World) -> str:
    """Return the fault, or an empty text."""
    if code == 2:
        *_, last = ["", *filter(str.strip, err.splitlines())]
        letters = len(world.anonymous(last))
        if not last.startswith("medclip-debias: "):
            return "does not end with a sentence"
        if letters > LONGEST:
            return f"says {letters} letters"
        return "" if case.shows is None else "refuses what can be read"
    if code != 0:
        return f"ends with exit code {code}"
    found = case.shows is not None and re.search(case.shows, err + world.stored())
    return "" if found else "takes it in silence"


def stored(folder: Path) -> str:
    """What a prepared set, or results, say of what they left aside."""
    parts = []
    for name in ("rejected.csv", "funnel.json", "results.json", "groundings.json"):
        for path in sorted(folder.rglob(name)):
            text = path.read_text(encoding="utf-8")
            if name == "funnel.json":
                rows = [row for row in json.loads(text) if row["dropped"]]
                text = "\n".join(json.dumps(row) for row in rows)
            parts.append(text)
    return "\n" + "\n".join(parts)
