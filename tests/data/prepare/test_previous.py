"""Adding to a prepared set what is new in its source: the bytes of a fresh run, less work."""

import os
import shutil

import pytest
from pydicom import dcmread

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.errors import UserError
from tests.data.set_files import set_files

SMALL = PrepareSettings(size=32)


@pytest.fixture
def grown(tiny_tree, tmp_path):
    """A tree that was prepared without images a and e, which are there now."""
    names = {name: tiny_tree.image(name) for name in "ae"}
    for name, path in names.items():
        path.rename(tmp_path / name)
    prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1)
    for name, path in names.items():
        (tmp_path / name).rename(path)
    return tiny_tree


def updated(tree, tmp_path, say=None, **selection):
    """The updated set, which holds the bytes of a fresh one."""
    how = {"selection": SelectionSettings(**selection), "workers": 1}
    made = prepare(tree.root, tmp_path / "o", SMALL, update=True, say=say or [].append, **how)
    fresh = prepare(tree.root, tmp_path / "fresh", SMALL, **how)
    assert set_files(made.folder) == set_files(fresh.folder)
    return made


@pytest.mark.parametrize(
    ("change", "selection", "images"),
    [
        (lambda tree: None, {}, "abde"),
        (lambda tree: None, {"views": ("PA",)}, "be"),
        (lambda tree: tree.image("d").unlink(), {}, "abe"),
        (lambda tree: shutil.copy(tree.image("e"), tree.image("d")), {}, "abde"),
    ],
    ids=["grown", "another selection", "an image is gone", "an image is another"],
)
def test_an_updated_set_has_the_bytes_of_a_fresh_one(grown, tmp_path, change, selection, images):
    change(grown)
    grown.report("102").write_text(" IMPRESSION: Right effusion. ___.\n")
    made = updated(grown, tmp_path, **selection)
    assert "".join(made.images["image_id"]) == images
    assert "Right effusion." in made.texts


def test_what_was_mended_in_a_copied_image_is_counted_as_in_a_fresh_run(grown, tmp_path):
    """A DICOM file without HighBit, as CheXpert Plus has them, means one thing alone."""
    path = grown.image("b")
    dataset = dcmread(path)
    del dataset.HighBit
    dataset.save_as(path)
    before = prepare(grown.root, tmp_path / "o", SMALL, overwrite=True, workers=1)
    grown.report("104").write_text(" IMPRESSION: Right effusion. ___.\n")
    counted = {"step": "image is read though HighBit is missing", "kept": 1, "dropped": 0}
    for made in (before, updated(grown, tmp_path)):
        assert counted | {"unit": "images"} in made.funnel


def test_unchanged_images_are_copied_and_not_decoded(grown, tmp_path):
    """A file whose size and time of change are the old ones is not even opened."""
    path = grown.image("d")
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    made = prepare(grown.root, tmp_path / "o", SMALL, update=True, workers=2)
    assert made.images["image_id"].tolist() == ["a", "b", "d", "e"]
    assert made.meta["counts"]["rejected"] == 0


def test_a_row_that_was_damaged_since_is_read_again_and_told(grown, tmp_path):
    """Copied as it lies there, it would get a hash of its own and pass every later check."""
    with (tmp_path / "o" / "images.bin").open("r+b") as file:
        file.seek(SMALL.size**2)
        file.write(b"\xff" * SMALL.size**2)
    lines = []
    updated(grown, tmp_path, lines.append)
    assert any("images.bin: 1 of its rows were not what was prepared" in line for line in lines)


def test_other_settings_and_no_set_are_refused(grown, tmp_path, capsys):
    words = ["prepare", str(grown.root), str(tmp_path / "o"), "--update", "--size", "48"]
    assert run(words) == 2
    assert "was prepared with size 32, now it is 48" in capsys.readouterr().err
    with pytest.raises(UserError, match="there is no prepared set to update"):
        prepare(grown.root, tmp_path / "none", SMALL, update=True)
    assert not list(tmp_path.glob("none*"))
