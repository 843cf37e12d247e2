"""The benchmark of a training step: its contenders do what they say, its figures are right."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import train_step


@pytest.fixture
def trainer(toy_data):
    trainer = train_step.Trainer(train_step.settings(toy_data, train_step.SMALL))
    trainer.model.text_encoder.eval()  # no dropout
    return trainer


def test_the_plain_loop_has_the_gradients_of_the_engine(trainer):
    batch = trainer.batches[0]
    plain = train_step.ways(trainer)["plain"]()
    plain.loss(batch).backward()
    trainer.backward(batch, 0)
    theirs = dict(plain.model.named_parameters())
    for name, parameter in trainer.model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=1e-3, atol=1e-5)


def test_open_clips_step_is_symmetric_cross_entropy_of_pooled_embeddings(trainer):
    way, batch = train_step.ways(trainer)["open_clip"](), trainer.batches[0]
    ids = trainer.model.tokenizer.encode(
        [trainer.studies.texts[number] for number in batch.texts.tolist()], 64
    )
    with torch.no_grad():
        images = way.model.image_encoder(way.images(batch)).mean(dim=(2, 3))
        images = F.normalize(way.model.image_projection(images), dim=-1)
        logits = 14 * images @ way.model.encode_ids(ids).T
        target = torch.arange(len(logits))
        expected = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        assert float(way.loss(batch)) == pytest.approx(float(expected), rel=1e-4)
    before = [p.clone() for p in way.parameters]
    way.step(0, batch)
    moved = [not torch.equal(a, b) for a, b in zip(before, way.parameters, strict=True)]
    assert sum(moved) > 0.8 * len(moved)
