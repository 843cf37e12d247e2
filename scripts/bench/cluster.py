"""What a Dask cluster costs beside the work: pieces a second, and the scheduler's memory.

A scheduler and workers are started on loopback, and pieces that do nothing are sent through
`medclip_debias.data.executor.map_pieces`, each with as many bytes as 64 reports. docs/clusters.md
reckons from the figures.
"""

from __future__ import annotations

import time

import psutil
import typer
from distributed.deploy.subprocess import SubprocessCluster

from medclip_debias.data.executor import map_pieces

MIB = 2**20


def size(payload: bytes) -> int:
    return len(payload)


def main(pieces: int = 10_000, bytes_each: int = 64 * 1024, workers: int = 2) -> None:
    """Print one line: pieces, seconds, pieces a second, memory of the scheduler."""
    with SubprocessCluster(
        worker_class="distributed.Worker",
        n_workers=workers,
        threads_per_worker=1,
        scheduler_kwargs={"dashboard": False},
    ) as cluster:
        scheduler = psutil.Process(cluster.scheduler.process.pid)
        address = cluster.scheduler_address
        list(map_pieces(size, [b"x" * bytes_each] * 100, cluster=address))  # imports
        before, began = scheduler.memory_info().rss, time.perf_counter()
        work = (b"x" * bytes_each for _ in range(pieces))
        count = sum(1 for _ in map_pieces(size, work, cluster=address))
        seconds = time.perf_counter() - began
        after = scheduler.memory_info().rss
    print(
        f"{count} pieces of {bytes_each} bytes, {workers} workers: {seconds:.1f} s,"
        f" {count / seconds:.0f} a second; scheduler {before / MIB:.0f} MiB before,"
        f" {after / MIB:.0f} MiB after"
    )


if __name__ == "__main__":
    typer.run(main)
