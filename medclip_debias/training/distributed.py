"""The processes of a run: how they meet, what they exchange, and how they end together.

Gradients are added up by one call after the backward pass, not by DistributedDataParallel: with
cached gradients the encoders run forward twice and backward once a micro-batch, and parameters
behind the gathering (scale, loss) take part outside of any wrapped forward pass. What DDP does
would have to be switched off for all of that but the last micro-batch.

A run that stands still for too long ends with a sentence that says what it waited for.
What a process waits for cannot be interrupted from inside (a collective call, a read of a disk
that does not answer), so a thread beside it says the sentence and ends the process. Libraries have
limits of their own, and none is a sentence: NCCL's watchdog aborts with pages of C++ calls,
``faulthandler.dump_traceback_later`` ends with a traceback and counts the time in which a job was
suspended, and neither knows what was waited for. gloo's and NCCL's are set to twice this one.
"""

from __future__ import annotations

import faulthandler
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from medclip_debias.errors import EXIT_CODE, UserError
from medclip_debias.losses.distributed import Ranks
from medclip_debias.models.device import best_device
from medclip_debias.training.signals import (
    BEFORE_THE_FIRST_STEP,
    StoppedBySignalError,
    StopSignals,
    stop_signals,
    write_sentence,
)

_MEETING = timedelta(hours=1)  # for all processes to come, where nothing else limits it
_FOR_EVER = timedelta(days=30)
_BUCKET = 2**26  # bytes of gradients that travel at a time
_ENDED = "medclip-debias/ended"
_PATIENCE = 5.0  # seconds for what another process has to say

_NO_GPU = (
    "Process {} of this machine has no GPU of its own; start at most one process per GPU, or set "
    "train.device=cpu."
)
_REASONS = {
    "data": "The data loader{of} has delivered no batch {span}; check that the disk of the "
    "prepared set answers.",
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


# ------------------------------------------------------------------------- which process this is


@dataclass(frozen=True)
class Place:
    """This process among all of a run, and on its machine.

    Started by torchrun (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``) or by Slurm's srun alone
    (``SLURM_PROCID``, ``SLURM_STEP_NUM_TASKS``, ``SLURM_LOCALID``); without either there is one.
    """

    rank: int = 0
    world: int = 1
    local: int = 0

    @classmethod
    def from_environment(cls) -> Place:
        """Read torchrun's variables, or else Slurm's."""
        env = os.environ
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        if "RANK" not in env and _integer("SLURM_STEP_NUM_TASKS", "1") > 1:
            names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
        elif "RANK" not in env or "WORLD_SIZE" not in env:
            return cls()
        rank, world, local = (_integer(name) for name in names)
        if not 0 <= rank < world:
            raise UserError(
                f"{names[0]} is {rank}, but {names[1]} is {world}; start the processes with "
                "torchrun or srun."
            )
        return cls(rank, world, local)


def _integer(name: str, default: str = "0") -> int:
    text = os.environ.get(name, default)
    try:
        return int(text)
    except ValueError:
        raise UserError(
            f"The environment variable {name} must be a whole number, but is '{text}'; start the "
            "processes with torchrun or srun."
        ) from None


@contextmanager
def one_error_a_machine(place: Place) -> Iterator[None]:
    """Let one process of each machine report an error that comes before the processes meet.

    A setting that is wrong is wrong in all of them, but a file may be missing on one machine only.
    An error inside `processes` is reported by one process of the whole run.
    """
    try:
        yield
    except UserError:
        if place.local:
            raise SystemExit(EXIT_CODE) from None
        raise


def device_of(name: str, place: Place) -> torch.device:
    """The device called ``name``: with several processes a machine, each its own GPU."""
    if place.world > 1 and name in ("auto", "cuda") and torch.cuda.is_available():
        count = torch.cuda.device_count()
        if count > 1 and place.local >= count:
            raise UserError(_NO_GPU.format(place.local))
        # Slurm may show each process its own GPU alone (--gpus-per-task, --gpu-bind).
        name = f"cuda:{place.local % count}"
    device = best_device(name)
    if device.index is not None:  # without a number it is the current one already
        torch.cuda.set_device(device)
    return device


def claim_gpu(device: torch.device, place: Place, store: dist.Store) -> None:
    """Refuse a GPU that another process of the run has taken: NCCL would, without a sentence."""
    if device.type == "cuda":
        gpu = torch.cuda.get_device_properties(device).uuid
        if store.add(f"medclip-debias/gpu/{gpu}", 1) > 1:
            raise UserError(_NO_GPU.format(place.local))


# ------------------------------------------------------------------------------ meeting and ending


class Ending:
    """Which process of a run says why it ends: the first that asks; the others end in silence.

    The store of process 0 counts who has asked. Alone, a process is the first.
    """

    def __init__(self, store: dist.Store | None = None, rank: int = 0, world: int = 1) -> None:
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
        self.ending.wait_for_others()
        os._exit(EXIT_CODE)


@dataclass(frozen=True)
class Processes:
    """This process among those of a run, what asks it to stop, and what ends it when it stalls."""

    ranks: Ranks
    device: torch.device
    signals: StopSignals
    stall: StallTimer

    def share_from_first(self, value: Any) -> Any:
        """What process 0 holds, in every process (small plain data)."""
        if self.ranks.world == 1:
            return value
        self.stall.enter("others")
        box = [value]
        dist.broadcast_object_list(box, src=0)
        self.stall.enter(None)
        return box[0]

    def stop_if_signalled(self, where: str) -> None:
        """Stop where a signal came to any process; all of them do."""
        self.stall.enter("others")
        count = total(float(self.signals.name is not None), self.ranks, self.device)
        self.stall.enter(None)
        if count:
            sentence = f"stopped by {self.signals.origin} {where}"
            raise StoppedBySignalError(sentence, self.signals.name)


@contextmanager
def processes(device_name: str, stall_minutes: float = 0) -> Iterator[Processes]:
    """Join the processes of the run for the duration of a ``with`` block.

    An error that ends one process ends all; one of them says it, the others exit without a message.
    """
    place = Place.from_environment()
    with stop_signals() as signals, StallTimer(stall_minutes, place.rank, place.world) as stall:
        if place.world == 1:
            yield Processes(Ranks(), device_of(device_name, place), signals, stall)
            return
        limit = timedelta(minutes=stall_minutes)
        store = _rendezvous(place, limit or _MEETING)
        stall.ending = Ending(store, place.rank, place.world)
        signals.at_once = False  # from here on the processes stop together
        with _ending_together(signals, stall):
            device = device_of(device_name, place)
            claim_gpu(device, place, store)
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=store,
                rank=place.rank,
                world_size=place.world,
                timeout=2 * limit or _FOR_EVER,  # longer than the timer, which says what is wrong
            )
            stall.enter(None)
            yield Processes(Ranks(place.rank, place.world), device, signals, stall)


@contextmanager
def _ending_together(signals: StopSignals, stall: StallTimer) -> Iterator[None]:
    """Leave the process group, in order or by an error that one process says."""
    failed = True
    try:
        stall.enter("others")
        yield
        stall.enter("others")
        dist.barrier()
        failed = False
    except StoppedBySignalError:  # which ends all processes
        stall.enter("others")
        with suppress(RuntimeError):
            dist.barrier()
        failed = False
        raise
    except (UserError, RuntimeError) as error:
        is_lost = not isinstance(error, UserError)
        if is_lost and not _is_lost_connection(error):
            raise
        if is_lost and signals.name and not signals.begun:
            sentence = f"stopped by {signals.origin} {BEFORE_THE_FIRST_STEP}"
            raise StoppedBySignalError(sentence, signals.name) from None
        if not stall.ending.is_first():
            raise SystemExit(EXIT_CODE) from None
        if not is_lost:
            raise
        raise UserError(
            "Another process of the run ended unexpectedly (killed, or its machine was lost); "
            "start the run again, it resumes from its last checkpoint."
        ) from error
    finally:
        stall.enter(None)
        if dist.is_initialized():
            dist.destroy_process_group()
        if failed:
            stall.ending.wait_for_others()


def _rendezvous(place: Place, patience: timedelta) -> dist.Store:
    """The store through which the processes of the run know each other."""
    port = 20000 + _integer("SLURM_JOB_ID") % 20000
    os.environ.setdefault("MASTER_ADDR", _first_host(os.environ.get("SLURM_STEP_NODELIST", "")))
    os.environ.setdefault("MASTER_PORT", str(port))
    meeting = dist.rendezvous("env://", place.rank, place.world, timeout=patience)
    try:  # in a thread, so that this one hears signals meanwhile
        store: dist.Store = ThreadPoolExecutor(1).submit(next, meeting).result()[0]
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise UserError(
            f"The {place.world} processes of the run cannot meet at {address} "
            f"({type(error).__name__}); check that all were started, and MASTER_ADDR and "
            "MASTER_PORT."
        ) from error
    return store


def _first_host(nodes: str) -> str:
    """First name of a Slurm node list such as ``gpu[07-09,12],login1``.

    >>> _first_host("gpu[07-09,12],login1"), _first_host("a1,a2"), _first_host("")
    ('gpu07', 'a1', '127.0.0.1')
    >>> _first_host("rack[2-3]n[04,9]-ib,b1")
    'rack2n04-ib'
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0] if first else "") or "127.0.0.1"


def _is_lost_connection(error: Exception) -> bool:
    words = str(error).lower()
    signs = ("connection", "gloo", "nccl", "timed out", "socket", "peer", "broken pipe")
    return isinstance(error, dist.DistError) or any(sign in words for sign in signs)


# ------------------------------------------------------------------------------- what they exchange


def total(value: float, ranks: Ranks, device: torch.device) -> float:
    """Sum of a number over the processes."""
    if ranks.world == 1:
        return value
    box = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(box)
    return float(box)


@torch.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter], ranks: Ranks, flag: bool = False) -> bool:
    """Replace every gradient by its mean over the processes.

    A parameter without a gradient in some processes counts there as zero; without one anywhere
    it keeps none. ``flag`` travels along: the result is whether it was set in any process.
    """
    if ranks.world == 1:
        return flag
    known = [float(p.grad is not None) for p in parameters]
    marks = torch.tensor([*known, float(flag)], device=parameters[0].device)
    dist.all_reduce(marks)
    counts = marks.tolist()
    used = [p for p, count in zip(parameters, counts, strict=False) if count]
    for bucket in _buckets(used):
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.reshape(-1) for part in parts])
        dist.all_reduce(flat)
        flat /= ranks.world
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = torch.empty_like(p).copy_(part.view(p.shape))
    return bool(counts[-1])


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        bucket.append(parameter)
        size += parameter.numel() * parameter.element_size()
        if size >= _BUCKET:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket
