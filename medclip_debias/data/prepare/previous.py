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

    def __init__(
        self,
        out: Path,
        settings: PrepareSettings,
        options: dict[str, Any],
    ) -> None:
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
        self._images: dict[str, tuple[str, tuple[int, int, int, str, str]]] = {}
        self._reports: dict[str, tuple[str, Counts, Counts]] = {}
        self._places: dict[str, tuple[int, int]] = {}
        if self.usable:
            self._read(found)

    def row(self, image_id: str, stamp: str) -> tuple[int, int, int, str, str] | None:
        """Return what is known of an image whose file has not changed.

        That is its row, height, width, what was mended, and the hash of the row's pixels.
        """
        found = self._images.get(image_id)
        return found[1] if found is not None and found[0] == stamp else None

    def sentences(self, study_id: str, stamp: str) -> tuple[Sentences, Counts, Counts] | None:
        """Return the sentences of a report that has not changed, and what was left aside.

        The counts are of dropped sentences, and of words used and left aside.
        """
        found = self._reports.get(study_id)
        if found is None or found[0] != stamp:
            return None
        start, stop = self._places.get(study_id, (0, 0))
        table = self._table.slice(start, stop - start)
        columns = (table.column(name).to_pylist() for name in ("section", "text"))
        return [list(pair) for pair in zip(*columns, strict=True)], *found[1:]

    def _read(self, found: PreparedSet) -> None:
        import pyarrow.parquet as pq

        inputs = read_parquet(found.folder / INPUTS)
        images = inputs["what"] == "image"
        stamps = dict(zip(inputs["id"][images], inputs["stamp"][images], strict=True))
        mended = (
            dict(zip(inputs["id"][images], inputs["mended"][images], strict=True))
            if "mended" in inputs
            else {}
        )
        hashes = read_parquet(found.folder / layout.MANIFEST)["pixel_hash"]
        sizes = (found.images[name].astype(int) for name in ("height", "width"))
        for row, (name, height, width, pixels) in enumerate(
            zip(found.images["image_id"], *sizes, hashes, strict=bool(len(found.images)))
        ):
            known = row, int(height), int(width), mended.get(name, ""), pixels
            self._images[name] = stamps.get(name, ""), known
        reports = inputs[~images]
        columns = (reports[name] for name in ("id", "stamp", "dropped", "words"))
        for name, stamp, dropped, words in zip(*columns, strict=True):
            self._reports[name] = (stamp, json.loads(dropped), json.loads(words))
        # As Arrow: a data frame of two million strings needs ten times the memory.
        self._table = pq.read_table(found.folder / "sentences.parquet").combine_chunks()
        if not self._table.num_rows:
            return
        codes = self._table.column("study_id").combine_chunks().dictionary_encode()
        index = codes.indices.to_numpy()
        starts = np.concatenate([[0], np.flatnonzero(np.diff(index)) + 1])
        stops = np.concatenate([starts[1:], [len(index)]])
        names = codes.dictionary.to_pylist()
        for start, stop in zip(starts, stops, strict=True):
            self._places[names[index[start]]] = (int(start), int(stop))
