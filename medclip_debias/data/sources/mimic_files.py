"""Files of a MIMIC-CXR tree: images ``p10/p10000032/s50414267/<dicom_id>.dcm`` (``.jpg`` ...).

Reports lie in a tree of the same folders, or inside ``mimic-cxr-reports.zip``, which stays packed.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from medclip_debias.data.sources.image_files import DICOM, images_by_stem, is_file, names_in
from medclip_debias.errors import UserError

REPORTS_ZIP = "mimic-cxr-reports.zip"
MAX_REPORT_BYTES = 1 << 20
"""A report is a few kilobytes; what claims to be larger than this is no report."""

_GROUP, _PATIENT, _STUDY = (re.compile(form) for form in (r"p(1\d)", r"p(\d{8})", r"s(\d+)"))
_REPORT = re.compile(r"p\d\d/p(\d{8})/s(\d+)\.txt")
_Read = tuple[str | None, str, str]


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
    return any(_matching(group, _PATIENT) for group in root.glob("p1[0-9]"))


class ImageFiles:
    """The image files of a tree, by listing each study's folder once.

    A listing costs one call a study; asking for each file and suffix costs up to seven an image,
    which on a network disk is most of the time that opening a source takes.
    """

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.kinds: set[str] = set()
        self._listing = lru_cache(1)(images_by_stem)

    def path(self, patient: str, study: str, image: str) -> Path:
        """Return where an image is, or where it should be."""
        folder = self.tree / f"p{patient[:2]}" / f"p{patient}" / f"s{study}"
        file = next(iter(self._listing(str(folder)).get(image, ())), None)
        if file is None:  # `prepare` counts it as missing
            return folder / f"{image}.dcm"
        self.kinds.add("dcm" if file.lower().endswith(DICOM) else file.rpartition(".")[2])
        return Path(file)

    def walk(self) -> Iterator[Listed]:
        """Yield every image of the tree, ordered by patient, study and name."""
        for group in _matching(self.tree, _GROUP):
            for patient in _matching(self.tree / f"p{group}", _PATIENT):
                place = self.tree / f"p{group}" / f"p{patient}"
                for study in _matching(place, _STUDY) if patient.startswith(group) else ():
                    folder = str(place / f"s{study}")
                    for image in sorted(images_by_stem(folder)):
                        yield Listed(image, patient, study, "", folder)


def _matching(folder: Path, name: re.Pattern[str]) -> list[str]:
    """Return what follows the letter in the names of ``folder`` that are like ``name``."""
    return [match[1] for n in names_in(folder) if (match := name.fullmatch(n))]


class ReportFiles:
    """Reports by patient and study, from up to two places in turn: a tree and a zip.

    Args:
        root: the image folder; its own ``files`` tree and its zip are looked at.
        reports: another folder with a ``files`` tree (or that tree itself, or a folder with the
            zip), or a zip; it comes before ``root``.
    """

    def __init__(self, root: Path, reports: Path | None = None) -> None:
        self.trees: list[Path] = []
        self.zip_path: Path | None = None
        self._zip: zipfile.ZipFile | None = None
        self._members: dict[str, str] = {}
        if reports is not None:
            self._add(reports)
            if not self.trees and self._zip is None:
                raise UserError(
                    f"{reports}: holds no reports; give {REPORTS_ZIP} or the MIMIC-CXR folder"
                    " whose 'files' folder holds p10 ... p19."
                )
        if root != reports:
            self._add(root)

    def read(self, patient: str, study: str) -> _Read:
        """Return the text, its file, and what is wrong with it.

        The text is ``None`` where there is none, and where there is one that cannot be used: the
        third value is then a sentence that says why.
        """
        name = origin = _name(patient, study)
        for tree in self.trees:
            origin = str(tree / name)
            try:
                # One byte more than allowed is enough to know.
                with open(origin, "rb", opener=_open_at_once) as file:
                    return _decoded(file.read(MAX_REPORT_BYTES + 1), origin)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                problem = f"{origin}: cannot be read ({error.strerror or type(error).__name__})."
                return None, origin, problem
        if self._zip is None:
            return None, origin, ""
        origin = f"{self.zip_path}: files/{name}"
        if name not in self._members:
            return None, origin, ""
        try:
            with self._zip.open(self._members[name]) as member:
                return _decoded(member.read(MAX_REPORT_BYTES + 1), origin)
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError):
            # NotImplementedError (an odd compression) is a RuntimeError, so is a password.
            return None, origin, f"{origin}: is damaged in the zip; download it again."

    def has_any(self, pairs: list[tuple[str, str]]) -> bool:
        return any(
            name in self._members or any(is_file(tree / name) for tree in self.trees)
            for name in (_name(*pair) for pair in pairs)
        )

    def listing(self) -> list[tuple[str, str]]:
        names = set(self._members)
        for tree in self.trees:
            names |= {p.relative_to(tree).as_posix() for p in tree.glob("p1[0-9]/p*/s*.txt")}
        return sorted((match[1], match[2]) for name in names if (match := _REPORT.fullmatch(name)))

    def describe(self) -> str:
        places = [f"text files in {tree}" for tree in self.trees]
        if self.zip_path is not None:
            places.append(f"{self.zip_path} ({len(self._members)} reports)")
        return f"Reports: {', then '.join(places)}."

    def _add(self, place: Path) -> None:
        if place.is_file():
            self._open_zip(place)
            return
        if not place.is_dir():
            raise UserError(f"{place}: there is no such folder or zip of reports; check the path.")
        trees = (place / "files", place)
        self.trees += [t for t in trees if any(p.is_dir() for p in t.glob("p1[0-9]"))][:1]
        if self._zip is None and (place / REPORTS_ZIP).is_file():
            self._open_zip(place / REPORTS_ZIP)

    def _open_zip(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError) as error:
            raise UserError(f"{path}: is not a readable zip; download it again.") from error
        self.zip_path = path
        for name in self._zip.namelist():
            parts = PurePosixPath(name.replace("\\", "/")).parts
            if ".." in parts or parts[:1] == ("/",) or (parts and parts[0].endswith(":")):
                raise UserError(
                    f"{path}: holds a file whose name leads out of its folder ('..' or an absolute"
                    " path), which the PhysioNet zip never does; download it again."
                )
            if name.endswith(".txt"):
                self._members["/".join(parts[-3:])] = name


def holds_reports(path: Path) -> bool:
    """Whether a file is the zip of the reports, by its name or by what it holds."""
    if path.name == REPORTS_ZIP:
        return True
    try:
        with zipfile.ZipFile(path) as packed:
            names = packed.namelist()
    except (zipfile.BadZipFile, OSError, ValueError):
        return False
    return any(_REPORT.fullmatch("/".join(PurePosixPath(name).parts[-3:])) for name in names)


def _name(patient: str, study: str) -> str:
    return f"p{patient[:2]}/p{patient}/s{study}.txt"


def _decoded(content: bytes, origin: str) -> _Read:
    if len(content) > MAX_REPORT_BYTES:
        size = MAX_REPORT_BYTES >> 20
        return None, origin, f"{origin}: is larger than {size} MiB, so it is not a report."
    try:
        return content.decode("utf-8-sig"), origin, ""
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        return None, origin, f"{origin}: is not UTF-8 text on line {line}; save it as UTF-8."


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting for the other end of a pipe, which then reads as empty."""
    return os.open(path, flags | os.O_NONBLOCK)
