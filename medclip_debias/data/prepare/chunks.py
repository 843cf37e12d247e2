"""Chunks of a preparation: what came of some studies or images, written once and never changed.

A chunk maps keys to values, and its name is the hash of its content, those of its rows of pixels
included: a file that was damaged since no longer fits its name. To resume is to skip the keys that
chunks hold; a run with other settings has another folder of chunks
(`medclip_debias.data.prepare.workspace`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from medclip_debias import __version__
from medclip_debias.data.executor import chunks as cut
from medclip_debias.data.executor import map_pieces
from medclip_debias.data.layout import short_hash
from medclip_debias.files import atomic_file

PREPARE_VERSION = 1
"""Of the code from an opened source to the files of a set: raise it with any change that gives
other pixels, sentences, labels or boxes (`tests/data/prepare/test_prepare.py`)."""

_LIBRARIES = (
    *("numpy", "opencv-python-headless", "pillow", "pydicom", "pysbd"),
    *("pyjpegls", "pylibjpeg", "pylibjpeg-libjpeg", "pylibjpeg-openjpeg", "pylibjpeg-rle"),
    "python-gdcm",
)
"""Another version of these may give other pixels or sentences."""

T = TypeVar("T")
R = TypeVar("R")

Key = tuple[str, str]
"""Id of a study or an image, and a stamp of what is read of it: another file, another key."""
Job = tuple[Key, Any]
"""A key, and what is needed to make its value."""
Values = dict[Key, dict[str, Any]]
"""What came of each key. A value with the ``hash`` of a row of pixels has the number ``row``."""
Work = Callable[[list[Job]], tuple[Values, bytes]]
"""Values of a chunk's jobs, and their rows of pixels one behind the other."""
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

    def map(self, function: Callable[[T], R], pieces: Iterable[T]) -> Iterator[R]:
        """Yield ``function(piece)`` for each piece, in their order."""
        return map_pieces(function, pieces, self.processes, cluster=self.cluster)


def made_by() -> dict[str, str]:
    """Return the versions that a set depends on."""
    own = {"medclip-debias": __version__, "prepare": str(PREPARE_VERSION)}
    return own | {name: _version(name) for name in _LIBRARIES}


@cache
def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # an optional decoder, or opencv under another name
        return "none"


@dataclass(frozen=True)
class Chunks:
    """The chunks in a folder: ``KIND-HASH.json``, and ``KIND-HASH.bin`` where there are pixels.

    Attributes:
        folder: of the files.
        row_bytes: bytes of the pixels of one image.
    """

    folder: Path
    row_bytes: int

    def path(self, name: str, suffix: str = ".json") -> Path:
        """Return a file of a chunk; ``.bin`` holds the pixels."""
        return self.folder / (name + suffix)

    def make(self, kind: str, jobs: Iterable[Job], size: int, work: Work, pool: Pool) -> list[str]:
        """Return the names of chunks that hold all jobs; only what is missing is made."""
        self.folder.mkdir(exist_ok=True)
        known: dict[Key, str] = {}
        names: set[str] = set()
        damaged = 0
        earlier = sorted(path.stem for path in self.folder.glob(f"{kind}-*.json"))
        for name, keys in zip(earlier, pool.map(self._keys, earlier), strict=True):
            if keys is None:
                self.remove(name)
                damaged += 1
            else:
                known |= dict.fromkeys(keys, name)
        if damaged:
            pool.tell(
                f"{self.folder}: {damaged} chunks of the interrupted run were not what it had"
                " written; what they held was read again. Check the disk."
            )

        def missing() -> Iterator[Job]:
            for job in jobs:
                if job[0] in known:
                    names.add(known[job[0]])
                    pool.done += 1
                else:
                    yield job

        for name, count in pool.map(partial(self._make, kind, work), cut(missing(), size)):
            names.add(name)
            pool.advance(count)
        pool.advance(0)
        return sorted(names)

    def write(self, kind: str, values: Values, pixels: bytes = b"") -> str:
        """Write a chunk unless it is there, and return its name."""
        content = json.dumps(list(values.items()), separators=(",", ":")).encode()
        name = f"{kind}-{short_hash(content)}"
        if not self.path(name).exists():
            if pixels:
                _write(self.path(name, ".bin"), pixels)
            _write(self.path(name), content)  # last, so that it speaks of what is there
        return name

    def values(self, name: str, *, deep: bool = False) -> Values:
        """Return what a chunk holds, without its pixels.

        Args:
            name: of the chunk.
            deep: compare every row of pixels with its hash, and not their number alone.

        Raises:
            ValueError: it is not what was written; the message is the file that is at fault.
        """
        path, rows = self.path(name), self.path(name, ".bin")
        content = path.read_bytes() if path.exists() else b""
        if short_hash(content) != name.rpartition("-")[2]:
            raise ValueError(path)
        values: Values = {(key[0], key[1]): value for key, value in json.loads(content)}
        hashes = [value["hash"] for value in values.values() if "hash" in value]
        if len(hashes) * self.row_bytes != (rows.stat().st_size if rows.exists() else 0):
            raise ValueError(rows)
        if deep and hashes:
            with rows.open("rb") as file:
                if any(short_hash(file.read(self.row_bytes)) != known for known in hashes):
                    raise ValueError(rows)
        return values

    def remove(self, name: str) -> None:
        """Remove a chunk."""
        self.path(name).unlink(missing_ok=True)
        self.path(name, ".bin").unlink(missing_ok=True)

    def _make(self, kind: str, work: Work, jobs: list[Job]) -> tuple[str, int]:
        return self.write(kind, *work(jobs)), len(jobs)

    def _keys(self, name: str) -> list[Key] | None:
        """The keys of a chunk; None where it, or any of its pixels, is not what was written."""
        try:
            return list(self.values(name, deep=True))
        except ValueError:
            return None


def _write(path: Path, content: bytes) -> None:
    with atomic_file(path) as temporary:
        temporary.write_bytes(content)
