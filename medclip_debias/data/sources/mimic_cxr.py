"""MIMIC-CXR (DICOM) and MIMIC-CXR-JPG, releases 2.0 and 2.1, as PhysioNet lays them out.

Images ``files/p10/p10000032/s50414267/<dicom_id>.dcm`` (``.dcm.gz``, ``.jpg``, ``.png``), reports
``files/p10/p10000032/s50414267.txt`` or inside ``mimic-cxr-reports.zip``, tables in the root. The
2.1 releases keep "2.0.0" in most file names, so tables are found by pattern.

Each release lacks something. The JPG release has no reports: they come from a MIMIC-CXR folder or
zip that is named beside it. The DICOM release has neither view positions nor a split: views are
read from the files' headers (`medclip_debias.data.images.headers`), and the split comes from a
named folder with the JPG release's tables, or from a seed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from medclip_debias.data.labels import Labels, read_label_table
from medclip_debias.data.records import Annotations, ImageRecord, StudyRecord
from medclip_debias.data.sources import ms_cxr, progression
from medclip_debias.data.sources.archive import ArchiveSource, find_table, seeded_said
from medclip_debias.data.sources.ids import PATIENT, STUDY, Ids, check_match, is_blank, shape
from medclip_debias.data.sources.image_files import DICOM
from medclip_debias.data.sources.mimic_files import (
    REPORTS_ZIP,
    ImageFiles,
    Listed,
    ReportFiles,
    holds_reports,
    image_tree,
    is_bare_tree,
)
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import distinct_rows, refuse_rows
from medclip_debias.data.splits import splits_of
from medclip_debias.errors import UserError, counted

if TYPE_CHECKING:
    import pandas as pd

PATTERNS = {
    "metadata": "mimic-cxr-*-metadata.csv*",
    "split": "mimic-cxr-*-split.csv*",
    "chexpert": "mimic-cxr-*-chexpert.csv*",
    "negbio": "mimic-cxr-*-negbio.csv*",
    "test_labels": "mimic-cxr-*-test-set-labeled.csv*",
    "records": "cxr-record-list.csv*",
    "studies": "cxr-study-list.csv*",
}
_IDS = {
    "dicom_id": ("", r"[^/\\]+"),
    "subject_id": (PATIENT, "[0-9]+"),
    "study_id": (STUDY, "[0-9]+"),
}
"""Columns of ids: the letter that may precede one, and its form."""

_FEW = 100
"""Of fewer test studies, chance may leave none to the radiologists, who labelled one in five."""


@source(
    title="MIMIC-CXR",
    looks=f"MIMIC-CXR (a folder 'files' with p10 ... p19, or {PATTERNS['metadata']})",
    give="folder of MIMIC-CXR or MIMIC-CXR-JPG that holds `files/` (or `p10 ... p19`)",
    needs="reports in the tree or `mimic-cxr-reports.zip`; the tables of MIMIC-CXR-JPG, or"
    " `--tables FOLDER`, or `--split-seed`",
    takes=("phrases", "reports", "tables", "split_seed", "text_only"),
)
class MimicCxrSource(ArchiveSource):
    """A MIMIC-CXR or MIMIC-CXR-JPG folder, or the zip of its reports alone.

    Where the given folder of tables and the archive's own both have one, the former counts.
    """

    kind: ClassVar[str] = "mimic_cxr"

    def __init__(self, root: Path, given: Given) -> None:
        reports = given.reports
        if root.is_file():
            root, reports = _reports_alone(root, given.text_only)
        super().__init__(root, given)
        self.labeller = given.labeller
        places = [root] if given.tables is None else [given.tables, root]
        self.tables = {name: find_table(places, pattern) for name, pattern in PATTERNS.items()}
        boxes = given.phrases or next(filter(None, map(ms_cxr.find, (root, *places))), None)
        self._files = ImageFiles(image_tree(root))
        self._reports = ReportFiles(root, reports)
        if not self.text_only:
            self._read_images()
        self.boxes = None if boxes is None else ms_cxr.BoxFile(boxes, self.image_records, root)
        self._listed = self._list_studies()
        if not self._reports.has_any(
            [(patient, study) for study, (patient, _) in self._listed.items()]
        ):
            raise UserError(
                f"{root}: has no report, neither files/p1*/p*/s*.txt nor {REPORTS_ZIP}; the JPG"
                f" release has none, put {REPORTS_ZIP} of MIMIC-CXR"
                " (physionet.org/content/mimic-cxr) beside the folder 'files' or name it with"
                " --reports."
            )
        self._labels = self._read_labels()
        self._changes: list[Annotations] = []
        self._followed: frozenset[str] = frozenset()
        over_time = find_table((*places, root), progression.PATTERN)
        if over_time is not None and not self.text_only:
            changes, self._followed = progression.read_progression(self, over_time)
            self._changes.append(changes)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take a release's tables, its zip of reports, and trees ``files/p1x`` or ``p1x``."""
        if path.is_file():
            return Sure.RELEASE if holds_reports(path) else Sure.NO
        tables = any(any(path.glob(pattern)) for pattern in PATTERNS.values())
        trees = any(folder.is_dir() for folder in (path / "files").glob("p1[0-9]"))
        if tables or trees or (path / REPORTS_ZIP).is_file():
            return Sure.RELEASE
        return Sure.LAYOUT if is_bare_tree(path) else Sure.NO

    def studies(self, only: Collection[str] | None = None) -> Iterator[StudyRecord]:
        for study, (patient, split) in self._listed.items():
            if only is None or study in only:
                report, origin, problem = self._reports.read(patient, study)
                known = self._labels.get(study, {})
                yield StudyRecord(study, patient, split, report, known, origin, problem)

    def held_out_patients(self) -> frozenset[str]:
        """Return the patients of MS-CXR and MS-CXR-T: they are kept for evaluation."""
        return self._followed if self.boxes is None else self._followed | self.boxes.patients()

    def annotations(self) -> list[Annotations]:
        return self._changes

    def describe(self) -> list[str]:
        said = [self._describe_images()]
        said += [f"Table {path}." for path in self.tables.values() if path is not None]
        said.append(self._reports.describe())
        labels = f"Labels: {self.labeller}."
        if self.tables[self.labeller] is None:
            labels = f"No {PATTERNS[self.labeller]}: studies have no automatic labels."
        said.append(labels)
        if self.tables["test_labels"] is None:
            said.append(f"No {PATTERNS['test_labels']}: test studies have no radiologists' labels.")
        said += self.said
        if self.seed is not None:
            said.append(f"Split: {seeded_said(self.seed)}.")
        if self.boxes is None:
            return [*said, f"No {ms_cxr.PATTERN}: no boxes, nobody is held out for grounding."]
        patients = {patient for patient, _ in self._listed.values()}
        return said + self.boxes.describe(patients & self.boxes.patients())

    def _describe_images(self) -> str:
        if self.text_only:
            studies = counted(len(self._listed), "study")
            return f"MIMIC-CXR {self.root}: text only, {studies}; images are skipped."
        names = {"dcm": "MIMIC-CXR (DICOM)", "jpg": "MIMIC-CXR-JPG"}
        kinds = self._files.kinds
        kind = next((names[k] for k in names if kinds == {k}), "MIMIC-CXR")
        table = self.tables["metadata"] or self.tables["records"]
        place = f"in {table.name}" if table is not None else f"below {self._files.tree}"
        said = f"{kind} folder {self.root}: {counted(len(self.image_records), 'image')} {place}."
        if not kinds:
            said += f" None of their files is there below {self._files.tree}."
        if self.tables["metadata"] is None:
            said += (
                f" No {PATTERNS['metadata']}: view positions are read from the DICOM headers"
                " (--tables FOLDER takes them from the JPG release's tables)."
            )
        return said

    # -------------------------------------------------------------------------- images

    def _read_images(self) -> None:
        listed = self._list_images()
        splits = self._read_splits("dicom_id", [image.image for image in listed])
        from_header = self.tables["metadata"] is None
        for image, patient, study, view, origin in listed:
            file = self._files.path(patient, study, image)
            about = file, view, self.split(patient, splits.get(image, "")), origin
            in_header = from_header and file.name.lower().endswith(DICOM)
            self.image_records.append(ImageRecord(image, study, patient, *about, in_header))
        if from_header and self._files.kinds and "dcm" not in self._files.kinds:
            raise self._missing("metadata", "the view positions, which JPG files do not")

    def _missing(self, name: str, holds: str, otherwise: str = "") -> UserError:
        comma = "," if otherwise else " or"
        return UserError(
            f"{self.root}: the table {PATTERNS[name]} is missing (it holds {holds}); it comes with"
            f" MIMIC-CXR-JPG: put it beside the folder 'files'{comma} name its folder with --tables"
            f"{otherwise}."
        )

    def _list_images(self) -> list[Listed]:
        """Return the rows of the metadata table, else of the record list, else the files."""
        path = self.tables["metadata"] or self.tables["records"]
        if path is None:
            files = list(self._files.walk())
            if not files:
                raise UserError(
                    f"{self.root}: has no image below {self._files.tree} and no table of images"
                    f" ({PATTERNS['metadata']} or {PATTERNS['records']}); check the path, or give"
                    " --text-only to prepare the reports alone."
                )
            return files
        others = ["ViewPosition"] if path == self.tables["metadata"] else []
        table = self._read_table(path, [*_IDS], others)
        problem = "its dicom_id is already in row {}; download the table again."
        distinct_rows(path, table, "dicom_id", problem, ["dicom_id", "origin"])
        views = table["ViewPosition"] if others else [""] * len(table)
        views = ["" if is_blank(view) else view for view in views]
        return list(map(Listed, *(table[name] for name in _IDS), views, table["origin"]))

    def _read_table(self, path: Path, ids: list[str], others: list[str]) -> pd.DataFrame:
        table = self.read_rows(path, [*ids, *others])
        good = table["origin"] != ""
        for name in ids:
            letter, form = _IDS[name]
            table[name] = self.ids(path, table, name, letter)
            good &= table[name].str.fullmatch(form)
        problem = f"{', '.join(ids)}: one is blank or not a number; download the table again."
        refuse_rows(path, table, ~good, problem)
        return table

    def _read_splits(self, key: str, names: Collection[str]) -> dict[str, str]:
        """Read the official split of ``names``, which are ``dicom_id`` or ``study_id``."""
        path = self.tables["split"]
        if self.seed is not None:
            return {}
        if path is None:
            otherwise = ", or split the patients with --split-seed 0"
            raise self._missing("split", "the official split", otherwise)
        table = self._read_table(path, [key], ["split"])
        splits = splits_of(path, zip(table.index, table[key], table["split"], strict=True), key)
        known = Ids(splits, _IDS[key][0])
        matched = {name: splits[other] for name in names if (other := known.find(name))}
        what = "images" if key == "dicom_id" else "studies"
        check_match(path, key, splits, len(matched), Ids(names), what)
        return matched

    # ------------------------------------------------------------------------- studies

    def _list_studies(self) -> dict[str, tuple[str, str]]:
        """Patient and split of every study: of the images, or of reports that are alone."""
        if not self.text_only:
            first = {image.study_id: image for image in reversed(self.image_records)}
            order = dict.fromkeys(image.study_id for image in self.image_records)
            return {study: (first[study].patient_id, first[study].split) for study in order}
        tables = map(self.tables.get, ("studies", "metadata", "records"))
        path = next(filter(None, tables), None)
        owners = {study: patient for patient, study in self._reports.listing()}
        if path is not None:
            keys = ["subject_id", "study_id"]
            problem = "its study belongs to another patient in row {}; download the table again."
            rows = self._read_table(path, keys, [])
            rows = distinct_rows(path, rows, "study_id", problem, keys)
            owners = dict(zip(rows["study_id"], rows["subject_id"], strict=True))
        splits = self._read_splits("study_id", owners)
        return {s: (owner, self.split(owner, splits.get(s, ""))) for s, owner in owners.items()}

    def _read_labels(self) -> dict[str, Labels]:
        """Labels by study.

        Radiologists labelled a part of the test set; there they replace the labeller's guesses.
        """
        path, test_path = self.tables[self.labeller], self.tables["test_labels"]
        studies = Ids(self._listed, STUDY)
        tests = {study for study, (_, split) in self._listed.items() if split == "test"}
        labels: dict[str, Labels] = {}
        if path is not None:
            labels = self._matched(path, studies)
            self.said.append(
                f"Labels: {len(labels)} of the {len(self._listed)} studies have the labeller's."
            )
        if test_path is not None:
            known = self._matched(test_path, studies, len(tests))
            human = {study: row for study, row in known.items() if study in tests}
            labels |= human
            kept = sum(study in labels for study in tests - human.keys())
            step = f"study of {test_path.name} is a test study"
            self.counted += [
                (step, "label rows", len(human), len(known)),
                ("test study has radiologists' labels", "test studies", len(human), len(tests)),
            ]
            self.said.append(
                f"Labels: {len(human)} of the {len(tests)} test studies have radiologists',"
                f" {kept} have the labeller's alone."
            )
        return labels

    def _matched(self, path: Path, studies: Ids, tests: int | None = None) -> dict[str, Labels]:
        """Return the labels of the studies that are listed, and count them."""
        labels, said = read_label_table(path)
        known = {study: row for name, row in labels.items() if (study := studies.find(name))}
        enough = tests is None or min(len(labels), tests) >= _FEW
        if enough or shape(next(iter(labels), "")) != studies.example():
            check_match(path, "study_id", labels, len(known), studies, "studies")
        self.said += said
        self.counted += [
            (f"labels read from {path.name}", "label rows", len(labels), None),
            (f"study of {path.name} is in the source", "label rows", len(known), len(labels)),
        ]
        return known


def _reports_alone(path: Path, text_only: bool) -> tuple[Path, Path]:
    """Return the folder and the zip of MIMIC-CXR's reports, given by itself."""
    if not path.name.lower().endswith(".zip"):
        raise UserError(f"{path}: is a file; give the folder that holds 'files'.")
    if not text_only:
        raise UserError(
            f"{path}: is a zip of reports without images; give the folder that holds 'files' and"
            " name this zip with --reports, or give --text-only to prepare the reports alone."
        )
    return path.parent, path
