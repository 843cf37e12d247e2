"""ChestX-Det and ChestX-Det10: radiologists' boxes (and polygons) on images of ChestX-ray14.

A JSON list of ``{"file_name", "syms", "boxes"}``, in ChestX-Det with ``"polygons"``: the classes
of an image's findings, their boxes as ``x1, y1, x2, y2`` in pixels of the 1024 x 1024 images, and
their outlines. An image without findings has empty lists. ChestX-Det's files are
``ChestX_Det_train.json`` and ``ChestX_Det_test.json``, those of ChestX-Det10 ``train.json`` and
``test.json``. Images were numbered anew, so whose they are is not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from medclip_debias.data.labels import Labels
from medclip_debias.data.masks import encode, polygon_pixels
from medclip_debias.data.records import ImageRecord, Mask, file_stem
from medclip_debias.data.sources.archive import ArchiveSource
from medclip_debias.data.sources.findings import FindingBoxes, box_of, class_labels, finding_name
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tree import is_file
from medclip_debias.data.splits import SPLIT_SEED, seeded_split
from medclip_debias.errors import UserError
from medclip_debias.files import open_guarded, read_json_value

RELEASES = {
    "ChestX-Det": {"train": "ChestX_Det_train.json", "test": "ChestX_Det_test.json"},
    "ChestX-Det10": {"train": "train.json", "test": "test.json"},
}
"""Files of each release by split."""

_TEN = (
    *("Atelectasis", "Calcification", "Consolidation", "Effusion", "Emphysema", "Fibrosis"),
    *("Fracture", "Mass", "Nodule", "Pneumothorax"),
)
CLASSES = {
    "ChestX-Det": (*_TEN, "Cardiomegaly", "Diffuse Nodule", "Pleural Thickening"),
    "ChestX-Det10": _TEN,
}
"""Classes of each release, as it spells them."""

SIDE = 1024
"""Width and height of the images that were annotated."""

_HEAD = 1 << 12


@source(
    title="ChestX-Det and ChestX-Det10",
    looks=f"ChestX-Det ({RELEASES['ChestX-Det']['train']}) or ChestX-Det10 (its train.json)",
    give="folder with `ChestX_Det_train.json` or `train.json`",
    needs="`ChestX_Det_train.json` and `ChestX_Det_test.json` (of ChestX-Det10 `train.json` and"
    " `test.json`), or one of them; the images in any folder below",
    takes=("split_seed",),
    instead={"text_only": "ChestX-Det has no reports; leave out --text-only"},
)
class ChestXDetSource(ArchiveSource):
    """The lists of either release and the images beside them.

    Of the training list, a tenth validates, by the hash of the images' ids.

    Args:
        root: folder of the lists.
        seed: split by a hash with this seed, not by the archive's own lists.

    Raises:
        UserError: there is no list, or one is broken.
    """

    kind: ClassVar[str] = "chestx_det"

    def __init__(self, root: Path, seed: int | None = None) -> None:
        super().__init__(root)
        release = _release(root)
        if release is None:
            names = " or ".join(files["train"] for files in RELEASES.values())
            raise UserError(f"{root}: has no list of ChestX-Det ({names}); put it there.")
        self.classes = tuple(finding_name(name) for name in CLASSES[release])
        self._files = self.tree()
        self._boxes = FindingBoxes((SIDE, SIDE))
        self._masks: dict[tuple[str, str], Mask] = {}
        self._labels: dict[str, Labels] = {}
        self._seen: set[str] = set()
        there = {s: root / n for s, n in RELEASES[release].items() if is_file(root / n)}
        for split, path in there.items():
            self._read(path, split, seed)
        self.add_studies(self._labels)
        self.phrase_records = self._boxes.phrases(self._masks)
        self.said += [
            f"{release} {root}: {len(self.image_records)} images,"
            f" {len(self.phrase_records)} phrases with boxes, {len(self._masks)} of them with"
            " masks. It has no reports: there are no sentences to train on.",
            "No patient ids: every image counts as its own patient.",
            "Split: the archive's test list; a tenth of its training list, by a hash, validates."
            if seed is None
            else f"Split: images 80/10/10 by a hash of their id with seed {seed}.",
        ]
        for split, name in RELEASES[release].items():
            if split not in there:
                self.said.append(f"No {name}: no {split} images.")

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take folders with a list under either release's names."""
        return Sure.RELEASE if path.is_dir() and _release(path) else Sure.NO

    @classmethod
    def open(cls, path: Path, given: Given) -> ChestXDetSource:
        """Open the folder of the lists."""
        return cls(path, given.split_seed)

    def _read(self, path: Path, split: str, seed: int | None) -> None:
        """Read one list: images, labels, boxes and masks."""
        content = read_json_value(path, "download it again", encoding="utf-8-sig")
        if not isinstance(content, list) or not content:
            raise UserError(f"{path}: is not the list of images of ChestX-Det; download it again.")
        good = list(_entries(content))
        fresh = [(n, name, e) for n, name, e in good if name not in self._seen]
        counts = dict.fromkeys(("classes", "known", "paired", "boxes", "read", "lines", "whole"), 0)
        for number, name, entry in fresh:
            if name in self._seen:
                continue
            self._seen.add(name)
            image_id = file_stem(name)
            place = self._files.path(name)
            its_split = seeded_split(image_id, SPLIT_SEED if seed is None else seed)
            if seed is None:
                its_split = split if (split, its_split) != ("train", "validate") else "validate"
            ids, origin = (image_id, image_id, image_id), f"{path}, entry {number}"
            self.image_records.append(ImageRecord(*ids, place, "FRONTAL", its_split, origin))
            findings = [finding_name(str(name)) for name in entry["syms"]]
            self._labels[image_id] = class_labels(findings, self.classes)
            counts["classes"] += len(findings)
            counts["known"] += sum(name in self.classes for name in findings)
            self._add_boxes(image_id, findings, entry, counts)
        once = len(self._seen & {name for _, name, _ in fresh})
        name = path.name
        self.count(f"entry of {name} has a name and its lists", "rows", len(good), len(content))
        self.count(f"entry of {name} is no repeat", "rows", once, len(good))
        step = f"finding of {name} is one of the archive's"
        self.count(step, "label cells", counts["known"], counts["classes"])
        step = f"finding of {name} has a box of its own"
        self.count(step, "boxes", counts["paired"], counts["boxes"])
        self.count(f"box of {name} is four numbers", "boxes", counts["read"], counts["paired"])
        step = f"outline of {name} has three points or more"
        self.count(step, "rows", counts["whole"], counts["lines"])

    def _add_boxes(
        self, image_id: str, findings: list[str], entry: dict[str, Any], counts: dict[str, int]
    ) -> None:
        boxes, lines = entry["boxes"], entry.get("polygons")
        counts["boxes"] += max(len(boxes), len(findings))
        if len(boxes) != len(findings):
            return  # which box is whose cannot be told
        counts["paired"] += len(boxes)
        for finding, corners in zip(findings, boxes, strict=True):
            box = box_of(corners) if isinstance(corners, list) else None
            if box is not None:
                counts["read"] += 1
                x1, y1, x2, y2 = box
                self._boxes.add(image_id, finding, [(x1, y1, x2 - x1, y2 - y1)])
        if isinstance(lines, list) and len(lines) == len(findings):
            self._add_masks(image_id, findings, lines, counts)

    def _add_masks(
        self, image_id: str, findings: list[str], lines: list[Any], counts: dict[str, int]
    ) -> None:
        """Join the outlines of each finding; with a broken one it has no mask."""
        for finding in dict.fromkeys(findings):
            own = [line for line, its in zip(lines, findings, strict=True) if its == finding]
            whole = [line for line in own if _is_outline(line)]
            counts["lines"] += len(own)
            counts["whole"] += len(whole)
            if len(whole) == len(own):
                pixels = np.zeros((SIDE, SIDE), dtype=np.bool_)
                for line in whole:
                    pixels |= polygon_pixels(line, SIDE, SIDE)
                self._masks[image_id, finding] = encode(pixels)


def _release(root: Path) -> str | None:
    """Return the release that a folder holds; the names of ChestX-Det10's files say little."""
    for name, files in RELEASES.items():
        for path in (root / file for file in files.values()):
            if is_file(path) and (name == "ChestX-Det" or _is_list(path)):
                return name
    return None


def _is_list(path: Path) -> bool:
    try:
        with open_guarded(path, "check the path") as file:
            head = file.read(_HEAD)
    except (UserError, OSError):
        return False
    return all(word in head for word in (b'"file_name"', b'"syms"', b'"boxes"'))


def _entries(content: list[Any]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield number, file name and entry of each that has a name and its lists."""
    for number, entry in enumerate(content, start=1):
        name = entry.get("file_name") if isinstance(entry, dict) else None
        if isinstance(name, str) and name.strip():
            lists = (entry.get("syms"), entry.get("boxes"))
            if all(isinstance(own, list) for own in lists):
                yield number, name.strip(), entry


def _is_outline(line: Any) -> bool:
    return (
        isinstance(line, list)
        and len(line) >= 3
        and all(isinstance(point, list) and box_of([*point, *point]) is not None for point in line)
    )
