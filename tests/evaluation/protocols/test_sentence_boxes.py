"""Boxes for sentences that may not be there: every metric by loops, and the protocol on a set."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import f1_score, roc_auc_score

from medclip_debias.data.prompts import load_prompts
from medclip_debias.errors import UserError
from medclip_debias.evaluation.encoding import Network, encode
from medclip_debias.evaluation.item_tables import ITEMS
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import Draw, Request
from medclip_debias.evaluation.protocols.sentence_boxes import SentenceBoxes, sentence_statistics
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
        for prefix, given in (("", [r.kept for r in rows]), ("without_suppression/", None)):
            kept = given or [1.0] * len(rows)
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


def test_when_everything_is_withheld_there_is_no_recall_and_all_specificity():
    table = items().assign(kept=0.0)
    found = sentence_statistics(table)(np.ones((1, len(table))))
    assert found["specificity"] == 1
    assert found["box_recall_0.3"] == found["box_precision_0.3"] == found["box_f1_0.3"] == 0


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
    return planned.measure(Draw(20))


def test_without_validation_images_words_alone_withhold_and_the_results_say_so(
    model, small_prepared
):
    found = run(model, small_prepared)
    assert found.details["rule"]["evidence"] is None
    assert "validate" in found.details["rule"]["chosen"]["reason"]
    assert found.value("kept") == 1
    assert found.value("recall_loss_0.3") == 0
    assert found.value("specificity_elsewhere") == 0
    table = found.items
    again = ITEMS["sentence_boxes"].statistics({}, table)(np.ones((1, len(table))))
    for name, value in again.items():
        if "/" not in name and not np.isnan(value[0]):
            assert found.value(name) == pytest.approx(value[0])
    assert not any("edema" in str(cell).lower() for cell in table["id"])  # no words in tables


def test_a_kept_rule_withholds_by_the_image_and_a_higher_threshold_withholds_more(
    model, small_prepared, tmp_path
):
    with pytest.raises(UserError, match="medclip-debias evaluate suppression"):
        run(model, small_prepared, tmp_path, suppression_from="model")
    free = run(model, small_prepared).items
    middle = 0.0
    kept = []
    for threshold in (-2.0, None, 2.0):
        rule = SuppressionRule(
            evidence="score",
            threshold=middle if threshold is None else threshold,
            slope=1.0,
            model_hash=model.content_hash,
        )
        save_rule(tmp_path, rule)
        found = run(model, small_prepared, tmp_path, suppression_from="model")
        kept.append(found.items["kept"])
        if threshold == -2.0:
            middle = float(found.items["evidence"].median())
            pd.testing.assert_series_equal(found.items["found"], free["found"])
    assert kept[0].sum() > kept[1].sum() > kept[2].sum() == 0
    assert (kept[0] >= kept[1]).all()
