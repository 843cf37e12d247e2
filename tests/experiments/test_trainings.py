"""The verb `experiment` on a small phantom: trained, evaluated, compared, resumed."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from medclip_debias.cli import run
from medclip_debias.evaluation import evaluate as evaluation
from medclip_debias.evaluation.statistics import holm
from medclip_debias.evaluation.table import read_results
from medclip_debias.experiments import trainings
from medclip_debias.settings_files import load_yaml

GRID = Path(__file__).parents[2] / "configs/experiments/phantom_small.yaml"
METHOD, MEAN, SHUFFLED = "eta", "its mean", "its values shuffled"
METHODS = {
    "CLIP": {"loss": {"kind": "clip"}},
    METHOD: {"loss": {"kind": "debiased", "eta": {"kind": "language_model", "k": 0.02}}},
    MEAN: {"loss": {"kind": "debiased", "eta": {"kind": "mean_of", "k": 0.02}}},
    SHUFFLED: {"loss": {"kind": "debiased", "eta": {"kind": "shuffled", "k": 0.02}}},
}
pytestmark = pytest.mark.usefixtures("quick_judgement")
METRICS = ["zero_shot.mean_auc", "grounding.cnr", "study_retrieval.report.median_rank"]


def write_grid(path: Path, **changes) -> Path:
    """The packaged small grid with other parts, as a file; None leaves a part out."""
    content = load_yaml(GRID)
    content["base"]["extends"] = str(GRID.parents[1] / "phantom/base.yaml")
    content |= {"settings": None} | changes
    content = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(scope="module")
def grid(tmp_path_factory) -> Path:
    """Every method of this test, with its controls."""
    path = tmp_path_factory.mktemp("file") / "small.yaml"
    controls = {METHOD: [MEAN, SHUFFLED]}
    return write_grid(path, methods=METHODS, controls=controls, metrics=METRICS)


@pytest.fixture(scope="module")
def done(grid, place, tmp_path_factory):
    """Its folder after one run, and what the verb printed as JSON."""
    out = tmp_path_factory.mktemp("grid") / "out"
    assert run(["experiment", str(grid), *place.words(), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def results(done):
    return json.loads((done / "results.json").read_text())


def test_every_cell_is_a_run_with_an_evaluation_of_its_own(done, results):
    assert results["cells"] == len(results["rows"]) == 8
    for row in results["rows"]:
        evaluated = done / "runs" / row["folder"]
        found = read_results(evaluated / "results.json")
        assert row["metrics"]["grounding.cnr"] == found.value("grounding", "cnr")
        assert row["auc_by_class"] == found.by_class("zero_shot", "auc")
        assert np.mean(list(row["auc_by_class"].values())) == pytest.approx(
            row["metrics"]["zero_shot.mean_auc"]
        )
        assert found["model"]["provenance"]["train"]["seed"] == row["seed"]
        with (evaluated.parent / "metrics.csv").open() as stream:
            last = list(csv.DictReader(stream))[-1]
        assert (int(last["step"]), float(last["loss"])) == (4, row["train"]["loss"])


def test_differences_are_those_of_the_means_over_seeds(results):
    means = {
        (method, key): np.mean(
            [r["metrics"][key] for r in results["rows"] if r["method"] == method]
        )
        for method in METHODS
        for key in METRICS
    }
    contrasts = results["figures"]["contrasts"]
    pairs = [(METHOD, "CLIP"), (MEAN, "CLIP"), (SHUFFLED, "CLIP")]
    pairs += [(METHOD, MEAN), (METHOD, SHUFFLED)]
    found = {(c["method"], c["against"], c["metric"]): c for c in contrasts}
    assert set(found) == {(*pair, key) for pair in pairs for key in METRICS}
    for (method, against, key), contrast in found.items():
        gap = means[method, key] - means[against, key]
        assert contrast["difference"] == pytest.approx(gap, abs=1e-9)
        low, high = contrast["interval"]
        assert low <= contrast["difference"] <= high


def test_one_correction_covers_the_baseline_and_the_controls(results):
    contrasts = results["figures"]["contrasts"]
    assert results["figures"]["tests"] == len(contrasts) == 15
    assert [c["p_holm"] for c in contrasts] == holm([c["p"] for c in contrasts])


def test_the_controls_have_the_dose_of_the_method(done, results, place):
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.experiments.doses import language_eta

    values, counts = language_eta(PreparedSet.open(place.prepared), 0.2, 0.02)
    mean = np.average(list(values.values()), weights=list(counts.values()))
    for row in results["rows"]:
        settings = load_yaml((done / "runs" / row["folder"]).parent / "settings.yaml")
        eta = settings["loss"].get("eta", {})
        if row["method"] == MEAN:
            assert (eta["kind"], eta["value"]) == ("constant", pytest.approx(mean))
            assert row["train"]["mean_eta"] == pytest.approx(mean, rel=1e-5)
        if row["method"] == SHUFFLED:
            assert eta["control"] == "shuffled"
            method = next(
                r for r in results["rows"] if (r["method"], r["seed"]) == (METHOD, row["seed"])
            )
            assert row["train"]["mean_eta"] == pytest.approx(method["train"]["mean_eta"], rel=1e-5)


def test_tables_plot_and_page_are_written(done, results):
    page = (done / "page.md").read_text()
    assert f"- {METHOD} against {MEAN}: " in page
    assert "### difference to the controls" in page
    assert "15 differences are one family for Holm's correction" in page
    assert (done / "tables.tex").read_text().count("\\begin{table}") == 5
    assert (done / "figure.png").stat().st_size > 10_000
    assert load_yaml(done / "settings.yaml")["methods"] == METHODS


def test_nothing_is_measured_twice_whatever_it_is_called(
    grid, place, done, results, monkeypatch, capsys
):
    def never(self, cell):
        raise AssertionError("measured again")

    monkeypatch.setattr(trainings.Trainings, "measure", never)
    monkeypatch.setattr(trainings.Trainings, "trial", never)
    before = (done / "figure.svg").read_bytes()
    words = ["experiment", str(grid), *place.words(), "--out", str(done), "--json"]
    assert run(words) == 0
    assert json.loads(capsys.readouterr().out)["figures"] == results["figures"]
    assert (done / "figure.svg").read_bytes() == before
    methods = {"plain" if name == "CLIP" else name: own for name, own in METHODS.items()}
    other = write_grid(grid.with_name("renamed.yaml"), methods=methods, baseline="plain")
    assert run(["experiment", str(other), *place.words(), "--out", str(done), "--plan"]) == 0
    assert "missing: 0" in capsys.readouterr().out
    # The settings beside the page are the grid.
    assert run(["experiment", str(done / "settings.yaml"), "--out", str(done), "--plan"]) == 0
    assert "missing: 0" in capsys.readouterr().out


def test_an_interrupted_cell_resumes_at_its_checkpoint_and_gives_the_same(
    place, tmp_path, monkeypatch, capsys
):
    from medclip_debias.training.step import Trainer

    methods = {name: METHODS[name] for name in ("CLIP", SHUFFLED)}
    path = write_grid(tmp_path / "grid.yaml", methods=methods)
    words = ["experiment", str(path), *place.words(seeds="[0]", seconds_per_step=0.1)]
    assert run([*words, "--out", str(tmp_path / "whole"), "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    step, taken = Trainer.step, []

    def stop(self, number, *rest, **more):
        if len(taken) == 7:  # the second cell's last step
            raise KeyboardInterrupt
        taken.append(number)
        return step(self, number, *rest, **more)

    monkeypatch.setattr(Trainer, "step", stop)
    assert run([*words, "--out", str(tmp_path / "cut")]) == 130
    assert len(list((tmp_path / "cut/cells").glob("*.json"))) == 1
    monkeypatch.setattr(
        Trainer, "step", lambda s, n, *r, **m: taken.append(n) or step(s, n, *r, **m)
    )
    assert run([*words, "--out", str(tmp_path / "cut"), "--json"]) == 0
    captured = capsys.readouterr()
    assert taken == [0, 1, 2, 3, 0, 1, 2, 2, 3]
    assert json.loads(captured.out)["figures"] == whole["figures"]
    assert "One seed says nothing" in " ".join(whole["findings"])


def test_a_cell_may_be_trained_by_train_and_a_new_evaluation_trains_nothing(
    place, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(evaluation, "plan", evaluation.plan.func)  # with every protocol
    methods = {"CLIP": METHODS["CLIP"]}
    path = write_grid(tmp_path / "grid.yaml", methods=methods, metrics=None)
    given = {"seeds": "[5]", "seconds_per_step": 2}
    out = ["--out", str(tmp_path / "out")]
    assert run(["experiment", str(path), *place.words(**given), *out, "--plan", "--json"]) == 0
    captured = capsys.readouterr()
    plan = json.loads(captured.out)
    assert (plan["cells"], plan["missing"]) == (1, 1)
    assert plan["seconds"] >= 8
    assert not (tmp_path / "out/results.json").exists()
    assert run(["train", plan["runs"][0]]) == 0
    from medclip_debias.training.step import Trainer

    def never(self, *_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "step", never)
    capsys.readouterr()
    assert run(["experiment", str(path), *place.words(**given), *out, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    # The phantom has boxes in its test split alone.
    given |= {"evaluate.split": "validate"}
    assert run(["experiment", str(path), *place.words(**given), *out, "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert "Not measured in any cell: grounding: " in " ".join(second["findings"])
    assert "Not measured" not in " ".join(first["findings"])
    assert len(list((tmp_path / "out/runs").iterdir())) == 1


def test_a_cell_that_cannot_be_trained_is_named(place, tmp_path, capsys):
    words = place.words(seconds_per_step=0.1, **{"base.prepared": tmp_path / "nowhere"})
    assert run(["experiment", str(GRID), *words, "--out", str(tmp_path / "out")]) == 2
    assert "nowhere" in capsys.readouterr().err
    words = place.words(seconds_per_step=0.1, **{"base.preprocessing.prepare.size": 64})
    assert run(["experiment", str(GRID), *words, "--out", str(tmp_path / "out")]) == 2
    assert "method 'CLIP' of setting 'rate 2e-3', seed 0: " in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert run(["experiment", str(GRID), *place.words(), "--out", str(tmp_path / "file")]) == 2
    assert "is a file" in capsys.readouterr().err


def test_a_stop_signal_ends_with_the_code_of_train(place, tmp_path, monkeypatch, capsys):
    """Its cell is saved, and the same command resumes it."""
    import os
    import signal

    from medclip_debias.training.step import Trainer

    path = write_grid(tmp_path / "grid.yaml", methods={"CLIP": METHODS["CLIP"]})
    words = ["experiment", str(path), *place.words(seeds="[0]", seconds_per_step=0.1)]
    step = Trainer.step

    def stop(self, number, *rest, **more):
        if number == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, number, *rest, **more)

    monkeypatch.setattr(Trainer, "step", stop)
    assert run([*words, "--out", str(tmp_path / "out")]) == 75
    assert "run the same command again" in capsys.readouterr().err
    monkeypatch.setattr(Trainer, "step", step)
    assert run([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cells"] == 1


def test_options_about_triplets_name_no_cell_without_triplets():
    before = {"split": "test", "options": {"views": "frontal"}, "bootstrap": 10, "batch_size": 4}
    options = before["options"] | {"triplet_reports": "whole"}
    assert trainings._judging(
        before | {"triplets": None, "options": options}
    ) == trainings._judging(before)
    given = trainings._judging(before | {"triplets": "t.csv", "options": options})
    assert given == {"split": "test", "triplets": "t.csv", "options": options}


def test_a_cell_is_named_by_the_claims_that_it_reads_and_by_no_others(place, tmp_path):
    import shutil

    from medclip_debias.data.text.claims.table import claim_set
    from medclip_debias.experiments.grid import read_grid

    prepared = tmp_path / "prepared"
    shutil.copytree(place.prepared, prepared)
    loss = "{kind: multi_positive, evidence: {kind: claims}}"
    words = place.words(**{"base.prepared": prepared, "methods.positives": f"{{loss: {loss}}}"})

    def keys(lexicon):
        claim_set(prepared, lexicon)
        grid = trainings.Trainings(read_grid(GRID, words), tmp_path / "runs")
        found = {}
        for cell in grid.cells():
            found.setdefault(cell["method"], []).append(grid.key(cell))
        return found

    first, again, other = keys("phantom"), keys("phantom"), keys("english")
    assert first == again
    read = first.pop("positives"), other.pop("positives")
    assert first == other
    assert not set(read[0]) & set(read[1])
