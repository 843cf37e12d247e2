"""MIMIC-CXR (DICOM) and MIMIC-CXR-JPG, releases 2.0 and 2.1, as PhysioNet lays them out.

Images ``files/p10/p10000032/s50414267/<dicom_id>.dcm`` (``.dcm.gz``, ``.jpg``, ``.png``), reports
``files/p10/p10000032/s50414267.txt`` or inside ``mimic-cxr-reports.zip``, tables in the root. The
2.1 releases keep "2.0.0" in most file names, so tables are found by pattern.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from types import MappingProxyType

from medclip_debias.data.labels import Labels, read_labels
from medclip_debias.data.records import ImageRecord, PhraseRecord, StudyRecord
from medclip_debias.data.sources import ms_cxr
from medclip_debias.data.sources.tables import read_table
from medclip_debias.errors import UserError

REPORTS_ZIP = "mimic-cxr-reports.zip"
SUFFIXES = (".dcm", ".dcm.gz", ".jpg", ".png")
"""Looked for in this order: DICOM keeps more grey levels than the JPG release."""

PATTERNS = MappingProxyType(
    {
        "metadata": "mimic-cxr-*-metadata.csv*",
        "split": "mimic-cxr-*-split.csv*",
        "chexpert": "mimic-cxr-*-chexpert.csv*",
        "test_labels": "mimic-cxr-*-test-set-labeled.csv*",
        "phrases": "MS_CXR_*.json",
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
        phrases: COCO boxes; the folder's own ``MS_CXR_*.json`` when ``None``.

    Raises:
        UserError: a needed table or all reports are missing, or a table is broken.
    """

    kind = "mimic_cxr"

    def __init__(self, root: Path, phrases: Path | None = None) -> None:
        self.root = root
        self.tables = {name: _find(root, pattern) for name, pattern in PATTERNS.items()}
        for name, why in _NEEDED.items():
            if self.tables[name] is None:
                raise UserError(
                    f"{root}: the table {PATTERNS[name]} is missing ({why}); it comes with"
                    " MIMIC-CXR-JPG, put it beside the folder 'files'."
                )
        self.phrases_path = phrases if phrases is not None else self.tables["phrases"]
        self._images = self._read_images()
        self._reports = _Reports(root, self._images)

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
            report, origin = self._reports.read(image.patient_id, study)
            known = labels.get((study, image.split == "test"), {})
            yield StudyRecord(study, image.patient_id, image.split, report, known, origin)

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
        said = [f"MIMIC-CXR folder {self.root}: {len(self._images)} images in its metadata table."]
        said += [f"Table {path.name}." for path in self.tables.values() if path is not None]
        said.append(self._reports.describe())
        if self.tables["chexpert"] is None:
            said.append(f"No {PATTERNS['chexpert']}: studies have no labels.")
        if self.phrases_path is None:
            said.append(f"No {PATTERNS['phrases']}: no boxes, nobody is held out for grounding.")
        return said

    def _read_images(self) -> list[ImageRecord]:
        path = self.tables["metadata"]
        assert path is not None
        needed = ("dicom_id", "subject_id", "study_id", "ViewPosition")
        table = read_table(path, required=needed, columns=needed)
        splits = self._read_splits()
        seen: dict[str, int] = {}
        records = []
        columns = [table[name].tolist() for name in needed]
        for index, (image, patient, study, view) in enumerate(zip(*columns, strict=True)):
            row = index + 2
            if image in seen:
                raise UserError(
                    f"{path}, row {row}: its dicom_id is already in row {seen[image]};"
                    " download the table again."
                )
            seen[image] = row
            if not (patient.isdigit() and study.isdigit() and image):
                raise UserError(
                    f"{path}, row {row}: dicom_id, subject_id or study_id is blank or no number;"
                    " download the table again."
                )
            folder = self.root / "files" / f"p{patient[:2]}" / f"p{patient}" / f"s{study}"
            origin = f"{path}, row {row}"
            file = _image_file(folder, image)
            split = splits.get(image, "")
            records.append(ImageRecord(image, study, patient, file, view, split, origin))
        if not records:
            raise UserError(f"{path}: the table has no rows; download it again.")
        return records

    def _read_splits(self) -> dict[str, str]:
        path = self.tables["split"]
        assert path is not None
        needed = ("dicom_id", "split")
        table = read_table(path, required=needed, columns=needed)
        for index, split in enumerate(table["split"]):
            if split not in ("train", "validate", "test"):
                raise UserError(
                    f"{path}, row {index + 2}: split '{split}' is not train, validate or test."
                )
        return dict(zip(table["dicom_id"], table["split"], strict=True))

    def _read_labels(self) -> dict[tuple[str, bool], Labels]:
        """Labels by study and by whether it is a test study.

        Radiologists labelled the test set; there they replace the labeller's guesses.
        """
        path, test_path = self.tables["chexpert"], self.tables["test_labels"]
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
    ends = (".csv", ".csv.gz", ".json")
    return sorted(path for path in root.glob(pattern) if path.name.endswith(ends))


def _image_file(folder: Path, image_id: str) -> Path:
    candidates = [folder / f"{image_id}{suffix}" for suffix in SUFFIXES]
    return next((path for path in candidates if path.is_file()), candidates[0])


class _Reports:
    """Report texts, from the tree or from the zip."""

    def __init__(self, root: Path, images: list[ImageRecord]) -> None:
        self.root = root
        self.zip_path = root / REPORTS_ZIP
        self._zip: zipfile.ZipFile | None = None
        self._members: dict[str, str] = {}
        if self.zip_path.is_file():
            try:
                self._zip = zipfile.ZipFile(self.zip_path)
            except (zipfile.BadZipFile, OSError) as error:
                raise UserError(
                    f"{self.zip_path}: is not a readable zip; download it again."
                ) from error
            self._members = {name.split("files/")[-1]: name for name in self._zip.namelist()}
        elif not any((root / "files" / _name(i.patient_id, i.study_id)).is_file() for i in images):
            raise UserError(
                f"{root}: has no report, neither files/p1*/p*/s*.txt nor {REPORTS_ZIP}; the JPG"
                f" release has none, put {REPORTS_ZIP} of MIMIC-CXR beside the folder 'files'."
            )

    def read(self, patient: str, study: str) -> tuple[str | None, str]:
        """Return the text (``None`` where there is none) and the file it came from."""
        name = _name(patient, study)
        path = self.root / "files" / name
        try:
            return path.read_bytes().decode("utf-8", errors="replace"), str(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({type(error).__name__}).") from error
        if self._zip is None or name not in self._members:
            return None, str(path)
        try:
            content = self._zip.read(self._members[name])
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{self.zip_path}: the report files/{name} in it is damaged; download it again."
            ) from error
        return content.decode("utf-8", errors="replace"), f"{self.zip_path}: files/{name}"

    def describe(self) -> str:
        if self._zip is None:
            return "Reports: text files in the tree."
        return f"Reports: text files in the tree, then {REPORTS_ZIP}."


def _name(patient: str, study: str) -> str:
    return f"p{patient[:2]}/p{patient}/s{study}.txt"
