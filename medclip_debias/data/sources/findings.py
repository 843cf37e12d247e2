"""Findings that have a name, boxes and perhaps a mask: what archives say without a sentence.

One rule for all of them: a class is spelt as this project spells it where the two are the same
finding, and its phrase is that name as a sentence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medclip_debias.data.masks import (
    component_boxes,
    decode,
    encode,
    from_coco,
    from_runs,
    polygon_pixels,
)
from medclip_debias.data.records import Box, Mask, PhraseRecord, file_stem
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_value

if TYPE_CHECKING:
    import pandas as pd

SPELLINGS = {
    "Effusion": "Pleural Effusion",
    "Infiltrate": "Infiltration",
    "Airspace Opacity": "Lung Opacity",
    "ActiveTuberculosis": "Active Tuberculosis",
    "ObsoletePulmonaryTuberculosis": "Obsolete Pulmonary Tuberculosis",
}
"""Classes of archives that are a finding of another name here. Others keep their name."""

_FAR = 1e9  # pixels; NaN is not nearer


def finding_name(name: str) -> str:
    """Return the project's name of an archive's class.

    >>> finding_name("Effusion"), finding_name("Pleural_Thickening"), finding_name(" Mass ")
    ('Pleural Effusion', 'Pleural Thickening', 'Mass')
    """
    plain = " ".join(name.replace("_", " ").split())
    return SPELLINGS.get(plain, plain)


def finding_sentence(name: str) -> str:
    """Return the phrase of a finding: its name as a sentence.

    >>> finding_sentence("Pleural Effusion")
    'Pleural effusion.'
    """
    return f"{name[:1].upper()}{name[1:].lower()}."


def box_of(values: Sequence[object]) -> Box | None:
    """Return the box of four cells or JSON numbers, or ``None`` where one is no number.

    >>> box_of(["1", "2.5", "3", "4"]), box_of(["1", "", "3", "4"])
    ((1.0, 2.5, 3.0, 4.0), None)
    """
    numbers = []
    for value in values:
        try:
            numbers.append(float(value) if isinstance(value, str | int | float) else math.nan)
        except ValueError:
            return None
    if len(numbers) != 4 or not all(abs(number) < _FAR for number in numbers):
        return None
    return numbers[0], numbers[1], numbers[2], numbers[3]


def class_labels(present: Iterable[str], classes: Sequence[str]) -> dict[str, float | None]:
    """Return 1 for the classes that an image shows and 0 for the others."""
    names = set(present)
    return {name: float(name in names) for name in classes}


class Marks:
    """The findings of images, with their boxes and masks; one phrase an image and finding.

    Args:
        count: notes a step of the funnel: its name, unit, how many are kept, and of how many.

    Attributes:
        present: findings by image, also of those whose box or mask cannot be read.
    """

    def __init__(self, count: Callable[[str, str, int, int], None]) -> None:
        self.present: dict[str, set[str]] = {}
        self._count = count
        self._boxes: dict[tuple[str, str], list[Box]] = {}
        self._masks: dict[tuple[str, str], Mask] = {}
        self._texts: dict[str, str] = {}

    def add(self, image: str, finding: str, boxes: Iterable[Box], text: str = "") -> None:
        """Add boxes of a finding, whose phrase is its `finding_sentence` or ``text``."""
        self.present.setdefault(image, set()).add(finding)
        self._boxes.setdefault((image, finding), []).extend(boxes)
        self._texts[finding] = text or finding_sentence(finding)

    def phrases(
        self, sizes: Mapping[str, tuple[int, int]], splits: Mapping[str, str]
    ) -> list[PhraseRecord]:
        """Return the phrases in the order in which they came.

        Args:
            sizes: width and height of each image when it was annotated; a mask has its own.
            splits: of the phrases, by image.
        """
        numbers: Counter[str] = Counter()
        phrases = []
        for (image, finding), boxes in self._boxes.items():
            numbers[image] += 1
            mask = self._masks.get((image, finding))
            size = (mask.width, mask.height) if mask is not None else sizes.get(image)
            about = image, finding, self._texts[finding], tuple(boxes), size
            name = f"{image}/{numbers[image]}"
            phrases.append(PhraseRecord(name, *about, splits.get(image, ""), mask))
        return phrases

    def read_boxes(
        self, path: Path, table: pd.DataFrame, how: Mapping[str, Any], images: Collection[str]
    ) -> Iterator[tuple[str, str, str, Box]]:
        """Yield image, finding, reader and box of each row of a table that has them.

        Args:
            path: of the table.
            table: its rows.
            how: the entry ``boxes`` of the catalog.
            images: those that are listed; boxes of others are left aside.

        Raises:
            UserError: a side is no number, where the entry says ``broken: refused``.
        """
        columns = how.get("corners") or how["sides"]
        blank = [""] * len(table)
        findings = table[how["finding"]] if "finding" in how else [how["is"]] * len(table)
        reader = how.get("reader")
        readers = [r or "unnamed" for r in table[reader]] if reader in table else blank
        present = table[how["when"]] if "when" in how else blank
        boxed = readable = listed = fits = 0
        for row, name, finding, reader, word, *cells in zip(
            *(table.index.tolist(), table[how["image"]], findings, readers, present),
            *(table[column] for column in columns),
            strict=True,
        ):
            image, box, empty = file_stem(name), box_of(cells), all(map(is_blank, cells))
            if "when" in how:
                is_present = word.removesuffix(".0") == "1"
                fits += (box is not None) if is_present else empty
                if not is_present:
                    continue
            if empty:
                continue
            boxed += 1
            if box is None and how.get("broken") == "refused":
                raise UserError(
                    f"{path}, row {row}: {columns[0]} ... {columns[-1]} must be numbers of pixels."
                )
            if box is None or is_blank(finding):
                continue
            readable += 1
            if image in images:
                listed += 1
                yield image, finding, reader, from_corners(box) if "corners" in how else box
        name = path.name
        if "when" in how:
            step = f"row of {name} has a box where its label is 1, and none where it is 0"
            self._count(step, "rows", fits, len(table))
        else:
            self._count(f"row of {name} has a box", "rows", boxed, len(table))
        step = f"row of {name} has a finding and four numbers"
        self._count(step, "boxes", readable, boxed)
        self._count(f"box of {name} has its image in the table", "boxes", listed, readable)

    def add_entry(
        self, image: str, findings: list[str], corners: list[Any], outlines: Any, size: list[int]
    ) -> Counter[str]:
        """Add the findings of an entry of a list, with as many boxes and outlines; count them.

        Findings whose boxes are more or fewer are present without one; a finding with a broken
        outline has no mask.

        Args:
            image: id of the image.
            findings: their names.
            corners: ``x1, y1, x2, y2`` of each.
            outlines: points of each, or anything else where there are none.
            size: width and height of the image that was annotated.
        """
        self.present.setdefault(image, set()).update(findings)
        counts = Counter(listed=max(len(corners), len(findings)))
        if len(corners) != len(findings):
            return counts
        for finding, sides in zip(findings, corners, strict=True):
            box = box_of(sides) if isinstance(sides, list) else None
            counts.update(paired=1, read=box is not None)
            if box is not None:
                self.add(image, finding, [from_corners(box)])
        lines = outlines if isinstance(outlines, list) else []
        for finding in dict.fromkeys(findings) if len(lines) == len(findings) else ():
            own = [line for line, its in zip(lines, findings, strict=True) if its == finding]
            good = [line for line in own if _is_outline(line)]
            counts.update(outlines=len(own), outlined=len(good))
            if len(good) == len(own):
                areas = [polygon_pixels(line, size[1], size[0]) for line in good]
                self._masks[image, finding] = encode(np.logical_or.reduce(areas))
        return counts

    def read_mask_file(self, path: Path, images: Collection[str]) -> None:
        """Read masks in COCO's form by image and finding; one without a pixel is no finding.

        Raises:
            UserError: the file has another form.
        """
        content = read_json_value(path, "download it again")
        if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
            raise UserError(
                f"{path}: does not map images to findings and masks; download it again."
            )
        listed = readable = present = known = 0
        for key, findings in content.items():
            image = "/".join(key.split("_", 2))  # patient64541_study1_view1_frontal
            known += image in images
            listed += len(findings)
            for finding, value in findings.items():
                try:
                    mask = from_coco(value)
                except ValueError:
                    continue
                readable += 1
                boxes = component_boxes(decode(mask))
                if boxes:
                    present += 1
                    self.add(image, finding_name(finding), boxes)
                    self._masks[image, finding_name(finding)] = mask
        name = path.name
        self._count(f"image of {name} is in the labels' table", "rows", known, len(content))
        self._count(f"mask of {name} can be read", "rows", readable, listed)
        step = f"mask of {name} has a pixel (the finding is present)"
        self._count(step, "rows", present, readable)

    def read_runs(
        self,
        path: Path,
        cells: Mapping[str, Sequence[str]],
        sizes: Mapping[str, tuple[int, int]],
        how: Mapping[str, Any],
    ) -> None:
        """Read the cells of run lengths of each image, and join its masks.

        Args:
            path: of the table.
            cells: by image.
            sizes: width and height of each image.
            how: the entry ``masks`` of the catalog.
        """
        finding, none = how["is"], how["none"]
        listed = readable = beside = 0
        for image, words in cells.items():
            runs = [word for word in words if word != none]
            beside += bool(runs) and len(runs) < len(words)
            if not runs:
                continue
            self.present.setdefault(image, set()).add(finding)
            width, height = sizes[image]
            pixels = np.zeros((height, width), dtype=np.bool_)
            for word in runs:
                listed += 1
                try:
                    pixels |= from_runs(relative_runs(word), height, width)
                except ValueError:
                    continue
                readable += 1
            boxes = component_boxes(pixels)
            if boxes:
                self.add(image, finding, boxes)
                self._masks[image, finding] = encode(pixels)
        total = sum(map(len, cells.values()))
        step = f"{none} stands alone (else the mask counts)"
        self._count(step, "rows", total - beside, total)
        step = f"mask of {path.name} can be read and fits its image"
        self._count(step, "rows", readable, listed)


def from_corners(corners: Box) -> Box:
    """Return the box of ``x1, y1, x2, y2``."""
    left, top, right, bottom = corners
    return left, top, right - left, bottom - top


def relative_runs(cell: str) -> list[int]:
    """Return the run lengths of a cell: pixels outside and inside in turns, column by column.

    Each start is counted from the end of the run before: COCO's uncompressed list but for the last
    run outside.

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


def _is_outline(line: Any) -> bool:
    return (
        isinstance(line, list)
        and len(line) >= 3
        and all(isinstance(point, list) and box_of([*point, *point]) is not None for point in line)
    )
