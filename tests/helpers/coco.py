"""COCO files of phrases with boxes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

Entry = tuple[str, Sequence[tuple[str, list[float]]], tuple[int, int]]
"""A file name, its phrases with a box each, and the width and height it was annotated at."""


def write_coco(path: Path, *entries: Entry) -> Path:
    """Write a file of images and of phrases on them."""
    images = [
        {"id": n, "file_name": name, "width": size[0], "height": size[1]}
        for n, (name, _, size) in enumerate(entries)
    ]
    boxes = [(n, text, box) for n, (_, boxes, _) in enumerate(entries) for text, box in boxes]
    annotations = [
        {"id": k, "image_id": n, "category_id": 1, "label_text": text, "bbox": box}
        for k, (n, text, box) in enumerate(boxes)
    ]
    categories = [{"id": 1, "name": "Opacity"}]
    content = {"images": images, "categories": categories, "annotations": annotations}
    path.write_text(json.dumps(content))
    return path
