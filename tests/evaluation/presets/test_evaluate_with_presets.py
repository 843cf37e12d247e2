"""`evaluate` with presets: what it adds, and that it changes nothing of our own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from medclip_debias.data.prompts import load_prompts
from medclip_debias.evaluation.evaluate import EvaluationOptions, headline
from medclip_debias.evaluation.presets import preset_names
from medclip_debias.evaluation.presets.retrieval import whole_texts
from medclip_debias.evaluation.table import checked
from medclip_debias.models.dual_encoder import DualEncoder


@pytest.fixture(scope="module")
def both(evaluated, evaluate_all, small_model, tmp_path_factory):
    """Results without presets and, of batches of another size, with all of them."""
    out = tmp_path_factory.mktemp("presets")
    options = EvaluationOptions(preset="all")
    added = evaluate_all(small_model, out=out, bootstrap=100, heatmaps=0, options=options)
    assert not (out / "heatmaps").exists()
    return evaluated[0], added


def alike(one: Any, other: Any) -> bool:
    """Whether JSON values are the same, with numbers to a millionth."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-5, abs=1e-6, nan_ok=True)
    return bool(one == other)


def test_presets_stand_beside_our_own_metrics_and_change_none(both):
    plain, added = both
    assert checked(dict(added), "results") == added
    assert list(added["presets"]) == list(preset_names()[1:])
    own = [row for row in added["metrics"] if not str(row["group"]).startswith("preset ")]
    parts = {part: added[part] for part in ("details", "skipped", "options")} | {"metrics": own}
    for part, content in parts.items():
        # More sentences are scored at once, and a product of another size may round otherwise.
        assert alike(content, plain[part]), part
    assert "presets" not in plain
    shown = headline(added)
    assert "miou" in shown["presets.afloc.grounding"]
    assert not any(key.startswith("presets") for key in headline(plain))
    (reported,) = [line for line in added.preset_lines() if line[0] == "afloc"]
    assert reported[1] == "grounding"
    miou = added.of("presets.afloc.grounding.miou")["value"]
    assert f"miou {miou:.3f}" in reported[2]
    assert list(plain.preset_lines()) == []


def test_a_side_of_several_prompts_is_one_vector_that_the_model_scores(
    both, small_prepared, small_model
):
    model, prompts = DualEncoder.load(small_model), load_prompts("chex5")
    rows = [r for r, name in enumerate(small_prepared.images["split"]) if name == "test"]
    cut = slice(4, 44)
    pixels = np.stack([small_prepared.pixels[row, cut, cut] for row in rows])
    sides = prompts.classes["Edema"]
    with torch.no_grad():
        features = model.encode_images(torch.from_numpy(pixels))
        vectors = [
            torch.nn.functional.normalize(model.encode_sentences(list(side)).mean(0), dim=0)
            for side in (sides.positive, sides.negative)
        ]
        scores = model.score(features, torch.stack(vectors)).double().numpy()
    table = small_prepared.studies.set_index("study_id")["Edema"]
    labels = [table[study] for study in small_prepared.images["study_id"].iloc[rows]]
    found = both[1]
    expected = roc_auc_score(labels, scores[:, 0] - scores[:, 1])
    assert found.value("zero_shot", "auc", "Edema", "preset biovil") == pytest.approx(expected)
    # The same order of images: a softmax over two is monotonic in their difference.
    assert found.value("zero_shot", "auc", "Edema", "preset chexzero") == pytest.approx(expected)
    # The set has no validate split.
    assert "no_threshold" in found["presets"]["chexzero"]["zero_shot"]


def test_grounding_counts_its_own_phrases(both):
    found, own = both[1]["presets"], both[1].details("grounding")
    total = own["phrases"] + own["not_groundable"]
    for name in ("afloc", "biovil", "radzero"):
        assert found[name]["grounding"]["of_phrases"] == total
    assert found["biovil"]["grounding"]["phrases"] == total
    assert found["radzero"]["grounding"]["phrases"] == 0  # two phrases on every image
    assert "grounding" not in found["gloria"]
    place = "preset afloc, category: Edema"
    overlaps = [
        row["value"]
        for row in both[1]["metrics"]
        if str(row["group"]).startswith(f"{place}, threshold ")
    ]
    assert np.mean(overlaps) == pytest.approx(both[1].value("grounding", "miou", None, place))
    studies = both[1].details("study_retrieval")["studies"]
    assert found["cxr_clip"]["study_retrieval"]["images"] == studies
    assert found["gloria"]["study_retrieval"]["reason"] == "no study has such a section"


def test_the_longest_section_is_one_text_in_its_order():
    from medclip_debias.evaluation.presets import load_preset

    table = pd.DataFrame(
        [
            ("s1", "findings", 1, "Clear."),
            ("s1", "findings", 0, "Heart normal."),
            ("s1", "impression", 2, "Normal."),
            ("s2", "impression", 0, "No acute disease."),
            ("s3", "history", 0, "A very long history of something."),
        ],
        columns=["study_id", "section", "position", "text"],
    )
    rule = load_preset("cxr_clip").retrieval
    found = whole_texts(rule, table, ["s1", "s2", "s3"])
    assert found == {"s1": "Heart normal. Clear.", "s2": "No acute disease."}
    alone = whole_texts(load_preset("gloria").retrieval, table, ["s1"])
    assert alone == {"s1": "Normal."}
