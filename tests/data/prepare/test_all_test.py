"""`--all-test`: every image is test, whatever the source's split, and who was moved is counted."""

from pathlib import Path

import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import Reading, merge, prepare, prepare_part
from medclip_debias.errors import UserError

SETTINGS = PrepareSettings(size=32)


def test_every_image_is_test_and_patients_are_counted(tiny_tree, tmp_path):
    how = {"reading": Reading(all_test=True), "workers": 1}
    tested = prepare(tiny_tree.root, tmp_path / "set", SETTINGS, **how)
    assert set(tested.images["split"]) == set(tested.studies["split"]) == {"test"}
    rows = {(row["step"], row["unit"]): row for row in tested.funnel}
    assert rows["is test (--all-test)", "images"]["kept"] == 5
    assert rows["is test (--all-test)", "patients"]["kept"] == 4
    before = rows["was test by the source's split", "patients of test"]
    assert (before["kept"], before["dropped"]) == (1, 3)
    parts = [tmp_path / f"part{i}" for i in (1, 2)]
    for number, part in enumerate(parts, 1):
        prepare_part(tiny_tree.root, part, SETTINGS, f"{number}/2", **how)
    assert merge(parts, tmp_path / "merged").content_hash == tested.content_hash
    reports = Reading(all_test=True, text_only=True)
    alone = prepare(tiny_tree.root, tmp_path / "text", SETTINGS, reading=reports, workers=1)
    assert set(alone.studies["split"]) == {"test"}


@pytest.mark.parametrize("other", [{"split_seed": 1}, {"split_file": Path("split.csv")}])
def test_another_split_beside_it_is_refused(other):
    with pytest.raises(UserError, match=r"--all-test and --split-(seed|file) do not go together"):
        Reading(all_test=True, **other)
