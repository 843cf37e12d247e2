"""A small prepared set with labels and phrases, and a small untrained model that fits it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from medclip_debias.data.layout import MASK_COLUMN, PHRASE_COLUMNS
from medclip_debias.data.masks import as_coco, encode
from medclip_debias.data.prompts import default_prompts
from medclip_debias.data.sources.progression import STATES
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.protocol import REGISTRY
from medclip_debias.grounding.boxes import box_mask
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from tests.helpers.set_by_hand import finish_set
from tests.helpers.small_models import dual_encoder

SIZE, INPUT = 48, 40
CATEGORIES = ("Edema", "Pneumonia", "Pneumothorax")
TEXTS = {
    "Edema": ("Pulmonary edema", "Mild edema."),
    "Pneumonia": ("Right lower pneumonia.", "Findings suggesting pneumonia"),
    "Pneumothorax": ("Left apical pneumothorax.", "Small pneumothorax."),
}


def _write_prepared(
    folder: Path, *, splits=("test", "held_out", "train"), labels=True, change=lambda tables: None
) -> Path:
    """Write a prepared set of 36 images by hand: two images for each patient.

    Phrases have masks, the union of their boxes; a patient's two images have two progressions.
    ``change`` may change the tables before they are written.
    """
    rng = np.random.default_rng(5)
    folder.mkdir(parents=True)
    rows, studies, sentences, phrases = [], [], [], []
    for i in range(36):
        height, width = ((60, 90), (90, 60), (70, 70))[i % 3]
        split = splits[i // 2 % len(splits)]
        rows.append((f"i{i:02d}", f"s{i:02d}", f"p{i // 2}", "PA", split, height, width))
        study = {"study_id": f"s{i:02d}", "patient_id": f"p{i // 2}", "split": split}
        if labels:
            study |= {"Edema": float(i % 2), "Pneumonia": rng.choice([1.0, 0.0, -1.0, np.nan])}
            study |= {"Pneumothorax": 0.0}
        studies.append(study)
        kind = CATEGORIES[i % 3]
        sentences.append((f"s{i:02d}", "findings", 0, TEXTS[kind][0]))
        for number in range(2):
            x, y = rng.uniform(5, width - 35), rng.uniform(5, height - 35)
            boxes = [[float(x), float(y), 24.0, 20.0], [float(x) + 8, float(y), 20.0, 28.0]]
            text = TEXTS[kind][number]
            boxes = boxes[: 1 + i % 2]
            mask = as_coco(encode(box_mask(boxes, height, width)))
            phrases.append((f"i{i:02d}/{number}", f"i{i:02d}", kind, text, "", boxes, mask))
    tables = {
        "images": pd.DataFrame(
            rows,
            columns=["image_id", "study_id", "patient_id", "view", "split", "height", "width"],
        ),
        "studies": pd.DataFrame(studies),
        "sentences": pd.DataFrame(sentences, columns=["study_id", "section", "position", "text"]),
        "phrases": pd.DataFrame(phrases, columns=[*PHRASE_COLUMNS, MASK_COLUMN]),
    }
    pixels = rng.integers(0, 256, (36, SIZE, SIZE), dtype=np.uint8)
    (folder / "images.bin").write_bytes(pixels.tobytes())
    pairs = [(f"i{i:02d}", f"i{i + 1:02d}", i // 2) for i in range(0, 36, 2)]
    changes = [
        (*pair[:2], finding, STATES[(pair[2] // 3 + number) % 3], "one_expert")
        for pair in pairs
        for number, finding in enumerate(("edema", "pleural effusion"))
    ]
    columns = ["previous_image_id", "image_id", "finding", "progression", "label_quality"]
    pd.DataFrame(changes, columns=columns).to_parquet(folder / "progression.parquet", index=False)
    funnel = [{"step": "images listed", "kept": 36, "dropped": 0, "unit": "images"}]
    meta = {
        "kind": "manifest",
        "annotations": ["progression"],
        "counts": {"images": 36, "studies": 36, "phrases": len(phrases)},
        "funnel": funnel,
    }
    change(tables)
    finish_set(folder, tables, SIZE, meta)
    return folder


@pytest.fixture(scope="session")
def write_prepared():
    return _write_prepared


@contextmanager
def measuring_only(*names: str) -> Iterator[None]:
    """`evaluate` with these protocols: the others take most of its time."""
    every = REGISTRY.all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(REGISTRY, "entries", {name: every[name] for name in names})
        yield


@pytest.fixture
def only_zero_shot() -> Iterator[None]:
    """For tests that look at labels, prompts and scores of whole images."""
    with measuring_only("zero_shot"):
        yield


@pytest.fixture(scope="session")
def small_prepared(tmp_path_factory) -> PreparedSet:
    return PreparedSet.open(_write_prepared(tmp_path_factory.mktemp("data") / "prepared"))


@pytest.fixture(scope="session")
def small_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    corpus = [text for texts in TEXTS.values() for text in texts] * 4
    lm = LanguageModelSettings(
        vocabulary=80, hidden=16, layers=1, heads=2, steps=1, batch_size=8, max_tokens=16
    )
    train_masked_lm(corpus, folder / "lm", lm)
    model = dual_encoder(folder / "lm", size=SIZE, side=INPUT, dim=16)
    model.prompts = default_prompts()
    model.save(folder / "model")
    return folder / "model"


@pytest.fixture
def measured(small_model, small_prepared, tmp_path):
    """A function: the results of some protocols on the small set, or on another one."""
    from medclip_debias.evaluation.evaluate import evaluate

    def run(*names, model=small_model, prepared=small_prepared.folder, out="run", **given):
        quick = {"bootstrap": 0, "heatmaps": 0}
        with measuring_only(*names):
            return evaluate(model, prepared, tmp_path / out, **quick | given)

    return run


@pytest.fixture(scope="session")
def evaluate_all(small_prepared, tmp_path_factory):
    """A function that evaluates a model on the small set with every protocol and file."""
    from medclip_debias.evaluation.evaluate import evaluate

    files = tmp_path_factory.mktemp("files")
    images = small_prepared.images
    test = images.loc[images["split"] == "test", "image_id"].tolist()
    classes = pd.DataFrame({"image_id": test, "class": ["Edema", "Pneumonia"] * (len(test) // 2)})
    classes.to_csv(files / "classes.csv", index=False)
    reports = {"original": "Pulmonary edema. Mild edema.", "negated": "Mild edema. No edema."}
    triplets = pd.DataFrame({"image_id": test, **reports, "omitted": "Mild edema."})
    triplets.to_csv(files / "triplets.csv", index=False)
    given = {"class_images": files / "classes.csv", "triplets": files / "triplets.csv"}
    return partial(evaluate, prepared=small_prepared.folder, **given)


@pytest.fixture(scope="session")
def evaluated(evaluate_all, small_model, tmp_path_factory):
    """Results of every protocol, and their folder."""
    out = tmp_path_factory.mktemp("evaluated")
    seen = []
    found = evaluate_all(
        small_model,
        out=out,
        bootstrap=40,
        batch_size=5,
        heatmaps=7,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (24, 24)  # test and held-out images, each once
    return found, out
