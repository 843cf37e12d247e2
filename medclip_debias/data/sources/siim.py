"""SIIM-ACR Pneumothorax Segmentation 2019: DICOM files and masks, no reports.

``train-rle.csv`` (columns ``ImageId`` and `` EncodedPixels``, with a blank before the name) has a
row a mask, or one with ``-1`` for an image without pneumothorax. Its run lengths are the
challenge's own: each start is counted from the end of the run before, column by column; that is
COCO's uncompressed list but for the last run outside. Images lie in
``dicom-images-train/<study>/<series>/<ImageId>.dcm``; patients and views are in their headers.
The second stage's ``stage_2_train.csv`` and ``stage_2_images`` are read, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from medclip_debias.data.images.headers import Identity, identity
from medclip_debias.data.labels import Labels
from medclip_debias.data.masks import component_boxes, encode, from_runs
from medclip_debias.data.records import ImageRecord, Mask, file_stem
from medclip_debias.data.sources.archive import ArchiveSource, find_table, without_repeats
from medclip_debias.data.sources.findings import FindingBoxes
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.image_files import ImageTree
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.splits import SPLIT_SEED, seeded_split
from medclip_debias.errors import UserError

TABLES = ("train-rle.csv", "stage_2_train.csv")
FOLDERS = ("dicom-images-train", "stage_2_images")
FINDING = "Pneumothorax"
NOTHING = "-1"
SIDE = 1024
"""Width and height of the challenge's images, for one whose header cannot be read."""

_COLUMNS = ("ImageId", "EncodedPixels")


@source(
    title="SIIM-ACR Pneumothorax",
    looks=f"SIIM-ACR Pneumothorax ({TABLES[0]})",
    give="folder with `train-rle.csv`",
    needs="`dicom-images-train/**/*.dcm`; patients and views are read from the DICOM headers",
    takes=("split_seed",),
    instead={"text_only": "SIIM-ACR Pneumothorax has no reports; leave out --text-only"},
)
class SiimSource(ArchiveSource):
    """The training images of the challenge; masks of an image are joined.

    Args:
        root: folder of the table.
        seed: of the split: the archive has none.

    Raises:
        UserError: the table is missing or broken.
    """

    kind: ClassVar[str] = "siim"

    def __init__(self, root: Path, seed: int | None = None) -> None:
        super().__init__(root)
        self.seed = SPLIT_SEED if seed is None else seed
        path = find_table([root], *TABLES)
        if path is None:
            raise UserError(f"{root}: has no {TABLES[0]} of SIIM-ACR Pneumothorax; put it there.")
        cells = self._read_table(path)
        folder = next((root / name for name in FOLDERS if (root / name).is_dir()), root)
        files = self.tree(folder)
        headers = self._read_images(path, list(cells), files)
        labels: dict[str, Labels] = {
            name: {FINDING: float(own != [NOTHING])} for name, own in cells.items()
        }
        self.add_studies(labels)
        self._read_masks(path, cells, headers)
        unlisted = sum(file_stem(name) not in cells for name in files.by_name)
        step = f"file of {folder.name} has a row in {path.name}"
        self.count(step, "rows", len(files.by_name) - unlisted, len(files.by_name))
        people = len({image.patient_id for image in self.image_records})
        self.said += [
            f"SIIM-ACR Pneumothorax {path}: {len(cells)} images of {people} patients,"
            f" {len(self.phrase_records)} with masks. It has no reports: there are no sentences to"
            " train on.",
            f"Split: patients 80/10/10 by a hash of their id with seed {self.seed}.",
        ]

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take folders with the challenge's table of masks."""
        there = any((path / name).is_file() for name in TABLES)
        return Sure.RELEASE if there else Sure.NO

    @classmethod
    def open(cls, path: Path, given: Given) -> SiimSource:
        """Open the folder of the table."""
        return cls(path, given.split_seed)

    def _read_table(self, path: Path) -> dict[str, list[str]]:
        """Return the cells of each image: ``-1`` alone, or masks."""
        table = read_table(path, required=_COLUMNS)
        table = without_repeats(path, table, _COLUMNS, self.counted, self.said)
        if table.empty:
            raise UserError(f"{path}: has no rows; download it again.")
        cells: dict[str, list[str]] = {}
        good = 0
        for name, cell in zip(*(table[column] for column in _COLUMNS), strict=True):
            if not is_blank(name) and not is_blank(cell):
                good += 1
                cells.setdefault(name, []).append(cell)
        both = [name for name, own in cells.items() if NOTHING in own and len(own) > 1]
        for name in both:
            cells[name].remove(NOTHING)
        step = f"row of {path.name} has an id and a mask or {NOTHING}"
        self.count(step, "rows", good, len(table))
        self.count(f"{NOTHING} stands alone (else the mask counts)", "rows", good - len(both), good)
        return cells

    def _read_images(self, path: Path, names: list[str], files: ImageTree) -> dict[str, Identity]:
        headers = {}
        unknown = 0
        for name in names:
            place = files.path(f"{name}.dcm")
            header = headers[name] = identity(place)
            unknown += not header.patient
            patient = header.patient or name
            split = seeded_split(patient, self.seed)
            ids = (name, name, patient)
            view = header.view or "FRONTAL"  # as all of the challenge are
            self.image_records.append(ImageRecord(*ids, place, view, split, str(path)))
        if unknown:
            self.said.append(
                f"{path}: {unknown} images have no header that names a patient; each counts as"
                " another patient."
            )
        return headers

    def _read_masks(
        self, path: Path, cells: dict[str, list[str]], headers: dict[str, Identity]
    ) -> None:
        found = FindingBoxes()
        masks: dict[tuple[str, str], Mask] = {}
        listed = readable = 0
        for name, own in cells.items():
            if own == [NOTHING]:
                continue
            width, height = headers[name].size or (SIDE, SIDE)
            pixels = np.zeros((height, width), dtype=np.bool_)
            for cell in own:
                listed += 1
                try:
                    pixels |= from_runs(relative_runs(cell), height, width)
                except ValueError:
                    continue
                readable += 1
            boxes = component_boxes(pixels)
            if boxes:
                found.add(name, FINDING, boxes)
                masks[name, FINDING] = encode(pixels)
        self.phrase_records = found.phrases(masks)
        step = f"mask of {path.name} can be read and fits its image"
        self.count(step, "rows", readable, listed)


def relative_runs(cell: str) -> list[int]:
    """Return the run lengths of a cell: pixels outside and inside in turns, column by column.

    Raises:
        ValueError: it is no list of pairs of whole numbers.

    >>> relative_runs("5 2 3 1")
    [5, 2, 3, 1]
    """
    words = cell.split()
    if len(words) % 2 or not all(word.isascii() and word.isdigit() for word in words):
        raise ValueError("is no list of pairs of whole numbers")
    if any(len(word) > 9 for word in words):
        raise ValueError("has a run that is longer than any image")
    return [int(word) for word in words]
