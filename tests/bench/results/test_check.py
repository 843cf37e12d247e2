"""Forged, impossible, damaged and unshareable results: each is one sentence with its file."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from medclip_debias.bench.check import faults_of, same_interval, validate_folder
from medclip_debias.bench.record import read_record
from medclip_debias.bench.results import RESAMPLES, Result
from medclip_debias.cli import run
from medclip_debias.evaluation.bootstrap import Replicated, expanded_interval
from medclip_debias.evaluation.catalogue import address, of_protocol

SAMPLE = Path(__file__).parents[3] / "docs" / "benchmark"
ZERO, BOXES, REPORTS = "phantom.zero-shot@2", "phantom.grounding@1", "phantom.retrieval@1"
DEMO = "phantom-demo"
AUC = 0.9853089569504638
RANKS = ["rank_text_to_image_strict", "rank_image_to_text_strict"]


# ------------------------------------------------------------------------------- forgeries


@pytest.fixture
def sample(tmp_path, request, few_resamples):
    """Results of the published sample: all models on one card, or what ``param`` names."""
    names = [path.name for path in SAMPLE.iterdir() if path.is_dir()]
    models, cards = getattr(request, "param", (names, (ZERO,)))
    for name in models:
        place = tmp_path / "results" / name
        for card in cards:
            shutil.copytree(SAMPLE / name / card, place / card)
        shutil.copy(SAMPLE / name / "model.json", place)
    return tmp_path / "results"


def forge_figure(make, folder, key, value, low=None, high=None, *, record=True):
    """Another figure in the results, and in the record as a careful forger writes it."""
    figure = {"value": value, "low": low, "high": high}
    place = tuple(zip(("protocol", "metric", "group"), address(key), strict=True))

    def change(content):
        for row in content["metrics"]:
            if row["class"] is None and all(row[name] == part for name, part in place):
                row.update(figure if low is not None else {"value": value})

    make.edit(folder / "results.json", change)
    if record:
        make.edit(folder / "record.json", lambda r: r["metrics"].update({key: figure}))


def forge_items(folder, file, change):
    path = folder / "items" / f"{file}.parquet"
    change(pd.read_parquet(path)).to_parquet(path, index=False)


def claim_what_the_items_give(make, folder, protocol="zero_shot"):
    """Write the figures and intervals that follow from a folder's items."""
    result = Result("x", folder, read_record(folder), folder.parent.parent)
    for metric in of_protocol(protocol):
        one = result.replicates(protocol).get(metric.name)
        if one is not None:
            bounds = expanded_interval(one.replicates, one.influence)
            known = metric.key in result.record.metrics
            forge_figure(make, folder, metric.key, one.value, *bounds, record=known)
    assert not faults_of([Result("x", folder, read_record(folder), folder.parent.parent)])


def faults(root):
    return validate_folder(root).faults


@pytest.mark.parametrize("sample", [([DEMO], (BOXES, REPORTS))], indirect=True)
def test_impossible_figures_are_refused_whatever_the_items_say(sample, make):
    forged = (
        (BOXES, "grounding.miou", 7.5, "phrases", ["miou"]),
        (REPORTS, "study_retrieval.report.median_rank", -5.0, "study_retrieval", RANKS),
    )
    for card, key, value, file, columns in forged:
        forge_figure(make, sample / DEMO / card, key, value, value, value)
        values = dict.fromkeys(columns, value)
        forge_items(sample / DEMO / card, file, lambda table, v=values: table.assign(**v))
    found = faults(sample)
    for _, key, value, file, _ in forged:
        assert any(f"has {value} for '{key}', which lies between" in fault for fault in found)
        assert any(f"holds {value:g}, " in fault and file in fault for fault in found)


@pytest.mark.parametrize("sample", [([DEMO], (ZERO,))], indirect=True)
def test_an_interval_that_the_items_do_not_give_is_refused(sample, make):
    for interval, sentence in (
        ((0.984, 0.987), "says 0.984 to 0.987"),
        ((None, None), "gives no interval"),
    ):
        forge_figure(make, sample / DEMO / ZERO, "zero_shot.mean_auc", AUC, *interval)
        assert any("zero_shot.mean_auc'" in f and sentence in f for f in faults(sample))


@pytest.mark.parametrize("patients", [14, 300])
def test_intervals_of_honest_draws_pass_however_few_and_others_do_not(patients):
    """Means of real and of 0/1 values, drawn once by who claims and once by who checks."""
    rng = np.random.default_rng(patients)

    def drawn(values, resamples):
        counts = rng.multinomial(len(values), [1 / len(values)] * len(values), size=resamples)
        return counts @ values / len(values)

    def passes(values, scales, *draws):
        ours = drawn(values, RESAMPLES)
        one = Replicated(values.mean(), ours, np.empty(0), len(values))
        interval = np.quantile(ours, [0.025, 0.975])
        for resamples, scale in zip(draws, scales, strict=True):
            ends = np.quantile(drawn(values, resamples), [0.025, 0.975])
            claimed = values.mean() + scale * (ends - values.mean())
            yield same_interval(claimed, interval, one, resamples)

    for _ in range(6):
        normal = rng.normal(size=patients)
        assert all(passes((rng.random(patients) < 0.2).astype(float), (1,) * 3, 50, 100, 1000))
        expected = [True, True, True, False, False]
        draws = (50, 100, 1000, RESAMPLES, RESAMPLES)
        assert [*passes(normal, (1, 1, 1, 2.5, 0.2), *draws)] == expected


def test_items_and_labels_that_are_left_out_are_missed(sample, make):
    folder = sample / DEMO / ZERO
    make.edit(folder / "results.json", lambda r: r["counts"].update(labelled_images=450))
    assert any("has 450 of the 460 images that" in fault for fault in faults(sample))
    forge_items(folder, "zero_shot", lambda t: t[t["score.Edema"] > t["score.Edema"].median()])
    assert any("says 460" in fault for fault in faults(sample))
    count = len(pd.read_parquet(folder / "items/zero_shot.parquet"))
    make.edit(folder / "results.json", lambda r: r["details"]["zero_shot"].update(images=count))
    assert any(f"has {count} of the 460 images that" in fault for fault in faults(sample))


def other_items(table):
    return table.assign(item=[f"{number:016x}" for number in range(len(table))])


def flipped_labels(table):
    return table.assign(**{"label.Edema": table["label.Edema"].where(table.index >= 40, 0.0)})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_items, "460 of its 460 items are not those of"),
        (flipped_labels, "'label.Edema' differs from the other models' on the same items"),
    ],
)
def test_figures_that_follow_from_forged_items_are_given_away_by_the_other_models(
    sample, make, change, sentence
):
    forge_items(sample / DEMO / ZERO, "zero_shot", change)
    claim_what_the_items_give(make, sample / DEMO / ZERO)
    (fault,) = faults(sample)
    assert sentence in fault
    assert fault.startswith(str(sample / DEMO / ZERO))


@pytest.mark.parametrize("sample", [(["openi-infonce", DEMO], (BOXES,))], indirect=True)
def test_models_of_two_sets_agree_although_one_lost_a_phrase(sample, make):
    folder = sample / DEMO / BOXES
    forge_items(folder, "phrases", lambda table: table.iloc[1:])
    make.edit(folder / "record.json", lambda r: r["judged"].update(set_hash="ab" * 32))

    def change(content):
        content["data_hash"] = "ab" * 32
        content["details"]["grounding"]["phrases"] -= 1

    make.edit(folder / "results.json", change)
    claim_what_the_items_give(make, folder, "grounding")
    assert faults(sample) == []
    forge_items(folder, "phrases", lambda t: t.assign(patient=[*t["patient"][1:], t["patient"][0]]))
    claim_what_the_items_give(make, folder, "grounding")
    assert any("the column 'patient' differs from the other models'" in f for f in faults(sample))


def test_another_model_s_items_under_a_new_name_are_refused(sample, make):
    copy, generator = sample / "ours-best", np.random.default_rng(0)
    (copy / ZERO).parent.mkdir()
    shutil.copytree(sample / DEMO / ZERO, copy / ZERO)
    shutil.copy(sample / DEMO / "model.json", copy)
    make.edit(copy / "model.json", lambda m: m.update(name="ours-best", hash="ab" * 8))
    for file in ("record.json", "results.json"):
        make.edit(copy / ZERO / file, lambda r: r.update(model_hash="ab" * 8))

    def disturb(table):
        scores = [name for name in table.columns if name.startswith("score.")]
        noise = 1e-6 * generator.normal(size=(len(table), len(scores)))
        return table.assign(**(table[scores] + noise))

    forge_items(copy / ZERO, "zero_shot", disturb)
    claim_what_the_items_give(make, copy / ZERO)
    (fault,) = faults(sample)
    assert re.search(f"{DEMO}.* holds the scores of the model 'ours-best'", fault)


# ----------------------------------------------------------------- damage, and what is private

A = "a/phantom.zero-shot@1"


def content(file, **changes):
    """Other values in a JSON file; two underscores lead into a mapping."""

    def change(place):
        for key, value in changes.items():
            *parents, last = key.split("__")
            inner = place
            for name in parents:
                inner = inner[name]
            inner[last] = value

    return lambda root, edit: edit(root / file, change)


def record(**changes):
    return content(f"{A}/record.json", **changes)


def model(**changes):
    return content("a/model.json", **changes)


def rows(change):
    return lambda root, edit: edit(root / A / "results.json", lambda r: change(r["metrics"]))


def items(change):
    return lambda root, _: forge_items(root / A, "zero_shot", change)


def column(name, values):
    return items(lambda table: table.assign(**{name: values}))


def write(name):
    def damage(root, _):
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text("x")

    return damage


def remove(name):
    return lambda root, _: (root / A / name).unlink()


def metrics(key, **figure):
    return record(metrics={key: {"low": None, "high": None} | figure})


FAULTS = [
    (column("item", [f"CXR{n}" for n in range(8)]), "not a hashed id"),
    (column("text", "Lungs clear."), "column 'text' holds no numbers"),
    (column("score.Edema", np.arange(8.0)), "gives 0 for 'zero_shot.mean_auc', and record.json"),
    (column("score.Edema", np.inf), "'score.Edema' holds inf"),
    (column("label.Edema", 2.0), "neither 0 nor 1"),
    (items(lambda t: pd.concat([t, t])), "lists an item twice"),
    (remove("items/zero_shot.parquet"), "is missing"),
    (metrics("zero_shot.mean_auc", value=0.99), "for 'zero_shot.mean_auc'"),
    (metrics("zero_shot.mean_auc", value=0.9375, low=0.8), "has one end"),
    (metrics("presets.x.study_retrieval.recall_at_1", value=7.5), "lies between 0 and 1"),
    (metrics("zero_shot.f1", value=0.5), "not one of the card's"),
    (record(metrics={}), "has neither 'zero_shot.mean_auc'"),
    (record(card__name="phantom/zero-shott"), "no task card 'phantom/zero-shott'"),
    (record(card__version=3), "is of version 3 of the card"),
    (record(card__hash="0" * 16), "the card 'phantom/zero-shot@1' was another"),
    (record(preset="biovil"), "was scored by 'biovil'"),
    (record(command=" "), "has no command"),
    (record(notes=["word " * 200]), "is a text of 1000 letters"),
    (record(model_hash="9" * 16), "is of the model 9999999999999999"),
    (record(judged__list_hash="none"), "'list_hash' is not a hash"),
    (record(judged__found=4, judged__missing=4), "and 4 of 8 images are missing"),
    (record(judged__found=7), "do not add up to 8"),
    (model(licence=" "), "names no licence"),
    (model(hash="abc"), "not a hash of weights"),
    (model(name="<b>a</b>"), "must be the folder's"),
    (model(provenance={"set": "~/sets/x"}), "'provenance.set' holds a path"),
    (rows(lambda r: r.append(r[0])), "lists a metric twice"),
    (rows(lambda r: r.pop(0)), "has no 'zero_shot.mean_auc'"),
    (rows(lambda r: r[1].update(value=0.99)), "for 'zero_shot.accuracy', and results.json"),
    (content(f"{A}/results.json", data_hash="0" * 64), "its 'data_hash' is another"),
    (remove("results.json"), "there is no such file"),
    (write(f"{A}/items/reports.parquet"), "not a file of a result"),
    (write("notes.txt"), "does not belong here"),
    (write("a/weights.pt"), "not a file of a model"),
    (lambda root, _: (root / "d").mkdir(), "holds no result"),
]


@pytest.fixture
def alone(results):
    """Results of the model that is damaged, without the others."""
    for name in "bc":
        shutil.rmtree(results / name)
    return results


def test_every_fault_is_a_sentence_with_its_file(alone, make, tmp_path):
    assert not faults(alone)
    for number, (damage, sentence) in enumerate(FAULTS):
        root = shutil.copytree(alone, tmp_path / str(number))
        damage(root, make.edit)
        found = faults(root)
        assert any(sentence in fault for fault in found), (sentence, found)
        assert all(fault.startswith(str(root)) and fault.endswith(".") for fault in found)


@pytest.mark.parametrize("name", ["record.json", "results.json", "../model.json", "items"])
def test_what_is_named_as_a_link_is_not_opened(alone, tmp_path, name):
    """A link to a device or a pipe would be read for ever."""
    path = (alone / A / name).resolve()
    os.mkfifo(tmp_path / "fifo")
    path.rename(tmp_path / "inside")
    path.symlink_to(tmp_path / ("inside" if name == "items" else "fifo"))
    found = faults(alone)
    assert sum(f"{path}: is a link" in fault for fault in found) == 1
    assert not any("cannot be read" in fault or "regular file" in fault for fault in found)


def test_pipes_and_huge_files_in_place_of_records_are_refused(alone, capsys):
    path = alone / A / "record.json"
    path.unlink()
    os.mkfifo(path)
    assert any("is a pipe, not a regular file" in fault for fault in faults(alone))
    path.unlink()
    with path.open("wb") as file:
        file.truncate(8 << 30)
    assert run(["bench", "table", str(alone)]) == 2
    assert "is larger than 16 MiB" in capsys.readouterr().err


def test_what_a_file_says_cannot_steer_the_terminal(alone, make, capsys):
    record(card__name="phantom/\x1b]0;owned\x07\x1b[2J\u202ezero")(alone, make.edit)
    model(name="a\x9b2J")(alone, make.edit)
    for verb in ("table", "validate"):
        run(["bench", verb, str(alone)])
        printed = capsys.readouterr()
        assert (printed.out + printed.err).replace("\n", "").isprintable()


def test_the_verbs_count_what_was_computed_again_and_tabulate_no_forgery(
    results, make, capsys, tmp_path
):
    assert run(["bench", "validate", str(results)]) == 0
    assert "7 figures recomputed from the items" in capsys.readouterr().out
    forge_figure(make, results / A, "zero_shot.mean_auc", 0.99, 0.6, 1.0)
    assert run(["bench", "validate", str(results)]) == 2
    assert "1 fault." in capsys.readouterr().err
    out = tmp_path / "table.md"
    assert run(["bench", "table", str(results), "--out", str(out)]) == 2
    assert "gives 0.9375 for 'zero_shot.mean_auc'" in capsys.readouterr().err
    assert not out.exists()


def test_the_sample_has_no_fault_but_cards_that_went_on():
    report = validate_folder(SAMPLE)
    cards = re.compile(r"run 'bench'( again| with the card)|there is no task card")
    assert [fault for fault in report.faults if not cards.search(fault)] == []
    assert report.recomputed == 36
    for path in SAMPLE.glob("*/openi.*/items/*.parquet"):
        assert not [n for n in pd.read_parquet(path).columns if n.startswith("label.")]
