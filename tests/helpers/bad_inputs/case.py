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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from bad_inputs.world import World

Verdict = Literal["refused", "counted", "read"]
"""``refused``: exit code 2 and one sentence, nothing left behind. ``counted``: exit code 0, and
what was left aside or mended is said or stored. ``read``: exit code 0, for the input means one
thing."""

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
        allowed: the verdicts that are right.
        shows: for ``counted``, a pattern of what must be said on standard error, or stored in the
            results, in the list of rejected files, or in a step of the funnel that dropped some.
    """

    area: str
    what: str
    build: Callable[[World], list[str]]
    allowed: tuple[Verdict, ...]
    shows: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a case led to; ``fault`` is empty when that was right."""

    case: Case
    verdict: str
    said: str
    fault: str = ""


CASES: list[Case] = []


class Expected(NamedTuple):
    """A value of a table of `cases` that does not lead to what the others lead to."""

    value: Any
    allowed: tuple[Verdict, ...]
    shows: str = ""


def leads(value: Any, *allowed: Verdict, shows: str = "") -> Expected:
    """Say which verdicts are right for a value of `cases`."""
    return Expected(value, allowed, shows)


def counted(shows: str, value: Any) -> Expected:
    """Say that a value of `cases` is counted."""
    return Expected(value, ("counted",), shows)


def cases(
    area: str,
    build: Callable[..., list[str]],
    table: Mapping[str, Any],
    *allowed: Verdict,
    shows: str = "",
    before: str = "",
) -> None:
    """Register a case for each entry of ``table``.

    Args:
        area: what kind of file they are about.
        build: called with the world and a value of the table: its keywords where it is a
            dictionary, its arguments where it is a tuple.
        table: what is wrong, and the value.
        allowed: the verdicts that are right; refused by default.
        shows: as of `Case`.
        before: begins what is wrong.
    """
    for what, value in table.items():
        expected = value if isinstance(value, Expected) else None
        value, right, words = expected or (value, allowed or ("refused",), shows)

        def make(world: World, value: Any = value) -> list[str]:
            if isinstance(value, dict):
                return build(world, **value)
            return build(world, *(value if isinstance(value, tuple) else (value,)))

        CASES.append(Case(area, before + what, make, right, words))


def case(
    area: str, what: str, *allowed: Verdict, shows: str = ""
) -> Callable[[Callable[[World], list[str]]], Callable[[World], list[str]]]:
    """Register the function below as a case."""

    def register(build: Callable[[World], list[str]]) -> Callable[[World], list[str]]:
        CASES.append(Case(area, what, build, allowed or ("refused",), shows))
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
        return Outcome(case, "hangs", "", f"takes longer than {LIMIT} s")
    except BaseException as error:
        said = "".join(traceback.format_exception_only(error)).strip()
        return Outcome(case, "raised", said, f"a {type(error).__name__} reached the user")
    said = err.getvalue() + out.getvalue()
    verdict, sentence, fault = _judge(case, code, err.getvalue(), world)
    leaked = [canary for canary in CANARIES if canary in said.lower()]
    if leaked:
        fault = "says a patient's name or id"
    elif "Traceback" in said:
        fault = "shows a traceback"
    elif verdict == "refused" and world.listing() != before:
        extra = sorted(world.listing() - before)
        fault = f"leaves {', '.join(extra[:3])} behind"
    return Outcome(case, verdict, world.anonymous(sentence), fault)


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


def _judge(case: Case, code: int, err: str, world: World) -> tuple[str, str, str]:
    lines = [line for line in err.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if code == 2:
        sentence = last.removeprefix("medclip-debias: ")
        short = world.anonymous(sentence)
        if not last.startswith("medclip-debias: "):
            return "refused", short, "does not end with a sentence"
        if len(short) > LONGEST:
            return "refused", short, f"says {len(short)} letters"
        fault = "" if "refused" in case.allowed else "refuses what can be read"
        return "refused", sentence, fault
    if code != 0:
        return f"exit {code}", last, f"ends with exit code {code}"
    everything = err + world.stored()
    found = re.search(case.shows, everything) if case.shows else None
    if "counted" in case.allowed and found:
        return "counted", _line_of(everything, found.start()), ""
    if "read" in case.allowed:
        return "read", "", ""
    return "taken", "", "takes it in silence"


def _line_of(text: str, place: int) -> str:
    start, end = text.rfind("\n", 0, place) + 1, text.find("\n", place)
    return text[start : end if end >= 0 else None].strip()


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
