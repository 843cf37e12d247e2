"""What a Dask cluster costs beside the work: pieces a second, and the scheduler's memory.

A scheduler and workers are started on loopback, and pieces that do nothing are sent through
`medclip_debias.data.executor.map_pieces`, each with as many bytes as 64 reports. docs/clusters.md
reckons from the figures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import typer

from medclip_debias.data.executor import map_pieces

MIB = 2**20


def size(payload: bytes) -> int:
    return len(payload)


def start(kind: str, file: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dask", kind, *words, "--scheduler-file", str(file)]
    return subprocess.Popen(
        [*command, "--no-dashboard"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def main(pieces: int = 10_000, bytes_each: int = 64 * 1024, workers: int = 2) -> None:
    """Print one line: pieces, seconds, pieces a second, memory of the scheduler."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scheduler.json"
        processes = [start("scheduler", file, "--host", "127.0.0.1", "--port", "0")]
        try:
            deadline = time.monotonic() + 60
            while not (file.exists() and file.read_text().strip().endswith("}")):
                if time.monotonic() > deadline:
                    raise SystemExit("dask's scheduler did not start within a minute")
                time.sleep(0.1)
            address = json.loads(file.read_text())["address"]
            words = ("--nthreads", "1", "--no-nanny", "--host", "127.0.0.1")
            processes += [start("worker", file, *words) for _ in range(workers)]
            scheduler = psutil.Process(processes[0].pid)
            list(map_pieces(size, [b"x" * bytes_each] * 100, cluster=address))  # imports
            before, began = scheduler.memory_info().rss, time.perf_counter()
            work = (b"x" * bytes_each for _ in range(pieces))
            count = sum(1 for _ in map_pieces(size, work, cluster=address))
            seconds = time.perf_counter() - began
            after = scheduler.memory_info().rss
        finally:
            for process in processes:
                process.kill()
                process.wait(timeout=60)
    print(
        f"{count} pieces of {bytes_each} bytes, {workers} workers: {seconds:.1f} s,"
        f" {count / seconds:.0f} a second; scheduler {before / MIB:.0f} MiB before,"
        f" {after / MIB:.0f} MiB after"
    )


if __name__ == "__main__":
    typer.run(main)
