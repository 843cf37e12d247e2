"""BRAX (Reis et al. 2022): Brazilian radiographs with CheXpert labels, without reports.

``master_spreadsheet_update.csv`` (release 1.1.0; ``master_spreadsheet.csv`` in 1.0.0) has a row
for each image: ``DicomPath`` (``Anonymized_DICOMs/id_.../Study_.../Series_.../image-....dcm``),
``PngPath`` (the same below ``images``), ``PatientID``, ``AccessionNumber``, ``ViewPosition`` and
the 14 labels (1, 0, -1, blank). There are no splits.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from medclip_debias.data.labels import label_columns
from medclip_debias.data.records import ImageRecord, file_stem
from medclip_debias.data.sources.archive import (
    ArchiveSource,
    LabelCells,
    find_table,
    without_repeats,
)
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.splits import SPLIT_SEED, seeded_split
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

TABLES = ("master_spreadsheet_update.csv*", "master_spreadsheet.csv*")
VIEWS = {"L": "LATERAL", "LL": "LATERAL", "RL": "LATERAL"}
"""Codes that mean a lateral view; the others (PA, AP, decubitus, oblique) stay."""

_FILES = ("PngPath", "DicomPath")
_NEEDED = ("PatientID", "AccessionNumber", "ViewPosition")


@source(
    title="BRAX",
    looks="BRAX (master_spreadsheet_update.csv)",
    give="folder with `master_spreadsheet_update.csv`",
    needs="the PNG or DICOM files that it names; there are no reports and no splits, so patients"
    " are split by a hash, and validation and test images are kept for evaluation",
    takes=("split_seed",),
)
class BraxSource(ArchiveSource):
    """A folder of BRAX.

    Args:
        root: folder of the table.
        seed: of the split of patients.

    Raises:
        UserError: there is no table, or it is broken.
    """

    kind: ClassVar[str] = "brax"

    def __init__(self, root: Path, seed: int | None = None) -> None:
        super().__init__(root)
        self.seed = SPLIT_SEED if seed is None else seed
        path = find_table([root], *TABLES)
        if path is None:
            raise UserError(
                f"{root}: has no master_spreadsheet_update.csv, the table of BRAX; check the path."
            )
        table = read_table(path, required=_NEEDED)
        there = [name for name in _FILES if name in table.columns]
        if not there:
            raise UserError(f"{path}: has neither column PngPath nor DicomPath; download it again.")
        table = without_repeats(path, table, there[0], self.counted, self.said)
        self._add_images(path, self._named(path, table, there), there)
        cells = LabelCells(path)
        columns = label_columns(path, table.columns)
        values = {label: [cells.read(c) for c in table[name]] for name, label in columns.items()}
        rows = dict(zip(table.index.tolist(), range(len(table)), strict=True))
        self.add_studies(
            {
                image.image_id: {label: column[rows[row]] for label, column in values.items()}
                for image, row in zip(self.image_records, self._rows, strict=True)
            }
        )
        self.counted += cells.steps()
        views = Counter(image.view or "unknown" for image in self.image_records)
        self.said += [
            f"BRAX {path}: {len(self.image_records)} images of {len(self.study_records)} studies.",
            f"Views: {', '.join(f'{n} {view}' for view, n in sorted(views.items()))}.",
            "No reports: there are no sentences to train on.",
            f"No splits: patients are split 80/10/10 by a hash of their id with seed {self.seed}.",
        ]

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take a folder of the archive's table."""
        return Sure.RELEASE if path.is_dir() and find_table([path], *TABLES) else Sure.NO

    @classmethod
    def open(cls, path: Path, given: Given) -> BraxSource:
        """Open a folder."""
        return cls(path, given.split_seed)

    def _named(self, path: Path, table: pd.DataFrame, there: list[str]) -> pd.DataFrame:
        """Return the rows that name a patient, a study and a file."""
        needed = ["PatientID", "AccessionNumber", there[0]]
        good = ~table[needed].map(is_blank).any(axis=1)
        if not good.all():
            step = f"row of {path.name} names patient, study and image"
            self.counted.append((step, "rows", int(good.sum()), len(table)))
        return table[good]

    def _add_images(self, path: Path, table: pd.DataFrame, there: list[str]) -> None:
        self._rows: list[int] = table.index.tolist()
        places = {name: self.locate(table[name].tolist()) for name in there}
        columns = [table[name].tolist() for name in (*_NEEDED, *there)]
        for row, patient, accession, view, *names in zip(self._rows, *columns, strict=True):
            both = list(zip(there, names, strict=True))
            exact = (places[column].exact(name) for column, name in both)
            alike = (places[column].find(name) for column, name in both)
            file = next(filter(None, (*exact, *alike)), None) or places[there[0]].path(names[0])
            word = "" if is_blank(view) else view.upper()
            self.image_records.append(
                ImageRecord(
                    image_id=file_stem(names[0]),
                    # Numbers of studies are not unique over patients.
                    study_id=f"{patient}/{accession}",
                    patient_id=patient,
                    path=file,
                    view=VIEWS.get(word, word),
                    split=seeded_split(patient, self.seed),
                    origin=f"{path}, row {row}",
                )
            )
