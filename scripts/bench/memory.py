"""Seconds of verbs while freed memory is kept, against glibc's own way: pairs in turn, medians.

`GLIBC_TUNABLES=` tells the program to leave memory to glibc
(`medclip_debias.cli.keep_freed_memory`). One line a verb: the ratio of the seconds, and for both
ways seconds, a processor's, and the kernel's share.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

WAYS: dict[str, dict[str, str]] = {"kept": {}, "given back": {"GLIBC_TUNABLES": ""}}


def verbs(folder: Path) -> dict[str, list[str]]:
    """The words of each verb; the last one is what it makes. The first makes what others read."""
    tree = str(folder / "phantom")
    return {
        "phantom": ["phantom", "--studies", "240", tree],
        "prepare": ["prepare", "--size", "224", tree, str(folder / "prepared")],
        "demo --quick": ["demo", "--quick", "--out", str(folder / "demo")],
    }


def once(words: list[str], way: str) -> tuple[float, float, float]:
    """Seconds of one command: on the clock, of processors, and of those the kernel's."""
    shutil.rmtree(words[-1], ignore_errors=True)
    plain = {n: v for n, v in os.environ.items() if not n.startswith(("MALLOC_", "GLIBC_"))}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "medclip_debias", *words]
    subprocess.run(command, env=plain | WAYS[way], check=True, capture_output=True)
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    kernel = after.ru_stime - before.ru_stime
    return took, after.ru_utime - before.ru_utime + kernel, kernel


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        for verb, words in verbs(Path(name)).items():
            found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way, measured in found.items():
                    measured.append(once(words, way))
            ratios = [a[0] / b[0] for a, b in zip(*found.values(), strict=True)]
            print(f"{verb}: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
            for way, measured in found.items():
                seconds, processors, kernel = (median(each) for each in zip(*measured, strict=True))
                print(
                    f"  {way}: {seconds:.2f} s, {processors:.2f} of processors, {kernel:.2f} kernel"
                )


if __name__ == "__main__":
    main()
