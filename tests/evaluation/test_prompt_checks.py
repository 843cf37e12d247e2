"""Prompts that no report says, classes read the wrong way round, and the choice of Open-i's."""

from __future__ import annotations

import json
import re
from importlib import import_module
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from medclip_debias.cli import run
from medclip_debias.data.prompts import load_prompts
from medclip_debias.evaluation.decisions.calibration import Calibration
from medclip_debias.evaluation.encoding import row_scores
from medclip_debias.evaluation.prompt_checks import (
    UNSAID,
    prompt_record,
    training_sentences,
    unsaid,
    unsaid_prompts,
)
from medclip_debias.evaluation.statistics import auc_interval, delong
from medclip_debias.models.load import load_model

WORDS = st.lists(st.sampled_from(["no", "heart", "large", "s"]), min_size=1, max_size=5)


def test_every_prompt_of_openi_is_said_by_three_training_reports(openi_text):
    training = set(openi_text.studies.loc[openi_text.studies["split"] == "train", "study_id"])
    said: dict[str, str] = {}
    rows = zip(openi_text.sentences["study_id"], openi_text.sentences["text"], strict=True)
    for study, text in rows:
        if study in training:
            said[study] = said.get(study, "") + " | " + text
    assert 3000 < len(said) < 3200
    for prompt in load_prompts("openi").texts:
        words = r"\W+".join(map(re.escape, re.findall(r"\w+", prompt.lower())))
        pattern = re.compile(rf"\b{words.replace('| ', '')}\b", re.IGNORECASE)
        assert len([*islice(filter(pattern.search, said.values()), 3)]) == 3, prompt


def test_the_packaged_set_is_what_the_script_chooses(openi_text):
    script = import_module("choose_prompts")
    candidates = load_prompts(Path(script.__file__).parent / "prompts" / "openi_candidates.yaml")
    chosen, counts = script.choose(candidates, openi_text)
    assert chosen == load_prompts("openi")
    assert counts["negative"]["Abnormal chest"] == 0


@given(st.lists(WORDS, max_size=4), st.lists(WORDS, max_size=4))
def test_a_prompt_is_said_where_its_words_stand_unbroken_in_one_sentence(prompts, sentences):
    def inside(prompt):
        return any(
            sentence[start : start + len(prompt)] == prompt
            for sentence in sentences
            for start in range(len(sentence))
        )

    spoken = [" ".join(words).capitalize() + "." for words in sentences]
    asked = [",  ".join(words) for words in prompts]
    expected = [text for text, words in zip(asked, prompts, strict=True) if not inside(words)]
    assert unsaid(asked, spoken) == expected


@given(st.lists(st.integers(0, 6), min_size=2, max_size=40), st.integers(0, 2**20))
@example([0, 3, 1, 2, 5, 4, 6], 0)
@example([0, 3, 1, 2, 5, 4, 6, 1], 0)  # four of each are the fewest with an interval
def test_the_interval_of_an_auc_is_delongs(values, seed):
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(len(values)) % 2 == 0)
    scores = np.array(values, dtype=float)
    value, low, high = auc_interval(scores[truth], scores[~truth])
    assert value == pytest.approx(roc_auc_score(truth, scores))
    if len(values) < 8:
        assert (low, high) == (0, 1)
        return
    _, (left, right), _ = delong(truth, scores).estimate([1])
    assert (low, high) == (max(left, 0), min(right, 1))


def test_a_model_keeps_which_packaged_prompts_its_reports_lack(small_prepared):
    record = prompt_record(training_sentences(small_prepared))
    assert "Pulmonary edema" in record["absent"]
    assert "Pneumothorax" not in record["absent"]
    model = {UNSAID: record}
    assert unsaid_prompts(model, ["Pulmonary edema", "Pneumothorax"]) == ["Pulmonary edema"]
    assert unsaid_prompts(model, ["a prompt of one's own"]) is None
    assert unsaid_prompts({}, ["Pulmonary edema"]) is None
    trained = {"provenance": {"data_hash": small_prepared.content_hash}}
    assert unsaid_prompts(trained, ["apical", "apical mass"], small_prepared) == ["apical mass"]


@pytest.fixture
def folder(small_model, small_prepared, tmp_path):
    """A model that keeps which prompts its training text lacks."""
    model = load_model(small_model, torch.device("cpu"))
    model.provenance = {UNSAID: prompt_record(training_sentences(small_prepared))}
    model.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.usefixtures("only_zero_shot")
def test_evaluate_and_calibrate_warn_of_what_training_text_does_not_say(
    small_prepared, folder, tmp_path, capsys
):
    words = [str(folder), str(small_prepared.folder), "--classes", "Pneumonia", "--out"]
    assert run(["evaluate", *words, str(tmp_path / "out"), "--bootstrap", "0"]) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    absent = ["Findings suggesting pneumonia", "No signs of pneumonia"]
    assert results["details"]["zero_shot"]["unsaid_prompts"] == absent
    (warning,) = results["details"]["zero_shot"]["warnings"]
    assert warning.startswith("2 of 2 prompts are in no sentence that the model was trained on")
    assert warning in results["notes"]
    assert warning in capsys.readouterr().err
    out = tmp_path / "calibration.json"
    assert run(["calibrate", *words, str(out), "--split", "test"]) == 0
    assert "2 of 2 prompts are in no sentence" in capsys.readouterr().err
    assert Calibration.read(out).unsaid == tuple(absent)


@pytest.mark.usefixtures("only_zero_shot")
def test_evaluate_and_calibrate_warn_of_a_class_that_is_read_the_wrong_way_round(
    small_prepared, folder, tmp_path, capsys
):
    words = [str(folder), str(small_prepared.folder), "--classes", "Edema", "--out"]
    prompts = ["Pulmonary edema", "No pulmonary edema"]
    scores = row_scores(load_model(folder), small_prepared, range(36), prompts) @ [1.0, -1.0]
    labels = small_prepared.images[["image_id"]].assign(Edema=1 * (scores < np.median(scores)))
    labels.to_csv(tmp_path / "labels.csv", index=False)
    words += [str(tmp_path / "again"), "--labels", str(tmp_path / "labels.csv")]
    assert run(["evaluate", *words, "--bootstrap", "100"]) == 0
    assert "'Edema': its AUC is 0.000 [" in capsys.readouterr().err
    words[-3] = str(tmp_path / "calibration.json")
    assert run(["calibrate", *words, "--split", "test"]) == 2
    assert "'Edema': its AUC is 0.000 [0.000, 0.000], below .5" in capsys.readouterr().err
