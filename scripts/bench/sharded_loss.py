"""Time and memory of the loss in one of W processes: of the whole batch, and of its own share.

    python scripts/bench/sharded_loss.py share --sizes 1024 2048 4096 --worlds 2 4 8
    python scripts/bench/sharded_loss.py gloo --sizes 1024 --worlds 2 4

``share`` computes what one process of W computes once its rows and columns of similarities are
there: in a forked process of its own each, one thread, forward and backward, without any network.
It also prints the bytes that a process receives and the seconds they take at ``--bandwidth`` GB/s,
which is a prediction. ``gloo`` runs W processes on this machine, from embeddings to their
gradients, with everything that travels between them.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import resident
from torch import Tensor

from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.distributed import Ranks, gather_batch
from medclip_debias.losses.objective import Objective, build_objective, loss_settings
from medclip_debias.losses.sharded import ShardedBatch, shard_batch
from medclip_debias.models.similarity import pooled_cosine

MIB, DIM = 2**20, 128


class Alone(ShardedBatch):
    """A share without other processes: sums over them are its own."""

    def total(self, value: Tensor) -> Tensor:
        """As it is."""
        return value


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("share", "gloo"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--worlds", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--loss", default="clip", help="kind of objective")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bandwidth", type=float, default=100.0, help="GB/s into one process")
    given = parser.parse_args()
    torch.set_num_threads(1)
    objective = build_objective(loss_settings({"kind": given.loss}, "--loss"))
    print(f"one thread a process, {given.loss}, float32, medians of {given.rounds}\n")
    (share if given.what == "share" else gloo)(given, objective)


def share(given: argparse.Namespace, objective: Objective) -> None:
    """One process of W, simulated: the whole batch's loss against its own share."""
    print("| B | W | peak, whole | peak, share | s, whole | s, share | received, whole | share |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for size in given.sizes:
        whole = [in_fork(partial(once, objective, size, 1)) for _ in range(given.rounds)]
        for world in given.worlds:
            parts = [in_fork(partial(once, objective, size, world)) for _ in range(given.rounds)]
            cells = [f"{middle(each, 'bytes') / MIB:.0f} MiB" for each in (whole, parts)]
            cells += [f"{middle(each, 'seconds'):.3f}" for each in (whole, parts)]
            for count in received(size, world):
                seconds = count / given.bandwidth / 1e9
                cells.append(f"{count / MIB:.1f} MiB, {seconds * 1e3:.2f} ms")
            print(f"| {size} | {world} | {' | '.join(cells)} |", flush=True)


def received(size: int, world: int) -> tuple[float, float]:
    """Bytes of similarities and their gradients that reach a process in a step.

    Whole: the others' rows, then a sum of gradients of the whole matrix, which as a ring takes
    twice the others' share. Shared: the others' part of its columns, and of its rows' gradients.
    """
    matrix, others = 4.0 * size**2, (world - 1) / world
    return 3 * matrix * others, 2 * matrix / world * others


def once(objective: Objective, size: int, world: int) -> dict[str, float]:
    """Forward and backward of the loss, given the similarities of a process of ``world``."""
    torch.manual_seed(0)
    mine, scale = size // world, torch.tensor(14.0)
    rows = (torch.rand(mine, size) * 2 - 1).requires_grad_()
    columns = (torch.rand(size, mine) * 2 - 1).requires_grad_() if world > 1 else None
    before, began = resident("VmRSS"), time.perf_counter()
    if columns is None:
        objective(ContrastiveBatch(rows, scale)).loss.backward()
    else:
        counts = [mine] * world
        batch = Alone(
            rows,
            scale,
            image_of_sentence=torch.arange(size),
            ranks=Ranks(0, world),
            images=counts,
            texts=counts,
        )
        batch.__dict__["columns"] = columns  # which the other processes would have sent
        batch.loss_of(objective(batch)).backward()
    seconds = time.perf_counter() - began
    given = 2 * rows.numel() * rows.element_size() if world > 1 else rows.numel() * 4
    return {"bytes": resident("VmHWM") - before + given, "seconds": seconds}


def gloo(given: argparse.Namespace, objective: Objective) -> None:
    """W processes on this machine, from embeddings to gradients."""
    print("| B | W | s, whole | s, share |\n| ---: | ---: | ---: | ---: |")
    for size in given.sizes:
        for world in given.worlds:
            found = in_processes(world, partial(step, objective, size, given.rounds))
            times = [statistics.median(found[way]) for way in ("whole", "share")]
            print(f"| {size} | {world} | {times[0]:.3f} | {times[1]:.3f} |", flush=True)


def step(objective: Objective, size: int, rounds: int, ranks: Ranks) -> dict[str, list[float]]:
    """Seconds of each round of both ways, in turn."""
    torch.manual_seed(ranks.rank)
    count = size // ranks.world
    found: dict[str, list[float]] = {"whole": [], "share": []}
    for _ in range(rounds + 1):
        for way, seconds in found.items():
            regions, sentences = (
                F.normalize(torch.randn(*shape), dim=-1).requires_grad_()
                for shape in ((count, 1, DIM), (count, DIM))
            )
            gather: Callable[..., ContrastiveBatch] = (
                shard_batch if way == "share" else gather_batch
            )
            dist.barrier()
            began = time.perf_counter()
            owners = torch.arange(count)
            scale = torch.tensor(14.0)
            batch = gather(
                regions, sentences, pooled_cosine, scale, ranks, image_of_sentence=owners
            )
            output = objective(batch)
            loss = batch.loss_of(output) if isinstance(batch, ShardedBatch) else output.loss
            loss.backward()
            dist.barrier()
            seconds.append(time.perf_counter() - began)
    return {way: seconds[1:] for way, seconds in found.items()}  # the first one connects


def in_fork(work: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What ``work`` returns in a child of this process, whose memory is then its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        content = pipe.read()
    os.waitpid(child, 0)
    found: dict[str, float] = json.loads(content)
    return found


def in_processes(world: int, work: Callable[[Ranks], dict[str, Any]]) -> dict[str, Any]:
    """What ``work`` returns in the first of ``world`` processes that are joined by gloo."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    reading, writing = os.pipe()
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
            found = work(Ranks(rank, world))
            if rank == 0:
                os.write(writing, json.dumps(found).encode())
            dist.barrier()
            os._exit(0)
        children.append(child)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        content = pipe.read()
    for child in children:
        os.waitpid(child, 0)
    result: dict[str, Any] = json.loads(content)
    return result


def middle(found: list[dict[str, float]], name: str) -> float:
    """Median of one number."""
    return statistics.median(each[name] for each in found)


if __name__ == "__main__":
    main()
