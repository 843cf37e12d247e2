"""Triplets of a phantom: the original is true, the negated one false, nothing else changes."""

from __future__ import annotations

import pandas as pd
import pytest

from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.reports import report_sentences
from medclip_debias.errors import UserError
from medclip_debias.evaluation.protocols.report_triplets import read_triplets
from medclip_debias.phantom.catalogue import CLASS_NAMES
from medclip_debias.phantom.truth import agrees, statement_from_json
from phantom_triplets import make_triplets, write_triplets


@pytest.fixture(scope="module")
def made(phantom_tree):
    return make_triplets(phantom_tree)


@pytest.fixture(scope="module")
def truth(phantom_tree):
    """What each study shows, and what each sentence of the phantom states."""
    images = pd.read_parquet(phantom_tree / "truth" / "images.parquet").astype({"study_id": str})
    said = pd.read_parquet(phantom_tree / "truth" / "sentences.parquet")
    shown = {
        row["study_id"]: [name for name in CLASS_NAMES if row[name]] for _, row in images.iterrows()
    }
    return shown, dict(zip(said["text"], map(statement_from_json, said["statement"]), strict=True))


def sentences(text):
    return [sentence for _, sentence in report_sentences(text).sentences]


def test_only_the_negated_finding_changes(made, truth, phantom_tree):
    shown, states = truth
    said = pd.read_parquet(phantom_tree / "truth" / "sentences.parquet")["study_id"]
    both = shown.keys() & set(said.astype(str))
    assert 5 < len(made.table) == len(both) - made.without_finding - made.nothing_left
    for row in made.table.itertuples():
        original, negated, omitted = (
            sentences(text) for text in (row.original, row.negated, row.omitted)
        )
        assert all(agrees(states[text], shown[row.study_id]) for text in original)
        assert any(name.startswith(row.finding) for name in shown[row.study_id])
        assert set(omitted) < set(original)
        for gone in set(original) - set(omitted):
            assert {c.finding for c in states[gone].clauses} == {row.finding}
        (new,) = set(negated) - set(omitted)
        assert new not in original
        if new in states:
            assert not agrees(states[new], shown[row.study_id])
            assert {(c.finding, c.present) for c in states[new].clauses} == {(row.finding, False)}


def test_equal_seeds_write_equal_tables(made, phantom_tree, tmp_path):
    write_triplets(phantom_tree, tmp_path / "triplets.csv")
    written = pd.read_csv(tmp_path / "triplets.csv", dtype=str)
    pd.testing.assert_frame_equal(written, made.table, check_dtype=False)
    other = make_triplets(phantom_tree, seed=1).table
    assert not other.equals(made.table)
    with pytest.raises(UserError, match="holds no truth"):
        write_triplets(tmp_path, tmp_path / "no.csv")


def test_the_table_fits_the_prepared_phantom(made, prepared_phantom, phantom_tree, tmp_path):
    write_triplets(phantom_tree, tmp_path / "triplets.csv")
    data = PreparedSet.open(prepared_phantom)
    kept, source = read_triplets(tmp_path / "triplets.csv", data, "test")
    assert source["rows"] == len(made.table)
    assert (source["without_sentence"], source["unchanged"]) == (0, 0)
    by_study = made.table.set_index("study_id")
    for triplet in kept:
        study = str(data.images["study_id"].iloc[triplet.row])
        assert triplet.texts == tuple(by_study.loc[study, ["original", "negated", "omitted"]])
    splits = {str(data.images["split"].iloc[triplet.row]) for triplet in kept}
    assert splits <= {"test", "held_out"}
