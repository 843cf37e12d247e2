"""Signals that ask a run to end: it finishes its step, saves, and says so by its exit code."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: try again, which goes on where the run stopped."""

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StoppedBySignalError(Exception):
    """The run saved its state and ended before its last step; the message says where."""


class StopSignals:
    """While active, SIGTERM (Slurm, torchrun) and SIGUSR1 only set ``name``.

    Worker processes that inherit the handler ignore the signal: the main process ends them.

    Attributes:
        name: of the signal that came, or None.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._owner = os.getpid()
        self._before: dict[signal.Signals, Any] = {}

    def _note(self, number: int, _: FrameType | None) -> None:
        if os.getpid() == self._owner:
            self.name = signal.Signals(number).name

    def __enter__(self) -> StopSignals:
        try:
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        except ValueError:  # not in the main thread: whoever runs us there stops us otherwise
            pass
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
