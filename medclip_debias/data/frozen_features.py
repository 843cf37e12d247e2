"""What the frozen part of an encoder gives, in a file: written once, in order, and read at random.

A folder holds ``features.bin``, rows of numbers of one shape, and ``features.json``, which says
what they are of and is written last: without it the file is not whole. Meanwhile
``progress.json`` says how many rows are safe on the disk, so that an interrupted writer goes on.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.config import AugmentSettings
from medclip_debias.data.augment import Draws, draw
from medclip_debias.errors import UserError, explained
from medclip_debias.files import read_json, read_json_or_none, write_json

DATA, META, PROGRESS = "features.bin", "features.json", "progress.json"
# First words of the seed sequences; 1 to 3 are the loader's.
_STORED, _COPY = 4, 5
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# How numbers of a type lie in the file; numpy has no bfloat16.
_AS_INTEGERS = {4: (torch.int32, np.int32), 2: (torch.int16, np.int16)}
_SAFE_EVERY = 5.0
"""Seconds between two times that the writer waits until all rows are on the disk."""
_REMEDY = "remove the folder, and it is computed again"


@dataclass(frozen=True, eq=False)
class StoredAugmentations:
    """A fixed number of augmentations of every image, and which of them a step takes.

    Attributes:
        count: augmentations of each image; 0 for none, and then nothing is fixed.
        settings: how images are changed.
        seed: with it and the row, everything is decided.
        rows: images of the prepared set.
        size: side of the prepared images.
        side: side of the crop.
    """

    count: int
    settings: AugmentSettings
    seed: int
    rows: int
    size: int
    side: int

    def choose(self, step: int, images: int, two_view: bool) -> NDArray[np.int64] | None:
        """Which augmentation each image of the whole batch of ``step`` takes; None without any.

        The two views of an image are two different ones.
        """
        if not self.count:
            return None
        rng = np.random.default_rng([_COPY, self.seed, step])
        if not two_view:
            return rng.integers(0, self.count, images)
        first = rng.integers(0, self.count, images // 2)
        second = (first + rng.integers(1, self.count, images // 2)) % self.count
        return np.concatenate([first, second])

    def draws(self, rows: NDArray[np.int64], copies: NDArray[np.int64]) -> Draws:
        """What happens to the images ``rows`` in their augmentations ``copies``."""
        return self._table.part(torch.from_numpy(copies * self.rows + rows))

    @cached_property
    def _table(self) -> Draws:
        """Of every image, its first augmentation; then of every image its second; and so on."""
        rngs = (np.random.default_rng([_STORED, self.seed, copy]) for copy in range(self.count))
        each = [draw(rng, self.settings, self.rows, self.size, self.side) for rng in rngs]
        names = ("top", "left", "contrast", "brightness")
        joined = {name: torch.cat([getattr(one, name) for one in each]) for name in names}
        return Draws(**joined, side=self.side)


@dataclass(frozen=True)
class Layout:
    """How features lie in the file.

    Attributes:
        rows: of the file.
        shape: of a row, as it lies there.
        dtype: ``fp32``, ``fp16`` or ``bf16``.
        channels_last: rows ``[C, h, w]`` lie as ``[h, w, C]``.
    """

    rows: int
    shape: tuple[int, ...]
    dtype: str
    channels_last: bool = False

    @classmethod
    def of(cls, sample: Tensor, rows: int, dtype: str) -> Layout:
        """The layout of rows like those of ``sample [n, ...]``."""
        last = (
            sample.ndim == 4
            and not sample.is_contiguous()
            and sample.is_contiguous(memory_format=torch.channels_last)
        )
        shape = sample.permute(0, 2, 3, 1).shape if last else sample.shape
        return cls(rows, tuple(shape[1:]), dtype, last)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.rows * self.row_bytes

    def pack(self, values: Tensor) -> bytes:
        """Rows as they lie in the file.

        Raises:
            UserError: a number does not fit into the file's type, or is none.
        """
        values = values.permute(0, 2, 3, 1) if self.channels_last else values
        packed = values.detach().cpu().to(_DTYPES[self.dtype]).contiguous()
        if not torch.isfinite(packed).all():
            raise UserError(
                f"the features hold a number that {self.dtype} cannot represent; set "
                "train.features.dtype to bf16 or fp32."
            )
        whole = packed.view(_AS_INTEGERS[packed.element_size()][0]).numpy()
        return whole.tobytes()

    def unpack(self, whole: NDArray[np.integer[Any]]) -> Tensor:
        """The rows behind `pack`, in the type of the file."""
        values = torch.from_numpy(whole).view(_DTYPES[self.dtype])
        return values.permute(0, 3, 1, 2) if self.channels_last else values


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """A whole file of features, read through a memory map.

    Attributes:
        folder: that `write_features` wrote.
        layout: of the file.
        rows: the image (or sentence) of each ``copies`` rows of the file, sorted.
        copies: augmentations of each image, one after the other; 1 where nothing is augmented.
    """

    folder: Path
    layout: Layout
    rows: NDArray[np.int64]
    copies: int = 1

    @property
    def item_bytes(self) -> int:
        """Bytes of the features of one image."""
        return self.layout.row_bytes

    @cached_property
    def _file(self) -> NDArray[np.integer[Any]]:
        kind = _AS_INTEGERS[_DTYPES[self.layout.dtype].itemsize][1]
        shape = (self.layout.rows, *self.layout.shape)
        return np.memmap(self.folder / DATA, kind, "r", shape=shape)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def of(self, rows: NDArray[np.int64], copies: NDArray[np.int64] | None = None) -> Tensor:
        """Features ``[len(rows), ...]`` of images, in the type of the file.

        Args:
            rows: of the prepared set.
            copies: which augmentation of each.
        """
        places = np.searchsorted(self.rows, rows) * self.copies
        return self.at(places if copies is None else places + copies)

    def at(self, places: NDArray[np.int64]) -> Tensor:
        """Rows of the file."""
        return self.layout.unpack(np.ascontiguousarray(self._file[places]))


def is_whole(folder: Path, key: Mapping[str, Any], layout: Layout) -> bool:
    """Whether ``folder`` holds the features of ``key``, all of them.

    Raises:
        UserError: it holds others, or is damaged.
    """
    if not (folder / META).is_file():
        return False
    found = read_json(folder / META, _REMEDY)
    if found.get("key") != dict(key) or found.get("layout") != _plain(layout):
        raise UserError(
            f"{folder / META}: these features are of other weights, images or settings than its "
            f"name says, so they were copied or edited; {_REMEDY}."
        )
    size = (folder / DATA).stat().st_size if (folder / DATA).is_file() else 0
    if size != layout.size:
        raise UserError(f"{folder / DATA}: has {size} bytes where {layout.size} belong; {_REMEDY}.")
    return True


def _plain(layout: Layout) -> dict[str, Any]:
    return {**vars(layout), "shape": list(layout.shape)}


def write_features(
    folder: Path,
    key: Mapping[str, Any],
    layout: Layout,
    compute: Callable[[range], Tensor],
    chunk: int,
    about: Mapping[str, Any] | None = None,
) -> Generator[int]:
    """Write the rows that are still missing; yields how many there are after each chunk.

    Args:
        folder: of this key; another process must not write into it.
        key: what the rows are of.
        layout: of the file.
        compute: gives the rows of a range ``[len, ...]``.
        chunk: rows at a time.
        about: more to be noted in ``features.json``.

    Raises:
        UserError: the disk is full or cannot be written.
    """
    with explained(f"{folder}: cannot be written; set train.features.folder", OSError):
        folder.mkdir(parents=True, exist_ok=True)
    mine = {"key": dict(key), "layout": _plain(layout)}
    done = _safe_rows(folder, mine, layout)
    needed, free = layout.size - done * layout.row_bytes, shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{folder}: {readable(needed)} of features are still to be written, but the disk has "
            f"only {readable(free)} free; free some, set train.features.folder to another disk, or "
            "take fewer augmentations or dtype fp16."
        )
    sentence = f"{folder}: the features cannot be written (is the disk full?); free some space"
    with explained(f"{sentence}, then run the same command again", OSError):
        with (folder / DATA).open("r+b" if done else "wb") as file:
            file.truncate(done * layout.row_bytes)
            file.seek(0, os.SEEK_END)

            def note() -> None:
                file.flush()
                os.fsync(file.fileno())
                write_json(folder / PROGRESS, {**mine, "rows": done})

            safe = time.monotonic()
            try:
                yield done
                while done < layout.rows:
                    part = range(done, min(done + chunk, layout.rows))
                    file.write(layout.pack(compute(part)))
                    done = part.stop
                    if time.monotonic() - safe > _SAFE_EVERY:
                        note()
                        safe = time.monotonic()
                    yield done
            finally:
                note()
        write_json(folder / META, {**mine, **(about or {})})
        (folder / PROGRESS).unlink(missing_ok=True)


def _safe_rows(folder: Path, mine: Mapping[str, Any], layout: Layout) -> int:
    """How many rows an interrupted writer of the same left on the disk."""
    noted = read_json_or_none(folder / PROGRESS)
    if not isinstance(noted, dict) or {name: noted.get(name) for name in mine} != mine:
        return 0
    rows = noted.get("rows")
    there = (folder / DATA).stat().st_size if (folder / DATA).is_file() else 0
    return min(rows, there // layout.row_bytes) if isinstance(rows, int) and rows > 0 else 0


def readable(size: int) -> str:
    """Bytes for people, in GiB or MiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
