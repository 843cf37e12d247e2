"""Which image of a source a path names, when both start from folders of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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


class PathFinder:
    """Images by their paths: a name and an image fit when one path ends in the other.

    ``CheXpert-v1.0/valid/patient64541/study1/view1_frontal.jpg`` is the image
    ``patient64541/study1/view1_frontal``; folders count whole, the image suffix does not. A name
    without folders fits every image of that name, one with folders only those that lie in them.

    Args:
        paths: of each image, by its id; the last one is what it calls itself.
        names: all paths that will be looked for, where only what they ask for is to be kept.
    """

    def __init__(
        self, paths: Mapping[str, Sequence[str]], names: Iterable[str] | None = None
    ) -> None:
        wanted = None if names is None else {e for n in names for e in ends_of(parts_of(n))}
        self._ends: dict[Parts, tuple[int, str]] = {}
        self._whole: dict[Parts, str] = {}
        self._paths: dict[str, Parts] = {}
        self._stems: set[str] = set()
        for image, forms in paths.items():
            parts = [parts_of(form) for form in forms]
            self._paths[image] = parts[0]
            self._stems |= {form[-1] for form in parts}
            ends = {end for form in parts for end in ends_of(form)}
            for end in ends if wanted is None else ends & wanted:
                self._ends[end] = (self._ends.get(end, (0, ""))[0] + 1, image)
            if wanted is None or parts[-1] in wanted:
                # What two images call themselves points to neither.
                self._whole[parts[-1]] = "" if parts[-1] in self._whole else image

    @classmethod
    def of_ids(cls, ids: Iterable[str]) -> PathFinder:
        """Find images by their ids."""
        return cls({name: (name,) for name in ids})

    @classmethod
    def of_images(
        cls, images: Iterable[ImageRecord], root: Path, names: Sequence[str]
    ) -> PathFinder:
        """Find images by their files and ids; relative names start from ``root``."""
        stems = {file_stem(name) for name in names}
        paths = {}
        for image in images:
            file = image.path
            if stems & {file_stem(file.name), file_stem(image.image_id)}:
                relative = file.relative_to(root) if file.is_relative_to(root) else file
                forms = file.absolute().as_posix(), image.image_id, relative.as_posix()
                paths[image.image_id] = forms
        return cls(paths, names)

    def image(self, name: str) -> str:
        """Return the id of the image, ``""`` for none or several."""
        return self.find(name).image_id

    def find(self, name: str) -> Match:
        """Return the image that ``name`` fits best."""
        parts = parts_of(name)
        count, image = self._ends.get(parts, (0, ""))
        if count != 1:
            image = self._whole.get(parts, "")
        if count > 1 and not image:
            return Match(several=count)
        if not image:
            image = next((self._whole[end] for end in ends_of(parts) if end in self._whole), "")
        if not image:
            return Match(elsewhere=parts[-1] in self._stems)
        pairs = zip(reversed(parts), reversed(self._paths[image]), strict=False)
        shorter = min(len(parts), len(self._paths[image]))
        return Match(image, next((n for n, (a, b) in enumerate(pairs) if a != b), shorter))
