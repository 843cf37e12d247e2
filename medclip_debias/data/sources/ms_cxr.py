"""Grounded phrases: MS-CXR (v0.1, v1.1) and any COCO JSON whose annotations hold ``label_text``.

MS-CXR comes as COCO JSON and as CSV; the CSV truncates its boxes to whole pixels, so the JSON is
read where both are there. Version 1.1 gives each annotation a split of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from medclip_debias.data.records import Box, ImageRecord, PhraseRecord, file_stem
from medclip_debias.data.sources import progression
from medclip_debias.data.sources.findings import Corners
from medclip_debias.data.sources.ids import PATIENT, STUDY, is_blank, plain_id
from medclip_debias.data.sources.paths import Match, PathFinder
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.splits import split_name
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_value

PATTERN = "MS_CXR_*.json"
_CSV_PATTERN = "MS_CXR_*.csv"
_PATHS = ("path", "file_name")
_PATIENT = re.compile(r"(?:^|/)p(\d{8})/")
_STUDY = re.compile(r"(?:^|/)s(\d{8})/")
_SIDES = ("x", "y", "w", "h")
_PROBLEMS = {
    "image_id": "its image_id is not among the file's images.",
    "category_id": "its category_id must be the id of a category.",
    "label_text": "has no 'label_text'; give the phrase that the box shows.",
    "bbox": "its 'bbox' must be x, y, width, height.",
}


def find(folder: Path, *others: str) -> Path | None:
    """Return the file of boxes in ``folder``: MS-CXR's JSON or else CSV, or one like ``others``."""
    for pattern in (PATTERN, _CSV_PATTERN):
        # Of MS-CXR-T, which lies in the same place and has no boxes, the names begin alike.
        files = [p for p in folder.glob(pattern) if not p.name.startswith(progression.PREFIX)]
        if files:
            break
    files = sorted([*files, *(path for other in others for path in folder.glob(other))])
    if len(files) > 1:
        raise UserError(
            f"{folder}: both {files[0].name} and {files[1].name} hold boxes; name one with"
            " --phrases."
        )
    return next(iter(files), None)


def boxes_beside(folder: Path) -> Path | None:
    """Return the file of boxes in ``folder``: MS-CXR's, or any ``*.coco.json``."""
    return find(folder, "*.coco.json")


def named_boxes(path: Path) -> Path:
    """Return the file of boxes that a user named, itself or by its folder."""
    file = boxes_beside(path) if path.is_dir() else path
    if file is None:
        raise UserError(f"{path}: has no boxes, neither {PATTERN} nor *.coco.json; name the file.")
    if not file.is_file():
        raise UserError(f"{path}: there is no such file of boxes; check the path.")
    return file


class _Annotation(BaseModel):
    """A box of a COCO file."""

    model_config = ConfigDict(strict=True, str_strip_whitespace=False)

    id: int | str
    image_id: int | str
    category_id: int | str | None = None
    label_text: str
    bbox: Corners
    split: Any = None


class BoxFile:
    """A COCO file, or MS-CXR's CSV, read against the images of a source.

    Args:
        path: the file.
        images: the source's images, matched by path as `medclip_debias.data.sources.paths` says.
        root: folder that the relative paths start from.

    Attributes:
        elsewhere: listed images that share their name, and no more, with one of the source.

    Raises:
        UserError: it is no COCO file, an entry is broken (named by its id), or the name of an
            image fits several.
    """

    def __init__(self, path: Path, images: Sequence[ImageRecord], root: Path) -> None:
        self.path = path
        self._is_csv = path.name.lower().endswith((".csv", ".csv.gz"))
        content = _csv_as_coco(path) if self._is_csv else _read_coco(path)
        self._entries: dict[Any, dict[str, Any]] = {e["id"]: e for e in content["images"]}
        if len(self._entries) < len(content["images"]):
            raise UserError(f"{path}: two of its images have one 'id'; export it again.")
        categories = {e["id"]: str(e.get("name", "")) for e in content["categories"]}
        self._phrases = self._read_phrases(content["annotations"], categories)
        self.elsewhere = 0
        self._ids = self._match(images, root)
        names = set(self._ids.values())
        self._owners = {image.patient_id for image in images if image.image_id in names}

    def phrases(self) -> list[PhraseRecord]:
        """Return one phrase per image, category and text, its boxes a union.

        Boxes without area come along; `medclip_debias.data.boxes.fit_boxes` leaves them aside.
        """
        numbers: Counter[Any] = Counter()
        phrases = []
        for (image, category, text), (split, boxes) in self._phrases.items():
            numbers[image] += 1
            name = self._ids[image]
            about = name, category, text, tuple(boxes), self._size(image), split
            phrases.append(PhraseRecord(f"{name}/{numbers[image]}", *about))
        return phrases

    def patients(self) -> frozenset[str]:
        """Return the patients whose images the file lists, with or without boxes."""
        # Also those whose listed image is not here: their other images may be.
        return frozenset(self._owners | self._named(_PATIENT))

    def mimic_patients(self, studies: Iterable[tuple[str, str]]) -> frozenset[str]:
        """Return the patients of MIMIC-CXR studies that the file lists, however ids are written.

        Args:
            studies: (patient, study) ids of another source; ``10000032``, ``p10000032`` and
                ``10000032.0`` are one patient.
        """
        patients, named = self._named(_PATIENT), self._named(_STUDY)
        return frozenset(
            patient
            for patient, study in studies
            if plain_id(patient, PATIENT) in patients or plain_id(study, STUDY) in named
        )

    def is_ms_cxr(self) -> bool:
        """Tell whether the boxes are MS-CXR's, by the file's name or by the paths in it."""
        return self.path.name.startswith("MS_CXR_") or bool(self._named(_PATIENT))

    def describe(self, held_out: Collection[str] | None) -> list[str]:
        """Return sentences on the boxes.

        Args:
            held_out: patients whom they keep out of training; None where they keep nobody.
        """
        if held_out is None:
            what = "patients with boxes stay in their splits"
        elif held_out:
            what = f"{len(held_out)} patients with boxes are held out of training"
        else:
            what = "no id in it is an id of this source, so nobody could be held out of training"
        said = [f"Boxes: {self.path}; {what}."]
        if self.elsewhere:
            said.append(
                f"Boxes: {self.elsewhere} images of {self.path.name} have the name of an image here"
                " but lie in other folders; they count as other images (write the folders alike if"
                " they are the same)."
            )
        return said

    def _read_phrases(
        self, annotations: list[dict[str, Any]], categories: dict[Any, str]
    ) -> dict[tuple[Any, str, str], tuple[str, list[Box]]]:
        """Return split and boxes by image, category and text."""
        phrases: dict[tuple[Any, str, str], tuple[str, list[Box]]] = {}
        for number, content in enumerate(annotations, start=1):
            name = f"annotation {'' if isinstance(content['id'], int) else 'number '}"
            label = content["id"] if isinstance(content["id"], int) else number
            where = f"{self.path}, {'row ' if self._is_csv else name}{label}"
            try:
                annotation = _Annotation.model_validate(content)
            except ValidationError as error:
                raise UserError(f"{where}: {_PROBLEMS[str(error.errors()[0]['loc'][0])]}") from None
            text = " ".join(annotation.label_text.split())
            if annotation.image_id not in self._entries or not text:
                problem = "image_id" if text else "label_text"
                raise UserError(f"{where}: {_PROBLEMS[problem]}")
            word = str(annotation.split or "")
            split = split_name(word, where) if word else ""
            key = annotation.image_id, categories.get(annotation.category_id, ""), text
            known, boxes = phrases.setdefault(key, (split, []))
            if known != split:
                raise UserError(
                    f"{where}: its phrase has another split on another box; give the boxes of a"
                    " phrase one split."
                )
            x, y, width, height = annotation.bbox
            boxes.append((x, y, width, height))
        return phrases

    def _match(self, images: Sequence[ImageRecord], root: Path) -> dict[Any, str]:
        """Return the image id of each listed image.

        One that is not the source's keeps its path, which is no id of the source.
        """
        names = {key: _names(entry) for key, entry in self._entries.items()}
        paths = PathFinder.of_images(images, root, [n for known in names.values() for n in known])
        matches: dict[Any, Match] = {}
        best: dict[str, tuple[int, Any]] = {}
        for key, known in names.items():
            found = [paths.find(name) for name in known]
            match = matches[key] = next((m for m in found if m.image_id), Match())
            if not match.image_id:
                several = next((m.several for m in found if m.several), 0)
                if several:
                    raise UserError(
                        f"{self.path}, image {key}: {several} images have its name; give it with"
                        " the folders that tell them apart, as in patient/study/name.jpg."
                    )
                self.elsewhere += any(m.elsewhere for m in found)
                continue
            common, other = best.setdefault(match.image_id, (match.common, key))
            if match.common > common:
                best[match.image_id] = (match.common, key)
            elif match.common == common and names[other] != known:
                raise UserError(
                    f"{self.path}, images {other} and {key}: both have the name of one image here;"
                    " give them with the folders that tell them apart, as in"
                    " patient/study/name.jpg."
                )
        ids = {}
        for key, match in matches.items():
            # Another listed image may share more of its path with the same one.
            ours = bool(match.image_id) and match.common == best[match.image_id][0]
            self.elsewhere += bool(match.image_id) and not ours
            ids[key] = match.image_id if ours else (*names[key], f"image {key}")[0]
        return ids

    def _named(self, pattern: re.Pattern[str]) -> set[str]:
        """Return what the paths of the images name."""
        places = (str(entry.get(key, "")) for entry in self._entries.values() for key in _PATHS)
        return {found[1] for place in places if (found := pattern.search(place))}

    def _size(self, image: Any) -> tuple[int, int] | None:
        width, height = (self._entries[image].get(key) or 0 for key in ("width", "height"))
        if not all(isinstance(v, int | float) and 0 <= v < 1e9 for v in (width, height)):
            number = f"number {[*self._entries].index(image) + 1}"
            raise UserError(
                f"{self.path}, image {image if isinstance(image, int) else number}: 'width' and"
                " 'height' must be the image's pixels."
            )
        return (int(width), int(height)) if width and height else None


def _names(entry: dict[str, Any]) -> tuple[str, ...]:
    """Return the paths that an image of a COCO file has, the one of most folders first."""
    names = dict.fromkeys(str(entry.get(key) or "") for key in _PATHS)
    return tuple(sorted(filter(None, names), key=lambda name: -len(Path(name).parts)))


def _read_coco(path: Path) -> Any:
    content = read_json_value(path, "check the path, or export it again", encoding="utf-8-sig")
    if isinstance(content, dict):
        content.setdefault("categories", [])
    for key in ("images", "annotations", "categories"):
        entries = content.get(key) if isinstance(content, dict) else None
        if not isinstance(entries, list):
            raise UserError(f"{path}: has no list '{key}', so it is not a COCO file.")
        if not all(isinstance(e, dict) and isinstance(e.get("id"), int | str) for e in entries):
            raise UserError(f"{path}: an entry of '{key}' has no 'id'; export it again.")
    return content


def _csv_as_coco(path: Path) -> dict[str, list[dict[Any, Any]]]:
    """Read MS-CXR's CSV, one box a row; an annotation's id is then its row."""
    table = read_table(path, required=("label_text", *_SIDES))
    if "dicom_id" not in table.columns and "path" not in table.columns:
        raise UserError(f"{path}: column 'dicom_id' (or 'path') is missing; export it again.")
    for name in ("dicom_id", "path", "category_name", "split", "image_width", "image_height"):
        table[name] = table.get(name, "")
    table["image_id"] = table["dicom_id"].mask(
        table["dicom_id"] == "", table["path"].map(file_stem)
    )
    unnamed = table.index[table["image_id"].map(is_blank)]
    if len(unnamed):
        raise UserError(f"{path}, row {unnamed[0]}: names no image; fill in 'dicom_id'.")
    for name in (*_SIDES, "image_width", "image_height"):
        cells = table[name].replace("", "0") if name not in _SIDES else table[name]
        numbers: list[Any] = [
            _number(cell, f"{path}, row {row}, column '{name}'") for row, cell in cells.items()
        ]
        table[name] = numbers
    table["bbox"] = table[list(_SIDES)].to_numpy().tolist()
    table["id"] = table.index
    images = table[["image_id", "path", "image_width", "image_height"]].drop_duplicates()
    clash = images.index[images["image_id"].duplicated()]
    if len(clash):
        raise UserError(
            f"{path}, row {clash[0]}: its image has another path or size above; correct one."
        )
    images = images.set_axis(["id", "path", "width", "height"], axis=1)
    annotations = table[["id", "image_id", "bbox", "label_text", "split"]]
    return {
        "images": images.assign(file_name=images["id"]).to_dict("records"),
        "categories": [{"id": c, "name": c} for c in table["category_name"].unique()],
        "annotations": annotations.assign(category_id=table["category_name"]).to_dict("records"),
    }


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{where}: must be a number of pixels.") from None
