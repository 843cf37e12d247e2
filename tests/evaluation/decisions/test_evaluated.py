"""Decisions on the command line: calibrate, evaluate, results, report, and what is refused."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import yaml

from medclip_debias.cli import run
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.catalogue import METRICS
from medclip_debias.evaluation.encoding import row_scores
from medclip_debias.evaluation.table import read_results
from medclip_debias.models.load import load_model
from medclip_debias.reporting.report import write_report


@pytest.fixture(scope="module")
def world(write_prepared, small_model, tmp_path_factory):
    """Model, set with validate images, and labels on which the untrained model is right."""
    folder = tmp_path_factory.mktemp("decisions")
    prepared = write_prepared(folder / "prepared", splits=("test", "validate", "train"))
    data, model = PreparedSet.open(prepared), load_model(small_model)
    scores = row_scores(model, data, range(36), ["Pulmonary edema", "No pulmonary edema"])
    difference = pd.Series(scores[:, 0] - scores[:, 1])
    table = pd.DataFrame({"image_id": data.images["image_id"]})
    table["Edema"] = (difference + [0.0, 1e-4] * 18 > difference.median()).astype(int)
    table["Pneumonia"] = 0
    table.to_csv(folder / "labels.csv", index=False)
    return folder, [str(small_model), str(prepared), "--labels", str(folder / "labels.csv")]


def options(folder, **decisions):
    (folder / "options.yaml").write_text(yaml.safe_dump({"decisions": decisions}))
    return ["--options", str(folder / "options.yaml"), "--bootstrap", "20", "--heatmaps", "0"]


@pytest.mark.usefixtures("only_zero_shot")
def test_a_calibration_is_made_and_used_on_other_images(world, capsys):
    folder, given = world
    path, out = folder / "c.json", folder / "out"
    words = ["calibrate", *given, "--out", str(path), "--prevalence", "Edema=.05"]
    words += ["--set", "method=isotonic"]
    assert run(words) == 0
    said = capsys.readouterr()
    assert "Edema.used_at: 0.05" in said.out
    assert re.search(r"Pneumonia: one label value only .* \(0 with, 12 without\)", said.err)
    more = options(folder, calibration=str(path), conformal="marginal")
    assert run(["evaluate", *given, "--out", str(out), *more]) == 0
    content = read_results(out / "results.json")
    part = content.details("zero_shot")["decisions"]
    assert part["classes"]["Edema"]["prevalence"]["from"] == "calibration"
    assert part["classes"]["Edema"]["prevalence"]["target"] == 0.05
    assert set(part["skipped"]) >= {"Pneumonia"}
    calibrated = content.value("zero_shot", "ece", "Edema", "decisions, probabilities")
    assert content.of("zero_shot.decisions.ece")["value"] == calibrated  # of the one class
    page = write_report(out).read_text()
    assert "<summary>Decisions</summary>" in page
    assert "Pneumonia: one label value only" in page


@pytest.mark.usefixtures("only_zero_shot")
def test_what_a_calibration_leaves_aside_is_counted_and_its_own_sets_are_measured(
    world, capsys, tmp_path
):
    folder, given = world
    images = PreparedSet.open(given[1]).images
    there = images.loc[images["split"] == "validate", "image_id"].tolist()
    table = pd.read_csv(folder / "labels.csv").astype({"Edema": "Int64"}).drop(columns="Pneumonia")
    table.loc[table["image_id"] == there[0], "Edema"] = pd.NA
    table[table["image_id"] != there[1]].to_csv(tmp_path / "labels.csv", index=False)
    rules = "classes: {Edema: Edema}\nleft_out: {nobody looked: [Pneumonia]}\n"
    (tmp_path / "mine.yaml").write_text(rules)
    path = tmp_path / "c.json"
    given = [*given[:2], "--labels", str(tmp_path / "labels.csv")]
    words = ["calibrate", *given, "--out", str(path), "--label-map", str(tmp_path / "mine.yaml")]
    assert run([*words, "--set", "coverage=0.8", "--set", "conformal=marginal"]) == 0
    said = capsys.readouterr()
    assert "Edema.left_out: 1" in said.out
    assert "left aside: images not listed: 1." in said.err
    assert "Pneumonia: nobody looked" in said.err
    judging = ["evaluate", *given, "--out", str(tmp_path / "out"), "--split", "validate"]
    assert run([*judging, *options(tmp_path, calibration=str(path))]) == 0
    content = read_results(tmp_path / "out" / "results.json")
    decided = content.details("zero_shot")["decisions"]
    assert (decided["coverage_asked"], decided["conformal"]) == (0.8, "marginal")
    assert any("made on images of the split 'validate' of this" in n for n in content["notes"])
    capsys.readouterr()
    assert run([*judging, *options(tmp_path, calibration=str(path), method="isotonic")]) == 2
    assert "was fitted by 'platt', and the option method asks for" in capsys.readouterr().err


@pytest.mark.usefixtures("only_zero_shot")
def test_without_being_asked_nothing_is_decided(world):
    folder, given = world
    plain, asked = folder / "plain", folder / "asked"
    words = ["--bootstrap", "20", "--heatmaps", "0"]
    assert run(["evaluate", *given, "--out", str(plain), *words]) == 0
    assert run(["evaluate", *given, "--out", str(asked), *options(folder)]) == 0
    first, second = (read_results(out / "results.json") for out in (plain, asked))
    assert second.details("zero_shot").pop("decisions")["split"] == "validate"
    assert first.details("zero_shot") == second.details("zero_shot")
    decided = [row for row in second["metrics"] if row not in first["metrics"]]
    assert [row for row in second["metrics"] if row not in decided] == first["metrics"]
    assert all("decisions" in f"{row['metric']}{row['group']}" for row in decided)
    means = {m.name for m in METRICS if m.name.startswith("decisions_")}
    assert means <= {row["metric"] for row in decided if row["class"] is None}
