"""The catalogue holds what is measured: nothing undeclared, nothing declared and not shown."""

from __future__ import annotations

import inspect

import numpy as np
import pandas as pd
import pytest
import yaml

from medclip_debias.evaluation import catalogue
from medclip_debias.evaluation.catalogue import (
    METRICS,
    VALIDATION,
    find,
)
from medclip_debias.evaluation.evaluate import headline
from medclip_debias.evaluation.protocols import phrase_grounding
from medclip_debias.evaluation.table import COLUMNS, Results, read_results
from medclip_debias.reporting.content import metric_rows, tiles
from medclip_debias.reporting.tables import results_table
from medclip_debias.training.checkpoint import BestSoFar
from medclip_debias.training.settings import TrainSettings
from tests.test_contributing import recipe


def test_every_metric_that_is_declared_is_produced_with_an_interval_and_no_other(evaluated):
    results, _ = evaluated
    declared = {(m.protocol, name) for m in METRICS for name in (m.name, m.per_class)}
    assert declared >= {
        (row["protocol"], row["metric"]) for row in results["metrics"] if row["low"] is not None
    }
    # What is chosen on validation images needs some; no report of this set denies anything.
    kept_out = {"zero_shot.f1", "segmentation.dice", "segmentation.iou"}
    kept_out |= {"sentence_boxes.presence_auc", "sentence_boxes.specificity_denial"}
    # There are fewer than 100 studies to rank; decisions are made where asked for.
    kept_out |= {"grounding.dice_validated", find("study_retrieval", "precision_at_100").key}
    kept_out |= {metric.key for metric in METRICS if metric.name.startswith("decisions_")}
    kept_out = {key for key in kept_out if results.of(key) is None} | {"zero_shot.ece"}
    # One patient of the split has one of the labels of pneumonia.
    (note,) = (note for note in results["notes"] if note.startswith("Undefined without one"))
    assert "zero_shot.mean_auc," in note
    kept_out |= {*note.rstrip(".").rpartition(": ")[2].split(", ")}
    for metric in METRICS:
        found = results.interval(metric.protocol, metric.name)
        assert metric.key in kept_out or found is not None, metric.key


def test_every_metric_that_is_declared_is_shown():
    rows = [
        dict.fromkeys(COLUMNS) | {"protocol": m.protocol, "metric": m.name, "value": number / 100}
        for number, m in enumerate(METRICS, 1)
    ]
    results = Results(metrics=rows, skipped={}, data_hash="x", split="test")
    shown = [row["title"] for _, _, rows in metric_rows(results) for row in rows]
    assert sorted(shown) == sorted(m.title for m in METRICS)
    table = results_table({"run": results})
    assert [row[0] for row in table.rows] == [metric.title for metric in METRICS]
    assert [tile["title"] for tile in tiles(results)] == [m.title for m in METRICS if m.paper]
    shown = headline(results)
    assert set(shown) == {f"{m.protocol}.{m.name}" for m in METRICS if m.terminal}


def test_n_counts_the_items_that_a_metric_rests_on(evaluated):
    results, out = evaluated
    boxes = pd.read_parquet(out / "items" / "sentence_boxes.parquet")
    changes = pd.read_parquet(out / "items" / "progression.parquet")
    ends = changes[changes["state"] != 1]
    expected = {
        ("sentence_boxes", "box_precision_0.3", None): len(boxes),
        ("sentence_boxes", "box_recall_0.3", None): (boxes["truths"] > 0).sum(),
        ("sentence_boxes", "kept", None): boxes["there"].sum(),
        ("sentence_boxes", "specificity", None): (~boxes["there"]).sum(),
        ("sentence_boxes", "specificity_elsewhere", None): (boxes["kind"] == "elsewhere").sum(),
        ("progression", "macro_accuracy", None): len(changes),
        ("progression", "order_auc", None): len(ends),
        ("progression", "order_auc", "edema"): (ends["finding"] == "edema").sum(),
        ("progression", "macro_accuracy", "edema"): (changes["finding"] == "edema").sum(),
    }
    found = {place: results.row(*place)["n"] for place in expected}
    assert found == expected
    assert 0 < found["sentence_boxes", "kept", None] < len(boxes)
    assert 0 < len(ends) < len(changes)


@pytest.mark.parametrize("metric", VALIDATION, ids=lambda metric: metric.name)
def test_early_stopping_follows_the_direction_of_the_catalogue(metric):
    TrainSettings(best_metric=metric.name, validate_every=1)
    best = BestSoFar(metric.name, 1)
    better, worse = (0.1, 0.9) if metric.lower_is_better else (0.9, 0.1)
    assert best.see(1, {metric.name: worse})
    assert best.see(2, {metric.name: better})
    assert not best.see(3, {metric.name: worse})
    assert best.gives_up


# -------------------------------------------------------------------- the recipe of CONTRIBUTING.md


@pytest.fixture
def with_the_metric(monkeypatch):
    """The two lines of the recipe, put where it says."""
    ((name, fields),) = yaml.safe_load(recipe("metric")).items()
    metric = catalogue.Metric("grounding", name, **fields)
    monkeypatch.setattr(catalogue, "METRICS", (*catalogue.METRICS, metric))
    monkeypatch.setitem(phrase_grounding.COLUMNS, metric.name, metric.item)
    source = inspect.getsource(phrase_grounding.phrase_metrics)
    place = '        "area":'
    assert source.count(place) == 1
    code = source.replace(place, recipe("value") + place)
    names = dict(vars(phrase_grounding))
    exec(compile(code, "recipe", "exec", dont_inherit=True), names)
    monkeypatch.setattr(phrase_grounding, "phrase_metrics", names["phrase_metrics"])
    return metric


def test_the_metric_is_everywhere_after_two_lines(with_the_metric, measured, tmp_path):
    measured("grounding", bootstrap=10)
    results = read_results(tmp_path / "run" / "results.json")
    name = with_the_metric.name
    assert 0 <= results.value("grounding", name) <= 1
    assert results.interval("grounding", name) is not None
    assert results.groups("grounding", name, "category") == results.groups(
        "grounding", "cnr", "category"
    )
    items = pd.read_parquet(tmp_path / "run" / "items" / "phrases.parquet")
    assert items[name].between(0, 1).all()
    statistics = phrase_grounding.PhraseGrounding.statistics({}, items)
    found = statistics(np.ones((1, len(items))))[name][0]
    assert found == pytest.approx(results.value("grounding", name))
