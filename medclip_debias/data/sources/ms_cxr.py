"""Grounded phrases: MS-CXR (v0.1, v1.1) and any COCO JSON whose annotations hold ``label_text``.

MS-CXR comes as COCO JSON and as CSV; the CSV truncates its boxes to whole pixels, so the JSON is
read where both are there. Version 1.1 gives each annotation a split of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medclip_debias.data.records import Box, ImageRecord, PhraseRecord, file_stem
from medclip_debias.data.sources.findings import Corners
from medclip_debias.data.sources.ids import PATIENT, STUDY, is_blank, plain_id
from medclip_debias.data.sources.paths import Match, PathFinder
from medclip_debias.data.sources.tables import distinct_rows, read_table, refuse_rows
from medclip_debias.data.splits import split_name
from medclip_debias.errors import UserError, counted
from medclip_debias.files import read_json_value

PATTERN = "MS_CXR_*.json"
TEMPORAL_PREFIX = "MS_CXR_T_"
_CSV_PATTERN = "MS_CXR_*.csv"
_PATHS = ("path", "file_name")
_PATIENT = re.compile(r"(?:^|/)p(\d{8})/")
_STUDY = re.compile(r"(?:^|/)s(\d{8})/")
_SIDES = ("x", "y", "w", "h")
_OPTIONAL = ("dicom_id", "path", "category_name", "split", "image_width", "image_height")
_PROBLEMS = {
    "id": "its 'id' must be a whole number or a text.",
    "image_id": "its image_id is not among the file's images.",
    "category_id": "its category_id must be the id of a category.",
    "label_text": "has no 'label_text'; give the phrase that the box shows.",
    "bbox": "its 'bbox' must be x, y, width, height.",
}
_TELL_APART = "with the folders that tell them apart, as in patient/study/name.jpg"


def find(folder: Path, *others: str) -> Path | None:
    """Return the file of boxes in ``folder``: MS-CXR's JSON or else CSV, or one like ``others``."""
    for pattern in (PATTERN, _CSV_PATTERN):
        # Of MS-CXR-T, which lies in the same place and has no boxes, the names begin alike.
        files = [p for p in folder.glob(pattern) if not p.name.startswith(TEMPORAL_PREFIX)]
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
    label_text: Annotated[str, Field(pattern=r"\S")]
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
    """

    def __init__(self, path: Path, images: Sequence[ImageRecord], root: Path) -> None:
        self.path = path
        self._is_csv = path.name.lower().endswith((".csv", ".csv.gz"))
        content = _csv_as_coco(path) if self._is_csv else _read_coco(path)
        self._entries: dict[Any, dict[str, Any]] = {e["id"]: e for e in content["images"]}
        if len(self._entries) < len(content["images"]):
            raise UserError(f"{path}: two of its images have one 'id'; export it again.")
        categories = {e["id"]: str(e.get("name", "")) for e in content["categories"]}
        self._phrases: dict[tuple[Any, str, str], tuple[str, list[Box]]] = {}
        for number, annotation in enumerate(content["annotations"], start=1):
            self._add(number, annotation, categories)
        self.elsewhere = 0
        self._ids = self._match(images, root)
        names = set(self._ids.values())
        self._owners = {image.patient_id for image in images if image.image_id in names}

    def phrases(self) -> list[PhraseRecord]:
        """Return one phrase per image, category and text, its boxes a union.

        Boxes without area come along; `medclip_debias.data.boxes.fit_boxes` leaves them aside.
        """
        joined: dict[tuple[Any, ...], list[Box]] = {}
        for (image, category, text), (split, boxes) in self._phrases.items():
            # A file that was joined from several lists an image once for each.
            key = self._ids[image], category, text, self._size(image), split
            joined.setdefault(key, []).extend(boxes)
        numbers: Counter[str] = Counter()
        phrases = []
        for (name, category, text, size, split), boxes in joined.items():
            numbers[name] += 1
            about = name, category, text, tuple(boxes), size, split
            phrases.append(PhraseRecord(f"{name}/{numbers[name]}", *about))
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
        what = "no id in it is an id of this source, so nobody could be held out of training"
        if held_out is None:
            what = "patients with boxes stay in their splits"
        elif held_out:
            what = f"{counted(len(held_out), 'patient')} with boxes held out of training"
        said = [f"Boxes: {self.path}; {what}."]
        if self.elsewhere:
            said.append(
                f"Boxes: {self.elsewhere} images of {self.path.name} have the name of an image here"
                " but lie in other folders; they count as other images (write the folders alike if"
                " they are the same)."
            )
        return said

    def _add(self, number: int, content: dict[str, Any], categories: dict[Any, str]) -> None:
        """Add a box to the phrase of its image, category and text."""
        name = content["id"] if isinstance(content["id"], int) else f"number {number}"
        where = f"{self.path}, {'row' if self._is_csv else 'annotation'} {name}"
        try:
            annotation = _Annotation.model_validate(content)
        except ValidationError as error:
            raise UserError(f"{where}: {_PROBLEMS[str(error.errors()[0]['loc'][0])]}") from None
        if annotation.image_id not in self._entries:
            raise UserError(f"{where}: {_PROBLEMS['image_id']}")
        split = split_name(str(annotation.split), where) if annotation.split else ""
        text = " ".join(annotation.label_text.split())
        key = annotation.image_id, categories.get(annotation.category_id, ""), text
        known, boxes = self._phrases.setdefault(key, (split, []))
        if known != split:
            raise UserError(
                f"{where}: its phrase has another split on another box; give the boxes of a"
                " phrase one split."
            )
        x, y, width, height = annotation.bbox
        boxes.append((x, y, width, height))

    def _match(self, images: Sequence[ImageRecord], root: Path) -> dict[Any, str]:
        """Return the image id of each listed image.

        One that is not the source's keeps its path, which is no id of the source. Of listed
        images that fit one of the source, the one that shares most of its path is it.
        """
        names = {key: _names(entry) for key, entry in self._entries.items()}
        paths = PathFinder.of_images(images, root, [n for known in names.values() for n in known])
        matches: dict[Any, Match] = {}
        best: dict[str, tuple[int, Any]] = {}
        for key, known in names.items():
            found = [paths.find(name) for name in known]
            match = matches[key] = next((m for m in found if m.image_id), Match())
            if match.image_id:
                common, other = best.setdefault(match.image_id, (match.common, key))
                if match.common > common:
                    best[match.image_id] = (match.common, key)
                elif match.common == common and names[other] != known:
                    raise UserError(
                        f"{self.path}, images {other} and {key}: both have the name of one image"
                        f" here; give them {_TELL_APART}."
                    )
            elif several := next((m.several for m in found if m.several), 0):
                raise UserError(
                    f"{self.path}, image {key}: {several} images have its name; give it"
                    f" {_TELL_APART}."
                )
            else:
                self.elsewhere += any(m.elsewhere for m in found)
        ids = {}
        for key, match in matches.items():
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
    import pandas as pd

    table = read_table(path, ("label_text", *_SIDES), _OPTIONAL)
    stems = table["path"].map(file_stem)
    table["image_id"] = table["dicom_id"].mask(table["dicom_id"] == "", stems)
    problem = "names no image; fill in 'dicom_id' (or 'path')."
    refuse_rows(path, table, table["image_id"].map(is_blank), problem)
    sizes = ["image_width", "image_height"]
    table[sizes] = table[sizes].replace("", "0")
    for name in (*_SIDES, *sizes):
        numbers = pd.to_numeric(table[name], errors="coerce")
        refuse_rows(path, table, numbers.isna(), f"column '{name}' must be a number of pixels.")
        table[name] = numbers.astype(float)
    problem = "its image has another path or size above; correct one."
    columns = ["image_id", "path", *sizes]
    images = distinct_rows(path, table[columns], "image_id", problem)
    images = images.set_axis(["id", "path", "width", "height"], axis=1)
    boxes: list[Any] = table[list(_SIDES)].to_numpy().tolist()
    annotations = table[["image_id", "label_text", "split"]].assign(
        id=table.index, bbox=pd.Series(boxes, table.index), category_id=table["category_name"]
    )
    return {
        "images": images.assign(file_name=images["id"]).to_dict("records"),
        "categories": [{"id": c, "name": c} for c in table["category_name"].unique()],
        "annotations": annotations.to_dict("records"),
    }
