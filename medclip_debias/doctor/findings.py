"""What the doctor finds: a line for each thing it looked at, and how it goes from one to the next.

Each thing is reported when it has been looked at. A fault is reported once: what cannot be looked
at because of it is `SKIPPED`, and names it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from medclip_debias.errors import UserError, counted

OK, WARNING, STOPS, SKIPPED = "ok", "warning", "failed", "not checked"
_NAME_WIDTH, _STATE_WIDTH = 20, 11  # of the longest; lines are printed before the last is known
GIB = 2**30
BEAT = 5.0  # seconds after which a look that takes long says so

Say = Callable[[str], None]
Tell = Callable[["Finding"], None]


@dataclass(frozen=True)
class Finding:
    """One line of the table; ``numbers`` and ``seconds`` are None where nothing was measured."""

    name: str
    state: str
    text: str
    remedy: str = ""
    numbers: dict[str, Any] | None = None
    seconds: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For --json, under the keys that scripts read."""
        names = {"text": "told", "numbers": "figures"}
        return {names.get(key, key): value for key, value in asdict(self).items()}


def ok(text: str, **numbers: Any) -> Finding:
    """All is well; the check gives the name."""
    return Finding("", OK, text, numbers=numbers or None)


def warning(text: str, remedy: str, **numbers: Any) -> Finding:
    """What does not stop the run; the check gives the name."""
    return Finding("", WARNING, text, remedy, numbers or None)


def stops(text: str, remedy: str = "", **numbers: Any) -> Finding:
    """What would stop the run; the check gives the name."""
    return Finding("", STOPS, text, remedy, numbers or None)


class Examination:
    """Looks at one thing after another: ``say`` names each one, ``tell`` takes its finding."""

    def __init__(self, say: Say | None = None, tell: Tell | None = None) -> None:
        self._say, self._tell = say, tell
        self._said = 0.0
        self.findings: list[Finding] = []

    def say(self, what: str) -> None:
        """Say something now."""
        self._said = time.monotonic()
        if self._say:
            self._say(what)

    def add(self, *findings: Finding) -> None:
        """Take findings down, and tell them."""
        for finding in findings:
            self.findings.append(finding)
            if self._tell:
                self._tell(finding)

    def look(
        self,
        name: str,
        what: str,
        how: Callable[[], Finding | Sequence[Finding]],
        after: Sequence[str] = (),
    ) -> None:
        """Look at one thing, unless what it needs failed."""
        states = {finding.name: finding.state for finding in self.findings}
        broken = next((need for need in after if states.get(need) == STOPS), None)
        if broken is not None:
            text = f"because '{broken}' failed"
            self.add(Finding(name, SKIPPED, text, numbers={"because": broken}))
            return
        with self.at_work(what) as seconds:
            try:
                found = how()
            except UserError as error:
                found = stops(str(error))  # the sentence says what to do
            except (OSError, RuntimeError) as error:
                found = stops(type(error).__name__, "fix this before the run")
        first, *rest = [found] if isinstance(found, Finding) else found
        self.add(replace(first, name=first.name or name, seconds=seconds()), *rest)

    @contextmanager
    def at_work(self, what: str) -> Iterator[Callable[[], float]]:
        """Say what is being done, and from a thread that it still is; gives a stopwatch."""
        self.say(what)
        began, over = time.monotonic(), threading.Event()

        def beat() -> None:
            while not over.wait(BEAT / 5):
                now = time.monotonic()
                if now - self._said >= BEAT:
                    self.say(f"  still running after {now - began:.0f} s")

        thread = threading.Thread(target=beat, name="doctor", daemon=True)
        thread.start()
        try:
            yield lambda: time.monotonic() - began
        finally:
            over.set()
            thread.join()


def lines(finding: Finding) -> str:
    """A finding as aligned lines; what to do stands below what it is about."""
    text = f"{finding.name:<{_NAME_WIDTH}}  {finding.state:<{_STATE_WIDTH}}  {finding.text}"
    if finding.seconds is not None and finding.seconds >= 0.5:
        text += f" [{finding.seconds:.1f} s]"
    if finding.remedy:
        text += f"\n{'':<{_NAME_WIDTH}}  {'':<{_STATE_WIDTH}}  -> {finding.remedy}"
    return text


def summary(findings: Sequence[Finding]) -> str:
    """How many findings there are of each kind that matters."""
    counts = Counter(finding.state for finding in findings)
    text = f"{counted(counts[WARNING], 'warning')}, {counts[STOPS]} that would stop the run"
    return text + (f", {counts[SKIPPED]} not checked" if counts[SKIPPED] else "")
