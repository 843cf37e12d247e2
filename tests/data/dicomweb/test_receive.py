"""Studies from a DICOMweb server on loopback: what comes, what is left aside, what is refused."""

import socket
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from pydicom.uid import generate_uid

from medclip_debias.data.dicomweb import receive as receive_module
from medclip_debias.data.dicomweb.client import DicomWeb
from medclip_debias.data.dicomweb.receive import fetch, receive
from medclip_debias.data.images import read_radiograph
from medclip_debias.errors import UserError

PICTURE = (np.add.outer(np.arange(40) * 5, np.arange(30) * 3)).astype(np.uint16)
STUDY, OTHER_STUDY = "1.2.3.4", "1.2.3.5"
ROOT = "1.2.840.10008.5.1.4.1.1."


@pytest.fixture(scope="module")
def archive(tmp_path_factory, write_dicom):
    """Two radiographs and three other objects in one study, a radiograph in another."""
    folder = tmp_path_factory.mktemp("archive")
    rows = [
        (STUDY, {"Modality": "DX", "SOPClassUID": f"{ROOT}1.1"}),
        (STUDY, {"Modality": "CR", "SOPClassUID": f"{ROOT}1"}),
        (STUDY, {"Modality": "CT", "SOPClassUID": f"{ROOT}2"}),
        (STUDY, {"Modality": "SR", "SOPClassUID": f"{ROOT}88.33"}),
        (STUDY, {"Modality": "DX", "SOPClassUID": f"{ROOT}1.1", "NumberOfFrames": 2}),
        (OTHER_STUDY, {"Modality": "DX", "SOPClassUID": f"{ROOT}1.1", "StudyDate": "20260102"}),
    ]
    for number, (study, elements) in enumerate(rows):
        ids = {"StudyInstanceUID": study, "PatientID": "SECRET77"}
        ids |= {name: generate_uid() for name in ("SeriesInstanceUID", "SOPInstanceUID")}
        write_dicom(folder / str(number), PICTURE + number, **ids, **elements)
    return sorted(folder.iterdir())


@pytest.fixture
def server(archive, dicomweb, monkeypatch):
    """The server, and a proxy of the environment, which is not used."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    return dicomweb(archive)


def test_radiographs_come_byte_for_byte_and_all_else_is_counted(server, archive, tmp_path):
    found = receive(DicomWeb(server.url, environment={}), tmp_path / "in", [STUDY])
    assert [path.name for path in found.files] == ["0001.dcm", "0002.dcm"]
    assert [p.read_bytes() for p in found.files] == [p.read_bytes() for p in archive[:2]]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in found.files)
    assert dict(found.left_aside) == {
        "DICOM images of another modality": 1,
        "DICOM structured reports": 1,
        "DICOM images of several frames": 1,
    }
    assert sum("/instances/" in request for request in server.requests) == 2
    assert read_radiograph(found.files[1]).shape == PICTURE.shape


@pytest.mark.parametrize("fault", ["", "bare"])
def test_a_query_finds_studies_whose_answer_may_be_a_single_part(server, archive, tmp_path, fault):
    server.fault = fault
    found = fetch(server.url, tmp_path / "in", (), ["StudyDate=20260102"], print)
    assert [path.read_bytes() for path in found] == [archive[5].read_bytes()]
    with pytest.raises(UserError, match="no study matches"):
        fetch(server.url, tmp_path / "in", (), ["StudyDate=19000101"], print)


@pytest.mark.parametrize(("page", "pages"), [(2, True), (3, False), (1000, False)])
def test_a_server_with_small_pages_or_none_gives_everything_once(server, page, pages):
    server.page, server.pages = page, pages
    matches = DicomWeb(server.url, environment={}).search(f"studies/{STUDY}/series", {}, 100)
    ids = [match["0020000E"]["Value"][0] for match in matches]
    assert len(set(ids)) == len(ids) == (5 if pages or page > 5 else page)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("redirect", "redirect"),
        ("error", "status 500"),
        ("no list", "not a list of DICOM matches"),
        ("cut off", "cut off"),
        ("no dicom", "not a DICOM file"),
        ("another image", "different image from the one requested"),
    ],
)
def test_a_bad_answer_is_one_sentence_without_a_word_of_it(server, tmp_path, fault, words):
    server.fault = fault
    with pytest.raises(UserError, match=words) as error:
        fetch(server.url, tmp_path / "in", [STUDY], (), print)
    for secret in ("DOE", "SECRET77", STUDY, "log in", "sorry"):
        assert secret not in str(error.value).replace(server.url, "")
    assert not list(tmp_path.glob("in/*"))


def test_credentials_come_from_the_environment_and_stay_out_of_messages(server, tmp_path):
    server.secret = "Bearer hush"
    with pytest.raises(UserError, match=r"status 401.*MEDCLIP_DICOMWEB_TOKEN"):
        receive(DicomWeb(server.url, environment={}), tmp_path, [STUDY])
    given = {"MEDCLIP_DICOMWEB_TOKEN": "wrong"}
    with pytest.raises(UserError, match="status 401") as error:
        receive(DicomWeb(server.url, environment=given), tmp_path, [STUDY])
    assert "wrong" not in str(error.value)
    given = {"MEDCLIP_DICOMWEB_TOKEN": "hush"}
    assert receive(DicomWeb(server.url, environment=given), tmp_path / "in", [STUDY]).files
    server.secret = "Basic YW5uYTpwdw=="  # anna:pw, RFC 7617
    given = {"MEDCLIP_DICOMWEB_USER": "anna", "MEDCLIP_DICOMWEB_PASSWORD": "pw"}
    assert receive(DicomWeb(server.url, environment=given), tmp_path / "in", [STUDY]).files


@pytest.mark.parametrize(
    ("url", "environment", "words"),
    [
        ("http://127.0.0.1:99999/x", {}, "not a DICOMweb address"),
        ("http://127.0.0.1/x?token=1", {}, "not a DICOMweb address"),
        ("https://anna:pw@pacs.example/x", {}, "must not hold a user"),
        ("http://pacs.example/x", {"MEDCLIP_DICOMWEB_TOKEN": "hush"}, "without encryption"),
        ("https://pacs.example/x", {"MEDCLIP_DICOMWEB_TOKEN": "a\r\nHost: b"}, "set it again"),
    ],
)
def test_addresses_that_would_leak_are_refused_before_any_request(url, environment, words):
    with pytest.raises(UserError, match=words) as error:
        DicomWeb(url, environment=environment)
    assert "hush" not in str(error.value)
    assert "pw@" not in str(error.value)


def test_a_server_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="does not answer"):
        fetch("http://127.0.0.1:9/dicom-web", tmp_path, [STUDY], (), print)


@pytest.mark.parametrize(
    "parts",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Type: application/dicom+json\r\n\r\n", *[b" "] * 100],
        [b"HTTP/1.1 100 Continue\r\n\r\n"] * 100,
        [b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n"] * 100],
    ],
    ids=["drips", "continues", "headers"],
)
def test_a_server_that_never_ends_its_answer_is_left(parts):
    """Each read is in time; the whole is not."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer():
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(4096)
            for part in parts:
                connection.sendall(part)
                time.sleep(0.05)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/dicom-web"
    began = time.monotonic()
    with pytest.raises(UserError, match=r"had not finished an answer after 0\.3 s"):
        list(DicomWeb(url, timeout=5, total=0.3, environment={}).search("studies", {}, 10))
    assert time.monotonic() - began < 5
    listener.close()


def test_a_server_that_lists_without_end_is_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(receive_module, "MOST_LISTED", 6)
    with pytest.raises(UserError, match="lists more than 6 series and instances"):
        fetch(server.url, tmp_path / "in", [STUDY], (), print)


@pytest.mark.parametrize(
    ("studies", "query", "words"),
    [
        (["../../etc"], [], "digits and dots"),
        (["1..2"], [], "digits and dots"),
        ([], ["StudyDate"], "not a KEY=VALUE"),
        ([], ["limit=5"], "not a KEY=VALUE"),
        ([], [], "which studies"),
    ],
)
def test_requests_that_mean_nothing_are_refused(server, tmp_path, studies, query, words):
    with pytest.raises(UserError, match=words):
        fetch(server.url, tmp_path, studies, query, print)
    assert not server.requests


def test_studies_without_a_server_are_refused(tmp_path):
    assert fetch(None, tmp_path, (), (), print) == []
    with pytest.raises(UserError, match="--dicomweb URL"):
        fetch(None, tmp_path, [STUDY], (), print)
