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
    for part in ("results.json", "items"):
        copy = shutil.copytree if part == "items" else shutil.copy
        (root / "a").mkdir(exist_ok=True)
        copy(evaluated[1] / part, root / "a" / part)
    evaluate_all(root / "model-b", out=root / "b", bootstrap=20, heatmaps=0)
    return root


@pytest.fixture
def runs(two_runs, tmp_path):
    """Copies that a test may damage."""
    for name in "ab":
        shutil.copytree(two_runs / name, tmp_path / name)
    return tmp_path


def edit(folder, change):
    path = folder / "results.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_every_figure_equals_the_one_in_the_results(two_runs):
    found = compare([str(two_runs / "a"), str(two_runs / "b")], resamples=100)
    assert {row["key"] for row in found["rows"]} >= {
        "zero_shot.mean_auc",
        "grounding.cnr",
        "retrieval.recall",
        "study_retrieval.report.median_rank",
    }
    for row in found["rows"]:
        values = {}
        for name in "ab":
            values[name] = read_results(two_runs / name / "results.json").of(row["key"])["value"]
            assert row["groups"][name]["value"] == pytest.approx(values[name], abs=1e-9), row["key"]
        assert row["groups"]["b"]["difference"] == pytest.approx(values["b"] - values["a"])
    entries = [e for row in found["rows"] if (e := row["groups"]["b"])["p"] is not None]
    assert found["options"]["tests"] == len(entries) > len(found["rows"]) / 2
    assert [e["p_holm"] for e in entries] == pytest.approx(holm([e["p"] for e in entries]))
    for entry in entries:
        assert entry["verdict"] == (
            "differs on these patients, one seed each" if entry["p_holm"] <= 0.05 else "not shown"
        )


def test_intervals_repeat_a_bootstrap_by_hand(two_runs):
    found = compare(
        [str(two_runs / "a"), str(two_runs / "b")], metrics=["grounding.miou"], resamples=4000
    )
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


def test_a_run_against_its_copy_shows_nothing(runs):
    shutil.copytree(runs / "a", runs / "again")
    found = compare([str(runs / "a"), str(runs / "again")], resamples=100)
    tested = [row for row in found["classes"] if "reason" not in row]
    for row in [*found["rows"], *tested]:
        entry = row["groups"]["again"]
        untested = entry["p"] is None  # undefined without one patient
        verdict = (0, None, "not tested") if untested else (0, 1, "not shown")
        assert (entry["difference"], entry["p"], entry["verdict"]) == verdict


def test_a_clear_difference_of_one_seed_each_shows_on_these_patients_and_is_not_called_real(runs):
    path = runs / "b" / "items" / "phrases.parquet"
    table = pd.read_parquet(path)
    table["cnr"] += 1 + 0.1 * np.arange(len(table)) % 3
    table.to_parquet(path)
    found = compare([str(runs / "a"), str(runs / "b")], metrics=["grounding.cnr"], resamples=500)
    entry = found["rows"][0]["groups"]["b"]
    shows = "differs on these patients, one seed each"
    assert (entry["verdict"], entry["better"]) == (shows, True)
    words = {"baseline": "b", "metrics": ["grounding.cnr"], "resamples": 500}
    turned = compare([str(runs / "a"), str(runs / "b")], **words)["rows"][0]["groups"]["a"]
    assert (turned["verdict"], turned["better"]) == (shows, False)
    assert turned["difference"] == pytest.approx(-entry["difference"])


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


def test_groups_can_be_named_with_globs(runs):
    for seed in range(2):
        seeded(runs, "a", f"x{seed}", seed)
        seeded(runs, "a", f"y{seed}", seed, 0.1)
    found = compare([f"x={runs}/x*"], named=[f"y={runs}/y0,{runs}/y1"], resamples=100)
    assert [(g["label"], g["seeds"]) for g in found["groups"]] == [("x", [0, 1]), ("y", [0, 1])]
    alone = compare([str(runs / "x0"), str(runs / "x1")], resamples=100)  # two seeds, no method
    assert [len(group["runs"]) for group in alone["groups"]] == [1, 1]


def test_three_methods_are_ranked(runs):
    third = seeded(runs, "b", "c", 0, 5.0)
    found = compare(
        [str(runs / "a"), str(runs / "b"), third],
        metrics=["grounding.miou", "grounding.pointing_game"],
        resamples=100,
    )
    assert found["average_ranks"]["c"] < found["average_ranks"]["b"]
    assert sum(found["average_ranks"].values()) == pytest.approx(6)


def test_the_classes_are_tested_by_delong(two_runs):
    found = compare([str(two_runs / "a"), str(two_runs / "b")], resamples=100)
    tested = [row for row in found["classes"] if "reason" not in row]
    assert tested
    for row in tested:
        results = read_results(two_runs / "a" / "results.json")
        expected = results.value("zero_shot", "auc", row["class"])
        assert row["groups"]["a"]["value"] == pytest.approx(expected)
        assert 0 <= row["groups"]["b"]["p"] <= row["groups"]["b"]["p_holm"] <= 1


# ---------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda c: c.update(data_hash="0" * 16), "different data"),
        (lambda c: c.update(split="validate"), "different splits"),
        (lambda c: c["options"].update(smoothing=1.5), r"different options \(smoothing\)"),
        (lambda c: c["prompts"].update(name="other"), "different prompts"),
    ],
)
def test_runs_evaluated_differently_are_refused_unless_forced(runs, change, sentence):
    edit(runs / "b", change)
    with pytest.raises(UserError, match=sentence):
        compare([str(runs / "a"), str(runs / "b")], resamples=100)
    forced = compare([str(runs / "a"), str(runs / "b")], force=True, resamples=100)
    assert len(forced["forced"]) == 1


def test_items_that_do_not_match_are_refused_or_put_side_by_side(runs):
    path = runs / "b" / "items" / "phrases.parquet"
    table = pd.read_parquet(path)
    table.iloc[1:].to_parquet(path)
    with pytest.raises(UserError, match=r"do not match \(items/phrases\.parquet: .* 0 and 1 in"):
        compare([str(runs / "a"), str(runs / "b")], resamples=100)
    words = [str(runs / "a"), str(runs / "b"), "--metrics", "grounding.cnr,retrieval.recall"]
    out = runs / "out"
    assert command(["compare", *words, "--force", "--out", str(out), "--bootstrap", "100"]) == 0
    forced = json.loads((out / "comparison.json").read_text())
    by_key = {row["key"]: row["groups"]["b"] for row in forced["rows"]}
    assert by_key["grounding.cnr"]["verdict"] == "not tested"
    assert by_key["grounding.cnr"]["p"] is None
    assert by_key["retrieval.recall"]["verdict"] in (
        "differs on these patients, one seed each",
        "not shown",
    )
    assert forced["options"]["tests"] < len(forced["rows"])


def test_labels_that_differ_are_refused(runs):
    path = runs / "b" / "items" / "zero_shot.parquet"
    table = pd.read_parquet(path)
    table["label.Edema"] = 1 - table["label.Edema"]
    table.to_parquet(path)
    with pytest.raises(UserError, match=r"'label\.Edema' differs"):
        compare([str(runs / "a"), str(runs / "b")], resamples=100)


def test_the_order_of_items_does_not_matter(runs):
    expected = compare([str(runs / "a"), str(runs / "b")], resamples=100)
    for path in (runs / "b" / "items").iterdir():
        pd.read_parquet(path).sample(frac=1, random_state=0).to_parquet(path)
    assert compare([str(runs / "a"), str(runs / "b")], resamples=100) == expected


def test_what_is_missing_is_said_in_one_sentence(runs):
    a, b = str(runs / "a"), str(runs / "b")
    cases = [
        ([a], "only one run"),
        ([a, a + "/"], "is given twice"),
        ([a, str(runs / "absent")], "no such folder"),
        ([a, str(runs / "none*")], "no folder matches"),
        ([a, "x="], "names no folder"),
        ([f"x={a},{b}"], "only one group"),
    ]
    for words, sentence in cases:
        with pytest.raises(UserError, match=sentence):
            compare(words)
    with pytest.raises(UserError, match="There is no run 'c'"):
        compare([a, b], baseline="c")
    with pytest.raises(UserError, match=r"did you mean 'grounding\.miou'"):
        compare([a, b], metrics=["grounding.miu"])
    (runs / "b" / "items" / "phrases.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"phrases\.parquet: cannot be read"):
        compare([a, b])
    shutil.rmtree(runs / "b" / "items")
    with pytest.raises(UserError, match="is missing; run 'evaluate' again"):
        compare([a, b])
    (runs / "b" / "results.json").unlink()
    with pytest.raises(UserError, match=r"results\.json: there is no such file"):
        compare([a, b])


def test_the_settings_that_differ_are_listed_and_the_seed_and_place_are_not(runs):
    trained = {"train": {"lr": 1e-3, "seed": 0}, "loss": {"eta": 0.1}, "out": "here"}
    edit(runs / "a", lambda content: content["model"].update(provenance=trained))
    other = {"train": {"lr": 2e-3, "seed": 1}, "loss": {"eta": 0.1}, "out": "there"}
    edit(runs / "b", lambda content: content["model"].update(provenance=other))
    found = compare([str(runs / "a"), str(runs / "b")], resamples=100)
    assert found["settings"] == [{"setting": "train.lr", "values": {"a": 1e-3, "b": 2e-3}}]
    assert seeds_sentence(found).startswith("Seeds: a: one seed (0); b: one seed (1).")
    del trained["loss"]
    edit(runs / "a", lambda content: content["model"].update(provenance=trained))
    found = compare([str(runs / "a"), str(runs / "b")], resamples=100)
    assert found["settings"][0] == {
        "setting": "loss.eta",
        "values": {"a": "not said", "b": 0.1},
    }


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
    x = f"x={','.join(sides['x'])}"
    found = compare([x, f"y={','.join(sides['y'])}"], **words)
    assert found["rows"][0]["groups"]["y"]["verdict"] == "real"
    found = compare([x, f"y={sides['y'][0]}"], **words)
    verdict = found["rows"][0]["groups"]["y"]["verdict"]
    assert verdict == "differs on these patients, one seed on one side"


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


def test_a_metric_that_was_asked_for_and_that_no_run_has_is_named(two_runs):
    words = [str(two_runs / "a"), str(two_runs / "b")]
    found = compare(words, metrics=["zero_shot.mean_auc", "zero_shot.f1"], resamples=20)
    assert [row["key"] for row in found["rows"]] == ["zero_shot.mean_auc"]
    assert any(
        note == "F1 (zero_shot.f1) is not compared: the runs do not have it."
        for note in found["notes"]
    )
    assert not any("not compared" in note for note in compare(words, resamples=20)["notes"])


def test_a_metric_that_the_items_do_not_define_is_not_compared(runs):
    for name in "ab":
        path = runs / name / "items" / "progression.parquet"
        pd.read_parquet(path).assign(state=1).to_parquet(path)  # nothing improves or worsens
    found = compare([str(runs / "a"), str(runs / "b")], resamples=20)
    keys = {row["key"] for row in found["rows"]}
    assert "progression.macro_accuracy" in keys
    assert "progression.order_auc" not in keys


def test_items_that_lack_a_column_are_one_sentence(runs):
    path = runs / "b" / "items" / "zero_shot.parquet"
    pd.read_parquet(path).drop(columns="score.Edema").to_parquet(path)
    sentence = r"b/items/zero_shot\.parquet: its metrics cannot be computed \(KeyError: 'Edema'\)"
    with pytest.raises(UserError, match=sentence):
        compare([str(runs / "a"), str(runs / "b")])
    edit(runs / "b", lambda content: content["details"]["zero_shot"].update(classes=["Edema"]))
    with pytest.raises(UserError, match=r"cannot be computed \(AttributeError"):
        compare([str(runs / "a"), str(runs / "b")])


def test_a_metric_that_one_run_lacks_is_named_and_left_out(runs):
    path = runs / "a" / "items" / "phrases.parquet"
    pd.read_parquet(path).drop(columns="pointing").to_parquet(path)
    found = compare([str(runs / "a"), str(runs / "b")], resamples=20)
    keys = {row["key"] for row in found["rows"]}
    assert "grounding.cnr" in keys
    assert "grounding.pointing_game" not in keys
    assert any("(grounding.pointing_game) is not compared: 1 of 2" in n for n in found["notes"])
