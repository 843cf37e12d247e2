"""Chunks of a preparation: some studies or images, read once, kept under the name of their inputs.

A chunk is a pure function of its rows and the settings, so its name says whether it is still
good: a run that was killed makes those that are missing, in any number of processes, and a file
that was damaged since does not pass its own hash and is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from medclip_debias import __version__
from medclip_debias.config import json_hash
from medclip_debias.data.executor import map_pieces
from medclip_debias.data.layout import pixel_hash
from medclip_debias.data.parallel import chunks as cut
from medclip_debias.files import atomic_file

PREPARE_VERSION = 1
"""Of the code from an opened source to the files of a set: raise it with any change that gives
other pixels, sentences, labels or boxes (`tests/data/prepare/test_version.py`)."""

_LIBRARIES = (
    *("numpy", "opencv-python-headless", "pillow", "pydicom", "pysbd"),
    *("pyjpegls", "pylibjpeg", "pylibjpeg-libjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle"),
    "python-gdcm",
)
"""Another version of these may give other pixels or sentences."""

Job = tuple[Any, Any]
"""What names a job (its head, JSON values), and what is needed to do it."""
Entry = dict[str, Any]
"""What came of a job: its ``head``, and more."""
Work = Callable[[list[Job]], tuple[list[Entry], bytes | None]]
"""Entries of a chunk's jobs, and the pixels of their rows one behind the other."""
Progress = Callable[[int, int], None]
Say = Callable[[str], None]


@dataclass
class Pool:
    """The processes, or the cluster, that make chunks, and whom a run tells of its work.

    Attributes:
        processes: of this machine.
        cluster: of `medclip_debias.data.executor.map_pieces`, in the place of processes.
        progress: called with (done, total).
        say: called with each sentence on what was found.
    """

    processes: int = 1
    cluster: str | None = None
    progress: Progress | None = None
    say: Say | None = None
    done: int = 0
    total: int = 0

    def tell(self, *sentences: str) -> None:
        """Say what was found."""
        for sentence in sentences:
            if sentence and self.say is not None:
                self.say(sentence)

    def expect(self, count: int) -> None:
        """Set the total to what is done and so many jobs."""
        self.total = self.done + count

    def advance(self, count: int) -> None:
        """Count jobs that were done."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)


def made_by() -> dict[str, str]:
    """Return the versions that a set depends on."""
    versions = {"medclip-debias": __version__, "prepare": str(PREPARE_VERSION)}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:  # an optional decoder, or opencv under another name
            versions[name] = "none"
    return versions


class Chunks:
    """The chunks in a folder: ``NAME.json``, and ``NAME.bin`` for those that hold pixels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(
        self,
        kind: str,
        recipe: Any,
        jobs: Iterable[Job],
        size: int,
        work: Work,
        pool: Pool,
    ) -> tuple[list[str], int]:
        """Return the names of the chunks of ``jobs``, in order, and how many were damaged.

        Chunks that are there and whole are not made again.

        Args:
            kind: first part of the names.
            recipe: JSON values that the entries depend on beside their heads.
            jobs: all jobs of the run.
            size: jobs of a chunk.
            work: makes the entries; a function of a module, for it runs in other processes.
            pool: where it runs.
        """
        names: list[str] = []
        damaged = 0

        def named() -> Iterator[tuple[str, list[Job]]]:
            for some in cut(jobs, size):
                names.append(f"{kind}-{json_hash([made_by(), recipe, [head for head, _ in some]])}")
                yield names[-1], some

        self.folder.mkdir(exist_ok=True)
        make = partial(_make, self, work)
        for count, was_damaged in map_pieces(make, named(), pool.processes, cluster=pool.cluster):
            damaged += was_damaged
            pool.advance(count)
        return names, damaged

    def entries(self, name: str) -> list[Entry]:
        """Return the entries of a chunk.

        Raises:
            ValueError: it is not there, or not what was written.
        """
        try:
            digest, _, content = self.path(name).read_bytes().partition(b"\n")
        except FileNotFoundError:
            raise ValueError("is not there") from None
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise ValueError("is not what was written")
        entries: list[Entry] = json.loads(content)
        return entries

    def digest(self, name: str) -> str:
        """Return the hash of a chunk's entries."""
        return hashlib.sha256(json.dumps(self.entries(name)).encode()).hexdigest()

    def path(self, name: str, suffix: str = ".json") -> Path:
        """Return a file of a chunk; ``.bin`` holds the rows of its readable images."""
        return self.folder / (name + suffix)

    def write(self, name: str, entries: list[Entry], pixels: bytes | None) -> None:
        """Write a chunk; its entries are there last, so that they speak of what is there."""
        if pixels is not None:
            _write(self.path(name, ".bin"), pixels)
        content = json.dumps(entries, separators=(",", ":")).encode()
        _write(self.path(name), hashlib.sha256(content).hexdigest().encode() + b"\n" + content)

    def is_whole(self, name: str) -> bool:
        """Tell whether a chunk is there, every pixel of it as it was when it was made.

        Raises:
            ValueError: it is there and is damaged.
        """
        if not self.path(name).exists():
            return False
        hashes = [entry["hash"] for entry in self.entries(name) if "hash" in entry]
        if not hashes:
            return True
        rows = self.path(name, ".bin")
        if not rows.exists():
            return False
        side, rest = divmod(rows.stat().st_size, len(hashes))
        with rows.open("rb") as file:
            if rest or any(pixel_hash(file.read(side)) != known for known in hashes):
                raise ValueError("its pixels are not what was written")
        return True

    def size(self) -> int:
        """Return the bytes of all pixels."""
        return sum(path.stat().st_size for path in self.folder.glob("*.bin"))


def _make(chunks: Chunks, work: Work, task: tuple[str, list[Job]]) -> tuple[int, bool]:
    """Make a chunk unless it is whole; return its jobs, and whether it was damaged."""
    name, jobs = task
    damaged = False
    try:
        if chunks.is_whole(name):
            return len(jobs), False
    except ValueError:
        damaged = True
    chunks.write(name, *work(jobs))
    return len(jobs), damaged


def _write(path: Path, content: bytes) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)
