"""Data that changed in place, under an unchanged ``meta.json``, is seen and named."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from medclip_debias.cli import run
from medclip_debias.data import verify
from medclip_debias.data.layout import MANIFEST, TABLES
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.verify import HASHES, changes, check_sample
from medclip_debias.errors import UserError


def test_a_set_whose_hashes_were_taken_away_does_not(folder):
    meta = json.loads((folder / "meta.json").read_text())
    del meta[HASHES]
    (folder / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match=r"meta\.json: has no hashes .* run 'prepare' again"):
        check_sample(PreparedSet.open(folder))


@pytest.mark.parametrize("row", [0, -1])
def test_a_changed_first_or_last_row_of_pixels_is_seen_at_any_start(folder, row):
    prepared = PreparedSet.open(folder)
    row %= len(prepared)
    pixels = np.memmap(folder / "images.bin", np.uint8, "r+").reshape(len(prepared), -1)
    pixels[row, 5] ^= 1
    with pytest.raises(UserError, match=rf"images\.bin: was changed .* the first is row {row};"):
        check_sample(prepared)
    (reported,) = changes(prepared)
    assert f"1 of {len(prepared)} rows" in reported
    assert f"row {row}" in reported


def test_of_a_whole_set_all_rows_are_looked_at_in_the_end_and_few_at_a_start(folder, monkeypatch):
    prepared = PreparedSet.open(folder)
    seen = set()
    whole = verify._bytes
    monkeypatch.setattr(verify, "_bytes", lambda of, row: seen.add(row) or whole(of, row))
    check_sample(prepared)
    assert 1 < len(seen) <= verify.SAMPLE
    reported = []
    assert changes(prepared, lambda done, rows: reported.append((done, rows))) == []
    assert seen == set(range(len(prepared)))
    assert reported[-1] == (len(prepared), len(prepared))


@pytest.mark.parametrize("name", [*(f"{name}.parquet" for name in TABLES), MANIFEST])
def test_a_table_that_was_exchanged_is_named(folder, name):
    table = pd.read_parquet(folder / name)
    table.iloc[::-1].to_parquet(folder / name, index=False)
    sentence = rf"{name}: (was changed|does not list)"
    with pytest.raises(UserError, match=sentence):
        check_sample(PreparedSet.open(folder))


def test_neither_scores_nor_a_language_model_are_made_of_a_changed_set(folder, capsys, tmp_path):
    table = pd.read_parquet(folder / "sentences.parquet")
    table["text"] = table["text"].to_numpy()[::-1]
    table.to_parquet(folder / "sentences.parquet", index=False)
    words = ["score", str(folder), "--language-model", str(tmp_path / "lm")]
    for verb in (words, ["language-model", str(folder), str(tmp_path / "lm")]):
        assert run(verb) == 2
        assert (
            "sentences.parquet: was changed under an unchanged meta.json" in capsys.readouterr().err
        )
    assert not (folder / "scores.json").exists()
