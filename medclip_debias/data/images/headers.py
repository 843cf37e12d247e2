"""The view position in a DICOM file's header."""

from __future__ import annotations

import gzip
import io
import logging
import warnings
from pathlib import Path
from typing import IO, cast

from medclip_debias.data.images.dicom import header_start, is_deflated, unpacked_size_fits
from medclip_debias.data.images.files import MAX_BYTES

_LONGEST = 16  # characters of a DICOM code string


def view_position(path: Path) -> str:
    """Return the view position of a DICOM file in capitals, ``""`` where there is none to read.

    A file that cannot be read gives ``""``, too: `prepare` rejects it with its reason, or counts
    it among the blank views.
    """
    # pydicom warns about header values (sometimes quoting them) in files that read well.
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with path.open("rb") as file:
                if path.suffix.lower() == ".gz":
                    return _view(cast(IO[bytes], gzip.GzipFile(fileobj=file)))
                return _view(file)
        # A damaged header surfaces as any of a dozen exception types.
        except Exception:
            return ""


def _view(file: IO[bytes]) -> str:
    import pydicom

    start = header_start(file.read(256))
    if start is None:
        return ""
    if is_deflated(file, start):
        file.seek(0)
        content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES or not unpacked_size_fits(content, start, MAX_BYTES):
            return ""
        file = io.BytesIO(content)
    file.seek(0)
    tags = ["ViewPosition"]
    header = pydicom.dcmread(file, stop_before_pixels=True, specific_tags=tags, force=not start)
    view = str(header.get("ViewPosition") or "").strip().upper()
    return view if len(view) <= _LONGEST else ""
