"""The benchmark's run: one set, one pass, resumed, and every card that cannot be run is named."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from medclip_debias.bench.card import Card
from medclip_debias.bench.images import CardInputs
from medclip_debias.bench.record import read_record
from medclip_debias.bench.run import How, bench
from medclip_debias.cli import run as command
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation import evaluate as evaluation
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.evaluation.table import read_results
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.phantom import PhantomSettings, generate
from medclip_debias.training.lock import locked
from tests.bench.models import bench_peer, save_language_model, save_model

SIZE = 72
HOW = How(Draw(resamples=20), device="cpu", workers=1)
OBTAIN = "medclip-debias phantom ROOT/phantom"
GOLDEN = 2  # images that every loading encodes to test the machine


def card(name: str, kind: str, *metrics: str, **more) -> Card:
    data = {"archive": "mimic_cxr", "folders": ["phantom"], "obtain": OBTAIN, "synthetic": True}
    data |= more.pop("data", {})
    head = {"name": name, "version": 1, "kind": kind, "title": "t", "about": "a"}
    return Card.model_validate(head | {"data": data, "metrics": metrics, **more})


AUC = "zero_shot.mean_auc"
ZERO_SHOT = card("phantom/classes", "zero_shot", AUC, prompts="chex5")
GROUNDING = card("phantom/boxes", "grounding", "grounding.cnr", "grounding.miou")
CARDS = [
    ZERO_SHOT,
    GROUNDING,
    card("phantom/reports", "retrieval", "study_retrieval.report.recall"),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two untrained models that prepare images alike."""
    root = tmp_path_factory.mktemp("models")
    words = ["Pulmonary edema.", "No pleural effusion.", "The lungs are clear.", "Pneumothorax"]
    language = save_language_model(root / "lm", words * 4)
    return [
        str(save_model(root / name, language, SIZE, n)) for n, name in enumerate(["one", "two"])
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A root with a phantom in it; tests that damage it work on a copy."""
    root = tmp_path_factory.mktemp("data")
    few = PhantomSettings(studies=30, test_studies=16, seed=3, min_side=72, max_side=88)
    generate(root / "phantom", few, None, 1)
    return root


@pytest.fixture(scope="module")
def done(models, data, tmp_path_factory):
    """Results of both models on three cards; do not write to them."""
    out = tmp_path_factory.mktemp("results") / "results"
    return out, bench(models, CARDS, data, out, HOW)


@pytest.fixture
def out(done, tmp_path):
    """A folder of results that has the prepared set and nothing else."""
    shutil.copytree(done[0] / "cache" / "sets", tmp_path / "out" / "cache" / "sets")
    return tmp_path / "out"


@pytest.fixture
def copy(done, tmp_path):
    """A copy of the results with their cache."""
    return shutil.copytree(done[0], tmp_path / "copy")


@pytest.fixture
def encoded(monkeypatch):
    """Counts the images that any model encodes."""
    seen: list[int] = []
    encode = DualEncoder.encode_images

    def counting(self, images):
        seen.append(len(images))
        return encode(self, images)

    monkeypatch.setattr(DualEncoder, "encode_images", counting)
    return seen


def set_of(out: Path) -> Path:
    (folder,) = (path for path in (out / "cache" / "sets").iterdir() if path.is_dir())
    return folder


def figures_of(outcome, model: str) -> list[float]:
    """Each card's first figure of a model."""
    records = [outcome.records[model, one.full_name] for one in CARDS]
    return [next(iter(record.metrics.values())).value for record in records]


def evaluated(model, prepared, out, monkeypatch, **more):
    """What `evaluate` says of what the cards ask for, and of box retrieval; and those figures."""
    only = {"zero_shot", "grounding", "study_retrieval", "retrieval"}
    monkeypatch.setattr(evaluation, "plan", partial(evaluation.plan, only=only))
    how = {"bootstrap": 0, "heatmaps": 0, "prompts": "chex5", "device": "cpu"} | more
    results = evaluation.evaluate(model, prepared, out, **how)
    metrics = (("zero_shot", "mean_auc"), ("grounding", "cnr"), ("study_retrieval", "recall"))
    return results, [results.value(*metric) for metric in metrics]


def test_every_model_is_measured_on_every_card_as_evaluate_measures_it(
    done, models, data, tmp_path, monkeypatch
):
    out, outcome = done
    assert not outcome.not_run
    prepared = set_of(out)  # models and cards that prepare alike share it
    keys = {(model, one.full_name) for model in ("one", "two") for one in CARDS}
    assert set(outcome.records) == keys == outcome.fresh
    for (model, _), record in outcome.records.items():
        assert read_record(out / model / record.card.folder) == record
        assert record.status == "complete"
        assert record.judged.missing == 0 < record.judged.found == record.judged.wanted
    results, figures = evaluated(models[0], prepared, tmp_path, monkeypatch, bootstrap=20)
    assert figures_of(outcome, "one") == pytest.approx(figures, abs=1e-5)
    figure = outcome.records["one", ZERO_SHOT.full_name].metrics[AUC]
    interval = results.interval("zero_shot", "mean_auc")
    assert [figure.low, figure.high] == pytest.approx(interval, abs=1e-6)
    # Nothing that is shared names a place or an image.
    private = [str(data), str(out), "/somewhere"]
    private += pd.read_parquet(prepared / "images.parquet")["image_id"].tolist()
    for path in (p for m in ("one", "two") for p in (out / m).rglob("*.json")):
        assert not any(word in path.read_text() for word in private)
    assert (out / "cache" / ".gitignore").read_text() == "*\n"


CARZERO = {
    "image": {"kind": "vit"},
    "text": {"kind": "words", "positions": 20},
    "fusion": {"kind": "query_attention", "positions": 20, "heads": 2},
    "shapes": {
        "fusion.layers.0.linear1.weight": (8, 16),
        "image.model.patch_embed.proj.weight": (16, 3, 16, 16),
        "image.model.pos_embed": (1, 17, 16),
        "image.model.blocks.0.mlp.fc1.weight": (24, 16),
    },
}


def test_a_peer_that_attends_has_the_figures_of_evaluate(models, data, out, tmp_path, monkeypatch):
    """Kept vectors of several rows a sentence."""
    peer = bench_peer(Path(models[0]).parent / "lm", SIZE, kind="carzero", **CARZERO)
    for parameter in peer.parameters():  # the numbers of a deep network would grow
        torch.nn.init.normal_(parameter, std=0.3)
    peer.save(tmp_path / "carzero")
    outcome = bench([str(tmp_path / "carzero")], CARDS, data, out, HOW)
    assert not outcome.not_run
    place = tmp_path / "carzero", set_of(out), tmp_path / "own"
    results, figures = evaluated(*place, monkeypatch)
    assert results.details("retrieval")["phrases"] > 0
    ours = figures_of(outcome, "carzero")
    assert ours[0] == pytest.approx(figures[0], abs=5e-3)  # of near ties two change places
    assert ours[1:] == pytest.approx(figures[1:], abs=1e-5)


# ------------------------------------------------------------------------ what is done once


def test_each_image_is_encoded_once_and_a_killed_run_resumes(
    models, data, done, out, monkeypatch, encoded
):
    counting = DualEncoder.encode_images

    def stopping(self, images):
        if sum(encoded) >= GOLDEN + 8:
            raise KeyboardInterrupt
        return counting(self, images)

    monkeypatch.setattr(DualEncoder, "encode_images", stopping)
    how = replace(HOW, batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        bench(models[:1], CARDS, data, out, how)
    assert sum(encoded) == GOLDEN + 8
    monkeypatch.setattr(DualEncoder, "encode_images", counting)
    outcome = bench(models[:1], CARDS, data, out, how)
    assert len(outcome.fresh) == 3
    (folder,) = (out / "cache" / "features").rglob("regions")
    written = sum(len(np.load(path)["keys"]) for path in folder.iterdir())
    assert written > 8
    assert sum(encoded) == 2 * GOLDEN + written
    assert figures_of(outcome, "one") == pytest.approx(figures_of(done[1], "one"), abs=1e-5)


def test_what_is_done_is_kept_what_is_damaged_made_again_and_again_encodes_nothing(
    done, models, data, copy, encoded
):
    assert not bench(models, CARDS, data, copy, HOW).fresh
    (copy / "one" / ZERO_SHOT.folder / "record.json").write_text("{")
    mended = bench(models[:1], CARDS, data, copy, HOW)
    assert mended.fresh == {("one", ZERO_SHOT.full_name)}
    again = bench(models[:1], CARDS[:2], data, copy, replace(HOW, again=True))
    assert len(again.fresh) == 2
    for key, record in (mended.records | again.records).items():
        assert record.metrics == done[1].records[key].metrics
        assert record.judged == done[1].records[key].judged
    assert sum(encoded) == 4 * GOLDEN
    plain = bench(models[:1], CARDS[:1], data, copy, replace(HOW, draw=Draw(resamples=0)))
    assert all(f.low is None for record in plain.records.values() for f in record.metrics.values())


def test_a_file_that_took_anothers_place_is_read_whatever_its_date(
    models, data, copy, tmp_path, monkeypatch
):
    labels, of, files = tmp_path / "labels.csv", CardInputs.of, {}
    labels.write_text("of another release")
    os.utime(labels, (0, 0))  # as cp -p and rsync keep it
    monkeypatch.setattr(CardInputs, "of", lambda *of_card: replace(of(*of_card), files=files))
    assert not bench(models[:1], CARDS[:1], data, copy, HOW).not_run
    files["labels"] = labels
    (reason,) = bench(models[:1], CARDS[:1], data, copy, HOW).not_run.values()
    assert "labels.csv" in reason


def test_another_place_of_everything_changes_no_word_of_the_results(
    models, data, done, tmp_path, monkeypatch
):
    """Items pair, and a model's folder called ``e`` is no reason to write MODEL for every e."""
    shutil.copytree(data, tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    Path("e").symlink_to(models[0])
    bench(["one=e"], [ZERO_SHOT, GROUNDING], Path("other"), Path("out"), HOW)
    place = Path("one") / ZERO_SHOT.folder / "results.json"
    ours, before = (json.loads((root / place).read_text()) for root in (Path("out"), done[0]))
    assert [ours[key] for key in ("prompts", "notes")] == [
        before[key] for key in ("prompts", "notes")
    ]
    assert [row["value"] for row in ours["metrics"]] == pytest.approx(
        [row["value"] for row in before["metrics"]], abs=1e-6, nan_ok=True
    )
    table = Path("one") / GROUNDING.folder / "items" / "phrases.parquet"
    ours, before = (pd.read_parquet(root / table) for root in (Path("out"), done[0]))
    assert ours[["item", "patient"]].equals(before[["item", "patient"]])


def test_models_run_on_a_cluster_as_here(done, models, data, out, monkeypatch):
    """A cluster is the executor's (tests/data); what goes to a worker and back is pickled."""

    def on_a_cluster(function, pieces, *, cluster):
        assert cluster == "tcp://host:1"
        for piece in pieces:
            yield pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(piece)))))

    monkeypatch.setattr("medclip_debias.bench.run.map_pieces", on_a_cluster)
    lines = []
    how = replace(HOW, cluster="tcp://host:1", say=lines.append)
    outcome = bench(models[1:], [ZERO_SHOT], data, out, how)
    assert sum(f" on {ZERO_SHOT.full_name}: " in line for line in lines) == 1
    assert outcome.fresh == set(outcome.records) == {("two", ZERO_SHOT.full_name)}
    for key, record in outcome.records.items():
        assert record.metrics == done[1].records[key].metrics
        assert record.judged == done[1].records[key].judged


# ------------------------------------------------------------------------ what cannot be run


def test_cards_that_cannot_be_run_are_named_and_the_others_go_on(
    models, data, out, tmp_path, capsys
):
    lacking = card("real/one", "zero_shot", AUC, data={"archive": "vindr_cxr", "synthetic": False})
    own = [str(tmp_path / f"{number}.yaml") for number in range(2)]
    for path, content in zip(own, (ZERO_SHOT, lacking), strict=True):
        Path(path).write_text(yaml.safe_dump(content.model_dump(mode="json")))
    words = ["bench", models[0], "--data", str(data), "--out", str(out)]
    words += ["--bootstrap", "0", "--workers", "1", "--tasks"]
    assert command([*words, ",".join(own)]) == 2  # it was named
    printed = capsys.readouterr()
    assert "VinDr-CXR" in printed.err
    assert "real/one@1" in printed.err
    assert AUC in printed.out
    assert command([*words, own[0]]) == 0
    assert command(["bench", "list", "--data", str(data)]) == 0
    assert "phantom/zero-shot@2" in capsys.readouterr().out
    assert command(["bench", "show", "phantom/zero-shot", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompts"] == "chex5"


def test_missing_images_are_counted_and_more_than_one_percent_are_marked(
    models, data, done, out, tmp_path
):
    root = shutil.copytree(data, tmp_path / "data")
    bench(models[:1], [ZERO_SHOT], root, out, HOW)
    table = pd.read_parquet(set_of(done[0]) / "images.parquet")
    gone = list(table.loc[table["split"] == "test", "image_id"][:3])
    gone += list(table.loc[table["split"] == "train", "image_id"][:5])
    for name in gone:
        next(root.rglob(f"{name}.*")).unlink()
    outcome = bench(models[:1], [ZERO_SHOT], root, out, HOW)
    assert outcome.fresh, "the archive changed, so the card is measured again"
    (record,) = outcome.records.values()
    before = done[1].records["one", ZERO_SHOT.full_name].judged
    assert (record.status, record.judged.missing) == ("incomplete", 3)
    assert record.judged.wanted == before.wanted
    assert record.judged.list_hash != before.list_hash
    assert "3 of the" in record.notes[0]


def test_a_fragment_of_an_archive_s_boxes_is_incomplete(models, data, done, copy):
    """Every image of a small copy is there, and the box file that came with it was cut."""
    judged = done[1].records["one", GROUNDING.full_name].judged
    boxes = PreparedSet.open(set_of(done[0])).phrases["boxes"]
    assert judged.boxes == sum(len(each) for each in boxes)
    wanted = 20 * judged.boxes
    asked = card("phantom/boxes", "grounding", *GROUNDING.metrics, data={"list": {"boxes": wanted}})
    assert asked.content_hash == GROUNDING.content_hash, "no figure depends on it"
    outcome = bench(models[:1], [asked], data, copy, replace(HOW, again=True))
    record = outcome.records["one", GROUNDING.full_name]
    assert (record.status, record.judged.boxes_wanted) == ("incomplete", wanted)
    assert f"{judged.boxes} of the card's {wanted} boxes are in this archive." in record.notes
    assert f"{19 * judged.boxes} of {wanted} boxes are missing" in record.judged.lacks


def test_a_list_of_images_alone_is_judged(models, data, done, tmp_path):
    names = pd.read_parquet(set_of(done[0]) / "images.parquet")["image_id"][:20]
    root, out = shutil.copytree(data, tmp_path / "data"), tmp_path / "out"
    (root / "phantom" / "list.txt").write_text("\n".join([*names, "of_no_image"]))
    lists = {"list": {"file": "list.txt", "split": "all", "images": 21}}
    listed = card("phantom/listed", "zero_shot", AUC, data=lists)
    (record,) = bench(models[:1], [listed], root, out, HOW).records.values()
    assert (record.judged.found, record.judged.missing, record.status) == (20, 1, "incomplete")
    results = read_results(out / "one" / listed.folder / "results.json")
    assert results["counts"]["images"] == 20


def test_a_model_without_regions_is_named_on_a_grounding_card(models, data, out, monkeypatch):
    monkeypatch.setattr(DualEncoder, "grid", property(lambda _: RegionGrid(1, 1, 64, 32)))
    outcome = bench(models[:1], [GROUNDING], data, out, HOW)
    assert "no regions" in outcome.not_run["one", GROUNDING.full_name]


def test_names_of_models_and_folders(models, done, data, tmp_path):
    out = tmp_path / "out"
    for words, folder, sentence in (
        ([f"one={models[1]}"], done[0], "holds results of another model"),
        ([models[0], f"one={models[1]}"], out, "Two models"),
        ([f"cache={models[0]}"], out, "cannot name"),
    ):
        with pytest.raises(UserError, match=sentence):
            bench(words, CARDS, data, folder, HOW)
    waits = r"another 'bench' \(process .* wait for it"
    with locked(out / "cache"), pytest.raises(UserError, match=waits):
        bench(models, CARDS, data, out, HOW)
