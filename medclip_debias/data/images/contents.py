"""What a file is by its content, whatever its name: folders of a PACS export hold more than images.

The storage classes are those of DICOM PS3.4, B.5, and PS3.6, A.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

from medclip_debias.data.images.dicom import other_modality
from medclip_debias.data.images.elements import MAX_DIRECTORY_READS, header_start, read_elements
from medclip_debias.data.images.headers import read_header
from medclip_debias.data.images.raster import is_raster

SUFFIXES = (".dcm", ".dicom", ".dcm.gz", ".dicom.gz", ".jpg", ".jpeg", ".png")
DIRECTORY = "1.2.840.10008.1.3.10"
_GZIP = b"\x1f\x8b"
_STORAGE = "1.2.840.10008.5.1.4.1.1."
_NO_IMAGES = {  # by the start of the storage class; the longest that fits counts
    DIRECTORY: "DICOM directories (DICOMDIR)",
    f"{_STORAGE}88.": "DICOM structured reports",
    f"{_STORAGE}88.59": "DICOM key object selections",
    f"{_STORAGE}11.": "DICOM presentation states",
    f"{_STORAGE}66.": "DICOM segmentations and registrations",
    f"{_STORAGE}30": "DICOM parametric maps",
    f"{_STORAGE}104.": "DICOM documents (PDF and others)",
    f"{_STORAGE}481.": "DICOM objects of radiotherapy",
    f"{_STORAGE}9.": "DICOM waveforms",
}
_TAGS = ["SOPClassUID", "Modality", "NumberOfFrames"]


def why_no_radiograph(file: Path) -> str:
    """Return ``""`` for a file that may hold a radiograph, else what to call it when counted.

    DICOM is known by its preamble or its first elements, JPG and PNG by their first bytes. A file
    that is damaged, or that is only named like an image, is not left aside here: whoever reads it
    says what is wrong with it.
    """
    named = file.name.lower().endswith(SUFFIXES)
    try:
        if not file.exists():
            return "links that lead nowhere" if file.is_symlink() else "that are not there"
        if not file.is_file():
            return "that are not files"
        with file.open("rb") as stream:
            start = stream.read(132)
        if start.startswith(_GZIP) and file.suffix.lower() == ".gz":
            with gzip.open(file) as packed:
                start = packed.read(132)
    except (OSError, EOFError, zlib.error):
        return "" if named else "that cannot be read"
    if is_raster(start):
        return ""
    # Without preamble, the start of a file says little: a name that says otherwise counts more.
    plain = named or not file.suffix.strip(".0123456789")
    if start[128:] == b"DICM" or (plain and header_start(start) is not None):
        return _of_header(file)
    if named:
        return ""
    suffix = file.suffix.lower()
    return suffix if 1 < len(suffix) <= 8 else "without suffix"


def kind_of_instance(storage_class: str, modality: str, frames: Any) -> str:
    """``""`` for what may be one radiograph, else what to call it when it is counted."""
    fitting = [start for start in _NO_IMAGES if storage_class.startswith(start)]
    if fitting:
        return _NO_IMAGES[max(fitting, key=len)]
    if other_modality(modality, storage_class):
        return "DICOM images of another modality"
    try:
        return "DICOM images of several frames" if int(frames or 1) > 1 else ""
    except (TypeError, ValueError):
        return ""


def is_dicom_directory(file: Path) -> bool:
    """Tell whether a file is a DICOMDIR, the list of the files of a disk or of an export."""
    if file.name.upper() != "DICOMDIR" or not file.is_file():
        return False
    header = read_header(file, _TAGS)
    return header is not None and _storage_class(header) == DIRECTORY


def files_of_directory(directory: Path) -> tuple[list[Path], int]:
    """The image files that a DICOMDIR lists, in its order, and how many lie outside its folder.

    Only files of its own folder are taken: the list may come from a stranger.
    """
    root = directory.parent.resolve()
    found, outside = [], 0
    records = "DirectoryRecordSequence"
    with directory.open("rb") as stream:
        header = read_elements(stream, directory, [records], max_reads=MAX_DIRECTORY_READS)
    for record in header.get(records) or []:
        if str(record.get("DirectoryRecordType") or "").strip() != "IMAGE":
            continue
        parts = record.get("ReferencedFileID") or []
        parts = [parts] if isinstance(parts, str) else [str(part) for part in parts]
        file = directory.parent.joinpath(*parts)
        if not parts or not file.resolve().is_relative_to(root):
            outside += 1
        else:
            found.append(file)
    return found, outside


def _of_header(file: Path) -> str:
    header = read_header(file, _TAGS)
    if header is None:
        return ""
    try:
        modality = str(header.get("Modality") or "")
        return kind_of_instance(_storage_class(header), modality, header.get("NumberOfFrames"))
    except Exception:  # a value surfaces as wrong when it is looked at; reading says so
        return ""


def _storage_class(header: Any) -> str:
    meta = getattr(header, "file_meta", {})
    return str(header.get("SOPClassUID") or meta.get("MediaStorageSOPClassUID") or "").strip()
