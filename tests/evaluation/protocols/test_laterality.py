"""Sentences against their mirror images, counted by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.evaluation.evaluate import headline
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import Request, Skipped
from medclip_debias.evaluation.protocols.laterality import LateralityProtocol, mirrored, sides_of
from medclip_debias.models.load import load_model

WORDS = ["left", "Right", "LEFT", "right-sided", "leftsided", "lung", "bright", "cleft", "upright,"]


@given(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join))
def test_a_mirror_exchanges_the_sides_alone_and_twice_is_the_sentence(sentence):
    assert mirrored(mirrored(sentence)) == sentence
    swap = {"left": "right", "right": "left"}
    assert sides_of(mirrored(sentence)) == {swap[side] for side in sides_of(sentence)}
    others = ("lung", "bright", "cleft", "upright,")
    kept = [word for word in sentence.split() if word in others]
    assert [word for word in mirrored(sentence).split() if word in others] == kept


def test_the_true_side_is_counted_for_each_image_and_sentence(
    small_prepared, small_model, measured, tmp_path
):
    results = measured("laterality", bootstrap=200)
    model = load_model(small_model, torch.device("cpu"))
    images, hits = small_prepared.images, []
    for row in np.flatnonzero(images["split"] == "test"):
        of_study = small_prepared.sentences["study_id"] == images["study_id"].iloc[row]
        (text,) = small_prepared.sentences.loc[of_study, "text"]
        if "eft" not in text and "ight" not in text:
            continue
        other = text.replace("Left", "Right") if "Left" in text else text.replace("Right", "Left")
        with torch.inference_mode():
            pixels = torch.from_numpy(np.asarray(small_prepared.pixels[[row]]))
            features = model.encode_images(pixels)
            own, mirror = model.score(features, model.encode_sentences([text, other]))[0]
        hits.append(float(own > mirror))
    found = results.details("laterality")
    assert 0 < len(hits) == found["sentences"] == found["images"]
    share, (low, high) = (f("laterality", "right_side") for f in (results.value, results.interval))
    assert share == pytest.approx(np.mean(hits))
    assert low <= share <= high
    items = pd.read_parquet(tmp_path / "run" / "items" / "laterality.parquet")
    assert items["right_side"].tolist() == hits
    assert headline(results)["laterality.right_side"].endswith("(chance 0.5)")


@pytest.fixture
def without_sides(small_prepared):
    """A function: what is asked of the set without its reports, with these phrases."""

    def make(phrases):
        data = SimpleNamespace(
            images=small_prepared.images,
            studies=small_prepared.studies,
            sentences=small_prepared.sentences.query("text == 'Pulmonary edema'"),
            frontal=small_prepared.frontal,
            settings=small_prepared.settings,
            phrases=phrases,
            phrase_boxes=phrases.assign(flat=0, outside=0, clipped=0, scaled=0, other_shape=0),
        )
        return LateralityProtocol(Request(data, "test", MODEL, None, EvaluationOptions()))

    return make


MODEL = SimpleNamespace(
    grid=SimpleNamespace(rows=2, columns=2), preprocessing=SimpleNamespace(input_size=32)
)
COLUMNS = ["phrase_id", "image_id", "category", "text", "split", "boxes"]


def test_a_set_that_names_no_side_and_has_no_boxes_on_one_is_skipped(without_sides):
    with pytest.raises(Skipped, match="No report of the split 'test' affirms"):
        without_sides(pd.DataFrame(columns=COLUMNS))


def test_without_reports_findings_with_boxes_on_one_side_are_asked(without_sides, small_prepared):
    """All boxes of a finding of an image together; one in the middle names no side."""
    images = small_prepared.images
    test = images[(images["split"] == "test") & small_prepared.frontal].head(3)
    left, middle, right = (
        [width * part, 1.0, width / 5, 5.0]
        for width, part in zip(test["width"], (0.7, 0.4, 0.1), strict=True)
    )
    names = test["image_id"].tolist()
    rows = [
        ("a", names[0], "Pneumothorax", "Pneumothorax.", "", [left]),
        ("b", names[1], "Pneumothorax", "Pneumothorax.", "", [middle]),
        ("c", names[2], "Mass", "Mass.", "", [right]),
        ("d", names[0], "Mass", "Mass.", "", [left]),
        ("e", names[0], "Mass", "Mass.", "", [[0.0, 1.0, 3.0, 5.0]]),
        ("f", names[2], "Thing", "Thing.", "", [right]),
    ]
    asked = without_sides(pd.DataFrame(rows, columns=COLUMNS))
    said = {"There is left pneumothorax.": test.index[0], "There is right mass.": test.index[2]}
    assert {text for text in asked.texts if asked.rows} == {*said, *map(mirrored, said)}
    assert asked.rows == set(said.values())
    assert asked._left_aside == {"both_sides": 2, "without_words": 1}
