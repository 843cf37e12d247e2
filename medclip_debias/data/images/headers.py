"""What is read from the headers of image files alone: view position, size, and whose it is."""

from __future__ import annotations

import gzip
import logging
import warnings
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from medclip_debias.data.images.elements import read_elements
from medclip_debias.files import open_guarded

_LONGEST = 16  # characters of a DICOM code string
_SIZE = ["Rows", "Columns"]


class Identity(NamedTuple):
    """Whose image a DICOM file is, for archives whose tables do not say it.

    Attributes:
        view: view position in capitals, ``""`` unknown.
        patient: the header's patient id, ``""`` unknown. It goes into tables alone, no message.
        size: width and height, ``None`` unknown.
    """

    view: str = ""
    patient: str = ""
    size: tuple[int, int] | None = None


def view_position(path: Path) -> str:
    """Return the view position of a DICOM file in capitals, ``""`` where there is none to read.

    A file that cannot be read gives ``""``, too: `prepare` rejects it with its reason, or counts
    it among the blank views.
    """
    header = read_header(path, ["ViewPosition"])
    return _view(header) if header is not None else ""


def identity(path: Path) -> Identity:
    """Return whose image a DICOM file is; what its header does not say, or hold well, is blank."""
    header = read_header(path, ["ViewPosition", "PatientID", *_SIZE])
    if header is None:
        return Identity()
    try:
        height, width = (header.get(name) for name in _SIZE)
        size = (int(width), int(height)) if width and height else None
        return Identity(_view(header), str(header.get("PatientID") or "").strip(), size)
    except Exception:  # a value surfaces as wrong when it is looked at
        return Identity()


def _view(header: Any) -> str:
    view = str(header.get("ViewPosition") or "").strip().upper()
    return view if len(view) <= _LONGEST else ""


def read_header(path: Path, tags: list[str]) -> Any:
    """Return a pydicom data set with these elements; ``None`` of a file that cannot be read."""
    # pydicom warns about header values (sometimes quoting them) in files that read well.
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(action="ignore"):
        try:
            with open_guarded(path, "check the path") as file:
                packed = path.suffix.lower() == ".gz"
                plain = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
                return read_elements(plain, path, tags)
        # A damaged header surfaces as any of a dozen exception types.
        except Exception:
            return None
