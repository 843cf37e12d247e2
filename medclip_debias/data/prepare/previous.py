"""What an earlier prepared set lends to a new run over a source that has grown since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from medclip_debias.config import PrepareSettings
from medclip_debias.data import layout
from medclip_debias.data.prepare.assemble import INPUTS
from medclip_debias.data.prepare.chunks import made_by
from medclip_debias.data.prepare.pixels import KnownRow
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.parquet import read_parquet

Sentences = list[list[str]]
Counts = dict[str, Any]


class Previous:
    """Rows and sentences of a set, for images and reports that have not changed.

    Args:
        out: the earlier set.
        settings: how files become rows now; other settings would make other rows.
        options: how the source is read now.

    Raises:
        UserError: it is no prepared set, or was prepared with other settings.
    """

    def __init__(self, out: Path, settings: PrepareSettings, options: dict[str, Any]) -> None:
        if not (out / "meta.json").is_file():
            raise UserError(
                f"{out}: there is no prepared set to update; leave out --update the first time."
            )
        found = PreparedSet.open(out)
        if found.settings != settings:
            old, new = (s.model_dump(mode="json") for s in (found.settings, settings))
            name = next(name for name in new if old[name] != new[name])
            raise UserError(
                f"{out}: was prepared with {name} {old[name]}, now it is {new[name]}; give the same"
                " settings, or --overwrite to prepare anew."
            )
        self.rows_path = out / "images.bin"
        self.content_hash = found.content_hash
        self.usable = (
            found.meta.get("made_by") == made_by()
            and found.meta.get("options") == options
            and (out / INPUTS).is_file()
        )
        self._images: dict[str, tuple[str, KnownRow]] = {}
        self._reports: dict[str, tuple[str, Counts, Counts]] = {}
        self._places: dict[str, tuple[int, int]] = {}
        if self.usable:
            self._read(found)

    def row(self, image_id: str, stamp: str) -> KnownRow | None:
        """Return what is known of an image whose file has not changed."""
        known = self._images.get(image_id)
        return known[1] if known is not None and known[0] == stamp else None

    def sentences(self, study_id: str, stamp: str) -> tuple[Sentences, Counts, Counts] | None:
        """Return the sentences of a report that has not changed, and what was left aside.

        The counts are of dropped sentences, and of words used and left aside.
        """
        known = self._reports.get(study_id)
        if known is None or known[0] != stamp:
            return None
        columns = self._table.slice(*self._places.get(study_id, (0, 0))).to_pydict()
        return [list(pair) for pair in zip(*columns.values(), strict=True)], *known[1:]

    def _read(self, found: PreparedSet) -> None:
        import pyarrow.parquet as pq

        inputs = read_parquet(found.folder / INPUTS)
        images = inputs[inputs["what"] == "image"].set_index("id")
        stamps = images["stamp"].to_dict()
        mended = images["mended"].to_dict() if "mended" in images else {}
        hashes = read_parquet(found.folder / layout.MANIFEST)["pixel_hash"]
        columns = (found.images[name] for name in ("image_id", "height", "width"))
        for row, (name, *size, pixels) in enumerate(zip(*columns, hashes, strict=False)):
            known = KnownRow(row, int(size[0]), int(size[1]), mended.get(name, ""), pixels)
            self._images[name] = stamps[name], known
        reports = inputs[inputs["what"] == "report"]
        columns = (reports[name] for name in ("id", "stamp", "dropped", "words"))
        for name, stamp, dropped, words in zip(*columns, strict=True):
            self._reports[name] = stamp, json.loads(dropped), json.loads(words)
        # As Arrow: a data frame of two million strings needs ten times the memory.
        table = pq.read_table(found.folder / "sentences.parquet").combine_chunks()
        self._table = table.select(["section", "text"])
        if table.num_rows:  # those of a study follow one another
            codes = table.column("study_id").combine_chunks().dictionary_encode()
            places = np.unique(codes.indices.to_numpy(), return_index=True, return_counts=True)
            for code, start, count in zip(*places, strict=True):
                self._places[codes.dictionary[int(code)].as_py()] = int(start), int(count)
