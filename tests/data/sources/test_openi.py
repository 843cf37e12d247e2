"""Open-i: archive or folder, with images or text alone, and what is broken in it."""

import io
import os
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from medclip_debias.data.sources.detect import detect
from medclip_debias.data.text.reports import sections
from medclip_debias.errors import UserError
from tests.data.sources.counts import step, steps
from tests.data.sources.trees import write_image, write_table

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


def test_archive_folder_and_xml_folder_read_the_same_in_the_order_of_the_numbers(reports, tmp_path):
    source = detect(reports)
    assert (source.kind, source.images()) == ("openi", [])
    assert "text alone (unpack NLMCXR_png.tgz" in " ".join(source.describe())
    assert [s.study_id for s in source.studies({"CXR2"})] == ["CXR2"]
    expected = studies(reports)
    assert [name for name, _, _ in expected] == ["CXR1", "CXR2", "CXR10"]
    folder = reports / "ecgen-radiology"
    assert studies(folder) == expected
    files = {f"ecgen-radiology/{p.name}": p.read_text() for p in folder.iterdir()}
    tgz = archive(tmp_path / "NLMCXR_reports.tgz", files)
    assert studies(tgz) == expected
    shutil.rmtree(folder)
    assert studies(reports) == expected


def test_files_match_their_ids_and_views_are_the_projections_or_the_headers(reports, write_dicom):
    write_image(reports / "NLMCXR_png" / "CXR1_1_IM-0001-3001.png")
    write_image(reports / "images" / "1_IM-0001-4001.dcm.png")
    write_image(reports / "images" / "2_IM-0652-1001.dcm.png")
    projections = ("1,1_IM-0001-3001.dcm.png,Frontal", "1,1_IM-0001-4001.dcm.png,Lateral")
    write_table(reports / "indiana_projections.csv", "uid,filename,projection", *projections)
    found = [(i.image_id, i.study_id, i.view, i.path.name) for i in detect(reports).images()]
    assert found == [
        ("CXR1_1_IM-0001-3001", "CXR1", "FRONTAL", "CXR1_1_IM-0001-3001.png"),
        ("CXR1_1_IM-0001-4001", "CXR1", "LATERAL", "1_IM-0001-4001.dcm.png"),
        ("CXR2_IM-0652-1001", "CXR2", "", "2_IM-0652-1001.dcm.png"),
    ]
    (reports / "indiana_projections.csv").unlink()
    array = np.arange(64, dtype=np.uint16).reshape(8, 8)
    write_dicom(reports / "b" / "1_IM-0001-3001.dcm", array, ViewPosition="PA")
    write_dicom(reports / "b" / "1_IM-0001-4001.dcm", array)
    (reports / "b" / "2_IM-0652-1001.dcm").write_bytes(b"no DICOM")
    found = [(i.view, i.path.suffix) for i in detect(reports).images()]
    assert found == [("PA", ".dcm"), ("", ".dcm"), ("", ".dcm")]


def test_images_are_found_once_in_any_folder_and_one_that_is_not_there_stays_listed(reports):
    for at, folder in enumerate(("images", "images_224")):
        write_image(reports / folder / "CXR2_IM-0652-1001.png", at)
    (reports / "images" / "up").symlink_to(reports)
    (reports / "images" / "itself.png").symlink_to("itself.png")
    source = detect(reports)
    assert [image.path.is_file() for image in source.images()] == [False, False, True]
    assert source.images()[2].path == reports / "images" / "CXR2_IM-0652-1001.png"
    assert step(source, "only one of its image") == (1, 2)
    said = " ".join(source.describe())
    assert "Images: 1 of 3 are there" in said
    assert "No indiana_projections.csv" in said
    assert detect(reports, text_only=True).images() == []


def test_images_may_be_elsewhere_than_the_reports(reports, tmp_path):
    write_image(tmp_path / "elsewhere" / "CXR2_IM-0652-1001.png")
    with pytest.raises(UserError, match=r"has no reports, neither NLMCXR_reports\.tgz nor"):
        detect(tmp_path / "elsewhere", "openi")
    source = detect(tmp_path / "elsewhere", "openi", reports=reports / "ecgen-radiology")
    assert sum(image.path.is_file() for image in source.images()) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (BOMB.encode(), "declares XML entities"),
        (b"<eCitation>", "is not readable XML"),
        (xml(3).encode().replace(b"clear", b"cl\xe9ar"), "is not readable XML"),
        (xml(3).encode().replace(b"utf-8", b"klingon"), "is not readable XML"),
        (b"<a>" + b" " * (5 << 20) + b"</a>", "is larger than 4 MiB"),
        (None, r"cannot be read \(OSError\); download it again"),
    ],
)
def test_a_broken_report_is_named_and_the_others_are_read(reports, content, sentence):
    path = reports / "ecgen-radiology" / "3.xml"
    if content is None:
        path.symlink_to("3.xml")
    else:
        path.write_bytes(content)
    found = {name: (text, problem) for name, text, problem in studies(reports)}
    text, problem = found.pop("CXR3")
    assert text is None
    assert re.search(rf"3\.xml: {sentence}", problem)
    assert [problem for _, problem in found.values()] == ["", "", ""]


def test_a_report_without_text_is_empty_and_one_that_is_there_twice_refused(reports):
    path = reports / "ecgen-radiology" / "2.xml"
    path.write_text("<eCitation><uId id='CXR2'/></eCitation>")
    assert studies(reports)[1] == ("CXR2", None, "")
    path.write_text("<eCitation><uId id='CXR2'/><AbstractText Label='FINDINGS'/></eCitation>")
    assert studies(reports)[1] == ("CXR2", "", "")
    path.with_name("3.xml").write_text(xml(2))
    with pytest.raises(UserError, match=r"3\.xml: its report is also in .*2\.xml"):
        detect(reports)


def test_a_truncated_archive_and_one_with_names_that_lead_out_are_refused(tmp_path):
    files = {f"ecgen-radiology/{n}.xml": xml(n, os.urandom(400).hex()) for n in range(1, 40)}
    path = archive(tmp_path / "NLMCXR_reports.tgz", files)
    for content in (path.read_bytes()[:-3000], b"no archive"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"NLMCXR_reports\.tgz: the archive is truncated"):
            detect(path)
    for name in ("../1.xml", "a/../../1.xml", "/etc/1.xml"):
        with pytest.raises(UserError, match="leads out of its folder"):
            detect(archive(path, {name: xml(1)}))


def test_the_real_archive_is_read_whole(openi_source, openi_studies):
    assert len(openi_studies) == 3955
    assert not any(study.problem for study in openi_studies)
    assert len({study.study_id for study in openi_studies}) == 3955
    assert "naming 7470 images" in openi_source.describe()[0]
    reports = {study.study_id: study.report or "" for study in openi_studies}
    assert not [name for name, text in reports.items() if "<br" in text.lower()]  # as two have it
    assert "nodules concerning for metastatic disease" in reports["CXR1329"]


# -------------------------------------------------------------------- Kaggle's layout


HEADER = "uid,MeSH,Problems,image,indication,comparison,findings,impression"


def kaggle(folder, rows, projections):
    """Write the tables as Kaggle's data set has them."""
    write_table(folder / "indiana_reports.csv", HEADER, *rows)
    write_table(folder / "indiana_projections.csv", "uid,filename,projection", *projections)
    return folder


ROWS = (
    "10,No Indexing,No Indexing,Chest,,None.,,No change.",
    '2,Opacity/lung/base/left/mild;Cardiomegaly/borderline,x,Chest,"Cough, fever",None,'
    "Mild opacity.,Left base.",
    "1,normal,normal,Chest,,,Lungs are clear.,Normal chest.",
)
FILES = ("1_IM-0001-4001", "1_IM-0001-3001", "2_IM-0652-1001")
VIEWS = (
    "1,1_IM-0001-4001.dcm.png,Frontal",
    "1,1_IM-0001-3001.dcm.png,Lateral",
    "2,2_IM-0652-1001.dcm.png,Frontal",
)


@pytest.fixture
def kaggle_tree(tmp_path):
    """Three reports, one without image, and the files under the names that Kaggle gives them."""
    tree = kaggle(tmp_path / "kaggle", ROWS, VIEWS)
    for name in FILES:
        write_image(tree / "images" / "images_normalized" / f"{name}.dcm.png")
    return tree


def test_kaggles_layout_is_read_without_xml_and_without_renaming(kaggle_tree):
    source = detect(kaggle_tree / "indiana_reports.csv")
    assert source.kind == "openi"
    assert [(i.image_id, i.study_id, i.view, i.path.is_file()) for i in source.images()] == [
        ("CXR1_IM-0001-3001", "CXR1", "LATERAL", True),
        ("CXR1_IM-0001-4001", "CXR1", "FRONTAL", True),
        ("CXR2_IM-0652-1001", "CXR2", "FRONTAL", True),
    ]
    found = list(source.studies())
    assert [study.study_id for study in found] == ["CXR1", "CXR2", "CXR10"]
    assert sections(found[1].report).texts == {
        "comparison": "None",  # dictated, no program's word for blank
        "indication": "Cough, fever",
        "findings": "Mild opacity.",
        "impression": "Left base.",
    }
    assert (found[1].labels["Lung Opacity"], found[1].labels["Cardiomegaly"]) == (1, -1)
    assert "1 reports have no findings, 0 of them" in " ".join(source.describe())
    (kaggle_tree / "indiana_projections.csv").unlink()
    write_image(kaggle_tree / "images" / "77_IM-0001-0001.dcm.png")
    source = detect(kaggle_tree)
    assert [(i.study_id, i.view) for i in source.images()] == [("CXR1", "")] * 2 + [("CXR2", "")]
    said = " ".join(source.describe())
    assert "No indiana_projections.csv" in said
    assert "1 of 4 image files match no report" in said
    assert step(source, "image file is of a report") == (3, 4)


def test_what_is_wrong_in_the_tables_is_counted(tmp_path):
    rows = (*ROWS, ROWS[2], "4,normal,normal,Chest,,,nan,b'Clear.'", r"5,normal,x,x,,,A\nB,C")
    views = (*VIEWS, VIEWS[0], "9,9_IM-0001-0001.dcm.png,Frontal")
    tree = kaggle(tmp_path / "tree", rows, views)
    write_image(tree / "2_IM-0652-1001.dcm.png")
    source = detect(tree)
    assert steps(source) == {
        "row of indiana_reports.csv repeats no other": (5, 6),
        "cell that is a word for blank is empty": (1, None),
        "report written as bytes (b'...') is read as text": (1, None),
        r"report with '\n' as two characters is read with line breaks": (1, None),
        "row of indiana_projections.csv repeats no other": (4, 5),
        "file named in indiana_projections.csv is an image of a report": (3, 4),
        "report is indexed by people (MeSH)": (4, 5),
        "entry of the index names a side or zone": (1, 5),
    }
    assert [i.path.is_file() for i in source.images()] == [False, False, True]
    texts = {s.study_id: sections(s.report).texts for s in source.studies()}
    assert texts["CXR4"] == {"impression": "Clear."}


def test_the_real_table_has_the_xml_s_reports_labels_and_images(
    shared_data, openi_source, openi_studies, tmp_path
):
    for name in ("indiana_reports.csv", "indiana_projections.csv"):
        (tmp_path / name).symlink_to(shared_data / "openi" / name)
    there = sorted((shared_data / "openi" / "images").iterdir())[:50]
    for path in there:
        name = path.stem.removeprefix("CXR") + ".dcm.png"
        (tmp_path / name).symlink_to(path)
    table, xml_ = detect(tmp_path), openi_source
    theirs = {study.study_id: study for study in openi_studies}
    ours = list(table.studies())
    assert len(ours) == 3851
    with_image = {image.study_id for image in xml_.images()}
    assert with_image <= {study.study_id for study in ours}  # the 104 others name no image
    assert sum(study.report != theirs[study.study_id].report for study in ours) == 3
    assert all(study.labels == theirs[study.study_id].labels for study in ours)
    (places,), (their_places,) = table.annotations(), xml_.annotations()
    shared = {study.study_id for study in ours}
    assert places.rows == [row for row in their_places.rows if row[0] in shared]
    assert {image.image_id for image in table.images()} - {
        image.image_id for image in xml_.images()
    } == {"CXR1_IM-0001-3001", "CXR1_IM-0001-4001"}
    assert sum(image.path.is_file() for image in table.images()) == 50
    assert sum(image.path.is_file() for image in xml_.images()) == 6319
    said = " ".join(xml_.describe())
    assert "indiana_reports.csv: is not read, as the XML is there" in said
    assert "95 reports are not indexed" in said


def test_the_real_split_has_the_hash_that_the_docs_give(openi_source):
    split = openi_source.named_split()
    assert split.name == "openi-report-80-10-10-v1"
    for page in ("data.md", "openi.md"):
        text = (Path(__file__).parents[3] / "docs" / page).read_text(encoding="utf-8")
        assert f"`{split.name}`" in text
        assert split.sha256 in text
