"""The further protocols' metrics stand in the report, and are absent when not measured."""

from __future__ import annotations

import copy
import json

import pytest

from medclip_debias.errors import UserError
from medclip_debias.evaluation.table import Results
from medclip_debias.reporting.report import write_report
from medclip_debias.reporting.sections import result_sections, supervised_table
from tests.helpers.results import LEAST, row, rows

BIN = {"from": 0.4, "to": 0.46667, "images": 30, "probability": 0.44, "positive": 0.5}
COUNTS = {"positive": 15, "negative": 15, "left_out": 0}
EDEMA = {"auc": 0.9, "accuracy": 0.75, "balanced_accuracy": 0.74, "f1": 0.633}
GROUP = {"cnr": 1.234, "miou": 0.171, "pointing_game": 0.4}
MORE = {"area": 0.1, "cnr_signed": 1.0, "miou_middle": 0.2}
WAY = {f"recall_at_{k}": k / 200 for k in (1, 5, 10, 50, 100)} | {"median_rank": 77.5}
MEANS = {"mean_auc": 0.9, "accuracy": 0.7, "balanced_accuracy": 0.7, "multiclass_accuracy": 0.457}
RESULTS = Results(
    LEAST
    | {
        "metrics": [
            *rows("zero_shot", MEANS),
            row("zero_shot", "multiclass_accuracy", 0.5, group="chance"),
            row("zero_shot", "multiclass_recall", 0.457, of_class="Edema"),
            *rows("zero_shot", EDEMA, of_class="Edema"),
            row("zero_shot", "average_precision", 0.812, (0.7, 0.9), "Edema"),
            row("zero_shot", "ece", 0.0612, of_class="Edema"),
            *rows("grounding", GROUP | MORE, n=21),
            *rows("grounding", GROUP, n=17, group="frequency: 10_to_99"),
            *rows("study_retrieval", {"recall": 0.3, "median_rank": 77.5}),
            *rows("study_retrieval", WAY, n=9, group="strict, report to image"),
            *rows("study_retrieval", {"precision_at_5": 0.55, "precision_at_10": 0.44}, n=6),
            row("study_retrieval", "precision_at_5", 0.22, group="chance"),
        ],
        "details": {
            "zero_shot": {
                "classes": {"Edema": COUNTS | {"reliability": [BIN]}},
                "multiclass": {
                    "images": 8,
                    "classes": {"Edema": {"images": 8}, "Pneumonia": {"images": 0}},
                    "confusion": [[3.5, 4.5], [0, 0]],
                },
            },
            "grounding": {"phrases": 21, "not_groundable": 4},
            "study_retrieval": {},
        },
        "skipped": {},
        "self_test": {"status": "drift", "sentence": "x/model: the self-test's scores differ."},
    }
)


def rows_of(run, results):
    """The rows of each table by its title."""
    return {
        table.title: [list(row) for row in table.rows]
        for section in result_sections(run, results)
        for table in section.tables
    }


def test_each_table_holds_its_metrics(tmp_path):
    dash, rows = "\N{EN DASH}", rows_of(tmp_path, RESULTS)
    assert rows["Average precision, F1 and calibration"] == [
        ["Edema", "0.812", "0.700 to 0.900", "0.633", dash, "0.061"]
    ]
    assert rows["Which class? 0.457 right of 8 images (chance 0.500)"] == [
        ["Edema", "8", "0.457", "3.5", "4.5"],
        ["Pneumonia", "0", dash, "0", "0"],
    ]
    frequent = rows["By how many training studies say the sentence"]
    assert frequent[0][:3] == ["10 to 99", "17", "1.23"]
    row = ["strict", "report to image", "9", "0.005", "0.025", "0.050", "0.250", "0.500", "77.5"]
    assert rows["Whole studies"] == [row]
    assert rows["Precision by class"] == [["image to report", "6", "0.550", "0.440", dash, "0.220"]]
    for section in result_sections(tmp_path, RESULTS):
        for table in section.tables:
            assert {len(cells) for cells in table.rows} == {len(table.head)}


def test_what_each_side_says_alone_is_in_the_report(tmp_path):
    results = Results(copy.deepcopy(dict(RESULTS)))
    results["metrics"] += [
        *rows("zero_shot", {"mean_auc_positive": 0.8, "mean_auc_negative": 0.4}),
        row("zero_shot", "contradiction_rate", 0.25, (0.2, 0.3)),
        row("zero_shot", "contradiction_rate", 1 / 3, group="chance"),
        *rows("zero_shot", {"auc_positive": 0.8, "auc_negative": 0.4}, of_class="Edema"),
        row("zero_shot", "contradiction_rate", 0.05, of_class="Edema"),
        row("zero_shot", "contradiction_rate", 0.2, of_class="Pneumonia"),
    ]
    counts = {"positive": 3, "negative": 0, "left_out": 0, "reason": "one label value only"}
    results["details"]["zero_shot"]["refused"] = {"Pneumonia": counts}
    dash = "–"
    assert rows_of(tmp_path, results)["Each side of the prompts alone"] == [
        ["Edema", "0.800", dash, "0.400", dash, "0.900", dash, "0.050", dash],
        ["Pneumonia", *[dash] * 6, "0.200", dash],
        ["all", "0.800", dash, "0.400", dash, "0.900", dash, "0.250", "0.200 to 0.300"],
    ]
    (tmp_path / "results.json").write_text(json.dumps(results))
    page = write_report(tmp_path).read_text()
    assert "scores in random order: 0.333" in page
    assert "the self-test&#39;s scores differ" in page
    assert page.count("Reliability diagram of") == 1
    written = (tmp_path / "results.md").read_text()
    assert "| AUC of 'no X' alone (NEG) | 0.400 |" in written
    assert "| Average precision |" not in written  # no mean of it
    assert r"mIoU & 0.171 \\" in (tmp_path / "results.tex").read_text()


def test_what_was_not_measured_has_no_heading_and_damaged_details_are_one_sentence(tmp_path):
    results = Results(copy.deepcopy(dict(RESULTS)))
    results["metrics"] = [r for r in results["metrics"] if r["protocol"] == "zero_shot"]
    results["details"]["zero_shot"]["multiclass"] = {"reason": "No image has exactly one class."}
    kept = ["Classes", "Average precision, F1 and calibration"]
    assert list(rows_of(tmp_path, results)) == kept
    content = RESULTS | {"details": {"zero_shot": {"classes": {"Edema": 3}}}}
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"results\.json: its details are damaged"):
        write_report(tmp_path)


OF_LABELS = Results(
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
    rows = supervised_table(written(tmp_path / "r", PROBE, SUPERVISED), OF_LABELS).rows
    assert [list(row) for row in rows] == [
        [
            *("Edema", "5 / 20", "0.650", "0.600", "0.700", "0.600 to 0.800"),
            *("0.800", "0.700 to 0.900", "0.900", "0.800 to 0.950"),
        ],
        ["Nodule", "– / –", "–", "–", "0.500", "–", "–", "–", "–", "–"],
        ["mean of 1", "", "0.650", "0.600", "0.700", "–", "0.800", "–", "0.900", "–"],
    ]
    # One of the two is enough, and none is no table.
    rows = supervised_table(written(tmp_path / "a", supervised=SUPERVISED), OF_LABELS).rows
    assert list(rows[-1][2:]) == ["0.650", "0.600", "0.700", "–", "–", "–", "0.900", "–"]
    assert not supervised_table(written(tmp_path / "b"), OF_LABELS).rows


def test_files_of_other_images_are_left_out_and_damaged_ones_and_links_refused(tmp_path):
    for number, other in enumerate(({"data_hash": "e"}, {"split": "validate"})):
        run = written(tmp_path / str(number), PROBE, SUPERVISED, **other)
        assert not supervised_table(run, OF_LABELS).rows
    other_model = written(tmp_path / "m", PROBE, SUPERVISED, model_hash="of other weights")
    assert supervised_table(other_model, OF_LABELS).rows[-1][5:] == (*"–––", "0.900", "–")
    with pytest.raises(UserError, match=r"probe\.json: holds no classes"):
        supervised_table(written(tmp_path / "r", probe=[]), OF_LABELS)
    run = written(tmp_path / "l")
    (run / "supervised.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"supervised\.json: is a link"):
        supervised_table(run, OF_LABELS)
