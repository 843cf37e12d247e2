"""One picture to one file: 12-bit DICOM or 8-bit JPG, the same bytes for the same picture."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from medclip_debias.phantom.exact import Generator
from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.study import Study, View

# Our own UID root: 2.25 is the arc of UUID-derived identifiers, so nothing is registered.
_UID_ROOT = "2.25."
_CR_STORAGE = "1.2.840.10008.5.1.4.1.1.1"
_DX_STORAGE = "1.2.840.10008.5.1.4.1.1.1.1"
_EXPLICIT_LITTLE = "1.2.840.10008.1.2.1"


def write_jpg(path: Path, pixels: np.ndarray) -> None:
    """Write a picture (0..1) as an 8-bit grey JPG of quality 95, stretched to its full range."""
    from PIL import Image

    low, high = float(pixels.min()), float(pixels.max())
    grey = np.rint((pixels - low) / max(high - low, 1e-6) * 255.0).astype(np.uint8)
    Image.fromarray(grey).save(path, format="JPEG", quality=95)


def write_dicom(
    path: Path, pixels: np.ndarray, study: Study, view: View, settings: PhantomSettings
) -> None:
    """Write a picture (0..1) as 12-bit DICOM; a share is MONOCHROME1, a share has a window.

    Every value that a DICOM library would take from the clock or at random (UIDs, dates) comes
    from the study, so that the bytes are reproducible.
    """
    rng = Generator([*view.key, 4])
    black, span = rng.uniform(40, 220), rng.uniform(2600, 3600)
    shown = np.rint(black + span * pixels)
    inverted = bool(rng.random() < settings.monochrome1_share)
    windowed = bool(rng.random() < settings.window_share)
    stored = np.clip(4095 - shown if inverted else shown, 0, 4095).astype("<u2")

    ds = dicom_header(study, view)
    ds.PhotometricInterpretation = "MONOCHROME1" if inverted else "MONOCHROME2"
    ds.Rows, ds.Columns = int(stored.shape[0]), int(stored.shape[1])
    ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 12, 11, 0
    ds.BurnedInAnnotation = "NO"
    if windowed:
        low, high = black + 0.02 * span, black + span
        centre = (low + high) / 2
        ds.WindowCenter = round(4095 - centre if inverted else centre)
        ds.WindowWidth = round(high - low)
    ds.PresentationLUTShape = "INVERSE" if inverted else "IDENTITY"
    ds.PixelData = stored.tobytes()
    ds["PixelData"].VR = "OW"
    buffer = io.BytesIO()
    ds.save_as(buffer, enforce_file_format=True)
    path.write_bytes(buffer.getvalue())


def dicom_header(study: Study, view: View) -> Any:
    """Return a pydicom dataset with all but what describes the pixels."""
    from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
    from pydicom.uid import UID

    digital = view.position == "PA"
    number = int(view.dicom_id.replace("-", "")[:30], 16)
    meta = FileMetaDataset()
    meta.FileMetaInformationVersion = b"\x00\x01"
    meta.MediaStorageSOPClassUID = UID(_DX_STORAGE if digital else _CR_STORAGE)
    meta.MediaStorageSOPInstanceUID = UID(f"{_UID_ROOT}{number}")
    meta.TransferSyntaxUID = UID(_EXPLICIT_LITTLE)
    meta.ImplementationClassUID = UID(f"{_UID_ROOT}1")

    ds = FileDataset("", Dataset(), file_meta=meta, preamble=b"\0" * 128)
    ds.SOPClassUID = meta.MediaStorageSOPClassUID
    ds.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    ds.StudyDate = study.date
    ds.StudyTime = study.time
    ds.AccessionNumber = ""
    ds.Modality = "DX" if digital else "CR"
    ds.Manufacturer = "synthetic"
    ds.PatientName = ""
    ds.PatientID = f"p{study.subject_id}"
    ds.BodyPartExamined = "CHEST"
    ds.ViewPosition = view.stated
    ds.StudyInstanceUID = UID(f"{_UID_ROOT}{study.study_id}")
    ds.SeriesInstanceUID = UID(f"{_UID_ROOT}{study.study_id}{view.key[-1]}")
    ds.StudyID = str(study.study_id)
    ds.SeriesNumber = 1
    ds.InstanceNumber = view.key[-1] + 1
    ds.PatientOrientation = ["P", "F"] if view.position == "LATERAL" else ["L", "F"]
    ds.SamplesPerPixel = 1
    return ds
