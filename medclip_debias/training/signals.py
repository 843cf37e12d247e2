"""Signals that ask a run to end: it finishes its step, saves, and says so by its exit code.

Only the standard library is imported here, so that the program can listen before its slow
imports begin (`medclip_debias.__main__`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: try again, which resumes where the run stopped."""

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StoppedBySignalError(Exception):
    """The run saved its state and ended before its last step; the message says where."""


class StopSignals:
    """While it listens, SIGTERM (Slurm, torchrun) and SIGUSR1 only set ``name``.

    Worker processes that inherit the handler ignore the signal: the main process ends them.

    Attributes:
        name: of the signal that came, or None.
        at_once: nothing has been changed yet, so a signal ends the process at once with
            `EXIT_CODE`. Only for a process that is ours, as that of the command line.
        begun: steps are being taken, which an abrupt end would lose.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.at_once = False
        self.begun = False
        self._owner = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def _note(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return
        self.name = signal.Signals(number).name
        if self.at_once:
            self._leave()

    def _leave(self) -> None:
        if _first_process():
            tell(before_the_first_step(self.name))
        os._exit(EXIT_CODE)

    def listen(self) -> None:
        """Take the signals from now on."""
        try:
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        except ValueError:  # not in the main thread: whoever runs us there stops us otherwise
            pass

    def end(self) -> None:
        """Give the signals back to whom they belonged to."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


def before_the_first_step(name: str | None) -> str:
    """The sentence for a run that was stopped before it began or resumed."""
    return (
        f"stopped by {name or 'a signal to another process'} before its first step; nothing was "
        "changed; run the same command again."
    )


_listening: StopSignals | None = None


def listen_from_the_start(words: list[str]) -> None:
    """Listen for the rest of this process, if its command line is one of the verb ``train``."""
    global _listening
    if words[:1] == ["train"]:
        _listening = StopSignals()
        _listening.at_once = True
        _listening.listen()


def listening() -> StopSignals | None:
    """Who listens in this process."""
    return _listening if _listening and _listening._owner == os.getpid() else None


@contextmanager
def stop_signals(*, at_once: bool = False) -> Iterator[StopSignals]:
    """Listen for the duration of a ``with`` block, or leave it to whoever listens already.

    Args:
        at_once: a signal ends the process at once, until this is set to False.
    """
    global _listening
    found = listening()
    if found:
        yield found
        return
    _listening = StopSignals()
    _listening.at_once = at_once
    _listening.listen()
    try:
        yield _listening
    finally:
        _listening.end()
        _listening = None


def _first_process() -> bool:
    env = os.environ
    several = env.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    return env.get("RANK", env.get("SLURM_PROCID", "0") if several else "0") == "0"


def tell(sentence: str) -> None:
    """Say a sentence from wherever a process is about to end, whatever its streams are doing."""
    shown = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar may have hidden the cursor
    with suppress(OSError):
        os.write(2, f"{shown}medclip-debias: {sentence}\n".encode())
