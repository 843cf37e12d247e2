"""MIMIC-CXR's DICOM release as it is downloaded: no view positions, no split, no labels."""

import gzip
import os
import shutil
import signal
import zipfile
from multiprocessing import get_context
from pathlib import Path

import pandas as pd
import pydicom
import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.images.headers import view_position
from medclip_debias.data.prepare import Reading, merge, prepare, prepare_part
from medclip_debias.data.store import PreparedSet

SMALL = PrepareSettings(size=32)

VIEWS = {"a": "AP", "b": "PA", "c": "LATERAL", "d": "AP", "e": "PA"}


@pytest.fixture
def release(tiny_tree, tmp_path, write_dicom):
    """The tree as PhysioNet's DICOM release holds it; the JPG release's tables lie elsewhere."""
    root, tables = tiny_tree.root, tmp_path / "tables"
    tables.mkdir()
    for path in [*root.glob("mimic-cxr-2*"), *root.glob("MS_CXR*")]:
        shutil.move(path, tables / path.name)
    jpg = tiny_tree.image("d")
    write_dicom(jpg.with_suffix(".dcm"), tiny_tree.picture, BitsStored=12, HighBit=11)
    jpg.unlink()
    for name, view in VIEWS.items():
        set_header(tiny_tree.image(name), ViewPosition=view)
    packed = tiny_tree.image("e")
    packed.with_name("e.dcm.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    records, studies = "subject_id,study_id,dicom_id,path\n", "subject_id,study_id,path\n"
    for path in sorted(root.glob("files/*/*/*/*.dcm*")):
        study, patient = path.parent.name[1:], path.parent.parent.name[1:]
        place = path.relative_to(root).as_posix()
        records += f"{patient},{study},{path.name.split('.')[0]},{place}\n"
        row = f"{patient},{study},{Path(place).parent}.txt\n"
        studies += "" if row in studies else row
    (root / "cxr-record-list.csv.gz").write_bytes(gzip.compress(records.encode()))
    (root / "cxr-study-list.csv.gz").write_bytes(gzip.compress(studies.encode()))
    with zipfile.ZipFile(root / "mimic-cxr-reports.zip", "w") as archive:
        for path in sorted(root.glob("files/*/*/s*.txt")):
            archive.write(path, path.relative_to(root))
            path.unlink()
    return tiny_tree


def set_header(path, **elements):
    dataset = pydicom.dcmread(path)
    for name, value in elements.items():
        setattr(dataset, name, value)
    dataset.save_as(path)


def counts(prepared):
    return {row["step"]: (row["kept"], row["dropped"]) for row in prepared.funnel}


def command(source, out, *words):
    return run(["prepare", str(source), str(out), "--size", "32", "--workers", "1", *words])


def test_the_set_is_the_one_that_the_tables_give(release, tmp_path):
    """Reference: the same files with the JPG release's metadata table."""
    tables = tmp_path / "tables"
    known = prepare(release.root, tmp_path / "1", SMALL, reading=Reading(tables=tables), workers=1)
    assert "header states the view" not in counts(known)
    assert known.images["split"].tolist() == ["train", "held_out", "validate", "test"]
    assert known.phrases["image_id"].tolist() == ["b"]
    assert known.studies.set_index("study_id").loc["104", "Edema"] == 1
    (tables / "mimic-cxr-2.0.0-metadata.csv.gz").unlink()
    for _ in range(2):  # the second time it finds its work done
        out, how = tmp_path / "2", Reading(tables=tables)
        read = prepare(release.root, out, SMALL, reading=how, workers=2)
        assert read.content_hash == known.content_hash


@pytest.mark.parametrize("bare", [False, True])
def test_without_record_list_the_tree_is_walked(release, tmp_path, bare):
    reading = Reading(split_seed=0)
    known = prepare(release.root, tmp_path / "1", SMALL, reading=reading, workers=1)
    for path in release.root.glob("cxr-*"):
        path.unlink()
    if bare:  # the tree itself, reports beside the folders of the studies
        with zipfile.ZipFile(release.root / "mimic-cxr-reports.zip") as archive:
            archive.extractall(release.root)
        (release.root / "mimic-cxr-reports.zip").unlink()
    place = release.root / "files" if bare else release.root
    walked = prepare(place, tmp_path / "2", SMALL, reading=reading, workers=1)
    assert walked.content_hash == known.content_hash


def test_views_come_from_the_headers_and_a_file_without_one_has_a_blank_view(release, tmp_path):
    set_header(release.image("a"), ViewPosition="")
    release.image("b").write_bytes(b"no dicom")
    path = release.image("d")
    path.rename(path.with_suffix(".jpg"))  # a JPG has no header to read
    result = prepare(release.root, tmp_path / "o", SMALL, reading=Reading(split_seed=0), workers=1)
    assert result.images["image_id"].tolist() == ["e"]
    assert result.images["view"].tolist() == ["PA"]
    assert counts(result)["DICOM headers read for the view"] == (4, 0)
    assert counts(result)["header states the view"] == (2, 2)
    assert counts(result)["view is not blank"] == (2, 3)
    assert counts(result)["view is frontal"] == (1, 1)


def test_headers_without_any_view_say_what_to_do(release, tmp_path, capsys):
    for name in VIEWS.keys() - {"e"}:
        set_header(release.image(name), ViewPosition="")
    release.image("e").write_bytes(b"no gzip")
    assert command(release.root, tmp_path / "o", "--split-seed", "0") == 2
    said = capsys.readouterr().err
    assert "view positions are read from the DICOM headers" in said
    assert "none of its 5 DICOM headers states a view position" in said.splitlines()[-1]
    words = ["--split-seed", "0", "--blank-view", "include"]
    assert command(release.root, tmp_path / "o", *words) == 0
    assert PreparedSet.open(tmp_path / "o").images["image_id"].tolist() == ["a", "b", "c", "d"]


def test_headers_are_not_read_again_when_a_run_goes_on(release, tmp_path):
    def die():
        def progress(done, total):
            if done >= 6:  # five headers and a report
                os.kill(os.getpid(), signal.SIGKILL)

        prepare(
            *(release.root, tmp_path / "o", SMALL),
            reading=Reading(split_seed=0),
            workers=1,
            progress=progress,
        )

    process = get_context("fork").Process(target=die)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    path = release.image("c")  # the lateral: its file is not opened for its pixels
    status, content = path.stat(), path.read_bytes()
    path.write_bytes(bytes(len(content)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    resumed = prepare(release.root, tmp_path / "o", SMALL, reading=Reading(split_seed=0), workers=1)
    assert counts(resumed)["header states the view"] == (5, 0)
    assert not (tmp_path / "o.partial").exists()


@pytest.mark.parametrize("text_only", [False, True])
def test_parts_are_one_run_to_the_byte(release, tmp_path, text_only):
    reading = Reading(tables=tmp_path / "tables", text_only=text_only)
    (tmp_path / "tables" / "mimic-cxr-2.0.0-metadata.csv.gz").unlink()
    parts = [tmp_path / f"part{i}" for i in (1, 2)]
    for number, part in enumerate(parts, 1):
        prepare_part(release.root, part, SMALL, f"{number}/2", reading=reading, workers=1)
    merged = merge(parts[::-1], tmp_path / "merged")
    whole = prepare(release.root, tmp_path / "whole", SMALL, reading=reading, workers=1)
    for path in (p for p in whole.folder.iterdir() if p.name != "items.key"):
        assert (merged.folder / path.name).read_bytes() == path.read_bytes(), path.name


class TestTextOnly:
    """Reports without images: said outright, or refused."""

    def test_a_misplaced_image_folder_is_no_text_only_set(self, release, tmp_path, capsys):
        shutil.move(release.root / "files", tmp_path / "elsewhere")
        assert command(release.root, tmp_path / "o", "--split-seed", "0") == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert "--text-only" in said
        assert not (tmp_path / "o").exists()

    @pytest.mark.parametrize("lists", ["both", "records", "none"])
    def test_reports_and_tables_make_a_set_of_sentences(self, release, tmp_path, capsys, lists):
        shutil.rmtree(release.root / "files")
        if lists != "both":
            (release.root / "cxr-study-list.csv.gz").unlink()
        if lists == "none":
            (release.root / "cxr-record-list.csv.gz").unlink()
        words = ["--text-only", "--tables", str(tmp_path / "tables")]
        assert command(release.root, tmp_path / "o", *words) == 0
        assert "text only, 4 studies; images are skipped" in capsys.readouterr().err
        prepared = PreparedSet.open(tmp_path / "o")
        splits = dict(zip(prepared.studies["study_id"], prepared.studies["split"], strict=True))
        assert splits == {"101": "train", "102": "train", "103": "validate", "104": "test"}
        assert prepared.studies.set_index("study_id").loc["104", "Edema"] == 1
        assert "Left effusion." in prepared.texts
        assert prepared.meta["counts"]["images"] == len(prepared) == 0

    def test_patients_with_boxes_and_studies_without_a_split_leave_here_too(
        self, release, tmp_path
    ):
        tables = tmp_path / "tables"
        boxes = tables / "MS_CXR_Local_Alignment_v1.0.0.json"
        place = '"b.jpg", "path": "files/p10/p10000002/s102/b.jpg"'
        boxes.write_text(boxes.read_text().replace('"b.jpg"', place))
        path = tables / "mimic-cxr-2.0.0-split.csv.gz"
        table = pd.read_csv(path, dtype=str)
        table[table["study_id"] != "103"].to_csv(path, index=False)
        reading = Reading(text_only=True, tables=tables, phrases=boxes)
        result = prepare(release.root, tmp_path / "o", SMALL, reading=reading, workers=1)
        splits = dict(zip(result.studies["study_id"], result.studies["split"], strict=True))
        assert splits == {"101": "train", "102": "held_out", "104": "test"}
        assert counts(result)["patient has no boxes (others move to held_out)"][1] == 1
        assert counts(result)["split is known"] == (3, 1)

    def test_the_zip_itself_may_be_given(self, release, tmp_path, capsys):
        place = release.root / "mimic-cxr-reports.zip"
        assert command(place, tmp_path / "o", "--split-seed", "0") == 2
        assert "is a zip of reports without images" in capsys.readouterr().err
        words = ["--split-seed", "0", "--text-only"]
        assert command(place, tmp_path / "o", *words) == 0
        assert command(place, tmp_path / "o", *words, "--update") == 0
        assert len(PreparedSet.open(tmp_path / "o").studies) == 4


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 200, b"\0" * 128 + b"DICM", b"\x02\0\0\0UL\4\0" * 40]
)
def test_what_has_no_header_has_no_view(tmp_path, content):
    for name in ("a.dcm", "a.dcm.gz"):
        assert view_position(tmp_path / name) == ""
        (tmp_path / name).write_bytes(content)
        assert view_position(tmp_path / name) == ""


def test_a_deflated_header_is_read_and_a_bomb_is_not(tmp_path, tiny_tree, monkeypatch):
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    path = tiny_tree.image("a")
    dataset = pydicom.dcmread(path)
    dataset.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    dataset.ViewPosition = "PA"
    dataset.save_as(path)
    assert view_position(path) == "PA"
    monkeypatch.setattr("medclip_debias.data.images.elements.MAX_UNPACKED", 1000)
    assert view_position(path) == ""
