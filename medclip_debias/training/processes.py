"""Processes of a run: who they are, what they add up, and how they end together.

Started by torchrun (``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``) or by Slurm's srun alone
(``SLURM_PROCID``, ``SLURM_STEP_NUM_TASKS``, ``SLURM_LOCALID``); without either there is one.

Gradients are added up by one call after the backward pass, not by DistributedDataParallel: with
cached gradients the encoders run forward twice and backward once a micro-batch, and parameters
behind the gathering (scale, loss) take part outside of any wrapped forward pass. What DDP does
would have to be switched off for all of that but the last micro-batch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from medclip_debias.errors import EXIT_CODE, UserError
from medclip_debias.losses.distributed import Ranks
from medclip_debias.models.dual_encoder import best_device

# Others wait as long while one process validates or writes.
_TIMEOUT = timedelta(hours=1)
_BUCKET = 2**26  # bytes of gradients that travel at a time


@dataclass(frozen=True)
class Place:
    """This process among all of a run, and on its machine."""

    rank: int = 0
    world: int = 1
    local: int = 0

    @classmethod
    def from_environment(cls) -> Place:
        """Read torchrun's variables, or else Slurm's.

        Raises:
            UserError: they contradict each other.
        """
        env = os.environ
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        if "RANK" not in env and int(env.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
            names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
        elif "RANK" not in env or "WORLD_SIZE" not in env:
            return cls()
        try:
            rank, world, local = (int(env.get(name, "0")) for name in names)
        except ValueError:
            raise UserError(
                f"The environment variables {', '.join(names)} must be numbers; start the "
                "processes with torchrun or srun."
            ) from None
        if not 0 <= rank < world:
            raise UserError(
                f"{names[0]} is {rank}, but {names[1]} is {world}; start the processes with "
                "torchrun or srun."
            )
        return cls(rank, world, local)


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
def together(place: Place, device_name: str) -> Iterator[tuple[Ranks, torch.device]]:
    """Join the processes of the run for the duration of a ``with`` block.

    An error that ends one process ends all; one of them says it, the others exit in silence.

    Raises:
        UserError: the processes cannot find each other, or another one ended.
    """
    device = device_of(device_name, place)
    if place.world == 1:
        yield Ranks(), device
        return
    store = _meet(place, "nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(place.rank, place.world), device
        dist.barrier()
    except UserError:
        if store.add("told", 1) > 1:
            raise SystemExit(EXIT_CODE) from None
        raise
    except (RuntimeError, dist.DistError) as error:
        if not _lost(error):
            raise
        if _told(store):
            raise SystemExit(EXIT_CODE) from None
        raise UserError(
            "Another process of the run ended without a word (killed, or its machine was lost); "
            "start the run again, it goes on from its last checkpoint."
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _meet(place: Place, backend: str) -> Any:
    os.environ.setdefault("MASTER_ADDR", _first_host(os.environ.get("SLURM_STEP_NODELIST", "")))
    port = 20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000
    os.environ.setdefault("MASTER_PORT", str(port))
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    try:
        found = dist.rendezvous("env://", place.rank, place.world, timeout=_TIMEOUT)
        store = next(iter(found))[0]
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.world, timeout=_TIMEOUT
        )
    except (RuntimeError, ValueError, dist.DistError) as error:
        raise UserError(
            f"The {place.world} processes of the run cannot meet at {address} "
            f"({type(error).__name__}); check MASTER_ADDR and MASTER_PORT."
        ) from error
    return dist.PrefixStore("medclip-debias", store)


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


def _told(store: Any) -> bool:
    """Whether another process has said why it ended, or does so within seconds."""
    try:
        store.wait(["told"], timedelta(seconds=5))
    except (RuntimeError, dist.DistError):
        return False
    return True


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
