"""The benchmark's run: one set, one pass, resumed, and every card that cannot be run is named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from medclip_debias.bench.card import Card, find_card
from medclip_debias.bench.record import read_record
from medclip_debias.bench.run import How, bench
from medclip_debias.cli import run as command
from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.data.prompts import default_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation import evaluate as evaluation
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.evaluation.table import read_results
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.phantom import PhantomSettings, generate
from medclip_debias.training.lock import locked

SIZE = 72
HOW = How(Draw(resamples=20), device="cpu", workers=1)
OBTAIN = "medclip-debias phantom ROOT/phantom"


def card(name: str, kind: str, metrics: list[str], **more) -> Card:
    data = {"archive": "mimic_cxr", "folders": ["phantom"], "obtain": OBTAIN, "synthetic": True}
    data |= more.pop("data", {})
    head = {"name": name, "version": 1, "kind": kind, "title": "t", "about": "a"}
    return Card.model_validate(head | {"data": data, "metrics": metrics, **more})


ZERO_SHOT = card("phantom/classes", "zero_shot", ["zero_shot.mean_auc"], prompts="chex5")
GROUNDING = card("phantom/boxes", "grounding", ["grounding.cnr", "grounding.miou"])
RETRIEVAL = card("phantom/reports", "retrieval", ["study_retrieval.report.recall"])
CARDS = [ZERO_SHOT, GROUNDING, RETRIEVAL]
FIRST = {card.name: card.metrics[0] for card in CARDS}


def save_model(folder: Path, language: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    text = TextEncoderSettings(folder=language, max_tokens=16)
    settings = ModelSettings(image=ImageEncoderSettings(arch="resnet_small"), text=text, dim=8)
    place = Preprocessing(prepare=PrepareSettings(size=SIZE), input_size=64)
    model = DualEncoder.create(settings, place)
    model.prompts = default_prompts()
    model.provenance = {"synthetic": True, "text": {"folder": "/somewhere/private/lm"}}
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two untrained models that prepare images alike."""
    root = tmp_path_factory.mktemp("models")
    words = ["Pulmonary edema.", "No pleural effusion.", "The lungs are clear.", "Pneumothorax"]
    small = LanguageModelSettings(
        vocabulary=80, hidden=16, layers=1, heads=2, steps=1, batch_size=8, max_tokens=16
    )
    train_masked_lm(words * 4, root / "lm", small)
    return [save_model(root / name, root / "lm", seed) for seed, name in enumerate(("one", "two"))]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A root with a phantom in it; do not write to it."""
    root = tmp_path_factory.mktemp("data")
    few = PhantomSettings(studies=50, test_studies=24, seed=3, min_side=72, max_side=88)
    generate(root / "phantom", few, None, 1)
    return root


@pytest.fixture(scope="module")
def tree(data):
    """The phantom of `data`; tests that damage it work on a copy."""
    return data / "phantom"


@pytest.fixture(scope="module")
def done(models, data, tmp_path_factory):
    """Results of both models on three cards; do not write to them."""
    out = tmp_path_factory.mktemp("results") / "results"
    return out, bench(list(map(str, models)), CARDS, data, out, HOW)


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


@pytest.fixture
def of_the_cards(monkeypatch):
    """`evaluate` measures what the cards ask for, and box retrieval, alone."""
    only = {"zero_shot", "grounding", "study_retrieval", "retrieval"}
    monkeypatch.setattr(evaluation, "plan", partial(evaluation.plan, only=only))


def prepared_of(out: Path) -> list[Path]:
    return sorted(p for p in (out / "cache" / "sets").iterdir() if p.is_dir())


def figures_of(outcome, model: str) -> list[float]:
    """Each card's first figure of a model."""
    records = [outcome.records[model, card.full_name] for card in CARDS]
    return [record.metrics[FIRST[record.card.name]].value for record in records]


def figures_of_evaluate(results) -> list[float]:
    """The same figures as `evaluate` has them."""
    metrics = (("zero_shot", "mean_auc"), ("grounding", "cnr"), ("study_retrieval", "recall"))
    return [results.value(*metric) for metric in metrics]


class TestTheWholeRun:
    def test_every_model_is_measured_on_every_card(self, done):
        out, outcome = done
        assert not outcome.not_run
        assert len(prepared_of(out)) == 1, "models and cards that prepare alike share the set"
        assert (
            set(outcome.records)
            == {(m, c.full_name) for m in ("one", "two") for c in CARDS}
            == outcome.fresh
        )
        for (model, _), record in outcome.records.items():
            assert read_record(out / model / f"{record.card.name.replace('/', '.')}@1") == record
            assert record.status == "complete"
            assert record.judged.missing == 0 < record.judged.found == record.judged.wanted

    @pytest.mark.usefixtures("of_the_cards")
    def test_figures_are_those_of_evaluate(self, done, models, tmp_path):
        out, outcome = done
        (folder,) = prepared_of(out)
        results = evaluation.evaluate(
            models[0], folder, tmp_path, bootstrap=20, heatmaps=0, prompts="chex5", device="cpu"
        )
        auc, cnr, recall = figures_of(outcome, "one")
        expected = figures_of_evaluate(results)
        assert cnr == pytest.approx(expected[1], abs=1e-5)
        assert [auc, recall] == pytest.approx([expected[0], expected[2]], abs=1e-6)
        figure = outcome.records["one", ZERO_SHOT.full_name].metrics["zero_shot.mean_auc"]
        interval = results.interval("zero_shot", "mean_auc")
        assert [figure.low, figure.high] == pytest.approx(interval, abs=1e-6)

    def test_nothing_that_is_shared_names_a_place_or_an_image(self, done, data):
        out, _ = done
        ids = pd.read_parquet(prepared_of(out)[0] / "images.parquet")["image_id"]
        for path in out.rglob("*.json"):
            if "cache" not in path.relative_to(out).parts:
                text = path.read_text()
                assert str(data) not in text
                assert str(out) not in text
                assert "/somewhere" not in text
                assert not any(name in text for name in ids)
        assert (out / "cache" / ".gitignore").read_text() == "*\n"


@pytest.mark.usefixtures("of_the_cards")
def test_peers_that_attend_have_the_figures_of_evaluate(models, data, save_peer, tmp_path):
    """Kept vectors of several rows a sentence, and the whole beside the regions."""
    language, out = models[0].parent / "lm", tmp_path / "results"
    kinds = ("carzero", "kad", "gloria")
    peers = [save_peer(tmp_path / kind, language, kind, SIZE) for kind in kinds]
    outcome = bench(list(map(str, peers)), CARDS, data, out, HOW)
    assert not outcome.not_run
    (folder,) = prepared_of(out)
    quick = {"bootstrap": 0, "heatmaps": 0, "prompts": "chex5", "device": "cpu"}
    for peer in peers:
        results = evaluation.evaluate(peer, folder, tmp_path / f"{peer.name}-own", **quick)
        if peer.name == "kad":  # its questions and regions are not to be compared
            assert "do not lie with its regions" in json.dumps(results["skipped"])
        else:
            assert results.details("retrieval")["phrases"] > 0
        expected = pytest.approx(figures_of_evaluate(results), abs=1e-5)
        assert figures_of(outcome, peer.name) == expected


class TestOnce:
    def test_a_finished_benchmark_asks_no_network(self, done, models, data, monkeypatch):
        out, before = done
        loaded = [DualEncoder.load(folder, check=False) for folder in models]
        monkeypatch.setattr(
            "medclip_debias.models.load.load_model", lambda folder, *_: loaded[models.index(folder)]
        )

        def refuse(*_):
            raise AssertionError("a network was asked")

        monkeypatch.setattr(DualEncoder, "encode_images", refuse)
        again = bench(list(map(str, models)), CARDS, data, out, HOW)
        assert again.records == before.records
        assert not again.fresh

    def test_each_image_is_encoded_once_and_a_killed_run_resumes(
        self, models, data, done, tmp_path, monkeypatch, encoded
    ):
        out = tmp_path / "results"
        shutil.copytree(done[0] / "cache" / "sets", out / "cache" / "sets")
        counting = DualEncoder.encode_images
        golden = 2  # images that every loading encodes to test the machine

        def stopping(self, images):
            if sum(encoded) >= golden + 8:
                raise KeyboardInterrupt
            return counting(self, images)

        monkeypatch.setattr(DualEncoder, "encode_images", stopping)
        how = How(Draw(resamples=20), device="cpu", workers=1, batch_size=4)
        with pytest.raises(KeyboardInterrupt):
            bench([str(models[0])], CARDS, data, out, how)
        assert sum(encoded) == golden + 8
        monkeypatch.setattr(DualEncoder, "encode_images", counting)
        outcome = bench([str(models[0])], CARDS, data, out, how)
        assert len(outcome.fresh) == 3
        (sums,) = (out / "cache" / "features").rglob("regions.sums")
        written = np.count_nonzero(np.fromfile(sums, np.uint32))
        assert written > 8
        assert sum(encoded) == 2 * golden + written
        here = outcome.records["one", ZERO_SHOT.full_name].metrics
        there = done[1].records["one", ZERO_SHOT.full_name].metrics["zero_shot.mean_auc"]
        assert here["zero_shot.mean_auc"].value == pytest.approx(there.value, abs=1e-6)

    def test_measuring_again_encodes_nothing_and_finds_the_same(
        self, done, models, data, tmp_path, encoded
    ):
        out = tmp_path / "results"
        shutil.copytree(done[0], out)
        words = list(map(str, models))
        again = bench(words, CARDS, data, out, replace(HOW, again=True))
        assert sum(encoded) == 2 * 2, "the golden samples alone, which test the machine"
        assert again.fresh == set(done[1].records)
        for key, record in again.records.items():
            assert record.metrics == done[1].records[key].metrics
            assert record.judged == done[1].records[key].judged
        wider = bench(words, CARDS, data, out, replace(HOW, draw=Draw(resamples=0)))
        assert all(f.low is None for r in wider.records.values() for f in r.metrics.values())

    def test_items_pair_between_machines(self, done, models, tree, tmp_path):
        """Another copy of the archive, in another place, prepared anew, with its own secret."""
        shutil.copytree(tree, tmp_path / "other" / "phantom")
        out = tmp_path / "results"
        bench([f"one={models[0]}"], [GROUNDING], tmp_path / "other", out, HOW)
        table = Path(GROUNDING.folder) / "items" / "phrases.parquet"
        ours, theirs = (pd.read_parquet(root / "one" / table) for root in (done[0], out))
        other = pd.read_parquet(done[0] / "two" / table)
        assert set(ours["item"]) == set(other["item"])
        assert list(ours["item"]) == list(theirs["item"])
        assert list(ours["patient"]) == list(theirs["patient"])


class TestDamage:
    def test_damaged_vectors_are_encoded_again(self, done, models, data, tmp_path):
        out = tmp_path / "results"
        shutil.copytree(done[0], out)
        (file,) = (out / "cache" / "features").glob(
            f"{DualEncoder.load(models[0], check=False).content_hash}/*/regions.f32"
        )
        with file.open("rb+") as stream:
            stream.write(np.full(file.stat().st_size // 4, 0.5, np.float32).tobytes())
        shutil.rmtree(out / "one" / ZERO_SHOT.folder)
        mended = bench([str(models[0])], [ZERO_SHOT], data, out, HOW)
        key = "one", ZERO_SHOT.full_name
        assert mended.records[key].metrics == done[1].records[key].metrics

    def test_a_damaged_record_is_measured_again(self, done, models, data, tmp_path):
        out = tmp_path / "results"
        shutil.copytree(done[0], out)
        (out / "one" / ZERO_SHOT.folder / "record.json").write_text("{")
        again = bench([str(models[0])], CARDS, data, out, HOW)
        assert again.fresh == {("one", ZERO_SHOT.full_name)}


class TestWhatCannotBeRun:
    def test_a_missing_archive_is_named_and_the_others_go_on(
        self, models, data, done, tmp_path, capsys
    ):
        lacking = card(
            "real/one",
            "zero_shot",
            ["zero_shot.mean_auc"],
            data={"archive": "vindr_cxr", "synthetic": False},
        )
        own = [
            write_card(tmp_path / f"{number}.yaml", c)
            for number, c in enumerate((ZERO_SHOT, lacking))
        ]
        words = ["bench", str(models[0]), "--data", str(data)]
        words += ["--out", str(with_sets(done, tmp_path))]
        words += ["--bootstrap", "0", "--workers", "1", "--tasks"]
        assert command([*words, ",".join(own)]) == 2  # it was named
        said = capsys.readouterr()
        assert "VinDr-CXR" in said.err
        assert "real/one@1" in said.err
        assert "zero_shot.mean_auc" in said.out
        assert command([*words, own[0]]) == 0

    def test_a_real_card_is_not_run_on_a_phantom(self, models, data, tmp_path):
        real = card("real/two", "zero_shot", ["zero_shot.mean_auc"], data={"synthetic": False})
        outcome = bench([str(models[0])], [real], data, tmp_path / "out", HOW)
        assert "is a phantom" in outcome.not_run["", "real/two@1"]
        assert not (tmp_path / "out").exists()

    def test_half_an_archive_is_one_sentence(self, models, tree, tmp_path):
        shutil.copytree(tree, tmp_path / "data" / "phantom")
        shutil.rmtree(tmp_path / "data" / "phantom" / "files")
        outcome = bench([str(models[0])], CARDS, tmp_path / "data", tmp_path / "out", HOW)
        assert len(outcome.not_run) == 3
        assert not outcome.records

    def test_missing_images_are_counted_and_more_than_one_percent_are_marked(
        self, models, tree, done, tmp_path
    ):
        shutil.copytree(tree, tmp_path / "data" / "phantom")
        table = pd.read_parquet(prepared_of(done[0])[0] / "images.parquet")
        gone = list(table.loc[table["split"] == "test", "image_id"][:3])
        gone += list(table.loc[table["split"] == "train", "image_id"][:5])
        whole = bench([str(models[0])], [ZERO_SHOT], tmp_path / "data", tmp_path / "out", HOW)
        assert [record.status for record in whole.records.values()] == ["complete"]
        for name in gone:
            next((tmp_path / "data" / "phantom").rglob(f"{name}.*")).unlink()
        outcome = bench([str(models[0])], [ZERO_SHOT], tmp_path / "data", tmp_path / "out", HOW)
        assert outcome.fresh, "the archive changed, so the card is measured again"
        (record,) = outcome.records.values()
        before = done[1].records["one", ZERO_SHOT.full_name].judged
        assert record.status == "incomplete"
        assert record.judged.missing == 3
        assert record.judged.wanted == before.wanted
        assert record.judged.list_hash != before.list_hash
        assert "3 of the" in record.notes[0]

    def test_a_fragment_of_an_archive_s_boxes_is_incomplete(self, models, data, done, tmp_path):
        """Every image of a small copy is there, and the box file that came with it was cut."""
        judged = done[1].records["one", GROUNDING.full_name].judged
        phrases = PreparedSet.open(prepared_of(done[0])[0]).phrases
        rows = pd.read_parquet(done[0] / "one" / GROUNDING.folder / "items" / "phrases.parquet")
        assert judged.boxes == sum(len(boxes) for boxes in phrases["boxes"]) >= len(rows)
        out = with_sets(done, tmp_path)
        for wanted, status in ((judged.boxes, "complete"), (20 * judged.boxes, "incomplete")):
            lists = {"list": {"boxes": wanted}}
            asked = card("phantom/boxes", "grounding", ["grounding.cnr"], data=lists)
            plain = card("phantom/boxes", "grounding", ["grounding.cnr"])
            assert asked.content_hash == plain.content_hash, "no figure depends on it"
            outcome = bench([str(models[0])], [asked], data, out, replace(HOW, again=True))
            record = outcome.records["one", GROUNDING.full_name]
            assert (record.status, record.judged.boxes_wanted) == (status, wanted)
        assert f"{judged.boxes} of the card's {wanted} boxes are in this archive." in record.notes
        assert f"{19 * judged.boxes} of {wanted} boxes are missing" in record.judged.lacks

    def test_the_list_of_another_release_is_refused(self, models, data, done, tmp_path):
        names = pd.read_parquet(prepared_of(done[0])[0] / "images.parquet")["image_id"][:20]
        root = tmp_path / "data"
        shutil.copytree(data, root)
        (root / "phantom" / "list.txt").write_text("\n".join([*names, "of_no_image"]))
        fitting, other = (
            card(
                f"phantom/{name}",
                "zero_shot",
                ["zero_shot.mean_auc"],
                data={"list": {"file": "list.txt", "split": "all", **wanted}},
            )
            for name, wanted in (("listed", {"images": 21}), ("other", {"hash": "0" * 16}))
        )
        outcome = bench([str(models[0])], [fitting, other], root, tmp_path / "out", HOW)
        assert "another release" in outcome.not_run["", "phantom/other@1"]
        record = outcome.records["one", "phantom/listed@1"]
        assert (record.judged.found, record.judged.missing) == (20, 1)
        assert record.status == "incomplete"
        results = read_results(tmp_path / "out" / "one" / fitting.folder / "results.json")
        assert results["counts"]["images"] == 20

    def test_labels_of_another_version_are_named(self, models, tree, tmp_path):
        shutil.copytree(tree, tmp_path / "data" / "phantom")
        for name in ("mimic-cxr-2.0.0-chexpert.csv.gz", "mimic-cxr-2.1.0-test-set-labeled.csv"):
            path = tmp_path / "data" / "phantom" / name
            pd.read_csv(path, dtype=str).drop(columns="Edema").to_csv(path, index=False)
        out = tmp_path / "out"
        outcome = bench([str(models[0])], [ZERO_SHOT], tmp_path / "data", out, HOW)
        reason = outcome.not_run["one", ZERO_SHOT.full_name]
        assert "no column for Edema" in reason
        assert OBTAIN in reason
        assert not (out / "one").exists()

    def test_classes_that_a_label_map_leaves_out_are_said(self, models, data, done, tmp_path):
        mapped = card(
            "phantom/map",
            "zero_shot",
            ["zero_shot.mean_auc"],
            label_map="siim",
            prompts="chex5",
        )
        outcome = bench([str(models[0])], [mapped], data, with_sets(done, tmp_path), HOW)
        (record,) = outcome.records.values()
        assert record.notes[0].startswith("Not judged, and in no mean: ")
        assert "Edema" in record.notes[0]

    def test_a_model_without_regions_is_named_on_a_grounding_card(
        self, models, data, done, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(DualEncoder, "grid", property(lambda _: RegionGrid(1, 1, 64, 32)))
        out = with_sets(done, tmp_path)
        outcome = bench([str(models[0])], [GROUNDING], data, out, HOW)
        assert "no regions" in outcome.not_run["one", GROUNDING.full_name]

    def test_names_of_models_and_folders(self, models, data, done, tmp_path):
        with pytest.raises(UserError, match="holds results of another model"):
            bench([f"one={models[1]}"], CARDS, data, done[0], HOW)
        with pytest.raises(UserError, match="Two models"):
            bench([str(models[0]), f"one={models[1]}"], CARDS, data, tmp_path / "out", HOW)
        with pytest.raises(UserError, match="cannot name"):
            bench([f"cache={models[0]}"], CARDS, data, tmp_path / "out", HOW)
        with (
            locked(tmp_path / "out" / "cache"),
            pytest.raises(UserError, match="another 'bench' works in this folder"),
        ):
            bench([str(models[0])], CARDS, data, tmp_path / "out", HOW)
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match="is a file"):
            bench([str(models[0])], CARDS, data, tmp_path / "file", HOW)

    def test_an_unknown_preset_is_named_before_any_work(self, models, data, tmp_path):
        odd = card("phantom/odd", "zero_shot", ["zero_shot.mean_auc"], preset="carzreo")
        outcome = bench([str(models[0])], [odd], data, tmp_path / "out", HOW)
        assert "carzreo" in outcome.not_run["", odd.full_name]
        assert not (tmp_path / "out").exists()

    def test_a_card_of_another_version(self):
        with pytest.raises(UserError, match="is at version 2 here, not 7"):
            find_card("phantom/zero-shot@7")


def test_models_run_on_a_cluster_as_here(done, models, data, tmp_path):
    """A real scheduler and a worker process on loopback."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        how = replace(HOW, cluster=cluster.scheduler_address)
        out = with_sets(done, tmp_path)
        outcome = bench(list(map(str, models)), [ZERO_SHOT], data, out, how)
    assert not outcome.not_run
    assert outcome.fresh == {(name, ZERO_SHOT.full_name) for name in ("one", "two")}
    for key, record in outcome.records.items():
        assert record.metrics == done[1].records[key].metrics
        assert record.judged == done[1].records[key].judged


def test_the_verbs_around_it(data, capsys):
    assert command(["bench", "list", "--data", str(data)]) == 0
    assert "phantom/zero-shot@2" in capsys.readouterr().out
    assert command(["bench", "show", "phantom/zero-shot", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prompts"] == "chex5"


def with_sets(done, tmp_path: Path) -> Path:
    """A folder of results that has the prepared set and nothing else."""
    shutil.copytree(done[0] / "cache" / "sets", tmp_path / "out" / "cache" / "sets")
    return tmp_path / "out"


def write_card(path: Path, content: Card) -> str:
    path.write_text(yaml.safe_dump(content.model_dump(mode="json")))
    return str(path)


def test_relative_folders_change_no_word_of_the_results(models, data, done, tmp_path, monkeypatch):
    """A model's folder called ``e`` is no reason to write MODEL for every e."""
    monkeypatch.chdir(tmp_path)
    Path("e").symlink_to(models[0])
    Path("out/cache").mkdir(parents=True)
    shutil.copytree(done[0] / "cache" / "sets", "out/cache/sets")
    shutil.copytree(done[0] / "cache" / "features", "out/cache/features")
    bench(["one=e"], [ZERO_SHOT], data, Path("out"), HOW)
    place = Path("one") / ZERO_SHOT.folder / "results.json"
    ours, before = (json.loads((root / place).read_text()) for root in (Path("out"), done[0]))
    assert ours["prompts"] == before["prompts"]
    assert ours["metrics"] == before["metrics"]
    assert ours["notes"] == before["notes"]
