"""Grounded phrases: MS-CXR (v0.1, v1.1) and any COCO JSON whose annotations hold ``label_text``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from medclip_debias.data.records import Box, ImageRecord, PhraseRecord, file_stem
from medclip_debias.errors import UserError


def read_phrases(path: Path, images: Sequence[ImageRecord], root: Path) -> list[PhraseRecord]:
    """Read the phrases of a COCO file: one per image, category and text, its boxes a union.

    Args:
        path: the COCO file.
        images: the source's images; a COCO image is matched by relative path, then by stem.
        root: folder that the relative paths start from.

    Raises:
        UserError: it is no COCO file, or an entry is broken (named by its id).
    """
    coco = _Coco(path)
    names = _match(coco.images.values(), images, root)
    grouped: dict[tuple[Any, str, str], list[Box]] = {}
    for annotation in coco.annotations:
        text = " ".join(str(annotation["label_text"]).split())
        key = (annotation["image_id"], coco.category(annotation), text)
        grouped.setdefault(key, []).append(coco.box(annotation))
    counts: dict[Any, int] = {}
    phrases = []
    for (image, category, text), boxes in grouped.items():
        number = counts[image] = counts.get(image, 0) + 1
        size = coco.size(image)
        name = names[image]
        phrases.append(PhraseRecord(f"{name}/{number}", name, category, text, tuple(boxes), size))
    return phrases


def patients(path: Path, images: Sequence[ImageRecord], root: Path) -> frozenset[str]:
    """Return the patients whose images the COCO file lists, with or without boxes."""
    coco = _Coco(path)
    names = set(_match(coco.images.values(), images, root).values())
    matched = {image.patient_id for image in images if image.image_id in names}
    # Also those whose listed image is not here: their other images may be.
    named = {
        found[1]
        for image in coco.images.values()
        if (found := re.search(r"(?:^|/)p(\d{8})/", str(image.get("path", ""))))
    }
    return frozenset(matched | named)


def scale_boxes(
    boxes: Iterable[Box], annotated: tuple[int, int] | None, actual: tuple[int, int]
) -> list[list[float]]:
    """Scale boxes to the actual image and clip them to it; boxes outside are dropped.

    Args:
        boxes: in pixels of the annotated image.
        annotated: its width and height; ``None`` means that of the actual image.
        actual: width and height of the image at hand.
    """
    width, height = actual
    scale_x, scale_y = (1.0, 1.0)
    if annotated is not None:
        scale_x, scale_y = width / annotated[0], height / annotated[1]
    result = []
    for x, y, w, h in boxes:
        left, right = (min(max(value * scale_x, 0.0), width) for value in (x, x + w))
        top, bottom = (min(max(value * scale_y, 0.0), height) for value in (y, y + h))
        if right > left and bottom > top:
            result.append([left, top, right - left, bottom - top])
    return result


def _match(
    coco_images: Iterable[dict[str, Any]], images: Sequence[ImageRecord], root: Path
) -> dict[Any, str]:
    """Return the image id of each COCO image; an unmatched one keeps its stem."""
    by_path: dict[str, str] = {}
    by_stem: dict[str, str] = {}
    for image in images:
        relative = image.path.relative_to(root) if image.path.is_relative_to(root) else image.path
        by_path[relative.as_posix()] = image.image_id
        stem = file_stem(image.path.name)
        # A stem that two images share points to neither.
        by_stem[stem] = "" if stem in by_stem else image.image_id
    names = {}
    for entry in coco_images:
        file_name = str(entry.get("file_name", ""))
        stem = file_stem(file_name)
        paths = (file_name, str(entry.get("path", "")))
        found = next((by_path[p] for p in paths if p in by_path), None)
        names[entry["id"]] = found or by_stem.get(stem) or stem
    return names


class _Coco:
    """A COCO file, checked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = self._read()
        self.images: dict[Any, dict[str, Any]] = {e["id"]: e for e in content["images"]}
        self.categories: dict[Any, str] = {
            e["id"]: str(e.get("name", "")) for e in content.get("categories", [])
        }
        self.annotations: list[dict[str, Any]] = content["annotations"]
        for annotation in self.annotations:
            self._check(annotation)

    def _read(self) -> Any:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise UserError(f"{self.path}: there is no such file; check the path.") from None
        except (OSError, ValueError) as error:
            raise UserError(
                f"{self.path}: is not a readable JSON file; export it again."
            ) from error
        for key in ("images", "annotations"):
            entries = content.get(key) if isinstance(content, dict) else None
            if not isinstance(entries, list):
                raise UserError(f"{self.path}: has no list '{key}', so it is not a COCO file.")
            if not all(isinstance(e, dict) and "id" in e for e in entries):
                raise UserError(f"{self.path}: an entry of '{key}' has no 'id'; export it again.")
        return content

    def _check(self, annotation: dict[str, Any]) -> None:
        where = f"{self.path}, annotation {annotation['id']}"
        if annotation.get("image_id") not in self.images:
            raise UserError(f"{where}: its image_id is not among the file's images.")
        if not str(annotation.get("label_text") or "").strip():
            raise UserError(f"{where}: has no 'label_text'; give the phrase that the box shows.")
        box = annotation.get("bbox")
        numbers = isinstance(box, list) and len(box) == 4
        numbers = numbers and all(isinstance(v, int | float) and abs(v) < 1e9 for v in box or ())
        if not numbers or box is None or not (box[2] > 0 and box[3] > 0):
            raise UserError(f"{where}: its 'bbox' must be x, y, width, height with positive sides.")

    def box(self, annotation: dict[str, Any]) -> Box:
        x, y, width, height = (float(value) for value in annotation["bbox"])
        return x, y, width, height

    def category(self, annotation: dict[str, Any]) -> str:
        return self.categories.get(annotation.get("category_id"), "")

    def size(self, image: Any) -> tuple[int, int] | None:
        width, height = (self.images[image].get(key) or 0 for key in ("width", "height"))
        return (int(width), int(height)) if width and height else None
