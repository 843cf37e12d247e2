"""Forged, impossible, damaged and unshareable results: each is one sentence with its file."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from medclip_debias.bench.card import Card
from medclip_debias.bench.check import validate_folder
from medclip_debias.cli import run
from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import address

SAMPLE = Path(__file__).parents[3] / "docs" / "benchmark"
ZERO, BOXES, REPORTS = "phantom.zero-shot@2", "phantom.grounding@1", "phantom.retrieval@1"
DEMO = "phantom-demo"


# ------------------------------------------------------------------------------- forgeries


@pytest.fixture
def sample(tmp_path):
    """A function that copies a card's results of all models of the published sample."""

    def copy(card):
        for model in (path for path in SAMPLE.iterdir() if path.is_dir()):
            shutil.copytree(model / card, tmp_path / "results" / model.name / card)
            shutil.copy(model / "model.json", tmp_path / "results" / model.name)
        return tmp_path / "results"

    return copy


def forge_figure(make, folder, key, value, low=None, high=None):
    """The same figure in the record and in the results, as a careful forger writes it."""
    make.edit(
        folder / "record.json",
        lambda r: r["metrics"].update({key: {"value": value, "low": low, "high": high}}),
    )
    claim(make, folder, key, value, low, high)


def claim(make, folder, key, value, low=None, high=None):
    """Another figure in the results alone."""
    protocol, metric, group = address(key)

    def change(content):
        (row,) = (
            r
            for r in content["metrics"]
            if (r["protocol"], r["metric"], r["class"], r["group"])
            == (protocol, metric, None, group)
        )
        row.update({"value": value} | ({} if low is None else {"low": low, "high": high}))

    make.edit(folder / "results.json", change)


def forge_items(folder, file, change):
    path = folder / "items" / f"{file}.parquet"
    change(pd.read_parquet(path)).to_parquet(path, index=False)


def faults(root):
    return validate_folder(root).faults


@pytest.mark.parametrize(
    ("card", "key", "value", "file", "columns"),
    [
        (BOXES, "grounding.miou", 7.5, "phrases", ["miou"]),
        (BOXES, "grounding.pointing_game", 3.0, "phrases", ["pointing"]),
        (BOXES, "grounding.cnr", -1.0, "phrases", ["cnr"]),
        (
            REPORTS,
            "study_retrieval.report.median_rank",
            -5.0,
            "study_retrieval",
            ["rank_text_to_image_strict", "rank_image_to_text_strict"],
        ),
    ],
)
def test_impossible_figures_are_refused_whatever_the_items_say(
    sample, make, card, key, value, file, columns
):
    root = sample(card)
    folder = root / DEMO / card
    forge_figure(make, folder, key, value, value, value)
    forge_items(folder, file, lambda t: t.assign(**dict.fromkeys(columns, value)))
    found = faults(root)
    assert any(f"has {value} for '{key}', which lies between" in fault for fault in found)
    assert any(f"holds {value:g}, " in fault and file in fault for fault in found)


@pytest.mark.parametrize(("low", "high"), [(5.0, 6.0), (0.9853089, 0.985309), (0.984, 0.987)])
def test_an_interval_that_the_items_do_not_give_is_refused(sample, make, low, high):
    root = sample(ZERO)
    forge_figure(make, root / DEMO / ZERO, "zero_shot.mean_auc", 0.9853089569504638, low, high)
    found = faults(root)
    assert len(found) == 1 if high < 1 else found
    assert re.search(r"zero_shot.mean_auc'.*(says|lies between 0 and 1)", found[0])
    forge_figure(make, root / DEMO / ZERO, "zero_shot.mean_auc", 0.9853089569504638)
    assert any("gives no interval" in fault for fault in faults(root))


def test_a_value_beside_the_record_is_recomputed_too(sample, make):
    root = sample(ZERO)
    claim(make, root / DEMO / ZERO, "zero_shot.f1", 0.99)
    assert any("for 'zero_shot.f1', and results.json says 0.99" in fault for fault in faults(root))


def test_items_that_are_left_out_are_missed(sample, make):
    root = sample(ZERO)
    folder = root / DEMO / ZERO
    forge_items(folder, "zero_shot", lambda t: t[t["score.Edema"] > t["score.Edema"].median()])
    assert any("says 460" in fault for fault in faults(root))
    count = len(pd.read_parquet(folder / "items/zero_shot.parquet"))
    make.edit(folder / "results.json", lambda r: r["details"]["zero_shot"].update(images=count))
    assert any(f"has {count} of the 460 images that" in fault for fault in faults(root))


def test_items_of_other_images_under_the_same_list_are_refused(sample):
    root = sample(ZERO)
    forge_items(
        root / DEMO / ZERO, "zero_shot", lambda t: t.assign(item=[f"{n:016x}" for n in range(460)])
    )
    (fault,) = faults(root)
    assert "460 of its 460 items are not those of" in fault
    assert fault.startswith(str(root / DEMO / ZERO))


def test_labels_that_differ_from_every_other_model_s_are_refused(sample, make):
    """With figures that follow from the forged labels: only the other models give it away."""
    root = sample(ZERO)
    folder = root / DEMO / ZERO

    def flip(table):
        rows = table.index[:40]
        table.loc[rows, "label.Edema"] = 1 - table.loc[rows, "label.Edema"]
        return table

    forge_items(folder, "zero_shot", flip)
    claim_what_the_items_give(make, folder)
    (fault,) = faults(root)
    assert "the column 'label.Edema' differs from the other models' on the same items" in fault
    assert fault.startswith(str(folder))


@pytest.mark.parametrize("noise", [0.0, 1e-6])
def test_another_model_s_items_under_a_new_name_are_refused(sample, make, noise):
    root = sample(ZERO)
    copy, generator = root / "ours-best", np.random.default_rng(0)
    shutil.copytree(root / DEMO, copy)
    make.edit(copy / "model.json", lambda m: m.update(name="ours-best", hash="ab" * 8))
    for file in ("record.json", "results.json"):
        make.edit(copy / ZERO / file, lambda r: r.update(model_hash="ab" * 8))

    def disturb(table):
        scores = [name for name in table.columns if not name.startswith("label.")][2:]
        shape = (len(table), len(scores))
        return table.assign(**(table[scores] + noise * generator.normal(size=shape)))

    forge_items(copy / ZERO, "zero_shot", disturb)
    claim_what_the_items_give(make, copy / ZERO)
    (fault,) = faults(root)
    assert "holds the scores of the model" in fault
    assert DEMO in fault
    assert "ours-best" in fault


def claim_what_the_items_give(make, folder):
    """Write the figures and intervals that follow from a folder's items."""
    from medclip_debias.bench.check import faults_of
    from medclip_debias.bench.record import read_record
    from medclip_debias.bench.results import Result
    from medclip_debias.evaluation.bootstrap import expanded_interval
    from medclip_debias.evaluation.catalogue import of_protocol

    result = Result("x", folder, read_record(folder), folder.parent.parent)
    for metric in of_protocol("zero_shot"):
        one = result.replicates("zero_shot").get(metric.name)
        if one is None:
            continue
        bounds = expanded_interval(one.replicates, one.influence)
        if metric.key in result.record.metrics:
            forge_figure(make, folder, metric.key, one.value, *bounds)
        else:
            claim(make, folder, metric.key, one.value, *bounds)
    assert not faults_of([Result("x", folder, read_record(folder), folder.parent.parent)])


def test_a_table_of_forged_results_is_not_written(sample, make, capsys, tmp_path):
    root = sample(ZERO)
    forge_figure(make, root / DEMO / ZERO, "zero_shot.mean_auc", 0.9999, 0.999, 1.0)
    out = tmp_path / "table.md"
    assert run(["bench", "table", str(root), "--out", str(out)]) == 2
    assert "gives 0.985308957 for 'zero_shot.mean_auc'" in capsys.readouterr().err
    assert not out.exists()


# ----------------------------------------------------------------- damage, and what is private

A = "a/phantom.zero-shot@1"


def record(**changes):
    def damage(root, edit):
        def change(content):
            for key, value in changes.items():
                *parents, last = key.split("__")
                place = content
                for name in parents:
                    place = place[name]
                place[last] = value

        edit(root / A / "record.json", change)

    return damage


def model(**changes):
    return lambda root, edit: edit(root / "a" / "model.json", lambda m: m.update(**changes))


def outcome(**changes):
    return lambda root, edit: edit(root / A / "results.json", lambda r: r.update(**changes))


def table(change):
    return lambda root, edit: edit(root / A / "results.json", lambda r: change(r["metrics"]))


def items(change):
    def damage(root, _):
        path = root / A / "items" / "zero_shot.parquet"
        change(pd.read_parquet(path)).to_parquet(path)

    return damage


def write(name, text="x"):
    def damage(root, _):
        path = root / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)

    return damage


METRIC = {"zero_shot.mean_auc": {"value": 0.99, "low": None, "high": None}}
FAULTS = {
    "a raw id": (items(lambda t: t.assign(item=[f"CXR{n}" for n in range(8)])), "no hashed id"),
    "raw patient": (items(lambda t: t.assign(patient=range(8))), "'patient' is no hashed id"),
    "words": (items(lambda t: t.assign(text="Lungs clear.")), "column 'text' holds no numbers"),
    "a report as a category": (
        items(lambda t: t.assign(category="Lungs clear. " * 20)),
        "column 'category' holds no numbers",
    ),
    "a score": (
        items(lambda t: t.assign(**{"score.Edema": np.arange(8.0)})),
        "gives 0 for 'zero_shot.mean_auc', and record.json says 0.9375",
    ),
    "an infinite score": (
        items(lambda t: t.assign(**{"score.Edema": np.inf})),
        "'score.Edema' holds inf",
    ),
    "a label": (items(lambda t: t.assign(**{"label.Edema": 2.0})), "neither 0 nor 1"),
    "an item twice": (items(lambda t: pd.concat([t, t])), "lists an item twice"),
    "no items": (lambda root, _: (root / A / "items/zero_shot.parquet").unlink(), "is missing"),
    "no table": (write(f"{A}/items/zero_shot.parquet"), "cannot be read"),
    "figure": (record(metrics=METRIC), "for 'zero_shot.mean_auc'"),
    "interval": (record(metrics__zero_shot=1), "record.json"),
    "half an interval": (
        record(metrics={"zero_shot.mean_auc": {"value": 0.9375, "low": 0.8}}),
        "has one end",
    ),
    "unknown card": (record(card__name="phantom/zero-shott"), "no task card 'phantom/zero-shott'"),
    "version": (record(card__version=3), "is of version 3 of the card"),
    "card's hash": (record(card__hash="0" * 16), "the card 'phantom/zero-shot@1' was another"),
    "preset": (record(preset="biovil"), "was scored by 'biovil'"),
    "no metric": (record(metrics={}), "has neither 'zero_shot.mean_auc'"),
    "other metric": (
        record(metrics={"zero_shot.f1": {"value": 0.5, "low": None, "high": None}}),
        "none of the card's",
    ),
    "no command": (record(command=" "), "has no command"),
    "path": (record(command="bench /home/me/model"), "holds a path of somebody's disk"),
    "long text": (record(notes=["word " * 200]), "is a text of 1000 letters"),
    "model of another": (record(model_hash="9" * 16), "is of the model 9999999999999999"),
    "list": (record(judged__list_hash="none"), "'list_hash' is no hash"),
    "status": (
        record(judged__found=4, judged__missing=4),
        "is called complete, and 4 of 8 images are missing",
    ),
    "boxes": (
        record(judged__boxes=49, judged__boxes_wanted=984),
        "is called complete, and 935 of 984 boxes are missing",
    ),
    "counts": (record(judged__found=7), "do not make 8"),
    "negative counts": (record(judged__found=-1, judged__missing=9), "found"),
    "schema": (record(extra=1), "extra"),
    "no record": (lambda root, _: (root / A / "record.json").unlink(), "record.json: there is no"),
    "no licence": (model(licence=" "), "names no licence"),
    "hash": (model(hash="abc"), "no hash of weights"),
    "name": (model(name="<b>a</b>"), "must be the folder's"),
    "provenance": (model(provenance={"set": "~/sets/x"}), "'provenance.set' holds a path"),
    "a row twice": (table(lambda rows: rows.append(rows[0])), "lists a metric twice"),
    "a word for a figure": (
        table(lambda rows: rows[0].update(value="high")),
        "is damaged at 'metrics.0.value'",
    ),
    "a row left out": (table(lambda rows: rows.pop(0)), "has no 'zero_shot.mean_auc'"),
    "other data": (outcome(data_hash="0" * 64), "its 'data_hash' is another"),
    "no results": (lambda root, _: (root / A / "results.json").unlink(), "there is no such file"),
    "extra file": (write(f"{A}/heatmaps/x.png"), "heatmaps"),
    "extra table": (write(f"{A}/items/reports.parquet"), "not a file of a result"),
    "beside": (write("notes.txt"), "does not belong here"),
    "in the model": (write("a/weights.pt"), "not a file of a model"),
    "empty": (lambda root, _: (root / "d").mkdir(), "holds no result"),
}


@pytest.fixture
def alone(results):
    """Results of the model that is damaged, without the others."""
    for name in "bc":
        shutil.rmtree(results / name)
    return results


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_a_sentence_with_its_file(alone, make, fault):
    assert not faults(alone)
    damage, sentence = FAULTS[fault]
    damage(alone, make.edit)
    found = faults(alone)
    assert any(sentence in each for each in found), found
    assert all(each.startswith(str(alone)) and each.endswith(".") for each in found)


@pytest.mark.parametrize("name", ["record.json", "results.json", "../model.json", "items"])
@pytest.mark.parametrize("target", ["/dev/zero", "fifo", "inside"])
def test_what_is_named_as_a_link_is_not_opened(alone, tmp_path, name, target):
    """A link to a device or a pipe would be read for ever."""
    path = (alone / A / name).resolve()
    if target == "inside":
        path.rename(tmp_path / "real")
        path.symlink_to(tmp_path / "real")
    else:
        os.mkfifo(tmp_path / "fifo")
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        path.symlink_to(target if target.startswith("/") else tmp_path / target)
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
    assert any("is larger than 16 MiB" in fault for fault in faults(alone))
    assert run(["bench", "table", str(alone)]) == 2
    assert "is larger than 16 MiB" in capsys.readouterr().err


def test_what_a_file_says_cannot_steer_the_terminal(alone, make, capsys):
    nasty = "phantom/\x1b]0;owned\x07\x1b[2J\u202ezero"
    record(card__name=nasty)(alone, make.edit)
    model(name="a\x9b2J")(alone, make.edit)
    for verb in ("validate", "table"):
        assert run(["bench", verb, str(alone)]) in (0, 2)
        said = capsys.readouterr()
        shown = (said.out + said.err).replace("\n", "")
        assert shown.isprintable(), repr(shown)
    assert run(["bench", "validate", str(alone)]) == 2
    assert r"\x1b]0;owned\x07" in capsys.readouterr().err


def test_the_verb_counts_what_was_computed_again(results, make, capsys):
    assert run(["bench", "validate", str(results)]) == 0
    assert "7 figures were computed again from their items and agree" in capsys.readouterr().out
    record(preset="biovil")(results, make.edit)
    assert run(["bench", "validate", str(results)]) == 2
    said = capsys.readouterr().err
    assert "1 faults" in said
    assert "was scored by 'biovil'" in said
    with pytest.raises(UserError, match="holds no model's folder"):
        validate_folder(results / "a" / "phantom.zero-shot@1" / "items")


def test_a_card_keeps_its_hash_when_the_program_learns_a_new_setting(board_cards):
    card = board_cards["phantom/zero-shot"]

    class Later(Card):
        """A card of a later version."""

        new: str = "as ever"

    later = Later.model_validate(card.model_dump())
    assert later.content_hash == card.content_hash
    assert later.model_copy(update={"new": "x"}).content_hash != card.content_hash
    assert card.model_copy(update={"title": "x"}).content_hash == card.content_hash
    assert card.model_copy(update={"preset": "x"}).content_hash != card.content_hash


def test_the_sample_is_small_and_has_no_fault_but_cards_that_went_on():
    report = validate_folder(SAMPLE)
    cards = re.compile(r"run 'bench'( again| with the card)|there is no task card")
    assert [fault for fault in report.faults if not cards.search(fault)] == []
    assert report.recomputed == 36
    assert sum(path.stat().st_size for path in SAMPLE.rglob("*") if path.is_file()) < 1_000_000
    real = SAMPLE.glob("*/openi.*/items/*.parquet")
    assert not [
        name for path in real for name in pd.read_parquet(path).columns if name.startswith("label.")
    ]
