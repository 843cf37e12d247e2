"""Findings that have a name, boxes and perhaps a mask: what archives say without a sentence.

A class is spelt as this project spells it where the two are the same finding, and its phrase is
that name as a sentence. Boxes and masks come as tables, COCO's form, JSON lists and run lengths.
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
from medclip_debias.data.sources.tables import refuse_rows
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
        count: notes what was left aside while they were read.
        present: findings by image, also of those whose box or mask cannot be read.
        masks: by image and finding, at the size of the image that was annotated.
        sizes: width and height of images when they were annotated, where their list has them.
    """

    def __init__(self, count: Count) -> None:
        self.count = count
        self.present: dict[str, set[str]] = {}
        self.masks: dict[tuple[str, str], Mask] = {}
        self.sizes: dict[str, tuple[int, int]] = {}
        self._boxes: dict[tuple[str, str], list[Box]] = {}
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
            mask = self.masks.get((image, finding))
            size = (mask.width, mask.height) if mask is not None else sizes.get(image)
            about = image, finding, self._texts[finding], tuple(boxes), size
            name = f"{image}/{numbers[image]}"
            phrases.append(PhraseRecord(name, *about, splits.get(image, ""), mask))
        return phrases


Names = dict[str, str]
"""File names of images by where each is listed."""


def read_boxes(
    path: Path, table: pd.DataFrame, how: Mapping[str, Any], images: Collection[str], marks: Marks
) -> list[tuple[str, str, str, Box]]:
    """Return image, finding, reader and box of each row of a table that has them."""
    name, columns, total = path.name, how.get("corners") or how["sides"], len(table)
    sides = zip(*(table[side] for side in columns), strict=True)
    boxes: list[Any] = [box_of(row, corners="corners" in how) for row in sides]
    reader = table[how["reader"]].replace("", "unnamed") if how.get("reader") in table else ""
    table = table.assign(
        _image=table[how["image"]].map(file_stem),
        _finding=table[how["finding"]] if "finding" in how else how["is"],
        _reader=reader,
        _empty=table[columns].map(is_blank).all(axis=1),
        _box=boxes,
    )
    if "when" in how:
        present = table[how["when"]].str.removesuffix(".0") == "1"
        fits = table["_box"].notna().where(present, table["_empty"])
        step = f"row of {name} has a box where its label is 1, and none where it is 0"
        marks.count(step, "rows", int(fits.sum()), total)
        table = table[present]
    named = table[table["_image"].isin(images) & ~table["_finding"].map(is_blank)]
    for image, finding in zip(named["_image"], named["_finding"], strict=True):
        marks.present.setdefault(image, set()).add(finding_name(finding))
    boxed = table[~table["_empty"]]
    if how.get("broken") == "refused":
        problem = f"{columns[0]} ... {columns[-1]} must be numbers of pixels."
        refuse_rows(path, boxed, boxed["_box"].isna(), problem)
    readable = boxed[boxed["_box"].notna() & ~boxed["_finding"].map(is_blank)]
    listed = readable[readable["_image"].isin(images)]
    if "when" not in how:
        marks.count(f"row of {name} has a box", "rows", len(boxed), total)
    marks.count(f"row of {name} has a finding and four numbers", "boxes", len(readable), len(boxed))
    marks.count(f"box of {name} has its image in the table", "boxes", len(listed), len(readable))
    columns = ["_image", "_finding", "_reader", "_box"]
    return list(listed[columns].itertuples(index=False, name=None))


def read_coco(path: Path, marks: Marks) -> Names:
    content = read_json_value(path, "download it again")
    try:
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        sides = [(i["file_name"], i.get("width"), i.get("height")) for i in content["images"]]
        classes = {one["id"]: finding_name(one["name"]) for one in content["categories"]}
        listed = [(a["image_id"], a["category_id"], a["bbox"]) for a in content["annotations"]]
        boxes = [(names.get(i), classes.get(c), box_of(box)) for i, c, box in listed]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: is not a list of images, categories and annotations; download it again."
        ) from error
    for name, width, height in sides:
        if all(isinstance(side, int) and 0 < side < _FAR for side in (width, height)):
            marks.sizes[file_stem(str(name))] = width, height
    named = [(n, f, box) for n, f, box in boxes if n is not None and f is not None]
    for name, finding, _ in named:
        marks.present.setdefault(file_stem(name), set()).add(finding)
    good = [(name, finding, box) for name, finding, box in named if box]
    for name, finding, box in good:
        marks.add(file_stem(name), finding, [box])
    marks.count(f"annotation of {path.name} has image and box", "boxes", len(good), len(boxes))
    stems = {file_stem(name) for name in names.values()}
    marks.count(f"image of {path.name} has a stem of its own", "rows", len(stems), len(names))
    return {f"{path}, image {at}": name for at, name in enumerate(names.values(), start=1)}


def read_entries(
    path: Path, how: Mapping[str, Any], classes: Collection[str], size: list[int], marks: Marks
) -> Names:
    """Read a list of an object an image."""
    content = read_json_value(path, "download it again", encoding="utf-8-sig")
    if not isinstance(content, list) or not content:
        raise UserError(f"{path}: is not a list of images; download it again.")
    counts = Counter(entries=len(content))
    names: Names = {}
    for number, entry in enumerate(content, start=1):
        entry = entry if isinstance(entry, dict) else {}
        name, findings, corners = (entry.get(how[key]) for key in ("image", "findings", "corners"))
        name = name.strip() if isinstance(name, str) else ""
        if not (name and isinstance(findings, list) and isinstance(corners, list)):
            continue
        counts["good"] += 1
        image = file_stem(name)
        if image in marks.present:
            continue
        names[f"{path}, entry {number}"] = name
        findings = [finding_name(str(finding)) for finding in findings]
        marks.present.setdefault(image, set()).update(findings)
        counts.update(named=len(findings), known=sum(f in classes for f in findings))
        counts.update(listed=max(len(corners), len(findings)))
        if len(corners) == len(findings):  # else the findings are present without a box
            counts += _add_entry(image, findings, corners, entry.get(how["outlines"]), size, marks)
    counts["names"] = len(names)
    for step, unit, kept, total in (
        ("entry of {} has a name and its lists", "rows", "good", "entries"),
        ("entry of {} is not a repeat", "rows", "names", "good"),
        ("finding of {} is one of the archive's", "label cells", "known", "named"),
        ("finding of {} has a box of its own", "boxes", "paired", "listed"),
        ("box of {} is four numbers", "boxes", "read", "paired"),
        ("outline of {} has three points or more", "rows", "outlined", "outlines"),
    ):
        marks.count(step.format(path.name), unit, counts[kept], counts[total])
    return names


def _add_entry(
    image: str,
    findings: list[str],
    corners: list[Any],
    outlines: Any,
    size: list[int],
    marks: Marks,
) -> Counter[str]:
    """Add findings with as many boxes, and outlines; one with a broken outline has no mask."""
    counts = Counter(paired=len(findings))
    for finding, sides in zip(findings, corners, strict=True):
        box = box_of(sides, corners=True)
        if box is not None:
            counts["read"] += 1
            marks.add(image, finding, [box])
    lines = outlines if isinstance(outlines, list) else []
    for finding in dict.fromkeys(findings) if len(lines) == len(findings) else ():
        drawn = [line for line, name in zip(lines, findings, strict=True) if name == finding]
        good = [line for line in drawn if _is_outline(line)]
        counts.update(outlines=len(drawn), outlined=len(good))
        if len(good) == len(drawn):
            areas = [polygon_pixels(line, size[1], size[0]) for line in good]
            marks.masks[image, finding] = encode(np.logical_or.reduce(areas))
    return counts


def read_masks(path: Path, images: Collection[str], marks: Marks) -> None:
    """Read masks in COCO's form by image and finding; one without a pixel is no finding."""
    content = read_json_value(path, "download it again")
    if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
        raise UserError(f"{path}: does not map images to findings and masks; download it again.")
    counts: Counter[str] = Counter()
    for key, findings in content.items():
        image = "/".join(key.split("_", 2))  # patient64541_study1_view1_frontal
        counts.update(images=1, known=image in images, all=len(findings))
        for name, value in findings.items():
            try:
                mask = from_coco(value)
            except ValueError:
                continue
            boxes = component_boxes(decode(mask))
            counts.update(readable=1, present=bool(boxes))
            if boxes:
                marks.add(image, finding_name(name), boxes)
                marks.masks[image, finding_name(name)] = mask
    for step, kept, total in (
        ("image of {} is in the labels' table", "known", "images"),
        ("mask of {} can be read", "readable", "all"),
        ("mask of {} has a pixel (the finding is present)", "present", "readable"),
    ):
        marks.count(step.format(path.name), "rows", counts[kept], counts[total])


def read_runs(
    path: Path,
    cells: Mapping[str, Sequence[str]],
    sizes: Mapping[str, tuple[int, int]],
    how: Mapping[str, Any],
    marks: Marks,
) -> None:
    """Read the cells of run lengths of each image, and join its masks."""
    finding, none = how["is"], how["none"]
    counts: Counter[str] = Counter()
    for image, words in cells.items():
        runs = [word for word in words if word != none]
        plain = not runs or len(runs) == len(words)
        counts.update(cells=len(words), alone=len(words) - (not plain), listed=len(runs))
        if not runs:
            continue
        marks.present.setdefault(image, set()).add(finding)
        width, height = sizes[image]
        pixels = np.zeros((height, width), dtype=np.bool_)
        for word in runs:
            try:
                pixels |= from_runs(relative_runs(word), height, width)
            except ValueError:
                continue
            counts["readable"] += 1
        boxes = component_boxes(pixels)
        if boxes:
            marks.add(image, finding, boxes)
            marks.masks[image, finding] = encode(pixels)
    step = f"{none} stands alone (else the mask counts)"
    marks.count(step, "rows", counts["alone"], counts["cells"])
    step = f"mask of {path.name} can be read and fits its image"
    marks.count(step, "rows", counts["readable"], counts["listed"])


def relative_runs(cell: str) -> list[int]:
    """Return the run lengths of a cell: pixels outside and inside in turns, column by column.

    Each start is counted from the end of the run before: COCO's uncompressed list but for the last
    run outside.

    >>> relative_runs("5 2 3 1")
    [5, 2, 3, 1]
    """
    words = cell.split()
    if len(words) % 2 or not all(word.isascii() and word.isdigit() for word in words):
        raise ValueError("is not a list of pairs of whole numbers")
    if any(len(word) > 9 for word in words):
        raise ValueError("has a run that is longer than any image")
    return [int(word) for word in words]


def _is_outline(line: Any) -> bool:
    return (
        isinstance(line, list)
        and len(line) >= 3
        and all(isinstance(point, list) and box_of([*point, *point]) is not None for point in line)
    )
