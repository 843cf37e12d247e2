"""A search index on disk: one folder, opened in constant time (docs/search.md, Files)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.files import check_guarded, file_hash, read_json
from medclip_debias.grounding.search.learn import IMAGE_FILE, LANDMARKS_FILE, TEXT_FILE
from medclip_debias.grounding.search.ranking import Regions

FORMAT = 1
META, REGIONS, ITEMS = "index.json", "regions.bin", "items.arrow"
FILES = (META, REGIONS, ITEMS, TEXT_FILE, IMAGE_FILE, LANDMARKS_FILE)
AGAIN = "run 'index' again"
HASHES = "hashes"
_LARGEST = 16 << 20
_SAMPLE = 64  # images whose regions a hash is taken of: all would be tens of gigabytes


def read_meta(folder: Path) -> dict[str, Any]:
    """The checked content of an index's ``index.json``.

    Raises:
        UserError: ``folder`` is no whole index of this format.
    """
    path = folder / META
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give one that 'index' wrote.")
    if not path.is_file():
        raise UserError(f"{folder}: this is no search index (it has no {META}); run 'index' first.")
    meta = read_json(path, AGAIN, keys=("format",), limit=_LARGEST, folder=folder)
    version = meta["format"]
    if version != FORMAT:
        raise UserError(
            f"{path}: the index has format {version}, this program reads {FORMAT}; {AGAIN}."
        )
    for name in FILES:
        if not (folder / name).exists():
            raise UserError(f"{folder / name}: this file of the index is missing; {AGAIN}.")
        check_guarded(folder / name, AGAIN, folder=folder)
    try:
        images, regions, dim = (int(side) for side in meta["regions"])
        expected = {name: int(meta["bytes"][name]) for name in FILES if name != META}
        for name in expected:
            str(meta[HASHES][name])
        for kind in ("sentences", "images"):
            int(meta["candidates"][kind])
        str(meta["model_hash"])
        str(meta["data_hash"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: the file is damaged or was edited ({type(error).__name__}); {AGAIN}."
        ) from error
    expected[REGIONS] = images * regions * dim * 2
    for name, size in expected.items():
        actual = (folder / name).stat().st_size
        if actual != size:
            raise UserError(
                f"{folder / name}: has {actual} bytes where {size} are needed; the file is"
                f" damaged, {AGAIN}."
            )
    return dict(meta)


def content_hashes(folder: Path, shape: tuple[int, int, int]) -> dict[str, str]:
    """Hash of each file of an index but its ``index.json``; of `REGIONS` some images alone."""
    hashes = {name: file_hash(folder / name) for name in FILES if name not in (META, REGIONS)}
    return hashes | {REGIONS: _sample_hash(folder / REGIONS, shape)}


def check_content(folder: Path, name: str, meta: dict[str, Any]) -> Path:
    """The path of a file of an index that has the hash which ``index.json`` tells.

    Raises:
        UserError: it has another one.
    """
    path = folder / name
    actual = _sample_hash(path, meta["regions"]) if name == REGIONS else file_hash(path)
    if actual != meta[HASHES][name]:
        raise UserError(
            f"{path}: is damaged or was changed, its content does not have the hash in {META};"
            f" {AGAIN}."
        )
    return path


def _sample_hash(path: Path, shape: Sequence[int]) -> str:
    regions = map_regions(path, (shape[0], shape[1], shape[2]))
    chosen = np.linspace(0, len(regions) - 1, min(_SAMPLE, len(regions))).astype(int)
    digest = hashlib.sha256()
    for row in chosen:
        digest.update(regions[row].tobytes())
    return digest.hexdigest()[:16]


def map_regions(path: Path, shape: tuple[int, int, int]) -> Regions:
    """Stored regions ``[n, N, D]``, memory-mapped and read-only."""
    return np.memmap(path, dtype=np.float16, mode="r", shape=shape)


def write_items(path: Path, images: pd.DataFrame) -> None:
    """Store the ids of the images, in the order of their regions."""
    import pyarrow as pa

    columns = {name: images[name].astype(str).tolist() for name in ("image_id", "study_id")}
    table = pa.table(
        {name: pa.array(values, pa.large_string()) for name, values in columns.items()}
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def map_items(path: Path) -> Any:
    """The table that `write_items` wrote, memory-mapped: rows are read when they are asked for."""
    import pyarrow as pa

    try:
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise UserError(f"{path}: cannot be read as a table; {AGAIN}.") from error


class RegionFile:
    """Regions written image after image; a file that was cut off resumes at a whole batch."""

    def __init__(self, path: Path, shape: tuple[int, int, int], batch: int) -> None:
        self._path = path
        self._shape = shape
        row = shape[1] * shape[2] * 2
        have = path.stat().st_size // row if path.is_file() else 0
        # Whole batches only: a batch of another size may round otherwise.
        self.done = shape[0] if have >= shape[0] else have // batch * batch
        self._stream = path.open("r+b" if path.is_file() else "w+b")
        self._stream.truncate(self.done * row)
        self._stream.seek(self.done * row)

    def append(self, regions: NDArray[np.float16]) -> None:
        """Write the next images' vectors.

        Raises:
            ValueError: they are not of the file's shape, so that all after them would be misread.
        """
        if regions.shape[1:] != self._shape[1:]:
            raise ValueError(f"expected [B, *{self._shape[1:]}], got {regions.shape}")
        self._stream.write(np.ascontiguousarray(regions).tobytes())
        self.done += len(regions)

    def close(self) -> Regions:
        """Flush to the disk and return everything, memory-mapped."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        return map_regions(self._path, self._shape)
