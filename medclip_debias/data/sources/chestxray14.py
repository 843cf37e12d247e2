"""ChestX-ray14 of the NIH (Wang et al. 2017): labels mined from reports that are not released.

``Data_Entry_2017.csv`` (or ``Data_Entry_2017_v2020.csv``) lists images and findings,
``BBox_List_2017.csv`` boxes in pixels of the 1024 x 1024 images, ``train_val_list.txt`` and
``test_list.txt`` the official split. Images lie in ``images_001/images`` to ``images_012/images``,
or in any other folder below.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import ClassVar

from medclip_debias.data.labels import Labels
from medclip_debias.data.records import ImageRecord, file_stem
from medclip_debias.data.sources.archive import ArchiveSource, find_table, without_repeats
from medclip_debias.data.sources.findings import FindingBoxes, box_of, class_labels, finding_name
from medclip_debias.data.sources.ids import is_blank, read_ids
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.sources.tree import is_file
from medclip_debias.data.splits import SPLIT_SEED, seeded_split
from medclip_debias.errors import UserError

TABLE = "Data_Entry_2017*.csv"
BOXES = "BBox_List_2017.csv"
TRAIN_LIST, TEST_LIST = "train_val_list.txt", "test_list.txt"
SIDE = 1024
"""Width and height of the images that boxes were annotated in."""

CLASSES = (
    *("Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema"),
    *("Fibrosis", "Hernia", "Infiltration", "Mass", "Nodule", "Pleural_Thickening"),
    *("Pneumonia", "Pneumothorax"),
)
"""As the archive spells them."""

NONE = "No Finding"
_LABELS = (*(finding_name(name) for name in CLASSES), NONE)
_COLUMNS = ("Image Index", "Finding Labels", "Patient ID")
_BOX = ("Bbox [x", "y", "w", "h]")  # one name, 'Bbox [x,y,w,h]', cut at its commas
_BOX_COLUMNS = ("Image Index", "Finding Label", *_BOX)


@source(
    title="ChestX-ray14",
    looks=f"ChestX-ray14 ({TABLE})",
    give="folder with `Data_Entry_2017*.csv`",
    needs="the images in any folder below; `train_val_list.txt` and `test_list.txt`, or patients"
    " are split by a hash; `BBox_List_2017.csv` for boxes",
    takes=("split_seed",),
    instead={"text_only": "ChestX-ray14 has no reports; leave out --text-only"},
)
class ChestXray14Source(ArchiveSource):
    """The tables of ChestX-ray14 and the images beside them.

    Each image is its own study, for labels are given by image. The official lists name training
    and validation together: a tenth of their patients, by the hash of their ids, validate.

    Args:
        root: folder of the tables.
        seed: split patients by a hash with this seed, also where the official lists are there.

    Raises:
        UserError: a table is missing or broken.
    """

    kind: ClassVar[str] = "chestxray14"

    def __init__(self, root: Path, seed: int | None = None) -> None:
        super().__init__(root)
        path = find_table([root], TABLE)
        if path is None:
            raise UserError(f"{root}: has no {TABLE} of ChestX-ray14; put it there.")
        splits = _official(root) if seed is None else None
        self.add_studies(self._read_images(path, splits, seed))
        people = len({image.patient_id for image in self.image_records})
        self.said += [
            f"ChestX-ray14 {path}: {len(self.image_records)} images of {people} patients. It has"
            " no reports: there are no sentences to train on.",
            f"Split: {TEST_LIST} is the test set; of the patients in {TRAIN_LIST} a tenth, by a"
            " hash of their id, validate."
            if splits is not None
            else "Split: patients 80/10/10 by a hash of their id with seed"
            f" {SPLIT_SEED if seed is None else seed}.",
        ]
        self._read_boxes()

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take folders with the archive's own table."""
        return Sure.RELEASE if path.is_dir() and any(path.glob(TABLE)) else Sure.NO

    @classmethod
    def open(cls, path: Path, given: Given) -> ChestXray14Source:
        """Open the folder of the tables."""
        return cls(path, given.split_seed)

    def _read_images(
        self, path: Path, splits: dict[str, str] | None, seed: int | None
    ) -> dict[str, Labels]:
        """Read the table of images; return their labels."""
        table = read_table(path, required=_COLUMNS)
        table = without_repeats(path, table, "Image Index", self.counted, self.said)
        if table.empty:
            raise UserError(f"{path}: has no rows; download it again.")
        patients = read_ids(path, table, "Patient ID")
        self.said += patients.said(path, "Patient ID")
        views = table["View Position"].tolist() if "View Position" in table else [""] * len(table)
        files = self.tree()
        counts: Counter[str] = Counter()
        labels: dict[str, Labels] = {}
        rows = (table.index.tolist(), table["Image Index"], table["Finding Labels"])
        for row, name, findings, patient, view in zip(*rows, patients.ids, views, strict=True):
            where = f"{path}, row {row}"
            if is_blank(name):
                raise UserError(f"{where}: column 'Image Index' is blank; fill it in.")
            image_id = file_stem(name)
            labels[image_id] = _labels(findings, counts)
            split = seeded_split(patient, SPLIT_SEED if seed is None else seed)
            if splits is not None:
                listed = splits.get(name, "")
                split = listed if listed != "train" or split != "validate" else split
            place = files.path(name, "images")
            view = "" if is_blank(view) else view
            ids = (image_id, image_id, patient)
            self.image_records.append(ImageRecord(*ids, place, view, split, where))
        named, alone = counts["named"], len(table) - counts["both"]
        self.count(
            "finding is one of the archive's", "label cells", named - counts["unknown"], named
        )
        step = f"'{NONE}' stands alone (else the finding counts)"
        self.count(step, "label rows", alone, len(table))
        return labels

    def _read_boxes(self) -> None:
        path = self.root / BOXES
        if not is_file(path):
            self.said.append(f"No {BOXES}: no boxes.")
            return
        table = read_table(path, required=_BOX_COLUMNS)
        images = {image.image_id for image in self.image_records}
        found = FindingBoxes((SIDE, SIDE))
        readable = listed = 0
        for name, finding, *sides in zip(*(table[name] for name in _BOX_COLUMNS), strict=True):
            box = box_of(sides)
            if box is None or is_blank(finding):
                continue
            readable += 1
            listed += file_stem(name) in images
            found.add(file_stem(name), finding_name(finding), [box])
        self.phrase_records = found.phrases()
        step = f"row of {BOXES} has a finding and four numbers"
        self.count(step, "boxes", readable, len(table))
        self.count(f"box of {BOXES} has its image in the table", "boxes", listed, readable)
        self.said.append(f"Boxes: {len(table)} in {BOXES}, {len(self.phrase_records)} phrases.")


def _labels(cell: str, counts: Counter[str]) -> Labels:
    """Return the labels that a cell names; a blank one says nothing of any."""
    names = [finding_name(name) for name in cell.split("|") if not is_blank(name)]
    known = [name for name in names if name in _LABELS]
    counts["named"] += len(names)
    counts["unknown"] += len(names) - len(known)
    findings = [name for name in known if name != NONE]
    counts["both"] += bool(findings) and NONE in known
    return class_labels(findings or known, _LABELS) if known else dict.fromkeys(_LABELS)


def _official(root: Path) -> dict[str, str] | None:
    """Return the list that names each image; training and validation are one.

    Raises:
        UserError: one list is missing, or an image is in both.
    """
    paths = [root / name for name in (TRAIN_LIST, TEST_LIST)]
    there = [is_file(path) for path in paths]
    if not any(there):
        return None
    if not all(there):
        raise UserError(
            f"{root}: {paths[there.index(False)].name} is missing beside"
            f" {paths[there.index(True)].name}; put it there, or give --split-seed."
        )
    splits = dict.fromkeys(_lines(paths[0]), "train")
    for line, name in enumerate(_lines(paths[1]), start=1):
        if splits.setdefault(name, "test") == "train":
            raise UserError(
                f"{paths[1]}, line {line}: its image is also in {TRAIN_LIST}; download both again."
            )
    splits.pop("", None)
    return splits


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: cannot be read ({type(error).__name__}); download it again."
        ) from error
    return [line.strip() for line in lines]
