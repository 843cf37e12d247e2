"""What a run corrects is counted as a loop counts it, and quoted only where that is allowed."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from medclip_debias.cli import run as command
from medclip_debias.data.text.evidence import Evidence
from medclip_debias.errors import UserError
from medclip_debias.reporting import correction as corrections
from medclip_debias.reporting.correction import (
    correction_part,
    eta_of_sentences,
    learned,
    pair_classes,
    sample,
)
from medclip_debias.reporting.report import write_report
from medclip_debias.settings_files import load_yaml
from tests.reporting.conftest import EDEMA, SAID, write_set

TABLE = {"kind": "debiased", "eta": {"kind": "table", "path": None}}
TEXTS = sorted({text for report in SAID for text in report})
ETA = dict(zip(TEXTS, (0.3, 0.2, 0.1, 0.05, 0.02, 0.0), strict=True))
RARE = "A rare thing in Bed 7."


@pytest.fixture
def eta_table(tmp_path):
    path = tmp_path / "eta.csv"
    path.write_text("text,eta\n" + "".join(f'"{text}",{eta}\n' for text, eta in ETA.items()))
    return TABLE | {"eta": {"kind": "table", "path": str(path), "factor": 0.5}}


def of(run, given=None):
    found, why = learned(run, load_yaml(run / "settings.yaml"), given)
    assert found, why
    return found


def test_eta_and_its_histogram_are_those_of_a_loop(tmp_path, write_run, eta_table):
    run = write_run(tmp_path / "run", write_set(tmp_path / "set"), eta_table)
    table = eta_of_sentences(of(run))
    counts = Counter(text for report in SAID for text in report)
    assert table["text"].tolist() == sorted(counts)
    assert table["studies"].tolist() == [counts[text] for text in table["text"]]
    assert table["eta"].tolist() == pytest.approx([ETA[text] / 2 for text in table["text"]])
    part = correction_part(run, load_yaml(run / "settings.yaml"))
    mean = sum(ETA[text] / 2 for report in SAID for text in report) / sum(counts.values())
    assert part.eta["mean"] == pytest.approx(mean)
    (_, most), (_, least) = part.ends
    assert [row[0] for row in most] == sorted(ETA, key=ETA.get)[::-1][:3]
    assert [row[0] for row in least] == sorted(ETA, key=ETA.get)[:3]


def test_eta_of_a_language_model_is_the_papers(tmp_path, write_run, monkeypatch):
    prepared = write_set(tmp_path / "set")
    # What ties scores to a model's folder is tested with the run (tests/training).
    monkeypatch.setattr(
        "medclip_debias.language.class_probability.language_model_hash", lambda _: "any"
    )
    eta = {"kind": "language_model", "a": 0.9, "k": 0.05, "language_model": str(tmp_path)}
    run = write_run(tmp_path / "run", prepared, {"kind": "debiased", "eta": eta})
    table = eta_of_sentences(of(run))
    scores = prepared.scores()
    for text, value in zip(table["text"], table["eta"], strict=True):
        assert value == pytest.approx(0.9 * math.exp(scores[text]) ** 0.05, rel=1e-5)
    monkeypatch.setattr(corrections, "MOST_POINTS", 3)
    assert "3 of the 6 sentences, at random" in write_report(run).read_text()


def test_real_sentences_are_quoted_only_where_the_user_names_the_set(
    tmp_path, write_run, eta_table
):
    real = write_set(tmp_path / "real", synthetic=False)
    run = write_run(tmp_path / "run", real, eta_table)
    page = write_report(run).read_text()
    assert not any(text in page for text in ETA if text != "No pneumothorax.")  # said of any loss
    assert f"medclip-debias report {run} --prepared DIR" in page
    page = write_report(run, real.folder).read_text()
    assert RARE in page
    assert "share this page only under the terms of the data" in page


def test_a_set_that_the_run_did_not_learn_from_is_not_read(tmp_path, write_run, eta_table):
    prepared = write_set(tmp_path / "set")
    run = write_run(tmp_path / "run", prepared, eta_table, provenance={"data_hash": "other"})
    assert (
        "has been replaced by another"
        in correction_part(run, load_yaml(run / "settings.yaml")).missing
    )
    with pytest.raises(UserError, match=r"is not the set that .* learned from"):
        write_report(run, prepared.folder)


@pytest.mark.parametrize(
    "changed",
    [
        {"train": {"steps": "many", "batch_size": "some", "lr": [1]}},
        {"model": {"similarity": {"k": "x", "aggregator": "lse"}, "text": {"max_tokens": "x"}}},
    ],
)
def test_settings_of_a_stranger_may_hold_anything(tmp_path, write_run, eta_table, changed):
    run = write_run(tmp_path / "run", write_set(tmp_path / "set"), eta_table, **changed)
    page = write_report(run).read_text()
    assert "holds other values than" in page or "is not shown." in page


def test_pairs_are_counted_as_a_loop_counts_them(tmp_path, write_run):
    prepared = write_set(tmp_path / "set")
    labels = {"kind": "label", "labels": ["Edema"], "match": "equal"}
    loss = {"kind": "multi_positive", "evidence": labels, "core": {"kind": "infonce"}}
    loss["core"] |= {"negatives": [{"kind": "mask_identical_text"}, {"kind": "fnc"}]}
    found, notes = pair_classes(of(write_run(tmp_path / "run", prepared, loss)))
    positives, masked = found
    count = len(SAID)
    alike = sum(EDEMA[i] == EDEMA[j] for i in range(count) for j in range(count) if i != j)
    rest = count * (count - 1) - alike
    assert {row[0]: row[2] for row in positives.rows} == {"agree": str(alike), "unknown": str(rest)}
    assert len(positives.examples) == 3
    assert {report for _, _, report in positives.examples} <= {" ".join(own) for own in SAID}
    assert sum(int(row[2]) for row in masked.rows) == count * (count - 1)
    assert notes[0].startswith("The policy 'fnc' decides by what the model itself finds similar")


def test_pairs_by_claims_are_those_of_the_evidence(tmp_path, write_run):
    prepared = write_set(tmp_path / "set")
    assert command(["claims", str(prepared.folder), "--json"]) == 0
    loss = {"kind": "multi_positive", "evidence": {"kind": "claims"}}
    lesson = of(write_run(tmp_path / "run", prepared, loss))
    (found,), _ = pair_classes(lesson)
    drawn, evidence = sample(lesson), Evidence.open(prepared)
    numbers = [prepared.texts.index(drawn.studies.texts[n]) for n in drawn.texts]
    ids = prepared.studies["study_id"].tolist()
    own = [ids.index(prepared.images["study_id"].iloc[rows[0]]) for rows in drawn.studies.rows]
    value, sure = evidence.graded(own, numbers)
    names = {1: "agree", 0: "unknown", -1: "contradict"}
    counts = Counter(
        names[int(value[i, t])] + (", uncertain" if value[i, t] > 0 and sure[i, t] < 1 else "")
        for i in range(len(own))
        for t in range(len(numbers))
        if i != t
    )
    assert {row[0]: int(row[2]) for row in found.rows} == dict(counts)
    assert counts["agree"]
    assert counts["contradict"]
