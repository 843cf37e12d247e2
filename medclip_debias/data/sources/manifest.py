"""Any hospital: a table of image files and reports.

Columns ``image`` and ``report`` (or ``text``) are needed; ``patient_id``, ``study_id``, ``view``,
``split`` and any of the CheXpert labels are read when there. Without ``patient_id`` every study is
its own patient, without ``study_id`` every image its own study, without ``view`` every image
counts as frontal, and without ``split`` patients are split by `seeded_split`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medclip_debias.data.labels import label_columns, label_values, unread_columns
from medclip_debias.data.records import StudyRecord, file_stem
from medclip_debias.data.sources import ms_cxr
from medclip_debias.data.sources.archive import ArchiveSource, seeded_said
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.image_files import is_file
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import (
    columns_there,
    distinct_rows,
    named_tuples,
    origins,
    read_table,
    refuse_rows,
)
from medclip_debias.data.sources.texts import mended_said, mended_steps, read_report
from medclip_debias.data.splits import split_name
from medclip_debias.errors import MissingFiles, UserError, counted

if TYPE_CHECKING:
    import pandas as pd

MANIFESTS = ("manifest.csv", "manifest.csv.gz", "manifest.parquet")
_TABLES = (".csv", ".csv.gz", ".parquet")
_COLUMNS = ("image", "patient_id", "study_id", "view", "split")
_OURS = {name.replace("_", ""): name for name in (*_COLUMNS, "report", "text")}
_OURS["viewposition"] = "view"
"""Our name of a column that is spelt otherwise: ``Patient ID``, DICOM's ``PatientID``."""
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
    """

    kind: ClassVar[str] = "manifest"

    def __init__(self, place: Path, given: Given) -> None:
        names = [] if place.is_file() else [place / name for name in MANIFESTS]
        path = next(filter(Path.is_file, names), place)
        if not path.is_file():
            raise UserError(f"{place}: has no {MANIFESTS[0]} or {MANIFESTS[2]}; add one.")
        if not path.name.lower().endswith(_TABLES):
            raise UserError(
                f"{path}: is not a manifest; give a {', '.join(_TABLES)} table or a folder."
            )
        super().__init__(path.parent, given)
        self.path = path
        boxes = given.phrases or ms_cxr.boxes_beside(path.parent)
        table = self._read()
        pairs = [read_report(cell) for cell in table["report"]]
        table["report"] = [text for text, _ in pairs]
        mended = Counter(kind for _, kinds in pairs for kind in kinds)
        self._fill_ids(table)
        files = [path.parent / name for name in table["image"]]
        rows = table.drop(columns="image").rename(columns=lambda name: name.removesuffix("_id"))
        self.add_images(rows, files)
        if not self.text_only:
            self._check_there(table, files)
        if boxes is not None:
            self.boxes = ms_cxr.BoxFile(boxes, self.image_records, path.parent)
        self.study_records = self._read_studies(table)
        self.counted += mended_steps(mended, len(self.image_records))
        self._describe(mended)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take any file that nobody else knows, and folders with a manifest.

        It goes before loose files of other formats: it says outright what the folder is.
        """
        if path.is_file():
            return Sure.FILES
        return Sure.DECLARED if any((path / name).is_file() for name in MANIFESTS) else Sure.NO

    def held_out_patients(self) -> frozenset[str]:
        """Return the patients of MS-CXR, found by image, patient or study id.

        With boxes of one's own it is nobody: the manifest's own split is the user's word.
        """
        if self.boxes is None or not self.boxes.is_ms_cxr():
            return frozenset()
        studies = {(image.patient_id, image.study_id) for image in self.image_records}
        patients = {patient for patient, _ in studies}
        return (self.boxes.patients() & patients) | self.boxes.mimic_patients(studies)

    def _describe(self, mended: Counter[str]) -> None:
        what = "reports alone" if self.text_only else counted(len(self.image_records), "image")
        studies = counted(len(self.study_records), "study")
        self.said.insert(0, f"Manifest {self.path}: {what} of {studies}.")
        self.said += mended_said(self.path, mended)
        if "patient_id" not in self._columns:
            self.said.append("No column 'patient_id': every study counts as its own patient.")
        if "view" not in self._columns and not self.text_only:
            self.said.append("No column 'view': every image counts as frontal.")
        if self.seed is not None:
            self.said.append(f"Split: {seeded_said(self.seed)}.")
        elif "split" not in self._columns:
            words = "No column 'split': patients are split 80/10/10 by a hash of their id."
            self.said.append(words)
        if self.boxes is not None:
            held_out = self.held_out_patients() if self.boxes.is_ms_cxr() else None
            self.said += self.boxes.describe(held_out)

    def _read(self) -> pd.DataFrame:
        """Return the table with our names of columns and the report in ``report``."""
        table = read_table(self.path)
        names: list[str] = table.columns.tolist()
        lower = [name.lower() for name in names]
        ours = (_OURS.get(re.sub(r"[\W_]+", "", name), name) for name in lower)
        pairs = zip(lower, ours, strict=True)
        table.columns = [name if known in lower else known for name, known in pairs]
        self._columns = {*table}
        there = columns_there(names)
        if len(self._columns) < len(names):
            raise UserError(f"{self.path}: two columns differ in case or blanks alone; rename one.")
        if not self._columns & {"report", "text"}:
            raise UserError(f"{self.path}: column 'report' or 'text' is missing; {there}.")
        if "image" not in table and not self.text_only:
            raise UserError(
                f"{self.path}: column 'image' is missing; {there} (to prepare the reports alone,"
                " give --text-only)."
            )
        if table.empty:
            raise UserError(f"{self.path}: the manifest has no rows; add one row per image.")
        for name in ("patient_id", "study_id"):
            if name in table:
                table[name] = self.ids(self.path, table, name)
        text = "report" if "report" in table else "text"
        columns = zip(names, table.columns, strict=True)
        others = [name for name, column in columns if column not in {*_COLUMNS, text}]
        self.said += unread_columns(self.path, others, ())
        table["report"] = table[text]
        return table.assign(row=table.index, origin=origins(self.path, table))

    def _fill_ids(self, table: pd.DataFrame) -> None:
        """Add what the manifest leaves out: ids, views, splits; check the names of images."""
        if self.text_only:
            table["image_id"] = table["row"].astype(str)
            names = table.get("image", table["image_id"])
            table["image"] = names.mask(names == "", table["image_id"])
            table["view"] = ""
        else:
            problem = "column 'image' is blank; name a file."
            refuse_rows(self.path, table, table["image"].map(is_blank), problem)
            table["image"] = list(map(os.path.normpath, table["image"]))  # './a.png' is 'a.png'
            problem = "its image is already in row {}; list every image once."
            distinct_rows(self.path, table, "image", problem, ["row"])
            # Stems are the natural ids; where two folders share one, the path tells them apart.
            table["image_id"] = table["image"].map(file_stem)
            if not table["image_id"].is_unique:
                table["image_id"] = [Path(name).as_posix() for name in table["image"]]
            views = table["view"] if "view" in table else ["FRONTAL"] * len(table)
            table["view"] = ["" if is_blank(view) else view for view in views]
        for name, otherwise in (("study_id", "image_id"), ("patient_id", "study_id")):
            if name not in table:
                table[name] = table[otherwise]
        if self.seed is not None or "split" not in table:
            table["split"] = list(map(self.split, table["patient_id"]))
        else:
            table["split"] = list(map(split_name, table["split"], table["origin"]))

    def _check_there(self, table: pd.DataFrame, files: list[Path]) -> None:
        """Stop when an image is not there, and name all of them at once."""
        pairs = zip(table["row"], files, strict=True)
        missing = [(row, str(file)) for row, file in pairs if not is_file(file)]
        if not missing:
            return
        # By row alone: a cell of a damaged table may hold anything, a patient's name too.
        named = ", ".join(str(row) for row, _ in missing[:_SHOWN])
        rows = "row" if len(missing) == 1 else "rows"
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise MissingFiles(
            f"{self.path}: {len(missing)} of its {len(table)} images are not there ({rows}"
            f" {named}{more}); correct the paths (they start from {self.path.parent}) or remove"
            " the rows.",
            missing,
        )

    def _read_studies(self, table: pd.DataFrame) -> list[StudyRecord]:
        self._by_study(table, "patient_id", "belongs to another patient", "a study has one patient")
        filled = table[table["report"].str.strip() != ""]
        what = "give the images of a study the same report, or their own study_id"
        self._by_study(filled, "report", "has another report", what)
        labels: dict[str, dict[str, float]] = {}
        labelled: set[int] = set()
        for name, label in label_columns(self.path, table.columns).items():
            values = dict(zip(table[name], label_values(self.path, table, name), strict=True))
            rows = table.assign(**{name: table[name].map(values)}).dropna(subset=name)
            labelled |= {*rows.index}
            what = f"has another value of '{name}'"
            labels[label] = self._by_study(rows, name, what, "labels are per study")
        if labels:
            step = f"row of {self.path.name} has a label"
            self.counted.append((step, "label rows", len(labelled), len(table)))
        # The report is that of the first row with text.
        reports = {row.study_id: row for row in named_tuples(filled.iloc[::-1])}
        return [
            StudyRecord(
                *(row.study_id, row.patient_id, row.split),
                reports.get(row.study_id, row).report,
                {label: values.get(row.study_id) for label, values in labels.items()},
                reports.get(row.study_id, row).origin,
            )
            for row in named_tuples(table.drop_duplicates("study_id"))
        ]

    def _by_study(self, rows: pd.DataFrame, column: str, what: str, remedy: str) -> dict[str, Any]:
        """Return the value of a column by study; stop where a study has two."""
        problem = f"its study {what} in row {{}}; {remedy}."
        distinct = distinct_rows(self.path, rows, "study_id", problem, ["study_id", column])
        values: dict[Any, Any] = distinct.set_index("study_id")[column].to_dict()
        return values
