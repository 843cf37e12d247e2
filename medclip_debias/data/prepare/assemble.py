"""From the chunks of one run, or of all parts of a set, to the files of the prepared set.

Everything is ordered by the place that the selection gave each image, so the bytes depend
neither on the number of processes nor on the number of parts. Sentences pass through in a
stream; what is kept in memory is a few hundred bytes a study and an image.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data import layout
from medclip_debias.data.boxes import Fitted, check_sizes, fit_boxes
from medclip_debias.data.executor import chunks as cut
from medclip_debias.data.funnel import Funnel
from medclip_debias.data.masks import as_coco
from medclip_debias.data.named_split import SPLIT_FILE
from medclip_debias.data.prepare.chunks import Values
from medclip_debias.data.prepare.results import Results, Row
from medclip_debias.data.prepare.select import Plan
from medclip_debias.data.prepare.studies import Part, Study
from medclip_debias.data.prepare.workspace import Workspace
from medclip_debias.data.records import Annotations, PhraseRecord
from medclip_debias.errors import UserError, without_patients
from medclip_debias.files import write_json

INPUTS = "inputs.parquet"
"""What each row and each report was read from, so that a later run knows what changed."""

MISSING_IMAGES, UNUSED_REPORTS = "missing.csv", "unused_reports.csv"
"""Image files that are listed and not there; studies whose report gave no sentence, and why."""

_ROW_GROUP = 1 << 16  # rows; fixed, so that the file does not depend on how they came
_OPEN_CHUNKS = 16  # those of a resumed run or an update take turns
_KINDS = {
    **dict.fromkeys(("height", "width", "position", "row"), "number"),
    **dict.fromkeys(("boxes", "flat", "outside", "clipped"), "number"),
    **dict.fromkeys(("scaled", "other_shape"), "yes_no"),
}
"""Of the columns that are no text, as `medclip_debias.data.records.Annotations` names kinds."""

_Rows = Iterable[tuple[Any, ...]]


def assemble(
    folder: Path, parts: Sequence[Part], plan: Plan, work: Workspace | None = None
) -> None:
    """Write the prepared set of ``parts`` to ``folder``.

    Args:
        folder: exists.
        parts: all of the set.
        plan: of all parts, without images.
        work: the run that made the only part; where the disk has no room for two copies of the
            rows, each chunk is removed when it was copied. Other parts are compared with their
            hashes and left as they are.
    """
    results = Results(parts, SelectionSettings.model_validate(plan.meta["selection"]))
    funnel = Funnel(plan.funnel)
    studies = results.count(funnel, plan.text_only)
    funnel.start = 0
    funnel.stop_if_empty(len(studies))
    _join_rows(folder / "images.bin", parts, results.rows, work)
    images = _images(studies, results.rows)
    sizes = {image: (width, height) for image, *_, height, width in images}
    fitted = [
        (p, fit_boxes(p.boxes, p.annotated_size, size) if (size := sizes.get(p.image_id)) else None)
        for p in plan.phrases
    ]
    _count_boxes(fitted, funnel)
    ids = set(sizes), {study.study_id for study in studies}
    others = [_kept(table, *ids, funnel) for table in plan.annotations]
    labels = sorted({name for part in parts for name in part.labels})
    sentences = _Sentences(results)
    tables = [
        ("images", _typed(layout.IMAGE_COLUMNS), images),
        (
            "studies",
            {**_typed(layout.STUDY_COLUMNS), **dict.fromkeys(labels, "real")},
            _labelled(studies, labels, results),
        ),
        ("sentences", _typed(layout.SENTENCE_COLUMNS), sentences.rows(studies)),
        ("phrases", *_phrases(fitted)),
        *((other.name, dict(other.columns), map(tuple, other.rows)) for other in others),
    ]
    settings = PrepareSettings.model_validate(plan.meta["settings"])
    digest = layout.ContentHash(settings, plan.meta["kind"])
    counts = {
        name: digest.rows(name, list(kinds), _written(folder / f"{name}.parquet", kinds, rows))
        for name, kinds, rows in tables
    }
    digest.pixels(row.hash for row in results.rows)
    manifest = _manifest(images, results.rows, studies, sentences.hashes)
    for file, kinds, rows in (
        (layout.PHRASE_BOXES, _typed(layout.PHRASE_BOX_COLUMNS), _phrase_boxes(fitted)),
        (layout.MANIFEST, _typed(layout.MANIFEST_COLUMNS), manifest),
        (INPUTS, *_inputs(studies, results)),
    ):
        for _ in _written(folder / file, kinds, rows):
            pass
    table = pd.DataFrame(manifest, columns=list(layout.MANIFEST_COLUMNS))
    _count_copies(table, funnel)
    rejected = [*plan.rejected, *results.rejected]
    shown = [(name, without_patients(reason)) for name, reason in rejected]
    write_csv(folder / "rejected.csv", ("image_id", "reason"), shown)
    write_csv(folder / MISSING_IMAGES, ("image_id", "path"), plan.missing)
    write_csv(folder / UNUSED_REPORTS, ("study_id", "reason"), results.unused)
    write_json(folder / "funnel.json", funnel.rows)
    files = [layout.MANIFEST, layout.PHRASE_BOXES, INPUTS, MISSING_IMAGES, UNUSED_REPORTS]
    named = {}
    if plan.split is not None:
        plan.split.write(folder / SPLIT_FILE)
        files.append(SPLIT_FILE)
        named = {"split": {"name": plan.split.name, "sha256": plan.split.sha256}}
    other_files = [f"{other.name}.parquet" for other in others]
    meta = {
        "format_version": layout.FORMAT_VERSION,
        **plan.meta,
        "languages": results.languages,
        "labels": labels,
        "counts": {
            **{name: counts[name] for name in layout.TABLES},
            "distinct_sentences": len(sentences.distinct),
            "patients": len({study.patient_id for study in studies}),
            "rejected": len(rejected),
            "images_by_split": dict(Counter(image[4] for image in images).most_common()),
        },
        "funnel": funnel.rows,
        "annotations": [other.name for other in others],
        "files": [*files, *other_files],
        **named,
        layout.HASHES: layout.table_hashes(folder, other_files),
        "source_stamp": plan.source_stamp(sum(part.heads for part in parts)),
        "manifest_hash": layout.manifest_hash(table),
        "content_hash": digest.hexdigest(),
    }
    write_json(folder / "meta.json", meta)


# --------------------------------------------------------------------------------- rows


def _join_rows(
    target: Path, parts: Sequence[Part], rows: Sequence[Row], work: Workspace | None
) -> None:
    """Copy the rows of all chunks to their places; a disk without room for both loses chunks."""
    tight = work is not None and work.free() < len(rows) * parts[0].chunks.row_bytes
    ends = {row.chunk: row.at for row in rows}
    with target.open("wb") as out:
        for (number, name), some in groupby(rows, lambda row: (row.part, row.chunk)):
            chunks = parts[number].chunks
            path = chunks.path(name, ".bin")
            with path.open("rb") as file:
                for row in some:
                    file.seek(row.row * chunks.row_bytes)
                    pixels = file.read(chunks.row_bytes)
                    if work is None and layout.short_hash(pixels) != row.hash:
                        raise UserError(
                            f"{path}, row {row.row}: is not what was prepared; the file is"
                            " damaged, copy or make this part again."
                        )
                    out.write(pixels)
            if tight and ends[name] == row.at:
                out.flush()
                os.fsync(out.fileno())
                chunks.remove(name)


# ------------------------------------------------------------------------------- tables


def _typed(names: Iterable[str]) -> dict[str, str]:
    return {name: _KINDS.get(name, "text") for name in names}


def _written(path: Path, kinds: Mapping[str, str], rows: _Rows) -> _Rows:
    """Write a table, yielding each of its rows; a few thousand are held at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "text": pa.string(),
        "number": pa.int64(),
        "real": pa.float64(),
        "yes_no": pa.bool_(),
        "texts": pa.list_(pa.string()),
        "boxes": pa.list_(pa.list_(pa.float64())),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in kinds.items()])
    with pq.ParquetWriter(path, schema) as writer:
        for some in cut(rows, _ROW_GROUP):
            columns = zip(zip(*some, strict=True), schema.types, strict=True)
            arrays = [pa.array(column, kind) for column, kind in columns]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            yield from some


def _images(studies: Sequence[Study], rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    images = {image.at: (image, study) for study in studies for image in study.images}
    records = []
    for row in rows:
        image, study = images[row.at]
        ids = image.image_id, study.study_id, study.patient_id
        records.append((*ids, image.view, study.split, row.height, row.width))
    return records


def _labelled(studies: Sequence[Study], labels: Sequence[str], results: Results) -> _Rows:
    """Yield the ids and labels of each study; a part may name later what others name first."""
    places = [{name: place for place, name in enumerate(part.labels)} for part in results.parts]
    for study in studies:
        known = places[results.reports[study.study_id].part]
        values = dict(zip(known, study.labels, strict=False))
        yield study.study_id, study.patient_id, study.split, *map(values.get, labels)


_Boxes = list[tuple[PhraseRecord, Fitted | None]]
"""Each phrase of the source and its boxes on its image, ``None`` where the set lacks the image."""


def _phrases(fitted: _Boxes) -> tuple[dict[str, str], _Rows]:
    kept = [(p, found.boxes) for p, found in fitted if found is not None and found.boxes]
    kinds = _typed(layout.PHRASE_COLUMNS) | {"boxes": "boxes"}
    rows = [(p.phrase_id, p.image_id, p.category, p.text, p.split, boxes) for p, boxes in kept]
    if any(p.mask is not None for p, _ in kept):  # sets without masks keep their hashes
        kinds[layout.MASK_COLUMN] = "text"
        masks = (as_coco(p.mask) if p.mask is not None else "" for p, _ in kept)
        return kinds, [(*row, mask) for row, mask in zip(rows, masks, strict=True)]
    return kinds, rows


def _phrase_boxes(fitted: _Boxes) -> _Rows:
    """What became of every phrase's boxes: counted here, and read wherever they are reported."""
    for phrase, boxes in fitted:
        kept, *rest = boxes or Fitted([])
        yield phrase.phrase_id, phrase.image_id, phrase.split, len(kept), *rest


def _count_boxes(fitted: _Boxes, funnel: Funnel) -> None:
    if not fitted:
        return
    known = [(phrase, boxes) for phrase, boxes in fitted if boxes is not None]
    check_sizes(known)
    alike = [(phrase, boxes) for phrase, boxes in known if not boxes.other_shape]
    listed = sum(len(phrase.boxes) for phrase, _ in alike)
    with_area = listed - sum(boxes.flat for _, boxes in alike)
    inside = with_area - sum(boxes.outside for _, boxes in alike)
    kept = [phrase for phrase, boxes in alike if boxes.boxes]
    funnel.step("phrases listed", "phrases", len(fitted))
    funnel.step("image of the phrase kept", "phrases", len(known), len(fitted))
    step = "image has the shape it had when it was annotated"
    funnel.step(step, "phrases", len(alike), len(known))
    funnel.step("box has an area", "boxes", with_area, listed)
    funnel.step("box lies in the image", "boxes", inside, with_area)
    funnel.step("boxes lie in the image", "phrases", len(kept), len(alike))
    if any(phrase.mask is not None for phrase, _ in fitted):
        masked = sum(phrase.mask is not None for phrase in kept)
        funnel.step("phrase has a mask, too", "phrases", masked)


def _manifest(
    images: _Rows, rows: Sequence[Row], studies: Sequence[Study], texts: Mapping[str, str]
) -> list[tuple[Any, ...]]:
    """One row per image, or per study where there are no images: what a model was trained on."""
    if not rows:
        return [("", s.study_id, s.split, -1, "", texts[s.study_id]) for s in studies]
    return [
        (image, study, split, at, row.hash, texts[study])
        for at, ((image, study, _, _, split, *_), row) in enumerate(zip(images, rows, strict=True))
    ]


def _count_copies(manifest: pd.DataFrame, funnel: Funnel) -> None:
    """Count the images whose very pixels are in another split, too: a patient has two ids."""
    splits = manifest.groupby("pixel_hash")["split"].transform("nunique")
    copies = int(((splits > 1) & (manifest["pixel_hash"] != "")).sum())
    if copies:
        step, alone = "image of these pixels is in one split alone", len(manifest) - copies
        funnel.step(step, "images by split", alone, len(manifest))


def _inputs(studies: Sequence[Study], results: Results) -> tuple[dict[str, str], _Rows]:
    rows: list[tuple[str, ...]] = [
        ("image", *results.images[row.at].key, "", "", row.mended) for row in results.rows
    ]
    for study in studies:
        report = results.reports[study.study_id]
        counts = (json.dumps(about, sort_keys=True) for about in (report.dropped, report.words))
        rows.append(("report", study.study_id, study.stamp, *counts, ""))
    mended = ["mended"] if any(row.mended for row in results.rows) else []
    kinds = _typed(("what", "id", "stamp", "dropped", "words", *mended))
    return kinds, [row[: len(kinds)] for row in rows]


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


class _Sentences:
    """Reads the sentences from the chunks, never holding all of them.

    Attributes:
        distinct: eight bytes for each distinct sentence.
        hashes: by study, names its sentences.
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        self.distinct: set[bytes] = set()
        self.hashes: dict[str, str] = {}

    def rows(self, studies: Sequence[Study]) -> _Rows:
        parts = self.results.parts

        @lru_cache(_OPEN_CHUNKS + len(parts))
        def chunk(part: int, name: str) -> Values:
            return parts[part].chunks.values(name)

        for study in studies:
            report = self.results.reports[study.study_id]
            found = chunk(report.part, report.chunk)[study.key]["sentences"]
            text = json.dumps(found, separators=(",", ":"))
            self.hashes[study.study_id] = layout.short_hash(text.encode())
            for position, (section, sentence) in enumerate(found):
                self.distinct.add(hashlib.blake2b(sentence.encode(), digest_size=8).digest())
                yield study.study_id, section, position, sentence


# ------------------------------------------------------------------ the archive's own tables


def _kept(
    table: Annotations, images: Collection[str], studies: Collection[str], funnel: Funnel
) -> Annotations:
    """Return a table with the rows whose images (or study) are in the set, and count them."""
    names = [name for name, _ in table.columns]
    at = [names.index(name) for name in table.images]
    study = names.index(table.study) if table.study else None
    rows = [
        row
        for row in table.rows
        if all(row[place] in images for place in at) and (study is None or row[study] in studies)
    ]
    funnel.step(f"{table.unit} listed in {table.name}", table.unit, len(table.rows))
    whose = "images are" if len(at) > 1 else "image is" if at else "study is"
    step = f"{whose} in the set, of {table.unit} in {table.name}"
    funnel.step(step, table.unit, len(rows), len(table.rows))
    return replace(table, rows=rows)
