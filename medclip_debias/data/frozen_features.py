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
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, eq=False)
class FeatureFile:
    """Features of images or sentences in a folder, whether or not all of them are there yet.

    Attributes:
        folder: of this key alone.
        key: what the rows are of.
        rows: how many belong into the file.
        shape: of a row, as it lies there.
        dtype: ``fp32``, ``fp16`` or ``bf16``.
        channels_last: rows ``[C, h, w]`` lie as ``[h, w, C]``.
        images: the image of each ``copies`` rows, sorted; none of a file of sentences.
        copies: augmentations of each image, one after the other; 1 where nothing is augmented.
    """

    folder: Path
    key: Mapping[str, Any]
    rows: int
    shape: tuple[int, ...]
    dtype: str
    channels_last: bool = False
    images: NDArray[np.int64] | None = None
    copies: int = 1

    def like(self, sample: Tensor) -> FeatureFile:
        """The file for rows like those of ``sample [n, ...]``."""
        last = (
            sample.ndim == 4
            and not sample.is_contiguous()
            and sample.is_contiguous(memory_format=torch.channels_last)
        )
        shape = sample.permute(0, 2, 3, 1).shape if last else sample.shape
        return replace(self, shape=tuple(shape[1:]), channels_last=last)

    @property
    def row_bytes(self) -> int:
        """Bytes of the features of one image."""
        return math.prod(self.shape) * _DTYPES[self.dtype].itemsize

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.rows * self.row_bytes

    @property
    def _content(self) -> dict[str, Any]:
        names = ("rows", "dtype", "channels_last")
        layout = {name: getattr(self, name) for name in names}
        return {"key": dict(self.key), "layout": layout | {"shape": list(self.shape)}}

    # ------------------------------------------------------------------------------ reading

    @cached_property
    def _numbers(self) -> NDArray[np.integer[Any]]:
        """As integers of the same size, for numpy has no bfloat16."""
        size = _DTYPES[self.dtype].itemsize
        return np.memmap(self.folder / DATA, f"i{size}", "r", shape=(self.rows, *self.shape))

    def of(self, images: NDArray[np.int64], copies: NDArray[np.int64] | None = None) -> Tensor:
        """Features ``[len(images), ...]`` of images, in the type of the file.

        Args:
            images: of the prepared set.
            copies: which augmentation of each.
        """
        assert self.images is not None
        places = np.searchsorted(self.images, images) * self.copies
        return self.at(places if copies is None else places + copies)

    def at(self, places: NDArray[np.int64]) -> Tensor:
        """Rows of the file."""
        values = torch.from_numpy(self._numbers[places]).view(_DTYPES[self.dtype])
        return values.permute(0, 3, 1, 2) if self.channels_last else values

    def is_whole(self) -> bool:
        """Whether all of the features are there."""
        meta, data = self.folder / META, self.folder / DATA
        if not meta.is_file():
            return False
        stored = read_json(meta, _REMEDY)
        if any(stored.get(name) != value for name, value in self._content.items()):
            raise UserError(
                f"{meta}: these features are of other weights, images or settings than its "
                f"name says, so they were copied or edited; {_REMEDY}."
            )
        size = data.stat().st_size if data.is_file() else 0
        if size != self.size:
            raise UserError(f"{data}: has {size} bytes where {self.size} belong; {_REMEDY}.")
        return True

    # ------------------------------------------------------------------------------ writing

    def write(self, compute: Callable[[range], Tensor], chunk: int) -> Generator[int]:
        """Write the rows that are still missing; yields how many there are after each chunk.

        Args:
            compute: gives the rows of a range ``[len, ...]``; no other process may write meanwhile.
            chunk: rows at a time.
        """
        folder, done = self.folder, self._safe_rows()
        with explained(f"{folder}: cannot be written; set train.features.folder", OSError):
            folder.mkdir(parents=True, exist_ok=True)
        needed, free = self.size - done * self.row_bytes, shutil.disk_usage(folder).free
        if needed > free:
            raise UserError(
                f"{folder}: {readable(needed)} of features are still to be written, but the disk "
                f"has only {readable(free)} free; free some, set train.features.folder to another "
                "disk, or take fewer augmentations or dtype fp16."
            )
        sentence = f"{folder}: the features cannot be written (is the disk full?); free some space"
        with (
            explained(f"{sentence}, then run the same command again", OSError),
            (folder / DATA).open("r+b" if done else "wb") as file,
        ):
            file.truncate(done * self.row_bytes)
            file.seek(0, os.SEEK_END)

            def note() -> None:
                file.flush()
                os.fsync(file.fileno())
                write_json(folder / PROGRESS, {**self._content, "done": done})

            safe = time.monotonic()
            try:
                yield done
                while done < self.rows:
                    part = range(done, min(done + chunk, self.rows))
                    file.write(self._packed(compute(part)))
                    done = part.stop
                    if time.monotonic() - safe > _SAFE_EVERY:
                        note()
                        safe = time.monotonic()
                    yield done
            finally:
                note()
            write_json(folder / META, self._content)
            (folder / PROGRESS).unlink(missing_ok=True)

    def _packed(self, values: Tensor) -> bytes:
        """Rows as they lie in the file."""
        values = values.permute(0, 2, 3, 1) if self.channels_last else values
        packed = values.detach().cpu().to(_DTYPES[self.dtype]).contiguous()
        if not torch.isfinite(packed).all():
            raise UserError(
                f"the features hold a number that {self.dtype} cannot represent; set "
                "train.features.dtype to bf16 or fp32."
            )
        return packed.view(torch.uint8).numpy().tobytes()

    def _safe_rows(self) -> int:
        """How many rows an interrupted writer of the same left on the disk."""
        noted = read_json_or_none(self.folder / PROGRESS)
        if not isinstance(noted, dict) or {**noted, **self._content} != noted:
            return 0
        done, data = noted.get("done"), self.folder / DATA
        there = data.stat().st_size if data.is_file() else 0
        return min(done, there // self.row_bytes) if isinstance(done, int) and done > 0 else 0


def readable(size: int) -> str:
    """Bytes for people, in GiB or MiB."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
