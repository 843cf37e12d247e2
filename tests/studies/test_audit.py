"""What is recomputed from the published cells, against plain loops over the same files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.stats import ttest_rel

from studies import audit
from studies.audit import PUBLISHED, doses, epochs, halves, lines, main, published, stars


@pytest.fixture(scope="module")
def few():
    return json.loads((PUBLISHED / "false-negatives.json").read_text())


@pytest.fixture(scope="module")
def groups(few):
    found: dict[str, dict[int, dict]] = {}
    for row in few["rows"]:
        if row["part"] == "train":
            found.setdefault(row["method"], {})[row["seed"]] = row
    return found


def test_two_differences_are_left_of_the_whole_family(groups):
    """Holm by hand: the smallest of m times m, the next times m - 1, until one is not below .05."""
    base = groups["InfoNCE"]
    p = {
        (name, metric): ttest_rel(*([g[s][metric] for s in range(10)] for g in (own, base))).pvalue
        for name, own in groups.items()
        if name != "InfoNCE"
        for metric in audit.SHOWN
    }
    left = []
    for place, (key, value) in enumerate(sorted(p.items(), key=lambda each: each[1])):
        if value * (len(p) - place) >= 0.05:
            break
        left.append(key)
    _, whole, tested = stars(groups, "InfoNCE")
    assert tested == len(p) == 45
    assert sorted(whole) == sorted(f"{name}: {audit.LABELS[metric]}" for name, metric in left)
    assert len(whole) == 2


def test_doses_and_halves_are_plain_means(groups):
    found = doses(groups)
    for name, value in found.items():
        assert value == pytest.approx(np.mean([r["mean_eta"] for r in groups[name].values()]))
    low, high = halves(groups["InfoNCE"], "auc")
    assert low == pytest.approx(np.mean([groups["InfoNCE"][s]["auc"] for s in range(5)]))
    assert high == pytest.approx(np.mean([groups["InfoNCE"][s]["auc"] for s in range(5, 10)]))


def test_epochs_count_the_studies_for_training_only(few):
    count, often = epochs(few["settings"])
    assert count == 3000 - 900 - 124  # 5 of 85 of those that are not for testing validate
    assert often == pytest.approx(1000 / 30)


def test_every_point_that_cells_can_answer_has_its_lines(capsys):
    main([])
    said = capsys.readouterr().out.splitlines()
    assert said == lines(PUBLISHED)
    assert {line.split()[0] for line in said} == {"2", "3", "4", "5", "6", "8"}


def test_the_corrections_quote_what_the_cells_say(groups):
    page = (PUBLISHED / "index.md").read_text().split("## Corrections")[1]
    own = doses(groups)
    for value in (
        own["language model"],
        own["its eta shuffled"],
        *halves(groups["InfoNCE"], "auc"),
    ):
        assert f"{value:.3f}".removeprefix("0") in page


def test_a_folder_without_the_studies_is_refused(tmp_path):
    with pytest.raises(Exception, match=r"false-negatives\.json"):
        published(tmp_path, "false-negatives")
