"""What comes from a PACS and goes back to it: exports, DICOMweb, DICOM results."""

from __future__ import annotations

from pathlib import Path

from bad_inputs.case import case
from bad_inputs.folder_cases import GROUND
from bad_inputs.world import World

case(GROUND, "an export with a structured report", "counted", shows="1 DICOM structured reports")(
    lambda world: _export(world)
)
case(GROUND, "an export of structured reports alone", "refused")(
    lambda world: _export(world, radiographs=0)
)
case(GROUND, "DICOM results of an image that is no DICOM", "counted", shows="is not a DICOM file")(
    lambda world: _results(world, "sr,json")
)
case(GROUND, "results of an unknown kind", "refused")(lambda world: _results(world, "sgm"))
case(GROUND, "results that hold boxes, without any", "refused")(
    lambda world: _results(world, "seg")
)
case(GROUND, "kinds of results without a folder", "refused")(
    lambda world: world.ground(world.picture("a.png"), words=("--as", "sr"))
)
case(GROUND, "results on an image without study UID", "counted", shows="StudyInstanceUID")(
    lambda world: _no_study(world)
)
case(GROUND, "a DICOMweb address with a password", "refused")(
    lambda world: _fetched(world, "https://Zebulon:Quackenbush@127.0.0.1/dicom-web")
)
case(GROUND, "a DICOMweb server that does not answer", "refused")(
    lambda world: _fetched(world, "http://127.0.0.1:9/dicom-web")
)
case(GROUND, "a DICOMweb address that is none", "refused")(
    lambda world: _fetched(world, "pacs.example/dicom-web")
)
case(GROUND, "a study that is no UID", "refused")(
    lambda world: _fetched(world, "http://127.0.0.1:9/dicom-web", "../../Quackenbush")
)
case(GROUND, "a study without a server", "refused")(
    lambda world: world.ground(world.picture("a.png"), words=("--study", "1.2.3"))
)


def _dicom(world: World, name: str, **elements: str) -> Path:
    """A radiograph with the canary's header; keywords change elements, ``""`` empties them."""
    import numpy as np
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian

    pixels = np.add.outer(np.arange(40) * 5, np.arange(40) * 3).astype(np.uint16)
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    meta.MediaStorageSOPInstanceUID = "1.2.3.4"
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made = FileDataset(name, {}, file_meta=meta, preamble=b"\0" * 128)
    made.Rows, made.Columns, made.SamplesPerPixel, made.PixelRepresentation = 40, 40, 1, 0
    made.BitsAllocated, made.BitsStored, made.HighBit = 16, 16, 15
    made.PhotometricInterpretation, made.PixelData = "MONOCHROME2", pixels.tobytes()
    made.SOPClassUID, made.SOPInstanceUID = meta.MediaStorageSOPClassUID, "1.2.3.4"
    made.PatientName, made.PatientID = "Quackenbush^Zebulon", "19876543"
    made.StudyInstanceUID, made.SeriesInstanceUID = "1.2.3", "1.2.3.1"
    for element, value in elements.items():
        setattr(made, element, value)
    path = world.here / name
    path.parent.mkdir(parents=True, exist_ok=True)
    made.save_as(path, enforce_file_format=True)
    return path


def _export(world: World, radiographs: int = 1) -> list[str]:
    for number in range(radiographs):
        _dicom(world, f"pictures/IM{number}")
    _dicom(world, "pictures/IM9", SOPClassUID="1.2.840.10008.5.1.4.1.1.88.33", Modality="SR")
    return world.ground(world.here / "pictures")


def _results(world: World, kinds: str) -> list[str]:
    words = ("--dicom-out", str(world.out / "back"), "--as", kinds)
    return world.ground(world.picture("a.png"), words=words)


def _no_study(world: World) -> list[str]:
    words = ("--dicom-out", str(world.out / "back"), "--as", "sr")
    return world.ground(_dicom(world, "a", StudyInstanceUID=""), words=words)


def _fetched(world: World, url: str, study: str = "1.2.3") -> list[str]:
    return world.ground(words=("--dicomweb", url, "--study", study))
