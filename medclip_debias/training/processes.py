"""Processes of a run: how they meet, what they add up, and how they end together.

Gradients are added up by one call after the backward pass, not by DistributedDataParallel: with
cached gradients the encoders run forward twice and backward once a micro-batch, and parameters
behind the gathering (scale, loss) take part outside of any wrapped forward pass. What DDP does
would have to be switched off for all of that but the last micro-batch.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from medclip_debias.errors import EXIT_CODE, UserError
from medclip_debias.losses.distributed import Ranks
from medclip_debias.models.device import best_device
from medclip_debias.training.place import Place, whole_number
from medclip_debias.training.signals import (
    StoppedBySignalError,
    before_the_first_step,
    listening,
)
from medclip_debias.training.watch import Watch

_MEETING = timedelta(hours=1)  # for all processes to come, where nothing else limits it
_FOR_EVER = timedelta(days=30)
_PATIENCE = timedelta(seconds=5)  # for what another process has to say
_BUCKET = 2**26  # bytes of gradients that travel at a time


def device_of(name: str, place: Place) -> torch.device:
    """The device called ``name``: with several processes a machine, each its own GPU.

    Raises:
        UserError: there is no such device here.
    """
    if place.world > 1 and name in ("auto", "cuda") and torch.cuda.is_available():
        count = torch.cuda.device_count()
        if place.local >= count:
            raise UserError(
                f"Process {place.local} of this machine has no GPU, for there are {count}; start "
                "at most one process a GPU."
            )
        name = f"cuda:{place.local}"
    device = best_device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


@contextmanager
def together(
    place: Place, device_name: str, watch: Watch | None = None
) -> Iterator[tuple[Ranks, torch.device]]:
    """Join the processes of the run for the duration of a ``with`` block.

    An error that ends one process ends all; one of them says it, the others exit without a message.

    Args:
        place: this process.
        device_name: where it computes.
        watch: ends the run where a process stands still; without one they wait for ever.

    Raises:
        UserError: the processes cannot find each other, or another one ended.
        StoppedBySignalError: a signal came before the first step, and others have ended by it.
    """
    if place.world == 1:
        yield Ranks(), device_of(device_name, place)
        return
    limit = timedelta(seconds=watch.limit) if watch and watch.limit else None
    store = _meet(place, limit or _MEETING)
    signals = listening()
    if signals:  # from here on the processes stop together
        signals.at_once = False
    said = dist.PrefixStore("medclip-debias", store)
    failed = False
    try:
        if watch:
            watch.join(store)
            watch.enter("others")
        device = device_of(device_name, place)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=place.rank,
            world_size=place.world,
            # Longer than the watch waits, which says what is wrong.
            timeout=2 * limit + 2 * _PATIENCE if limit else _FOR_EVER,
        )
        yield Ranks(place.rank, place.world), device
        if watch:
            watch.enter("others")
        dist.barrier()
    except UserError:
        failed = True
        if not _speaks(said):
            raise SystemExit(EXIT_CODE) from None
        raise
    except (RuntimeError, dist.DistError) as error:
        if not _lost(error):
            raise
        failed = True
        if signals and signals.name and not signals.begun:
            raise StoppedBySignalError(before_the_first_step(signals.name), signals.name) from None
        if (watch and watch.ending) or _reported(said):
            raise SystemExit(EXIT_CODE) from None
        raise UserError(
            "Another process of the run ended without a word (killed, or its machine was lost); "
            "start the run again, it resumes from its last checkpoint."
        ) from error
    finally:
        if watch:
            watch.enter(None)
        if dist.is_initialized():
            dist.destroy_process_group()
        if failed:
            _stay(said, place)


def _meet(place: Place, patience: timedelta) -> dist.Store:
    """The store through which the processes of the run know each other."""
    port = 20000 + whole_number("SLURM_JOB_ID") % 20000
    os.environ.setdefault("MASTER_ADDR", _first_host(os.environ.get("SLURM_STEP_NODELIST", "")))
    os.environ.setdefault("MASTER_PORT", str(port))
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    came: list[dist.Store] = []
    failed: list[Exception] = []

    def wait() -> None:
        try:
            found = dist.rendezvous("env://", place.rank, place.world, timeout=patience)
            came.append(next(iter(found))[0])
        except (RuntimeError, ValueError, dist.DistError) as error:
            failed.append(error)

    # In a thread, so that this one hears signals meanwhile.
    thread = threading.Thread(target=wait, name="rendezvous", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if failed:
        raise UserError(
            f"The {place.world} processes of the run cannot meet at {address} "
            f"({type(failed[0]).__name__}); check that all were started, and MASTER_ADDR and "
            "MASTER_PORT."
        ) from failed[0]
    return came[0]


def _first_host(nodes: str) -> str:
    """First name of a Slurm node list such as ``gpu[07-09,12],login1``.

    >>> _first_host("gpu[07-09,12],login1"), _first_host("a1,a2"), _first_host("")
    ('gpu07', 'a1', '127.0.0.1')
    """
    found = re.match(r"([^,\[]+)(?:\[(\d+))?", nodes)
    return found[1] + (found[2] or "") if found else "127.0.0.1"


def _lost(error: Exception) -> bool:
    words = str(error).lower()
    signs = ("connection", "gloo", "nccl", "timed out", "socket", "peer", "broken pipe")
    return isinstance(error, dist.DistError) or any(sign in words for sign in signs)


def _speaks(said: dist.Store) -> bool:
    """Whether this process is the one that says what went wrong: the first that comes here."""
    try:
        return bool(said.add("reported", 1) == 1)
    except (RuntimeError, dist.DistError):
        # The store went with the process that held it. Once too often is better than never.
        return True


def _reported(said: dist.Store) -> bool:
    """Whether another process has reported why it ended, or does so within seconds."""
    try:
        said.wait(["reported"], _PATIENCE)
        said.add("reported", 1)
    except (RuntimeError, dist.DistError):
        return False
    return True


def _stay(said: dist.Store, place: Place) -> None:
    """Keep the store, which process 0 may hold, until the others have seen that all is said."""
    if place.rank != 0:
        return
    until = time.monotonic() + _PATIENCE.total_seconds()
    with suppress(RuntimeError, dist.DistError):
        while said.add("reported", 0) < place.world and time.monotonic() < until:
            time.sleep(0.05)


def share_from_first(value: Any, ranks: Ranks) -> Any:
    """What process 0 holds, in every process (small plain data)."""
    if ranks.world == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


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
    it keeps none.

    Args:
        parameters: the same in every process, in the same order.
        ranks: who takes part.
        flag: travels along.

    Returns:
        Whether ``flag`` was set in any process.
    """
    if ranks.world == 1:
        return flag
    device = parameters[0].device
    known = [float(p.grad is not None) for p in parameters]
    marks = torch.tensor([*known, float(flag)], device=device)
    dist.all_reduce(marks)
    counts = marks.tolist()
    used = [p for p, count in zip(parameters, counts, strict=False) if count]
    for bucket in _buckets(used):
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([part.reshape(-1) for part in parts])
        dist.all_reduce(flat)
        flat /= ranks.world
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad = _like(part, p)
    return bool(counts[-1])


def _like(part: Tensor, parameter: nn.Parameter) -> Tensor:
    gradient = torch.empty_like(parameter)
    return gradient.copy_(part.view(parameter.shape))


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
