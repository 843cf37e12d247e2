"""Vectors of images and sentences on disk: a network passes once, whatever is asked afterwards.

In ``RESULTS/cache/features/MODEL/``, named by the hash of the model's weights: ``sentences/``, and
a folder for each set, named by its content, with ``regions/`` and ``whole/``. Single precision as
the model gave it, so what is measured from here is what is measured from the network.
"""

from __future__ import annotations

import hashlib
import shutil
import zlib
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
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

Progress = Callable[[int, int], None]

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

    def read(self, keys: Sequence[Any], what: str) -> Tensor:
        """Vectors ``[len(keys), ...]``; of sentences with rows of zeros up to the longest."""
        if lacking := self.lacking(keys):
            raise UserError(
                f"{self.folder}: has no vectors of {len(lacking)} of {len(keys)} {what}; run"
                " 'bench' again with the model and the data."
            )
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
    """The vectors of one model on one set."""

    def __init__(self, cache: Path, model: ImageTextModel, data: PreparedSet) -> None:
        self.model, self._data = model, data
        folder = cache / str(model.content_hash)
        self.folder = folder / data.content_hash
        self._sentences = StoredVectors(folder / "sentences")
        self._regions = StoredVectors(self.folder / "regions")
        self._whole = StoredVectors(self.folder / "whole") if model.outputs.has_whole else None

    def encode(
        self,
        rows: Collection[int],
        texts: Sequence[str],
        *,
        regions: Collection[int] = (),
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> int:
        """Let the network encode what is not there yet; return how many images that were.

        Args:
            rows: of the set.
            texts: sentences.
            regions: those of ``rows`` whose regions will be looked at. A model that scores by
                regions keeps those of every row.
            batch_size: images at a time.
            progress: called with images done and images in total.

        Raises:
            UserError: the disk has no room.
            NotFiniteError: the model gives NaN or infinity.
        """
        network = Network(self.model, self._data)
        mapped = set(regions) if self.model.outputs.whole_alone else set(rows)
        lacking = set(self._regions.lacking(sorted(mapped)))
        if self._whole is not None:
            lacking |= set(self._whole.lacking(sorted(rows)))
        self._check_room(len(lacking), len(lacking & mapped))
        new = {_digest(text): text for text in texts}
        digests = self._sentences.lacking([*new])
        for start in range(0, len(digests), _TEXTS):
            part = digests[start : start + _TEXTS]
            with torch.inference_mode():
                vectors = network.sentences([new[digest] for digest in part])
            self._sentences.add(part, finite(vectors, "sentences"))
        ordered = sorted(lacking)
        for start in range(0, len(ordered), batch_size):
            self._encode(network, ordered[start : start + batch_size], mapped)
            if progress:
                progress(min(start + batch_size, len(ordered)), len(ordered))
        return len(ordered)

    def read(self, *, regions: bool) -> View:
        """The vectors, with the regions of the images or with what a whole score needs alone."""
        return View(self, regions)

    def sentences(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors ``[len(texts), D]``, on the model's device."""
        stored = self._sentences.read(list(map(_digest, texts)), "sentences")
        return stored.to(self.model.device)

    def images(self, rows: Sequence[int], *, regions: bool) -> ImageFeatures:
        """Features of images, on the model's device.

        Without ``regions`` a model that scores by whole images has its whole as the only region.
        """
        alone = self.model.outputs.whole_alone
        whole = None if self._whole is None else self._whole.read(rows, "images")
        if whole is not None and not regions and alone:
            return ImageFeatures(whole[:, None], whole).to(self.model.device)
        kept = self._regions.read(rows, "images")
        return ImageFeatures(kept, whole, attended=not alone).to(self.model.device)

    def _encode(self, network: Network, rows: list[int], mapped: Collection[int]) -> None:
        with torch.inference_mode():
            features = network.images(rows)
        count = self.model.grid.rows * self.model.grid.columns
        if features.regions.shape[1] != count:
            raise UserError(
                f"the model gives {features.regions.shape[1]} regions per image but says that it"
                f" has {count}; its folder is damaged."
            )
        kept = [place for place, row in enumerate(rows) if row in mapped]
        self._regions.add([rows[place] for place in kept], finite(features.regions, "images")[kept])
        if self._whole is not None and features.whole is not None:
            self._whole.add(rows, finite(features.whole, "images"))

    def _check_room(self, images: int, mapped: int) -> None:
        regions = mapped * self.model.grid.rows * self.model.grid.columns
        needed = 4 * self.model.dim * (regions + (0 if self._whole is None else images))
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UserError(
                f"{self.folder}: the vectors of {images} images need {needed / 1e9:.1f} GB, and the"
                f" disk has {free / 1e9:.1f} GB; make room or give another --out."
            )


@dataclass(frozen=True)
class View:
    """What a card reads: `medclip_debias.evaluation.encoding.Vectors`."""

    vectors: CachedVectors
    regions: bool

    def sentences(self, texts: Sequence[str]) -> Tensor:
        """See `CachedVectors.sentences`."""
        return self.vectors.sentences(texts)

    def images(self, rows: Sequence[int]) -> ImageFeatures:
        """See `CachedVectors.images`."""
        return self.vectors.images(rows, regions=self.regions)
