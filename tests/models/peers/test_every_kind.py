"""Every kind of model gives features of one form, and scores a whole image as documented."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest
import torch

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.errors import UserError
from medclip_debias.grounding.search.ranking import sentence_scores
from medclip_debias.grounding.settings import SuppressionRule
from medclip_debias.grounding.suppression import Suppressor
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.interface import need_vectors
from medclip_debias.models.peers.families import published_preprocessing
from medclip_debias.models.peers.peer import Peer
from medclip_debias.models.peers.settings import (
    BertSettings,
    Dinov2Settings,
    EncoderTextSettings,
    HfClipSettings,
    HfClipTextSettings,
    Kind,
    NoTextSettings,
    OpenClipSettings,
    OpenClipTextSettings,
    PeerSettings,
    RadDinoSettings,
    ResNetSettings,
    SwinSettings,
    ViTSettings,
    WordsTextSettings,
)
from medclip_debias.models.peers.tokenizers import ClipTokenizer, NoTokenizer, read_pieces
from medclip_debias.models.text_encoder import SentenceTokenizer

from .conftest import CLIP_WORDS, DIM, UNIGRAMS, lively, spiece

OURS = "ours"
VISION = {"image_size": 64, "patch_size": 16, "width": 32, "layers": 1, "head_width": 16}
VIT = OpenClipSettings(config=VISION | {"mlp_ratio": 1.5})
RESNET = OpenClipSettings(
    config={"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "head_width": 64}
)
SWIN = SwinSettings(
    config={"image_size": 224, "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2]}
)
WORDS = {"context_length": 77, "vocab_size": CLIP_WORDS, "width": 16, "layers": 1, "heads": 2}
CLIP_TEXT = OpenClipTextSettings(config=WORDS)
HF = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 20}
PIXELS = HF | {"hidden_size": 16, "image_size": 64, "patch_size": 16}
CONTEXT = HF | {"hidden_size": 16, "vocab_size": CLIP_WORDS, "max_position_embeddings": 77}
SIGLIP = HfClipSettings(family="siglip", config=PIXELS | {"hidden_size": DIM})
SIGLIP_TEXT = HfClipTextSettings(
    family="siglip",
    config=CONTEXT
    | {"vocab_size": len(UNIGRAMS), "max_position_embeddings": 32, "projection_size": DIM},
    pad=1,
)
COCA = OpenClipSettings(
    config=VISION | {"attentional_pool": True, "attn_pooler_queries": 3, "attn_pooler_heads": 2}
)
COCA_TEXT = OpenClipTextSettings(config=WORDS | {"context_length": 32, "embed_cls": True})
RAD_DINO = RadDinoSettings(
    config={"hidden_size": DIM, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 16}
)
# As wide as the small BERT, which CARZero and RadZero ask for.
PLAIN = ViTSettings(
    image_size=224,
    patch=32,
    width=16,
    layers=1,
    heads=2,
    hidden=24,
)
DINO = Dinov2Settings(
    config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
    image_size=56,
    blocks=1,
    block_heads=2,
    head="norm",
)
QUERIES = {"kind": "query_attention", "positions": 9, "layers": 2, "heads": 4, "hidden": 12}
SIMILARITY = {"kind": "similarity_attention"}
NETWORK = {
    **{"kind": "query_network", "layers": 2, "heads": 2, "hidden": 12},
    **{"book": {"effusion": "pleural effusion", "left": "left"}, "norm_inputs": True},
}
ASKED = {"pooling": "affine_mlp", "hidden": 10}
CASES = {
    OURS: None,
    "biovil": (ResNetSettings(hidden=16), {"pooling": "projection"}),
    "biovil_t": (ResNetSettings(hidden=16, temporal=8), {"pooling": "projection"}),
    "chexzero": (VIT, CLIP_TEXT),
    "open_clip": (VIT, CLIP_TEXT),
    "open_clip ResNet": (RESNET, CLIP_TEXT),
    "open_clip BERT": (VIT, {"pooling": "mlp", "token": "mean", "hidden": 10}),
    "gloria": (ResNetSettings(), {"pooling": "last4"}),
    "medclip": (ResNetSettings(), {"pooling": "three_layers"}),
    "medclip Swin": (SWIN, {"pooling": "three_layers"}),
    "siglip": (SIGLIP, SIGLIP_TEXT),
    "clip": (
        HfClipSettings(family="clip", config=PIXELS),
        HfClipTextSettings(family="clip", config=CONTEXT),
    ),
    "rad_dino": (RAD_DINO, NoTextSettings()),
    "open_clip CoCa": (COCA, COCA_TEXT),
    "carzero": (PLAIN, {"kind": "words", "positions": 9}, QUERIES),
    "radzero": (DINO, {"kind": "encoder", "pooling": "mean", "head": "norm"}, SIMILARITY),
    "conns": (
        DINO.model_copy(update={"head": "linear"}),
        {"kind": "encoder", "pooling": "cls", "head": "linear"},
        {**SIMILARITY, "own_attention": True},
    ),
    "cxr_clip": (ResNetSettings(), {"pooling": "affine", "token": "last"}),
    "cxr_clip Swin": (SWIN, {"pooling": "affine", "token": "last"}),
    "mgca": (ResNetSettings(hidden=12), {"kind": "words", "hidden": 12}, {"kind": "two_spaces"}),
    "mgca ViT": (PLAIN, {"kind": "words", "hidden": 12}, {"kind": "two_spaces"}),
    "kad": (ResNetSettings(stage=3), {**ASKED, "token": "pooler"}, NETWORK),
    "medklip": (ResNetSettings(stage=3), {"pooling": "affine", "separator": False}, NETWORK),
    "afloc": (
        ResNetSettings(),
        {"pooling": "last4", "positions": 97},
        {"kind": "products"},
    ),
}
READERS = [name for name in CASES if name != "rad_dino"]
TEXTS = {"bert": BertSettings, "encoder": EncoderTextSettings, "words": WordsTextSettings}
QUERIED = ("kad", "medklip")
RAW = (*QUERIED, "afloc")
ATTENDED, SEVERAL = ("carzero", "radzero", "conns"), ("carzero", "mgca", *RAW)
"""Kinds that score by the whole and the regions, and that have several vectors a sentence.

Those that read regions alone, and those whose vectors have any length."""
SENTENCES = ["no pleural effusion", "left", "no pleural effusion"]


def test_every_kind_of_peer_has_a_case():
    assert {name.split()[0] for name in CASES} == {OURS, *get_args(Kind)}


@pytest.fixture
def build(request, shallow, bert_folder, cxr_bert_folder, tmp_path):
    """A function that builds the model of a case, with weights at random."""

    def peer(name):
        kind = name.split()[0]
        image, text, *fusion = CASES[name]
        dim = DIM
        if isinstance(text, NoTextSettings):
            tokenizer = NoTokenizer()
        elif isinstance(text, OpenClipTextSettings | HfClipTextSettings) and text.pieces:
            spiece(tmp_path / "spiece.model")
            tokenizer = read_pieces(tmp_path)
        elif isinstance(text, OpenClipTextSettings | HfClipTextSettings):
            tokenizer = ClipTokenizer.from_merges(request.getfixturevalue("few_merges"))
        else:
            folder = cxr_bert_folder if text.get("pooling") == "projection" else bert_folder
            config = json.loads((folder / "config.json").read_text())
            as_wide = kind in ("carzero", "radzero") or text.get("pooling") == "last4"
            dim = config["hidden_size"] if as_wide else DIM
            tokenizer = SentenceTokenizer.load(folder)
            text = TEXTS[text.get("kind", "bert")](config=config, **text)
        settings = PeerSettings(
            kind=kind,
            dim=dim,
            max_tokens=32,
            image=image,
            text=text,
            fusion=fusion[0] if fusion else None,
        )
        side = 56 if isinstance(image, Dinov2Settings) else 64
        how = published_preprocessing(kind, side, resnet=isinstance(image, ResNetSettings))
        return Peer(settings, how, tokenizer)

    def ours():
        return DualEncoder.create(
            ModelSettings(
                image=ImageEncoderSettings(arch="resnet_small"),
                text=TextEncoderSettings(folder=cxr_bert_folder, max_tokens=16),
                dim=DIM,
            ),
            Preprocessing(prepare=PrepareSettings(size=64), input_size=64),
        )

    def make(name):
        torch.manual_seed(0)
        return lively(ours() if name == OURS else peer(name))

    return make


def pictures(side):
    """A picture that darkens from left to right, and noise: uint8 ``[2, side, side]``."""
    ramp = torch.linspace(255, 0, side).expand(side, side)
    noise = torch.rand(side, side, generator=torch.Generator().manual_seed(1)) * 255
    return torch.stack([ramp, noise]).to(torch.uint8)


def cosines(vectors, sentences):
    """``[..., T]`` in double precision, by the definition."""
    v, s = vectors.double().numpy(), sentences.double().numpy()
    lengths = np.linalg.norm(v, axis=-1)[..., None] * np.linalg.norm(s, axis=-1)
    return np.einsum("...d,td->...t", v, s) / lengths


@pytest.mark.parametrize("name", READERS)
@torch.no_grad()
def test_a_model_gives_unit_vectors_of_regions_and_of_whole_images(name, build):
    model, kind = build(name), name.split()[0]
    images = pictures(model.preprocessing.input_size)
    features, sentences = model.encode_images(images), model.encode_sentences(SENTENCES)
    assert isinstance(features, ImageFeatures)
    regions = model.grid.rows * model.grid.columns
    assert features.regions.shape == (2, regions, model.dim)
    assert sentences.ndim == (3 if kind in SEVERAL else 2)
    assert (len(sentences), sentences.shape[-1]) == (3, model.dim)
    none = model.encode_sentences([])
    assert (len(none), none.ndim, none.shape[-1]) == (0, sentences.ndim, model.dim)
    assert torch.equal(model.encode_sentences("left"), model.encode_sentences(["left"]))
    given = [features.regions, *([] if kind in SEVERAL else [sentences])]
    assert model.outputs.has_whole == (features.whole is not None) == (kind not in (OURS, *QUERIED))
    if model.outputs.has_whole:
        assert features.whole.shape == (2, model.dim)
        kept = 1 + regions * (kind in ATTENDED)
        assert model.outputs.whole_alone == (kept == 1)
        assert features.stored.shape == (2, kept, model.dim)
        given.append(features.whole)
    else:
        assert features.stored.shape == (2, regions, model.dim)
    for vectors in [] if kind in RAW else given:
        assert vectors.dtype == torch.float32
        length = torch.linalg.vector_norm(vectors.double(), dim=-1)
        torch.testing.assert_close(length, torch.ones_like(length), atol=2e-7, rtol=0)
    assert not torch.allclose(features.regions[0], features.regions[1], atol=1e-5)

    found = model.region_scores(features, sentences)
    assert found.shape == (2, 3, regions)
    if kind not in SEVERAL:
        expected = cosines(features.regions, sentences).swapaxes(1, 2)
        np.testing.assert_allclose(found, expected, atol=5e-7)
    assert model.outputs.map_kind == ("attention" if kind in ("carzero", *QUERIED) else "cosine")
    scores = model.score(features, sentences)
    assert scores.shape == (2, 3)
    # What an index keeps, in half precision, gives the same scores.
    if kind != "afloc":  # one vector an image, kept at unit length; no index takes it
        kept = sentence_scores(model.score, features.stored.half().numpy(), sentences)
        np.testing.assert_allclose(kept, scores, atol=2e-3)


@pytest.mark.parametrize("name", [n for n in READERS if n != OURS and len(CASES[n]) == 2])
@torch.no_grad()
def test_a_peers_score_is_the_cosine_of_its_whole_image_vector(name, build):
    """The tower's own vector, of any length, and the sentence: the authors' definition."""
    model = build(name)
    images = pictures(model.preprocessing.input_size)
    whole = model.image(model.normalise(images))[1]
    sentences = model.encode_sentences(SENTENCES)
    expected = cosines(whole, sentences)
    scores = model.score(model.encode_images(images), sentences)
    np.testing.assert_allclose(scores, expected, atol=3e-7)
    assert np.abs(expected[0] - expected[1]).max() > 1e-5
    assert model.learned_scale is None
    with pytest.raises(ValueError, match="of another model"):
        model.score(ImageFeatures(torch.zeros(1, 4, model.dim)), sentences)


@pytest.mark.parametrize("name", ["carzero", "mgca", "chexzero"])
def test_averages_over_prompts_are_refused_where_a_sentence_has_several_vectors(name, build):
    """Presets average the prompts of a side, which means nothing of the words of two sentences."""
    model = build(name)
    need_vectors(model, "bench", several=True)
    if name not in SEVERAL:
        return need_vectors(model, "a preset")
    with pytest.raises(UserError, match="'a preset' needs one vector a sentence"):
        need_vectors(model, "a preset")


@pytest.mark.parametrize("name", ["carzero", "mgca"])
@torch.no_grad()
def test_the_level_of_a_sentence_is_that_of_its_own_vector_and_no_average(name, build):
    """Suppression takes a sentence's level from its vector; of several, the one beside images."""
    model = build(name)
    weights = np.linspace(-1, 1, model.dim)
    rule = SuppressionRule(evidence="offset", threshold=0.0, level=tuple(weights), slope=1.0)
    features = model.encode_images(pictures(model.preprocessing.input_size))
    verdicts = Suppressor(rule, model, ["left", "pleural effusion"]).of(features)
    sentences = model.encode_sentences(["left", "pleural effusion"])
    own = sentences[:, 0].double().numpy()
    levels = own @ weights / np.linalg.norm(own, axis=1)
    scores = model.score(features, sentences).double().numpy()
    found = [[verdict.evidence for verdict in row] for row in verdicts]
    np.testing.assert_allclose(found, scores - levels, atol=1e-6)
