"""MIMIC-CXR (DICOM) and MIMIC-CXR-JPG, releases 2.0 and 2.1, as PhysioNet lays them out.

Images ``files/p10/p10000032/s50414267/<dicom_id>.dcm`` (``.dcm.gz``, ``.jpg``, ``.png``), reports
``files/p10/p10000032/s50414267.txt`` or inside ``mimic-cxr-reports.zip``, tables in the root. The
2.1 releases keep "2.0.0" in most file names, so tables are found by pattern. The JPG release has
no reports: they come from a MIMIC-CXR folder or zip that is named beside it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from types import MappingProxyType

from medclip_debias.data.labels import Labeller, Labels, read_labels
from medclip_debias.data.records import ImageRecord, PhraseRecord, StudyRecord
from medclip_debias.data.sources import ms_cxr
from medclip_debias.data.sources.report_files import REPORTS_ZIP, ReportFiles
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.splits import seeded_split, split_name
from medclip_debias.errors import UserError

SUFFIXES = (".dcm", ".dcm.gz", ".jpg", ".png")
"""Looked for in this order: DICOM keeps more grey levels than the JPG release."""

PATTERNS = MappingProxyType(
    {
        "metadata": "mimic-cxr-*-metadata.csv*",
        "split": "mimic-cxr-*-split.csv*",
        "chexpert": "mimic-cxr-*-chexpert.csv*",
        "negbio": "mimic-cxr-*-negbio.csv*",
        "test_labels": "mimic-cxr-*-test-set-labeled.csv*",
    }
)
_NEEDED = {
    "metadata": "it holds the view positions",
    "split": "it holds the official split",
}


class MimicCxrSource:
    """A MIMIC-CXR or MIMIC-CXR-JPG folder.

    Args:
        root: folder that holds ``files/`` and the tables.
        phrases: COCO boxes; the folder's own ``MS_CXR_*`` file when ``None``.
        reports: folder or zip of the reports, for images that came without any.
        labeller: whose automatic labels to read.
        seed: split patients by a hash with this seed instead of by the official table.

    Raises:
        UserError: a needed table or all reports are missing, or a table is broken.
    """

    kind = "mimic_cxr"

    def __init__(
        self,
        root: Path,
        phrases: Path | None = None,
        *,
        reports: Path | None = None,
        labeller: Labeller = "chexpert",
        seed: int | None = None,
    ) -> None:
        self.root = root
        self.seed = seed
        self.labeller = labeller
        self.tables = {name: _find(root, pattern) for name, pattern in PATTERNS.items()}
        for name, why in _NEEDED.items():
            if self.tables[name] is None and not (name == "split" and seed is not None):
                raise UserError(
                    f"{root}: the table {PATTERNS[name]} is missing ({why}); it comes with"
                    " MIMIC-CXR-JPG, put it beside the folder 'files'."
                )
        self.phrases_path = phrases if phrases is not None else ms_cxr.find(root)
        self._images = self._read_images()
        self._reports = ReportFiles(root, reports)
        if not self._reports.has_any([(i.patient_id, i.study_id) for i in self._images]):
            raise UserError(
                f"{root}: has no report, neither files/p1*/p*/s*.txt nor {REPORTS_ZIP}; the JPG"
                f" release has none, put {REPORTS_ZIP} of MIMIC-CXR"
                " (physionet.org/content/mimic-cxr) beside the folder 'files' or name it with"
                " --reports."
            )

    def images(self) -> list[ImageRecord]:
        """Return the images in the order of the metadata table."""
        return self._images

    def studies(self, only: Collection[str] | None = None) -> Iterator[StudyRecord]:
        """Yield the studies in the order of their first image; reports are read as they go."""
        labels = self._read_labels()
        seen: set[str] = set()
        for image in self._images:
            study = image.study_id
            if study in seen or (only is not None and study not in only):
                continue
            seen.add(study)
            report, origin, problem = self._reports.read(image.patient_id, study)
            known = labels.get((study, image.split == "test"), {})
            yield StudyRecord(study, image.patient_id, image.split, report, known, origin, problem)

    def phrases(self) -> list[PhraseRecord]:
        """Return the phrases of MS-CXR."""
        if self.phrases_path is None:
            return []
        return ms_cxr.read_phrases(self.phrases_path, self._images, self.root)

    def held_out_patients(self) -> frozenset[str]:
        """Return the patients of MS-CXR: they are kept for grounding."""
        if self.phrases_path is None:
            return frozenset()
        return ms_cxr.patients(self.phrases_path, self._images, self.root)

    def describe(self) -> list[str]:
        """Return what was found and what is missing."""
        names = {"dcm": "MIMIC-CXR (DICOM)", "jpg": "MIMIC-CXR-JPG"}
        kind = next((names[k] for k in names if self._listed == {k}), "MIMIC-CXR")
        said = [f"{kind} folder {self.root}: {len(self._images)} images in its metadata table."]
        if not self._listed:
            said.append("No image file of that table is there under 'files'.")
        said += [f"Table {path.name}." for path in self.tables.values() if path is not None]
        said.append(self._reports.describe())
        if self.tables[self.labeller] is None:
            said.append(f"No {PATTERNS[self.labeller]}: studies have no automatic labels.")
        else:
            said.append(f"Labels: {self.labeller}.")
        if self.tables["test_labels"] is None:
            said.append(f"No {PATTERNS['test_labels']}: test studies have no radiologists' labels.")
        if self.seed is not None:
            said.append(f"Split: patients 80/10/10 by a hash of their id with seed {self.seed}.")
        if self.phrases_path is None:
            said.append(f"No {ms_cxr.PATTERN}: no boxes, nobody is held out for grounding.")
        else:
            said.append(f"Boxes: {self.phrases_path}.")
        return said

    def _read_images(self) -> list[ImageRecord]:
        path = self.tables["metadata"]
        assert path is not None
        needed = ("dicom_id", "subject_id", "study_id", "ViewPosition")
        table = read_table(path, required=needed, columns=needed)
        splits = self._read_splits()
        files = _ImageFiles(self.root / "files")
        seen: dict[str, int] = {}
        records = []
        columns = [table.index.tolist(), *(table[name].tolist() for name in needed)]
        for row, image, patient, study, view in zip(*columns, strict=True):
            if image in seen:
                raise UserError(
                    f"{path}, row {row}: its dicom_id is already in row {seen[image]};"
                    " download the table again."
                )
            seen[image] = row
            numbers = all(i.isascii() and i.isdigit() for i in (patient, study))
            if not (numbers and image) or "/" in image or "\\" in image:
                raise UserError(
                    f"{path}, row {row}: dicom_id, subject_id or study_id is blank or no number;"
                    " download the table again."
                )
            origin = f"{path}, row {row}"
            file = files.path(patient, study, image)
            split = splits.get(image, "") if self.seed is None else seeded_split(patient, self.seed)
            records.append(ImageRecord(image, study, patient, file, view, split, origin))
        if not records:
            raise UserError(f"{path}: the table has no rows; download it again.")
        self._listed = files.kinds
        return records

    def _read_splits(self) -> dict[str, str]:
        path = self.tables["split"]
        if path is None or self.seed is not None:
            return {}
        needed = ("dicom_id", "split")
        table = read_table(path, required=needed, columns=needed)
        splits: dict[str, str] = {}
        for row, image, word in zip(
            table.index.tolist(), table["dicom_id"], table["split"], strict=True
        ):
            split = split_name(word, f"{path}, row {row}")
            if splits.setdefault(image, split) != split:
                raise UserError(
                    f"{path}, row {row}: its dicom_id has another split above; keep one row."
                )
        return splits

    def _read_labels(self) -> dict[tuple[str, bool], Labels]:
        """Labels by study and by whether it is a test study.

        Radiologists labelled the test set; there they replace the labeller's guesses.
        """
        path, test_path = self.tables[self.labeller], self.tables["test_labels"]
        machine = read_labels(path) if path is not None else {}
        human = read_labels(test_path) if test_path is not None else {}
        labels = {(study, test): row for study, row in machine.items() for test in (False, True)}
        return labels | {(study, True): row for study, row in human.items()}


def looks_like(root: Path) -> bool:
    """Tell whether ``root`` is laid out like MIMIC-CXR: ``files/p1x`` or one of its tables."""
    tables = any(_matches(root, pattern) for pattern in PATTERNS.values())
    return tables or any(path.is_dir() for path in (root / "files").glob("p1[0-9]"))


def _find(root: Path, pattern: str) -> Path | None:
    found = _matches(root, pattern)
    stems = {path.name.removesuffix(".gz") for path in found}
    if len(stems) > 1:
        raise UserError(
            f"{root}: both {found[0].name} and {found[-1].name} are there; keep one release."
        )
    return found[0] if found else None


def _matches(root: Path, pattern: str) -> list[Path]:
    return sorted(p for p in root.glob(pattern) if p.name.endswith((".csv", ".csv.gz")))


class _ImageFiles:
    """The image files of a tree, by listing each study's folder once.

    A listing costs one call a study; asking for each file and suffix costs up to four an image,
    which on a network disk is most of the time that opening a source takes.
    """

    def __init__(self, files: Path) -> None:
        self.files = files
        self.kinds: set[str] = set()
        self._study = ("", "")
        self._names: frozenset[str] = frozenset()

    def path(self, patient: str, study: str, image: str) -> Path:
        folder = self.files / f"p{patient[:2]}" / f"p{patient}" / f"s{study}"
        if (patient, study) != self._study:
            self._study = (patient, study)
            try:
                self._names = frozenset(entry.name for entry in os.scandir(folder))
            except OSError:  # not there: `prepare` counts its images as missing
                self._names = frozenset()
        for suffix in SUFFIXES:
            if image + suffix in self._names:
                self.kinds.add(suffix.split(".")[1])
                return folder / (image + suffix)
        return folder / (image + SUFFIXES[0])
