"""Comparisons of real evaluations: metrics equal results.json, and what does not fit is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from medclip_debias.cli import run as command
from medclip_debias.errors import UserError
from medclip_debias.evaluation.compare import compare
from medclip_debias.evaluation.statistics import holm
from medclip_debias.evaluation.table import read_results
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.reporting.tables import seeds_sentence


@pytest.fixture(scope="session")
def two_runs(evaluate_all, evaluated, small_model, tmp_path_factory):
    """Evaluations of two models on one set."""
    root = tmp_path_factory.mktemp("compare")
    model = DualEncoder.load(small_model)
    torch.manual_seed(1)
    with torch.no_grad():
        model.image_projection.weight.add_(0.2 * torch.randn_like(model.image_projection.weight))
    model.save(root / "model-b")
    pictures = shutil.ignore_patterns("heatmaps", "retrieval")
    shutil.copytree(evaluated[1], root / "a", ignore=pictures)
    evaluate_all(root / "model-b", out=root / "b", bootstrap=0, heatmaps=0)
    return root


@pytest.fixture(scope="module")
def pair(two_runs):
    """The folders of both runs, and what `compare` finds of them."""
    folders = [str(two_runs / name) for name in "ab"]
    return folders, compare(folders, resamples=100)


@pytest.fixture
def runs(two_runs, tmp_path):
    """Copies that a test may damage."""
    for name in "ab":
        shutil.copytree(two_runs / name, tmp_path / name)
    return tmp_path


def change_items(name, change):
    """A function that changes a table of the second run's items."""

    def damage(runs):
        path = runs / "b" / "items" / f"{name}.parquet"
        change(pd.read_parquet(path)).to_parquet(path)

    return damage


def edit(folder, change):
    path = folder / "results.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_every_figure_equals_the_one_in_the_results(two_runs, pair):
    _, found = pair
    results = {name: read_results(two_runs / name / "results.json") for name in "ab"}
    keys = {"zero_shot.mean_auc", "grounding.cnr", "retrieval.recall"}
    assert {row["key"] for row in found["rows"]} >= keys
    for row in found["rows"]:
        values = {name: results[name].of(row["key"])["value"] for name in "ab"}
        for name in "ab":
            assert row["groups"][name]["value"] == pytest.approx(values[name], abs=1e-9), row["key"]
        assert row["groups"]["b"]["difference"] == pytest.approx(values["b"] - values["a"])
    entries = [e for row in found["rows"] if (e := row["groups"]["b"])["p"] is not None]
    assert found["options"]["tests"] == len(entries) > len(found["rows"]) / 2
    assert [e["p_holm"] for e in entries] == pytest.approx(holm([e["p"] for e in entries]))
    shows = "differs on these patients, one seed each"
    for entry in entries:
        assert entry["verdict"] == (shows if entry["p_holm"] <= 0.05 else "not shown")
    tested = [row for row in found["classes"] if "reason" not in row]
    assert tested  # by DeLong
    for row in tested:
        expected = results["a"].value("zero_shot", "auc", row["class"])
        assert row["groups"]["a"]["value"] == pytest.approx(expected)
        assert 0 <= row["groups"]["b"]["p"] <= row["groups"]["b"]["p_holm"] <= 1


def test_intervals_repeat_a_bootstrap_by_hand(two_runs, pair):
    found = compare(pair[0], metrics=["grounding.miou"], resamples=4000)
    tables = [
        pd.read_parquet(two_runs / name / "items" / "phrases.parquet").set_index("item")
        for name in "ab"
    ]
    gaps = (tables[1]["miou"] - tables[0]["miou"])[tables[0]["groundable"]]
    by_patient = gaps.groupby(tables[0]["patient"]).agg(["sum", "count"]).to_numpy()
    rng = np.random.default_rng(9)
    drawn = []
    for _ in range(4000):
        total = by_patient[rng.integers(0, len(by_patient), len(by_patient))].sum(axis=0)
        drawn.append(total[0] / total[1])
    expected = np.quantile(drawn, [0.025, 0.975])
    width = expected[1] - expected[0]
    interval = found["rows"][0]["groups"]["b"]["difference_interval"]
    # Student's t with the bootstrap's standard error against plain percentiles; and the digests of
    # ids differ from set to set, and with them the resamples.
    assert interval == pytest.approx(expected, abs=0.2 * width)


def seeded(runs, name, out, seed, shift=0.0, metric="miou", **settings):
    """A copy of a run as another seed of a training, a metric of its phrases moved by ``shift``."""
    shutil.copytree(runs / name, runs / out)
    provenance = {"out": f"runs/{out}", "loss": settings, "train": {"seed": seed} | settings}
    edit(runs / out, lambda content: content["model"].update(provenance=provenance))
    path = runs / out / "items" / "phrases.parquet"
    table = pd.read_parquet(path)
    table[metric] += shift
    table.to_parquet(path)
    return str(runs / out)


def test_seeds_of_the_same_settings_form_a_group(runs):
    shifts = {"x": (0.0, 0.01, 0.02), "y": (0.10, 0.13, 0.11)}
    folders = [
        seeded(runs, "a", f"{name}{seed}", seed, shift, method=name)
        for name in shifts
        for seed, shift in enumerate(shifts[name])
    ]
    found = compare(folders, metrics=["grounding.miou"], resamples=200)
    assert [len(group["runs"]) for group in found["groups"]] == [3, 3]
    labels = [group["label"] for group in found["groups"]]
    entry = found["rows"][0]["groups"][labels[1]]
    gaps = np.subtract(shifts["y"], shifts["x"])
    assert entry["difference"] == pytest.approx(gaps.mean())
    assert entry["sd"] == pytest.approx(np.std(shifts["y"], ddof=1))
    assert entry["seed_test"] == "paired t"
    assert entry["p_seeds"] == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    # The shifts are the same for all patients: nothing but the seeds makes a difference.
    assert entry["p"] == pytest.approx(entry["p_seeds"])
    low, high = stats.t.interval(0.95, 2, loc=gaps.mean(), scale=stats.sem(gaps))
    assert entry["difference_interval"] == pytest.approx((low, high))
    assert entry["freedom"] == pytest.approx(2)


# ---------------------------------------------------------------------------- what is refused


def edited(**changes):
    return lambda runs: edit(runs / "b", lambda content: content.update(changes))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (edited(data_hash="0" * 16), "different data"),
        (edited(split="validate"), "different splits"),
        (edited(prompts={"name": "other"}), "different prompts"),
        (
            lambda runs: edit(runs / "b", lambda c: c["options"].update(smoothing=1.5)),
            r"different options \(smoothing\)",
        ),
        (
            change_items("zero_shot", lambda t: t.assign(**{"label.Edema": 1 - t["label.Edema"]})),
            r"'label\.Edema' differs",
        ),
        (
            change_items("phrases", lambda t: t.assign(patient=t["patient"].to_numpy()[::-1])),
            "'patient' differs",
        ),
        (
            change_items("zero_shot", lambda t: t.assign(**{"label.More": 1.0})),
            r"'label\.More' differs, or is in one only",
        ),
        (
            change_items("zero_shot", lambda t: t.drop(columns="score.Edema")),
            r"b/items/zero_shot\.parquet: its metrics cannot be computed",
        ),
        (lambda runs: shutil.rmtree(runs / "b" / "items"), "is missing; run 'evaluate' again"),
    ],
)
def test_runs_that_cannot_be_paired_are_refused(runs, damage, sentence):
    damage(runs)
    with pytest.raises(UserError, match=sentence):
        compare([str(runs / "a"), str(runs / "b")], resamples=100)


def test_items_that_do_not_match_are_refused_or_put_side_by_side_by_force(runs):
    change_items("phrases", lambda table: table.iloc[1:])(runs)
    edit(runs / "b", lambda content: content.update(split="validate"))
    words = {"words": [str(runs / "a"), str(runs / "b")], "resamples": 100}
    with pytest.raises(UserError, match="different splits"):
        compare(**words)
    edit(runs / "b", lambda content: content.update(split="test"))
    with pytest.raises(UserError, match=r"do not match \(items/phrases\.parquet: .* 0 and 1 in"):
        compare(**words)
    forced = compare(**words, metrics=["grounding.cnr", "retrieval.recall"], force=True)
    assert len(forced["forced"]) == 1
    assert [row["groups"]["b"]["p"] is None for row in forced["rows"]] == [True, False]
    assert forced["rows"][0]["groups"]["b"]["verdict"] == "not tested"
    assert forced["options"]["tests"] == 1


def test_metrics_that_a_run_lacks_or_that_items_do_not_define_are_left_out_and_named(runs, pair):
    for name in "ab":  # nothing improves or worsens
        path = runs / name / "items" / "progression.parquet"
        pd.read_parquet(path).assign(state=1).to_parquet(path)
    change_items("phrases", lambda table: table.drop(columns="pointing"))(runs)
    found = compare([str(runs / "a"), str(runs / "b")], resamples=20)
    keys = {row["key"] for row in found["rows"]}
    assert {"grounding.cnr", "progression.macro_accuracy"} <= keys
    assert not {"grounding.pointing_game", "progression.order_auc"} & keys
    assert any("(grounding.pointing_game) is not compared: 1 of 2" in n for n in found["notes"])
    found = compare(pair[0], metrics=["zero_shot.mean_auc", "zero_shot.f1"], resamples=20)
    assert [row["key"] for row in found["rows"]] == ["zero_shot.mean_auc"]
    named = "F1 (zero_shot.f1) is not compared: the runs do not have it."
    assert named in found["notes"]
    assert not any("not compared" in note for note in pair[1]["notes"])


def test_the_order_of_items_does_not_matter(runs, pair):
    for path in (runs / "b" / "items").iterdir():
        pd.read_parquet(path).sample(frac=1, random_state=0).to_parquet(path)
    found = compare([str(runs / "a"), str(runs / "b")], resamples=100)
    assert found | {"groups": None} == pair[1] | {"groups": None}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda a, b: {"words": [a]}, "only one run"),
        (lambda a, b: {"words": [a, a + "/"]}, "is given twice"),
        (lambda a, b: {"words": [a, "all=" + ",".join(f"seed_{n}" for n in range(60))]}, "seed_0"),
        (lambda a, b: {"words": [a, a + "bsent*"]}, "no folder matches"),
        (lambda a, b: {"words": [a, a + "bsent"]}, "no such folder"),
        (lambda a, b: {"words": [a, "x="]}, "names no folder"),
        (lambda a, b: {"words": [f"x={a},{b}"]}, "only one group"),
        (lambda a, b: {"words": [a, b], "baseline": "c"}, "There is no run 'c'"),
        (
            lambda a, b: {"words": [a, b], "metrics": ["grounding.miu"]},
            r"did you mean 'grounding\.miou'",
        ),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(pair, given, sentence):
    with pytest.raises(UserError, match=sentence):
        compare(**given(*pair[0]))


def test_the_settings_that_differ_are_listed_and_the_seed_and_place_are_not(runs):
    for seed, (name, lr) in enumerate((("a", 1e-3), ("b", 2e-3))):
        trained = {"train": {"lr": lr, "seed": seed}, "loss": {"eta": 0.1}, "out": name}
        edit(runs / name, lambda c, t=trained: c["model"].update(provenance=t))
    found = compare([str(runs / "a"), str(runs / "b")], resamples=100)
    assert found["settings"] == [{"setting": "train.lr", "values": {"a": 1e-3, "b": 2e-3}}]
    assert seeds_sentence(found).startswith("Seeds: a: one seed (0); b: one seed (1).")


def test_only_seeds_on_both_sides_make_a_difference_real(runs):
    """Three copies a side, shifted by little more than their seeds' spread, and by much."""
    sides = {
        name: [
            seeded(runs, "a", f"{name}{seed}", seed, shift + sign * seed, "cnr", side=name)
            for seed in range(3)
        ]
        for name, shift, sign in (("x", 0.0, 0.01), ("y", 1.0, -0.01))
    }
    words = {"metrics": ["grounding.cnr"], "resamples": 200}
    x = f"x={runs}/x*"
    found = compare([x], named=[f"y={','.join(sides['y'])}", f"z={runs}/b"], **words)
    assert [(g["label"], g["seeds"]) for g in found["groups"]][:2] == [
        ("x", [0, 1, 2]),
        ("y", [0, 1, 2]),
    ]
    assert found["average_ranks"]["y"] < found["average_ranks"]["x"]
    assert found["rows"][0]["groups"]["y"]["verdict"] == "real"
    found = compare([x, f"y={sides['y'][0]}"], **words)
    entry = found["rows"][0]["groups"]["y"]
    assert entry["verdict"] == "differs on these patients, one seed on one side"
    assert entry["better"]
    turned = compare([x, f"y={sides['y'][0]}"], baseline="y", **words)["rows"][0]["groups"]["x"]
    assert not turned["better"]
    assert turned["difference"] == pytest.approx(-entry["difference"])


# --------------------------------------------------------------------------------- the verb


def test_the_verb_prints_and_writes(two_runs, tmp_path, capsys):
    words = ["compare", str(two_runs / "a"), str(two_runs / "b"), "--bootstrap", "100"]
    # Two of the metrics: the plots draw a panel for each, and none of them is read here.
    words += ["--metrics", "zero_shot.mean_auc,grounding.cnr"]
    assert command([*words, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "| Zero-shot AUC | a |" in printed
    assert "one seed" in printed.splitlines()[0]  # before any metric
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {f"comparison.{kind}" for kind in ("json", "html", "md", "tex", "svg", "png")}
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert command([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == written
    assert command(["compare", str(two_runs / "a")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
