"""results.json: one table, documented and read back; damage is one sentence."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias import files
from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import METRICS, address
from medclip_debias.evaluation.table import (
    COLUMNS,
    FORMAT,
    TABLE,
    Results,
    Row,
    checked,
    of_protocol,
    read_results,
    rows,
)
from medclip_debias.files import code_hash
from tests.helpers.results import LEAST, row


def test_what_evaluate_writes_reads_back_and_is_the_table_beside_it(evaluated, small_prepared):
    path = evaluated[1] / "results.json"
    results = read_results(path)
    assert results == json.loads(path.read_text())
    assert results["format"] == FORMAT
    assert results["code_hash"] == code_hash()
    assert results["self_test"]["status"] == "passed"
    assert results["data_hash"] == small_prepared.content_hash
    assert results["counts"] == {
        **{"images": 24, "labelled_images": 12, "phrases": 48},
        # With the fixture's few word pieces, some prompts have more tokens than the model reads.
        **{"sentences": 31, "cut_sentences": 7, "asked_sentences": 110},
    }
    assert results["data"]["funnel"] == small_prepared.funnel
    table = pd.read_parquet(path.parent / TABLE)
    assert tuple(table.columns) == COLUMNS
    assert not table.duplicated(list(COLUMNS[:4])).any()
    pd.testing.assert_frame_equal(results.table(), table, check_dtype=False)
    bounded = table[table["low"].notna()]
    assert (bounded["low"] <= bounded["high"]).all()
    assert len(bounded) > 60


name = st.text("abc_ 1", min_size=1, max_size=4)
number = st.floats(-1e6, 1e6)


@given(
    st.dictionaries(
        st.tuples(name, name | st.none(), name | st.none()),
        st.tuples(number, st.tuples(number, number) | st.none(), st.integers(0, 99) | st.none()),
    )
)
def test_what_is_written_is_read_to_the_last_bit(tmp_path_factory, found):
    given_rows = [
        Row(metric, value, *(bounds or (None, None)), n, of_class, group)
        for (metric, of_class, group), (value, bounds, n) in found.items()
    ]
    path = tmp_path_factory.mktemp("table") / "results.json"
    Results(LEAST | {"metrics": list(of_protocol("laterality", given_rows))}).write(path)
    results = read_results(path)
    for (metric, of_class, group), (value, bounds, n) in found.items():
        place = ("laterality", metric, of_class, group)
        assert results.value(*place) == value
        assert results.interval(*place) == bounds
        assert results.row(*place)["n"] == n
    assert len(results.table()) == len(found)


def test_numbers_that_are_none_or_not_finite_make_no_row():
    part = {"a": 0.5, "b": None, "c": float("nan"), "d": float("inf"), "images": 3}
    found = rows(part, n=3, group="lenient")
    assert found == [Row("a", 0.5, None, None, 3, None, "lenient")]


def test_a_key_names_a_metric_a_preset_s_or_nothing():
    for metric in METRICS:
        assert address(metric.key) == (metric.protocol, metric.name, None)
    key = "presets.afloc@regions.grounding.box_recall_0.3"
    assert address(key) == ("grounding", "box_recall_0.3", "preset afloc@regions")
    assert Results(metrics=[]).of("zero_shot.mean_auk") is None


WHOLE = LEAST | {"metrics": [row("retrieval", "recall", 0.5), row("retrieval", "median_rank", 2.0)]}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([], "is not a results file"),
        (WHOLE | {"format": 2}, "results of format 2, but this version reads format 3; run 'eval"),
        ({k: v for k, v in WHOLE.items() if k != "data_hash"}, "at 'data_hash'"),
        (WHOLE | {"metrics": [row("retrieval", "recall", "high")]}, r"at 'metrics\.0\.value'"),
        (WHOLE | {"metrics": WHOLE["metrics"] * 2}, "lists a metric twice"),
        (WHOLE | {"metrics": WHOLE["metrics"][:1]}, "has no 'retrieval.median_rank'"),
        (WHOLE | {"details": {"zero_shot": 3}}, r"at 'details\.zero_shot'"),
    ],
)
def test_damage_is_named_in_one_sentence(content, sentence):
    assert checked(dict(WHOLE), "results.json") == WHOLE
    with pytest.raises(UserError, match=sentence) as caught:
        checked(content, "results.json")
    assert str(caught.value).startswith("results.json: ")
    assert "\n" not in str(caught.value)


def test_the_code_hash_follows_the_files_of_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "__file__", str(tmp_path / "files.py"))
    found = []
    for name, text in (("files.py", "x = 1"), ("notes.txt", "no code"), ("files.py", "x = 2")):
        (tmp_path / name).write_text(text)
        found.append(code_hash.__wrapped__())  # a process asks once
    (tmp_path / "files.py").rename(tmp_path / "other.py")
    found.append(code_hash.__wrapped__())
    assert found[0] == found[1]
    assert len(set(found)) == 3
