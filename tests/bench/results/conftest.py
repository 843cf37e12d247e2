"""Results of three models on two cards, small enough to be computed by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from medclip_debias.bench.card import Card
from medclip_debias.bench.record import (
    CardName,
    Figure,
    Judged,
    ModelRecord,
    Record,
)
from medclip_debias.files import write_json
from tests.helpers.results import row, rows

DATA = {"archive": "openi", "obtain": "made by a test"}
ZERO = Card.model_validate(
    {
        "name": "phantom/zero-shot",
        "version": 1,
        "kind": "zero_shot",
        "title": "Findings <zero-shot>",
        "about": "A card of the tests.",
        "data": DATA,
        "metrics": ["zero_shot.mean_auc"],
        "published": [
            {
                "model": "CARZero & Co",
                "metric": "zero_shot.mean_auc",
                "value": 0.9,
                "source": "Lai et al. 2024, table 2",
                "protocol": "both views",
            }
        ],
        "differs": ["It has 8 images."],
    }
)
FOUND = Card.model_validate(
    {
        "name": "openi/retrieval",
        "version": 2,
        "kind": "retrieval",
        "title": "Reports",
        "about": "Another card of the tests.",
        "data": DATA,
        "metrics": ["study_retrieval.report.median_rank", "study_retrieval.report.recall"],
    }
)
LABELS = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=np.float64)
# AUC: a sorts all but one of 16 pairs rightly, b all, c half of them.
SCORES = {
    "a": [0.9, 0.8, 0.7, 0.3, 0.4, 0.2, 0.1, 0.0],
    "b": [0.9, 0.8, 0.7, 0.6, 0.4, 0.2, 0.1, 0.0],
    "c": [0.5] * 8,
}
# Shares of scores above 0 with and without the finding.
RIGHT = {"a": 5 / 8, "b": 5 / 8, "c": 0.5}
# An interval of eight patients is wide; where nothing varies it has no width.
INTERVALS = {"a": [0.6, 1.0], "b": [1.0, 1.0], "c": [0.5, 0.5]}
AUCS = {"a": 15 / 16, "b": 1.0, "c": 0.5}
RANKS = {"a": [1, 2, 3, 4, 5, 6, 7, 8], "b": [2, 4, 6, 8, 10, 12, 14, 16], "c": [1] * 8}
MEDIANS = {"a": 4.5, "b": 9.0, "c": 1.0}
RECALLS = {"a": 1.0, "b": (5 / 8 + 1 + 1) / 3, "c": 1.0}
HASHES = {name: letter * 16 for name, letter in zip("abc", "123", strict=True)}


@pytest.fixture
def board_cards(monkeypatch):
    """The two cards in place of the packaged ones."""
    found = {card.name: card for card in (FOUND, ZERO)}
    for module in ("results", "sharing"):
        monkeypatch.setattr(f"medclip_debias.bench.{module}.packaged_cards", lambda: found)
    return found


def digests(count, salt=0):
    return [f"{(number + 1) * 2654435761 + salt:016x}" for number in range(count)]


def write_result(root, name, card, metrics, results, tables, **changes):
    """One model on one card."""
    folder = root / name / card.folder
    (folder / "items").mkdir(parents=True, exist_ok=True)
    content = {
        "format": 3,
        "split": "test",
        **results,
        "skipped": {},
        "notes": [],
        "data_hash": "d" * 64,
        "model_hash": HASHES[name],
        "seed": 0,
    }
    write_json(folder / "results.json", content)
    for file, table in tables.items():
        table.to_parquet(folder / "items" / f"{file}.parquet", index=False)
    record = {
        "card": CardName(name=card.name, version=card.version, hash=card.content_hash),
        "model_hash": HASHES[name],
        "preset": "ours",
        "judged": Judged(archive="openi", set_hash="d" * 64, list_hash="e" * 16, wanted=8, found=8),
        "status": "complete",
        "metrics": metrics,
        "command": f"medclip-debias bench {name}=MODEL --data ROOT --out RESULTS",
    }
    write_json(folder / "record.json", Record(**(record | changes)).model_dump(mode="json"))
    return folder


def write_zero(root, name, **changes):
    table = pd.DataFrame(
        {
            "item": digests(8),
            "patient": digests(8, 7),
            "score.Edema": SCORES[name],
            "label.Edema": LABELS,
        }
    )
    auc = AUCS[name]
    part = {
        "metrics": [
            row("zero_shot", "mean_auc", auc, INTERVALS[name]),
            *rows("zero_shot", {"accuracy": RIGHT[name], "balanced_accuracy": RIGHT[name]}),
            row("zero_shot", "auc", auc, of_class="Edema"),
        ],
        "details": {"zero_shot": {"images": 8}},
    }
    low, high = INTERVALS[name]
    metrics = {"zero_shot.mean_auc": Figure(value=auc, low=low, high=high)}
    return write_result(root, name, ZERO, metrics, part, {"zero_shot": table}, **changes)


def write_retrieval(root, name, **changes):
    ranks = np.array(RANKS[name], dtype=np.float64)
    table = pd.DataFrame({"item": digests(8), "patient": digests(8, 7)})
    for way in ("text_to_image", "image_to_text"):
        table[f"rank_{way}_strict"] = ranks
    found = {"recall": RECALLS[name], "median_rank": MEDIANS[name]}
    metrics = {
        "study_retrieval.report.median_rank": Figure(value=MEDIANS[name]),
        "study_retrieval.report.recall": Figure(value=RECALLS[name]),
    }
    part = {"metrics": rows("study_retrieval", found)}
    part["options"] = {"bootstrap": {"resamples": 0}}
    return write_result(root, name, FOUND, metrics, part, {"study_retrieval": table}, **changes)


@pytest.fixture
def results(tmp_path, board_cards):
    """A folder of results: a and b on both cards, c on zero-shot alone."""
    root = tmp_path / "results"
    for name in "abc":
        model = ModelRecord(name=name, hash=HASHES[name], licence="MIT", synthetic=name == "c")
        write_json(root / name / "model.json", model.model_dump(mode="json"))
        write_zero(root, name)
    write_retrieval(root, "a")
    write_retrieval(root, "b")
    return root


def edit_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.fixture
def make():
    """Writers of single results, and a way to change a JSON file."""
    return SimpleNamespace(zero=write_zero, retrieval=write_retrieval, edit=edit_json)
