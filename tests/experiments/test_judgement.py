"""What a grid shows of its differences: stars, words, plots, and what was not tested."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.config import validate
from medclip_debias.experiments.grid import ONLY, GridSettings
from medclip_debias.experiments.judgement import Contrast, Judged, pairs, plotted, summarised
from medclip_debias.reporting.plots import intervals, panels

AUC, RANK = "zero_shot.mean_auc", "retrieval.median_rank"


def grid(**more):
    content = {
        "name": "g",
        "base": {},
        "methods": {"plain": {}, "new": {}, "control": {}},
        "seeds": [0, 1],
        "baseline": "plain",
        "controls": {"new": ["control"]},
        "metrics": [AUC, RANK],
    }
    return validate(GridSettings, content | more, "test")


def rows(**skipped):
    rng = np.random.default_rng(0)
    return [
        {
            "setting": ONLY,
            "method": method,
            "seed": seed,
            "folder": f"{method}{seed}",
            "metrics": {AUC: float(rng.uniform(0.5, 0.9)), RANK: 20.0 + seed},
            "skipped": skipped,
            "train": {"loss": 1.0 + seed},
        }
        for seed in (0, 1)
        for method in ("plain", "new", "control")
    ]


def contrasts(found=(0.01, 0.2)):
    """AUC of ``new`` is better and starred, its rank is worse and starred; nothing else is."""
    made = []
    for method, against in pairs(grid()):
        real = (method, against) == ("new", "plain")
        for key, gap in ((AUC, 0.05), (RANK, 4.0)):
            p = found[0] if real else found[1]
            made.append(
                Contrast(ONLY, method, against, key, gap, (gap / 2, gap * 2), p, key == AUC, p)
            )
    return Judged(made, len(made), 2000, 1)


def test_every_method_meets_the_baseline_and_its_controls_once():
    assert pairs(grid()) == [("new", "plain"), ("control", "plain"), ("new", "control")]
    both = grid(controls={"new": ["plain", "control"], "control": ["new"]})
    assert pairs(both) == [*pairs(grid()), ("control", "new")]


@pytest.mark.parametrize("few", [False, True], ids=["enough seeds", "too few for a rank"])
def test_only_what_the_correction_leaves_and_has_seeds_has_a_star_and_a_word(few):
    judged = contrasts()
    for one in judged.contrasts:
        one.few_seeds = few and one.metric == RANK
    found = summarised(grid(), rows(), judged)
    worse = "" if few else "; worse in Box median rank +4.0 [+2.0, +8.0]"
    better = "new against plain: better in Zero-shot AUC +0.050 [+0.025, +0.100]"
    assert found.findings[0] == f"{better}{worse}."
    cells = [cell for table in found.tables[1:3] for row in table.rows for cell in row]
    starred = ["+0.050 [+0.025, +0.100] *", "+4.0 [+2.0, +8.0] *"]
    assert [cell for cell in cells if cell.endswith("*")] == starred[: 1 if few else 2]
    dots = [
        [line.get_markerfacecolor() for line in axes.lines if line.get_marker() == "o"]
        for axes in plotted(grid(), rows(), judged).axes
    ]
    assert [each.count("#000000") for each in dots] == [1, 0 if few else 1]


def test_means_are_those_of_the_seeds():
    given = rows()
    found = summarised(grid(), given, contrasts()).figures["means"][ONLY]
    for method in ("plain", "new", "control"):
        values = [row["metrics"][AUC] for row in given if row["method"] == method]
        assert found[method][AUC]["mean"] == pytest.approx(np.mean(values))
        assert found[method][AUC]["sd"] == pytest.approx(np.std(values, ddof=1))


def test_what_is_not_measured_or_not_tested_is_said():
    given = rows(grounding="The set has no boxes.")
    given[0]["skipped"] = given[0]["skipped"] | {"zero_shot": "No labels."}
    judged = contrasts()
    for one in judged.contrasts:
        if one.metric == AUC:
            one.interval = one.p = one.p_holm = None
    found = summarised(grid(metrics=[AUC, RANK, "grounding.cnr"]), given, judged)
    for sentence in (
        "Not measured in any cell: grounding: The set has no boxes.",
        "Not measured in 1 of 6 cells: zero_shot: No labels.",
        "Not every cell has the metrics grounding.cnr, so they are not shown.",
        "3 differences not tested, since too few patients allow no interval: Zero-shot AUC.",
    ):
        assert sentence in found.findings


def test_a_name_has_one_height_in_panels_side_by_side():
    """A published figure's right panel was a line off: it lacked one that the left one named."""
    _, (left, right) = panels(2)
    rows = ["a", "b", "c"]
    ends = ((0.1 * n - 0.01, 0.1 * n + 0.01) for n in range(3))
    found = {name: (0.1 * n, next(ends), "none") for n, name in enumerate(rows)}
    intervals(left, found, rows, named=True)
    intervals(right, {"c": found["c"], "a": found["a"]}, rows, named=False)
    assert [text.get_text() for text in left.get_yticklabels()] == rows
    for axes, shown in ((left, {0: 0.0, 1: 0.1, 2: 0.2}), (right, {0: 0.0, 2: 0.2})):
        assert axes.yaxis_inverted()  # the first is on top
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        drawn = {line.get_ydata()[0]: line.get_xdata()[0] for line in dots}
        assert drawn == pytest.approx(shown)
    assert not left.texts
    (said,) = right.texts
    assert (said.get_text(), said.xy) == ("not measured", (0, 1))
    with pytest.raises(ValueError, match="no place for b"):
        intervals(left, {"b": (0.0, None, "none")}, ["a"], named=True)
