"""Adding to a prepared set what is new in its source: the bytes of a fresh run, less work."""

import os
import shutil

import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.errors import UserError

SMALL = PrepareSettings(size=32)


def content(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "items.key"}


def updated_and_fresh(tree, tmp_path, **settings):
    chosen = SelectionSettings(**settings)
    updated = prepare(tree, tmp_path / "o", SMALL, update=True, selection=chosen, workers=1)
    fresh = prepare(tree, tmp_path / "fresh", SMALL, selection=chosen, workers=1)
    return updated, fresh


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


def test_a_source_that_grew_gives_the_bytes_of_a_fresh_run(grown, tmp_path):
    updated, fresh = updated_and_fresh(grown.root, tmp_path)
    assert updated.images["image_id"].tolist() == ["a", "b", "d", "e"]
    assert content(updated.folder) == content(fresh.folder)


def test_what_was_mended_in_a_copied_image_is_counted_as_in_a_fresh_run(grown, tmp_path):
    """A DICOM file without HighBit, as CheXpert Plus has them, means one thing alone."""
    from pydicom import dcmread

    path = grown.image("b")
    dataset = dcmread(path)
    del dataset.HighBit
    dataset.save_as(path)
    before = prepare(grown.root, tmp_path / "o", SMALL, overwrite=True, workers=1)
    grown.report("104").write_text(" IMPRESSION: Right effusion. ___.\n")
    updated, fresh = updated_and_fresh(grown.root, tmp_path)
    counted = {"step": "image is read though HighBit is missing", "kept": 1, "dropped": 0}
    for made in (before, updated, fresh):
        assert counted | {"unit": "images"} in made.funnel
    assert content(updated.folder) == content(fresh.folder)


def test_unchanged_images_are_copied_and_not_decoded(grown, tmp_path):
    """A file whose size and time of change are the old ones is not even opened."""
    path = grown.image("d")
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    updated = prepare(grown.root, tmp_path / "o", SMALL, update=True, workers=2)
    assert updated.images["image_id"].tolist() == ["a", "b", "d", "e"]
    assert updated.meta["counts"]["rejected"] == 0


def test_a_row_that_was_damaged_since_is_read_again_and_told(grown, tmp_path):
    """Copied as it lies there, it would get a hash of its own and pass every later check."""
    with (tmp_path / "o" / "images.bin").open("r+b") as file:
        file.seek(SMALL.size**2)
        file.write(b"\xff" * SMALL.size**2)
    said = []
    updated = prepare(grown.root, tmp_path / "o", SMALL, update=True, workers=1, say=said.append)
    fresh = prepare(grown.root, tmp_path / "fresh", SMALL, workers=1)
    assert any("images.bin: 1 of its rows were not what was prepared" in line for line in said)
    assert content(updated.folder) == content(fresh.folder)


def test_changed_images_and_reports_are_read_again(grown, tmp_path):
    shutil.copy(grown.image("e"), grown.image("d").with_suffix(".dcm"))
    grown.image("d").with_suffix(".jpg").unlink(missing_ok=True)
    grown.report("102").write_text(" IMPRESSION: Right effusion. ___.\n")
    updated, fresh = updated_and_fresh(grown.root, tmp_path)
    assert "Right effusion." in updated.texts
    assert content(updated.folder) == content(fresh.folder)


def test_what_left_the_source_leaves_the_set(grown, tmp_path):
    grown.image("d").unlink()
    updated, fresh = updated_and_fresh(grown.root, tmp_path)
    assert "d" not in set(updated.images["image_id"])
    assert content(updated.folder) == content(fresh.folder)


def test_another_selection_may_reuse_the_rows(grown, tmp_path):
    updated, fresh = updated_and_fresh(grown.root, tmp_path, views=("PA",))
    assert updated.images["image_id"].tolist() == ["b", "e"]
    assert content(updated.folder) == content(fresh.folder)


def test_a_phantom_updated_twice_stays_the_same(small_phantom, small_prepared, tmp_path):
    out = shutil.copytree(small_prepared, tmp_path / "o")
    again = prepare(small_phantom, out, SMALL, update=True, workers=2)
    assert content(again.folder) == content(small_prepared)


def test_other_settings_are_refused_by_name(grown, tmp_path, capsys):
    words = ["prepare", str(grown.root), str(tmp_path / "o"), "--update", "--size", "48"]
    assert run(words) == 2
    assert "was prepared with size 32, now it is 48" in capsys.readouterr().err


def test_nothing_to_update_is_a_sentence(tiny_tree, tmp_path):
    with pytest.raises(UserError, match="there is no prepared set to update"):
        prepare(tiny_tree.root, tmp_path / "o", SMALL, update=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mimic"]
