"""Any hospital: a table of image files and reports.

Columns ``image`` and ``report`` (or ``text``) are needed; ``patient_id``, ``study_id``, ``view``,
``split`` and any of the CheXpert labels are read when there. Without ``patient_id`` every study is
its own patient, without ``study_id`` every image its own study, without ``view`` every image
counts as frontal, and without ``split`` patients are split by `seeded_split`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from medclip_debias.data.labels import Labels, label_columns, label_value, unread_columns
from medclip_debias.data.records import ImageRecord, Step, StudyRecord, file_stem
from medclip_debias.data.sources import ms_cxr
from medclip_debias.data.sources.archive import ArchiveSource
from medclip_debias.data.sources.ids import is_blank, read_ids
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import columns_there, read_table
from medclip_debias.data.sources.texts import Reports
from medclip_debias.data.sources.tree import is_file
from medclip_debias.data.splits import SPLIT_SEED, seeded_split, split_name
from medclip_debias.errors import MissingFiles, UserError

MANIFESTS = ("manifest.csv", "manifest.csv.gz", "manifest.parquet")
_TABLES = (".csv", ".csv.gz", ".parquet")
_COLUMNS = ("image", "patient_id", "study_id", "view", "split")
_SHOWN = 10


@source(
    title="your own archive",
    looks=f"a {MANIFESTS[0]}",
    give="`manifest.csv`, `.csv.gz`, `.parquet`, or its folder",
    needs="columns `image` and `report` (or `text`); optional `patient_id`, `study_id`, `view`,"
    " `split`, CheXpert labels",
    takes=("phrases", "split_seed", "text_only"),
    instead={"reports": "a manifest holds its own reports; put them in its column 'report'"},
)
class ManifestSource(ArchiveSource):
    """A manifest in CSV (also gzipped) or Parquet; image paths are relative to its folder.

    With ``text_only`` the column ``image`` is not needed, and left aside.

    Raises:
        MissingFiles: images are not there.
        UserError: a column is missing, or a row does not make sense.
    """

    kind: ClassVar[str] = "manifest"

    def __init__(self, place: Path, given: Given) -> None:
        path = place if place.is_file() else _manifest_in(place)
        if path is None:
            raise UserError(f"{place}: has no {MANIFESTS[0]} or {MANIFESTS[2]}; add one.")
        if not path.name.lower().endswith(_TABLES):
            raise UserError(
                f"{path}: is not a manifest; give a {', '.join(_TABLES)} table or a folder."
            )
        super().__init__(path.parent, given)
        self.path = path
        boxes = given.phrases or ms_cxr.boxes_beside(path.parent)
        table = read_table(path)
        columns = {name.lower(): name for name in table.columns}
        if len(columns) < len(table.columns):
            raise UserError(f"{path}: two columns differ in case alone; rename one.")
        text = next((columns[name] for name in ("report", "text") if name in columns), None)
        there = columns_there(list(table.columns))
        if text is None:
            raise UserError(f"{path}: column 'report' or 'text' is missing; {there}.")
        if "image" not in columns and not self.text_only:
            raise UserError(
                f"{path}: column 'image' is missing; {there} (to prepare the reports alone, give"
                " --text-only)."
            )
        if table.empty:
            raise UserError(f"{path}: the manifest has no rows; add one row per image.")
        self._rows: list[int] = table.index.tolist()
        self._columns: dict[str, list[str]] = {k: table[n].tolist() for k, n in columns.items()}
        self._ids = {
            name: read_ids(path, table, columns[name])
            for name in ("patient_id", "study_id")
            if name in columns
        }
        self.said += [line for n, ids in self._ids.items() for line in ids.said(path, n)]
        self.said += unread_columns(path, table.columns, {*_COLUMNS, text.lower()})
        self._reports = Reports(table[text])
        self.image_records = self._read_reports() if self.text_only else self._read_images()
        if boxes is not None:
            self.boxes = ms_cxr.BoxFile(boxes, self.image_records, path.parent)
        self._label_columns = label_columns(path, self._columns)
        members: dict[str, list[int]] = {}
        for index, image in enumerate(self.image_records):
            members.setdefault(image.study_id, []).append(index)
        self.study_records = [self._study(*study) for study in members.items()]

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take any file that nobody else knows, and folders with a manifest.

        It goes before loose files of other formats: it says outright what the folder is.
        """
        if path.is_file():
            return Sure.FILES
        return Sure.DECLARED if _manifest_in(path) is not None else Sure.NO

    def held_out_patients(self) -> frozenset[str]:
        """Return the patients of MS-CXR, found by image, patient or study id.

        With boxes of one's own it is nobody: the manifest's own split is the user's word.
        """
        if self.boxes is None or not self.boxes.is_ms_cxr():
            return frozenset()
        studies = {(image.patient_id, image.study_id) for image in self.image_records}
        patients = {patient for patient, _ in studies}
        return (self.boxes.patients() & patients) | self.boxes.mimic_patients(studies)

    def steps(self) -> list[Step]:
        """Return how many rows have labels, and what had to be mended in the reports."""
        steps: list[Step] = []
        if self._label_columns:
            cells = zip(*(self._columns[name] for name in self._label_columns), strict=True)
            labelled = sum(any(not is_blank(cell) for cell in row) for row in cells)
            name = f"row of {self.path.name} has a label"
            steps.append((name, "label rows", labelled, len(self._rows)))
        return steps + self._reports.steps()

    def describe(self) -> list[str]:
        """Return what was found and what was assumed."""
        what = "reports alone" if self.text_only else f"{len(self.image_records)} images"
        said = [f"Manifest {self.path}: {what} of {len(self.study_records)} studies."]
        said += self.said + self._reports.said(self.path)
        if "patient_id" not in self._columns:
            said.append("No column 'patient_id': every study counts as its own patient.")
        if "view" not in self._columns and not self.text_only:
            said.append("No column 'view': every image counts as frontal.")
        if self.seed is not None:
            said.append(f"Split: patients 80/10/10 by a hash of their id with seed {self.seed}.")
        elif "split" not in self._columns:
            said.append("No column 'split': patients are split 80/10/10 by a hash of their id.")
        if self.boxes is not None:
            held_out = self.held_out_patients() if self.boxes.is_ms_cxr() else None
            said += self.boxes.describe(held_out)
        return said

    def _check_there(self, images: list[ImageRecord]) -> None:
        """Stop when an image is not there, and name all of them at once."""
        pairs = zip(self._rows, images, strict=True)
        missing = [(row, str(image.path)) for row, image in pairs if not is_file(image.path)]
        if not missing:
            return
        # By row alone: a cell of a damaged table may hold anything, a patient's name too.
        named = ", ".join(str(row) for row, _ in missing[:_SHOWN])
        rows = "row" if len(missing) == 1 else "rows"
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise MissingFiles(
            f"{self.path}: {len(missing)} of its {len(images)} images are not there ({rows}"
            f" {named}{more}); correct the paths (they start from {self.path.parent}) or remove"
            " the rows.",
            missing,
        )

    def _read_images(self) -> list[ImageRecord]:
        # './a.png' and 'a.png' are one file.
        names = ["" if is_blank(n) else os.path.normpath(n) for n in self._columns["image"]]
        stems = [file_stem(name) for name in names]
        # Stems are the natural ids; where two folders share one, the path tells them apart.
        unique = len(set(stems)) == len(stems)
        rows: dict[str, int] = {}
        records = []
        for index, (name, stem) in enumerate(zip(names, stems, strict=True)):
            row = self._rows[index]
            if not name:
                raise UserError(f"{self.path}, row {row}: column 'image' is blank; name a file.")
            if name in rows:
                raise UserError(
                    f"{self.path}, row {row}: its image is already in row {rows[name]};"
                    " list every image once."
                )
            rows[name] = row
            path = self.path.parent / name
            image_id = stem if unique else Path(name).as_posix()
            study_id = self._id("study_id", index, image_id)
            patient_id = self._id("patient_id", index, study_id)
            view = self._columns["view"][index] if "view" in self._columns else "FRONTAL"
            view = "" if is_blank(view) else view
            origin = f"{self.path}, row {row}"
            split = self._split(index, patient_id)
            records.append(ImageRecord(image_id, study_id, patient_id, path, view, split, origin))
        self._check_there(records)
        return records

    def _read_reports(self) -> list[ImageRecord]:
        """Return the rows as if each had an image; without ``study_id`` it is its own study."""
        records = []
        for index, row in enumerate(self._rows):
            study = self._id("study_id", index, str(row))
            patient = self._id("patient_id", index, study)
            origin, split = f"{self.path}, row {row}", self._split(index, patient)
            name = self._columns["image"][index] if "image" in self._columns else ""
            place = self.path.parent / (name or str(row))
            records.append(ImageRecord(str(row), study, patient, place, "", split, origin))
        return records

    def _study(self, study_id: str, indices: list[int]) -> StudyRecord:
        first = self.image_records[indices[0]]
        reports = self._reports.texts
        with_text = [index for index in indices if reports[index].strip()]
        report_index = with_text[0] if with_text else indices[0]
        for index in indices:
            image = self.image_records[index]
            if image.patient_id != first.patient_id:
                raise UserError(
                    f"{image.origin}: its study belongs to another patient in row"
                    f" {self._rows[indices[0]]}; a study has one patient."
                )
            if index in with_text and reports[index] != reports[report_index]:
                raise UserError(
                    f"{image.origin}: its study has another report in row"
                    f" {self._rows[report_index]};"
                    " give the images of a study the same report, or their own study_id."
                )
        labels: Labels = {}
        for name, label in self._label_columns.items():
            cells = {
                label_value(
                    self._columns[name][i], f"{self.path}, row {self._rows[i]}, column '{name}'"
                )
                for i in indices
            } - {None}
            if len(cells) > 1:
                raise UserError(
                    f"{first.origin}: the rows of its study disagree on '{name}'; labels are per"
                    " study."
                )
            labels[label] = next(iter(cells), None)
        report = reports[report_index]
        origin = f"{self.path}, row {self._rows[report_index]}"
        return StudyRecord(study_id, first.patient_id, first.split, report, labels, origin)

    def _id(self, column: str, index: int, otherwise: str) -> str:
        return self._ids[column].ids[index] if column in self._ids else otherwise

    def _split(self, index: int, patient_id: str) -> str:
        if self.seed is not None or "split" not in self._columns:
            return seeded_split(patient_id, SPLIT_SEED if self.seed is None else self.seed)
        where = f"{self.path}, row {self._rows[index]}"
        return split_name(self._columns["split"][index], where)


def _manifest_in(folder: Path) -> Path | None:
    return next((folder / name for name in MANIFESTS if (folder / name).is_file()), None)
