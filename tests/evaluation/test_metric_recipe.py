"""The metric of CONTRIBUTING.md, added as it is written there, is in everything that is written."""

from __future__ import annotations

import inspect

import numpy as np
import pandas as pd
import pytest
import yaml

from medclip_debias.evaluation import catalogue
from medclip_debias.evaluation.protocols import phrase_grounding
from medclip_debias.evaluation.table import read_results
from tests.test_contributing import recipe


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
