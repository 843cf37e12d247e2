"""Open-i: archive or folder, with images or text alone, and what is broken in it."""

import io
import os
import re
import shutil
import tarfile

import numpy as np
import pytest
from PIL import Image

from medclip_debias.data.sources.detect import detect
from medclip_debias.data.text.reports import sections
from medclip_debias.errors import UserError

BOMB = """<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol2 "&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;">]>
<eCitation><uId id="CXR3"/><AbstractText Label="FINDINGS">&lol2;</AbstractText></eCitation>
"""


def xml(number, findings="Lungs are clear.", images=()):
    parents = "".join(f'<parentImage id="{image}"/>' for image in images)
    return f"""<?xml version="1.0" encoding="utf-8"?>
<eCitation><uId id="CXR{number}"/><MedlineCitation><Article><Abstract>
<AbstractText Label="COMPARISON">None.</AbstractText>
<AbstractText Label="INDICATION"/>
<AbstractText Label="FINDINGS">{findings}</AbstractText>
<AbstractText Label="IMPRESSION">Normal chest.</AbstractText>
</Abstract></Article></MedlineCitation>{parents}</eCitation>"""


@pytest.fixture
def reports(tmp_path):
    """Reports 1, 2 and 10: with two images, with one, with none."""
    folder = tmp_path / "ecgen-radiology"
    folder.mkdir()
    images = ("CXR1_1_IM-0001-3001", "CXR1_1_IM-0001-4001")
    (folder / "1.xml").write_text(xml(1, images=images))
    (folder / "2.xml").write_text(xml(2, "Mild edema.", ["CXR2_IM-0652-1001"]))
    (folder / "10.xml").write_text(xml(10))
    return tmp_path


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.eye(16, dtype=np.uint8) * 255).save(path, format="png")


def archive(path, files):
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            content = text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def studies(path, **options):
    return [(s.study_id, s.report, s.problem) for s in detect(path, **options).studies()]


def test_without_images_it_is_text_alone_in_the_order_of_the_numbers(reports):
    source = detect(reports)
    assert source.kind == "openi"
    assert source.images() == []
    assert [s.study_id for s in source.studies()] == ["CXR1", "CXR2", "CXR10"]
    assert {s.split for s in source.studies()} <= {"train", "validate", "test"}
    assert [s.study_id for s in source.studies({"CXR2"})] == ["CXR2"]
    assert "text alone (unpack NLMCXR_png.tgz" in " ".join(source.describe())


def test_the_labelled_parts_become_sections(reports):
    _, text, _ = studies(reports)[1]
    assert sections(text) == {
        "comparison": "None.",
        "findings": "Mild edema.",
        "impression": "Normal chest.",
    }


def test_archive_folder_and_xml_folder_read_the_same(reports, tmp_path):
    expected = studies(reports)
    folder = reports / "ecgen-radiology"
    assert studies(folder) == expected
    files = {f"ecgen-radiology/{p.name}": p.read_text() for p in folder.iterdir()}
    tgz = archive(tmp_path / "NLMCXR_reports.tgz", files)
    assert studies(tgz) == expected
    shutil.rmtree(folder)
    assert studies(reports) == expected


def test_png_files_match_their_ids_and_projections_name_the_views(reports):
    picture(reports / "NLMCXR_png" / "CXR1_1_IM-0001-3001.png")
    picture(reports / "images" / "1_IM-0001-4001.dcm.png")
    picture(reports / "images" / "2_IM-0652-1001.dcm.png")
    (reports / "indiana_projections.csv").write_text(
        "uid,filename,projection\n1,1_IM-0001-3001.dcm.png,Frontal\n"
        "1,1_IM-0001-4001.dcm.png,Lateral\n9,9_IM-1-1.dcm.png,Frontal\n"
    )
    found = [(i.image_id, i.study_id, i.view, i.path.name) for i in detect(reports).images()]
    assert found == [
        ("CXR1_1_IM-0001-3001", "CXR1", "FRONTAL", "CXR1_1_IM-0001-3001.png"),
        ("CXR1_1_IM-0001-4001", "CXR1", "LATERAL", "1_IM-0001-4001.dcm.png"),
        ("CXR2_IM-0652-1001", "CXR2", "", "2_IM-0652-1001.dcm.png"),
    ]


def test_dicom_files_come_before_png_and_bring_their_views(reports, write_dicom):
    array = np.arange(64, dtype=np.uint16).reshape(8, 8)
    picture(reports / "a" / "CXR1_1_IM-0001-3001.png")
    write_dicom(reports / "b" / "1_IM-0001-3001.dcm", array, ViewPosition="PA")
    write_dicom(reports / "b" / "1_IM-0001-4001.dcm", array)
    (reports / "b" / "2_IM-0652-1001.dcm").write_bytes(b"no DICOM")
    found = {i.image_id: (i.view, i.path.suffix) for i in detect(reports).images()}
    assert found == {
        "CXR1_1_IM-0001-3001": ("PA", ".dcm"),
        "CXR1_1_IM-0001-4001": ("", ".dcm"),
        "CXR2_IM-0652-1001": ("", ".dcm"),
    }


def test_an_image_that_is_not_there_stays_listed(reports):
    picture(reports / "CXR1_1_IM-0001-3001.png")
    source = detect(reports)
    assert [i.path.is_file() for i in source.images()] == [True, False, False]
    said = " ".join(source.describe())
    assert "Images: 1 of 3 are there" in said
    assert "No indiana_projections.csv" in said


def test_images_may_be_elsewhere_than_the_reports(reports, tmp_path):
    picture(tmp_path / "elsewhere" / "CXR2_IM-0652-1001.png")
    with pytest.raises(UserError, match=r"has no reports, neither NLMCXR_reports\.tgz nor"):
        detect(tmp_path / "elsewhere", "openi")
    source = detect(tmp_path / "elsewhere", "openi", reports=reports / "ecgen-radiology")
    assert sum(image.path.is_file() for image in source.images()) == 1


def test_a_link_that_leads_back_up_is_walked_once(reports):
    picture(reports / "png" / "CXR2_IM-0652-1001.png")
    (reports / "png" / "up").symlink_to(reports)
    (reports / "png" / "itself.png").symlink_to("itself.png")
    assert sum(image.path.is_file() for image in detect(reports).images()) == 1


def test_a_folder_behind_a_link_is_found(reports, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("disk")
    picture(elsewhere / "CXR2_IM-0652-1001.png")
    (reports / "NLMCXR_png").symlink_to(elsewhere)
    assert sum(image.path.is_file() for image in detect(reports).images()) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (BOMB.encode(), r"3\.xml: declares XML entities"),
        (b"<eCitation>", r"3\.xml: is not readable XML"),
        (b"", r"3\.xml: is not readable XML"),
        (xml(3).encode().replace(b"clear", b"cl\xe9ar"), r"3\.xml: is not readable XML"),
        (xml(3).encode().replace(b"utf-8", b"klingon"), r"3\.xml: is not readable XML"),
        (b"<a>" + b" " * (5 << 20) + b"</a>", r"3\.xml: is larger than 4 MiB"),
    ],
)
def test_a_broken_report_is_named_and_the_others_are_read(reports, content, sentence):
    (reports / "ecgen-radiology" / "3.xml").write_bytes(content)
    found = {name: (text, problem) for name, text, problem in studies(reports)}
    text, problem = found["CXR3"]
    assert text is None
    assert len(found) == 4
    assert re.search(sentence, problem)


def test_an_unreadable_xml_file_is_named_and_the_others_are_read(reports):
    loop = reports / "ecgen-radiology" / "3.xml"
    loop.symlink_to("3.xml")
    problems = [problem for _, _, problem in studies(reports)]
    assert problems == ["", "", f"{loop}: cannot be read (OSError).", ""]


def test_a_report_without_text_is_empty_not_broken(reports):
    path = reports / "ecgen-radiology" / "2.xml"
    path.write_text("<eCitation><uId id='CXR2'/></eCitation>")
    assert studies(reports)[1] == ("CXR2", None, "")
    path.write_text("<eCitation><uId id='CXR2'/><AbstractText Label='FINDINGS'/></eCitation>")
    assert studies(reports)[1] == ("CXR2", "", "")


def test_a_report_that_is_there_twice_is_refused(reports):
    (reports / "ecgen-radiology" / "3.xml").write_text(xml(2))
    with pytest.raises(UserError, match=r"3\.xml: its report is also in .*2\.xml"):
        detect(reports)


def test_a_truncated_archive_is_refused(tmp_path):
    files = {f"ecgen-radiology/{n}.xml": xml(n, os.urandom(400).hex()) for n in range(1, 40)}
    path = archive(tmp_path / "NLMCXR_reports.tgz", files)
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(UserError, match=r"NLMCXR_reports\.tgz: the archive is truncated"):
        detect(path)
    path.write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"NLMCXR_reports\.tgz: the archive is truncated"):
        detect(path)


@pytest.mark.parametrize("name", ["../1.xml", "a/../../1.xml", "/etc/1.xml"])
def test_an_archive_with_names_that_lead_out_is_refused(tmp_path, name):
    path = archive(tmp_path / "NLMCXR_reports.tgz", {name: xml(1)})
    with pytest.raises(UserError, match="leads out of its folder"):
        detect(path)


def test_an_archive_of_something_else_is_refused(tmp_path):
    path = archive(tmp_path / "other.tgz", {"a.txt": "x"})
    with pytest.raises(UserError, match=r"other\.tgz: holds no XML file"):
        detect(path)


def test_the_real_archive_is_read_whole(shared_data):
    source = detect(shared_data / "openi")
    found = list(source.studies())
    assert len(found) == 3955
    assert not any(study.problem for study in found)
    assert len({study.study_id for study in found}) == 3955
    assert "naming 7470 images" in source.describe()[0]
