"""Classifiers that saw the labels stand beside zero-shot in the report, if they fit it."""

import json

import pytest

from medclip_debias.errors import UserError
from medclip_debias.evaluation.table import Results
from medclip_debias.reporting.supervised import supervised_rows
from tests.helpers.results import row, rows

RESULTS = Results(
    data_hash="d",
    split="test",
    metrics=[
        row("zero_shot", "auc", 0.7, (0.6, 0.8), "Edema"),
        *rows("zero_shot", {"auc_positive": 0.65, "auc_negative": 0.6}, of_class="Edema"),
        row("zero_shot", "auc", 0.5, of_class="Nodule"),
    ],
    details={"zero_shot": {"classes": {"Edema": {"positive": 5, "negative": 20}, "Nodule": {}}}},
)
PROBE = {
    "Edema": {"linear at 1": {"auc": 0.8, "interval": [0.7, 0.9]}, "linear at 0.1": {"auc": 1}}
}
SUPERVISED = {"Edema": {"auc": 0.9, "interval": [0.8, 0.95]}, "Other": {"auc": 0.1}}


def written(run, probe=None, supervised=None, **changed):
    (run / "probe").mkdir(parents=True)
    for path, classes in (("probe/probe.json", probe), ("supervised.json", supervised)):
        if classes is not None:
            content = {"data_hash": "d", "split": "test", "classes": classes} | changed
            (run / path).write_text(json.dumps(content))
    return run


def test_each_class_has_its_three_values_and_the_mean_is_over_those_that_all_have(tmp_path):
    rows = supervised_rows(written(tmp_path / "r", PROBE, SUPERVISED), RESULTS)
    assert rows == [
        [
            *("Edema", "5 / 20", "0.650", "0.600", "0.700", "0.600 to 0.800"),
            *("0.800", "0.700 to 0.900", "0.900", "0.800 to 0.950"),
        ],
        ["Nodule", "– / –", "–", "–", "0.500", "–", "–", "–", "–", "–"],
        ["mean of 1", "", "0.650", "0.600", "0.700", "–", "0.800", "–", "0.900", "–"],
    ]


def test_one_of_the_two_is_enough_and_none_is_no_table(tmp_path):
    rows = supervised_rows(written(tmp_path / "a", supervised=SUPERVISED), RESULTS)
    assert rows[-1][2:] == ["0.650", "0.600", "0.700", "–", "–", "–", "0.900", "–"]
    assert supervised_rows(written(tmp_path / "b"), RESULTS) == []


@pytest.mark.parametrize("other", [{"data_hash": "e"}, {"split": "validate"}])
def test_a_file_of_other_images_is_left_out(tmp_path, other):
    assert supervised_rows(written(tmp_path / "r", PROBE, SUPERVISED, **other), RESULTS) == []


def test_a_damaged_file_and_a_link_are_refused(tmp_path):
    run = written(tmp_path / "r", probe=[])
    with pytest.raises(UserError, match=r"probe\.json: holds no classes"):
        supervised_rows(run, RESULTS)
    (run / "probe" / "probe.json").unlink()
    (run / "supervised.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"supervised\.json: is a link"):
        supervised_rows(run, RESULTS)
