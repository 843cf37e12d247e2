"""What a set lends to a run over its source that has grown since: its rows and sentences."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from medclip_debias.config import PrepareSettings
from medclip_debias.data import layout
from medclip_debias.data.executor import chunks as cut
from medclip_debias.data.prepare.assemble import INPUTS
from medclip_debias.data.prepare.chunks import Chunks, Key, Pool, Values, made_by
from medclip_debias.data.prepare.pixels import images_of_a_chunk, row_value
from medclip_debias.data.prepare.studies import CHUNK_STUDIES
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.parquet import read_parquet


def check_update(out: Path, settings: PrepareSettings) -> PreparedSet:
    """Return the set to update."""
    if not (out / "meta.json").is_file():
        raise UserError(
            f"{out}: there is no prepared set to update; leave out --update the first time."
        )
    earlier = PreparedSet.open(out)
    if earlier.settings != settings:
        old, new = (s.model_dump(mode="json") for s in (earlier.settings, settings))
        name = next(name for name in new if old[name] != new[name])
        raise UserError(
            f"{out}: was prepared with {name} {old[name]}, now it is {new[name]}; give the same"
            " settings, or --overwrite to prepare anew."
        )
    return earlier


def lend(
    earlier: PreparedSet,
    chunks: Chunks,
    selected: Collection[Key],
    options: dict[str, Any],
    pool: Pool,
) -> None:
    """Write the rows of unchanged images, and the sentences of all reports, as chunks."""
    folder = earlier.folder
    same = earlier.meta.get("made_by") == made_by() and earlier.meta.get("options") == options
    if not same or not (folder / INPUTS).is_file():
        pool.tell(f"{folder}: was written by another version; everything is read again.")
        return
    chunks.folder.mkdir(exist_ok=True)
    inputs = read_parquet(folder / INPUTS)
    rows = (row for row in _rows(earlier, inputs[inputs["what"] == "image"]) if row[0] in selected)
    copy = partial(_copy_rows, chunks, folder / "images.bin")
    damaged = sum(pool.map(copy, cut(rows, images_of_a_chunk(earlier.settings.size))))
    if damaged:
        pool.tell(
            f"{folder / 'images.bin'}: {damaged} of its rows were not what was prepared; their"
            " images were read again. Check the disk, and what was made with this set."
        )
    reports = _reports(folder / "sentences.parquet", inputs[inputs["what"] == "report"])
    for _ in pool.map(partial(chunks.write, "reports"), map(dict, cut(reports, CHUNK_STUDIES))):
        pass


_Row = tuple[Key, dict[str, Any]]


def _rows(earlier: PreparedSet, images: Any) -> Iterator[_Row]:
    mended = images["mended"] if "mended" in images else [""] * len(images)
    sides = (earlier.images[name].tolist() for name in ("height", "width"))
    hashes = read_parquet(earlier.folder / layout.MANIFEST)["pixel_hash"]
    columns = (images["id"], images["stamp"], *sides, hashes, mended)
    for row, (image, stamp, *about) in enumerate(zip(*columns, strict=False)):
        yield (image, stamp), row_value(row, *about)


def _copy_rows(chunks: Chunks, source: Path, rows: list[_Row]) -> int:
    """Write a chunk of the rows that are what was prepared; return how many are not."""
    values: Values = {}
    kept: list[bytes] = []
    with source.open("rb") as file:
        for key, value in rows:
            file.seek(value["row"] * chunks.row_bytes)
            pixels = file.read(chunks.row_bytes)
            if layout.short_hash(pixels) == value["hash"]:
                values[key] = value | {"row": len(kept)}
                kept.append(pixels)
    chunks.write("images", values, b"".join(kept))
    return len(rows) - len(kept)


def _reports(sentences: Path, reports: Any) -> Iterator[_Row]:
    """The sentences of each report, streamed: two million of them need gigabytes."""
    import pyarrow.parquet as pq

    columns = (reports[name] for name in ("id", "stamp", "dropped", "words"))
    about = {study: (stamp, *counts) for study, stamp, *counts in zip(*columns, strict=True)}
    batches = pq.ParquetFile(sentences).iter_batches(columns=["study_id", "section", "text"])
    rows = (row.values() for batch in batches for row in batch.to_pylist())
    for study, group in groupby(map(tuple, rows), itemgetter(0)):
        stamp, dropped, words = about[study]
        if stamp:
            found = [[section, text] for _, section, text in group]
            counts = {"dropped": json.loads(dropped), "words": json.loads(words)}
            yield (study, stamp), {"sentences": found, **counts}
