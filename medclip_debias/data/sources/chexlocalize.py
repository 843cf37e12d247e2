"""CheXlocalize (Saporta et al. 2022): radiologists' masks on CheXpert's validation and test sets.

``CheXlocalize/gt_segmentations_val.json`` and ``..._test.json`` map an image
(``patient64541_study1_view1_frontal``) and each of ten findings to a mask in COCO's run lengths,
one without a pixel where the finding is absent. Images and labels lie beside, in ``CheXpert``
(``val``, ``test``, ``val_labels.csv``, ``test_labels.csv``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from medclip_debias.data.masks import component_boxes, decode, from_coco
from medclip_debias.data.records import Mask
from medclip_debias.data.sources.chexpert import CheXpertSource
from medclip_debias.data.sources.findings import FindingBoxes, finding_name
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tree import is_file
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_value

FILES = ("gt_segmentations_val.json", "gt_segmentations_test.json")
FOLDER = "CheXlocalize"


@source(
    title="CheXlocalize",
    looks=f"CheXlocalize ({FILES[0]})",
    give="folder that holds `CheXlocalize` and `CheXpert`",
    needs="`CheXlocalize/gt_segmentations_val.json` or `..._test.json`;"
    " `CheXpert/val_labels.csv`, `test_labels.csv` and their images",
    takes=("split_seed",),
    instead={"text_only": "CheXlocalize has no reports; leave out --text-only"},
)
class CheXlocalizeSource(CheXpertSource):
    """Masks, and the CheXpert images and labels beside them.

    Args:
        root: folder that holds both.
        seed: split patients by a hash with this seed, not by the tables.

    Raises:
        UserError: there is no file of masks, no table of labels, or one is broken.
    """

    kind: ClassVar[str] = "chexlocalize"

    folders: ClassVar[tuple[str, ...]] = ("val", "test")

    def __init__(self, root: Path, seed: int | None = None) -> None:
        found = _files(root)
        if not found:
            raise UserError(f"{root}: has no {FILES[0]} of CheXlocalize; put it there.")
        super().__init__(root, seed)
        boxes = FindingBoxes()
        masks: dict[tuple[str, str], Mask] = {}
        for path in found:
            self._read_masks(path, boxes, masks)
        self.phrase_records = boxes.phrases(masks)
        names = ", ".join(path.name for path in found)
        self.said.append(
            f"CheXlocalize: {len(self.phrase_records)} findings have masks ({names}). Their"
            " patients are CheXpert's own for validation and test."
        )

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take folders with a file of masks; CheXpert, which lies beside, is the lesser part."""
        return Sure.EXTENSION if path.is_dir() and _files(path) else Sure.NO

    @classmethod
    def open(cls, path: Path, given: Given) -> CheXlocalizeSource:
        """Open the folder."""
        return cls(path, given.split_seed)

    def _read_masks(
        self, path: Path, boxes: FindingBoxes, masks: dict[tuple[str, str], Mask]
    ) -> None:
        content = read_json_value(path, "download it again")
        if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
            raise UserError(
                f"{path}: does not map images to findings and masks; download it again."
            )
        images = {image.image_id for image in self.image_records}
        listed = readable = present = 0
        known = 0
        for key, findings in content.items():
            image_id = _image_id(key)
            known += image_id in images
            for finding, value in findings.items():
                listed += 1
                mask = _mask(value)
                if mask is None:
                    continue
                readable += 1
                found = component_boxes(decode(mask))
                if not found:
                    continue
                present += 1
                name = finding_name(finding)
                boxes.add(image_id, name, found)
                masks[image_id, name] = mask
        file = path.name
        self.count(f"image of {file} is in CheXpert's tables", "rows", known, len(content))
        self.count(f"mask of {file} can be read", "rows", readable, listed)
        step = f"mask of {file} has a pixel (the finding is present)"
        self.count(step, "rows", present, readable)


def _files(root: Path) -> list[Path]:
    places = (folder / name for folder in (root / FOLDER, root) for name in FILES)
    found = {path.name: path for path in reversed(list(places)) if is_file(path)}
    return [found[name] for name in FILES if name in found]


def _image_id(key: str) -> str:
    """Return CheXpert's id of an image.

    >>> _image_id("patient64541_study1_view1_frontal")
    'patient64541/study1/view1_frontal'
    """
    return "/".join(key.split("_", 2))


def _mask(value: Any) -> Mask | None:
    try:
        return from_coco(value)
    except ValueError:
        return None
