"""The card says where a model comes from and what it reached, in metadata that the hub reads."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml
from huggingface_hub import ModelCard

from medclip_debias.cli import run
from medclip_debias.hub.card import make_card
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.synthetic import WARNING
from tests.helpers.results import LEAST, row

OPENI = {"kind": "openi", "synthetic": False, "data_hash": "d" * 64}
REAL = {"data": {"kind": "openi", "synthetic": False}, "studies": 9}


def results(folder, model, **change):
    """A results file as ``evaluate`` writes it, of few metrics."""
    content = LEAST | {
        "model_hash": DualEncoder.load(model, check=False).content_hash,
        "metrics": [
            row("zero_shot", "mean_auc", 0.75, (0.7, 0.8)),
            row("zero_shot", "accuracy", 0.5, (0.4, 0.6)),
            row("zero_shot", "balanced_accuracy", 0.5),
        ],
        "skipped": {"grounding": "The set has no phrases with boxes."},
        "notes": ["External test, of /home/someone/secret/set: new and/or other patients."],
        "counts": {"images": 4},
        "archives": {"model": OPENI, "data": OPENI, "relation": "same set"},
        "data": {
            "source": "openi",
            "synthetic": False,
            "content_hash": "d" * 64,
            "funnel": [{"step": "view is *frontal*", "kept": 7, "dropped": 3, "unit": "images"}],
        },
    }
    path = folder / "results.json"
    path.write_text(json.dumps(content | change))
    return path


@pytest.fixture
def copied(model_folder, tmp_path):
    shutil.copytree(model_folder, tmp_path / "study" / "model")
    return tmp_path / "study" / "model"


@pytest.fixture
def real(copied):
    config = json.loads((copied / "config.json").read_text())
    config["provenance"] = REAL
    (copied / "config.json").write_text(json.dumps(config))
    return copied


def test_metrics_and_intervals_reach_the_hubs_metadata(real, tmp_path):
    card = make_card(
        real, results=results(tmp_path, real), licence="cc-by-nc-4.0", dataset="group/openi"
    )
    read = ModelCard(card.text)
    assert read.data.license == "cc-by-nc-4.0"
    assert read.data.model_name == "study"
    found = {one.metric_type: one for one in read.data.eval_results}
    assert found["mean_auc"].metric_value == 0.75
    assert found["mean_auc"].task_type == "zero-shot-image-classification"
    assert found["mean_auc"].dataset_name == "openi"
    assert found["mean_auc"].metric_args["interval"] == {
        **{"low": 0.7, "high": 0.8},
        **{"level": 0.95, "unit": "patient"},
    }
    assert "0.700 to 0.800" in card.text
    assert "| view is \\*frontal\\* | 7 | 3 | images |" in card.text
    assert "External test, of set: new and/or other patients." in card.text
    assert WARNING not in card.text
    entries = yaml.safe_load(card.eval_results)
    hub = pytest.importorskip("huggingface_hub", minversion="1.4")
    parsed = hub.parse_eval_result_entries(entries)
    assert {(one.dataset_id, one.task_id, one.value) for one in parsed} >= {
        ("group/openi", "zero_shot.mean_auc", 0.75)
    }


def test_a_synthetic_model_says_so_first_and_no_card_holds_a_path(copied, capsys):
    assert run(["hub", "card", str(copied), "--name", "a *star*", "--json"]) == 0
    said = capsys.readouterr()
    assert "no metric" in said.err
    text = (copied / "README.md").read_text()
    body = text.split("---\n", 2)[2].strip().splitlines()
    assert body[0] == "# a \\*star\\*"
    assert body[2] == f"**{WARNING}**"
    assert "mimic_cxr (synthetic)" in text
    assert ModelCard(text).data.license == "unknown"
    assert "/home" not in text
    assert "someone" not in text
    assert not (copied / ".eval_results").exists()


HOSTILE = "a`<script>alert(1)</script> [x](javascript:alert(1)) <javascript:a> | b\n\n# c ![i](d:e)"


def poisoned(value):
    """A provenance whose every text, key and number is hostile."""
    if isinstance(value, dict):
        return {key: poisoned(item) for key, item in value.items()}
    return HOSTILE


def test_a_hostile_provenance_is_shown_as_words(real, tmp_path):
    """Rendered by a Markdown library that lets HTML through, as some hubs and viewers do."""
    import markdown

    config = json.loads((real / "config.json").read_text())
    provenance = {
        "data": {"kind": "x", "data_hash": "x"},
        "loss": {"kind": "x"},
        "train": {"seed": 1, "steps": 2, "batch_size": 3, "lr": 4, "precision": 5},
        "weights": "x",
        "best_step": 7,
        "studies": "x",
    }
    config["provenance"] = poisoned(provenance) | {"licence": "mit"}
    (real / "config.json").write_text(json.dumps(config))
    about = {"kind": HOSTILE, "synthetic": False, "data_hash": HOSTILE}
    path = results(
        tmp_path,
        real,
        notes=[HOSTILE],
        skipped={HOSTILE: HOSTILE},
        split=HOSTILE,
        archives={"model": about, "data": about, "relation": "unknown"},
        data={
            "source": HOSTILE,
            "funnel": [{"step": HOSTILE, "kept": 1, "dropped": 2, "unit": HOSTILE}],
        },
    )
    card = make_card(real, results=path, name=HOSTILE)
    read = ModelCard(card.text)
    assert read.data.eval_results[0].metric_value == 0.75
    page = markdown.markdown(read.text, extensions=["tables", "fenced_code"])
    assert page.count("alert(1)") > 10
    for tag in ("<script", 'href="javascript', 'src="d:e', "<javascript", "<img", "<a "):
        assert tag not in page, page
    assert page.count("<h1") == 1
    assert page.count("<h2") == 6
