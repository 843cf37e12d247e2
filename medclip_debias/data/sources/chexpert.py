"""CheXpert (Irvin et al. 2019), full size or small: radiographs and labels without reports.

``train.csv``, ``valid.csv`` and ``test.csv`` name images as
``CheXpert-v1.0/train/patient00001/study1/view1_frontal.jpg``, with ``Sex``, ``Age``,
``Frontal/Lateral``, ``AP/PA`` and 14 labels (1, 0, -1, blank). The later test set comes as
``test_labels.csv``, with a path and the labels alone. The splits are the archive's own.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from medclip_debias.data.labels import Labels, label_columns
from medclip_debias.data.records import ImageRecord, file_stem
from medclip_debias.data.sources.archive import (
    ArchiveSource,
    LabelCells,
    find_table,
    header_of,
    split_said,
    without_repeats,
)
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.stanford import named_rows, study_of, view_of
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.splits import seeded_split
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

TABLES = {
    "train": ("train.csv",),
    "validate": ("valid.csv", "val.csv", "val_labels.csv"),
    "test": ("test.csv", "test_labels.csv"),
}
"""Names of the tables by split; the first that is there is read."""

_FOLDERS = ("", "CheXpert-v1.0", "CheXpert-v1.0-small", "CheXpert")
_NEEDED = ("Path", "No Finding")


@source(
    title="CheXpert",
    looks="CheXpert (train.csv, valid.csv or test.csv with columns Path and No Finding)",
    give="folder with `train.csv`, `valid.csv`, `test.csv`",
    needs="the JPG files that the tables name; there are no reports, so validation and test images"
    " are kept for evaluation",
    takes=("split_seed",),
)
class CheXpertSource(ArchiveSource):
    """A CheXpert folder.

    Args:
        root: folder of the tables, or the one above.
        seed: split patients by a hash with this seed instead of by the tables.

    Raises:
        UserError: there is no table, or one is broken.
    """

    kind: ClassVar[str] = "chexpert"
    folders: ClassVar[tuple[str, ...]] = ()
    """Below the folder of the tables, where images may lie that are not where these say."""

    def __init__(self, root: Path, seed: int | None = None) -> None:
        super().__init__(root)
        found = _tables(root)
        if not found:
            raise UserError(
                f"{root}: has no table of CheXpert (train.csv, valid.csv or test.csv with columns"
                " Path and No Finding); check the path."
            )
        labels: dict[str, Labels] = {}
        for split, path in found.items():
            labels |= self._read(path, split, seed)
        self.add_studies(labels)
        views = Counter(image.view or "unknown" for image in self.image_records)
        self.said += [
            f"CheXpert {root}: {len(self.image_records)} images of {len(self.study_records)}"
            f" studies ({', '.join(path.name for path in found.values())}).",
            f"Views: {', '.join(f'{n} {view}' for view, n in sorted(views.items()))}.",
            "No reports: there are no sentences to train on.",
        ]
        self.said += split_said(seed)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take a folder of tables with CheXpert's columns."""
        return Sure.RELEASE if path.is_dir() and _tables(path) else Sure.NO

    @classmethod
    def open(cls, path: Path, given: Given) -> CheXpertSource:
        """Open a folder."""
        return cls(path, given.split_seed)

    def _read(self, path: Path, split: str, seed: int | None) -> dict[str, Labels]:
        """Read one table: add its images, return their labels."""
        table = read_table(path, required=_NEEDED)
        table = without_repeats(path, table, "Path", self.counted, self.said)
        table = named_rows(path, table, "Path", self.counted)
        cells = LabelCells(path)
        columns = label_columns(path, table.columns)
        values = {label: [cells.read(cell) for cell in table[c]] for c, label in columns.items()}
        places = self.locate(table["Path"].tolist(), self.folders, path.parent)
        labels: dict[str, Labels] = {}
        unstated = 0
        rows = zip(table.index.tolist(), table["Path"], _views(table), strict=True)
        for at, (row, name, view) in enumerate(rows):
            patient, study = study_of(name)
            image_id = f"{patient}/{study}/{file_stem(name)}"
            unstated += view == "FRONTAL"
            its_split = split if seed is None else seeded_split(patient, seed)
            self.image_records.append(
                ImageRecord(
                    *(image_id, f"{patient}/{study}", patient, places.path(name), view),
                    *(its_split, f"{path}, row {row}"),
                )
            )
            labels[image_id] = {label: column[at] for label, column in values.items()}
        if unstated:
            self.said.append(f"{path}: {unstated} frontal images are neither AP nor PA.")
        self.counted += cells.steps()
        return labels


def _tables(root: Path) -> dict[str, Path]:
    """Return CheXpert's tables by split, all in one folder."""
    for name in _FOLDERS:
        found = {}
        for split, names in TABLES.items():
            path = find_table([root / name], *names)
            if path is not None and set(_NEEDED) <= set(header_of(path)):
                found[split] = path
        if found:
            return found
    return {}


def _views(table: pd.DataFrame) -> list[str]:
    """Return the view of each row; where no column says it, the file's name does."""
    blank = [""] * len(table)
    sides = table["Frontal/Lateral"].tolist() if "Frontal/Lateral" in table else blank
    ways = table["AP/PA"].tolist() if "AP/PA" in table else blank
    return [
        view_of(side, way, name) for side, way, name in zip(sides, ways, table["Path"], strict=True)
    ]
