"""Attending aggregators in training: cut up in any way, saved, validated and looked at."""

from __future__ import annotations

import pytest
import torch

from medclip_debias.config import SimilaritySettings
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.validation import validator_of
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train

KINDS = ["attention", "cross_attention", "local_words"]


def of_kind(run, kind, out="run", **more):
    # Frozen, since batch norm and dropout depend on how a batch is cut.
    settings = run(out, {"kind": "clip"}, trainable={"image": "frozen", "text": "frozen"}, **more)
    similarity = SimilaritySettings(aggregator=kind)
    model = settings.model.model_copy(update={"similarity": similarity})
    return settings.model_copy(update={"model": model})


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_validates_and_leaves_a_model_that_loads(run, prepared_phantom, kind):
    settings = of_kind(run, kind, validate_every=4, steps=4)
    validator = validator_of(prepared_phantom, 16)
    model = DualEncoder.load(train(settings, validator=validator).model)
    assert model.self_test["status"] == "passed"
    assert model.outputs.map_kind == ("cosine" if kind == "attention" else "attention")
    images = torch.from_numpy(PreparedSet.open(prepared_phantom).pixels[:3].copy())
    with torch.no_grad():
        sentences = model.encode_sentences(["There is a nodule.", "Clear.", ""])
        features = model.encode_images(images)
        maps = model.region_scores(features, sentences)
        scores = model.score(features, sentences)
        alone = model.score(features, model.encode_sentences("Clear."))
    assert maps.shape == (3, 3, model.grid.rows * model.grid.columns)
    assert scores.abs().max() <= 1
    torch.testing.assert_close(alone[:, 0], scores[:, 1], atol=1e-5, rtol=0)


def test_words_and_stored_sentences_exclude_each_other(run):
    with pytest.raises(UserError, match="local_words reads its words"):
        Trainer(of_kind(run, "local_words", features={"text": True}))
