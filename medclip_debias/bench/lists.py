"""Official lists of images: read from the user's own copy, compared, never stored.

A card says how many images a list has and its hash. A list of another release is refused; images
that it names and that are not there are counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from medclip_debias.bench.card import Card
from medclip_debias.data.records import file_stem
from medclip_debias.data.sources.archive import find_table
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.paths import PathFinder
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.sources.tree import is_file
from medclip_debias.errors import UserError
from medclip_debias.files import read_json_value, read_text

_LARGEST = 1 << 30
_JSON = (".json",)
_TABLES = (".csv", ".csv.gz", ".parquet")


@dataclass(frozen=True)
class Listed:
    """An official list as a user has it."""

    names: tuple[str, ...]
    file: Path

    def among(self, image_ids: Sequence[str]) -> Found:
        """Which images of a set the list names; a name may have folders before it."""
        find, known = PathFinder.of_ids(list(image_ids)).image, set(image_ids)
        found = [name if name in known else find(name) for name in self.names]
        present = [name for name in found if name]
        missing = len(found) - len(present)
        return Found(tuple(dict.fromkeys(present)), len(self.names), missing)


@dataclass(frozen=True)
class Found:
    """What of a list a set has."""

    image_ids: tuple[str, ...]
    wanted: int
    missing: int


def list_hash(ids: Iterable[str]) -> str:
    """16 hex digits naming a set of ids, whatever their order.

    >>> list_hash(["b", "a"]) == list_hash(["a", "b"])
    True
    """
    text = "\n".join(sorted(set(ids)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_list(card: Card, folder: Path) -> Listed | None:
    """Read the official list of a card from the archive's folder; None for a card without one."""
    pattern = card.data.list.file
    if pattern is None:
        return None
    folders = [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]
    path = find_table(folders, pattern) if folder.is_dir() else None
    if path is None or not is_file(path):
        raise UserError(
            f"{folder}: has no {pattern}, the list of the images of the card {card.full_name};"
            f" it comes with: {card.data.obtain.rstrip('.')}."
        )
    names = list(dict.fromkeys(map(plain_name, _cells(card, path))))
    if not names:
        raise UserError(f"{path}: names no image of the card {card.full_name}; get it again.")
    return Listed(tuple(names), path)


def check_list(card: Card, folder: Path) -> Listed | None:
    """Read the list of a card and compare it with what the card says of it."""
    listed = read_list(card, folder)
    if listed is None:
        return None
    wanted = card.data.list
    digest = list_hash(listed.names)
    number_differs = wanted.images is not None and wanted.images != len(listed.names)
    if number_differs or wanted.hash not in (None, digest):
        pinned = f"{wanted.images} images" if number_differs else f"the hash {wanted.hash}"
        raise UserError(
            f"{listed.file}: is the list of another release: it has {len(listed.names)} images and"
            f" the hash {digest}, the card {card.full_name} is of a list of {pinned}; get the"
            " release that the card names."
        )
    return listed


def plain_name(name: str) -> str:
    """A listed name without the suffix of an image, its folders kept.

    >>> plain_name("CheXpert/test/patient1/study1/view1_frontal.jpg"), plain_name("0001_005.png")
    ('CheXpert/test/patient1/study1/view1_frontal', '0001_005')
    """
    place = name.strip().replace("\\", "/")
    folder, slash, _ = place.rpartition("/")
    return f"{folder}{slash}{file_stem(place)}"


def _cells(card: Card, path: Path) -> Collection[str]:
    """The names in a list, as they stand there."""
    name, wanted = path.name.lower(), card.data.list
    if name.endswith(_TABLES):
        column = wanted.column or "image_id"
        needed = list(dict.fromkeys((column, *wanted.where)))
        table = read_table(path, needed, ())
        for key, value in wanted.where.items():
            table = table[[cell.strip().lower() == value.lower() for cell in table[key]]]
        return [cell for cell in table[column] if not is_blank(cell)]
    if name.endswith(_JSON):
        content = read_json_value(path, "get it again", encoding="utf-8-sig")
        if isinstance(content, dict) and wanted.column is None:
            return list(map(str, content))
        if isinstance(content, list):
            found = [e.get(wanted.column) if isinstance(e, dict) else None for e in content]
            if all(isinstance(cell, str) for cell in found):
                return [str(cell) for cell in found]
        raise UserError(f"{path}: is not the list that the card {card.full_name} reads.")
    lines = read_text(path, "get it again", limit=_LARGEST, encoding="utf-8-sig").splitlines()
    return [line for line in map(str.strip, lines) if line]
