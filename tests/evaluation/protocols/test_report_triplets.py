"""Triplets: read in both forms, scored as a loop does, refused when they do not fit."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.evaluation.evaluate import headline
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocols.report_triplets import read_triplets, triplet_hits
from medclip_debias.models.dual_encoder import DualEncoder

SIZE, INPUT = 48, 40  # of the set and the model of conftest.py
REPORT = "Pulmonary edema. Mild edema. Small pneumothorax."
NEGATED = "Pulmonary edema. Mild edema. No pneumothorax."
OMITTED = "Pulmonary edema. Mild edema."
OTHER = "Findings suggesting pneumonia. Mild edema."


def write(path, names):
    """Triplets of the images ``names``, half of them about another finding."""
    kinds = ("original", "negated", "omitted")
    texts = (REPORT, NEGATED, OMITTED), (OTHER, "No pneumonia. Mild edema.", "Mild edema.")
    rows = {name: dict(zip(kinds, texts[n % 2], strict=True)) for n, name in enumerate(names)}
    if path.suffix == ".json":
        published = {"original": "report", "negated": "negation", "omitted": "omitted"}
        cases = {
            name: {published[kind]: text for kind, text in row.items()} | {"chosen": "edema"}
            for name, row in rows.items()
        }
        path.write_text(json.dumps({"mimic": cases}))
    else:
        pd.DataFrame(rows).T.rename_axis("image_id").to_csv(path)
    return path


def test_both_forms_give_the_same_triplets_and_count_what_is_left_aside(small_prepared, tmp_path):
    names = [*small_prepared.images["image_id"], "i77"]
    kept, source = read_triplets(write(tmp_path / "t.csv", names), small_prepared, "test")
    published, other = read_triplets(write(tmp_path / "t.json", names), small_prepared, "test")
    assert kept == published
    assert {k: v for k, v in source.items() if k not in ("triplets", "hash")} == {
        k: v for k, v in other.items() if k not in ("triplets", "hash")
    }
    splits = small_prepared.images["split"].tolist()
    assert [splits[t.row] != "train" for t in kept] == [True] * 24
    assert (source["rows"], source["rows_not_in_set"]) == (37, 1)
    assert source["images_of_other_splits"] == 12
    assert kept[0].sentences[1] == ("Pulmonary edema.", "Mild edema.", "No pneumothorax.")
    assert REPORT not in repr(kept[0])


def test_a_study_id_names_the_first_of_its_images(small_prepared, tmp_path):
    table = pd.read_csv(write(tmp_path / "t.csv", ["s00", "s01"]), dtype=str)
    table.rename(columns={"image_id": "study_id"}).to_csv(tmp_path / "s.csv", index=False)
    kept, source = read_triplets(tmp_path / "s.csv", small_prepared, "test")
    assert ([t.row for t in kept], source["key"]) == ([0, 1], "study_id")


@given(
    st.lists(
        st.tuples(st.integers(-2, 2), st.integers(-2, 2), st.integers(-2, 2)),
        min_size=1,
        max_size=10,
    )
)
def test_hits_are_those_of_a_loop(rows):
    found = triplet_hits(np.array(rows, dtype=float))
    for place, row in enumerate(rows):
        best = [n for n, score in enumerate(row) if score == max(row)]
        assert found["original_best"][place] == (1 / len(best) if 0 in best else 0)
        for name, other in (("negated", row[1]), ("omitted", row[2])):
            expected = 1 if row[0] > other else 0.5 if row[0] == other else 0
            assert found[f"original_above_{name}"][place] == expected


@pytest.mark.parametrize("how", ["sentences", "whole"])
def test_the_shares_are_those_of_the_models_scores(
    measured, small_prepared, small_model, tmp_path, how
):
    path = write(tmp_path / "t.csv", small_prepared.images["image_id"].tolist())
    options = EvaluationOptions(triplet_reports=how)
    results = measured("triplets", bootstrap=20, triplets=path, options=options)
    kept, _ = read_triplets(path, small_prepared, "test")
    model, hits = DualEncoder.load(small_model), []
    cut = slice((SIZE - INPUT) // 2, (SIZE - INPUT) // 2 + INPUT)
    with torch.no_grad():
        for triplet in kept:
            pixels = torch.from_numpy(small_prepared.pixels[triplet.row, cut, cut].copy())
            regions = model.encode_images(pixels[None]).regions
            values = []
            for text, sentences in zip(triplet.texts, triplet.sentences, strict=True):
                parts = [text] if how == "whole" else list(sentences)
                vectors = model.encode_sentences(parts)
                values.append(model.similarity(regions, vectors)[0].double().mean().item())
            hits.append((values[0] == max(values), values[0] > values[1], values[0] > values[2]))
    names = ("original_best", "original_above_negated", "original_above_omitted")
    shares = [results.value("triplets", name) for name in names]
    assert shares == pytest.approx(np.mean(hits, axis=0).tolist())
    assert results.details("triplets")["images"] == len(kept) == 24
    assert headline(results)["triplets.judged"] == "24 of 36"
    assert all(results.interval("triplets", name) for name in names)
