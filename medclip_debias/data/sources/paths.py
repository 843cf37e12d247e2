"""Which image of a source a path names, when both start from folders of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from medclip_debias.data.records import ImageRecord, file_stem

Parts = tuple[str, ...]
"""Folders, then the file's name without its image suffix."""


def parts_of(file: str) -> Parts:
    """Return the parts of a path; the image suffix does not count, nor does ``./``.

    >>> parts_of("./a/b/1.2.dcm.gz")
    ('a', 'b', '1.2')
    """
    folders = PurePosixPath(file.replace("\\", "/")).parts[:-1]
    return (*folders, file_stem(file))


def ends_of(parts: Parts) -> Iterator[Parts]:
    """Yield all ends of a path, longest first."""
    return (parts[start:] for start in range(len(parts)))


class PathFinder:
    """Images by their files: a path and an id are one image when one ends in the other.

    ``CheXpert-v1.0/valid/patient64541/study1/view1_frontal.jpg`` is the image
    ``patient64541/study1/view1_frontal``; folders count whole, the image suffix does not. An end
    that several images share points to none of them.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self._by_end: dict[Parts, str] = {}
        self._whole: dict[Parts, str] = {}
        for name in ids:
            self._whole[parts_of(name)] = name
            for end in ends_of(parts_of(name)):
                self._by_end[end] = "" if end in self._by_end else name

    def image(self, file: str) -> str:
        """The id of the image, "" for none or several."""
        parts = parts_of(file)
        if parts in self._by_end:
            return self._whole.get(parts) or self._by_end[parts]
        return next((self._whole[end] for end in ends_of(parts) if end in self._whole), "")


class Match(NamedTuple):
    """What became of one named path.

    Attributes:
        image_id: the image, ``""`` for none.
        common: parts that the path and the image's own path end in together.
        several: images that the name fits equally well, where it is more than one.
        elsewhere: an image has this file name, but lies in other folders.
    """

    image_id: str = ""
    common: int = 0
    several: int = 0
    elsewhere: bool = False


class ImagePaths:
    """The images of a source, by the paths that a file of boxes names.

    A name and an image fit when one path ends in the other: a name without folders fits every
    image of that name, one with folders only those that lie in them. Kept is only what the names
    ask for, so a source of any size will do.

    Args:
        images: of the source; each is known by its path, and to a name like it by its id.
        root: folder that relative paths start from.
        names: all paths that will be looked for.
    """

    def __init__(self, images: Sequence[ImageRecord], root: Path, names: Iterable[str]) -> None:
        wanted = {end for name in names for end in ends_of(parts_of(name))}
        stems = {end[-1] for end in wanted}
        self._ends: dict[Parts, tuple[int, str]] = {}
        self._whole: dict[Parts, str] = {}
        self._paths: dict[str, Parts] = {}
        self._stems: set[str] = set()
        for image in images:
            by_id, stem = parts_of(image.image_id), file_stem(image.path.name)
            if stem not in stems and by_id[-1] not in stems:
                continue
            path = parts_of(image.path.absolute().as_posix())
            inside = image.path.is_relative_to(root)
            relative = parts_of((image.path.relative_to(root) if inside else image.path).as_posix())
            self._paths[image.image_id] = path
            self._stems |= {path[-1], by_id[-1]}
            for end in {*ends_of(path), *ends_of(by_id)} & wanted:
                self._ends[end] = (self._ends.get(end, (0, ""))[0] + 1, image.image_id)
            if relative in wanted:
                # What two images call themselves points to neither.
                self._whole[relative] = "" if relative in self._whole else image.image_id

    def find(self, name: str) -> Match:
        """Return the image that ``name`` fits best."""
        parts = parts_of(name)
        count, image = self._ends.get(parts, (0, ""))
        if count != 1:
            image = self._whole.get(parts, "")
        if count > 1 and not image:
            return Match(several=count)
        if not image:
            whole = (self._whole[end] for end in ends_of(parts) if end in self._whole)
            image = next(whole, "")
        if not image:
            return Match(elsewhere=parts[-1] in self._stems)
        pairs = zip(reversed(parts), reversed(self._paths[image]), strict=False)
        common = next((n for n, (a, b) in enumerate(pairs) if a != b), len(parts))
        return Match(image, min(common, len(parts), len(self._paths[image])))
