"""The table of an evaluation's metrics, against a walk over its nested results."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.tidy import COLUMNS, FILE, tidy

GROUPS = ("categories", "areas", "sentence_frequency")


@pytest.fixture(scope="module")
def evaluated(small_prepared, small_model, tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    evaluate(small_model, small_prepared.folder, out, bootstrap=20, heatmaps=0)
    return json.loads((out / "results.json").read_text()), pd.read_parquet(out / FILE)


def walked(part, protocol, of_class=None, group=None):
    """Every metric that has an interval, where it stands."""
    for name, bounds in (part.get("interval") or {}).items():
        if part.get(name) is not None:
            low, high = bounds or (None, None)
            yield protocol, name, of_class, group, part[name], low, high
    for name, inner in (part.get("classes") or {}).items():
        yield from walked(inner, protocol, name)
    for division in GROUPS:
        for name, inner in (part.get(division) or {}).items():
            yield from walked(inner, protocol, None, f"{division}: {name}")


def test_each_metric_of_the_results_is_one_row_with_its_interval(evaluated):
    results, table = evaluated
    assert tuple(table.columns) == COLUMNS
    expected = {
        row[:4]: row[4:]
        for protocol in ("zero_shot", "grounding", "laterality", "retrieval", "progression")
        for row in walked(results[protocol], protocol)
    }
    rows = table.astype(object).where(table.notna(), None).itertuples(index=False)
    found = {tuple(row[:4]): tuple(row[4:7]) for row in rows}
    assert len(found) == len(table)
    assert expected.items() <= found.items()
    assert len(expected) > 60
    of_class = table[(table["metric"] == "auc") & (table["class"] == "Edema")]
    counts = results["zero_shot"]["classes"]["Edema"]
    assert of_class["n"].item() == counts["positive"] + counts["negative"]
    small = table[(table["metric"] == "miou") & (table["group"] == "areas: small")]
    assert small["n"].item() == results["grounding"]["areas"]["small"]["phrases"]
    pd.testing.assert_frame_equal(tidy(results), table, check_dtype=False)
