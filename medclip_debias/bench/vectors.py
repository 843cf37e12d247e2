"""Vectors of images and sentences on disk: a network passes once, whatever is asked afterwards.

In ``RESULTS/cache/features/MODEL/``, named by the hash of the model's weights: ``sentences/``, and
a folder for each set, named by its content, with ``regions/`` and ``whole/``. Single precision as
the model gave it, so what is measured from here is what is measured from the network.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.evaluation.encoding import Network
from medclip_debias.files import atomic_file
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.finite import finite
from medclip_debias.models.sentences import stacked

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

_TEXTS = 8192
"""Sentences encoded between two writes: what a kill costs."""


class StoredVectors:
    """Vectors by key, in numbered files that are written whole and never changed.

    A file whose checksums do not fit counts as not there, and so do the keys in it.

    Args:
        folder: of the files; need not be there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: dict[Any, tuple[Path, int]] = {}
        self._values = lru_cache(maxsize=4)(_values)
        for path in sorted(folder.glob("*.npz")):
            with suppress(OSError, BadZipFile, zlib.error), ZipFile(path) as file:
                if file.testzip() is None:
                    self._index(path)

    def lacking(self, keys: Sequence[Any]) -> list[Any]:
        """Those of the keys that have no vector, each once."""
        return [key for key in dict.fromkeys(keys) if key not in self._places]

    def add(self, keys: Sequence[Any], values: NDArray[np.float32]) -> None:
        """Write vectors ``[len(keys), ...]``."""
        if len(keys):
            last = max((path.stem for path in self.folder.glob("*.npz")), default="0")
            path = self.folder / f"{int(last) + 1:08}.npz"
            with atomic_file(path) as temporary, temporary.open("wb") as file:
                np.savez(file, keys=np.asarray(keys), values=values)
            self._index(path)

    def read(self, keys: Sequence[Any]) -> Tensor:
        """Vectors ``[len(keys), ...]``; of sentences with rows of zeros up to the longest."""
        places = [self._places[key] for key in keys]
        values = {path: torch.from_numpy(self._values(path)) for path, _ in places}
        return stacked([values[path][[row]] for path, row in places])

    def _index(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as content:
            keys = content["keys"].tolist()
        self._places |= {key: (path, row) for row, key in enumerate(keys)}


def _values(path: Path) -> NDArray[np.float32]:
    with np.load(path, allow_pickle=False) as content:
        return np.asarray(content["values"])


def _digest(text: str) -> str:
    """Stands for a sentence, which is not stored."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class CachedVectors:
    """The vectors of one model on one set; what is not there yet the network computes.

    Attributes:
        seconds: how long the network was at work.
        regions: whether the regions of images are looked at (`of_card`).
    """

    def __init__(
        self, cache: Path, model: ImageTextModel, data: PreparedSet, batch_size: int = 32
    ) -> None:
        self.model, self.seconds, self.regions = model, 0.0, True
        self._network, self._batch_size = Network(model, data), batch_size
        folder = cache / str(model.content_hash)
        self.folder = folder / data.content_hash
        self._sentences = StoredVectors(folder / "sentences")
        self._regions = StoredVectors(self.folder / "regions")
        self._whole = StoredVectors(self.folder / "whole") if model.outputs.has_whole else None

    def of_card(self, rows: Collection[int], *, regions: bool) -> CachedVectors:
        """The vectors as a card reads them, of these images, and perhaps of their regions.

        A model that scores by regions keeps them of every image.

        Raises:
            UserError: the disk has no room for what is not there yet.
        """
        self.regions = regions or not self.model.outputs.whole_alone
        images, grid = len(self._lacking(rows)), self.model.grid
        of_image = (self._whole is not None) + self.regions * grid.rows * grid.columns
        needed = 4 * self.model.dim * images * of_image
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UserError(
                f"{self.folder}: the vectors of {images} images need {needed / 1e9:.1f} GB, and the"
                f" disk has {free / 1e9:.1f} GB; make room or give another --out."
            )
        return self

    def sentences(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors ``[len(texts), D]``, on the model's device."""
        new = {_digest(text): text for text in texts}
        lacking = self._sentences.lacking([*new])
        for start in range(0, len(lacking), _TEXTS):
            part = lacking[start : start + _TEXTS]
            with self._timed():
                vectors = self._network.sentences([new[digest] for digest in part])
            self._sentences.add(part, finite(vectors, "sentences"))
        return self._sentences.read(list(map(_digest, texts))).to(self.model.device)

    def images(self, rows: Sequence[int]) -> ImageFeatures:
        """Features of images, on the model's device; without regions the whole is the only one."""
        lacking = self._lacking(rows)
        for start in range(0, len(lacking), self._batch_size):
            self._encode(lacking[start : start + self._batch_size])
        whole = None if self._whole is None else self._whole.read(rows)
        if whole is not None and not self.regions:
            return ImageFeatures(whole[:, None], whole).to(self.model.device)
        kept, attended = self._regions.read(rows), not self.model.outputs.whole_alone
        return ImageFeatures(kept, whole, attended=attended).to(self.model.device)

    def _lacking(self, rows: Collection[int]) -> list[int]:
        stores = [self._whole] if self._whole is not None else []
        stores += [self._regions] if self.regions else []
        return sorted(set().union(*(store.lacking(sorted(rows)) for store in stores)))

    def _encode(self, rows: list[int]) -> None:
        with self._timed():
            features = self._network.images(rows)
        count = self.model.grid.rows * self.model.grid.columns
        if features.regions.shape[1] != count:
            raise UserError(
                f"the model gives {features.regions.shape[1]} regions per image but says that it"
                f" has {count}; its folder is damaged."
            )
        if self.regions:
            self._regions.add(rows, finite(features.regions, "images"))
        if self._whole is not None and features.whole is not None:
            self._whole.add(rows, finite(features.whole, "images"))

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        with torch.inference_mode():
            yield
        self.seconds += time.perf_counter() - began
