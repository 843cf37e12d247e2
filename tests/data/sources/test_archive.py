"""What sources of archives share: odd rows are counted, images found wherever the tree starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from medclip_debias.data.sources.archive import ArchiveSource, find_table, merged_labels
from medclip_debias.data.sources.image_files import ImagePlaces, ImageTree
from medclip_debias.data.sources.registry import Given
from medclip_debias.data.sources.tables import read_table
from medclip_debias.errors import UserError
from tests.data.sources.trees import write_image


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return write_image(tmp_path / "archive" / "train" / "p1" / "a.png", shape=(20, 30))


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("", "archive/train/p1/a.png"),
        ("archive", "archive/train/p1/a.png"),
        ("archive", "../train/p1/a.png"),
        ("archive", "train\\p1\\a.png"),
        ("archive/train", "archive/train/p1/a.png"),
        ("archive/train/p1", "archive/train/p1/a.png"),
    ],
)
def test_an_image_is_found_from_any_folder_of_its_path(image, tmp_path, root, name):
    assert ImagePlaces(tmp_path / root, [name]).path(name) == image


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".dcm", ".dicom", ".dcm.gz"])
@pytest.mark.parametrize("named", ["a.1.png", "a.1.dcm"])
def test_an_image_is_known_by_its_stem_whatever_its_format(image, tmp_path, suffix, named):
    """Public copies are resized JPG files, and keep the tables of the archive."""
    file = image.rename(image.with_name(f"a.1{suffix}"))
    image.with_name("a.1.txt").touch()
    image.with_name("a.10.png").touch()
    places, tree = ImagePlaces(tmp_path, [f"train/p1/{named}"], ["archive"]), ImageTree(tmp_path)
    renamed = {name for name in (named,) if named != file.name}
    assert places.path(f"train/p1/{named}") == file
    assert tree.path(named) == file
    assert {Path(name).name for name in places.renamed} == renamed == tree.renamed


def test_two_files_of_one_stem_are_refused_unless_one_has_the_very_name(image, tmp_path):
    image.with_name("a.jpg").touch()
    assert ImagePlaces(tmp_path, ["archive/train/p1/a.jpg"]).path("archive/train/p1/a.jpg").exists()
    assert ImageTree(tmp_path).path("a.jpg") == image.with_name("a.jpg")
    sentence = r"'a\.dcm' is not there, and both a\.jpg and a\.png have its stem"
    with pytest.raises(UserError, match=sentence):
        ImagePlaces(tmp_path, ["archive/train/p1/a.dcm"]).path("archive/train/p1/a.dcm")
    with pytest.raises(UserError, match=sentence):
        ImageTree(tmp_path).path("a.dcm")


def test_a_name_in_two_folders_is_refused(image, tmp_path):
    """Small copies or masks under the very names of the images lie beside many archives."""
    small = tmp_path / "archive" / "images-64" / image.name
    small.parent.mkdir()
    shutil.copy(image, small)
    tree = ImageTree(tmp_path)
    assert tree.path(image.name) == small  # the very same file
    small.write_bytes(b"another")
    for name in (image.name, image.with_suffix(".jpg").name):
        with pytest.raises(UserError, match=r"images-64/a\.png and archive/train/p1/a\.png have"):
            tree.path(name)


def test_one_image_of_thousands_is_enough_to_know_where_they_lie(image, tmp_path):
    names = [f"archive/train/p1/{n}.png" for n in range(2_000)]
    names[1_111] = "archive/train/p1/a.png"
    places = ImagePlaces(tmp_path / "archive" / "train", names)
    assert places.find(names[1_111]) == image
    assert places.find(names[0]) is None
    assert places.path(names[0]) == image.with_name("0.png")


def test_a_name_never_leads_out_of_the_root(image, tmp_path):
    secret = tmp_path / "secret.png"
    image.rename(secret)
    inside = ImagePlaces(tmp_path / "archive", ["../secret.png", "/etc/hostname"])
    for name in ("../secret.png", "/etc/hostname", str(secret)):
        assert inside.path(name).is_relative_to(tmp_path / "archive")
        assert not inside.path(name).exists()


def test_the_first_of_repeated_rows_counts_and_the_others_are_counted(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("id,x\na,1\nb,1\na,1\na,2\n")
    source = ArchiveSource(tmp_path, Given())
    kept = source.first_rows(path, read_table(path), "id")
    assert kept.index.tolist() == [2, 3]
    assert source.counted == [("row of t.csv is not a repeat", "rows", 2, 4)]
    assert "1 rows repeat a row above with other values" in source.said[0]


def test_present_counts_before_uncertain_and_that_before_absent():
    rows = [{"a": 0.0, "b": None, "c": -1.0}, {"a": -1.0, "b": 0.0, "c": 1.0}]
    for order in (rows, rows[::-1]):
        assert merged_labels(order) == ({"a": -1.0, "b": 0.0, "c": 1.0}, True)


def test_two_releases_of_a_table_are_refused(tmp_path):
    (tmp_path / "Data_2017.csv").touch()
    assert find_table([tmp_path / "none", tmp_path], "Data_*.csv*").name == "Data_2017.csv"
    (tmp_path / "Data_2017.csv.gz").touch()
    assert find_table([tmp_path], "Data_*.csv*").name == "Data_2017.csv"
    (tmp_path / "Data_2020.csv").touch()
    with pytest.raises(UserError, match="keep one release"):
        find_table([tmp_path], "Data_*.csv*")
    assert find_table([tmp_path], "Other_*.csv") is None
