"""The shown queries and answers are those that a loop over all scores finds."""

from __future__ import annotations

import json

import numpy as np
from PIL import Image

from medclip_debias.evaluation.retrieval_examples import write_examples


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
        picture = Image.open(tmp_path / "r" / each["file"])
        height, width = small_prepared.images.loc[rows[study], ["height", "width"]]
        assert abs(picture.width / picture.height - width / height) < 0.06
    names = {path.name for path in (tmp_path / "r").iterdir()}
    assert not any("i1" in name or "text" in name for name in names)  # no id, no words
