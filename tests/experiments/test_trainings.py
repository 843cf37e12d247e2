"""The verb `experiment` on a small phantom: trained, evaluated, compared, resumed."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
from functools import partial

import numpy as np
import pytest
import torch

from medclip_debias.cli import run
from medclip_debias.data.executor import map_pieces
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.statistics import holm
from medclip_debias.evaluation.table import read_results
from medclip_debias.experiments import trainings
from medclip_debias.experiments.doses import language_eta
from medclip_debias.settings_files import load_yaml
from medclip_debias.training.step import Trainer
from tests.experiments.conftest import (
    GRID,
    MEAN,
    METHOD,
    METHODS,
    METRICS,
    SHUFFLED,
    TWO,
    measured,
    never,
    write_grid,
)

pytestmark = pytest.mark.usefixtures("quick_judgement")
GPUS: list[int] = []
PAIRS = [(METHOD, "CLIP"), (MEAN, "CLIP"), (SHUFFLED, "CLIP"), (METHOD, MEAN), (METHOD, SHUFFLED)]


@pytest.fixture(scope="module")
def results(done):
    return json.loads((done / "results.json").read_text())


def test_every_cell_is_a_run_with_an_evaluation_of_its_own(done, results, place):
    assert results["cells"] == len(results["rows"]) == 8
    values, counts = language_eta(PreparedSet.open(place.prepared), 0.2, 0.02)
    mean = np.average(list(values.values()), weights=list(counts.values()))
    of_method = {r["seed"]: r["train"] for r in results["rows"] if r["method"] == METHOD}
    for row in results["rows"]:
        evaluated = done / "runs" / row["folder"]
        found = read_results(evaluated / "results.json")
        assert row["metrics"]["grounding.cnr"] == found.value("grounding", "cnr")
        assert row["auc_by_class"] == found.by_class("zero_shot", "auc")
        auc = row["metrics"]["zero_shot.mean_auc"]
        assert np.mean(list(row["auc_by_class"].values())) == pytest.approx(auc)
        assert found["model"]["provenance"]["train"]["seed"] == row["seed"]
        with (evaluated.parent / "metrics.csv").open() as stream:
            last = list(csv.DictReader(stream))[-1]
        assert (int(last["step"]), float(last["loss"])) == (4, row["train"]["loss"])
        # The controls have the dose of the method.
        eta = load_yaml(evaluated.parent / "settings.yaml")["loss"].get("eta", {})
        if row["method"] == MEAN:
            assert (eta["kind"], eta["value"]) == ("constant", pytest.approx(mean))
            assert row["train"]["mean_eta"] == pytest.approx(mean, rel=1e-5)
        if row["method"] == SHUFFLED:
            dose = of_method[row["seed"]]["mean_eta"]
            assert eta["control"] == "shuffled"
            assert row["train"]["mean_eta"] == pytest.approx(dose, rel=1e-5)


def test_differences_are_those_of_the_means_over_seeds_under_one_correction(results):
    contrasts = results["figures"]["contrasts"]
    found = {(c["method"], c["against"], c["metric"]): c for c in contrasts}
    assert set(found) == {(*pair, key) for pair in PAIRS for key in METRICS}
    for (method, against, key), contrast in found.items():
        values = {
            name: np.mean([r["metrics"][key] for r in results["rows"] if r["method"] == name])
            for name in (method, against)
        }
        gap = values[method] - values[against]
        assert contrast["difference"] == pytest.approx(gap, abs=1e-9)
        low, high = contrast["interval"]
        assert low <= contrast["difference"] <= high
    assert results["figures"]["tests"] == len(contrasts) == 15
    assert [c["p_holm"] for c in contrasts] == holm([c["p"] for c in contrasts])
    assert {c["metric"] for c in contrasts if c["few_seeds"]} == {"grounding.cnr"}


def test_the_settings_beside_the_page_are_the_grid_and_nothing_is_measured_twice(
    done, results, monkeypatch, capsys
):
    monkeypatch.setattr(trainings.Trainings, "measure", never)
    monkeypatch.setattr(trainings.Trainings, "trial", never)
    before = (done / "figure.svg").read_bytes()
    words = ["experiment", str(done / "settings.yaml"), "--out", str(done), "--json"]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["figures"] == results["figures"]
    assert (done / "figure.svg").read_bytes() == before


def test_an_interrupted_cell_resumes_at_its_checkpoint_and_gives_the_same(
    place, done, tmp_path, monkeypatch, capsys
):
    path = write_grid(tmp_path / "grid.yaml", methods=TWO)
    words = ["experiment", str(path), *place.words(seeds="[0]"), "--json", "--out"]
    step, taken = Trainer.step, []

    def stop(self, number, *rest, **more):
        if len(taken) == 7:  # the second cell's last step
            raise KeyboardInterrupt
        taken.append(number)
        return step(self, number, *rest, **more)

    monkeypatch.setattr(Trainer, "step", stop)
    assert run([*words, str(tmp_path / "cut")]) == 130
    assert len(list((tmp_path / "cut/cells").glob("*.json"))) == 1
    monkeypatch.setattr(Trainer, "step", lambda *a, **more: taken.append(a[1]) or step(*a, **more))
    assert run([*words, str(tmp_path / "cut")]) == 0
    assert taken == [0, 1, 2, 3, 0, 1, 2, 2, 3]
    assert measured(tmp_path / "cut") == measured(done)
    assert "One seed says nothing" in " ".join(json.loads(capsys.readouterr().out)["findings"])


def test_a_cell_may_be_trained_by_train(place, tmp_path, monkeypatch, capsys):
    """A stop signal ends the training with its code."""
    path = write_grid(tmp_path / "grid.yaml", methods={"CLIP": METHODS["CLIP"]})
    words = ["experiment", str(path), *place.words(seeds="[5]", seconds_per_step=2)]
    words += ["--out", str(tmp_path / "out")]
    assert run([*words, "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["cells"], plan["missing"]) == (1, 1)
    assert plan["seconds"] >= 8
    step = Trainer.step

    def stop(self, number, *rest, **more):
        if number == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, number, *rest, **more)

    monkeypatch.setattr(Trainer, "step", stop)
    assert run(words) == 75
    assert "run the same command again" in capsys.readouterr().err
    monkeypatch.setattr(Trainer, "step", step)
    assert run(["train", plan["runs"][0]]) == 0
    monkeypatch.setattr(Trainer, "step", never)
    assert run(words) == 0
    assert len(list((tmp_path / "out/runs").iterdir())) == 1


def number_of_gpu(both):
    both.wait()  # each of the two workers has one piece
    return GPUS[-1]


def test_workers_are_spread_over_the_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", GPUS.append)
    begin = partial(trainings.Trainings.begin, None)
    with multiprocessing.Manager() as manager:
        pieces = [manager.Barrier(2, timeout=120)] * 2
        assert {*map_pieces(number_of_gpu, pieces, 2, start=begin, start_args=(2,))} == {0, 1}


def test_a_grid_may_start_from_a_trained_model(place, done, tmp_path, capsys):
    (start,) = done.glob("runs/CLIP_seed0_*/model")
    eta = {"kind": "mean_of", "language_model": str(place.language_model)}
    grid = {
        "base": {
            "prepared": str(place.prepared),
            "model": {"start_from": str(start)},
            "train": {"steps": 2, "batch_size": 16, "workers": 0},
        },
        "methods": {
            "CLIP": {"loss": {"kind": "clip"}},
            "mean": {"loss": {"kind": "debiased", "eta": eta}},
        },
        "seeds": [0],
        "baseline": "CLIP",
        "evaluate": {"bootstrap": 0},
        "seconds_per_step": 0.1,
    }
    (tmp_path / "grid.yaml").write_text(json.dumps(grid))
    words = ["experiment", str(tmp_path / "grid.yaml"), "--out", str(tmp_path / "out")]
    for count in (2, 0):
        assert run([*words, "--plan", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["missing"] == count
        assert run(words) == 0
        capsys.readouterr()


def test_a_cell_that_cannot_be_trained_is_named(place, tmp_path, capsys):
    method = "method 'CLIP' of setting 'rate 2e-3', seed 0: "
    for wrong, words in (
        ({"base.prepared": tmp_path / "nowhere"}, "nowhere"),
        ({"base.preprocessing.prepare.size": 64}, method),
    ):
        out = ["--out", str(tmp_path / "out")]
        assert run(["experiment", str(GRID), *place.words(**wrong), *out]) == 2
        assert words in capsys.readouterr().err
