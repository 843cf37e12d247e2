"""`evaluate` with presets: what it adds, and that it changes nothing of our own."""

from __future__ import annotations

import pandas as pd
import pytest

from medclip_debias.evaluation.evaluate import EvaluationOptions, headline
from medclip_debias.evaluation.presets import preset_names
from medclip_debias.evaluation.presets.retrieval import whole_texts
from medclip_debias.evaluation.table import checked


@pytest.fixture(scope="module")
def both(evaluated, evaluate_all, small_model, tmp_path_factory):
    """Results without presets and, of batches of another size, with all of them."""
    out = tmp_path_factory.mktemp("presets")
    options = EvaluationOptions(preset="all")
    return evaluated[0], evaluate_all(
        small_model, out=out, bootstrap=0, heatmaps=0, options=options
    )


def test_presets_stand_beside_our_own_metrics_and_change_none(both):
    plain, added = both
    assert checked(dict(added), "results") == added
    assert list(added["presets"]) == list(preset_names()[1:])
    assert "presets" not in plain
    own, before = (
        {tuple(row[k] for k in ("protocol", "metric", "class", "group")): row for row in found}
        for found in (added["metrics"], plain["metrics"])
    )
    assert before.keys() == {place for place in own if not str(place[3]).startswith("preset ")}
    for place, row in before.items():
        # More sentences are scored at once, and a product of another size may round otherwise.
        assert own[place]["value"] == pytest.approx(row["value"], rel=1e-5, abs=1e-6), place
        assert own[place]["n"] == row["n"]
    shown = headline(added)
    assert "miou" in shown["presets.afloc.grounding"]
    (reported,) = [line for line in added.preset_lines() if line[0] == "afloc"]
    assert reported[1] == "grounding"
    miou = added.of("presets.afloc.grounding.miou")["value"]
    assert f"miou {miou:.3f}" in reported[2]
    # One prompt a side: the order of images is that of our own scores.
    for name in ("biovil", "chexzero"):
        found = added.value("zero_shot", "auc", "Edema", f"preset {name}")
        assert found == pytest.approx(plain.value("zero_shot", "auc", "Edema"))
    # The set has no validate split.
    assert "no_threshold" in added["presets"]["chexzero"]["zero_shot"]


def test_grounding_counts_its_own_phrases(both):
    found, own = both[1]["presets"], both[1].details("grounding")
    total = own["phrases"] + own["not_groundable"]
    for name in ("afloc", "biovil", "radzero"):
        assert found[name]["grounding"]["of_phrases"] == total
    assert found["biovil"]["grounding"]["phrases"] == total
    assert found["radzero"]["grounding"]["phrases"] == 0  # two phrases on every image
    assert "grounding" not in found["gloria"]
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
