"""An archive's own tables, as files of a prepared set: progression, readers, sentences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from medclip_debias.data.funnel import Funnel
from medclip_debias.data.records import Annotations


def kept_annotations(
    found: Sequence[Annotations],
    images: Collection[str],
    studies: Collection[str],
    funnel: Funnel,
) -> list[Annotations]:
    """Return the tables with the rows whose images (or study) are in the set, and count them.

    Args:
        found: what the source has.
        images: ids of the set's images.
        studies: ids of its studies.
        funnel: gets the steps.
    """
    kept = []
    for table in found:
        names = [name for name, _ in table.columns]
        at = [names.index(name) for name in table.images]
        study = names.index(table.study) if table.study else None
        rows = [
            row
            for row in table.rows
            if all(row[place] in images for place in at)
            and (study is None or row[study] in studies)
        ]
        funnel.step(f"{table.unit} listed in {table.name}", table.unit, len(table.rows))
        whose = "images are" if len(at) > 1 else "image is" if at else "study is"
        step = f"{whose} in the set, of {table.unit} in {table.name}"
        funnel.step(step, table.unit, len(rows), len(table.rows))
        kept.append(replace(table, rows=rows))
    return kept


def file_name(table: Annotations) -> str:
    """Name of a table's file in the set."""
    return f"{table.name}.parquet"


def write_annotations(folder: Path, tables: Sequence[Annotations]) -> None:
    """Write each table to its own Parquet file in ``folder``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "text": pa.string(),
        "number": pa.int64(),
        "yes_no": pa.bool_(),
        "texts": pa.list_(pa.string()),
        "boxes": pa.list_(pa.list_(pa.float64())),
    }
    for table in tables:
        schema = pa.schema([(name, types[kind]) for name, kind in table.columns])
        columns: list[list[Any]] = [[row[at] for row in table.rows] for at in range(len(schema))]
        arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
        pq.write_table(pa.Table.from_arrays(arrays, schema=schema), folder / file_name(table))
