"""The validator of a training run against the full evaluation's own pieces."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from medclip_debias.data.loader import TrainingStudies, training_corpus
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.validation import validator_of
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from tests.helpers.small_models import dual_encoder


@pytest.fixture(scope="module")
def model(prepared_phantom, tmp_path_factory):
    data = PreparedSet.open(prepared_phantom)
    folder = tmp_path_factory.mktemp("validation") / "lm"
    small = LanguageModelSettings(
        vocabulary=400, hidden=16, layers=1, heads=2, steps=1, batch_size=8, max_tokens=32
    )
    train_masked_lm(training_corpus(data), folder, small)
    text = {"folder": str(folder), "max_tokens": 32}
    return dual_encoder(folder, size=data.settings.size, text=text, dim=16)


@torch.no_grad()
def scores(model, data, rows, texts):
    pixels = torch.from_numpy(np.asarray(data.pixels[rows]))
    return model(pixels, model.tokenizer.encode(texts, 32))[0].double().numpy()


def test_the_figures_are_those_of_the_definitions(model, prepared_phantom):
    data = PreparedSet.open(prepared_phantom)
    found = validator_of(prepared_phantom, 10_000)(model)

    studies = TrainingStudies.of(data, "validate")
    rows = [int(rows[0]) for rows in studies.rows]
    table = scores(model, data, rows, studies.texts)
    ranks = [
        1 + min((row > row[own]).sum() for own in said)
        for row, said in zip(table, studies.sentences, strict=True)
    ]
    assert found["recall_at_10"] == pytest.approx(np.mean(np.array(ranks) <= 10), abs=1e-9)
    assert found["median_rank"] == pytest.approx(np.median(ranks), abs=0.5)

    images = np.flatnonzero((data.images["split"] == "validate").to_numpy())
    labels = data.studies.set_index("study_id").loc[data.images["study_id"].iloc[images]]
    areas = []
    for name, sides in load_prompts("chex5").classes.items():
        truth = labels[name].to_numpy(dtype=float)
        positive, negative = (
            scores(model, data, images, list(side)).mean(axis=1)
            for side in (sides.positive, sides.negative)
        )
        known = (truth == 0) | (truth == 1)
        if len(set(truth[known])) == 2:
            areas.append(roc_auc_score(truth[known], (positive - negative)[known]))
    assert areas
    assert found["mean_auc"] == pytest.approx(np.mean(areas), abs=1e-6)
    few = validator_of(prepared_phantom, 6)  # the same images each time
    assert few(model) == few(model) != found


def test_a_model_that_gives_nan_is_no_best_model(model, prepared_phantom):
    """NaN is beaten by nothing, so every rank would be 1; only evaluation mode may be broken."""
    broken = copy.deepcopy(model)
    broken.image_encoder.bn1.running_var.fill_(torch.nan)
    with pytest.raises(UserError, match=r"validation: \d+ of \d+ values .* NaN"):
        validator_of(prepared_phantom, 64)(broken)
