"""A run that stands still for too long ends with a sentence that says what it waited for.

What a process waits for cannot be interrupted from inside (a collective call, a read of a disk
that does not answer), so a thread beside it says the sentence and ends the process.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from medclip_debias.errors import EXIT_CODE
from medclip_debias.training.signals import tell

if TYPE_CHECKING:
    from medclip_debias.training.distributed import Report

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


class StallTimer:
    """Ends this process when it stays in one phase for too long.

    Time in which the whole process was stopped (a suspended job) does not count.

    Args:
        minutes: how long a phase may last; 0 for ever.
        rank: of this process.
        world: number of processes of the run.

    Attributes:
        report: by which one process of several says the sentence; set once they have met.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            tell(f"{reason.format(of=of, span=span)} {_AGAIN}")
        if os.environ.get("MEDCLIP_DEBIAS_DEBUG"):
            faulthandler.dump_traceback()
        for child in multiprocessing.active_children():
            with suppress(ValueError, OSError):
                child.kill()
        if self.report is not None:
            self.report.wait_for_others()
        os._exit(EXIT_CODE)
