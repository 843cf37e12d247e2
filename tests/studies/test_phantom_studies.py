"""Studies that train on the phantom: inputs, cells, choosing, tables. Sanity only, no winner."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from medclip_debias.config import validate
from medclip_debias.data.agreement import read_agreement
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.statistics import holm, paired_seeds
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.doses import language_eta
from medclip_debias.experiments.page import changed
from medclip_debias.experiments.runner import plan
from medclip_debias.phantom.truth import Truth
from medclip_debias.settings_files import apply_overrides, load_yaml, merge
from studies.command import run_study
from studies.eta_tradeoff import Trigrams, tracking
from studies.false_negatives import false_rate
from studies.phantom_data import PhantomData, PhantomFolder, class_prompts
from studies.phantom_methods import ETA_GRID, LANGUAGE_MODEL, methods
from studies.phantom_run import (
    METRICS,
    PhantomTraining,
    eta_true,
    resolve,
    train_and_measure,
    trainer_of,
    training_counts,
)
from studies.phantom_study import (
    SHOWN,
    against_controls,
    best_candidate,
    difference_table,
    differences,
    figure_table,
    measurement_key,
    quick_settings,
    verdict,
)
from studies.study import find_study
from studies.table1 import Table1, Table1Settings

STUDIES = (
    "table1",
    "eta-tradeoff",
    "noise",
    "x-clr",
    "estimator",
    "false-negatives",
    "training-length",
)
STEPS = 1000
TRAIN = PhantomTraining(steps=3, batch_size=16, warmup_steps=1, dim=16)
# As few studies as leave every metric defined on each of these phantoms, a barely taught language
# model.
QUICK = quick_settings(Table1Settings).data
DATA = QUICK.model_copy(
    update={
        "studies": 100,
        "test_studies": 20,
        "language": QUICK.language | {"hidden": 16, "batch_size": 16, "steps": 2},
    }
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Folder of the inputs, as a run keeps it."""
    return tmp_path_factory.mktemp("studies") / "inputs"


@pytest.fixture(scope="module")
def folder(inputs):
    """A small phantom, prepared and scored."""
    study = Table1(quick_settings(Table1Settings, regimes=("hospital",), data=DATA), inputs)
    cell = next(c for c in study._reports(0, "hospital", {}))
    return study.shared_folder(cell)


def test_agreement_is_the_truth_of_every_training_sentence_and_study(folder):
    place = PhantomFolder(folder)
    data, truth = PreparedSet.open(place.prepared), Truth(place.truth)
    images = data.images[data.images["split"] == "train"].drop_duplicates("study_id")
    texts = list(training_counts(place))
    found = read_agreement(place.agreement, texts, images["study_id"].astype(str).tolist())
    assert np.array_equal(found.T, truth.agreement(texts, images["image_id"].astype(str).tolist()))
    assert 0.05 < found.mean() < 0.95


def test_a_batch_knows_which_of_its_images_agree_with_which_of_its_sentences(folder, tmp_path):
    oracle = {"kind": "infonce", "negatives": [{"kind": "remove_known", "path": "@agreement"}]}
    place = PhantomFolder(folder)
    trainer = trainer_of(place, TRAIN, oracle, 0, "lse_nl", tmp_path)
    truth, images = Truth(place.truth), trainer.prepared.images
    batch = trainer.batches[0]
    fields = trainer.cached.fields.of(batch, 0)
    found = fields["agreement"][:, fields["text_ids"]].numpy().T
    texts = [trainer.studies.texts[n] for n in batch.texts.tolist()]
    first = [trainer.studies.rows[n][0] for n in batch.studies.tolist()]
    shown = [str(name) for name in images["image_id"].iloc[first]]
    assert np.array_equal(found, truth.agreement(texts, shown))
    removed = float(trainer.step(0)["removed"])
    negatives = batch.owners.numpy()[:, None] != np.arange(len(shown))[None, :]
    assert removed == pytest.approx(found[negatives].mean())


def test_the_oracle_needs_its_table(folder, tmp_path):
    loss = {"kind": "infonce", "negatives": [{"kind": "remove_known"}]}
    with pytest.raises(UserError, match="'remove_known' needs a 'path'"):
        trainer_of(PhantomFolder(folder), TRAIN, loss, 0, "lse_nl", tmp_path)


def test_every_place_holder_becomes_what_it_stands_for(folder, tmp_path):
    place = PhantomFolder(folder)
    eta, counts = language_eta(PreparedSet.open(place.prepared), 0.2, 0.35)
    scores = PreparedSet.open(place.prepared).scores(None)
    for text in list(eta)[:20]:
        assert eta[text] == pytest.approx(min(0.2 * math.exp(0.35 * scores[text]), 0.99))

    def eta_of(given):
        return resolve({"eta": given}, place, tmp_path, STEPS)["eta"]

    mean = eta_of({"kind": "mean_of", "a": 0.2, "k": 0.35})
    everyone = [value for text, value in eta.items() for _ in range(counts[text])]
    assert mean == {"kind": "constant", "value": pytest.approx(np.mean(everyone))}
    dealt = eta_of({"kind": "shuffled", "a": 0.2, "k": 0.35})
    assert (dealt["kind"], dealt["control"]) == ("language_model", "shuffled")
    true = eta_of({"kind": "table", "path": "@eta_true"})
    table = pd.read_parquet(true["path"]).set_index("text")["eta"]
    for text, value in eta_true(place).items():
        assert table[text] == pytest.approx(min(value, 0.99))
    core = {"kind": "infonce", "negatives": [{"kind": "remove_known", "path": "@agreement"}]}
    inner = resolve({"kind": "keyword", "core": core}, place, tmp_path, STEPS)["core"]
    assert inner["negatives"][0]["path"] == str(place.agreement)
    late = {"kind": "infonce", "negatives": [{"kind": "fnc", "start_step": "@0.4"}]}
    assert resolve(late, place, tmp_path, STEPS)["negatives"][0]["start_step"] == 400


def test_a_cell_repeats_exactly_and_seed_and_loss_matter(folder):
    def run(loss, seed):
        return train_and_measure(folder, TRAIN, loss, seed=seed)

    plain, again = run({"kind": "infonce"}, 0), run({"kind": "infonce"}, 0)
    assert plain == again
    assert set(METRICS) <= set(plain)
    classes = [plain.pop(name) for name in ("auc_by_class", "fine_auc_by_class")]
    assert all(math.isfinite(value) for value in plain.values())
    # Of each class that the test split has and lacks; the means are over just these.
    for name, found in zip(("auc", "fine_auc"), classes, strict=True):
        assert plain[name] == pytest.approx(np.mean(list(found.values())))
    assert run({"kind": "infonce"}, 1) != plain
    assert run({"kind": "clip"}, 0) != plain


def test_table1_chooses_on_a_phantom_of_its_own_and_reports_on_every_seed(inputs, folder, tmp_path):
    settings = quick_settings(
        Table1Settings, regimes=("hospital",), data=DATA, train=TRAIN, search_seeds=1,
        methods=("InfoNCE", LANGUAGE_MODEL, "constant = its mean"),
    )  # fmt: skip
    out = inputs.parent / "table1"
    found = run_study("table1", out, settings=settings, workers=1)
    chosen = [r for r in found["rows"] if r["role"] == "choose"]
    reported = [r for r in found["rows"] if r["role"] == "report"]
    assert {r["seed"] for r in chosen} == {1000}
    assert {r["method"] for r in chosen} == {LANGUAGE_MODEL}
    assert len(reported) == 3 * len(settings.seeds)
    best = best_candidate([r for r in chosen if r["method"] == LANGUAGE_MODEL])
    for row in reported:
        if row["method"] != "InfoNCE":  # the control follows the method that it controls
            assert row["candidate"] == best
    page = (out / "page.md").read_text()
    assert "difference to InfoNCE" in page
    assert json.loads((out / "results.json").read_text())["figures"]["hospital"]


def test_table1_keeps_in_every_regime_what_it_chose_in_the_first():
    study = Table1(Table1Settings())
    asked = study.cells()
    assert {cell["regime"] for cell in asked} == {"hospital"}
    good = {name: float(not metric.lower_is_better) for name, metric in METRICS.items()}
    poor = {name: float(metric.lower_is_better) for name, metric in METRICS.items()}
    last = {method.name: method.candidates[-1].label for method in methods()}
    rows = [cell | (good if cell["candidate"] == last[cell["method"]] else poor) for cell in asked]
    reported = study.follow_up(rows)
    for regime in ("hospital", "easy"):
        own = [cell for cell in reported if cell["regime"] == regime]
        assert {cell["data"]["dials"]["regime"] for cell in own} == {regime}
        assert len(own) == len(methods()) * len(study.settings.seeds)
        assert all(cell["candidate"] == last[cell["method"]] for cell in own)


@pytest.mark.parametrize("name", STUDIES)
def test_the_command_of_a_page_repeats_the_settings(name):
    kind = find_study(name)
    assert changed(kind(kind.settings_class())) == []
    usual = kind.settings_class().model_dump(mode="json")
    words = changed(kind(kind.quick()))
    assert words
    assert validate(kind.settings_class, apply_overrides(usual, words), "here") == kind.quick()


def test_the_rate_of_false_negatives_is_that_of_the_truth(folder):
    place = PhantomFolder(folder)
    data, truth = PreparedSet.open(place.prepared), Truth(place.truth)
    train = data.studies.loc[data.studies["split"] == "train", "study_id"]
    said = data.sentences.loc[data.sentences["study_id"].isin(train), "text"].tolist()
    each = truth.eta(said)
    found = false_rate(place)
    assert found["mean"] == pytest.approx(each.mean())
    assert found["q50"] == pytest.approx(np.quantile(each, 0.5))
    assert found["q05"] <= found["q50"] <= found["q95"]


def test_false_negatives_runs_whole_and_says_what_it_found(inputs, tmp_path):
    study = find_study("false-negatives")
    settings = study.quick().model_copy(update={"data": DATA, "train": TRAIN})
    out = inputs.parent / "false"
    ahead = plan(study(settings, inputs), out, 1)
    said: list[str] = []
    steps: list[tuple[int, int]] = []
    found = run_study(
        "false-negatives",
        out,
        settings=settings,
        workers=1,
        progress=lambda *each: steps.append(each),
        say=said.append,
    )
    parts = len(ahead.inputs) + len(ahead.missing)
    assert steps == [(done, parts) for done in range(1, parts + 1)]
    assert ("inputs to make first" in said[0]) == bool(ahead.inputs)
    assert not plan(study(settings, inputs), out, 1).inputs
    trained = by_method([r for r in found["rows"] if r["part"] == "train"])
    assert all(set(own) == {0, 1} for own in trained.values())
    assert "are false on average" in found["findings"][0]
    assert found["findings"][1].startswith("What removal can gain: true pairs removed against")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"methods": ("InfoNSE",)}, "did you mean 'InfoNCE'"),
        ({"methods": ("FNC",)}, "must hold 'InfoNCE'"),
        ({"regimes": ("hard",)}, "there is no 'hard'"),
    ],
)
def test_unknown_methods_and_regimes_are_refused_before_anything_runs(given, words):
    with pytest.raises(ValueError, match=words):
        Table1Settings(**given)


@pytest.mark.parametrize("name", STUDIES)
def test_every_cell_is_plain_and_distinct(name):
    kind = find_study(name)
    for settings in (kind.settings_class(), kind.quick()):
        cells = kind(settings).cells()
        assert json.loads(json.dumps(cells)) == cells
        assert len({json.dumps(cell, sort_keys=True) for cell in cells}) == len(cells)


def test_studies_that_ask_for_the_same_training_share_its_measurement():
    tradeoff = find_study("eta-tradeoff")
    keys = {
        measurement_key(cell)
        for cell in tradeoff(tradeoff.settings_class()).cells()
        if cell["part"] == "train"
    }
    noise = find_study("noise")
    clean = [c for c in noise(noise.settings_class()).cells() if c["noise"] == 0]
    shared = {c["method"] for c in clean if measurement_key(c) in keys}
    assert shared == {"InfoNCE", "constant .05", LANGUAGE_MODEL}


def test_every_strength_has_three_candidates_and_controls_mirror_the_language_model():
    for method in methods():
        assert len(method.candidates) in (1, 3)
    labels = [f"a {a:g}, k {k:g}" for a, k in ETA_GRID]
    for method in methods():
        if method.name == LANGUAGE_MODEL or method.group == "control":
            assert [c.label for c in method.candidates] == labels


def test_a_setting_is_chosen_by_its_mean_rank_over_seeds_and_metrics():
    def row(candidate, seed, good):
        values = {m: -good if of.lower_is_better else good for m, of in METRICS.items()}
        return {"candidate": candidate, "seed": seed, **values}

    rows = [row("a", 0, 0.9), row("a", 1, 0.1), row("b", 0, 0.6), row("b", 1, 0.6)]
    assert best_candidate(rows) == "b"
    one_figure = [row("a", 0, 0.5), row("b", 0, 0.4) | {"auc": 0.99}]
    assert best_candidate(one_figure) == "a"


# ---------------------------------------------------------------------------------- tables


def made_rows(gap, seeds=6):
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(seeds):
        base = {m: float(rng.normal(0.5, 0.1)) for m in METRICS}
        rows.append({"method": "a", "seed": seed, **base})
        other = {m: v + gap + float(rng.normal(0, 0.002)) for m, v in base.items()}
        rows.append({"method": "b", "seed": seed, **other})
        same = {m: v + float(rng.normal(0, 0.05)) for m, v in base.items()}
        rows.append({"method": "c", "seed": seed, **same})
    return rows


def test_differences_are_paired_over_seeds_and_corrected_over_methods_and_metrics():
    groups = by_method(made_rows(0.02))
    pairs = {
        (metric, name): paired_seeds(
            {s: r[metric] for s, r in groups[name].items()},
            {s: r[metric] for s, r in groups["a"].items()},
        )
        for metric in SHOWN
        if metric != "cnr"  # six seeds are too few for it
        for name in "bc"
    }
    adjusted = dict(zip(pairs, holm([pair[2] for pair in pairs.values()]), strict=True))
    for (metric, name), pair in pairs.items():
        assert differences(groups, "a", metric)[name] == (pair[0], pair[1], adjusted[metric, name])
    assert all(math.isnan(p) for _, _, p in differences(groups, "a", "cnr").values())
    whole = difference_table("t", groups, "a")
    stars = [[cell.endswith("*") for cell in row[1:]] for row in whole.rows]
    assert stars == [[adjusted.get((m, name), 1) < 0.05 for m in SHOWN] for name in "bc"]
    table = difference_table("t", groups, "a", ["auc"])
    assert [row[0] for row in table.rows] == ["b", "c"]
    assert table.rows[0][1].endswith("*")
    assert not table.rows[1][1].endswith("*")


def test_a_sentence_is_corrected_over_the_metrics_of_the_table_it_speaks_of():
    """p is .03 for one metric alone, and nothing is left of it among nine."""
    rows = made_rows(0.0, seeds=5)
    for row in rows:
        row["auc"] = 0.7 + (row["method"] == "b") * (0.02 + 0.025 * math.sin(row["seed"]))
    groups = by_method(rows)
    p = paired_seeds(*({s: r["auc"] for s, r in groups[n].items()} for n in "ba"))[2]
    assert 0.05 / 8 < p < 0.05
    assert "no statistically significant" in verdict(groups, "b", "a", ["auc"])


def test_nothing_is_said_of_a_control_whose_dose_is_another():
    rows = made_rows(0.02)
    for row in rows:
        row["mean_eta"] = {"a": 0.04, "b": 0.039, "c": 0.008}[row["method"]]
    fair, unfair = against_controls(by_method(rows), "a", ["b", "c"])
    assert fair.startswith("a against b: AUC -0.0")
    assert unfair == (
        "a against c: not compared, since their doses differ (mean eta 0.040 and 0.008)"
    )


def test_replicates_of_a_training_are_one_row_and_another_measurement():
    rows = [
        {"method": "a", "seed": 0, "auc": 0.5, "auc_by_class": {"x": 0.5}},
        {"method": "a", "seed": 0, "replicate": 1, "auc": 0.7, "auc_by_class": {"x": 0.9}},
    ]
    merged = by_method(rows)["a"][0]
    assert merged["auc"] == pytest.approx(0.6)
    assert merged["auc_by_class"]["x"] == pytest.approx(0.7)
    study = find_study("false-negatives")
    once, twice = (
        [c for c in study(study.settings_class(seeds=(3,), replicates=n)).cells() if "loss" in c]
        for n in (1, 2)
    )
    known = {measurement_key(cell) for cell in once}
    again = [cell for cell in twice if measurement_key(cell) not in known]
    assert len(twice) == 2 * len(once)
    assert [cell["replicate"] for cell in again] == [1] * len(once)
    assert {cell["data"]["seed"] for cell in again} == {3}


@pytest.mark.parametrize(("gap", "word"), [(0.02, "better in AUC"), (-0.02, "worse in AUC")])
def test_the_sentence_says_which_way(gap, word):
    groups = by_method(made_rows(gap))
    assert word in verdict(groups, "b", "a", ["auc"])
    # A calibration error that grows is worse.
    assert ("worse in ECE" if gap > 0 else "better in ECE") in verdict(groups, "b", "a", ["ece"])
    assert "no statistically significant difference" in verdict(groups, "c", "a", ["auc"])
    one = by_method(made_rows(gap, seeds=1))
    assert "too few seeds" in verdict(one, "b", "a", ["auc"])


@pytest.mark.parametrize(("seeds", "claimed"), [(5, False), (9, False), (10, True)])
def test_nothing_is_claimed_of_cnr_on_fewer_than_ten_seeds(seeds, claimed):
    groups = by_method(made_rows(0.02, seeds=seeds))
    assert ("better in CNR" in verdict(groups, "b", "a", ["cnr"])) == claimed
    table = difference_table("t", groups, "a", ["auc", "cnr"])
    assert table.rows[0][1].endswith("*")
    assert table.rows[0][2].endswith("*") == claimed
    assert ("fewer than 10 seeds" in table.title) != claimed


def test_ranks_count_small_median_ranks_as_good():
    rows = [
        {"method": "good", "seed": 0, "auc": 0.9, "median_rank": 3.0},
        {"method": "bad", "seed": 0, "auc": 0.8, "median_rank": 30.0},
    ]
    table = figure_table("t", by_method(rows), ["auc", "median_rank"])
    assert [row[-1] for row in table.rows] == ["1.0", "2.0"]


# ------------------------------------------------------------------------------- estimates


def test_trigram_probabilities_of_all_next_words_sum_to_one():
    model = Trigrams(["no effusion", "no pneumothorax", "small left effusion"])
    words = ["no", "effusion", "pneumothorax", "small", "left", "</s>", "never seen"]
    for before in [("<s>", "<s>"), ("<s>", "no"), ("no", "effusion"), ("new", "words")]:
        assert sum(model._probability(word, before) for word in words) == pytest.approx(1)


def test_frequent_sentences_have_the_higher_trigram_probability():
    model = Trigrams(["no effusion"] * 9 + ["small left effusion"])
    assert model.log_probability("No effusion") > model.log_probability("small left effusion")
    assert model.log_probability("small left effusion") > model.log_probability("left small no")


@pytest.mark.parametrize("estimate", ["counts", "trigrams"])
def test_estimates_track_the_truth_and_boilerplate_is_left_out(folder, estimate):
    place = PhantomFolder(folder)
    data = PhantomData(**json.loads((folder / "data.json").read_text()))
    row = tracking(place, data, estimate, 1.0)
    assert 0 < row["spearman"] <= 1
    truth = eta_true(place)
    assert row["sentences"] == sum(0 < value < 1 for value in truth.values()) < len(truth)


def test_class_prompts_name_every_class_in_words_of_the_reports():
    prompts = class_prompts()
    assert len(prompts.classes) == 28
    sides = prompts.classes["effusion_right_small"]
    assert (sides.positive, sides.negative) == (
        ("Small right pleural effusion",),
        ("No pleural effusion",),
    )


@pytest.mark.parametrize("name", STUDIES)
def test_the_packaged_config_for_gpu_nodes_fits_every_study(name):
    path = Path(__file__).parents[2] / "configs/studies/phantom_gpu.yaml"
    kind = find_study(name)
    base = merge(kind.settings_class().model_dump(mode="json"), load_yaml(path))
    cells = kind(validate(kind.settings_class, base, str(path))).cells()
    trained = [cell for cell in cells if "train" in cell]
    assert {cell["train"]["arch"] for cell in trained} == {"resnet18"}
