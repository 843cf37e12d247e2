"""Where the images that a table names are on this disk.

Copies of archives keep neither their folders nor their formats: an image is known by its folder
and stem. A file of the very name comes first; one of the same stem with the suffix of another
image format is taken where it is the only one, and counted.
"""

from __future__ import annotations

import filecmp
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from medclip_debias.data.images.contents import SUFFIXES
from medclip_debias.data.records import file_stem
from medclip_debias.errors import UserError

DICOM = (".dcm", ".dicom", ".dcm.gz", ".dicom.gz")

_Way = tuple[str, int]
"""A folder to add, and how many leading folders of a name to leave out."""

_SAMPLES = (200, 5_000)
"""Names that are looked for in every way; the more if none of the fewer is there."""


class _ImageFiles:
    """What both kinds of search share.

    Attributes:
        renamed: names whose file has another suffix.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.renamed: set[str] = set()

    def _only(self, name: str, files: Sequence[str]) -> Path | None:
        """The one file of a name or of its stem, ``None`` for none."""
        if not files:
            return None
        first, *others = map(Path, files)
        others = [path for path in others if not filecmp.cmp(first, path, shallow=False)]
        if others and first.name == others[0].name:
            one, two = (path.relative_to(self.root).as_posix() for path in (first, others[0]))
            raise UserError(
                f"{self.root}: both {one} and {two} have the name of one image, and are two; keep"
                " one of them there."
            )
        if others:
            raise UserError(
                f"{first}: '{Path(name).name}' is not there, and both {first.name} and"
                f" {others[0].name} have its stem; keep one of them."
            )
        if first.name != Path(name).name:
            self.renamed.add(name)
        return first


class ImagePlaces(_ImageFiles):
    """The images that a table names by their paths.

    A table names ``CheXpert-v1.0/train/p/s/v.jpg`` or ``../deid_png/a/b.png``; the root may be
    the folder above, the folder itself, or hold the images in a folder of their own. Which
    leading folders to leave out and which to add is found from names whose files are there; a
    file that lies elsewhere is looked for in every way that fits one of them.
    """

    def __init__(self, root: Path, names: Sequence[str], folders: Sequence[str] = ()) -> None:
        super().__init__(root)
        self._listing = cache(images_by_stem)
        self._ways: list[_Way] = [("", 0)]
        for count in _SAMPLES:
            some = names[:: max(1, len(names) // count)][:count]
            deepest = max((len(_parts(name)) for name in some), default=1)
            ways = [(folder, cut) for cut in range(deepest) for folder in ("", *folders)]
            fits = Counter(
                way
                for name in some
                for way in ways
                if os.path.isfile(self._place(name, way)) or self._alike(name, way)  # noqa: PTH113
            )
            if fits:
                self._ways = [way for way, _ in fits.most_common()]
                return

    def path(self, name: str) -> Path:
        """Return the file of a name; where it should be, when it is nowhere."""
        return self.find(name) or Path(self._place(name, self._ways[0]))

    def find(self, name: str) -> Path | None:
        """Return the file of a name, ``None`` when it is nowhere."""
        exact = self.exact(name)
        if exact is not None:
            return exact
        return self._only(name, next(filter(None, (self._alike(name, w) for w in self._ways)), []))

    def exact(self, name: str) -> Path | None:
        """Return the file of this very name, ``None`` when it is nowhere."""
        # As text: a million names in several ways are too many for path objects.
        places = (self._place(name, way) for way in self._ways)
        place = next((place for place in places if os.path.isfile(place)), None)  # noqa: PTH113
        return None if place is None else Path(place)

    def _place(self, name: str, way: _Way) -> str:
        folder, cut = way
        parts = _parts(name)
        return os.path.join(self.root, folder, *parts[min(cut, len(parts) - 1) :])  # noqa: PTH118

    def _alike(self, name: str, way: _Way) -> list[str]:
        """The image files of a name's stem in the folder where it should be."""
        folder, file = os.path.split(self._place(name, way))
        return self._listing(folder).get(file_stem(file), [])


class ImageTree(_ImageFiles):
    """The images anywhere below a folder, by their file names."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.by_name: dict[str, list[str]] = {}
        self._by_stem: dict[str, list[str]] = {}
        for path in walk_files(root):
            if path.name.lower().endswith(SUFFIXES):
                self.by_name.setdefault(path.name, []).append(str(path))
                self._by_stem.setdefault(file_stem(path.name), []).append(str(path))

    def path(self, name: str, folder: str = "") -> Path:
        """Return the file of a name; where it should be, when it is nowhere."""
        files = self.by_name.get(name) or self._by_stem.get(file_stem(name), [])
        return self._only(name, files) or self.root / folder / name


def walk_files(root: Path, closed: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yield every file under ``root`` in a stable order, following links to folders once.

    Image folders are often links to another disk, so links are followed; a folder that was
    visited already (a link that leads back up) is not entered again.
    """
    seen: set[tuple[int, int]] = set()

    def refused(error: OSError) -> None:
        if closed is not None:
            closed(Path(error.filename))

    for folder, names, files in os.walk(root, onerror=refused, followlinks=True):
        try:
            status = Path(folder).stat()
        except OSError:  # removed meanwhile, or a link to itself
            names.clear()
            continue
        if (status.st_dev, status.st_ino) in seen:
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        names.sort()
        for name in sorted(files):
            yield Path(folder, name)


def is_file(path: Path) -> bool:
    """Tell whether ``path`` is a file; a name that no disk can hold is none, as is a link loop."""
    try:
        return path.is_file()
    except OSError:
        return False


def names_in(folder: Path | str) -> list[str]:
    """Return the sorted names of what a folder holds; none where it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries)
    except (OSError, ValueError):  # the latter: a name with a zero byte
        return []


def images_by_stem(folder: str) -> dict[str, list[str]]:
    """Return the image files right in a folder by their stems, DICOM first."""
    files: dict[str, list[str]] = {}
    names = [name for name in names_in(folder) if name.lower().endswith(SUFFIXES)]
    for name in sorted(names, key=lambda name: not name.lower().endswith(DICOM)):
        files.setdefault(file_stem(name), []).append(os.path.join(folder, name))  # noqa: PTH118
    return files


def _parts(name: str) -> tuple[str, ...]:
    """Parts of a path without those that lead elsewhere.

    >>> _parts("../deid_png/./a/b.png")
    ('deid_png', 'a', 'b.png')
    """
    parts = name.replace("\\", "/").replace("\0", "").split("/")
    return tuple(part for part in parts if part not in ("..", ".", "")) or ("",)
