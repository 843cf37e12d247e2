"""What a Dask cluster costs beside the work: pieces a second, and the scheduler's memory.

A scheduler and workers are started on loopback, and pieces that do nothing are sent through
`medclip_debias.data.executor.map_pieces`, each with as many bytes as 64 reports. docs/clusters.md
reckons from the figures.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from medclip_debias.data.executor import map_pieces

MIB = 2**20


def size(payload: bytes) -> int:
    """Do nothing with a piece."""
    return len(payload)


def start(kind: str, file: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a scheduler or a worker on loopback."""
    command = [sys.executable, "-m", "dask", kind, *words, "--scheduler-file", str(file)]
    return subprocess.Popen(
        [*command, "--no-dashboard"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def main() -> None:
    """Print one line: pieces, seconds, pieces a second, memory of the scheduler."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pieces", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=64 * 1024, help="of a piece")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
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
            processes += [start("worker", file, *words) for _ in range(given.workers)]
            scheduler = psutil.Process(processes[0].pid)
            list(map_pieces(size, [b"x" * given.bytes] * 100, cluster=address))  # imports
            before, began = scheduler.memory_info().rss, time.perf_counter()
            pieces = (b"x" * given.bytes for _ in range(given.pieces))
            count = sum(1 for _ in map_pieces(size, pieces, cluster=address))
            seconds = time.perf_counter() - began
            after = scheduler.memory_info().rss
        finally:
            for process in processes:
                process.kill()
                process.wait(timeout=60)
    print(
        f"{count} pieces of {given.bytes} bytes, {given.workers} workers: {seconds:.1f} s,"
        f" {count / seconds:.0f} a second; scheduler {before / MIB:.0f} MiB before,"
        f" {after / MIB:.0f} MiB after"
    )


if __name__ == "__main__":
    main()
