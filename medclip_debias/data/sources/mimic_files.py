"""Image files of a MIMIC-CXR tree: ``p10/p10000032/s50414267/<dicom_id>.dcm`` (``.jpg`` ...)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SUFFIXES = (".dcm", ".dcm.gz", ".jpg", ".png")
"""Looked for in this order: DICOM keeps more grey levels than the JPG release."""

_GROUP = re.compile(r"p(1\d)")
_PATIENT = re.compile(r"p(\d{8})")
_STUDY = re.compile(r"s(\d+)")


class Listed(NamedTuple):
    """An image as a table, or the tree itself, lists it."""

    image: str
    patient: str
    study: str
    view: str
    origin: str


def image_tree(root: Path) -> Path:
    """Return the folder that holds ``p10 ... p19``: ``root/files``, or ``root`` itself."""
    files = root / "files"
    return root if not files.is_dir() and is_bare_tree(root) else files


def is_bare_tree(root: Path) -> bool:
    """Tell whether ``root`` itself holds ``p10 ... p19`` with patients in them."""
    groups = (path for path in root.glob("p1[0-9]") if path.is_dir())
    return any(_PATIENT.fullmatch(name) for group in groups for name in _names(group))


class ImageFiles:
    """The image files of a tree, by listing each study's folder once.

    A listing costs one call a study; asking for each file and suffix costs up to four an image,
    which on a network disk is most of the time that opening a source takes.
    """

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.kinds: set[str] = set()
        self._study = ("", "")
        self._names: frozenset[str] = frozenset()

    def path(self, patient: str, study: str, image: str) -> Path:
        """Return where an image is, or where it should be."""
        folder = self.tree / f"p{patient[:2]}" / f"p{patient}" / f"s{study}"
        if (patient, study) != self._study:
            self._study = (patient, study)
            self._names = frozenset(_names(folder))  # none: `prepare` counts them as missing
        for suffix in SUFFIXES:
            if image + suffix in self._names:
                self.kinds.add(suffix.split(".")[1])
                return folder / (image + suffix)
        return folder / (image + SUFFIXES[0])

    def walk(self) -> Iterator[Listed]:
        """Yield every image of the tree, ordered by patient, study and name."""
        for group in _matching(self.tree, _GROUP):
            for patient in _matching(self.tree / f"p{group}", _PATIENT):
                place = self.tree / f"p{group}" / f"p{patient}"
                for study in _matching(place, _STUDY) if patient.startswith(group) else ():
                    names = _names(place / f"s{study}")
                    stems = {n.removesuffix(s) for n in names for s in SUFFIXES if n.endswith(s)}
                    for image in sorted(stems):
                        yield Listed(image, patient, study, "", str(place / f"s{study}"))


def _matching(folder: Path, name: re.Pattern[str]) -> list[str]:
    """Return what follows the letter in the names of ``folder`` that are like ``name``."""
    return sorted(found[1] for n in _names(folder) if (found := name.fullmatch(n)))


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    except OSError:
        return []
