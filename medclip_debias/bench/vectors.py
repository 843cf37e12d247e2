"""Vectors of images and sentences on disk: a network passes once, whatever is asked afterwards.

In ``RESULTS/cache/features/MODEL/``, named by the hash of the model's weights: ``sentences.npz``,
and a folder for each set, named by its content. Single precision as the model gave it, so what is
measured from here is what is measured from the network.
"""

from __future__ import annotations

import hashlib
import shutil
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.evaluation.encoding import Network, Vectors
from medclip_debias.files import atomic_file, atomic_folder
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.finite import finite
from medclip_debias.models.sentences import stacked

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

Progress = Callable[[int, int], None]
Floats = NDArray[np.float32]
Indices = Sequence[int] | NDArray[np.int64]

_TEXTS = 8192
"""Sentences encoded between two writes: what a kill costs."""

_DIGEST = 16  # bytes that name a sentence

_REMEDY = "run 'bench' again with the model and the data"


class StoredRows:
    """A float array ``[n, width]`` in a file, any of its rows written, each with its checksum.

    The file has its full size from the start and takes room for written rows only. A row that a
    crash tore has another checksum, and counts as not written.

    Args:
        path: of the values; the checksums lie beside it.
        count: n.
        width: numbers in a row.
    """

    def __init__(self, path: Path, count: int, width: int) -> None:
        self.width = width
        self._path = path
        self._values = np.memmap(path, np.float32, "r", shape=(count, width))
        self._sums = np.memmap(path.with_suffix(".sums"), np.uint32, "r", shape=(count,))

    def written(self, rows: Indices) -> NDArray[np.bool_]:
        """Which of ``rows`` were written."""
        return np.asarray(self._sums[np.asarray(rows, dtype=np.int64)] != 0)

    def write(self, rows: Indices, values: Floats) -> None:
        """Write rows ``[len(rows), width]``; the checksums last.

        Not through the map: on a full disk that would end the process without a word.
        """
        sums = [np.uint32(_checksum(row)).tobytes() for row in values]
        with self._path.open("rb+") as file, self._path.with_suffix(".sums").open("rb+") as other:
            for row, vector in zip(rows, values, strict=True):
                file.seek(4 * row * self.width)
                file.write(np.ascontiguousarray(vector, np.float32).data)
            file.flush()
            for row, checksum in zip(rows, sums, strict=True):
                other.seek(4 * row)
                other.write(checksum)

    def read(self, rows: Indices) -> tuple[Floats, NDArray[np.bool_]]:
        """The rows ``[len(rows), width]``, and which of them are whole."""
        values = np.array(self._values[np.asarray(rows, dtype=np.int64)])
        sums = [_checksum(row) for row in values]
        return values, np.asarray(sums, dtype=np.uint32) == self._sums[np.asarray(rows)]


def _checksum(row: Floats) -> int:
    return zlib.crc32(np.ascontiguousarray(row).data) or 1  # 0 is for a row that is not there


class StoredSentences:
    """Unit vectors of sentences in a file, found by a digest: no sentence is stored."""

    def __init__(self, path: Path, dim: int) -> None:
        self.path = path
        self._vectors = np.zeros((0, dim), dtype=np.float32)
        digests = np.zeros((0, _DIGEST), dtype=np.uint8)
        if path.is_file():
            try:
                with np.load(path, allow_pickle=False) as content:
                    found = content["digests"], content["vectors"]
                if found[0].shape == (len(found[1]), _DIGEST) and found[1].shape[-1] == dim:
                    digests, self._vectors = found[0], found[1].astype(np.float32)
            except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error):
                pass  # what it lacks is encoded again, or named by `read`
        self._rows = {digest.tobytes(): row for row, digest in enumerate(digests)}

    def encode(self, texts: Sequence[str], network: Vectors) -> int:
        """Let the network encode those that are not there; return how many that were."""
        lacking = [text for text in dict.fromkeys(texts) if _digest(text) not in self._rows]
        for start in range(0, len(lacking), _TEXTS):
            part = lacking[start : start + _TEXTS]
            with torch.inference_mode():
                new = finite(network.sentences(part), "sentences")
            known = [torch.from_numpy(self._vectors)] if len(self._vectors) else []
            self._vectors = stacked([*known, torch.from_numpy(new)]).numpy()
            self._rows |= {_digest(text): len(self._rows) + i for i, text in enumerate(part)}
            digests = np.frombuffer(b"".join(self._rows), np.uint8).reshape(-1, _DIGEST)
            with atomic_file(self.path) as temporary, temporary.open("wb") as file:
                np.savez(file, digests=digests, vectors=self._vectors)
        return len(lacking)

    def read(self, texts: Sequence[str]) -> Floats:
        """Vectors ``[len(texts), D]``, or ``[len(texts), K, D]`` where a sentence has several."""
        rows = [self._rows.get(_digest(text), -1) for text in texts]
        if -1 in rows:
            raise UserError(
                f"{self.path}: has no vector of {rows.count(-1)} of {len(rows)} sentences;"
                f" {_REMEDY}."
            )
        return self._vectors[rows]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:_DIGEST]


class CachedVectors:
    """The vectors of one model on one set."""

    def __init__(self, cache: Path, model: ImageTextModel, data: PreparedSet) -> None:
        self._model, self._data = model, data
        self._network: Network | None = None
        own = cache / str(model.content_hash)
        self._sentences = StoredSentences(own / "sentences.npz", model.dim)
        self.folder = own / data.content_hash
        self._count = model.grid.rows * model.grid.columns
        shapes = {"regions.f32": self._count * model.dim}
        shapes |= {"whole.f32": model.dim} if model.outputs.has_whole else {}
        sizes = {name: 4 * len(data) * width for name, width in shapes.items()}
        sizes |= {name.replace(".f32", ".sums"): 4 * len(data) for name in shapes}
        if any(_size(self.folder / name) != size for name, size in sizes.items()):
            with atomic_folder(self.folder) as temporary:
                for name, size in sizes.items():
                    with (temporary / name).open("wb") as file:
                        file.truncate(size)
        rows = {n: StoredRows(self.folder / n, len(data), w) for n, w in shapes.items()}
        self._regions, self._whole = rows["regions.f32"], rows.get("whole.f32")

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
        self._network = Network(self._model, self._data)
        wanted = np.array(sorted(set(rows)), dtype=np.int64)
        mapped = np.isin(wanted, sorted(set(regions))) | (not self._model.outputs.whole_alone)
        there = self._regions.written(wanted) | ~mapped
        if self._whole is not None:
            there &= self._whole.written(wanted)
        lacking, mapped = wanted[~there], mapped[~there]
        self._check_room(len(lacking), int(mapped.sum()))
        self._sentences.encode(texts, self._network)
        for start in range(0, len(lacking), batch_size):
            part = slice(start, start + batch_size)
            self._encode(lacking[part], mapped[part])
            if progress:
                progress(min(start + batch_size, len(lacking)), len(lacking))
        return len(lacking)

    def read(self, *, regions: bool) -> View:
        """The vectors, with the regions of the images or with what a whole score needs alone."""
        return View(self, regions)

    def sentences(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors ``[len(texts), D]``, on the model's device."""
        return torch.from_numpy(self._sentences.read(texts)).to(self._model.device)

    def images(self, rows: Sequence[int], *, regions: bool) -> ImageFeatures:
        """Features of images, on the model's device.

        Without ``regions`` a model that scores by whole images has its whole as the only region.
        """
        whole = None
        if self._whole is not None:
            whole = torch.from_numpy(self._sound(self._whole, rows))
            if not regions and self._model.outputs.whole_alone:
                return ImageFeatures(whole[:, None], whole).to(self._model.device)
        found = torch.from_numpy(self._sound(self._regions, rows))
        shaped = found.reshape(len(rows), self._count, -1)
        return ImageFeatures(shaped, whole).to(self._model.device)

    def _encode(self, rows: NDArray[np.int64], mapped: NDArray[np.bool_]) -> None:
        assert self._network is not None
        with torch.inference_mode():
            features = self._network.images(rows.tolist())
        if features.regions.shape[1] != self._count:
            raise UserError(
                f"the model gives {features.regions.shape[1]} regions an image and says that it"
                f" has {self._count}; its folder is damaged."
            )
        found = finite(features.regions.flatten(1), "images")
        if mapped.any():
            self._regions.write(rows[mapped], found[mapped])
        if self._whole is not None and features.whole is not None:
            self._whole.write(rows, finite(features.whole, "images"))

    def _sound(self, stored: StoredRows, rows: Sequence[int]) -> Floats:
        values, sound = stored.read(rows)
        if not sound.all():
            damaged = np.asarray(rows, dtype=np.int64)[~sound]
            if self._network is None:
                raise UserError(
                    f"{self.folder}: {len(damaged)} of {len(rows)} images have no vectors, or"
                    f" damaged ones (row {damaged[0]} is the first); {_REMEDY}."
                )
            self._encode(damaged, np.full(len(damaged), stored is self._regions))
            values, _ = stored.read(rows)
        return values

    def _check_room(self, images: int, mapped: int) -> None:
        whole = 0 if self._whole is None else self._whole.width
        needed = 4 * (mapped * self._regions.width + images * whole)
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


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None
