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
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data import layout
from medclip_debias.data.boxes import Fitted, check_sizes, fit_boxes
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

_ROW_GROUP = 1 << 16  # sentences; fixed, so that the file does not depend on how they came
_OPEN_CHUNKS = 16  # those of a resumed run or an update take turns


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
    images = _image_table(studies, results.rows)
    fitted = _fit(plan.phrases, images)
    tables = {
        "images": images,
        "studies": _study_table(studies, results),
        "phrases": _phrase_table(fitted),
    }
    _count_boxes(fitted, funnel)
    ids = set(images["image_id"]), set(tables["studies"]["study_id"])
    others = [_kept(table, *ids, funnel) for table in plan.annotations]
    sentences = _Sentences(folder / "sentences.parquet", results)
    settings = PrepareSettings.model_validate(plan.meta["settings"])
    digest = layout.ContentHash(settings, plan.meta["kind"])
    digest.table("images", images)
    digest.table("studies", tables["studies"])
    digest.rows("sentences", layout.SENTENCE_COLUMNS, sentences.write(studies))
    digest.table("phrases", tables["phrases"])
    for other in others:
        digest.rows(other.name, [name for name, _ in other.columns], map(tuple, other.rows))
        _write_annotations(folder / f"{other.name}.parquet", other)
    digest.pixels(row.hash for row in results.rows)
    for name, table in (*tables.items(), ("phrase_boxes", _phrase_boxes(fitted))):
        _write_parquet(folder / f"{name}.parquet", table, name)
    manifest = _manifest(images, results.rows, studies, sentences.hashes)
    _count_copies(manifest, funnel)
    manifest.to_parquet(folder / layout.MANIFEST, index=False)
    _inputs(studies, results).to_parquet(folder / INPUTS, index=False)
    rejected = [*plan.rejected, *results.rejected]
    shown = [(name, without_patients(reason)) for name, reason in rejected]
    _write_csv(folder / "rejected.csv", ("image_id", "reason"), shown)
    _write_csv(folder / MISSING_IMAGES, ("image_id", "path"), plan.missing)
    _write_csv(folder / UNUSED_REPORTS, ("study_id", "reason"), results.unused)
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
        "labels": sorted({name for part in parts for name in part.labels}),
        "counts": {
            "images": len(images),
            "studies": len(studies),
            "sentences": sentences.count,
            "phrases": len(tables["phrases"]),
            "distinct_sentences": len(sentences.distinct),
            "patients": int(tables["studies"]["patient_id"].nunique()),
            "rejected": len(rejected),
            "images_by_split": {k: int(v) for k, v in images["split"].value_counts().items()},
        },
        "funnel": funnel.rows,
        "annotations": [other.name for other in others],
        "files": [*files, *other_files],
        **named,
        layout.HASHES: layout.table_hashes(folder, other_files),
        "source_stamp": plan.source_stamp(sum(part.heads for part in parts)),
        "manifest_hash": layout.manifest_hash(manifest),
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
                    if work is None and layout.pixel_hash(pixels) != row.hash:
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


def _image_table(studies: Sequence[Study], rows: Sequence[Row]) -> pd.DataFrame:
    images = {image.at: (image, study) for study in studies for image in study.images}
    records = []
    for row in rows:
        image, study = images[row.at]
        ids = (image.image_id, study.study_id, study.patient_id)
        records.append((*ids, image.view, study.split, row.height, row.width))
    table = pd.DataFrame(records, columns=list(layout.IMAGE_COLUMNS))
    return table.astype(dict.fromkeys(("height", "width"), np.int64))


def _study_table(studies: Sequence[Study], results: Results) -> pd.DataFrame:
    table = pd.DataFrame(
        [(s.study_id, s.patient_id, s.split) for s in studies], columns=list(layout.STUDY_COLUMNS)
    )
    places = [{name: place for place, name in enumerate(p.labels)} for p in results.parts]
    of_study = [places[results.reports[study.study_id].part] for study in studies]
    for name in sorted(set().union(*places)):
        values = np.full(len(studies), np.nan)
        for row, (study, known) in enumerate(zip(studies, of_study, strict=True)):
            place = known.get(name, len(study.labels))
            value = study.labels[place] if place < len(study.labels) else None
            values[row] = np.nan if value is None else value
        table[name] = values
    return table


_Boxes = list[tuple[PhraseRecord, Fitted | None]]
"""Each phrase of the source and its boxes on its image, ``None`` where the set lacks the image."""


def _fit(phrases: Sequence[PhraseRecord], images: pd.DataFrame) -> _Boxes:
    sides = zip(images["width"].astype(int), images["height"].astype(int), strict=True)
    sizes = dict(zip(images["image_id"], sides, strict=True))
    return [
        (p, fit_boxes(p.boxes, p.annotated_size, size) if (size := sizes.get(p.image_id)) else None)
        for p in phrases
    ]


def _phrase_table(fitted: _Boxes) -> pd.DataFrame:
    kept = [(p, found.boxes) for p, found in fitted if found is not None and found.boxes]
    rows = [(p.phrase_id, p.image_id, p.category, p.text, p.split, boxes) for p, boxes in kept]
    table = pd.DataFrame(rows, columns=list(layout.PHRASE_COLUMNS), dtype=object)
    if any(p.mask is not None for p, _ in kept):  # sets without masks keep their hashes
        masks = [as_coco(p.mask) if p.mask is not None else "" for p, _ in kept]
        table[layout.MASK_COLUMN] = pd.Series(masks, dtype=object)
    return table


def _phrase_boxes(fitted: _Boxes) -> pd.DataFrame:
    """What became of every phrase's boxes: counted here, and read wherever they are reported."""
    rows = []
    for phrase, boxes in fitted:
        kept, *rest = boxes or Fitted([])
        rows.append((phrase.phrase_id, phrase.image_id, phrase.split, len(kept), *rest))
    return pd.DataFrame(rows, columns=list(layout.PHRASE_BOX_COLUMNS), dtype=object)


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
    images: pd.DataFrame, rows: Sequence[Row], studies: Sequence[Study], texts: dict[str, str]
) -> pd.DataFrame:
    """One row per image, or per study where there are no images: what a model was trained on."""
    if rows:
        shown = images[["image_id", "study_id", "split"]].assign(row=range(len(rows)))
    else:
        reports = [("", study.study_id, study.split, -1) for study in studies]
        shown = pd.DataFrame(reports, columns=list(layout.MANIFEST_COLUMNS[:4]))
    return shown.assign(
        pixel_hash=[row.hash for row in rows] if rows else "",
        text_hash=[texts[study] for study in shown["study_id"]],
    )


def _count_copies(manifest: pd.DataFrame, funnel: Funnel) -> None:
    """Count the images whose very pixels are in another split, too: a patient has two ids."""
    splits = manifest.groupby("pixel_hash")["split"].transform("nunique")
    copies = int(((splits > 1) & (manifest["pixel_hash"] != "")).sum())
    if copies:
        step, alone = "image of these pixels is in one split alone", len(manifest) - copies
        funnel.step(step, "images by split", alone, len(manifest))


def _inputs(studies: Sequence[Study], results: Results) -> pd.DataFrame:
    images = [(*results.images[row.at].key, row.mended) for row in results.rows]
    reports = []
    for study in studies:
        report = results.reports[study.study_id]
        counts = (json.dumps(about, sort_keys=True) for about in (report.dropped, report.words))
        reports.append((study.study_id, study.stamp, *counts))
    of_images = pd.DataFrame(images, columns=["id", "stamp", "mended"])
    of_reports = pd.DataFrame(reports, columns=["id", "stamp", "dropped", "words"])
    both = pd.concat([of_images.assign(what="image"), of_reports.assign(what="report")])
    mended = ["mended"] if any(row.mended for row in results.rows) else []
    columns = ["what", "id", "stamp", "dropped", "words", *mended]
    return both.reset_index(drop=True)[columns].fillna("").astype("str")


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def _write_parquet(path: Path, table: pd.DataFrame, name: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = None  # an empty table does not show what its columns would hold
    if name == "phrases":
        types = {"boxes": pa.list_(pa.list_(pa.float64()))}
        schema = pa.schema([(column, types.get(column, pa.string())) for column in table.columns])
    elif name == "phrase_boxes":
        kinds = [pa.string()] * 3 + [pa.int64()] * 4 + [pa.bool_()] * 2
        schema = pa.schema(list(zip(layout.PHRASE_BOX_COLUMNS, kinds, strict=True)))
    pq.write_table(pa.Table.from_pandas(table, schema=schema, preserve_index=False), path)


class _Sentences:
    """Writes ``sentences.parquet`` from the chunks, never holding all sentences.

    Attributes:
        count: sentences written.
        distinct: eight bytes for each distinct sentence.
        hashes: by study, names its sentences.
    """

    def __init__(self, path: Path, results: Results) -> None:
        self.path = path
        self.results = results
        self.count = 0
        self.distinct: set[bytes] = set()
        self.hashes: dict[str, str] = {}

    def write(self, studies: Sequence[Study]) -> Iterator[tuple[Any, ...]]:
        """Write the sentences of ``studies``, yielding each row."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = (pa.string(), pa.string(), pa.int64(), pa.string())
        schema = pa.schema(list(zip(layout.SENTENCE_COLUMNS, types, strict=True)))
        waiting: list[tuple[Any, ...]] = []
        with pq.ParquetWriter(self.path, schema) as writer:

            def flush() -> None:
                columns = zip(*waiting, strict=True) if waiting else ([] for _ in types)
                arrays = [pa.array(c, t) for c, t in zip(columns, types, strict=True)]
                writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
                waiting.clear()

            for row in self._rows(studies):
                waiting.append(row)
                yield row
                if len(waiting) == _ROW_GROUP:
                    flush()
            if waiting or not self.count:
                flush()

    def _rows(self, studies: Sequence[Study]) -> Iterator[tuple[Any, ...]]:
        parts = self.results.parts

        @lru_cache(_OPEN_CHUNKS + len(parts))
        def chunk(part: int, name: str) -> Values:
            return parts[part].chunks.values(name)

        for study in studies:
            report = self.results.reports[study.study_id]
            found = chunk(report.part, report.chunk)[study.key]["sentences"]
            text = json.dumps(found, separators=(",", ":"))
            self.hashes[study.study_id] = hashlib.sha256(text.encode()).hexdigest()[:32]
            self.count += len(found)
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


def _write_annotations(path: Path, table: Annotations) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "text": pa.string(),
        "number": pa.int64(),
        "yes_no": pa.bool_(),
        "texts": pa.list_(pa.string()),
        "boxes": pa.list_(pa.list_(pa.float64())),
    }
    schema = pa.schema([(name, types[kind]) for name, kind in table.columns])
    columns: list[list[Any]] = [[row[at] for row in table.rows] for at in range(len(schema))]
    arrays = [pa.array(c, type=f.type) for c, f in zip(columns, schema, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
