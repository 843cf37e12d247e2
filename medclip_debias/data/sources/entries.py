"""The entries of ``catalog.yaml``, and which files of an archive they name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from medclip_debias.data.records import file_stem
from medclip_debias.data.sources.archive import find_table, header_of
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.image_files import is_file
from medclip_debias.data.sources.tables import read_table, refuse_rows
from medclip_debias.errors import UserError
from medclip_debias.files import open_guarded, read_text
from medclip_debias.settings_files import load_yaml

_MOST_OF_A_LIST = 64 << 20
_HEAD = 1 << 16
_FORMS = ("coco", "lists", "tables")


@cache
def entries() -> Mapping[str, dict[str, Any]]:
    """Return the entries of ``catalog.yaml`` by kind."""
    return load_yaml(Path(__file__).with_name("catalog.yaml"))


class ArchiveFiles:
    """The files of an archive in a folder, as its entry names them."""

    def __init__(self, root: Path, entry: Mapping[str, Any]) -> None:
        self.root = root
        self.entry = entry
        self.folders: Sequence[str] = entry.get("folders", ("",))

    def names(self, form: str = "tables") -> dict[str, list[str]]:
        """Return the names of the tables (or of another form) by split, ``""`` for none."""
        names = self.entry.get(form, {})
        return {"": names} if isinstance(names, list) else names

    def tables(self) -> dict[str, Path]:
        """Return the tables or lists by split, all in one folder."""
        for form in _FORMS:
            for folder in self.folders:
                tables = {s: _first(self.root / folder, n) for s, n in self.names(form).items()}
                known = {s: path for s, path in tables.items() if path and self._is_its(path)}
                if known:
                    return known
        return {}

    def _is_its(self, path: Path) -> bool:
        """Tell whether a table is the archive's, where its name says little."""
        how = self.entry.get("recognised", {})
        name = path.name.removesuffix(".gz")
        if name not in how.get("of", (name,)):
            return True
        if not {*how.get("columns", ())} <= {*header_of(path)}:
            return False
        try:
            with open_guarded(path.with_name(how.get("in", path.name)), "check the path") as file:
                head = file.read(_HEAD)
        except (UserError, OSError):
            return False
        return all(word.encode() in head for word in how.get("words", ()))

    def find(self, name: str) -> Path | None:
        """Return a table of this name, perhaps packed."""
        return next(filter(None, (_first(self.root / f, [name]) for f in self.folders)), None)

    def masks(self) -> list[Path]:
        how = self.entry["masks"]
        places = [[self.root / folder / name for folder in how["folders"]] for name in how["files"]]
        return [file for paths in places if (file := next(filter(is_file, paths), None))]

    def validates(self) -> bool:
        """Tell whether the archive says which images validate."""
        by_table = any("validate" in self.names(form) for form in _FORMS)
        return by_table or "column" in self.entry.get("split", {})

    def shown(self, table: Path) -> list[str]:
        """Return the classes that are labels because images are marked with them."""
        labels = self.entry["labels"]
        classes: list[str] = labels.get("shown", [])
        return classes[: labels.get("fewer", {}).get(table.name)]

    def split_lists(self) -> dict[str, str] | None:
        """Return the split of each image by its stem; training and validation are one."""
        split = self.entry.get("split", {})
        if "train" not in split:
            return None
        paths = [self.root / split[name] for name in ("train", "test")]
        missing = [path for path in paths if not is_file(path)]
        if len(missing) == 2:
            return None
        if missing:
            other = next(path for path in paths if path not in missing)
            raise UserError(
                f"{self.root}: {missing[0].name} is missing beside {other.name}; put it there, or"
                " give --split-seed."
            )
        train, test = (
            read_text(path, "download it again", limit=_MOST_OF_A_LIST, encoding="utf-8-sig")
            for path in paths
        )
        splits = {file_stem(line.strip()): "train" for line in train.splitlines()}
        for line, name in enumerate(test.splitlines(), start=1):
            if name.strip() and splits.setdefault(file_stem(name.strip()), "test") == "train":
                raise UserError(
                    f"{paths[1]}, line {line}: its image is also in {paths[0].name}; download both"
                    " again."
                )
        splits.pop("", None)
        return splits

    def annotated_sizes(self, images: Iterable[str]) -> Mapping[str, tuple[int, int]]:
        """Return width and height of the images that were annotated, where it is known."""
        sides = self.entry.get("boxes", {}).get("annotated")
        if sides:
            return dict.fromkeys(images, (sides[0], sides[1]))
        how, sizes = self.entry.get("sizes", {}), dict[str, tuple[int, int]]()
        for path in (self.find(how["file"].format(part)) for part in self.names()) if how else ():
            if path is None:
                continue
            image, width, height = (how[name] for name in ("image", "width", "height"))
            table = read_table(path, required=[image, width, height])
            sides = table[[width, height]]
            good = sides.map(lambda cell: cell.isdigit() and int(cell) > 0).all(axis=1)
            problem = f"'{height}' and '{width}' must be numbers of pixels."
            refuse_rows(path, table, ~good, problem)
            pairs = zip(sides[width].map(int), sides[height].map(int), strict=True)
            sizes |= zip(table[image], pairs, strict=True)
        return sizes


def _first(folder: Path, names: Iterable[str]) -> Path | None:
    suffixes = [(name, f"{name}.gz") if not name.endswith(".json") else (name,) for name in names]
    return find_table([folder], *(pattern for patterns in suffixes for pattern in patterns))


def view_of(side: str, way: str, name: str) -> str:
    """Return the view of an image: AP, PA, LATERAL, FRONTAL (AP or PA unknown) or ``""``."""
    if is_blank(side):
        side = file_stem(name).rpartition("_")[2]
    if side.lower() == "lateral":
        return "LATERAL"
    if not is_blank(way):
        return way
    return "FRONTAL" if side.lower() == "frontal" else ""
