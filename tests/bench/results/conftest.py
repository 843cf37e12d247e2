"""Results of three models on two cards, small enough to be computed by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from medclip_debias.bench.card import Card
from medclip_debias.bench.record import Figure, Judged, ModelRecord, Record
from medclip_debias.files import write_json
from tests.helpers.results import row, rows

HEAD = {"about": "A card of the tests.", "data": {"archive": "openi", "obtain": "made by a test"}}
PUBLISHED = {
    "model": "CARZero & Co",
    "metric": "zero_shot.mean_auc",
    "value": 0.9,
    "source": "Lai et al. 2024, table 2",
}
ZERO = Card.model_validate(
    HEAD
    | {"name": "phantom/zero-shot", "version": 1, "kind": "zero_shot", "title": "Zero"}
    | {"metrics": ["zero_shot.mean_auc"], "published": [PUBLISHED]}
)
FOUND = Card.model_validate(
    HEAD
    | {"name": "openi/retrieval", "version": 2, "kind": "retrieval", "title": "Reports"}
    | {"metrics": ["study_retrieval.report.median_rank", "study_retrieval.report.recall"]}
)
LABELS = np.repeat([1.0, 0.0], 4)
# AUC: a sorts all but one of 16 pairs rightly, b all, c half of them.
SCORES = {
    "a": [0.9, 0.8, 0.7, 0.3, 0.4, 0.2, 0.1, 0.0],
    "b": [0.9, 0.8, 0.7, 0.6, 0.4, 0.2, 0.1, 0.0],
    "c": [0.5] * 8,
}
AUCS = {"a": 15 / 16, "b": 1.0, "c": 0.5}
# Shares of scores above 0 with and without the finding.
RIGHT = {"a": 5 / 8, "b": 5 / 8, "c": 0.5}
# An interval of eight patients is wide; where nothing varies it has no width.
INTERVALS = {"a": [0.6, 1.0], "b": [1.0, 1.0], "c": [0.5, 0.5]}
RANKS = {"a": range(1, 9), "b": range(2, 17, 2), "c": [1] * 8}
MEDIANS = {"a": 4.5, "b": 9.0, "c": 1.0}
RECALLS = {"a": 1.0, "b": (5 / 8 + 1 + 1) / 3, "c": 1.0}
HASHES = {"a": "1" * 16, "b": "2" * 16, "c": "3" * 16}
IDS = {
    "item": [f"{(number + 1) * 2654435761:016x}" for number in range(8)],
    "patient": [f"{(number + 1) * 2654435761 + 7:016x}" for number in range(8)],
}


@pytest.fixture
def board_cards(monkeypatch):
    """The two cards in place of the packaged ones."""
    cards = {card.name: card for card in (FOUND, ZERO)}
    for module in ("results", "sharing"):
        monkeypatch.setattr(f"medclip_debias.bench.{module}.packaged_cards", lambda: cards)
    return cards


def write_result(root, name, card, metrics, results, columns, file, **changes):
    """One model on one card."""
    folder = root / name / card.folder
    (folder / "items").mkdir(parents=True, exist_ok=True)
    content = {"format": 3, "split": "test", "skipped": {}, "notes": [], "seed": 0}
    content |= {"data_hash": "d" * 64, "model_hash": HASHES[name]} | results
    write_json(folder / "results.json", content)
    table = pd.DataFrame(IDS | columns)
    table.to_parquet(folder / "items" / f"{file}.parquet", index=False)
    record = {
        "card": card.measured,
        "model_hash": HASHES[name],
        "preset": "ours",
        "judged": Judged(archive="openi", set_hash="d" * 64, list_hash="e" * 16, wanted=8, found=8),
        "status": "complete",
        "metrics": metrics,
        "command": f"medclip-debias bench {name}=MODEL --data ROOT --out RESULTS",
    }
    write_json(folder / "record.json", Record(**(record | changes)).model_dump(mode="json"))


def write_zero(root, name, **changes):
    auc, (low, high) = AUCS[name], INTERVALS[name]
    part = {
        "metrics": [
            row("zero_shot", "mean_auc", auc, INTERVALS[name]),
            *rows("zero_shot", {"accuracy": RIGHT[name], "balanced_accuracy": RIGHT[name]}),
            row("zero_shot", "auc", auc, of_class="Edema"),
        ],
        "details": {"zero_shot": {"images": 8}},
    }
    metrics = {"zero_shot.mean_auc": Figure(value=auc, low=low, high=high)}
    columns = {"score.Edema": SCORES[name], "label.Edema": LABELS}
    write_result(root, name, ZERO, metrics, part, columns, "zero_shot", **changes)


def write_retrieval(root, name, **changes):
    ranks = np.array(RANKS[name], dtype=np.float64)
    columns = {f"rank_{way}_strict": ranks for way in ("text_to_image", "image_to_text")}
    found = {"recall": RECALLS[name], "median_rank": MEDIANS[name]}
    metrics = {f"study_retrieval.report.{key}": Figure(value=value) for key, value in found.items()}
    part = {"metrics": rows("study_retrieval", found), "options": {"bootstrap": {"resamples": 0}}}
    write_result(root, name, FOUND, metrics, part, columns, "study_retrieval", **changes)


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
def few_resamples(monkeypatch):
    """Intervals are those of 200 draws: what is refused here is far from them."""
    for module in ("results", "check"):
        monkeypatch.setattr(f"medclip_debias.bench.{module}.RESAMPLES", 200)


@pytest.fixture
def make():
    """Writers of single results, and a way to change a JSON file."""
    return SimpleNamespace(zero=write_zero, retrieval=write_retrieval, edit=edit_json)
