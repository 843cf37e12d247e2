"""PadChest-GR: sentences of PadChest's reports in English and Spanish, with readers' boxes.

``grounded_reports_20240819.json`` lists studies: ``StudyID``, ``ImageID`` and ``findings``, each a
sentence (``sentence_en``, ``sentence_es``) that is ``abnormal`` or not. One that is has ``boxes``
of one reader and ``extra_boxes`` of a second one (``x1, y1, x2, y2``, fractions of the image's
sides), ``labels``, ``locations`` and ``progression``; one that is not lacks these keys.
``master_table.csv`` has patient and split, several rows a study.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from medclip_debias.data.records import (
    RELATIVE,
    Annotations,
    ImageRecord,
    PhraseRecord,
    StudyRecord,
    file_stem,
)
from medclip_debias.data.sources.archive import ArchiveSource, find_table
from medclip_debias.data.sources.findings import from_corners
from medclip_debias.data.sources.ids import is_blank, read_ids
from medclip_debias.data.sources.label_groups import LabelColumns, label_groups
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.splits import split_name
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_value

REPORTS = "grounded_reports_*.json"
MASTER = "master_table.csv"
SENTENCES = "grounded_sentences"
LANGUAGES = ("en", "es")

_FOLDERS = (
    *("PadChest_GR", "Padchest_GR_files/PadChest_GR", "Padchest_GR_files"),
    *("images", "images_grounding"),
)
_COLUMNS = (
    *(("study_id", "text"), ("image_id", "text"), ("number", "number"), ("text", "text")),
    *(("abnormal", "yes_no"), ("labels", "texts"), ("places", "texts"), ("progression", "text")),
    *(("boxes", "boxes"), ("extra_boxes", "boxes")),
)


class _Finding(NamedTuple):
    number: int
    text: str
    abnormal: bool
    labels: list[str]
    places: list[str]
    progression: str | None
    boxes: list[list[float]]
    extra: list[list[float]]


@dataclass
class _Report:
    """A study: whose it is, and what its images' entries tell."""

    owner: _Owner
    told: list[str] = field(default_factory=list)
    findings: list[_Finding] = field(default_factory=list)


class _Owner(NamedTuple):
    """What the master table says of an image."""

    study: str
    patient: str
    split: str
    row: int


@source(
    title="PadChest-GR",
    looks=f"PadChest-GR ({REPORTS})",
    give="folder of `grounded_reports_20240819.json`",
    needs="`master_table.csv`, and the images beside it or in `PadChest_GR/`",
    takes=("split_seed", "text_only", "language"),
)
class GroundedPadChestSource(ArchiveSource):
    """A PadChest-GR folder, in one of its two languages."""

    kind: ClassVar[str] = "padchest_gr"

    def __init__(self, root: Path, given: Given) -> None:
        super().__init__(root, given)
        self.language = given.language or LANGUAGES[0]
        if self.language not in LANGUAGES:
            raise UserError(
                f"{root}: PadChest-GR has no sentences in '{self.language}'; its languages are"
                f" {' and '.join(LANGUAGES)}."
            )
        path = find_table([root], REPORTS)
        master = find_table([root], MASTER, f"{MASTER}.gz")
        if path is None or master is None:
            lacking = REPORTS if path is None else MASTER
            raise UserError(
                f"{root}: has no {lacking}, which comes with PadChest-GR; put it there (unpacked)."
            )
        self.path, self.master = path, master
        owners = self._read_master()
        entries = self._read_entries(owners)
        self._rows: list[tuple[Any, ...]] = []
        self._reports: dict[str, _Report] = {}
        columns = LabelColumns(
            (n for findings in entries.values() for f in findings for n in f.labels),
            label_groups("padchest"),
        )
        places = self.locate(list(entries), _FOLDERS)
        for file, findings in entries.items():
            owner = owners[file]
            self._add(file, owner, findings)
            if not self.text_only:
                ids = (file_stem(file), owner.study, owner.patient)
                origin = f"{master}, row {owner.row}"
                image = ImageRecord(*ids, places.path(file), "FRONTAL", owner.split, origin)
                self.image_records.append(image)
        for name, report in self._reports.items():
            text = "FINDINGS: " + " ".join(map(_stopped, report.told)) if report.told else None
            normal = report.findings and not any(f.abnormal for f in report.findings)
            found = {n for f in report.findings if f.abnormal for n in f.labels}
            labels = columns.values({"normal"} if normal else found)
            owner = report.owner
            origin = f"{master}, row {owner.row}"
            study = StudyRecord(name, owner.patient, owner.split, text, labels, origin)
            self.study_records.append(study)
        self._count(entries)
        self._describe(entries)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take a folder with the file of sentences."""
        there = path.is_dir() and any(path.glob(REPORTS))
        return Sure.RELEASE if there else Sure.NO

    def annotations(self) -> list[Annotations]:
        """Return every sentence, positive and negative, with both readers' boxes as they stand."""
        about = SENTENCES, "sentences", _COLUMNS, self._rows
        by_study = Annotations(*about, study="study_id")
        return [Annotations(*about, images=("image_id",)) if self.image_records else by_study]

    # ------------------------------------------------------------------------ the tables

    def _read_master(self) -> dict[str, _Owner]:
        needed = ("ImageID", "StudyID", "PatientID", "split")
        table = read_table(self.master, required=needed, columns=needed)
        if table.empty:
            raise UserError(f"{self.master}: the table has no rows; download it again.")
        ids = {name: read_ids(self.master, table, name) for name in ("StudyID", "PatientID")}
        self.said += [line for name, known in ids.items() for line in known.said(self.master, name)]
        owners: dict[str, _Owner] = {}
        columns = (ids["StudyID"].ids, ids["PatientID"].ids, table["split"])
        for row, file, study, patient, word in zip(
            table.index.tolist(), table["ImageID"], *columns, strict=True
        ):
            where = f"{self.master}, row {row}"
            if is_blank(file):
                raise UserError(f"{where}: column 'ImageID' is blank; download the table again.")
            split = self.split(patient, split_name(word, where) if self.seed is None else "")
            known = owners.setdefault(file, _Owner(study, patient, split, row))
            if known[:3] != (study, patient, split):
                raise UserError(
                    f"{where}: its image has another study, patient or split in row {known.row};"
                    " download the table again."
                )
        return owners

    def _read_entries(self, owners: Mapping[str, _Owner]) -> dict[str, list[_Finding]]:
        content = read_json_value(self.path, "download it again", encoding="utf-8-sig")
        if not isinstance(content, list) or not content:
            raise UserError(f"{self.path}: is no list of studies; download it again.")
        entries: dict[str, list[_Finding]] = {}
        unknown = repeated = 0
        for number, entry in enumerate(content, start=1):
            where = f"{self.path}, entry {number}"
            file = entry.get("ImageID") if isinstance(entry, dict) else None
            if not isinstance(file, str) or not isinstance(entry.get("findings"), list):
                raise UserError(
                    f"{where}: has no 'ImageID' or no list 'findings'; download it again."
                )
            if file not in owners:
                unknown += 1
            elif file in entries:
                repeated += 1
            else:
                found = enumerate(entry["findings"], start=1)
                entries[file] = [self._finding(n, one, f"{where}, finding {n}") for n, one in found]
        listed = len(content)
        once = listed - repeated
        self.count(f"entry of {self.path.name} is no repeat", "rows", once, listed)
        step = f"image of {self.path.name} is in {self.master.name}"
        self.count(step, "rows", once - unknown, once)
        step = f"image of {self.master.name} is in {self.path.name}"
        self.count(step, "rows", len(owners.keys() & entries.keys()), len(owners))
        return entries

    def _finding(self, number: int, content: Any, where: str) -> _Finding:
        if not isinstance(content, dict):
            raise UserError(f"{where}: is no object with a sentence; download the file again.")
        text = content.get(f"sentence_{self.language}")
        abnormal = content.get("abnormal")
        if not isinstance(text, str | None) or not isinstance(abnormal, bool | None):
            raise UserError(
                f"{where}: 'sentence_{self.language}' or 'abnormal' is no sentence or no"
                " yes or no; download the file again."
            )
        progression = content.get("progression")
        return _Finding(
            number,
            " ".join((text or "").split()),
            bool(abnormal),
            _strings(content.get("labels"), f"{where}, 'labels'"),
            _strings(content.get("locations"), f"{where}, 'locations'"),
            progression.strip().lower() if isinstance(progression, str) else None,
            _boxes(content.get("boxes"), f"{where}, 'boxes'"),
            _boxes(content.get("extra_boxes"), f"{where}, 'extra_boxes'"),
        )

    # -------------------------------------------------------------------- what comes out

    def _add(self, file: str, owner: _Owner, findings: list[_Finding]) -> None:
        """Add an image's sentences to its study, to the table, and those with boxes as phrases."""
        image = file_stem(file)
        report = self._reports.setdefault(owner.study, _Report(owner))
        # Images of one study may share its sentences.
        known = set(report.told)
        report.told += [f.text for f in findings if f.text and f.text not in known]
        report.findings += findings
        for f in findings:
            both = (f.boxes, f.extra)
            about = (f.abnormal, f.labels, f.places, f.progression)
            self._rows.append((owner.study, image, f.number, f.text, *about, *both))
            if f.abnormal and f.text and f.boxes:
                name = f"{image}/{f.number}"
                category = f.labels[0] if f.labels else ""
                boxes = tuple(from_corners((a, b, c, d)) for a, b, c, d in f.boxes)
                phrase = PhraseRecord(name, image, category, f.text, boxes, RELATIVE, owner.split)
                self.phrase_records.append(phrase)

    def _count(self, entries: Mapping[str, list[_Finding]]) -> None:
        findings = [finding for own in entries.values() for finding in own]
        told = sum(bool(finding.text) for finding in findings)
        positive = [finding for finding in findings if finding.text and finding.abnormal]
        boxed = [finding for finding in positive if finding.boxes]
        second = [finding for finding in boxed if finding.extra]
        several = sum(len(finding.labels) > 1 for finding in boxed)
        boxes = sum(len(f.boxes) + len(f.extra) for f in findings)
        negative = sum(bool(f.boxes or f.extra) for f in findings if not f.abnormal)
        first = sum(len(f.boxes) for f in findings)
        others = f"(others: {SENTENCES}.parquet alone)"
        unit = "label rows"
        self.counted += [
            ("sentence is not blank", unit, told, len(findings)),
            (f"sentence is positive {others}", unit, len(positive), told),
            ("positive sentence has boxes", unit, len(boxed), len(positive)),
            ("sentence with boxes has a second reader's, too", unit, len(second), len(boxed)),
            (f"box is the first reader's {others}", "boxes", first, boxes),
        ]
        step = "phrase has one label (of others the first is the category)"
        self.count(step, unit, len(boxed) - several, len(boxed))
        bare = len(findings) - sum(f.abnormal for f in findings)
        self.count("negative sentence has no boxes", unit, bare - negative, bare)

    def _describe(self, entries: Mapping[str, list[_Finding]]) -> None:
        splits = Counter(study.split for study in self.study_records)
        what = "reports alone" if self.text_only else "images"
        self.said.insert(
            0, f"PadChest-GR {self.path}: {what} of {len(entries)} studies, in '{self.language}'."
        )
        shown = ", ".join(f"{count} {split}" for split, count in splits.items())
        whose = "the master table's" if self.seed is None else f"by patient with seed {self.seed}"
        self.said += [
            f"Split: {whose}: {shown}.",
            "Boxes: those of 'boxes' are the phrases'; the second reader's ('extra_boxes') are in"
            f" {SENTENCES}.parquet, as are the negative sentences.",
        ]
        if not self.text_only and any(self.root.glob("**/PadChest_GR.zip.0*")):
            self.said.append(
                "There are parts PadChest_GR.zip.001 ...: join them in their order and unpack the"
                " zip that they make."
            )


def _strings(value: Any, where: str) -> list[str]:
    """Labels or places, in lower case; absent and ``null`` are none."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"{where}: must be a list of words; download the file again.")
    plain = (" ".join(item.lower().split()) for item in value)
    return list(dict.fromkeys(filter(None, plain)))


def _boxes(value: Any, where: str) -> list[list[float]]:
    if value is None:
        return []
    good = isinstance(value, list) and all(
        isinstance(box, list) and len(box) == 4 and all(map(_is_number, box)) for box in value
    )
    if not good:
        raise UserError(f"{where}: must be boxes of x1, y1, x2, y2; download the file again.")
    return [[float(corner) for corner in box] for box in value]


def _is_number(value: Any) -> bool:
    # NaN, which Python's JSON reader lets through, fails the comparison.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _stopped(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
