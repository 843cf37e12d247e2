"""Files are what their content says: exports have no suffixes, and hold more than images."""

import gzip

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.fileset import FileSet
from pydicom.uid import generate_uid

from medclip_debias.data.images import read_radiograph
from medclip_debias.data.images.contents import why_no_radiograph
from medclip_debias.errors import UserError
from medclip_debias.grounding.find import find_images

PICTURE = (np.add.outer(np.arange(40) * 5, np.arange(30) * 3)).astype(np.uint16)
ROOT = "1.2.840.10008.5.1.4.1.1."
OTHERS = {
    "DICOM structured reports": {"SOPClassUID": f"{ROOT}88.33", "Modality": "SR"},
    "DICOM key object selections": {"SOPClassUID": f"{ROOT}88.59", "Modality": "KO"},
    "DICOM presentation states": {"SOPClassUID": f"{ROOT}11.1", "Modality": "PR"},
    "DICOM segmentations and registrations": {"SOPClassUID": f"{ROOT}66.4"},
    "DICOM parametric maps": {"SOPClassUID": f"{ROOT}30"},
    "DICOM documents (PDF and others)": {"SOPClassUID": f"{ROOT}104.1"},
    "DICOM images of another modality": {"SOPClassUID": f"{ROOT}2", "Modality": "CT"},
    "DICOM images of several frames": {"NumberOfFrames": 3},
}


@pytest.fixture
def export(tmp_path, write_dicom):
    """Radiographs without suffix in nested folders, among everything else that an export holds."""
    root = tmp_path / "export"
    write_dicom(root / "DICOM" / "PA000001" / "ST01" / "IM000001", PICTURE, Modality="DX")
    write_dicom(root / "DICOM" / "PA000001" / "ST01" / "IM000002.17", PICTURE)
    write_dicom(root / "a.jpg", PICTURE)  # a DICOM file with the wrong name
    for number, elements in enumerate(OTHERS.values()):
        write_dicom(root / "DICOM" / f"OT{number:06d}", PICTURE, **elements)
    write_dicom(root / "report.dcm", PICTURE, SOPClassUID=f"{ROOT}88.11")
    Image.fromarray((PICTURE >> 1).astype(np.uint8)).save(root / "scan", format="png")
    (root / "AUTORUN.INF").write_text("[autorun]")
    return root


def test_an_export_gives_its_radiographs_and_counts_all_else_by_kind(export):
    said = []
    found = [path.relative_to(export).as_posix() for path in find_images([export], said.append)]
    assert found == [
        "DICOM/PA000001/ST01/IM000001",
        "DICOM/PA000001/ST01/IM000002.17",
        "a.jpg",
        "scan",
    ]
    assert all(read_radiograph(export / name).shape == PICTURE.shape for name in found)
    (sentence,) = said
    assert "2 DICOM structured reports" in sentence
    assert {why_no_radiograph(file) for file in (export / "DICOM").glob("OT*")} == set(OTHERS)
    counted = sum(int(word) for word in sentence.split() if word.isdigit())
    assert counted == sum(file.is_file() for file in export.rglob("*")) - len(found)
    packed = export / "x.dcm.gz"
    packed.write_bytes(gzip.compress((export / "report.dcm").read_bytes()))
    assert why_no_radiograph(packed) == "DICOM structured reports"


def test_a_damaged_file_is_not_left_aside_in_silence_but_read_and_refused(tmp_path, write_dicom):
    file = write_dicom(tmp_path / "IM1", PICTURE)
    file.write_bytes(file.read_bytes()[:200])
    assert find_images([tmp_path]) == [file]
    with pytest.raises(UserError):
        read_radiograph(file)


def test_a_dicomdir_stands_for_the_images_that_it_lists_in_its_folder(tmp_path, write_dicom):
    ids = {"PatientID": "1", "PatientName": "A^B", "StudyInstanceUID": generate_uid()}
    ids |= {"StudyDate": "20200101", "StudyTime": "10", "StudyID": "1", "AccessionNumber": ""}
    made = FileSet()
    for number, modality in enumerate(("DX", "DX", "CT"), start=1):
        kind = f"{ROOT}2" if modality == "CT" else f"{ROOT}1.1"
        file = write_dicom(
            tmp_path / f"{number}",
            PICTURE + number,
            **ids,
            Modality=modality,
            SeriesNumber=1,
            SOPClassUID=kind,
            SOPInstanceUID=generate_uid(),
            SeriesInstanceUID=generate_uid(),
            InstanceNumber=number,
        )
        dataset = pydicom.dcmread(file)
        dataset.file_meta.MediaStorageSOPClassUID = kind
        dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
        made.add(dataset)
    made.write(tmp_path / "disk")
    said = []
    found = find_images([tmp_path / "disk" / "DICOMDIR"], said.append)
    assert len(found) == 2
    assert sorted(int(read_radiograph(path).display().min()) for path in found) == [1, 2]
    assert "1 DICOM images of another modality" in said[0]
    assert find_images([tmp_path / "disk"], said.append) == sorted(found)
    assert "1 DICOM directories (DICOMDIR)" in said[1]
    found[0].unlink()
    assert find_images([tmp_path / "disk" / "DICOMDIR"], said.append) == found[1:]
    assert "1 that are not there" in said[2]
    listing = pydicom.dcmread(tmp_path / "disk" / "DICOMDIR")
    listing.DirectoryRecordSequence.append(pydicom.Dataset())
    listing.DirectoryRecordSequence[-1].DirectoryRecordType = "IMAGE"
    listing.DirectoryRecordSequence[-1].ReferencedFileID = ["..", "1"]  # an image, elsewhere
    listing.save_as(tmp_path / "disk" / "DICOMDIR")
    assert find_images([tmp_path / "disk" / "DICOMDIR"], said.append) == found[1:]
    assert "1 listed outside its folder" in said[3]
