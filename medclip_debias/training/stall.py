"""A run that stands still for too long ends with a sentence that says what it waited for.

What a process waits for cannot be interrupted from inside (a collective call, a read of a disk
that does not answer), so a thread beside it says the sentence and ends the process. Libraries have
limits of their own, and none is a sentence: NCCL's watchdog aborts with pages of C++ calls,
``faulthandler.dump_traceback_later`` ends with a traceback and counts the time in which a job was
suspended, and neither knows what was waited for. gloo's and NCCL's are set to twice this one.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from medclip_debias.errors import EXIT_CODE
from medclip_debias.training.signals import write_sentence

if TYPE_CHECKING:
    from torch.distributed import Store

_ENDED = "medclip-debias/ended"
_PATIENCE = 5.0  # seconds for what another process has to say

_REASONS = {
    "data": "The data loader{of} has delivered no batch {span}; check that the disk of the "
    "prepared set answers, or set train.workers=0.",
    "validation": "The validation{of} has not ended {span}; lower train.validate_images.",
    "files": "Writing to the run's folder{of} has not ended {span}; check that its disk answers.",
    "step": "A step has not ended {span}; check the GPUs.",
    "others": "Another process of the run has not answered {span}: it was stopped, or its machine "
    "or the network was lost. All processes end; fix that.",
}
_AGAIN = (
    "Then run the same command again: it resumes from its last checkpoint. If it only needs more "
    "time, raise train.stall_minutes."
)


class Ending:
    """Which process of a run says why it ends: the first that asks; the others end in silence.

    The store of process 0 counts who has asked. Alone, a process is the first.
    """

    def __init__(self, store: Store | None = None, rank: int = 0, world: int = 1) -> None:
        # A connection of its own: the other one may be waiting for something.
        self._store = None if store is None else store.clone()
        self.rank, self.world = rank, world

    def is_first(self) -> bool:
        """Whether no other process has asked; True where the store is lost or does not answer."""
        counts = [1]

        def ask() -> None:
            if self._store is not None:
                with suppress(RuntimeError):
                    counts.append(self._store.add(_ENDED, 1))

        thread = threading.Thread(target=ask, daemon=True)  # no store's call has a time limit
        thread.start()
        thread.join(_PATIENCE)
        return counts[-1] == 1

    def wait_for_others(self) -> None:
        """Keep the store, if it is here, until the other processes have asked."""
        until = time.monotonic() + _PATIENCE
        while self.rank == 0 and self._store is not None and time.monotonic() < until:
            if self._store.add(_ENDED, 0) >= self.world:
                return
            time.sleep(0.05)


class StallTimer:
    """Ends this process when it stays in one phase for more than ``minutes`` (0: never).

    Time in which the whole process was stopped (a suspended job) does not count.
    """

    def __init__(self, minutes: float, rank: int = 0, world: int = 1) -> None:
        self.minutes, self.rank, self.world = minutes, rank, world
        self.ending = Ending()
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
        waiting = ("others", "step") if self.world > 1 else ("others",)
        while not self._closed.wait(tick):
            self._idle += tick
            phase = self._phase
            # Who waits for another process lets that one say first what it waits for itself.
            if phase and self._idle >= limit + 5 * tick * (phase in waiting):
                self._end("others" if phase in waiting else phase)

    def _end(self, phase: str) -> None:
        if self.ending.is_first():
            of = f" of process {self.rank}" if self.world > 1 else ""
            span = f"for {self.minutes:g} minutes (train.stall_minutes)"
            write_sentence(f"{_REASONS[phase].format(of=of, span=span)} {_AGAIN}")
        if os.environ.get("MEDCLIP_DEBIAS_DEBUG"):
            faulthandler.dump_traceback()
        for child in multiprocessing.active_children():
            with suppress(ValueError, OSError):
                child.kill()
        self.ending.wait_for_others()
        os._exit(EXIT_CODE)
