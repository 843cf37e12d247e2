"""Which parts train, how fast, and what becomes of the rest; a ViT all the way to its results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from medclip_debias.cli import run as command
from medclip_debias.config import ImageEncoderSettings
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.load import load_model
from medclip_debias.training.optim import learning_rate
from medclip_debias.training.resolve import load_run
from medclip_debias.training.settings import TrainSettings
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train


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


def test_new_blocks_on_a_frozen_trunk(vit):
    names, trainer = moved(vit(blocks=2, trainable={"image": "frozen", "text": "frozen"}))
    heads = ("image_projection.", "text_projection.", "similarity.")
    assert all(k.startswith(heads) for k in names)
    assert any(k.startswith("image_projection.blocks.1.") for k in names)
    assert trainer.counts["image"]["trained"] == 0


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
    found, trainer = moved(vit(trainable={"image": lora, "text": lora}))
    encoders = {k for k in found if "_encoder." in k}
    assert any(k.startswith("text_encoder.") for k in encoders)
    assert all(k.endswith((".0.up", ".0.down")) for k in encoders)
    trainer.model.eval().save(tmp_path / "model")
    plain = DualEncoder.load(tmp_path / "model")
    assert plain.self_test["status"] == "passed"
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


def test_a_vit_is_trained_saved_loaded_and_evaluated(vit, tmp_path):
    said = []
    settings = vit(blocks=1, steps=3, trainable={"image": {"lora": {"rank": 2}}}, ema=0.5)
    result = train(settings, say=said.append)
    counts = json.loads((settings.out / "parameters.json").read_text())
    assert f"trainable parameters: {counts['image']['trained']:,} of " in said[0]
    model = load_model(result.model)
    assert isinstance(model, DualEncoder)
    assert model.self_test["status"] == "passed"
    assert model.provenance["parameters"] == counts
    assert model.grid.shape == (4, 4)
    assert not any("parametrizations" in name for name in model.state_dict())
    config = json.loads((result.model / "config.json").read_text())
    assert config["image_config"]["patch_size"] == 8
    assert train(settings).finished_before
    out = tmp_path / "results"
    evaluate = ["evaluate", str(result.model), str(settings.prepared), "--out", str(out)]
    assert command([*evaluate, "--bootstrap", "0", "--heatmaps", "1"]) == 0
    assert json.loads((out / "results.json").read_text())["model"]["grid"] == [4, 4]


def test_radzeros_recipe_trains_with_small_folders(run, tmp_path, prepared_phantom):
    from transformers import Dinov2Config, Dinov2Model

    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    Dinov2Model(Dinov2Config(**small)).save_pretrained(tmp_path / "dino")
    like = run()
    changes = {
        "prepared": prepared_phantom,
        "preprocessing.prepare.size": like.preprocessing.prepare.size,
        "preprocessing.input_size": 28,
        "model.image.weights": tmp_path / "dino",
        "model.text.folder": like.model.text.folder,
        "model.text.max_tokens": 32,
        "model.text.use_projection_head": "false",
        "model.dim": 16,
        "train.batch_size": 8,
    }
    recipe = Path(__file__).parents[2] / "configs" / "mimic_cxr" / "radzero_recipe.yaml"
    settings = load_run(recipe, [f"{name}={value}" for name, value in changes.items()])
    found, trainer = moved(settings)
    assert {k.split(".")[0] for k in found} >= {"image_projection", "text_encoder"}
    assert trainer.counts["image"]["trained"] == 0
    assert trainer.model.text_encoder.pooling == "mean"


def test_an_encoder_trains_in_one_of_the_ways():
    with pytest.raises(ValueError, match="choose one of"):
        TrainSettings(trainable={"image": {"frozen": True, "last_blocks": 1}})


def test_the_learning_rate_warms_up_and_falls_as_a_cosine():
    rates = [learning_rate(s, peak=2.0, warmup=10, steps=110) for s in range(110)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[9] == pytest.approx(2.0)
    assert rates[60] == pytest.approx(1.0)
    assert 0 < rates[-1] < 0.01
    assert learning_rate(5, peak=1.0, warmup=100, steps=10) == pytest.approx(0.06)
