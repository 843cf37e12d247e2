"""Results for a PACS: what goes in comes back to the pixel, with the patient's ids and no more."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.uid import generate_uid

from medclip_debias.cli import run
from medclip_debias.errors import UserError
from medclip_debias.grounding.dicom_out.deliver import KINDS, Delivery, deliver_to

hd = pytest.importorskip("highdicom")

HEIGHT, WIDTH = 70, 90
TEXTS = ("Left éffusion.", "No pneumothorax, and a sentence that is longer than 64 characters are.")
IDS = {
    "PatientID": "SECRET77",
    "PatientName": "DOE^JANE",
    "PatientBirthDate": "19510203",
    "PatientSex": "F",
    "StudyInstanceUID": generate_uid(),
    "SeriesInstanceUID": generate_uid(),
    "SOPInstanceUID": generate_uid(),
    "SOPClassUID": "1.2.840.10008.5.1.4.1.1.1.1",
    "AccessionNumber": "A1",
    "StudyID": "S1",
    "StudyDate": "20260101",
    "StudyTime": "101112",
    "Modality": "DX",
}
KEPT_BACK = {
    "PatientComments": "fell",
    "PatientAge": "075Y",
    "EthnicGroup": "x",
    "InstitutionName": "Ward",
    "DeviceSerialNumber": "42",
    "StudyDescription": "CHEST",
    "OperatorsName": "ROE^R",
    "AdmittingDiagnosesDescription": "cough",
}


class Model:
    content_hash, map_kind = "0123456789abcdef", "cosine"


@pytest.fixture(scope="module")
def source(tmp_path_factory, write_dicom):
    """A function that writes a radiograph with a patient's header."""

    def make(name="image", shape=(HEIGHT, WIDTH), **elements):
        pixels = np.add.outer(np.arange(shape[0]) * 5, np.arange(shape[1]) * 3).astype(np.uint16)
        return write_dicom(
            tmp_path_factory.mktemp("source") / name, pixels, **(IDS | KEPT_BACK | elements)
        )

    return make


def rows_of(*boxes, confidence=0.5):
    entry = {"mean": 0.1, "peak": 0.2, "area": 4, "confidence": confidence}
    return [
        {"text": text, "score": 0.25 * n, "boxes": [{"box": list(box)} | entry for box in some]}
        for n, (text, some) in enumerate(zip(TEXTS, boxes, strict=False), start=1)
    ]


def deliver(path, out, rows, kinds=KINDS, warning="", shape=(HEIGHT, WIDTH)):
    delivery = Delivery(deliver_to(out, kinds, True), Model(), warning)
    files = delivery.write(path, out, shape, rows)
    return delivery, {name.rsplit("/", 1)[-1]: name for name in files}


@pytest.fixture(scope="module")
def delivered(source, tmp_path_factory):
    # One pixel in each corner, the whole image, and others.
    first = [(0, 0, 1, 1), (WIDTH - 1, HEIGHT - 1, 1, 1), (0, 0, WIDTH, HEIGHT), (8, 61, 30, 9)]
    second = [(70, 2, 20, 3), (55, 33, 7, 31)]
    given = [[tuple(map(float, box)) for box in boxes] for boxes in (first, second)]
    delivery, files = deliver(
        source(), tmp_path_factory.mktemp("out"), rows_of(*given), warning="Made up."
    )
    return given, delivery, files


def corners(points):
    (left, top), (right, bottom) = np.min(points, axis=0), np.max(points, axis=0)
    return (left, top, right - left, bottom - top)


def test_every_file_is_written_and_counted(delivered):
    given, delivery, files = delivered
    assert sorted(files) == ["boxes_seg.dcm", "found.json", "scores_sr.dcm"]
    assert delivery.counts() == {"written": dict.fromkeys(KINDS, 1), "left_out": {}}
    content = json.loads(Path(files["found.json"]).read_text(encoding="utf-8"))
    assert content["image"]["SOPInstanceUID"] == IDS["SOPInstanceUID"]
    read = [[tuple(one["box"]) for one in row["boxes"]] for row in content["sentences"]]
    assert read == [list(boxes) for boxes in given]


def masks_of(path, image):
    return hd.seg.segread(path).get_pixels_by_source_instance([image])[0].astype(bool)


def test_segments_are_the_pixels_of_the_boxes(delivered):
    given, _, files = delivered
    boxes = [box for some in given for box in some]
    masks = masks_of(files["boxes_seg.dcm"], IDS["SOPInstanceUID"])
    assert masks.shape == (HEIGHT, WIDTH, len(boxes))
    for number, (x, y, width, height) in enumerate(np.array(boxes, int)):
        true = np.zeros((HEIGHT, WIDTH), bool)
        true[y : y + height, x : x + width] = True
        np.testing.assert_array_equal(masks[..., number], true)
    described = hd.seg.segread(files["boxes_seg.dcm"]).get_segment_description(5)
    assert described.segment_label.startswith("2.1 No pneumothorax")
    assert described.algorithm_identification.parameters["note 2"] == "model 0123456789abcdef"


def test_the_report_gives_scores_and_regions_back(delivered):
    given, _, files = delivered
    report = hd.sr.srread(files["scores_sr.dcm"])
    assert (report.CompletionFlag, report.VerificationFlag) == ("PARTIAL", "UNVERIFIED")
    groups = report.content.get_image_measurement_groups()
    assert [group.get_measurements()[0].value for group in groups] == [0.25, 0.5]
    named = [f"{number}: {text}" for number, text in enumerate(TEXTS, start=1)]
    assert [group.tracking_identifier for group in groups] == named
    regions = report.content.get_planar_roi_measurement_groups()
    assert [corners(region.roi.value) for region in regions] == [b for some in given for b in some]
    values = {m.name.meaning: m.value for m in regions[0].get_measurements()}
    assert values == {
        "Mean score of the region": 0.1,
        "Highest score of the region": 0.2,
        "Confidence that it shows the finding": 0.5,
    }
    text = report.to_json()
    for words in ("For research, not for diagnosis", "model 0123456789abcdef", "Made up."):
        assert words in text


def test_ids_go_back_and_nothing_else_of_the_header(delivered):
    _, _, files = delivered
    read = [pydicom.dcmread(path) for name, path in files.items() if name.endswith(".dcm")]
    own = {"SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID", "Modality"}
    for result in read:
        for name in IDS.keys() - own:
            assert str(result[name].value) == IDS[name], name
        for name, value in KEPT_BACK.items():
            assert str(result.get(name, "")) != value, name
        assert not re.search("fell|075Y|Ward|ROE|cough", result.to_json())
    for name in ("SeriesInstanceUID", "SOPInstanceUID"):
        assert len({IDS[name], *(result[name].value for result in read)}) == 3


@pytest.mark.parametrize(
    ("charset", "name"),
    [("ISO_IR 100", "Müller^Jörg"), (["", "ISO 2022 IR 87"], "Yamada^Tarou=山田^太郎")],
)
def test_names_in_other_alphabets_survive(source, tmp_path, charset, name, capfd):
    path = source(SpecificCharacterSet=charset, PatientName=name)
    _, files = deliver(path, tmp_path / "out", rows_of([(1, 2, 3, 4)], []))
    for file in files.values():
        if file.endswith("dcm"):
            assert str(pydicom.dcmread(file).PatientName) == name
    assert "".join(capfd.readouterr()) == ""


def test_values_of_the_wrong_kind_are_left_blank_and_said(source, tmp_path, capfd, recwarn):
    wrong = {"PatientBirthDate": "spring", "PatientSex": "female", "PatientName": "JANE-ALONE"}
    path = source(**wrong)
    recwarn.clear()
    delivery, files = deliver(path, tmp_path / "out", rows_of([(1, 2, 3, 4)], []))
    assert len(files) == 3
    (said,) = delivery.counts()["left_out"]
    assert "PatientBirthDate, PatientSex" in said
    assert "spring" not in said
    assert str(pydicom.dcmread(files["scores_sr.dcm"]).PatientName) == "JANE-ALONE"
    assert "JANE" not in "".join([*capfd.readouterr(), *(str(w.message) for w in recwarn)])


def test_a_value_that_is_several_is_left_blank_and_said(source, tmp_path):
    several = {"PatientID": "12\\34", "AccessionNumber": "A1\\A2", "PatientName": "A^B\\C^D"}
    delivery, files = deliver(
        source(**several), tmp_path, rows_of([(1, 2, 3, 4)], []), ["seg", "sr"]
    )
    (said,) = delivery.counts()["left_out"]
    assert said.endswith("left blank in the results: PatientID, AccessionNumber, PatientName")
    for path in files.values():
        header = pydicom.dcmread(path)
        assert not any(header[name].value for name in several)


def test_an_image_to_which_no_result_can_be_attached_gives_json_alone(source, tmp_path):
    path = source(StudyInstanceUID="")
    delivery, files = deliver(path, tmp_path / "out", rows_of([], []))
    assert list(files) == ["found.json"]
    (reason,) = delivery.counts()["left_out"]
    assert "lacks a valid StudyInstanceUID" in reason
    assert "PatientID" not in json.loads((tmp_path / "out" / "found.json").read_text())["image"]


def test_control_characters_of_a_sentence_reach_no_dicom_value(source, tmp_path):
    text = "\x07Left\teffusion\r\n\x85\x9b2J \u202eof\u2028 today.\x1b[31m\x00"
    rows = [rows_of([(1, 2, 3, 4)])[0] | {"text": text}]
    delivery, files = deliver(source(), tmp_path, rows, ["seg", "sr"])
    assert delivery.counts()["left_out"] == {}
    for path in files.values():
        words = json.dumps(pydicom.dcmread(path).to_json_dict())
        assert "Left effusion" in words
        assert not re.search(r"\\[bfnrt]|\\u00[0-189]|\\u202|\x7f", words)


@pytest.mark.skipif(not shutil.which("dciodvfy"), reason="dicom3tools is not installed")
def test_a_validator_of_the_standard_finds_no_error(delivered):
    for name, path in delivered[2].items():
        if name.endswith(".dcm"):
            done = subprocess.run(["dciodvfy", path], capture_output=True, text=True, check=False)
            assert "Error" not in done.stderr, name


def test_kinds_that_cannot_be_written_are_refused_first(tmp_path):
    for folder, kinds, finds_boxes, words in (
        (tmp_path, ["srr"], True, "did you mean 'sr'"),
        (tmp_path, [" "], True, "choose from"),
        (tmp_path, ["seg", "json"], False, "give --threshold, --share"),
        (None, ["sr"], False, "--dicom-out"),
    ):
        with pytest.raises(UserError, match=words):
            deliver_to(folder, kinds, finds_boxes)
    assert deliver_to(None, None, False) is None
    assert deliver_to(tmp_path, None, False).kinds == ("sr", "json")


def test_the_verb_takes_a_study_from_a_server_and_writes_its_results(
    model, source, dicomweb, tmp_path, capsys
):
    model.save(tmp_path / "model")
    server = dicomweb([source()])
    words = ["ground", tmp_path / "model", "--out", tmp_path / "out", "--text", "Left lung."]
    words += ["--dicomweb", server.url, "--study", IDS["StudyInstanceUID"], "--threshold", "-1"]
    words += ["--dicom-out", tmp_path / "back", "--as", ",".join(KINDS), "--json"]
    assert run([str(word) for word in words]) == 0
    shown = json.loads(capsys.readouterr().out)
    (image,) = shown["images"]
    assert image["image"] == str(tmp_path / "out" / "received" / "0001.dcm")
    assert shown["delivered"]["left_out"] == {}
    assert len(image["delivered"]) == 3
    report = hd.sr.srread(tmp_path / "back" / "scores_sr.dcm")
    (group,) = report.content.get_image_measurement_groups()
    assert group.get_measurements()[0].value == pytest.approx(image["sentences"][0]["score"])


def test_real_radiographs_get_every_kind(shared_data, tmp_path):
    files = sorted((shared_data / "dicom").glob("*.dcm"))
    if not files:
        pytest.skip("no DICOM file among the real inputs")
    rows = rows_of([(3, 5, 700, 40)], [])
    _, written = deliver(files[0], tmp_path, rows, ["seg", "sr"], shape=(1024, 1024))
    header = pydicom.dcmread(files[0], stop_before_pixels=True)
    masks = masks_of(written["boxes_seg.dcm"], header.SOPInstanceUID)
    assert masks.sum() == masks[5:45, 3:703].sum() == 700 * 40
    for path in written.values():
        read = pydicom.dcmread(path)
        assert (read.PatientID, read.PatientName) == (header.PatientID, header.PatientName)
