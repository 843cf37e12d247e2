"""A run that stands still for too long ends with a sentence that says what it waited for.

What a process waits for cannot be interrupted from inside (a collective call, a read of a disk
that does not answer), so a thread beside it says the sentence and ends the process.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from medclip_debias.errors import EXIT_CODE
from medclip_debias.training.signals import write_sentence

if TYPE_CHECKING:
    from torch.distributed import Store

_PATIENCE = 5.0  # seconds for what another process has to say

_REASONS = {
    "data": "The data loader{of} has brought no batch {span}; see whether the disk of the prepared "
    "set answers, or set train.workers=0.",
    "validation": "The validation{of} has not ended {span}; lower train.validate_images.",
    "files": "Writing to the run's folder{of} has not ended {span}; see whether its disk answers.",
    "step": "A step has not ended {span}; look at the GPUs.",
    "others": "Another process of the run has not answered {span}: it was stopped, or its machine "
    "or the network was lost. All processes end; mend that.",
}
_AGAIN = (
    "Then run the same command again: it resumes from its last checkpoint. If it only needs more "
    "time, raise train.stall_minutes."
)


class Report:
    """By which one process of several says what ended the run, and the others end in silence."""

    def __init__(self, store: Store, rank: int, world: int) -> None:
        from torch.distributed import PrefixStore

        # A connection of its own: the other one may be waiting for something.
        own_store = store.clone()
        own_store.set_timeout(timedelta(seconds=_PATIENCE))
        self._store = PrefixStore("medclip-debias", own_store)
        self._rank, self._world = rank, world

    def is_first(self) -> bool:
        """Whether no other process has reported; True where the store does not answer."""
        count = self._ask(lambda: self._store.add("reported", 1))
        return count is None or count == 1

    def was_made(self) -> bool:
        """Whether another process has reported, or does so within seconds."""

        def wait() -> bool:
            self._store.wait(["reported"])
            return bool(self._store.add("reported", 1))

        return bool(self._ask(wait))

    def wait_for_others(self) -> None:
        """Keep the store, if it is here, until the other processes know that all is said."""
        if self._rank != 0:
            return
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            count = self._ask(lambda: self._store.add("reported", 0))
            if count is None or count >= self._world:
                return
            time.sleep(0.05)

    def _ask(self, question: Callable[[], int]) -> int | None:
        """The store's answer; None where it went with its process, or that one is stopped."""
        answers: list[int] = []

        def ask() -> None:
            with suppress(RuntimeError):
                answers.append(question())

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(_PATIENCE + 1)
        return answers[0] if answers else None


class StallTimer:
    """Ends this process when it stays in one phase for more than ``minutes`` (0: never).

    Time in which the whole process was stopped (a suspended job) does not count.
    """

    def __init__(self, minutes: float, rank: int = 0, world: int = 1) -> None:
        self.minutes, self.rank, self.world = minutes, rank, world
        self.report: Report | None = None
        self._phase: str | None = None
        self._idle = 0.0
        self._closed = threading.Event()

    def enter(self, phase: str | None) -> None:
        """Begin a phase: ``data``, ``step``, ``validation``, ``files``, ``others``; None: no limit.

        In ``others``, and in the steps of several processes, this one waits for the rest.
        """
        self._phase, self._idle = phase, 0.0

    def __enter__(self) -> StallTimer:
        if self.minutes:
            threading.Thread(target=self._watch, name="stall-timer", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def _watch(self) -> None:
        limit = self.minutes * 60
        tick = min(1.0, limit / 20)
        # Who waits for another process lets that one say first what it waits for itself.
        patience = {"others": limit + 5 * tick, "step": limit + 5 * tick * (self.world > 1)}
        while not self._closed.wait(tick):
            phase = self._phase
            self._idle += tick
            if phase is not None and self._idle >= patience.get(phase, limit):
                self._end(phase)

    def _end(self, phase: str) -> None:
        if self.report is None or self.report.is_first():
            several = self.world > 1
            reason = _REASONS["others" if several and phase == "step" else phase]
            of = f" of process {self.rank}" if several else ""
            span = f"for {self.minutes:g} minutes (train.stall_minutes)"
            write_sentence(f"{reason.format(of=of, span=span)} {_AGAIN}")
        if os.environ.get("MEDCLIP_DEBIAS_DEBUG"):
            faulthandler.dump_traceback()
        for child in multiprocessing.active_children():
            with suppress(ValueError, OSError):
                child.kill()
        if self.report is not None:
            self.report.wait_for_others()
        os._exit(EXIT_CODE)
