"""From a source to a prepared set: select, cut reports into sentences, turn files into rows.

The work is spread over processes; the result does not depend on their number. The set is built
in ``OUT.partial`` and renamed when whole, so ``OUT`` is never half a set.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medclip_debias.config import PrepareSettings
from medclip_debias.data import store
from medclip_debias.data.funnel import Funnel
from medclip_debias.data.parallel import chunks, cpus, ordered
from medclip_debias.data.records import ImageRecord, PhraseRecord, Source, StudyRecord
from medclip_debias.data.reports import report_sentences
from medclip_debias.data.rows import Size, write_rows
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.sources.ms_cxr import scale_boxes
from medclip_debias.errors import UserError

FRONTAL_VIEWS = frozenset(
    {"AP", "PA", "AP SUPINE", "AP ERECT", "AP SEMI ERECT", "AP UPRIGHT", "PA ERECT", "FRONTAL"}
)
"""Views that count as frontal; all frontal images of a study are kept. Blank views are not."""

Progress = Callable[[int, int], None]
Sentences = list[tuple[str, str]]


def prepare(
    source_path: Path,
    out: Path,
    settings: PrepareSettings,
    *,
    phrases: Path | None = None,
    kind: str = "auto",
    workers: int | None = None,
    progress: Progress | None = None,
    overwrite: bool = False,
) -> store.PreparedSet:
    """Prepare a source.

    Args:
        source_path: what `medclip_debias.data.sources.detect.detect` takes.
        out: folder to make.
        settings: how files become rows.
        phrases: COCO file of grounded phrases, if not the one beside the data.
        kind: kind of source, or ``auto``.
        workers: processes; all processors by default.
        progress: called with (done, total) as the work goes on.
        overwrite: replace the prepared set at ``out``.

    Raises:
        UserError: the source is unusable, nothing is left of it, or ``out`` is in the way.
    """
    out = Path(out)
    _check_free(out, overwrite)
    source = detect(Path(source_path), kind, phrases=phrases)
    partial = out.with_name(out.name + ".partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)  # left by a run that was killed
        partial.mkdir()
        _Preparation(source, partial, settings, workers or cpus(), progress).run()
        _move(partial, out)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"{out}: the prepared set cannot be written ({reason}).") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return store.PreparedSet.open(out)


def is_frontal(view: str) -> bool:
    """Tell whether a view counts as frontal.

    >>> is_frontal("AP Supine"), is_frontal("LATERAL"), is_frontal("")
    (True, False, False)
    """
    return " ".join(view.replace("_", " ").replace("-", " ").split()).upper() in FRONTAL_VIEWS


def check_leak(images: Sequence[ImageRecord]) -> None:
    """Stop when a patient's images are in two splits."""
    first: dict[str, ImageRecord] = {}
    for image in images:
        other = first.setdefault(image.patient_id, image) if image.split else image
        if other.split != image.split:
            raise UserError(
                f"{image.origin}: the patient of this {image.split} image also has a"
                f" {other.split} image ({other.origin}); give each patient one split."
            )


def _check_free(out: Path, overwrite: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out}: is a file; give a folder to make.")
    if not any(out.iterdir()):
        return
    if not overwrite:
        raise UserError(f"{out}: is not empty; give another folder or allow overwriting.")
    if not (out / "meta.json").is_file() or not (out / "images.bin").is_file():
        raise UserError(f"{out}: is not a prepared set and will not be overwritten; remove it.")


def _move(partial: Path, out: Path) -> None:
    old = out.with_name(out.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.replace(old)
    partial.replace(out)
    shutil.rmtree(old, ignore_errors=True)


# ------------------------------------------------------------------------------ the way


@dataclass
class _Preparation:
    """One run: `run` is the whole way, each step narrows what the one before left."""

    source: Source
    folder: Path
    settings: PrepareSettings
    workers: int
    progress: Progress | None

    def __post_init__(self) -> None:
        self.funnel = Funnel()
        self.rejected: list[tuple[str, str]] = []
        self.done = self.total = 0

    def run(self) -> None:
        images = self._hold_out(self._selected_images())
        studies, sentences = self._read_studies(images)
        images = self._keep(
            images, "study has a sentence", lambda image: image.study_id in sentences, "images"
        )
        images, sizes = self._write_images(images)
        with_image = {image.study_id for image in images}
        studies = self._keep(
            studies, "study has a readable image", lambda s: s.study_id in with_image, "studies"
        )
        tables = {
            "images": _image_table(images, sizes),
            "studies": _study_table(studies, images),
            "sentences": _sentence_table(studies, sentences),
            "phrases": self._phrase_table(images, sizes),
        }
        self._write(tables)

    def _keep(
        self, items: list[Any], step: str, test: Callable[[Any], bool], unit: str
    ) -> list[Any]:
        """Keep what passes ``test``, count it, and stop when nothing is left."""
        kept = [item for item in items if test(item)]
        self.funnel.step(step, unit, len(kept), before=len(items))
        self._stop_if_empty(kept)
        return kept

    def _stop_if_empty(self, kept: Sequence[Any]) -> None:
        if kept:
            return
        worst = self.funnel.worst()
        count = worst["kept"] + worst["dropped"]
        example = f"; for example {self.rejected[0][1]}" if self.rejected else ""
        raise UserError(
            f"nothing is left of the source: the step '{worst['step']}' dropped"
            f" {worst['dropped']} of {count} {worst['unit']}{example}"
        )

    # ------------------------------------------------------------------------ selection

    def _selected_images(self) -> list[ImageRecord]:
        images = self.source.images()
        self.funnel.step("images listed", "images", len(images))
        check_leak(images)
        images = self._keep(images, "view is frontal", lambda i: is_frontal(i.view), "images")
        images = self._keep(images, "split is known", lambda i: bool(i.split), "images")
        return self._keep(images, "image file is there", lambda i: i.path.is_file(), "images")

    def _hold_out(self, images: list[ImageRecord]) -> list[ImageRecord]:
        """Move train and validate images of patients with boxes to ``held_out``."""
        patients = self.source.held_out_patients()
        if not patients:
            return images
        moved = [
            replace(image, split="held_out")
            if image.patient_id in patients and image.split in ("train", "validate")
            else image
            for image in images
        ]
        before, after = (
            sum(image.split in ("train", "validate") for image in records)
            for records in (images, moved)
        )
        self.funnel.step(
            "patient has no boxes (others move to held_out)",
            "train and validate images",
            after,
            before=before,
        )
        return moved

    # -------------------------------------------------------------------------- reports

    def _read_studies(
        self, images: list[ImageRecord]
    ) -> tuple[list[StudyRecord], dict[str, Sentences]]:
        wanted = {image.study_id for image in images}
        self.funnel.step("studies with such an image", "studies", len(wanted))
        self.total = len(wanted) + len(images)
        studies: list[StudyRecord] = []
        results: list[Sentences] = []
        texts: dict[str, bool] = {}

        def reports() -> Any:
            for study in self.source.studies(wanted):
                text = study.report or ""
                texts[study.study_id] = bool(text.strip())
                # The text is not kept: the reports of a large source need a gigabyte.
                studies.append(replace(study, report=None if study.report is None else ""))
                yield text

        for chunk in ordered(_cut_reports, chunks(reports(), 64), self.workers):
            results += chunk
            self._advance(len(chunk))
        sentences = {s.study_id: r for s, r in zip(studies, results, strict=True) if r}
        self._reject_empty_reports(studies, texts, images)
        studies = self._keep(
            studies, "study has a report", lambda s: s.report is not None, "studies"
        )
        studies = self._keep(studies, "report is not empty", lambda s: texts[s.study_id], "studies")
        step = "report has a usable section with a sentence"
        return self._keep(studies, step, lambda s: s.study_id in sentences, "studies"), sentences

    def _reject_empty_reports(
        self, studies: list[StudyRecord], texts: dict[str, bool], images: list[ImageRecord]
    ) -> None:
        empty = {
            s.study_id: s.origin for s in studies if s.report is not None and not texts[s.study_id]
        }
        self.rejected += [
            (image.image_id, f"{empty[image.study_id]}: the report is empty.")
            for image in images
            if image.study_id in empty
        ]

    # --------------------------------------------------------------------------- images

    def _write_images(self, images: list[ImageRecord]) -> tuple[list[ImageRecord], list[Size]]:
        """Write the rows of ``images.bin``; return the images it holds and their sizes."""
        self.total = self.done + len(images)
        paths = [image.path for image in images]
        target = self.folder / "images.bin"
        sizes, reasons = write_rows(target, paths, self.settings, self.workers, self._advance)
        self.rejected += [(images[row].image_id, why) for row, why in sorted(reasons.items())]
        rows = sorted(sizes)
        self.funnel.step("image is readable", "images", len(rows), before=len(images))
        self._stop_if_empty(rows)
        return [images[row] for row in rows], [sizes[row] for row in rows]

    # -------------------------------------------------------------------------- phrases

    def _phrase_table(self, images: list[ImageRecord], sizes: list[Size]) -> pd.DataFrame:
        phrases: list[PhraseRecord] = self.source.phrases()
        by_id = {image.image_id: size for image, size in zip(images, sizes, strict=True)}
        rows: list[tuple[Any, ...]] = []
        if phrases:
            self.funnel.step("phrases listed", "phrases", len(phrases))
            known = [phrase for phrase in phrases if phrase.image_id in by_id]
            self.funnel.step("image of the phrase kept", "phrases", len(known), len(phrases))
            for phrase in known:
                height, width = by_id[phrase.image_id]
                boxes = scale_boxes(phrase.boxes, phrase.annotated_size, (width, height))
                if boxes:
                    rows.append(
                        (phrase.phrase_id, phrase.image_id, phrase.category, phrase.text, boxes)
                    )
            self.funnel.step("boxes lie in the image", "phrases", len(rows), len(known))
        return pd.DataFrame(rows, columns=list(store.PHRASE_COLUMNS), dtype=object)

    # -------------------------------------------------------------------------- writing

    def _write(self, tables: dict[str, pd.DataFrame]) -> None:
        for name, table in tables.items():
            _write_parquet(self.folder / f"{name}.parquet", table, name)
        with (self.folder / "rejected.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("image_id", "reason"))
            writer.writerows(self.rejected)
        store.write_json(self.folder / "funnel.json", self.funnel.rows)
        kind = self.source.kind
        meta = {
            "format_version": store.FORMAT_VERSION,
            "kind": kind,
            "settings": self.settings.model_dump(mode="json"),
            "labels": list(tables["studies"].columns[len(store.STUDY_COLUMNS) :]),
            "counts": _counts(tables, len(self.rejected)),
            "funnel": self.funnel.rows,
            "content_hash": store.content_hash(self.folder, tables, self.settings, kind),
        }
        store.write_json(self.folder / "meta.json", meta)

    def _advance(self, count: int) -> None:
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)


# ------------------------------------------------------------------------------- tables


def _image_table(images: list[ImageRecord], sizes: list[Size]) -> pd.DataFrame:
    rows = [
        (i.image_id, i.study_id, i.patient_id, i.view, i.split, height, width)
        for i, (height, width) in zip(images, sizes, strict=True)
    ]
    return pd.DataFrame(rows, columns=list(store.IMAGE_COLUMNS))


def _study_table(studies: list[StudyRecord], images: list[ImageRecord]) -> pd.DataFrame:
    splits = {image.study_id: image.split for image in images}
    table = pd.DataFrame(
        [(s.study_id, s.patient_id, splits[s.study_id]) for s in studies],
        columns=list(store.STUDY_COLUMNS),
    )
    for name in sorted({label for study in studies for label in study.labels}):
        values = [study.labels.get(name) for study in studies]
        table[name] = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    return table


def _sentence_table(studies: list[StudyRecord], sentences: dict[str, Sentences]) -> pd.DataFrame:
    rows = [
        (study.study_id, section, position, text)
        for study in studies
        for position, (section, text) in enumerate(sentences[study.study_id])
    ]
    return pd.DataFrame(rows, columns=list(store.SENTENCE_COLUMNS))


def _counts(tables: dict[str, pd.DataFrame], rejected: int) -> dict[str, Any]:
    images = tables["images"]
    return {
        **{name: len(table) for name, table in tables.items()},
        "distinct_sentences": int(tables["sentences"]["text"].nunique()),
        "patients": int(images["patient_id"].nunique()),
        "rejected": rejected,
        "images_by_split": {k: int(v) for k, v in images["split"].value_counts().items()},
    }


def _write_parquet(path: Path, table: pd.DataFrame, name: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = None
    if name == "phrases":  # an empty table does not show that its boxes are lists of numbers
        fields = [(column, pa.string()) for column in store.PHRASE_COLUMNS[:-1]]
        schema = pa.schema([*fields, ("boxes", pa.list_(pa.list_(pa.float64())))])
    pq.write_table(pa.Table.from_pandas(table, schema=schema, preserve_index=False), path)


def _cut_reports(texts: list[str]) -> list[Sentences]:
    return [report_sentences(text) for text in texts]
