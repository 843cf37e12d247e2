"""Which image a path names: the one whose own path ends alike, and none when two do."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.records import ImageRecord
from medclip_debias.data.sources.paths import PathFinder, ends_of, parts_of

ROOT = Path("/data/CheXpert")
FILES = [f"valid/patient{p}/study{s}/view1_frontal.jpg" for p in (1, 2, 12) for s in (1, 2)]


def images(files, root=ROOT):
    return [ImageRecord(file, "s", "p", root / file, "AP", "train") for file in files]


def find(name, files=FILES, root=ROOT):
    return PathFinder.of_images(images(files, root), root, [name]).find(name)


@pytest.mark.parametrize(
    "name",
    [
        "CheXpert-v1.0-small/valid/patient1/study2/view1_frontal.jpg",
        "/data/CheXpert/valid/patient1/study2/view1_frontal.png",
        "patient1/study2/view1_frontal.jpg",
        "patient1\\study2\\view1_frontal",
        "./patient1/study2/view1_frontal.jpg",
    ],
)
def test_files_of_one_name_are_distinguished_by_their_folders(name):
    assert find(name).image_id == "valid/patient1/study2/view1_frontal.jpg"


def test_a_name_that_fits_several_says_how_many_and_another_folder_is_another_image():
    assert find("view1_frontal.jpg").several == 6
    assert find("study1/view1_frontal.jpg").several == 3
    assert find("patient3/study1/view1_frontal.jpg", FILES[:1]) == ("", 0, 0, True)
    assert find("elsewhere.jpg").elsewhere is False


PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map("/".join)


@given(st.lists(PATHS, unique=True, min_size=1, max_size=6), PATHS)
def test_one_path_always_ends_in_the_other(files, name):
    root = Path("/r")
    found = find(name, files, root)
    wanted = parts_of(name)
    inside = [f for f in files if wanted in ends_of(parts_of(f"/r/{f}"))]
    around = [f for f in files if parts_of(f) in ends_of(wanted)]
    if found.image_id:
        assert found.image_id in inside + around
        assert len(inside) <= 1 or found.image_id == name
    elif inside or around:
        assert found.several == len(inside) > 1
