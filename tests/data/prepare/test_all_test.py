"""`--all-test`: every image is test, whatever the source's split, and who was moved is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import Reading, prepare, prepare_part
from medclip_debias.data.prepare.shards import merge
from medclip_debias.errors import UserError

SETTINGS = PrepareSettings(size=32)


def test_every_image_is_test_and_patients_are_counted(tiny_tree, tmp_path):
    reading = Reading(all_test=True)
    found = prepare(tiny_tree.root, tmp_path / "set", SETTINGS, reading=reading, workers=1)
    assert set(found.images["split"]) == set(found.studies["split"]) == {"test"}
    rows = {(row["step"], row["unit"]): row for row in found.funnel}
    assert rows["is test (--all-test)", "images"]["kept"] == 5
    assert rows["is test (--all-test)", "patients"]["kept"] == 4
    before = rows["was test by the source's split", "patients of test"]
    assert (before["kept"], before["dropped"]) == (1, 3)
    own = prepare(tiny_tree.root, tmp_path / "own", SETTINGS, workers=1)
    assert {"validate", "test"} < set(own.images["split"])
    assert len(found) == len(own)
    assert "all_test" not in own.meta["options"]
    # Shards too, to the same bytes.
    parts = [tmp_path / f"part{i}" for i in (1, 2)]
    for number, part in enumerate(parts, 1):
        prepare_part(tiny_tree.root, part, SETTINGS, f"{number}/2", reading=reading, workers=1)
    assert merge(parts, tmp_path / "merged").content_hash == found.content_hash


def test_text_alone_is_all_test_too(tiny_tree, tmp_path):
    reading = Reading(all_test=True, text_only=True)
    found = prepare(tiny_tree.root, tmp_path / "set", SETTINGS, reading=reading, workers=1)
    assert set(found.studies["split"]) == {"test"}


@pytest.mark.parametrize("other", [{"split_seed": 1}, {"split_file": Path("split.csv")}])
def test_another_split_beside_it_is_refused(other):
    with pytest.raises(UserError, match=r"--all-test and --split-(seed|file) do not go together"):
        Reading(all_test=True, **other)
