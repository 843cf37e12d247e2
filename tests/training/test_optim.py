"""Which parts train, how fast, and what becomes of the rest; a ViT all the way to its results."""

from __future__ import annotations

import pytest
import torch

from medclip_debias.config import ImageEncoderSettings
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.optim import learning_rate
from medclip_debias.training.settings import TrainSettings
from medclip_debias.training.step import Trainer


@pytest.fixture
def run(run_in, tmp_path):
    return run_in(tmp_path, "small")


@pytest.fixture
def vit(run):
    """Settings with a small ViT, as ``run`` makes them."""

    def make(blocks=0, **given):
        settings = run(**given)
        image = ImageEncoderSettings(arch="vit_tiny_scratch", blocks=blocks)
        model = settings.model.model_copy(update={"image": image})
        return settings.model_copy(update={"model": model})

    return make


def moved(settings, steps=2):
    """Names of the parameters and buffers that some steps change, and the trainer."""
    trainer = Trainer(settings)
    before = {k: v.clone() for k, v in trainer.model.state_dict().items()}
    for step in range(steps):
        trainer.step(step)
    after = trainer.model.state_dict()
    return {k for k in after if not torch.equal(after[k], before[k])}, trainer


def test_two_blocks_on_a_frozen_trunk(vit):
    names, trainer = moved(vit(trainable={"image": {"last_blocks": 2}, "text": "frozen"}))
    image = {k for k in names if k.startswith("image_encoder.")}
    trunk = "image_encoder.trunk."
    parts = (f"{trunk}encoder.layer.2.", f"{trunk}encoder.layer.3.", f"{trunk}layernorm.")
    assert all(k.startswith(parts) for k in image)
    assert {k.split(".")[4] for k in image if ".layer." in k} == {"2", "3"}
    assert not any(k.startswith("text_encoder.") for k in names)
    # What is frozen computes no gradients and has no dropout.
    blocks = trainer.model.image_encoder.layers
    assert [b.training for b in blocks] == [False, False, True, True]
    assert all(p.grad is None for p in blocks[1].parameters())
    trained = (*blocks[2:], *trainer.model.image_encoder.above)
    expected = sum(p.numel() for block in trained for p in block.parameters())
    assert trainer.counts["image"]["trained"] == expected
    assert trainer.counts["text"]["trained"] == 0
    assert not trainer.model.text_encoder.training


def test_what_is_frozen_does_not_move_nor_do_its_statistics(run):
    names, _ = moved(run(trainable={"image": {"last_blocks": 1}, "text": {"last_blocks": 1}}))
    image = {k for k in names if k.startswith("image_encoder.")}
    assert any("running_mean" in k for k in image)
    assert all(k.startswith("image_encoder.layer3.") for k in image)
    text = {k for k in names if k.startswith("text_encoder.bert.")}
    assert any(k.startswith("text_encoder.bert.encoder.layer.1.") for k in text)
    lower = ("text_encoder.bert.embeddings", "text_encoder.bert.encoder.layer.0.")
    assert not any(k.startswith(lower) for k in text)


def test_adapters_alone_train_and_are_merged_into_the_saved_model(vit, tmp_path):
    lora = {"lora": {"rank": 2, "targets": "linear"}}
    found, trainer = moved(vit(blocks=1, trainable={"image": lora, "text": lora}))
    assert any(k.startswith("image_projection.blocks.0.") for k in found)
    encoders = {k for k in found if "_encoder." in k}
    assert any(k.startswith("text_encoder.") for k in encoders)
    assert all(k.endswith((".0.up", ".0.down")) for k in encoders)
    trainer.model.eval().save(tmp_path / "model")
    plain = DualEncoder.load(tmp_path / "model")
    assert plain.self_test["status"] == "passed"
    assert plain.grid.shape == (4, 4)
    assert not any("parametrizations" in name for name in plain.state_dict())
    images = torch.randint(0, 256, (2, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        for model in (trainer.model.eval(), plain):
            model.features = model.encode_images(images).regions
            model.sentences = model.encode_sentences(["No effusion.", "Clear."])
    torch.testing.assert_close(plain.features, trainer.model.features, rtol=0, atol=1e-5)
    torch.testing.assert_close(plain.sentences, trainer.model.sentences, rtol=0, atol=1e-5)


def test_rates_fall_from_layer_to_layer(vit):
    settings = vit(lr_factors={"image": 2.0, "text": 3.0, "layer_decay": 0.5})
    trainer = Trainer(settings)
    factor = {p: g["lr_factor"] for g in trainer.optimizer.param_groups for p in g["params"]}
    image, text = trainer.model.image_encoder, trainer.model.text_encoder
    for encoder, base in ((image, 2.0), (text, 3.0)):
        layers = encoder.layers
        for depth, layer in enumerate(layers, start=1):
            expected = base * 0.5 ** (len(layers) - depth)
            assert {factor[p] for p in layer.parameters()} == {expected}
    assert factor[image.trunk.embeddings.position_embeddings] == 2.0 * 0.5**4
    assert factor[image.trunk.layernorm.weight] == 2.0
    assert factor[text.bert.embeddings.word_embeddings.weight] == 3.0 * 0.5**2
    assert factor[trainer.model.image_projection.weight] == 1.0


def test_the_learning_rate_warms_up_and_falls_as_a_cosine():
    rates = [learning_rate(s, peak=2.0, warmup=10, steps=110) for s in range(110)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[9] == pytest.approx(2.0)
    assert rates[60] == pytest.approx(1.0)
    assert 0 < rates[-1] < 0.01
    assert learning_rate(5, peak=1.0, warmup=100, steps=10) == pytest.approx(0.06)


def test_what_the_learning_rate_does_is_said_as_it_is():
    """A report said of every run that it falls to 0, and of a long warm-up that it ends."""
    short = TrainSettings(steps=1000, warmup_steps=2000, lr=1e-5).rate_in_words()
    last = learning_rate(999, peak=1e-5, warmup=2000, steps=1000)
    assert short.startswith(f"rises to {last:g} in 1,000 steps and no further: to 1e-05")
    stays = TrainSettings(warmup_steps=10, schedule="constant").rate_in_words()
    assert stays == "rises to 1e-05 in 10 steps and stays there"
