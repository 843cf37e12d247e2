"""A small set that a run learned from, written by hand, and the run's settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from medclip_debias.data.layout import PHRASE_COLUMNS
from medclip_debias.data.store import PreparedSet, write_scores
from tests.helpers.set_by_hand import finish_set

SAID = (
    *(("No pneumothorax.", "Lungs are clear."), ("No pneumothorax.", "Small left effusion.")),
    *(("No pneumothorax.",), ("Lungs are clear.", "Heart is large.")),
    *(("Left pneumothorax.",), ("A rare thing in Bed 7.",)),
)
"""Sentences of the training studies."""
EDEMA = (1.0, 0.0, 1.0, 0.0, 0.0, 1.0)


def write_set(folder: Path, synthetic: bool = True) -> PreparedSet:
    """Six training studies of six patients and one of test, with scores."""
    folder.mkdir(parents=True)
    reports = [*SAID, ("Only in test.",)]
    names = [f"s{n}" for n in range(len(reports))]
    splits = ["train"] * len(SAID) + ["test"]
    patients = [f"patient{n}" for n in range(len(reports))]
    images = {"image_id": [f"i{n}" for n in names], "study_id": names, "patient_id": patients}
    size = 16
    images |= {"view": "PA", "split": splits, "height": size, "width": size}
    studies = {"study_id": names, "patient_id": patients, "split": splits}
    studies |= {"Edema": [*EDEMA, np.nan]}
    sentences = [
        (name, "findings", place, text)
        for name, report in zip(names, reports, strict=True)
        for place, text in enumerate(report)
    ]
    tables = {
        "images": pd.DataFrame(images),
        "studies": pd.DataFrame(studies),
        "sentences": pd.DataFrame(sentences, columns=["study_id", "section", "position", "text"]),
        "phrases": pd.DataFrame([], columns=list(PHRASE_COLUMNS)),
    }
    (folder / "images.bin").write_bytes(bytes(len(names) * size**2))
    funnel = [{"step": "images listed", "kept": 7, "dropped": 2, "unit": "images"}]
    counts = {"images": 7, "studies": 7, "patients": 7, "sentences": len(sentences)}
    meta = {"kind": "manifest", "synthetic": synthetic, "counts": counts, "funnel": funnel}
    finish_set(folder, tables, size, meta)
    prepared = PreparedSet.open(folder)
    rng = np.random.default_rng(0)
    texts = prepared.texts
    write_scores(folder, texts, rng.uniform(-40, -2, len(texts)), [4] * len(texts), "any")
    return prepared


WriteRun = Callable[..., Path]


@pytest.fixture
def write_run() -> WriteRun:
    """A function that writes a run's folder with settings alone."""

    def write(folder: Path, of: PreparedSet, loss: dict[str, Any], **changed: Any) -> Path:
        folder.mkdir(parents=True)
        settings = {
            **{"prepared": str(of.folder), "out": str(folder), "loss": loss},
            "model": {"image": {"arch": "resnet18"}, "text": {"folder": None}},
            "train": {"batch_size": 11, "steps": 100},
            "provenance": {"data_hash": of.content_hash},
        }
        (folder / "settings.yaml").write_text(yaml.safe_dump(settings | changed))
        return folder

    return write
