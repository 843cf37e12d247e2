"""Training a model on: scores at the start, what trains, what the folder says, and resuming."""

from __future__ import annotations

import json
import math
import shutil
from functools import cache

import pytest
import torch
import yaml

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    Preprocessing,
    SimilaritySettings,
    StartSettings,
    TextEncoderSettings,
)
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.losses.multi_positive import MultiPositive, MultiPositiveSettings
from medclip_debias.losses.siglip import carry_bias
from medclip_debias.models.backbones import resnet
from medclip_debias.models.backbones.resnet import Arch
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.load import load_model
from medclip_debias.models.peers import tokenizers as peer_tokenizers
from medclip_debias.models.peers.fusion import SimilarityAttention
from medclip_debias.models.peers.images import image_tower
from medclip_debias.models.peers.open_clip import installed_merges
from medclip_debias.models.peers.settings import PeerPreprocessing, PeerSettings
from medclip_debias.models.peers.tokenizers import ClipTokenizer
from medclip_debias.training.optim import frozen_part
from medclip_debias.training.settings import RunSettings, TrainSettings
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train
from tests.helpers.small_models import make_peer
from tests.training.conftest import largest_difference, same, table, train_until, weights

SIDE, DIM = 64, 12
SENTENCES = ["No pleural effusion.", "Right pneumothorax."]
VIT = {"image_size": SIDE, "patch_size": 16, "width": 32, "layers": 2, "head_width": 16}
MERGES = 1000  # of CLIP's 48,894, which take long to read
CLIP_TEXT = {
    "context_length": 32,
    "vocab_size": 512 + MERGES + 2,
    "width": 16,
    "layers": 2,
    "heads": 2,
}
CONVNEXT = {"timm_model_name": "test_convnext", "image_size": SIDE, "timm_pool": ""}
TOWERS = {
    "chexzero": ({"kind": "open_clip", "config": VIT}, {"kind": "open_clip", "config": CLIP_TEXT}),
    "biovil": ({"kind": "resnet50"}, {"pooling": "projection"}),
    "convnext": (
        {"kind": "open_clip", "config": CONVNEXT, "timm_stride": 32},
        {"pooling": "mlp"},
    ),
    "conns": ({"kind": "dinov2"}, {"kind": "encoder", "pooling": "cls"}),
}
INSIDE = {"image.projector.0.weight": (16, 1), "text.head.0.weight": (10, 1)}
TRUNK = "image.encoder.trunk."
DINO = {
    f"{TRUNK}embeddings.patch_embeddings.projection.weight": (DIM, 3, 16, 16),
    f"{TRUNK}embeddings.position_embeddings": (1, 1 + (SIDE // 16) ** 2, DIM),
    f"{TRUNK}encoder.layer.0.mlp.fc1.weight": (4 * DIM, DIM),
    f"{TRUNK}encoder.layer.1.mlp.fc1.weight": (4 * DIM, DIM),
    "image.blocks.layer.0.mlp.fc1.weight": (4 * DIM, DIM),
    "image.head.weight": (DIM,),
    "text.head.weight": (1, 1),
}
"""Of tensors that sizes are read off."""
KINDS = ("chexzero", "biovil", "convnext", "ours")
NON_COMMERCIAL = "CC BY-NC 4.0"
# Over the bound of 100 of what is trained, as SigLIP's published scale is.
SCALE, BIAS = 117.0, -12.9


@pytest.fixture(scope="module")
def start(prepared_phantom, small_language_model, tmp_path_factory):
    """A function that gives a folder of random weights of a kind, written once: only read it."""
    prepare, folders = PreparedSet.open(prepared_phantom).settings, {}

    def make(kind, scale=20.0):
        if (kind, scale) not in folders:
            folders[kind, scale] = tmp_path_factory.mktemp("start") / "model"
            write(kind, scale, folders[kind, scale])
        return folders[kind, scale]

    def write(kind, scale, folder):
        torch.manual_seed(0)
        if kind == "ours":
            settings = ModelSettings(
                image=ImageEncoderSettings(arch="resnet_tiny"),
                text=TextEncoderSettings(folder=small_language_model, max_tokens=24),
                dim=DIM,
            )
            own = Preprocessing(prepare=prepare, input_size=SIDE)
            model = DualEncoder.create(settings, own)
            model.similarity.log_scale.data.fill_(scale).log_()
        else:
            model = peer(kind, scale)
        model.provenance = {"licence": NON_COMMERCIAL}
        model.eval().save(folder)

    def peer(kind, scale):
        config = json.loads((small_language_model / "config.json").read_text())
        image, text = TOWERS[kind]
        tokenizer = None
        if kind == "chexzero":
            tokenizer = ClipTokenizer.from_merges(installed_merges())
        if kind == "biovil":
            text = text | {"config": config | {"projection_size": DIM}}
        channels = 1 if kind == "biovil" else 3
        how = PeerPreprocessing(
            prepare=prepare,
            input_size=SIDE,
            channel_mean=(0.4,) * channels,
            channel_std=(0.3,) * channels,
        )
        content = {"dim": DIM, "max_tokens": 24, "image": image, "scale": scale}
        content |= {"kind": kind if kind in ("chexzero", "biovil", "conns") else "open_clip"}
        content |= {"fusion": {"kind": "similarity_attention"} if kind == "conns" else None}
        shapes = DINO if kind == "conns" else INSIDE
        model = make_peer(small_language_model, how, shapes, text, tokenizer=tokenizer, **content)
        if isinstance(model.fusion, SimilarityAttention):
            with torch.no_grad():
                model.fusion.loss_temperature.fill_(-math.log(scale))
        return model

    stages = ((1, 16, 1), (1, 16, 2), (1, 32, 2), (1, 32, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(resnet.ARCHITECTURES, "resnet50", Arch("bottleneck", 16, 7, True, stages))
        patch.setattr(peer_tokenizers, "MERGES", MERGES)
        yield make


@pytest.fixture(scope="module")
def first():
    """A function that loads a start once, for what is only read of it."""
    return cache(load_model)


@pytest.fixture
def run_of(prepared_phantom, tmp_path):
    """A function that makes settings of a run which starts from a folder."""

    def make(folder, out="run", similarity="own", loss=None, **train):
        plain = {"steps": 4, "batch_size": 8, "lr": 1e-3, "warmup_steps": 0, "log_every": 1}
        plain |= {"checkpoint_every": 2, "workers": 0, "channels_last": False}
        return RunSettings(
            prepared=prepared_phantom,
            out=tmp_path / out,
            model=StartSettings(start_from=folder, similarity=similarity),
            loss=loss or {"kind": "infonce"},
            train=TrainSettings(**(plain | train)),
        )

    return make


def test_attending_scores_train_from_their_own_score(start, first, run_of):
    folder = start("conns")
    settings = run_of(folder, steps=3, trainable={"image": {"last_blocks": 1}})
    before, images, trainer = first(folder), images_of(settings), Trainer(settings)
    expected = assert_scores_as(before, trainer, images)
    assert "attention by cosine" in trainer.start.score
    after = load_model(train(settings).model)
    assert not torch.allclose(scores(after, images), expected, atol=1e-5)
    pairs = zip(after.image.layers, before.image.layers, strict=True)
    kept = [same(a.state_dict(), b.state_dict()) for a, b in pairs]
    assert kept == [True] * (len(kept) - 1) + [False]
    sharp = after.similarity.aggregator.temperature.detach()
    assert float(sharp) != pytest.approx(before.fusion.sharpness, abs=1e-6)
    again = Trainer(run_of(settings.out / "model", "again")).model.eval()
    torch.testing.assert_close(scores(again, images), scores(after, images), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [({"kind": "siglip"}, BIAS * 100 / SCALE), ({"kind": "siglip", "initial_bias": -5.0}, -5.0)],
)
def test_a_pairwise_sigmoid_starts_with_the_starts_bias(loss, expected, start, run_of, tmp_path):
    """Smaller by as much as the scale is bounded, so that no pair changes sides."""
    peer = load_model(start("convnext", SCALE))
    peer.settings = peer.settings.model_copy(update={"bias": BIAS})
    peer.save(tmp_path / "siglip")
    trainer = Trainer(run_of(tmp_path / "siglip", loss=loss))
    assert trainer.model.learned_scale == pytest.approx(100.0)
    (bias,) = (p for name, p in trainer.objective.named_parameters() if name.endswith("bias"))
    assert float(bias.detach()) == pytest.approx(expected, rel=1e-6)
    assert f"its bias, {BIAS * 100 / SCALE:.4g}" in trainer.start.sentences()[1]
    assert trainer.model.settings.bias is None  # the model that is trained has another by then
    around = MultiPositive(MultiPositiveSettings.model_validate({"core": loss}))
    carry_bias(around, BIAS)
    assert float(around.core.bias.detach()) == pytest.approx(loss.get("initial_bias", BIAS))


def images_of(settings):
    data = PreparedSet.open(settings.prepared)
    return torch.from_numpy(data.pixels[:4].copy())


@torch.no_grad()
def scores(model, images):
    return model.score(model.encode_images(images), model.encode_sentences(SENTENCES))


@torch.no_grad()
def stepped(model, images):
    """Scores by the way of a step, not of an evaluation."""
    stored = model.encode_images(images).stored
    return model.similarity(stored, model.encode_ids(model.token_ids(SENTENCES)))


def assert_scores_as(before, trainer, images):
    """A run scores as its start before the first step, and by the way of a step."""
    model, expected = trainer.model.eval(), scores(before, images)
    torch.testing.assert_close(scores(model, images), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(stepped(model, images), expected, atol=1e-5, rtol=0)
    assert model.learned_scale == pytest.approx(20.0, rel=1e-6)
    assert trainer.start.own_scale
    assert trainer.settings.preprocessing == before.preprocessing
    return expected


@pytest.mark.parametrize("kind", KINDS)
def test_training_lowers_the_loss_and_the_folder_loads_scores_and_says_its_start(
    kind, start, first, run_of
):
    sentences, settings = [], run_of(start(kind), steps=8, checkpoint_every=8)
    before, images = first(start(kind)), images_of(settings)
    expected = assert_scores_as(before, Trainer(settings), images)
    result = train(settings, say=sentences.append)
    losses = [float(row["loss"]) for row in table(settings.out / "metrics.csv")]
    assert sum(losses[4:]) < sum(losses[:4])
    model = load_model(result.model)
    assert type(model) is type(before)
    assert model.self_test["status"] == "passed"
    assert not torch.allclose(scores(model, images), expected, atol=1e-4)
    assert 1 <= model.learned_scale <= 100
    assert model.learned_scale != pytest.approx(20.0, abs=1e-6)
    assert model.outputs.has_whole == (kind != "ours")
    provenance = model.provenance["provenance"]["start"]
    assert provenance["hash"] == before.content_hash
    assert provenance["licence"] == model.provenance["licence"] == NON_COMMERCIAL
    assert "non-commercial" in sentences[0]
    assert "(learned before)" in sentences[1]
    counts = json.loads((settings.out / "parameters.json").read_text())
    count = sum(sum(each.values()) for each in counts.values())
    assert count == sum(p.numel() for p in model.parameters())


def test_an_interrupted_run_ends_with_the_same_bits(start, run_of):
    folder = start("biovil")
    whole = train(run_of(folder, "whole", ema=0.5)).model
    settings = run_of(folder, "cut", ema=0.5)
    train_until(settings, 3)
    resumed = train(settings)
    assert resumed.resumed_at == 2
    assert same(weights(whole), weights(resumed.model))
    moved = settings.model_copy(update={"model": StartSettings(start_from=start("biovil", 30.0))})
    with pytest.raises(UserError, match=r"start\.hash|start_from"):
        train(moved)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("chexzero", {"lora": {"rank": 2}}),
        ("biovil", {"last_blocks": 1}),
        ("chexzero", "frozen"),
    ],
    ids=str,
)
def test_the_chosen_parts_of_a_peer_train_and_the_others_stay(kind, parts, start, first, run_of):
    folder = start(kind)
    settings = run_of(folder, steps=2, trainable={"image": parts, "text": parts})
    trainer = Trainer(settings)
    before = first(folder).state_dict()
    for step in range(2):
        trainer.step(step)
    trainer.model.save(settings.out / "model")
    after = load_model(settings.out / "model").state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert set(after) - set(before) == {"trained_similarity.log_scale"}
    projections = {
        "chexzero": {"image.visual.proj", "text.text.text_projection"},
        "biovil": {"image.projector.0.weight", "text.head.dense_to_output.weight"},
    }[kind]
    assert projections <= moved
    stems = (
        "image.visual.conv1",
        "image.encoder.conv1",
        "text.bert.embeddings",
        "text.text.token_embedding",
    )
    assert not [name for name in moved if name.startswith(stems)]
    blocks = "text.text.transformer.resblocks" if kind == "chexzero" else "text.bert.encoder.layer"
    lower, upper = (any(n.startswith(f"{blocks}.{k}.") for n in moved) for k in (0, 1))
    assert (lower, upper) == (parts != "frozen" and "lora" in parts, parts != "frozen")


def test_a_peer_may_train_by_its_regions_instead(start, run_of):
    sentences = []
    loss = {"kind": "debiased", "eta": {"kind": "constant", "value": 0.1}}
    more = {"similarity": {"aggregator": "lse_nl"}, "accumulate": 2}
    settings = run_of(start("convnext"), loss=loss, **more)
    model = load_model(train(settings, say=sentences.append).model)
    images = images_of(settings)
    features, vectors = model.encode_images(images), model.encode_sentences(SENTENCES)
    assert not model.outputs.has_whole
    assert features.whole is None
    assert torch.equal(model.score(features, vectors), model.similarity(features.regions, vectors))
    assert "'lse_nl' of its regions, unlike the start" in sentences[1]


KEPT = {
    "trainable": {"image": "frozen"},
    "features": {"cache": True},
    "augment": {"crop": False, "brightness": 0, "contrast": 0},
}
BY_LANGUAGE_MODEL = {"kind": "debiased", "eta": {"kind": "language_model"}}


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("convnext", {"loss": {"kind": "biovil"}}, "masked language modelling"),
        ("convnext", {"loss": BY_LANGUAGE_MODEL}, r"eta\.language_model"),
        ("chexzero", {"checkpoint_text": True}, "checkpoint_text"),
        ("chexzero", KEPT, "'model.start_from' is another group's model"),
        ("chexzero", {"similarity": {"aggregator": "local_words"}}, "none of its words"),
    ],
    ids=["masked words", "scores", "checkpoints", "features", "words"],
)
def test_what_a_start_cannot_give_is_refused_in_a_sentence(kind, change, message, start, run_of):
    with pytest.raises(UserError, match=message):
        Trainer(run_of(start(kind), **change))


def test_a_start_that_is_unlike_what_is_trained_is_refused(start, run_of, tmp_path):
    peer = load_model(start("conns"))
    peer.fusion.loss_temperature.data.fill_(-5.0)
    peer.save(tmp_path / "sharp")
    with pytest.raises(UserError, match=r"temperature of 1 / 148"):
        Trainer(run_of(tmp_path / "sharp"))
    folder = shutil.copytree(start("convnext"), tmp_path / "start")
    content = yaml.safe_load((folder / "peer.yaml").read_text())
    content["preprocessing"]["prepare"] |= {"size": 320, "fit": "crop"}
    (folder / "peer.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match=r"size .* instead of 320.*prepare SOURCE OUT --for"):
        Trainer(run_of(folder))


def test_the_vectors_of_a_start_stand_in_for_those_of_a_language_model(start, first, run_of):
    loss = {"kind": "clip", "negatives": [{"kind": "remove_by_text"}]}
    settings = run_of(start("convnext"), loss=loss)
    trainer = Trainer(settings)
    vectors = trainer.fields.values["text_similarity"]
    with torch.no_grad():
        expected = first(settings.model.start_from).encode_sentences(trainer.studies.texts)
    torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=0)
    assert not vectors.requires_grad
    trainer.step(0)


def test_stored_features_of_a_start_change_nothing(start, run_of, tmp_path):
    folder = start("ours")
    kept = KEPT | {"features": {"cache": True, "folder": tmp_path / "features"}}
    read, plain = (Trainer(run_of(folder, **values)) for values in (kept, KEPT | {"features": {}}))
    for step in range(2):
        assert torch.equal(read.step(step)["loss"], plain.step(step)["loss"])
    assert largest_difference(read.model.state_dict(), plain.model.state_dict()) == 0


def test_a_pooling_that_ends_in_the_shared_space_trains_above_a_frozen_tower():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"image_size": SIDE, "patch_size": 16, "intermediate_size": 48}
    content = {"kind": "siglip", "dim": 32, "max_tokens": 3, "text": {"kind": "none"}}
    content |= {"image": {"kind": "hf_clip", "config": sizes}}
    tower = image_tower(PeerSettings.model_validate(content), {})
    part = frozen_part(tower, len(tower.layers) + 1, set(tower.heads))
    inside = {parameter for module in part for parameter in module.parameters()}
    assert not inside & set(tower.tower.head.parameters())
    assert set(tower.layers[0].parameters()) <= inside


def test_words_of_a_start_that_scores_by_them_are_not_kept_as_one_vector(start, run_of, tmp_path):
    model = load_model(start("ours"))
    model.begin_training(SimilaritySettings(aggregator="local_words"))
    model.save(tmp_path / "words")
    kept = {"trainable": {"text": "frozen"}, "features": {"text": True}}
    with pytest.raises(UserError, match="the aggregator local_words reads its words"):
        Trainer(run_of(tmp_path / "words", **kept))
