"""Findings that have a name, boxes and perhaps a mask: what archives say without a sentence.

A class is spelt as this project spells it where the two are the same finding, and its phrase is
that name as a sentence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

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

Corners = Annotated[
    list[Annotated[float, Field(gt=-_FAR, lt=_FAR)]], Field(min_length=4, max_length=4)
]
"""Four numbers of a JSON file."""

Count = Callable[[str, str, int, int], None]
"""Notes a step of the funnel: its name, unit, how many are kept, and of how many."""


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


def box_of(values: object, *, corners: bool = False) -> Box | None:
    """Return the box of four cells or JSON numbers, ``None`` where they are something else.

    >>> box_of(["1", "2.5", "3", "4"]), box_of(["1", "", "3", "4"])
    ((1.0, 2.5, 3.0, 4.0), None)
    """
    if not isinstance(values, list | tuple) or len(values) != 4:
        return None
    try:
        x, y, a, b = (float(v) if isinstance(v, str | int | float) else math.nan for v in values)
    except ValueError:
        return None
    if not all(abs(number) < _FAR for number in (x, y, a, b)):
        return None
    return (x, y, a - x, b - y) if corners else (x, y, a, b)


class Marks:
    """The findings of images, with their boxes and masks; one phrase an image and finding.

    Attributes:
        present: findings by image, also of those whose box or mask cannot be read.
    """

    def __init__(self, count: Count) -> None:
        self.present: dict[str, set[str]] = {}
        self.count = count
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
        """Return the phrases in the order in which they came."""
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
    ) -> list[tuple[str, str, str, Box]]:
        """Return image, finding, reader and box of each row of a table that has them."""
        name, columns, total = path.name, how.get("corners") or how["sides"], len(table)
        cells = table[columns]
        reader, rows = how.get("reader"), zip(*(table[side] for side in columns), strict=True)
        table = table.copy()
        boxes: list[Any] = [box_of(row, corners="corners" in how) for row in rows]
        table["_box"] = boxes
        table["_empty"] = cells.map(is_blank).all(axis=1)
        table["_image"] = table[how["image"]].map(file_stem)
        table["_finding"] = table[how["finding"]] if "finding" in how else how["is"]
        table["_reader"] = table[reader].replace("", "unnamed") if reader in table else ""
        has_box = table["_box"].notna()
        if "when" in how:
            present = table[how["when"]].str.removesuffix(".0") == "1"
            fits = has_box.where(present, table["_empty"])
            step = f"row of {name} has a box where its label is 1, and none where it is 0"
            self.count(step, "rows", int(fits.sum()), total)
            table, has_box = table[present], has_box[present]
        boxed = table[~table["_empty"]]
        if how.get("broken") == "refused" and boxed["_box"].isna().any():
            row = boxed.index[boxed["_box"].isna()][0]
            raise UserError(
                f"{path}, row {row}: {columns[0]} ... {columns[-1]} must be numbers of pixels."
            )
        readable = boxed[boxed["_box"].notna() & ~boxed["_finding"].map(is_blank)]
        listed = readable[readable["_image"].isin(images)]
        if "when" not in how:
            self.count(f"row of {name} has a box", "rows", len(boxed), total)
        step = f"row of {name} has a finding and four numbers"
        self.count(step, "boxes", len(readable), len(boxed))
        step = f"box of {name} has its image in the table"
        self.count(step, "boxes", len(listed), len(readable))
        columns = ["_image", "_finding", "_reader", "_box"]
        return list(listed[columns].itertuples(index=False, name=None))

    def add_entry(
        self, image: str, findings: list[str], corners: list[Any], outlines: Any, size: list[int]
    ) -> Counter[str]:
        """Add the findings of an entry of a list, with as many boxes and outlines; count them.

        Findings whose boxes are more or fewer are present without one; a finding with a broken
        outline has no mask.
        """
        self.present.setdefault(image, set()).update(findings)
        counts = Counter(listed=max(len(corners), len(findings)))
        if len(corners) != len(findings):
            return counts
        for finding, sides in zip(findings, corners, strict=True):
            box = box_of(sides, corners=True)
            counts.update(paired=1, read=box is not None)
            if box is not None:
                self.add(image, finding, [box])
        lines = outlines if isinstance(outlines, list) else []
        for finding in dict.fromkeys(findings) if len(lines) == len(findings) else ():
            drawn = [line for line, name in zip(lines, findings, strict=True) if name == finding]
            good = [line for line in drawn if _is_outline(line)]
            counts.update(outlines=len(drawn), outlined=len(good))
            if len(good) == len(drawn):
                areas = [polygon_pixels(line, size[1], size[0]) for line in good]
                self._masks[image, finding] = encode(np.logical_or.reduce(areas))
        return counts

    def read_mask_file(self, path: Path, images: Collection[str]) -> None:
        """Read masks in COCO's form by image and finding; one without a pixel is no finding."""
        content = read_json_value(path, "download it again")
        if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
            raise UserError(
                f"{path}: does not map images to findings and masks; download it again."
            )
        # patient64541_study1_view1_frontal
        masks = {"/".join(key.split("_", 2)): findings for key, findings in content.items()}
        readable = present = 0
        for image, findings in masks.items():
            for name, value in findings.items():
                try:
                    mask = from_coco(value)
                except ValueError:
                    continue
                readable += 1
                boxes = component_boxes(decode(mask))
                if boxes:
                    present += 1
                    self.add(image, finding_name(name), boxes)
                    self._masks[image, finding_name(name)] = mask
        known = sum(image in images for image in masks)
        step = f"image of {path.name} is in the labels' table"
        self.count(step, "rows", known, len(content))
        total = sum(map(len, masks.values()))
        self.count(f"mask of {path.name} can be read", "rows", readable, total)
        step = f"mask of {path.name} has a pixel (the finding is present)"
        self.count(step, "rows", present, readable)

    def read_runs(
        self,
        path: Path,
        cells: Mapping[str, Sequence[str]],
        sizes: Mapping[str, tuple[int, int]],
        how: Mapping[str, Any],
    ) -> None:
        """Read the cells of run lengths of each image, and join its masks."""
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
        self.count(step, "rows", total - beside, total)
        step = f"mask of {path.name} can be read and fits its image"
        self.count(step, "rows", readable, listed)


def relative_runs(cell: str) -> list[int]:
    """Return the run lengths of a cell: pixels outside and inside in turns, column by column.

    Each start is counted from the end of the run before: COCO's uncompressed list but for the last
    run outside.

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
