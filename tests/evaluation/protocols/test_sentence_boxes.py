"""Boxes for sentences that may not be there: every metric by loops, and the protocol on a set."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from medclip_debias.data.prompts import load_prompts
from medclip_debias.errors import UserError
from medclip_debias.evaluation.encoding import Network, encode
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import Draw, Request
from medclip_debias.evaluation.protocols.sentence_boxes import (
    SentenceBoxes,
    average_precision,
    hits_in_order,
    one_to_one,
    sentence_statistics,
)
from medclip_debias.grounding.boxes import overlaps
from medclip_debias.grounding.settings import SuppressionRule
from medclip_debias.grounding.suppression import save_rule
from medclip_debias.models.load import load_model


def items(count=80, seed=0):
    rng = np.random.default_rng(seed)
    kind = rng.choice(["boxed", "denial", "elsewhere"], count)
    there = kind == "boxed"
    truths = np.where(there, rng.integers(1, 4, count), 0)
    found = rng.integers(0, 5, count)
    hits = np.minimum(truths, rng.integers(0, 5, count).clip(max=found))
    return pd.DataFrame(
        {
            "kind": kind,
            "there": there,
            "kept": (rng.random(count) < 0.6).astype(float),
            "evidence": rng.normal(size=count) + there,
            "truths": truths,
            "found": found,
            "hits_0.3": hits,
            "hits_0.5": hits // 2,
        }
    )


def test_every_metric_is_what_a_loop_over_repeated_sentences_counts():
    table = items()
    weights = np.random.default_rng(1).integers(0, 3, (2, len(table))).astype(float)
    weights[0] = 1
    result = sentence_statistics(table)(weights)
    for number, w in enumerate(weights):
        rows = [row for row, n in zip(table.itertuples(), w, strict=True) for _ in range(int(n))]
        for prefix, flags in (("", [r.kept for r in rows]), ("without_suppression/", None)):
            kept = flags or [1.0] * len(rows)
            answered = sum(r.found for r, k in zip(rows, kept, strict=True) if k)
            hits = sum(r[8] for r, k in zip([tuple(r) for r in rows], kept, strict=True) if k)
            total = sum(r.truths for r in rows)
            precision, recall = hits / answered, hits / total
            assert result[f"{prefix}box_precision_0.5"][number] == pytest.approx(precision)
            assert result[f"{prefix}box_recall_0.5"][number] == pytest.approx(recall)
            f1 = 2 * precision * recall / (precision + recall)
            assert result[f"{prefix}box_f1_0.5"][number] == pytest.approx(f1)
        dropped = [not r.kept for r in rows]
        absent = [not r.there for r in rows]
        assert result["suppression_f1"][number] == pytest.approx(f1_score(absent, dropped))
        for kind in ("denial", "elsewhere"):
            own = [d for d, r in zip(dropped, rows, strict=True) if r.kind == kind]
            assert result[f"specificity_{kind}"][number] == pytest.approx(np.mean(own))
        own = [d for d, a in zip(dropped, absent, strict=True) if a]
        assert result["specificity"][number] == pytest.approx(np.mean(own))
        own = [not d for d, a in zip(dropped, absent, strict=True) if not a]
        assert result["kept"][number] == pytest.approx(np.mean(own))
        judged = [r for r in rows if r.kind != "denial"]
        area = roc_auc_score([r.there for r in judged], [r.evidence for r in judged])
        assert result["presence_auc"][number] == pytest.approx(area)
    lost = result["without_suppression/box_recall_0.3"] - result["box_recall_0.3"]
    np.testing.assert_allclose(result["recall_loss_0.3"], lost)


@pytest.fixture(scope="module")
def model(small_model):
    return load_model(small_model)


def run(model, data, folder=None, **options):
    request = Request(
        data,
        "test",
        model,
        load_prompts("chex5"),
        EvaluationOptions(**options),
        model_folder=folder,
    )
    planned = SentenceBoxes(request)
    encode(model, Network(model, data), [planned], batch_size=8)
    return planned.measure(Draw(0))


def test_without_validation_images_words_alone_withhold_and_the_results_say_so(
    model, small_prepared
):
    found = run(model, small_prepared)
    assert found.details["rule"]["evidence"] is None
    assert "validate" in found.details["rule"]["chosen"]["reason"]
    assert found.value("kept") == 1
    assert found.value("recall_loss_0.3") == 0
    assert found.value("specificity_elsewhere") == 0
    assert not found.items["id"].str.contains("dema").any()  # no words in tables


def test_a_kept_rule_withholds_by_the_image_and_a_higher_threshold_withholds_more(
    model, small_prepared, tmp_path
):
    with pytest.raises(UserError, match="medclip-debias evaluate suppression"):
        run(model, small_prepared, tmp_path, suppression_from="model")
    threshold, kept = -2.0, []
    for _ in range(2):
        rule = {"evidence": "score", "threshold": threshold, "slope": 1.0}
        save_rule(tmp_path, SuppressionRule(**rule, model_hash=model.content_hash))
        found = run(model, small_prepared, tmp_path, suppression_from="model").items
        kept.append(found["kept"])
        threshold = float(found["evidence"].median())
    assert kept[0].sum() > kept[1].sum() > 0
    assert (kept[0] >= kept[1]).all()


# --------------------------------------------------------------------------------- boxes one to one


box = st.tuples(*[st.integers(0, 6)] * 2, *[st.integers(1, 6)] * 2)
boxes = st.lists(box, max_size=5)


def iou(a, b):
    """IoU of two boxes by counting unit squares."""
    cells = [
        {(x, y) for x in range(one[0], one[0] + one[2]) for y in range(one[1], one[1] + one[3])}
        for one in (a, b)
    ]
    return len(cells[0] & cells[1]) / len(cells[0] | cells[1])


@given(boxes, boxes, st.sampled_from([0.1, 0.3, 0.5]))
def test_one_to_one_is_the_best_of_all_assignments(truth, found, level):
    near = np.array([[iou(a, b) >= level for b in found] for a in truth]).reshape(
        len(truth), len(found)
    )
    np.testing.assert_array_equal(overlaps(truth, found) >= level, near)
    short = near if len(truth) <= len(found) else near.T
    best = max(
        sum(short[i, j] for i, j in enumerate(order))
        for order in permutations(range(short.shape[1]), short.shape[0])
    )
    rows, columns = linear_sum_assignment(near, maximize=True)
    assert one_to_one(truth, found, level) == best == near[rows, columns].sum()
    assert hits_in_order(truth, found, level).sum() <= best


def test_a_second_box_on_one_truth_is_wrong_and_a_taken_truth_leaves_the_next_best():
    truth = [[0, 0, 10, 10], [0, 4, 10, 10]]
    assert hits_in_order(truth, [truth[0], truth[0]], 0.5).tolist() == [True, False]
    assert hits_in_order(truth, [truth[0], [0, 1, 10, 10]], 0.5).tolist() == [True, True]
    assert hits_in_order(truth, [], 0.5).size == one_to_one([], truth, 0.5) == 0


@pytest.mark.parametrize("seed", range(2))
def test_average_precision_is_that_of_scikit_learn_times_the_share_that_is_found(seed):
    rng = np.random.default_rng(seed)
    hits = [rng.random(rng.integers(0, 4)) < 0.4 for _ in range(40)]
    hits[0] = np.array([True])
    confidences = [rng.integers(0, 9, len(own)) / 9 for own in hits]  # with ties
    truths = [int(own.sum() + rng.integers(0, 2)) for own in hits]
    weights = rng.integers(0, 3, (3, 40)).astype(float)
    weights[0] = 1
    values = average_precision(hits, confidences, np.array(truths, dtype=float), weights)
    hit, sure = np.concatenate(hits), np.concatenate(confidences)
    for w, value in zip(weights, values, strict=True):
        each = np.repeat(w, [len(own) for own in hits])
        rank = average_precision_score(hit, sure, sample_weight=each)
        recall = (each * hit).sum() / (w @ np.array(truths))
        assert value == pytest.approx(rank * recall, rel=1e-12)
