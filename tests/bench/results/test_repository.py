"""A results repository: what is packed is fit to be shared, and every fault is found."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from medclip_debias.bench.board import read_board
from medclip_debias.bench.card import Card
from medclip_debias.bench.pack import pack_results
from medclip_debias.bench.repository import validate_repository
from medclip_debias.cli import run
from medclip_debias.errors import UserError


@pytest.fixture
def packed(results, tmp_path):
    out = tmp_path / "repository"
    pack_results(results, out)
    return out


def test_a_packed_copy_is_valid_and_gives_the_same_table(results, packed):
    report = validate_repository(packed)
    assert not report.faults
    assert (report.models, report.results, report.recomputed) == (3, 5, 7)
    ours, theirs = read_board(results), read_board(packed)
    assert ours.ranks == theirs.ranks
    for mine, other in zip(ours.rows, theirs.rows, strict=True):
        assert mine.cells == other.cells


def test_packing_leaves_out_what_is_not_to_be_shared_and_says_so(results, make, tmp_path):
    folder = results / "a" / "phantom.zero-shot@1"
    (folder / "heatmaps").mkdir()
    make.edit(
        folder / "results.json",
        lambda r: r.update(model={"provenance": "/home/me/x"}, notes=["Read from /data/me/set."]),
    )
    make.edit(
        folder / "record.json",
        lambda r: r.update(command="medclip-debias bench a=/home/me/model --data /data/me"),
    )
    path = folder / "items" / "zero_shot.parquet"
    table = pd.read_parquet(path)
    table["category"] = "Edema"
    table.attrs["source"] = "/home/me"
    table.to_parquet(path, index=False)
    (results / "cache").mkdir()
    out = tmp_path / "repository"
    says = "\n".join(pack_results(results, out))
    for part in ("'heatmaps' beside", "'model' of results.json", "columns of words (1)"):
        assert part in says
    assert not validate_repository(out).faults
    files = [path for path in out.rglob("*") if path.is_file()]
    assert not any(b"/home" in path.read_bytes() or b"/data" in path.read_bytes() for path in files)
    assert json.loads((out / "a/phantom.zero-shot@1/record.json").read_text())["command"] == (
        "medclip-debias bench a=model --data me"
    )
    assert sorted(path.name for path in out.iterdir()) == ["a", "b", "c"]


def test_labels_of_real_archives_stay_at_home_and_pairs_remain(results, tmp_path, monkeypatch):
    monkeypatch.setattr("medclip_debias.bench.results.Task.generated", False)
    out = tmp_path / "repository"
    assert "columns of labels" in "\n".join(pack_results(results, out))
    table = pd.read_parquet(out / "a/phantom.zero-shot@1/items/zero_shot.parquet")
    assert list(table.columns) == ["item", "patient", "score.Edema"]
    report = validate_repository(out)
    assert not report.faults
    assert report.recomputed == 4
    assert report.taken == {"the labels are withheld, and the resamples agree": 3}
    for mine, other in zip(read_board(results).rows, read_board(out).rows, strict=True):
        for name, cell in mine.cells.items():
            if cell.gap is not None:
                ours, theirs = cell.gap, other.cells[name].gap
                assert (theirs.low, theirs.high, theirs.p) == pytest.approx(
                    (ours.low, ours.high, ours.p), abs=1e-6
                )
    # A copy of the copy is the copy.
    again = tmp_path / "again"
    pack_results(out, again)
    assert not validate_repository(again).faults
    pack_results(results, tmp_path / "whole", with_labels=True)
    whole = pd.read_parquet(tmp_path / "whole/a/phantom.zero-shot@1/items/zero_shot.parquet")
    assert "label.Edema" in whole.columns


def test_packing_into_a_repository_replaces_its_own_models_alone(results, make, packed):
    (packed / "README.md").write_text("Ours.")
    before = (packed / "b" / "model.json").read_bytes()
    make.edit(results / "a" / "model.json", lambda model: model.update(licence="Apache-2.0"))
    make.edit(results / "b" / "model.json", lambda model: model.update(licence="other"))
    pack_results(results, packed, models=["a"])
    assert json.loads((packed / "a" / "model.json").read_text())["licence"] == "Apache-2.0"
    assert (packed / "b" / "model.json").read_bytes() == before
    assert (packed / "README.md").is_file()


def test_a_model_without_licence_is_packed_with_one_alone(results, make, tmp_path):
    make.edit(results / "a" / "model.json", lambda model: model.update(licence=None))
    with pytest.raises(UserError, match="give --licence"):
        pack_results(results, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    pack_results(results, tmp_path / "out", licence="CC0-1.0")
    assert not validate_repository(tmp_path / "out").faults


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


def items(change):
    def damage(root, _):
        path = root / A / "items" / "zero_shot.parquet"
        table = pd.read_parquet(path)
        change(table).to_parquet(path, index=False)

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
    "a score": (
        items(lambda t: t.assign(**{"score.Edema": np.arange(8.0)})),
        "gives 0 for 'zero_shot.mean_auc', and record.json says 0.9375",
    ),
    "an item twice": (items(lambda t: pd.concat([t, t])), "lists an item twice"),
    "no items": (lambda root, _: (root / A / "items/zero_shot.parquet").unlink(), "is missing"),
    "no table": (write(f"{A}/items/zero_shot.parquet"), "cannot be read"),
    "figure": (record(metrics=METRIC), "for 'zero_shot.mean_auc'"),
    "interval": (record(metrics__zero_shot=1), "record.json"),
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
    "status": (record(judged__found=4, judged__missing=4), "is called complete with 4 of 8"),
    "counts": (record(judged__found=7), "do not make 8"),
    "schema": (record(extra=1), "extra"),
    "no record": (lambda root, _: (root / A / "record.json").unlink(), "record.json: there is no"),
    "no licence": (model(licence=" "), "names no licence"),
    "hash": (model(hash="abc"), "no hash of weights"),
    "name": (model(name="<b>a</b>"), "must be the folder's"),
    "provenance": (model(provenance={"set": "~/sets/x"}), "'provenance.set' holds a path"),
    "part": (outcome(model={}), "holds 'model', which a shared copy does not have"),
    "other data": (outcome(data_hash="0" * 64), "its 'data_hash' is another"),
    "no results": (lambda root, _: (root / A / "results.json").unlink(), "there is no such file"),
    "extra file": (write(f"{A}/heatmaps/x.png"), "heatmaps"),
    "extra table": (write(f"{A}/items/reports.parquet"), "none of a result's files"),
    "beside": (write("notes.txt"), "does not belong here"),
    "in the model": (write("a/weights.pt"), "none of a model's files"),
    "link": (lambda root, _: (root / "a" / "l").symlink_to("/etc/passwd"), "is a link"),
    "empty": (lambda root, _: (root / "d").mkdir(), "holds no result"),
}


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Where the model that is damaged is kept packed; the first test that asks packs it."""
    return tmp_path_factory.mktemp("once") / "repository"


@pytest.fixture
def alone(once, board_cards, request, tmp_path):
    """A repository of the model that is damaged, without the others."""
    if not once.exists():
        pack_results(request.getfixturevalue("results"), once, models=["a"])
        assert not validate_repository(once).faults
    return shutil.copytree(once, tmp_path / "repository")


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_a_sentence_with_its_file(alone, make, fault):
    damage, sentence = FAULTS[fault]
    damage(alone, make.edit)
    faults = validate_repository(alone).faults
    assert any(sentence in found for found in faults), faults
    assert all(found.startswith(str(alone)) and found.endswith(".") for found in faults)


def test_the_verbs_pack_validate_and_end_with_2_on_a_fault(results, make, tmp_path, capsys):
    out = tmp_path / "repository"
    assert run(["bench", "pack", str(results), "--out", str(out)]) == 0
    assert run(["bench", "validate", str(out)]) == 0
    assert "7 figures were computed again from their items and agree" in capsys.readouterr().out
    record(preset="biovil")(out, make.edit)
    assert run(["bench", "validate", str(out)]) == 2
    assert "1 faults" in (said := capsys.readouterr().err)
    assert "was scored by 'biovil'" in said
    assert run(["bench", "site", str(out), "--out", str(tmp_path / "site")]) == 2
    assert not (tmp_path / "site").exists()


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
    sample = Path(__file__).parents[3] / "docs" / "benchmark"
    report = validate_repository(sample)
    cards = re.compile(r"run 'bench'( again| with the card)|there is no task card")
    assert [fault for fault in report.faults if not cards.search(fault)] == []
    assert report.recomputed == 30
    assert sum(path.stat().st_size for path in sample.rglob("*") if path.is_file()) < 1_000_000
    real = sample.glob("*/openi.*/items/*.parquet")
    assert not [
        name for path in real for name in pd.read_parquet(path).columns if name.startswith("label.")
    ]
