"""What the doctor finds: a line for each thing it looked at, and how it goes from one to the next.

Each thing is reported when it has been looked at. A fault is reported once: what cannot be looked
at because of it is `SKIPPED`, and names it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from medclip_debias.errors import UserError

OK, WARNING, STOPS, SKIPPED = "ok", "warning", "failed", "not checked"
_NAME_WIDTH, _STATE_WIDTH = 20, 11  # of the longest; lines are printed before the last is known
GIB = 2**30

Say = Callable[[str], None]
Tell = Callable[["Finding"], None]


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        name: what was looked at.
        state: `OK`, `WARNING`, `STOPS` for what would stop the run, or `SKIPPED` for what could
            not be looked at because something else failed.
        text: what was found.
        remedy: what to do; empty where all is well.
        numbers: the numbers behind ``text``, for --json.
    """

    name: str
    state: str
    text: str
    remedy: str = ""
    numbers: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For --json, under the keys that scripts read."""
        names = {"text": "told", "numbers": "figures"}
        return {names.get(key, key): value for key, value in asdict(self).items()}


class Examination:
    """Looks at one thing after another.

    Args:
        say: called with what is being looked at now.
        tell: called with each finding when there is one.

    Attributes:
        findings: all so far.
    """

    def __init__(self, say: Say | None = None, tell: Tell | None = None) -> None:
        self.say: Say = say or (lambda _: None)
        self._tell: Tell = tell or (lambda _: None)
        self.findings: list[Finding] = []

    def add(self, *findings: Finding) -> None:
        """Take findings down, and tell them."""
        for finding in findings:
            self.findings.append(finding)
            self._tell(finding)

    def look(
        self,
        name: str,
        what: str,
        how: Callable[[], Finding | Sequence[Finding]],
        after: Sequence[str] = (),
    ) -> None:
        """Look at one thing, unless what it needs failed.

        Args:
            name: of the finding.
            what: sentence on what is being looked at.
            how: looks; may raise for a thing that stops the run.
            after: names of findings that it needs.
        """
        broken = [need for need in after if self.failed(need)]
        if broken:
            text = f"because '{broken[0]}' failed"
            self.add(Finding(name, SKIPPED, text, numbers={"because": broken[0]}))
            return
        self.say(what)
        found = guarded(name, how)
        self.add(*([found] if isinstance(found, Finding) else found))

    def failed(self, name: str) -> bool:
        """Whether the finding of that name would stop the run."""
        return any(one.name == name and one.state == STOPS for one in self.findings)


def guarded(
    name: str, look: Callable[[], Finding | Sequence[Finding]]
) -> Finding | Sequence[Finding]:
    """A look that itself fails is a failed finding and not the end of the others."""
    try:
        return look()
    except UserError as error:
        return Finding(name, STOPS, str(error))  # the sentence says what to do
    except (OSError, RuntimeError) as error:
        return Finding(name, STOPS, f"{type(error).__name__}", "mend this before the run")


def lines(finding: Finding) -> str:
    """A finding as aligned lines; what to do stands below what it is about."""
    text = f"{finding.name:<{_NAME_WIDTH}}  {finding.state:<{_STATE_WIDTH}}  {finding.text}"
    if finding.remedy:
        text += f"\n{'':<{_NAME_WIDTH}}  {'':<{_STATE_WIDTH}}  -> {finding.remedy}"
    return text


def summary(findings: Sequence[Finding]) -> str:
    """How many findings there are of each kind that matters."""
    counts = Counter(finding.state for finding in findings)
    text = f"{counts[WARNING]} warnings, {counts[STOPS]} that would stop the run"
    return text + (f", {counts[SKIPPED]} not checked" if counts[SKIPPED] else "")
