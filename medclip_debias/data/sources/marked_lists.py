"""JSON lists of images and what is marked in them: COCO's form, and an object an image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from medclip_debias.data.records import file_stem
from medclip_debias.data.sources.findings import Marks, box_of, finding_name
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_value

Names = dict[str, str]
"""File names of images by where each is listed."""


def read_coco(path: Path, marks: Marks) -> Names:
    """Read a list in COCO's form."""
    content = read_json_value(path, "download it again")
    try:
        names = {image["id"]: str(image["file_name"]) for image in content["images"]}
        classes = {one["id"]: finding_name(one["name"]) for one in content["categories"]}
        listed = [(a["image_id"], a["category_id"], a["bbox"]) for a in content["annotations"]]
        boxes = [(names.get(i), classes.get(c), box_of(sides)) for i, c, sides in listed]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: is no list of images, categories and annotations; download it again."
        ) from error
    good = [(n, f, box) for n, f, box in boxes if n is not None and f is not None and box]
    for name, finding, box in good:
        marks.add(file_stem(name), finding, [box])
    marks.count(f"annotation of {path.name} has image and box", "boxes", len(good), len(boxes))
    stems = {file_stem(name) for name in names.values()}
    marks.count(f"image of {path.name} has a stem of its own", "rows", len(stems), len(names))
    return {f"{path}, image {at}": name for at, name in enumerate(names.values(), start=1)}


def read_entries(
    path: Path, how: Mapping[str, Any], classes: Collection[str], size: list[int], marks: Marks
) -> Names:
    """Read a list of an object an image.

    Args:
        path: of the list.
        how: which of an object's keys hold the image, its findings, their corners and outlines.
        classes: of the archive, as they are spelt here.
        size: width and height of the images that were annotated.
        marks: to add the findings to.
    """
    content = read_json_value(path, "download it again", encoding="utf-8-sig")
    if not isinstance(content, list) or not content:
        raise UserError(f"{path}: is not a list of images; download it again.")
    counts = Counter(entries=len(content))
    names: Names = {}
    for number, entry in enumerate(content, start=1):
        entry = entry if isinstance(entry, dict) else {}
        name, findings, corners = (entry.get(how[key]) for key in ("image", "findings", "corners"))
        if not (isinstance(name, str) and name.strip()):
            continue
        if not (isinstance(findings, list) and isinstance(corners, list)):
            continue
        counts["good"] += 1
        image = file_stem(name.strip())
        if image in marks.present:
            continue
        names[f"{path}, entry {number}"] = name.strip()
        findings = [finding_name(str(finding)) for finding in findings]
        counts.update(named=len(findings), known=sum(f in classes for f in findings))
        counts += marks.add_entry(image, findings, corners, entry.get(how["outlines"]), size)
    counts["names"] = len(names)
    for step, unit, kept, total in (
        ("entry of {} has a name and its lists", "rows", "good", "entries"),
        ("entry of {} is no repeat", "rows", "names", "good"),
        ("finding of {} is one of the archive's", "label cells", "known", "named"),
        ("finding of {} has a box of its own", "boxes", "paired", "listed"),
        ("box of {} is four numbers", "boxes", "read", "paired"),
        ("outline of {} has three points or more", "rows", "outlined", "outlines"),
    ):
        marks.count(step.format(path.name), unit, counts[kept], counts[total])
    return names
