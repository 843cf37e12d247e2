"""Signals that ask a run to end: it finishes its step, saves, and says so by its exit code.

Only the standard library is imported here, so that the program can listen before its slow
imports begin (`medclip_debias.__main__`).
"""

from __future__ import annotations

import errno
import os
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: try again, which resumes where the run stopped."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as of every verb."""

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)
_IGNORABLE = (signal.SIGHUP, signal.SIGINT)  # by nohup, and by a shell for its background jobs


class StoppedBySignalError(Exception):
    """The run saved its state and ended, by exit code ``code``; the message says where."""

    def __init__(self, sentence: str, signal_name: str | None = None) -> None:
        super().__init__(sentence)
        self.code = _code(signal_name)


class StopSignals:
    """While it listens, a signal that asks the run to stop only sets ``name``.

    Those are SIGTERM (torchrun, containers), SIGUSR1 (Slurm), SIGHUP (a closed terminal) and
    SIGINT (Ctrl-C; a second one interrupts as ever). SIGHUP and SIGINT stay ignored where whoever
    started the process ignores them.

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

    @property
    def origin(self) -> str:
        """What stops the run, in words."""
        return self.name or "a signal to another process"

    def _handle(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._owner:
            return
        if number == signal.SIGHUP:
            _detach_closed_terminals()
        # The agent of torchrun hands on the Ctrl-C that its processes have heard already.
        elif number == signal.SIGINT and self.name is not None and "RANK" not in os.environ:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name
        if self.at_once:
            self._exit()
        elif number == signal.SIGINT and os.isatty(2):
            write_sentence(
                "stops after this step and the next, and saves; Ctrl-C again ends it at once."
            )

    def _exit(self) -> None:
        if is_first_process():
            write_sentence(f"stopped by {self.origin} {BEFORE_THE_FIRST_STEP}")
        os._exit(_code(self.name))

    def listen(self) -> None:
        with suppress(ValueError):  # not in the main thread: who runs us there stops us otherwise
            for number in _SIGNALS:
                if number in _IGNORABLE and signal.getsignal(number) == signal.SIG_IGN:
                    continue
                self._before[number] = signal.signal(number, self._handle)

    def end(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()


def _code(name: str | None) -> int:
    return INTERRUPTED if name == "SIGINT" else EXIT_CODE


def _detach_closed_terminals() -> None:
    """Send what is written to a terminal that is gone to nowhere, as it would be an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        try:
            termios.tcgetattr(number)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(nowhere, number)
    os.close(nowhere)


BEFORE_THE_FIRST_STEP = "before its first step; nothing was changed; run the same command again."


_listening: StopSignals | None = None


def listen_from_the_start(words: list[str]) -> None:
    """Listen for the rest of this process, if its command line is one of the verb ``train``."""
    global _listening
    if words[:1] == ["train"]:
        # Else torch prints a page of C++ calls where another process of the run was killed.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        _listening = StopSignals()
        _listening.at_once = True
        _listening.listen()


def listening() -> StopSignals | None:
    """Who listens in this process."""
    return _listening if _listening and _listening._owner == os.getpid() else None


@contextmanager
def stop_signals(*, at_once: bool = False) -> Iterator[StopSignals]:
    """Listen for the duration of a ``with`` block, or leave it to whoever listens already."""
    global _listening
    running = listening()
    if running:
        yield running
        return
    _listening = StopSignals()
    _listening.at_once = at_once
    _listening.listen()
    try:
        yield _listening
    finally:
        _listening.end()
        _listening = None


def is_first_process() -> bool:
    """Whether this is process 0 of a run, by torchrun's or Slurm's variables."""
    env = os.environ
    several = env.get("SLURM_STEP_NUM_TASKS", "1") != "1"
    return env.get("RANK", env.get("SLURM_PROCID", "0") if several else "0") == "0"


def write_sentence(sentence: str) -> None:
    """Say a sentence from wherever a process is about to end, whatever its streams are doing."""
    shown = "\x1b[?25h" if os.isatty(2) else ""  # a progress bar may have hidden the cursor
    with suppress(OSError):
        os.write(2, f"{shown}medclip-debias: {sentence}\n".encode())
