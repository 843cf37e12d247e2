"""Pictures: one scale for heatmaps, answers of retrieval as a loop finds them, a run's six."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.pictures import one_scale, write_examples
from medclip_debias.evaluation.preview import IMAGES, choose, refuse


def test_the_reference_is_the_percentile_of_the_scores_outside_the_boxes():
    rng = np.random.default_rng(0)
    maps = [rng.uniform(-1, 1, (400, 300)) for _ in range(3)]
    boxes = [[(0, 0, 300, 100)], [(10, 20, 30, 40), (0, 390, 300, 10)], []]
    outside = []
    for heatmap, own in zip(maps, boxes, strict=True):
        keep = np.ones(heatmap.shape, bool)
        for x, y, width, height in own:
            keep[y : y + height, x : x + width] = False
        outside.append(heatmap[keep])
        heatmap[~keep] = 3.0  # the highest scores of all, in a box
    expected = np.mean([np.quantile(scores, 0.95) for scores in outside])  # alike in distribution
    reference, limits = one_scale(zip(maps, boxes, strict=True))
    assert reference == pytest.approx(expected, abs=5e-3)
    assert limits == pytest.approx((0.0, 3.0), abs=2e-2)
    heatmap = np.full((20, 20), np.nan)  # what was not seen counts nowhere
    heatmap[5:15, 5:15] = 0.25
    assert one_scale([(heatmap, [(5, 5, 5, 10)])])[0] == pytest.approx(0.25)
    assert one_scale([(heatmap, [(5, 5, 10, 10)])]) is None


def first_right(scores: np.ndarray, right: np.ndarray) -> int:
    """Rank of the best right answer, scores without ties."""
    return min(1 + sum(scores > scores[n]) for n in np.flatnonzero(right))


def test_queries_and_answers_are_those_of_a_loop(small_prepared, tmp_path):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(9, 7)).astype(np.float32)
    says = np.zeros((9, 7), dtype=bool)
    says[np.arange(9), np.arange(9) % 7] = says[:4, 3] = True
    texts, rows = [f"text {n}" for n in range(7)], list(range(10, 19))
    index = write_examples(tmp_path / "r", small_prepared, rows, texts, says, scores)
    assert index == json.loads((tmp_path / "r" / "index.json").read_text())
    for found, table, right in (
        (index["image_to_sentence"], scores, says),
        (index["sentence_to_image"], scores.T, says.T),
    ):
        ranks = [first_right(*pair) for pair in zip(table, right, strict=True)]
        expected = [min(ranks), sorted(ranks)[(len(ranks) - 1) // 2], max(ranks)]
        assert [each["rank"] for each in found] == expected
        assert [each["case"] for each in found] == ["best", "median", "worst"]
    for each in index["image_to_sentence"]:
        study = next(
            n for n in range(9) if np.isclose(scores[n].max(), each["answers"][0]["score"])
        )
        order = sorted(range(7), key=lambda t: -scores[study, t])[:5]
        assert [a["text"] for a in each["answers"]] == [texts[t] for t in order]
        assert [a["right"] for a in each["answers"]] == [bool(says[study, t]) for t in order]
        own = max(np.flatnonzero(says[study]), key=lambda t: scores[study, t])
        assert each["own"] == texts[own]
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert not any("i1" in name or "text" in name for name in names)  # no id, no words


def test_patients_are_not_shown_unless_it_is_asked_for(prepared_phantom, tmp_path):
    synthetic = PreparedSet.open(prepared_phantom)
    shutil.copytree(prepared_phantom, tmp_path / "real")
    meta = json.loads((tmp_path / "real" / "meta.json").read_text())
    (tmp_path / "real" / "meta.json").write_text(json.dumps(meta | {"synthetic": False}))
    real = PreparedSet.open(tmp_path / "real")
    assert refuse(synthetic, "auto", "image_text") == refuse(real, "on", "image_text") == ""
    assert "train.preview=on shows six" in refuse(real, "auto", "image_text")
    assert "train.preview is off" in refuse(synthetic, "off", "image_text")
    assert "learns no sentences" in refuse(synthetic, "on", "two_view")


def test_the_six_are_of_the_validate_split_and_the_same_each_time(prepared_phantom):
    data = PreparedSet.open(prepared_phantom)
    chosen = choose(data, 64)
    assert len({each.row for each in chosen}) == IMAGES
    assert {data.images["split"].iloc[each.row] for each in chosen} == {"validate"}
    again = choose(PreparedSet.open(prepared_phantom), 64)
    assert [(each.row, each.text) for each in again] == [(each.row, each.text) for each in chosen]
    for each in chosen:
        study = data.images["study_id"].iloc[each.row]
        said = set(data.sentences.loc[data.sentences["study_id"] == study, "text"])
        image = data.images["image_id"].iloc[each.row]
        phrases = data.phrases.loc[data.phrases["image_id"] == image, "text"]
        assert each.text in said | set(phrases)
