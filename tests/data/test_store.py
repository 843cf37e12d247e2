"""Opening prepared sets, whole and damaged, and their scores."""

import hashlib
import os

import numpy as np
import pandas as pd
import pytest

from medclip_debias.data.layout import manifest_hash
from medclip_debias.data.store import PreparedSet, write_scores
from medclip_debias.errors import UserError


def test_tables_fit_together_and_pixels_are_a_read_only_map(folder):
    prepared = PreparedSet.open(folder)
    assert prepared.pixels.shape == (len(prepared), prepared.settings.size, prepared.settings.size)
    assert len(prepared.images) == len(prepared)
    with pytest.raises(ValueError, match="read-only"):
        prepared.pixels[0] = 0
    assert set(prepared.images["study_id"]) == set(prepared.studies["study_id"])
    assert set(prepared.sentences["study_id"]) == set(prepared.studies["study_id"])
    assert set(prepared.phrases["image_id"]) <= set(prepared.images["image_id"])
    assert all(len(box) == 4 for boxes in prepared.phrases["boxes"] for box in boxes)


def test_a_set_without_masks_has_none_and_a_damaged_mask_is_named_by_its_row(folder):
    assert PreparedSet.open(folder).masks == {}
    table = pd.read_parquet(folder / "phrases.parquet")
    assert "mask" not in table.columns
    for cell in ('{"size":[2,3],"counts":"7"}', "x"):
        table.assign(mask=["", cell, *[""] * (len(table) - 2)]).to_parquet(
            folder / "phrases.parquet"
        )
        with pytest.raises(UserError, match=r"phrases\.parquet, row 1: its mask .*'prepare' again"):
            _ = PreparedSet.open(folder).masks


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: os.truncate(folder / "images.bin", 1000), "has 1000 bytes where"),
        (
            lambda folder: (folder / "meta.json").write_text('{"format_version": 99}'),
            "format version 99, this program reads version 1",
        ),
        (lambda folder: (folder / "phrases.parquet").unlink(), "this file of the prepared set is"),
    ],
)
def test_what_is_no_prepared_set_is_refused(folder, damage, sentence):
    damage(folder)
    with pytest.raises(UserError, match=sentence):
        PreparedSet.open(folder)


def test_opening_reads_no_table(folder):
    """Every table is replaced by rubbish: opening looks at sizes and at meta.json alone."""
    count = len(PreparedSet.open(folder))
    for path in folder.glob("*.parquet"):
        path.write_bytes(b"rubbish")
    assert len(PreparedSet.open(folder)) == count


class TestManifest:
    def test_it_names_every_row_by_its_pixels_and_its_text(self, folder):
        prepared = PreparedSet.open(folder)
        manifest = pd.read_parquet(folder / "manifest.parquet")
        assert manifest["image_id"].tolist() == prepared.images["image_id"].tolist()
        assert manifest["split"].tolist() == prepared.images["split"].tolist()
        assert manifest["row"].tolist() == list(range(len(prepared)))
        for row in range(0, len(prepared), 13):
            digest = hashlib.sha256(prepared.pixels[row].tobytes()).hexdigest()
            assert digest.startswith(manifest["pixel_hash"][row])
        same_text = manifest.groupby("study_id")["text_hash"].nunique()
        assert (same_text == 1).all()

    def test_its_hash_follows_every_column(self, folder):
        manifest = pd.read_parquet(folder / "manifest.parquet")
        hashes = {manifest_hash(manifest), PreparedSet.open(folder).meta["manifest_hash"]}
        assert len(hashes) == 1
        for column in manifest.columns:
            changed = manifest.copy()
            changed.loc[3, column] = 10**6 if column == "row" else "other"
            hashes.add(manifest_hash(changed))
        hashes.add(manifest_hash(manifest.iloc[::-1]))
        assert len(hashes) == 2 + len(manifest.columns)


def test_scores_come_back_by_sentence_and_those_that_do_not_fit_are_refused(folder):
    prepared = PreparedSet.open(folder)

    def write(texts):
        values = -np.arange(1.0, len(texts) + 1)
        write_scores(folder, texts, values, np.full(len(texts), 5), "abc")

    with pytest.raises(UserError, match="have no scores yet; run 'score"):
        prepared.scores()
    write(prepared.texts)
    scores = PreparedSet.open(folder).scores("abc")
    assert scores[prepared.texts[2]] == -3
    assert len(scores) == prepared.sentences["text"].nunique()
    assert PreparedSet.open(folder).content_hash == prepared.content_hash
    with pytest.raises(UserError, match="come from the language model abc, not from xyz"):
        prepared.scores("xyz")
    write(prepared.texts[1:])
    with pytest.raises(UserError, match="1 sentences of the set have no score"):
        prepared.scores()
    with pytest.raises(ValueError, match="finite"):
        write_scores(folder, ["a"], [float("-inf")], [1], "abc")
