"""Radiographs as DICOM files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def radiograph(array: np.ndarray, **elements: Any) -> Any:
    """A data set of pydicom with these pixels; keywords set or (None) remove elements."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = elements.get("SOPClassUID") or "1.2.840.10008.5.1.4.1.1.1.1"
    meta.MediaStorageSOPInstanceUID = elements.get("SOPInstanceUID") or generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.Rows, dataset.Columns = array.shape[:2]
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME2"
    bits = 8 * array.dtype.itemsize
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = bits, bits, bits - 1
    dataset.PixelRepresentation = int(np.issubdtype(array.dtype, np.signedinteger))
    dataset.PixelData = array.tobytes()
    for name, value in elements.items():
        if value is None:
            delattr(dataset, name)
        else:
            setattr(dataset, name, value)
    return dataset


def write_radiograph(path: Path, array: np.ndarray, **elements: Any) -> Path:
    """Write such a data set as a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    radiograph(array, **elements).save_as(path, enforce_file_format=True)
    return path
