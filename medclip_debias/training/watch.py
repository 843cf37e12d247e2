"""A run that stands still for too long ends with a sentence that says what it waits for.

What a process waits for cannot be interrupted from inside (a collective call, a read of a disk
that does not answer), so a thread beside it says the sentence and ends the process.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING

from medclip_debias.errors import EXIT_CODE
from medclip_debias.training.place import Place
from medclip_debias.training.signals import tell

if TYPE_CHECKING:
    from torch.distributed import Store

_AWAY = "-"  # the phase of a process that may take as long as it likes
_AGAIN = (
    "Then run the same command again: it resumes from its last checkpoint. If it only needs more "
    "time, raise train.stall_minutes."
)


class Watch:
    """Ends this process when it does not get from one phase to the next.

    Time in which the whole process was stopped (a suspended job) does not count.

    Args:
        minutes: how long a phase may last; 0 for ever.
        place: this process among those of the run.

    Attributes:
        limit: in seconds.
        phase: the one that this process is in.
        ending: all is said, and the process is about to end.
    """

    def __init__(self, minutes: float, place: Place) -> None:
        self.limit = minutes * 60
        self.place = place
        self.phase = _AWAY
        self.ending = False
        self._count = 0
        self._over = threading.Event()
        self._talk: _Talk | None = None

    def enter(self, phase: str | None) -> None:
        """Begin a phase: ``data``, ``step``, ``validation``, ``files``, ``others``; None: away."""
        self.phase = phase or _AWAY
        self._count += 1

    def join(self, store: Store) -> None:
        """Know the other processes by the store that all share."""
        if self.limit:
            self._talk = _Talk(self, store)

    def __enter__(self) -> Watch:
        if self.limit:
            threading.Thread(target=self._look, name="stall-watch", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()

    @property
    def tick(self) -> float:
        """Seconds between two looks."""
        return min(1.0, self.limit / 20)

    def _look(self) -> None:
        seen, idle = -1, 0.0
        while not self._over.wait(self.tick):
            if self._talk and self._talk.over:
                self._end([])
            if seen != self._count or self.phase == _AWAY:
                seen, idle = self._count, 0.0
                continue
            idle += self.tick
            if idle >= self.limit:
                self._stalled(seen)
                idle = 0.0

    def _stalled(self, seen: int) -> None:
        """Say who is to blame, once in the whole run, and end; return where nobody is."""
        talk = self._talk
        if talk is None:
            tell(self._sentence({}, []))
            self._end([])
            return
        phases = talk.ask()
        if self._over.is_set() or self._count != seen or talk.over:
            return
        if phases is None:  # whoever holds the store is stopped
            if self.place.rank == 1:
                tell(self._sentence({}, [0]))
            self._end([0])
            return
        silent = [rank for rank, phase in phases.items() if phase is None]
        if not silent and _AWAY in phases.values():
            return
        known = {rank: phase for rank, phase in phases.items() if phase}
        if talk.speaks():
            tell(self._sentence(known | {self.place.rank: self.phase}, silent))
        self._end(silent)

    def _sentence(self, phases: dict[int, str], silent: list[int]) -> str:
        span = f"for {self.limit / 60:g} minutes (train.stall_minutes)"
        if silent:
            names = ", ".join(str(rank) for rank in silent)
            return (
                f"Process {names} of the run has not answered {span}: it was stopped, or its "
                f"machine or the network was lost. All processes end; mend that. {_AGAIN}"
            )
        phases = phases or {self.place.rank: self.phase}
        for phase, sentence in (
            ("data", "The data loader{of} has brought no batch {span}; see whether the disk of the "
             "prepared set answers, or set train.workers=0."),
            ("validation", "The validation{of} has not ended {span}; lower train.validate_images."),
            ("files", "Writing to the run's folder{of} has not ended {span}; see whether its disk "
             "answers."),
        ):  # fmt: skip
            found = sorted(rank for rank, now in phases.items() if now == phase)
            if found:
                of = f" of process {found[0]}" if self.place.world > 1 else ""
                return f"{sentence.format(of=of, span=span)} {_AGAIN}"
        what = (
            "The processes of the run have waited for each other"
            if self.place.world > 1
            else "A step has not ended"
        )
        return f"{what} {span}; look at the GPUs and the network. {_AGAIN}"

    def _end(self, silent: list[int]) -> None:
        """End this process and its workers; those silent ones on this machine too."""
        import multiprocessing

        if self._over.is_set():
            return
        self.ending = True
        for child in multiprocessing.active_children():
            with suppress(ValueError, OSError):
                child.kill()
        if self._talk:
            self._talk.end(silent)
        os._exit(EXIT_CODE)


class _Talk:
    """What the processes tell each other through the store, in a thread that may get stuck."""

    def __init__(self, watch: Watch, store: Store) -> None:
        import psutil
        import torch.distributed as dist

        self.watch = watch
        self.rank, self.world = watch.place.rank, watch.place.world
        self.every = max(0.05, min(2.0, watch.limit / 10))
        # Seconds for what another process has to say, on a busy machine too.
        self.patience = max(1.0, min(8.0, watch.limit))
        self.over = False  # another process has said what stalled
        self._round = 0
        self._asked = threading.Event()
        self._answer: dict[int, str | None] | None = None
        self._answered = threading.Event()
        # A connection of its own: the first one may be waiting for something.
        mine = store.clone()
        mine.set_timeout(timedelta(seconds=60))
        self._store = dist.PrefixStore("medclip-debias-watch", mine)
        self._said = dist.PrefixStore("medclip-debias", mine)
        me = psutil.Process()
        self._store.set(f"who/{self.rank}", f"{me.pid} {me.create_time()} {socket.gethostname()}")
        self._store.set(self._key(self.rank), f"0 {_AWAY}")
        self._who: dict[int, str] = {}
        threading.Thread(target=self._run, name="stall-talk", daemon=True).start()

    def _key(self, rank: int) -> str:
        return f"phase/{rank}"

    def _run(self) -> None:
        with suppress(RuntimeError, ValueError):  # the store is gone, and with it the run
            while not self.watch._over.wait(self.every):
                self._round += 1
                self._store.set(self._key(self.rank), f"{self._round} {self.watch.phase}")
                if self._store.check(["stalled"]):
                    self.over = True
                if not self._who:
                    self._who = self._everybody()
                if self._asked.is_set():
                    self._answer = self._look()
                    self._asked.clear()
                    self._answered.set()

    def _everybody(self) -> dict[int, str]:
        keys = [f"who/{rank}" for rank in range(self.world)]
        if not self._store.check(keys):
            return {}
        return {rank: self._store.get(key).decode() for rank, key in enumerate(keys)}

    def _look(self) -> dict[int, str | None]:
        """Phase of each other process; None of one that does not answer."""
        others = [rank for rank in range(self.world) if rank != self.rank]
        before = {rank: self._read(rank) for rank in others}
        waiting = set(others)
        end = time.monotonic() + self.patience
        while waiting and time.monotonic() < end:
            time.sleep(min(1.0, self.every))
            self._store.set(self._key(self.rank), f"{self._next()} {self.watch.phase}")
            waiting = {rank for rank in waiting if self._read(rank) == before[rank]}
        return {
            rank: None if rank in waiting else self._read(rank).partition(" ")[2]
            for rank in others
        }  # fmt: skip

    def _next(self) -> int:
        self._round += 1
        return self._round

    def _read(self, rank: int) -> str:
        key = self._key(rank)
        return self._store.get(key).decode() if self._store.check([key]) else f"0 {_AWAY}"

    def ask(self) -> dict[int, str | None] | None:
        """`_look`; None where the store does not answer either."""
        self._answered.clear()
        self._asked.set()
        if not self._answered.wait(self.patience + 2 * self.every + 2):
            return None
        return self._answer

    def speaks(self) -> bool:
        """Whether this process is the first to say what stalled."""
        try:
            first = self._store.add("stalled", 1) == 1
            self._said.add("reported", 1)  # those whose connection breaks now need not wonder why
        except RuntimeError:
            return True
        return bool(first)

    def end(self, silent: list[int]) -> None:
        """Kill the silent processes of this machine; keep the store until all others know."""
        if 0 not in silent:
            awake = self.world - len(silent)
            helper = threading.Thread(target=self._leave, args=(awake,), daemon=True)
            helper.start()
            helper.join(self.patience + 1)
        for rank in silent:
            _kill(self._who.get(rank, ""))

    def _leave(self, awake: int) -> None:
        until = time.monotonic() + self.patience
        with suppress(RuntimeError):
            self._store.add("left", 1)
            if self.rank == 0:
                while self._store.add("left", 0) < awake and time.monotonic() < until:
                    time.sleep(0.05)


def _kill(who: str) -> None:
    """Kill a process if it is one of this machine, and still the one that it was."""
    import psutil

    number, _, rest = who.partition(" ")
    began, _, host = rest.partition(" ")
    if not number or host != socket.gethostname():
        return
    with suppress(psutil.Error, ValueError):
        process = psutil.Process(int(number))
        if abs(process.create_time() - float(began)) < 1:
            process.kill()
