"""Prepared sets that tests write by hand: what follows from their tables and pixels."""

from pathlib import Path
from typing import Any

import pandas as pd

from medclip_debias.config import PrepareSettings
from medclip_debias.data import layout
from medclip_debias.files import write_json


def finish_set(
    folder: Path, tables: dict[str, pd.DataFrame], size: int, meta: dict[str, Any]
) -> None:
    """Write the tables beside ``images.bin``, and ``meta.json`` with the hashes of both.

    Nothing was rejected; ``meta`` holds the steps of the selection.
    """
    (folder / "rejected.csv").write_text("image_id,reason\n")
    write_json(folder / "funnel.json", meta["funnel"])
    settings, images = PrepareSettings(size=size), tables["images"]
    pixels = (folder / "images.bin").read_bytes()
    rows = [pixels[n * size**2 : (n + 1) * size**2] for n in range(len(images))]
    manifest = images[["image_id", "study_id", "split"]].assign(
        row=range(len(images)), pixel_hash=[layout.short_hash(row) for row in rows], text_hash=""
    )
    phrases = tables["phrases"]
    boxes = phrases[["phrase_id", "image_id", "split"]].assign(
        boxes=[len(boxes) for boxes in phrases["boxes"]], flat=0, outside=0, clipped=0
    )
    boxes = boxes.assign(scaled=False, other_shape=False)
    for name, table in {**tables, "manifest": manifest, "phrase_boxes": boxes}.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    digest = layout.ContentHash(settings, meta["kind"])
    for name in layout.TABLES:
        table = tables[name].astype(object).where(tables[name].notna(), None)
        digest.rows(name, list(table), table.itertuples(index=False, name=None))
    digest.pixels(manifest["pixel_hash"])
    hashes = {
        "files": [layout.MANIFEST, layout.PHRASE_BOXES],
        layout.HASHES: layout.table_hashes(folder),
        "content_hash": digest.hexdigest(),
    }
    about = {"format_version": layout.FORMAT_VERSION, "settings": settings.model_dump(mode="json")}
    write_json(folder / "meta.json", about | meta | hashes)
