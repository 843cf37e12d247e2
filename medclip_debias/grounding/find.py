"""The image files that were meant by files, folders and lists."""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from medclip_debias.data.images.dicom import header_start
from medclip_debias.data.sources.tree import walk_files
from medclip_debias.errors import UserError

SUFFIXES = (".dcm", ".dicom", ".dcm.gz", ".dicom.gz", ".jpg", ".jpeg", ".png")
_RASTER = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_GZIP = b"\x1f\x8b"
_SHOWN = 5

Say = Callable[[str], None]


def find_images(places: Sequence[Path], say: Say | None = None) -> list[Path]:
    """Image files: those given, those in given folders, those listed in given text files.

    A folder stands for every DICOM, JPG and PNG file below it, in the order of their names, also
    behind links to other folders; each folder is entered once. A file without one of `SUFFIXES`
    is one of them when its first bytes say so: DICOM files of an archive often have no suffix. A
    ``.txt`` file stands for the paths in it, one a line, relative to its folder.

    Args:
        places: files, folders, lists.
        say: called with a sentence on the files of each folder that are left aside.

    Raises:
        UserError: nothing was given, or a folder or list holds no image.
    """
    found: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            found += _inside(place, say)
        elif place.suffix.lower() == ".txt":
            found += _listed(place)
        else:
            found.append(place)
    if not found:
        raise UserError("No image was given; name image files, a folder, or a list (.txt).")
    return list(dict.fromkeys(found))


def _inside(folder: Path, say: Say | None) -> list[Path]:
    closed: list[Path] = []
    aside: Counter[str] = Counter()
    inside = []
    for file in walk_files(folder, closed.append):
        kind = _kind(file)
        if kind:
            aside[kind] += 1
        else:
            inside.append(file)
    if closed:
        aside["folders that cannot be listed"] = len(closed)
    kinds = ", ".join(f"{count} {kind}" for kind, count in aside.most_common(_SHOWN))
    if len(aside) > _SHOWN:
        kinds += f", {sum(aside.values()) - sum(n for _, n in aside.most_common(_SHOWN))} others"
    if not inside:
        raise UserError(
            f"{folder}: holds no DICOM, JPG or PNG file{f' (there are: {kinds})' if kinds else ''}."
        )
    if kinds and say is not None:
        say(f"{folder}: no DICOM, JPG or PNG and left aside: {kinds}.")
    return sorted(inside)


def _kind(file: Path) -> str:
    """Return ``""`` for an image, else what to call the file when it is counted."""
    if file.name.lower().endswith(SUFFIXES):
        return "" if file.exists() else "links that lead nowhere"
    try:
        if not file.exists():
            return "links that lead nowhere"
        if not file.is_file():
            return "that are no files"
        with file.open("rb") as stream:
            start = stream.read(132)
        if start.startswith(_GZIP) and file.suffix.lower() == ".gz":
            with gzip.open(file) as packed:
                start = packed.read(132)
    except (OSError, EOFError, zlib.error):
        return "that cannot be read"
    if start[128:] == b"DICM" or start.startswith(_RASTER):
        return ""
    # Without preamble, the start of a file says little: a name that says otherwise counts more.
    if not file.suffix.strip(".0123456789") and header_start(start) is not None:
        return ""
    suffix = file.suffix.lower()
    return suffix if 1 < len(suffix) <= 8 else "without suffix"


def _listed(path: Path) -> list[Path]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; check the path.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a list of files.") from error
    names = [line.strip() for line in lines if line.strip()]
    if not names:
        raise UserError(f"{path}: lists no image; write one path a line.")
    return [path.parent / name for name in names]
