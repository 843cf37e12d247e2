"""A search index on disk: one folder, opened in constant time (docs/search.md, Files)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel

from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.files import check_guarded, file_hash, read_json, write_json
from medclip_debias.grounding.search.landmarks import Regions
from medclip_debias.grounding.search.learn import IMAGE_FILE, LANDMARKS_FILE, TEXT_FILE

FORMAT = 1
META, REGIONS, ITEMS = "index.json", "regions.bin", "items.arrow"
FILES = (ITEMS, TEXT_FILE, IMAGE_FILE, LANDMARKS_FILE, REGIONS)
AGAIN = "run 'index' again"
HASHES = "hashes"
_LARGEST = 16 << 20
_SAMPLE = 64  # images whose regions a hash is taken of: all would be tens of gigabytes


class _Candidates(BaseModel):
    sentences: int
    images: int


class _Meta(BaseModel):
    """What must stand in ``index.json``, whatever else does."""

    format: Literal[1]
    regions: tuple[int, int, int]
    bytes: dict[str, int]
    hashes: dict[str, str]
    candidates: _Candidates
    model_hash: str | None
    data_hash: str


def read_meta(folder: Path) -> dict[str, Any]:
    """The checked content of an index's ``index.json``."""
    path = folder / META
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give one that 'index' wrote.")
    if not path.is_file():
        raise UserError(
            f"{folder}: this is not a search index (it has no {META}); run 'index' first."
        )
    content = read_json(path, AGAIN, keys=("format",), limit=_LARGEST, folder=folder)
    meta = validate(_Meta, content, str(path))
    images, regions, dim = meta.regions
    sizes = meta.bytes | {REGIONS: images * regions * dim * 2}
    for name in FILES:
        if not (folder / name).exists():
            raise UserError(f"{folder / name}: this file of the index is missing; {AGAIN}.")
        check_guarded(folder / name, AGAIN, folder=folder)
        actual = (folder / name).stat().st_size
        if actual != sizes.get(name) or name not in meta.hashes:
            raise UserError(
                f"{folder / name}: has {actual} bytes where {sizes.get(name)} are needed; the file"
                f" is damaged, {AGAIN}."
            )
    return content


def write_meta(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Write ``index.json`` beside the other files: ``content``, their sizes and their hashes."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    hashes = {name: _hash(folder / name, content["regions"]) for name in FILES}
    meta = {"format": FORMAT, **content, "bytes": sizes, HASHES: hashes}
    write_json(folder / META, meta)
    return meta


def check_content(folder: Path, name: str, meta: dict[str, Any]) -> Path:
    """The path of a file of an index that has the hash which ``index.json`` tells."""
    path = folder / name
    if _hash(path, meta["regions"]) != meta[HASHES][name]:
        raise UserError(
            f"{path}: is damaged or was changed, its content does not have the hash in {META};"
            f" {AGAIN}."
        )
    return path


def _hash(path: Path, shape: Sequence[int]) -> str:
    """A file's hash; of `REGIONS` that of some images alone."""
    if path.name != REGIONS:
        return file_hash(path)
    regions = map_regions(path, shape)
    chosen = np.linspace(0, len(regions) - 1, min(_SAMPLE, len(regions))).astype(int)
    return hashlib.sha256(b"".join(regions[row].tobytes() for row in chosen)).hexdigest()[:16]


def map_regions(path: Path, shape: Sequence[int]) -> Regions:
    """Stored regions ``[n, N, D]``, memory-mapped and read-only."""
    return np.memmap(path, dtype=np.float16, mode="r", shape=tuple(shape))


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
