"""RSNA Pneumonia Detection Challenge 2018: boxes of opacities that suggest pneumonia.

``stage_2_train_labels.csv`` has a row a box (or one without a box for an image that has none),
``stage_2_detailed_class_info.csv`` one of three classes, ``stage_2_train_images/<patientId>.dcm``
the images, which are images of ChestX-ray14. ``pneumonia-challenge-dataset-mappings_2018.json``,
which RSNA gives out beside, says which; then images of one person are known as such.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from medclip_debias.data.labels import Labels
from medclip_debias.data.records import Box, ImageRecord
from medclip_debias.data.sources.archive import ArchiveSource
from medclip_debias.data.sources.findings import FindingBoxes, box_of
from medclip_debias.data.sources.ids import is_blank, plain_id
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.sources.tree import is_file
from medclip_debias.data.splits import SPLIT_SEED, seeded_split
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_value

LABELS = "stage_2_train_labels.csv"
CLASSES = "stage_2_detailed_class_info.csv"
IMAGES, TEST_IMAGES = "stage_2_train_images", "stage_2_test_images"
MAPPING = "pneumonia-challenge-dataset-mappings_2018.json"
FINDING = "Pneumonia"

_BOX = ("x", "y", "width", "height")
_TARGETS = {"1": 1.0, "1.0": 1.0, "0": 0.0, "0.0": 0.0}
_OF_CLASS: dict[str, Labels] = {
    "Normal": {"No Finding": 1.0, "Lung Opacity": 0.0},
    "No Lung Opacity / Not Normal": {"No Finding": 0.0, "Lung Opacity": 0.0},
    "Lung Opacity": {"No Finding": 0.0, "Lung Opacity": 1.0},
}


@source(
    title="RSNA Pneumonia",
    looks=f"RSNA Pneumonia ({LABELS})",
    give="folder with `stage_2_train_labels.csv`",
    needs="`stage_2_train_images/*.dcm`; optional `stage_2_detailed_class_info.csv`, and RSNA's"
    " `pneumonia-challenge-dataset-mappings_2018.json`, which tells which images are one person's",
    takes=("split_seed",),
    instead={"text_only": "RSNA Pneumonia has no reports; leave out --text-only"},
)
class RsnaSource(ArchiveSource):
    """The training images of the challenge; those of its test set have no public labels.

    Args:
        root: folder of the tables.
        seed: of the split: the archive has none.

    Raises:
        UserError: the table of labels is missing or broken.
    """

    kind: ClassVar[str] = "rsna"

    def __init__(self, root: Path, seed: int | None = None) -> None:
        super().__init__(root)
        self.seed = SPLIT_SEED if seed is None else seed
        path = root / LABELS
        labels, boxes = self._read_labels(path)
        if is_file(root / CLASSES):
            self._read_classes(root / CLASSES, labels)
        else:
            self.said.append(f"No {CLASSES}: labels 'No Finding' and 'Lung Opacity' are not known.")
        people = self._people(set(labels))
        places = self.locate([f"{IMAGES}/{name}.dcm" for name in labels])
        for name in labels:
            patient = people.get(name, name)
            place = places.path(f"{IMAGES}/{name}.dcm")
            ids = (name, name, patient)
            split = seeded_split(patient, self.seed)
            self.image_records.append(
                ImageRecord(*ids, place, "", split, str(path), view_in_header=True)
            )
        self.add_studies(labels)
        found = FindingBoxes()
        for name, own in boxes.items():
            found.add(name, FINDING, own)
        self.phrase_records = found.phrases()
        self.said += [
            f"RSNA Pneumonia {path}: {len(labels)} images, {len(boxes)} with boxes. It has no"
            " reports: there are no sentences to train on.",
            f"Split: patients 80/10/10 by a hash of their id with seed {self.seed}.",
        ]
        unlabelled = sum(1 for _ in (root / TEST_IMAGES).glob("*.dcm"))
        if unlabelled:
            self.said.append(f"{TEST_IMAGES}: {unlabelled} images have no labels and are not read.")

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take folders with the challenge's table of labels."""
        return Sure.RELEASE if is_file(path / LABELS) else Sure.NO

    @classmethod
    def open(cls, path: Path, given: Given) -> RsnaSource:
        """Open the folder of the tables."""
        return cls(path, given.split_seed)

    def _read_labels(self, path: Path) -> tuple[dict[str, Labels], dict[str, list[Box]]]:
        """Return the label and the boxes of each image."""
        table = read_table(path, required=("patientId", *_BOX, "Target"))
        if table.empty:
            raise UserError(f"{path}: has no rows; download it again.")
        labels: dict[str, Labels] = {}
        boxes: dict[str, list[Box]] = {}
        good = whole = agree = listed = 0
        rows = zip(table["patientId"], table["Target"], *(table[c] for c in _BOX), strict=True)
        for name, cell, *sides in rows:
            target = _TARGETS.get(cell)
            if is_blank(name) or target is None:
                continue
            good += 1
            box = box_of(sides)
            listed += bool(target) and box is not None
            blank = all(is_blank(side) for side in sides)
            # An image with a box has the finding, whatever another of its rows says.
            known = labels.setdefault(name, {FINDING: target})
            agree += known[FINDING] == target
            known[FINDING] = max(known[FINDING] or 0.0, target)
            fits = box is not None if target else blank
            whole += fits
            if target and box is not None and box not in boxes.setdefault(name, []):
                boxes[name].append(box)
        boxes = {name: own for name, own in boxes.items() if own}
        held = sum(len(own) for own in boxes.values())
        self.count(f"row of {path.name} has an id and a target", "label rows", good, len(table))
        self.count("image has one target in all its rows", "label rows", agree, good)
        step = "row has a box where its target is 1, and none where it is 0"
        self.count(step, "rows", whole, good)
        self.count("target 1 has a box that no row above has", "boxes", held, listed)
        return labels, boxes

    def _read_classes(self, path: Path, labels: dict[str, Labels]) -> None:
        """Add what the three classes say; an image that has two of them keeps neither."""
        table = read_table(path, required=("patientId", "class"))
        classes: dict[str, set[str]] = {}
        known = 0
        for name, cell in zip(table["patientId"], table["class"], strict=True):
            if name in labels and cell in _OF_CLASS:
                known += 1
                classes.setdefault(name, set()).add(cell)
        one = {name: min(own) for name, own in classes.items() if len(own) == 1}
        for name in labels:
            blank: Labels = {"No Finding": None, "Lung Opacity": None}
            labels[name] |= _OF_CLASS[one[name]] if name in one else blank
        fits = sum(labels[n]["Lung Opacity"] == labels[n][FINDING] for n in one)
        step = f"row of {path.name} names an image and a class"
        self.count(step, "label rows", known, len(table))
        self.count("image has one class", "label rows", len(one), len(classes))
        step = "class 'Lung Opacity' where the target is 1 alone"
        self.count(step, "label rows", fits, len(one))

    def _people(self, images: set[str]) -> dict[str, str]:
        """Return the person of each image in ChestX-ray14, where the mapping is there."""
        path = self.root / MAPPING
        if not is_file(path):
            self.said.append(
                f"No {MAPPING}: every image counts as another patient, though some are one"
                " person's in ChestX-ray14."
            )
            return {}
        content = read_json_value(path, "download it again, or remove it")
        entries = content if isinstance(content, list) else []
        people = {}
        for entry in entries:
            name = entry.get("subset_img_id") if isinstance(entry, dict) else None
            image = entry.get("img_id") if isinstance(entry, dict) else None
            if isinstance(image, str) and isinstance(name, str) and name in images:
                people[name] = plain_id(image.partition("_")[0])
        self.count(f"image is in {MAPPING}", "rows", len(people), len(images))
        return people
