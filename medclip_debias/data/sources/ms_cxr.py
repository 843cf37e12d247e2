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

from medclip_debias.data.records import Box, ImageRecord, PhraseRecord, file_stem
from medclip_debias.data.sources import progression
from medclip_debias.data.sources.ids import PATIENT, STUDY, is_blank, plain_id
from medclip_debias.data.sources.paths import ImagePaths, Match
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.splits import split_name
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_value

PATTERN = "MS_CXR_*.json"
_CSV_PATTERN = "MS_CXR_*.csv"
_PATHS = ("path", "file_name")
_PATIENT = re.compile(r"(?:^|/)p(\d{8})/")
_STUDY = re.compile(r"(?:^|/)s(\d{8})/")
_CSV_COLUMNS = ("label_text", "x", "y", "w", "h")


def find(folder: Path) -> Path | None:
    """Return the MS-CXR file in ``folder``: the JSON where there is one, else the CSV.

    Raises:
        UserError: there are two releases.
    """
    for pattern in (PATTERN, _CSV_PATTERN):
        there = sorted(folder.glob(pattern))
        # Of MS-CXR-T, which lies in the same place and has no boxes, the names begin alike.
        found = [path for path in there if not path.name.startswith(progression.PREFIX)]
        if len(found) > 1:
            raise UserError(
                f"{folder}: both {found[0].name} and {found[-1].name} hold boxes; name one with"
                " --phrases."
            )
        if found:
            return found[0]
    return None


def boxes_beside(folder: Path) -> Path | None:
    """Return the file of boxes in ``folder``: MS-CXR's, or any ``*.coco.json``.

    Raises:
        UserError: there are two.
    """
    known = find(folder)
    found = sorted([*folder.glob("*.coco.json"), *([known] if known else [])])
    if len(found) > 1:
        raise UserError(
            f"{folder}: both {found[0].name} and {found[1].name} hold boxes; name one with"
            " --phrases."
        )
    return found[0] if found else None


def named_boxes(path: Path) -> Path:
    """Return the file of boxes that a user named, itself or by its folder.

    Raises:
        UserError: there is none.
    """
    if path.is_dir():
        found = boxes_beside(path)
        if found is None:
            raise UserError(
                f"{path}: has no boxes, neither {PATTERN} nor *.coco.json; name the file."
            )
        return found
    if not path.is_file():
        raise UserError(f"{path}: there is no such file of boxes; check the path.")
    return path


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
        self._categories = {e["id"]: str(e.get("name", "")) for e in content["categories"]}
        self._annotations: list[dict[str, Any]] = content["annotations"]
        for annotation in self._annotations:
            self._check(annotation)
        self.elsewhere = 0
        self._ids = self._match(images, root)
        names = set(self._ids.values())
        self._owners = {image.patient_id for image in images if image.image_id in names}

    def phrases(self) -> list[PhraseRecord]:
        """Return one phrase per image, category and text, its boxes a union.

        Boxes without area come along; `medclip_debias.data.boxes.fit_boxes` leaves them aside.
        """
        boxes: dict[tuple[Any, str, str], list[Box]] = {}
        splits: dict[tuple[Any, str, str], str] = {}
        for annotation in self._annotations:
            text = " ".join(str(annotation["label_text"]).split())
            category = self._categories.get(annotation.get("category_id"), "")
            key = (annotation["image_id"], category, text)
            x, y, width, height = (float(value) for value in annotation["bbox"])
            boxes.setdefault(key, []).append((x, y, width, height))
            word = str(annotation.get("split") or "")
            split = split_name(word, self._where(annotation)) if word else ""
            if splits.setdefault(key, split) != split:
                raise UserError(
                    f"{self._where(annotation)}: its phrase has another split on another box; give"
                    " the boxes of a phrase one split."
                )
        numbers: Counter[Any] = Counter()
        phrases = []
        for key, sides in boxes.items():
            image, category, text = key
            numbers[image] += 1
            name = self._ids[image]
            about = name, category, text, tuple(sides), self._size(image), splits[key]
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
            said = [f"Boxes: {self.path}; patients with boxes stay in their splits."]
        elif held_out:
            whom = f"{len(held_out)} patients with boxes are held out of training"
            said = [f"Boxes: {self.path}; {whom}."]
        else:
            said = [
                f"Boxes: {self.path}; no id in it is an id of this source, so nobody could be held"
                " out of training."
            ]
        if self.elsewhere:
            said.append(
                f"Boxes: {self.elsewhere} images of {self.path.name} have the name of an image here"
                " but lie in other folders; they count as other images (write the folders alike if"
                " they are the same)."
            )
        return said

    def _match(self, images: Sequence[ImageRecord], root: Path) -> dict[Any, str]:
        """Return the image id of each listed image.

        One that is not the source's keeps its path, which is no id of the source.
        """
        names = {key: _names(entry) for key, entry in self._entries.items()}
        paths = ImagePaths(images, root, (name for known in names.values() for name in known))
        matches: dict[Any, Match] = {}
        best: dict[str, tuple[int, Any]] = {}
        for key, known in names.items():
            found = [paths.find(name) for name in known]
            match = next((m for m in found if m.image_id), Match())
            matches[key] = match
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

    def _where(self, annotation: dict[str, Any]) -> str:
        if self._is_csv:
            return f"{self.path}, row {annotation['id']}"
        if isinstance(annotation["id"], int):
            return f"{self.path}, annotation {annotation['id']}"
        number = next(n for n, one in enumerate(self._annotations, start=1) if one is annotation)
        return f"{self.path}, annotation number {number}"

    def _check(self, annotation: dict[str, Any]) -> None:
        where = self._where(annotation)
        image = annotation.get("image_id")
        if not isinstance(image, int | str) or image not in self._entries:
            raise UserError(f"{where}: its image_id is not among the file's images.")
        if not isinstance(annotation.get("category_id"), int | str | None):
            raise UserError(f"{where}: its category_id must be the id of a category.")
        phrase = annotation.get("label_text")
        if not isinstance(phrase, str) or not phrase.strip():
            raise UserError(f"{where}: has no 'label_text'; give the phrase that the box shows.")
        box = annotation.get("bbox")
        numbers = isinstance(box, list) and len(box) == 4
        # NaN, which Python's JSON reader lets through, fails the comparison.
        if not numbers or not all(isinstance(v, int | float) and abs(v) < 1e9 for v in box or ()):
            raise UserError(f"{where}: its 'bbox' must be x, y, width, height.")

    def _named(self, pattern: re.Pattern[str]) -> set[str]:
        """Return what the paths of the images name."""
        places = (str(entry.get(key, "")) for entry in self._entries.values() for key in _PATHS)
        return {found[1] for place in places if (found := pattern.search(place))}

    def _size(self, image: Any) -> tuple[int, int] | None:
        width, height = (self._entries[image].get(key) or 0 for key in ("width", "height"))
        if not all(isinstance(v, int | float) and 0 <= v < 1e9 for v in (width, height)):
            place = (
                image if isinstance(image, int) else f"number {[*self._entries].index(image) + 1}"
            )
            raise UserError(
                f"{self.path}, image {place}: 'width' and 'height' must be the image's pixels."
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


def _csv_as_coco(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Read MS-CXR's CSV, one box a row; an annotation's id is then its row."""
    table = read_table(path, required=_CSV_COLUMNS)
    if "dicom_id" not in table.columns and "path" not in table.columns:
        raise UserError(f"{path}: column 'dicom_id' (or 'path') is missing; export it again.")
    images: dict[str, dict[str, Any]] = {}
    categories: dict[str, dict[str, Any]] = {}
    annotations = []
    rows = table.to_dict("records")
    for row, cells in zip(table.index.tolist(), rows, strict=True):
        where = f"{path}, row {row}"
        name = cells.get("dicom_id") or file_stem(cells.get("path", ""))
        if is_blank(name):
            raise UserError(f"{where}: names no image; fill in 'dicom_id'.")
        entry = {
            "id": name,
            "file_name": name,
            "path": cells.get("path", ""),
            "width": _number(cells.get("image_width") or "0", f"{where}, column 'image_width'"),
            "height": _number(cells.get("image_height") or "0", f"{where}, column 'image_height'"),
        }
        if images.setdefault(name, entry) != entry:
            raise UserError(f"{where}: its image has another path or size above; correct one.")
        category = cells.get("category_name", "")
        categories.setdefault(category, {"id": category, "name": category})
        box = [_number(cells[key], f"{where}, column '{key}'") for key in ("x", "y", "w", "h")]
        annotations.append(
            {
                "id": row,
                "image_id": name,
                "category_id": category,
                "bbox": box,
                "label_text": cells["label_text"],
                "split": cells.get("split", ""),
            }
        )
    return {
        "images": list(images.values()),
        "categories": list(categories.values()),
        "annotations": annotations,
    }


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{where}: must be a number of pixels.") from None
