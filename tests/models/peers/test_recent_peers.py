"""CARZero, RadZero, CoNNS, CXR-CLIP and MGCA against modules built from their definitions.

Names and definitions from the public repositories laihaoran/CARZero, deepnoid-ai/RadZero,
DopamineLcy/conns, kakaobrain/cxr-clip and HKU-MedAI/MGCA.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from medclip_debias.bench.vectors import StoredSentences
from medclip_debias.errors import UserError
from medclip_debias.grounding.search.ranking import sentence_scores
from medclip_debias.models.peers.importing import import_model
from medclip_debias.models.peers.processor import read_processor
from medclip_debias.models.sentences import stacked

from ..test_text_families import write
from .conftest import DIM, LAST, THIRD, lively, old_swin, prefixed
from .test_resnet_peers import features, pictures

SENTENCES = ["No pleural effusions.", "left", "left effusion, no effusions"]
WORDS = {  # of the small vocabulary: how each sentence's pieces form words
    "no pleural effusions": [["no"], ["pleural"], ["effusion", "##s"]],
    "left": [["left"]],
    "left effusion no effusions": [["left"], ["effusion"], ["no"], ["effusion", "##s"]],
}


def close(found, expected, atol=1e-5):
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def imported(kind, state, tmp_path, text, config=None):
    torch.save(state, tmp_path / "weights.pt")
    return import_model(kind, tmp_path / "weights.pt", tmp_path / "peer", text=text, config=config)


def timm_vit(width):
    """timm's own vision transformer without a classifier, one block of one head of 64 at most."""
    vit = pytest.importorskip("timm.models.vision_transformer")
    torch.manual_seed(3)
    heads = max(width // 64, 1)
    net = vit.VisionTransformer(embed_dim=width, depth=2, num_heads=heads, num_classes=0)
    return lively(net)


def ids_of(peer, sentence):
    return torch.tensor(peer.tokenizer.encode([sentence], 97))


def old_dinov2(state):
    """The names of published files, from those of transformers 5."""
    pairs = (
        (".attention.q_proj.", ".attention.attention.query."),
        (".attention.k_proj.", ".attention.attention.key."),
        (".attention.v_proj.", ".attention.attention.value."),
        (".attention.o_proj.", ".attention.output.dense."),
    )
    found = {}
    for key, value in state.items():
        for new, old in pairs:
            key = key.replace(new, old)
        found[key] = value
    return found


def dinov2(width, layers, seed):
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(seed)
    heads = max(width // 64, 1)
    config = Dinov2Config(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, image_size=28
    )
    return lively(Dinov2Model(config), seed)


def through_blocks(blocks, x):
    for layer in blocks.encoder.layer:
        x = layer(x)
    return x


def write_processor(folder, **changes):
    content = {
        "size": {"shortest_edge": 56},
        "crop_size": {"height": 42, "width": 42},
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.3, 0.25],
        "resample": 3,
        "rescale_factor": 1 / 255,
    } | changes
    (folder / "preprocessor_config.json").write_text(json.dumps(content))
    return folder / "preprocessor_config.json"


def attended(cosines, tokens, temperature, sentences):
    """The score of RadZero and CoNNS in float64, from the definition."""
    weights = (cosines.double() / temperature).softmax(dim=-1)
    mean = torch.einsum("btn,bnd->btd", weights, tokens.double())
    return torch.einsum("btd,td->bt", F.normalize(mean, dim=-1), sentences.double()).float()


def normalised(images, mean, std):
    x = images[:, None].float().expand(-1, 3, -1, -1) / 255
    mean, std = (torch.tensor(each)[None, :, None, None] for each in (mean, std))
    return (x - mean) / std


def check_attention(peer, images, tokens, sentences, temperature):
    """Features, sentences, score, map, and what an index keeps, of RadZero and CoNNS."""
    found, words = peer.encode_images(images), peer.encode_sentences(SENTENCES)
    unit, text = F.normalize(tokens, dim=-1), F.normalize(sentences, dim=-1)
    close(found.whole, unit[:, 0])
    close(found.regions, unit[:, 1:])
    close(words, text)
    cosines = torch.einsum("bnd,td->btn", unit, text)
    close(peer.region_scores(found, words), cosines[..., 1:])
    score = attended(cosines, unit, temperature, text)
    close(peer.score(found, words), score)
    plain = cosines[..., 0]
    assert (score - plain).abs().max() > 1e-3
    assert not peer.outputs.whole_alone
    assert found.stored.shape == (2, 1 + found.regions.shape[1], peer.dim)
    kept = sentence_scores(peer.score, found.stored.half().numpy(), words)
    np.testing.assert_allclose(kept, score, atol=2e-3)
    assert peer.learned_scale == pytest.approx(1 / 0.05, rel=1e-5)
    assert peer.outputs.map_kind == "cosine"


@torch.no_grad()
def test_radzero_attends_by_cosine_over_all_tokens_of_dinov2_and_two_blocks(tmp_path):
    mpnet, _ = write(tmp_path / "mpnet", "mpnet")
    width = mpnet.config.hidden_size
    trunk, blocks = dinov2(width, 2, 1), dinov2(width, 2, 2)
    norm = lively(nn.LayerNorm(width))
    state = prefixed("vision_model.", old_dinov2(trunk.state_dict()))
    for key, value in old_dinov2(blocks.state_dict()).items():
        if key.startswith("encoder.layer."):
            state["align_transformer.transformer_layers." + key.removeprefix("encoder.")] = value
    state |= prefixed("text_model.", mpnet.state_dict())
    state |= {"text_model.pooler.dense.weight": torch.zeros(width, width)}
    state |= {"text_model.embeddings.position_ids": torch.arange(40)[None]}
    state |= prefixed("loss_fns.RadZeroLoss.layer_norm.", norm.state_dict())
    state["loss_fns.RadZeroLoss.loss_temperature"] = torch.tensor([math.log(0.05)])
    config = write_processor(tmp_path)
    peer = imported("radzero", state, tmp_path, tmp_path / "mpnet", config)
    assert peer.preprocessing.prepare.size == 56
    assert peer.grid.shape == (3, 3)
    assert peer.grid.stride == 14
    images = pictures(56)
    x = normalised(images[:, 7:49, 7:49], [0.5, 0.4, 0.3], [0.2, 0.3, 0.25])
    tokens = norm(through_blocks(blocks, trunk(x).last_hidden_state))
    sentences = []
    for sentence in SENTENCES:
        hidden = mpnet(ids_of(peer, sentence)).last_hidden_state
        sentences.append(norm(hidden.mean(dim=1))[0])
    check_attention(peer, images, tokens, torch.stack(sentences), 0.05)
    assert peer.provenance["licence"].startswith("CC BY-NC 4.0")
    assert sum(peer.provenance["unused_tensors"].values()) >= 2
    # The attention may have a temperature of its own; the scale is that of the loss.
    state["loss_fns.RadZeroLoss.attn_temperature"] = torch.tensor([math.log(0.5)])
    (tmp_path / "other").mkdir()
    other = imported("radzero", state, tmp_path / "other", tmp_path / "mpnet", config)
    check_attention(other, images, tokens, torch.stack(sentences), 0.5)


@torch.no_grad()
def test_conns_maps_both_sides_and_attends_as_radzero(bert, cxr_bert_folder, tmp_path):
    trunk, blocks = dinov2(128, 1, 1), dinov2(128, 2, 2)
    vision = lively(nn.Linear(128, DIM, bias=False))
    words = lively(nn.Linear(bert.config.hidden_size, DIM, bias=False), 5)
    state = prefixed("vision_encoder.rad_dino_model.", old_dinov2(trunk.state_dict()))
    for key, value in old_dinov2(blocks.state_dict()).items():
        if key.startswith("encoder.layer."):
            state["vision_encoder.transformer_blocks." + key.removeprefix("encoder.")] = value
    inside = {k: v for k, v in bert.state_dict().items() if not k.startswith("pooler.")}
    state |= prefixed("text_encoder.model.bert.", inside)
    state |= {"text_encoder.model.cls.predictions.bias": torch.zeros(10)}
    state |= {"text_encoder.model.cls_projection_head.dense_to_output.bias": torch.zeros(6)}
    state |= prefixed("vision_proj.", vision.state_dict())
    state |= prefixed("text_proj.", words.state_dict())
    state["criterion.loss_temperature"] = torch.tensor([math.log(0.05)])
    state["criterion.nli_model.classifier.weight"] = torch.zeros(3, 4)
    state = prefixed("module.", state)
    config = write_processor(tmp_path)
    peer = imported("conns", state, tmp_path, cxr_bert_folder, config)
    images = pictures(56)
    x = normalised(images[:, 7:49, 7:49], [0.5, 0.4, 0.3], [0.2, 0.3, 0.25])
    tokens = vision(through_blocks(blocks, trunk(x).last_hidden_state))
    sentences = [words(bert(ids_of(peer, s)).last_hidden_state[0, 0]) for s in SENTENCES]
    check_attention(peer, images, tokens, torch.stack(sentences), 0.05)
    assert set(peer.provenance["unused_tensors"].values()) == {1}


class Carzero:
    """CARZero from torch's own decoder layer, whose self-attention gives nothing."""

    def __init__(self, bert, steps=()):
        width = bert.config.hidden_size
        self.bert, self.vit = bert, timm_vit(width)
        self.norm = lively(nn.LayerNorm(width), 7)
        self.layers = nn.ModuleList(
            [
                lively(
                    nn.TransformerDecoderLayer(width, 4, 24, norm_first=True, batch_first=True), n
                )
                for n in range(2)
            ]
        )
        widths = [width, *steps, 1]
        parts = []
        for before, after in pairwise(widths):
            parts += [lively(nn.Linear(before, after), after), nn.ReLU(), nn.Dropout(0.1)]
        self.head = nn.Sequential(*parts[:-2]).eval()

    def state(self):
        state = prefixed("text_encoder.model.", self.bert.state_dict())
        state |= {"text_encoder.model.embeddings.position_ids": torch.arange(32)[None]}
        state |= prefixed("img_encoder.model.", self.vit.state_dict())
        fusion = prefixed("decoder.layers.", self.layers.state_dict())
        fusion |= prefixed("decoder_norm.", self.norm.state_dict())
        fusion |= prefixed("decoder.norm.", self.norm.state_dict())
        fusion |= prefixed("mlp_head.", self.head.state_dict()) | {"logit_scale": torch.tensor(2.6)}
        state |= prefixed("fusion_module.", {k: v.clone() for k, v in fusion.items()})
        return prefixed("CARZero.", state)

    def decode(self, memory, query):
        memory, x = self.norm(memory)[None], self.norm(query)[None]
        maps = []
        for layer in self.layers:
            maps.append(layer.multihead_attn(layer.norm2(x), memory, memory)[1][0])
            silent = layer.self_attn.out_proj
            kept = [p.clone() for p in silent.parameters()]
            for parameter in silent.parameters():
                parameter.zero_()
            x = layer(x, memory)
            for parameter, value in zip(silent.parameters(), kept, strict=True):
                parameter.copy_(value)
        return self.head(self.norm(x))[0, :, 0], torch.stack(maps).mean(dim=0)

    def words(self, ids, groups):
        """``[97, D]``: words of the sentence, zeros behind them."""
        states = torch.stack(self.bert(ids, output_hidden_states=True).hidden_states[-4:])
        states, place, rows = states.sum(dim=0)[0], 0, []
        for pieces in [["[CLS]"], *groups, ["[SEP]"]]:
            rows.append(states[place : place + len(pieces)].sum(dim=0))
            place += len(pieces)
        assert place == len(states)
        return torch.cat([torch.stack(rows), torch.zeros(97 - len(rows), states.shape[1])])


@pytest.mark.parametrize("steps", [(12, 8), ()], ids=["perceptron", "linear"])
@torch.no_grad()
def test_carzero_asks_both_ways_with_the_published_padding(steps, bert, bert_folder, tmp_path):
    reference = Carzero(bert, steps)
    peer = imported("carzero", reference.state(), tmp_path, bert_folder)
    images = pictures(256)
    x = (images[:, None, 16:240, 16:240].float().expand(-1, 3, -1, -1) / 255 - 0.4978) / 0.2449
    tokens = reference.vit.forward_features(x)
    found, vectors = peer.encode_images(images), peer.encode_sentences(SENTENCES)
    assert vectors.shape == (3, 1 + 6, peer.dim)
    score, maps = peer.score(found, vectors), peer.region_scores(found, vectors)
    for row, image in enumerate(tokens):
        for column, (sentence, groups) in enumerate(WORDS.items()):
            words = reference.words(ids_of(peer, sentence), groups)
            whole = words.mean(dim=0)
            one, spread = reference.decode(image, whole[None])
            memory = torch.cat([whole[None], words])
            other, _ = reference.decode(memory, image[:1])
            expected = (one[0] + other[0]) / 2
            close(score[row, column] * peer.learned_scale, expected, 1e-4)
            close(score[row, column], expected / 100)
            close(maps[row, column], spread[0, 1:])
    assert (score[:, 0] - score[:, 1]).abs().max() > 1e-5
    assert peer.outputs.map_kind == "attention"
    # A sentence's score and vectors are its own, whatever is asked beside it.
    alone = peer.encode_sentences([SENTENCES[1]])
    close(peer.score(found, alone)[:, 0], score[:, 1], 1e-7)
    kept = sentence_scores(peer.score, found.stored.half().numpy(), vectors)
    np.testing.assert_allclose(kept, score, atol=2e-3)
    assert "Apache-2.0" in peer.provenance["licence"]
    why = peer.provenance["unused_tensors"]
    assert sum(why.values()) == 2 * 6 + 2 + 1 + 2 + 1


def test_carzero_with_two_different_norms_of_the_decoder_is_refused(bert, bert_folder, tmp_path):
    with torch.no_grad():
        state = Carzero(bert).state()
    state["CARZero.fusion_module.decoder.norm.bias"] += 1
    with pytest.raises(UserError, match="which is the decoder's norm a second time"):
        imported("carzero", state, tmp_path, bert_folder)
    assert not (tmp_path / "peer").exists()


def cxr_clip_text(bert, head):
    state = prefixed("text_encoder.text_encoder.", bert.state_dict())
    return state | prefixed("text_projection.projection.", head.state_dict())


@pytest.mark.parametrize("tower", ["resnet", "swin"])
@torch.no_grad()
def test_cxr_clip_is_linear_after_either_image_tower(tower, trunk, bert, bert_folder, tmp_path):
    from transformers import SwinConfig, SwinModel

    width = LAST if tower == "resnet" else 64
    image = lively(nn.Linear(width, DIM))
    words = lively(nn.Linear(bert.config.hidden_size, DIM), 4)
    images = pictures(224)
    if tower == "resnet":
        own = {k: v for k, v in trunk.state_dict().items() if not k.startswith("fc.")}
        state = prefixed("image_encoder.resnet.", own)
        x = normalised(images, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        regions = image(features(trunk, x)[1].flatten(2).transpose(1, 2))
        whole = regions.mean(dim=1)
    else:
        torch.manual_seed(4)
        sizes = {"embed_dim": 8, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 2, 4]}
        swin = lively(SwinModel(SwinConfig(**sizes, window_size=7), add_pooling_layer=False))
        old = old_swin(swin.state_dict())
        state = prefixed("image_encoder.image_encoder.", old)
        x = normalised(images, [0.5] * 3, [0.5] * 3)
        regions = image(swin(x).last_hidden_state)
        whole = regions[:, 0]  # the published code's "class token" of a Swin
    state |= prefixed("image_projection.projection.", image.state_dict())
    state |= cxr_clip_text(bert, words) | {"logit_scale": torch.tensor(2.66)}
    peer = imported("cxr_clip", state, tmp_path, bert_folder)
    found, vectors = peer.encode_images(images), peer.encode_sentences(SENTENCES)
    close(found.regions, F.normalize(regions, dim=-1))
    close(found.whole, F.normalize(whole, dim=-1))
    for row, sentence in enumerate(SENTENCES):
        last = bert(ids_of(peer, sentence)).last_hidden_state[0, -1]
        close(vectors[row], F.normalize(words(last), dim=-1))
    close(peer.score(found, vectors), F.normalize(whole, dim=-1) @ vectors.T)
    assert peer.outputs.whole_alone
    assert peer.learned_scale == pytest.approx(np.exp(2.66))
    assert peer.preprocessing.prepare.fit == "crop"
    assert "NC-SA" in peer.provenance["licence"]


def mgca_embed(width, dim, local, seed):
    """MGCA's map as published: a convolution of one place for the local one."""
    make = (lambda a, b: nn.Conv1d(a, b, 1)) if local else nn.Linear
    norm = nn.BatchNorm1d(dim, affine=False)
    return lively(
        nn.Sequential(make(width, 10), nn.BatchNorm1d(10), nn.ReLU(), make(10, dim), norm), seed
    )


@pytest.mark.parametrize("tower", ["resnet", "vit"])
@torch.no_grad()
def test_mgca_scores_wholes_and_maps_words_in_two_spaces(tower, trunk, bert, bert_folder, tmp_path):
    width, inner = (LAST, THIRD) if tower == "resnet" else (64, 64)
    whole_of, local_of = mgca_embed(width, DIM, False, 1), mgca_embed(inner, DIM, True, 2)
    text_whole, text_local = (mgca_embed(16, DIM, local, 3 + local) for local in (False, True))
    bert.embeddings.token_type_embeddings.weight.zero_()  # MGCA's BERT has none
    images = pictures(256)
    x = (images[:, None, 16:240, 16:240].float().expand(-1, 3, -1, -1) / 255 - 0.5) / 0.5
    if tower == "resnet":
        own = {k: v for k, v in trunk.state_dict().items() if not k.startswith("fc.")}
        enlarged = nn.Upsample(size=(299, 299), mode="bilinear", align_corners=True)(x)
        third, last = features(trunk, enlarged)
        regions, whole = third.flatten(2), last.mean(dim=(2, 3))
    else:
        vit = timm_vit(64)
        own, tokens = vit.state_dict(), vit.forward_features(x)
        regions, whole = tokens[:, 1:].transpose(1, 2), tokens[:, 0]
    state = prefixed("img_encoder_q.model.", own)
    state |= prefixed("img_encoder_q.global_embed.head.", whole_of.state_dict())
    state |= prefixed("img_encoder_q.local_embed.head.", local_of.state_dict())
    inside = {
        key: value
        for key, value in bert.state_dict().items()
        if "token_type" not in key and not key.startswith("pooler.")
    }
    state |= prefixed("text_encoder_q.model.", inside)
    extra = "text_encoder_q.model.encoder.layer.0.crossattention.self.query.weight"
    state |= {extra: torch.zeros(16, 16), "prototype_layer.weight": torch.zeros(5, DIM)}
    state |= prefixed("text_encoder_q.global_embed.head.", text_whole.state_dict())
    state |= prefixed("text_encoder_q.local_embed.head.", text_local.state_dict())
    peer = imported("mgca", state, tmp_path, bert_folder)
    found, vectors = peer.encode_images(images), peer.encode_sentences(SENTENCES)
    places = F.normalize(local_of(regions).transpose(1, 2), dim=-1)
    close(found.regions, places)
    close(found.whole, F.normalize(whole_of(whole), dim=-1))
    score, maps = peer.score(found, vectors), peer.region_scores(found, vectors)
    for column, (sentence, groups) in enumerate(WORDS.items()):
        # med.py adds words and positions, and BertEncoder gives it the token types, all 0, in the
        # place of the positions.
        words = bert.embeddings.word_embeddings(ids_of(peer, sentence))
        x = bert.embeddings.LayerNorm(words + bert.embeddings.position_embeddings.weight[0])
        hidden = bert.encoder(x).last_hidden_state[0]
        close(score[:, column], found.whole @ F.normalize(text_whole(hidden[:1])[0], dim=-1))
        place, cosines = 1, []
        for pieces in groups:
            word = hidden[place : place + len(pieces)].sum(dim=0)
            place += len(pieces)
            vector = F.normalize(text_local(word[None, :, None])[0, :, 0], dim=-1)
            cosines.append(places @ vector)
        close(maps[:, column], torch.stack(cosines).mean(dim=0))
    assert peer.outputs.whole_alone
    assert sum(peer.provenance["unused_tensors"].values()) == 2
    assert peer.grid.shape == ((19, 19) if tower == "resnet" else (14, 14))


# -------------------------------------------------------------------- what stands around them


def test_a_file_of_another_layout_is_refused_by_name(biovil_file, bert_folder, tmp_path):
    for kind, named in (
        ("carzero", "image.model.patch_embed"),
        ("cxr_clip", "image.model.conv1"),
        ("mgca", "image.model.patch_embed"),
        ("radzero", "trunk.embeddings"),
        ("conns", "trunk.embeddings"),
    ):
        with pytest.raises(UserError, match=f"another architecture; tensor '.*({named})"):
            import_model(kind, biovil_file, tmp_path / "out", text=bert_folder)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": {"height": 42, "width": 56}}, "not that of a square"),
        ({"image_mean": [0.5]}, "image_mean"),
        ({"resample": 0}, "not offered"),
        ({"crop_size": 43}, "does not fit patches of 14"),
        ({"crop_size": 70}, "does not fit"),
    ],
)
def test_a_processor_that_asks_for_something_else_is_refused(changes, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        read_processor("conns", write_processor(tmp_path, **changes), multiple=14)


def test_a_processor_that_pulls_to_a_square_is_followed(tmp_path):
    square = write_processor(tmp_path, size={"height": 42, "width": 42})
    found = read_processor("radzero", square, multiple=14)
    assert (found.prepare.fit, found.prepare.size, found.input_size) == ("squash", 42, 42)
    # RadZero's collate_fn stretches every image; CoNNS takes the levels as they are.
    assert found.prepare.levels == "stretched"
    assert read_processor("conns", square, multiple=14).prepare.levels == "as_stored"


def test_sentences_of_several_vectors_are_stored_side_by_side(tmp_path):
    """As the benchmark keeps them: short ones get rows of zeros, which no score reads."""
    g = torch.Generator().manual_seed(0)
    known = {name: torch.randn(1, k, 4, generator=g) for name, k in (("a", 2), ("b", 5), ("c", 3))}

    class Network:
        def sentences(self, texts):
            return stacked([known[text] for text in texts])

    stored = StoredSentences(tmp_path / "sentences.npz", 4)
    assert stored.encode(["a"], Network()) == 1
    assert stored.encode(["a", "b", "c"], Network()) == 2
    again = StoredSentences(tmp_path / "sentences.npz", 4).read(["c", "a", "b"])
    np.testing.assert_array_equal(again, Network().sentences(["c", "a", "b"]))
    assert again.shape == (3, 5, 4)
