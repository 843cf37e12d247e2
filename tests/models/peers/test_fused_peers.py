"""Models whose score is more than one cosine, against modules built from their definitions.

Names and definitions from the public repositories laihaoran/CARZero, deepnoid-ai/RadZero,
DopamineLcy/conns, HKU-MedAI/MGCA, YH0517/AFLoc, xiaoman-zhang/KAD and MediaBrain-SJTU/MedKLIP.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from medclip_debias.errors import UserError

from ..test_text_encoder import write
from .conftest import (
    DIM,
    LAST,
    SENTENCES,
    THIRD,
    check,
    close,
    lively,
    normalised,
    pictures,
    prefixed,
    replaced,
    unit,
    without,
)
from .references import (
    CLEANED,
    HALF,
    IMAGENET,
    WORDS,
    enlarged,
    features,
    gloria_state,
    ids_of,
    inside,
    last4,
    of_words,
    rows_of,
)

# ---------------------------------------------------------- sentences of several vectors, products


def mgca_embed(width, local, seed):
    """MGCA's map as published: a convolution of one place for the local one."""
    make = (lambda a, b: nn.Conv1d(a, b, 1)) if local else nn.Linear
    norms = nn.BatchNorm1d(10), nn.BatchNorm1d(DIM, affine=False)
    layers = make(width, 10), norms[0], nn.ReLU(), make(10, DIM), norms[1]
    return lively(nn.Sequential(*layers), seed)


def timm_vit(width):
    """timm's own vision transformer without a classifier, of two blocks."""
    vit = pytest.importorskip("timm.models.vision_transformer")
    torch.manual_seed(3)
    heads = max(width // 64, 1)
    return lively(vit.VisionTransformer(embed_dim=width, depth=2, num_heads=heads, num_classes=0))


@pytest.mark.parametrize("tower", ["resnet", "vit"])
@torch.no_grad()
def test_mgca_scores_wholes_and_maps_words_in_two_spaces(tower, trunk, bert, bert_folder, bring):
    width, inner = (LAST, THIRD) if tower == "resnet" else (64, 64)
    whole_of, local_of = mgca_embed(width, False, 1), mgca_embed(inner, True, 2)
    text_whole, text_local = (mgca_embed(16, local, 3 + local) for local in (False, True))
    images = pictures(256)
    if tower == "resnet":
        own = without(trunk.state_dict(), "fc.")
        third, last = features(trunk, enlarged(images))
        regions, whole = third.flatten(2), last.mean(dim=(2, 3))
    else:
        vit = timm_vit(64)
        own, tokens = vit.state_dict(), vit.forward_features(normalised(inside(images, 224), *HALF))
        regions, whole = tokens[:, 1:].transpose(1, 2), tokens[:, 0]
    state = prefixed("img_encoder_q.model.", own)
    state |= prefixed("img_encoder_q.global_embed.head.", whole_of.state_dict())
    state |= prefixed("img_encoder_q.local_embed.head.", local_of.state_dict())
    state |= prefixed("text_encoder_q.model.", without(bert.state_dict(), "token_type", "pooler."))
    extra = "text_encoder_q.model.encoder.layer.0.crossattention.self.query.weight"
    state |= {extra: torch.zeros(16, 16), "prototype_layer.weight": torch.zeros(5, DIM)}
    state |= prefixed("text_encoder_q.global_embed.head.", text_whole.state_dict())
    state |= prefixed("text_encoder_q.local_embed.head.", text_local.state_dict())
    peer = bring("mgca", state)
    regions, whole = unit(local_of(regions).transpose(1, 2)), unit(whole_of(whole))
    scores, maps = [], []
    for text, groups in zip(CLEANED, WORDS, strict=True):
        # med.py adds words and positions, and BertEncoder gives it the token types, all 0, in the
        # place of the positions.
        words = bert.embeddings.word_embeddings(ids_of(bert_folder, text))
        x = bert.embeddings.LayerNorm(words + bert.embeddings.position_embeddings.weight[0])
        hidden = bert.encoder(x).last_hidden_state[0]
        scores.append(whole @ unit(text_whole(hidden[:1])[0]))
        each = text_local(of_words(hidden, groups)[1:-1, :, None])[..., 0]
        maps.append((regions @ unit(each).T).mean(dim=-1))
    expected = {"regions": regions, "whole": whole}
    expected |= {"score": torch.stack(scores, dim=1), "maps": torch.stack(maps, dim=1)}
    check(f"mgca {tower}", peer, images, expected)
    assert sum(peer.provenance["unused_tensors"].values()) == 2
    assert peer.grid.shape == ((19, 19) if tower == "resnet" else (14, 14))


@torch.no_grad()
def test_afloc_scores_by_products_of_any_length(trunk, bert, bert_folder, bring):
    local, whole, state = gloria_state(trunk, bert, "afloc")
    state["afloc.img_encoder.local2_embedder.weight"] = torch.zeros(16, 512, 1, 1)
    peer = bring("afloc", {"state_dict": state})
    images = pictures(224)
    third, last = features(trunk, enlarged(images))
    regions, vector = rows_of(local(third)), whole(last.mean(dim=(2, 3)))
    sentences = torch.stack([last4(bert, ids_of(bert_folder, t)).sum(0) / 97 for t in CLEANED])
    expected = {"regions": regions, "whole": vector, "sentences": sentences[:, None]}
    expected |= {"score": vector @ sentences.T / 100}
    expected |= {"maps": torch.einsum("bnd,td->btn", regions, sentences) / 100}
    check("afloc", peer, images, expected, 1e-4)
    assert peer.outputs.whole_alone
    close(peer.encode_images(images).pooled, unit(vector))
    assert peer.provenance["unused_tensors"]["parts of the training loss alone"] == 1


class Carzero:
    """CARZero from torch's own decoder layer, whose self-attention gives nothing."""

    def __init__(self, bert, steps=()):
        width = bert.config.hidden_size
        self.bert, self.vit = bert, timm_vit(width)
        self.norm = lively(nn.LayerNorm(width), 7)
        options = {"norm_first": True, "batch_first": True}
        layers = [nn.TransformerDecoderLayer(width, 4, 24, **options) for _ in range(2)]
        self.layers = nn.ModuleList(lively(layer, n) for n, layer in enumerate(layers))
        parts = []
        for before, after in pairwise([width, *steps, 1]):
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
            kept = {name: value.clone() for name, value in silent.state_dict().items()}
            for parameter in silent.parameters():
                parameter.zero_()
            x = layer(x, memory)
            silent.load_state_dict(kept)
        return self.head(self.norm(x))[0, :, 0], torch.stack(maps).mean(dim=0)


@pytest.mark.parametrize("steps", [(12, 8), ()], ids=["perceptron", "linear"])
@torch.no_grad()
def test_carzero_asks_both_ways_with_the_published_padding(steps, bert, bert_folder, bring):
    reference = Carzero(bert, steps)
    state = reference.state()
    peer = bring("carzero", state)
    images = pictures(256)
    x = normalised(inside(images, 224), [0.4978], [0.2449])
    score, maps = torch.zeros(2, 3), torch.zeros(2, 3, 196)
    for row, image in enumerate(reference.vit.forward_features(x)):
        for column, (text, groups) in enumerate(zip(CLEANED, WORDS, strict=True)):
            words = of_words(last4(bert, ids_of(bert_folder, text)), groups)
            words = torch.cat([words, torch.zeros(97 - len(words), words.shape[1])])
            whole = words.mean(dim=0)
            one, spread = reference.decode(image, whole[None])
            other, _ = reference.decode(torch.cat([whole[None], words]), image[:1])
            score[row, column], maps[row, column] = (one[0] + other[0]) / 200, spread[0, 1:]
    check(f"carzero {len(steps)}", peer, images, {"score": score, "maps": maps})
    assert sum(peer.provenance["unused_tensors"].values()) == 2 * 6 + 2 + 1 + 2 + 1
    state["CARZero.fusion_module.decoder.norm.bias"] += 1
    with pytest.raises(UserError, match="which is the decoder's norm a second time"):
        bring("carzero", state)


# --------------------------------------------------------------------------- attention by cosines


def dinov2(width, layers, seed):
    """A DINOv2, and its tensors under the names of published files."""
    from transformers import Dinov2Config, Dinov2Model

    torch.manual_seed(seed)
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "image_size": 28}
    model = lively(
        Dinov2Model(Dinov2Config(**sizes, num_attention_heads=max(width // 64, 1))), seed
    )
    published = replaced(
        model.state_dict(),
        (".attention.q_proj.", ".attention.attention.query."),
        (".attention.k_proj.", ".attention.attention.key."),
        (".attention.v_proj.", ".attention.attention.value."),
        (".attention.o_proj.", ".attention.output.dense."),
    )
    blocks = {k: v for k, v in published.items() if k.startswith("encoder.layer.")}
    return model, published, {k.removeprefix("encoder."): v for k, v in blocks.items()}


def through_blocks(model, x):
    for layer in model.encoder.layer:
        x = layer(x)
    return x


PROCESSOR = {
    "size": {"shortest_edge": 56},
    "crop_size": {"height": 42, "width": 42},
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.25],
    "resample": 3,
    "rescale_factor": 1 / 255,
}


@pytest.fixture
def processor(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return tmp_path / "preprocessor_config.json"


def attended(tokens, sentences, temperature):
    """What RadZero and CoNNS give, from vectors of any length, in float64."""
    tokens, sentences = unit(tokens.double()), unit(sentences.double())
    cosines = torch.einsum("bnd,td->btn", tokens, sentences)
    mean = torch.einsum("btn,bnd->btd", (cosines / temperature).softmax(dim=-1), tokens)
    score = torch.einsum("btd,td->bt", unit(mean), sentences)
    assert (score - cosines[..., 0]).abs().max() > 1e-3  # attention is not the whole's cosine
    found = {"regions": tokens[:, 1:], "whole": tokens[:, 0], "sentences": sentences}
    found |= {"score": score, "maps": cosines[..., 1:]}
    return {name: value.float() for name, value in found.items()}


@torch.no_grad()
def test_radzero_attends_over_all_tokens_of_dinov2_and_two_blocks(tmp_path, processor, bring):
    mpnet, _ = write(tmp_path / "mpnet", "mpnet")
    width = mpnet.config.hidden_size
    (trunk, published, _), (blocks, _, added) = dinov2(width, 2, 1), dinov2(width, 2, 2)
    norm = lively(nn.LayerNorm(width))
    state = prefixed("vision_model.", published)
    state |= prefixed("align_transformer.transformer_layers.", added)
    state |= prefixed("text_model.", mpnet.state_dict())
    state |= {"text_model.pooler.dense.weight": torch.zeros(width, width)}
    state |= {"text_model.embeddings.position_ids": torch.arange(40)[None]}
    state |= prefixed("loss_fns.RadZeroLoss.layer_norm.", norm.state_dict())
    state["loss_fns.RadZeroLoss.loss_temperature"] = torch.tensor([math.log(0.05)])
    peer = bring("radzero", state, tmp_path / "mpnet", processor)
    assert (peer.grid.shape, peer.grid.stride) == ((3, 3), 14)
    images = pictures(56)
    x = normalised(inside(images, 42), [0.5, 0.4, 0.3], [0.2, 0.3, 0.25])
    tokens = norm(through_blocks(blocks, trunk(x).last_hidden_state))
    ids = [ids_of(tmp_path / "mpnet", sentence, 32) for sentence in SENTENCES]
    sentences = norm(torch.cat([mpnet(row).last_hidden_state.mean(dim=1) for row in ids]))
    check("radzero", peer, images, attended(tokens, sentences, 0.05))
    assert peer.learned_scale == pytest.approx(1 / 0.05, rel=1e-5)
    assert sum(peer.provenance["unused_tensors"].values()) >= 2
    # The attention may have a temperature of its own; the scale is that of the loss.
    state["loss_fns.RadZeroLoss.attn_temperature"] = torch.tensor([math.log(0.5)])
    other = bring("radzero", state, tmp_path / "mpnet", processor)
    check("radzero of its own", other, images, attended(tokens, sentences, 0.5))
    assert other.learned_scale == pytest.approx(1 / 0.05, rel=1e-5)


@torch.no_grad()
def test_conns_maps_both_sides_and_attends_as_radzero(bert, cxr_bert_folder, processor, bring):
    (trunk, published, _), (blocks, _, added) = dinov2(128, 1, 1), dinov2(128, 2, 2)
    vision = lively(nn.Linear(128, DIM, bias=False))
    words = lively(nn.Linear(bert.config.hidden_size, DIM, bias=False), 5)
    state = prefixed("vision_encoder.rad_dino_model.", published)
    state |= prefixed("vision_encoder.transformer_blocks.", added)
    state |= prefixed("text_encoder.model.bert.", without(bert.state_dict(), "pooler."))
    state |= {"text_encoder.model.cls.predictions.bias": torch.zeros(10)}
    state |= {"text_encoder.model.cls_projection_head.dense_to_output.bias": torch.zeros(6)}
    state |= prefixed("vision_proj.", vision.state_dict())
    state |= prefixed("text_proj.", words.state_dict())
    state["criterion.loss_temperature"] = torch.tensor([math.log(0.05)])
    state["criterion.nli_model.classifier.weight"] = torch.zeros(3, 4)
    peer = bring("conns", prefixed("module.", state), cxr_bert_folder, processor)
    images = pictures(56)
    x = normalised(inside(images, 42), [0.5, 0.4, 0.3], [0.2, 0.3, 0.25])
    tokens = vision(through_blocks(blocks, trunk(x).last_hidden_state))
    ids = [ids_of(cxr_bert_folder, sentence, 32) for sentence in SENTENCES]
    sentences = words(torch.cat([bert(row).last_hidden_state[:, 0] for row in ids]))
    check("conns", peer, images, attended(tokens, sentences, 0.05))
    assert set(peer.provenance["unused_tensors"].values()) == {1}


# --------------------------------------------------------------------------------------- questions

BOOK = {"effusion": "pleural effusion", "left": "left effusion", "none": "no effusions"}
ASKED = ["There is left", "No effusion.", "effusion left pleural", "no pleural", "none"]
"""Of the book, denied, of neither, both, and of the book."""
WIDTH = 16


class Network:
    """Regions, and a decoder whose queries attend to each other, from torch and torchvision."""

    def __init__(self, trunk, stage):
        self.trunk, self.stage = trunk, stage
        wide = THIRD if stage == 3 else LAST
        self.first = lively(nn.Linear(wide, wide), 1)
        self.second = lively(nn.Linear(wide, WIDTH), 2)
        options = {"norm_first": True, "batch_first": True}
        layers = [nn.TransformerDecoderLayer(WIDTH, 4, 24, **options) for _ in range(2)]
        self.layers = nn.ModuleList(lively(layer, 3 + n) for n, layer in enumerate(layers))
        self.norm = lively(nn.LayerNorm(WIDTH), 9)
        self.answer = lively(nn.Linear(WIDTH, 2), 10)
        with torch.no_grad():
            self.answer.weight.mul_(3)

    def image_state(self):
        state = prefixed("res_l1.", self.first.state_dict())
        state |= prefixed("res_l2.", self.second.state_dict())
        for number, part in enumerate(list(self.trunk.children())[: 4 + self.stage]):
            state |= prefixed(f"res_features.{number}.", part.state_dict())
        return state

    def regions(self, x):
        return self.second(torch.relu(self.first(rows_of(features(self.trunk, x)[self.stage - 3]))))

    def decode(self, regions, queries, mask=None):
        """Probabilities ``[B, Q]`` that each is there, and the layers' attention ``[B, Q, N]``."""
        x = queries.expand(len(regions), -1, -1)
        maps = []
        for layer in self.layers:
            own = layer.norm1(x)
            inner = x + layer.self_attn(own, own, own, attn_mask=mask)[0]
            maps.append(layer.multihead_attn(layer.norm2(inner), regions, regions)[1])
            x = layer(x, regions, tgt_mask=mask)
        return self.answer(self.norm(x)).softmax(dim=-1)[..., 1], maps


def answers(network, regions, query, last):
    """The book as published; others read the book and are read by none; denials turn round."""
    book = torch.stack([query(text) for text in BOOK.values()])
    of_book, maps = network.decode(regions, book)
    combined = lambda maps: maps[-1] if last else sum(maps) / len(maps)  # noqa: E731
    spread = combined(maps)
    score = [of_book[:, 1], 1 - of_book[:, 0], None, None, of_book[:, 2]]
    maps = [spread[:, 1], spread[:, 0], None, None, spread[:, 2]]
    mask = torch.tensor([[False] * 3 + [True]] * 3 + [[False] * 4])
    for column, text in ((2, "effusion left pleural"), (3, "pleural")):
        one, spread = network.decode(regions, torch.cat([book, query(text)[None]]), mask)
        score[column] = 1 - one[:, 3] if column == 3 else one[:, 3]
        maps[column] = combined(spread)[:, 3]
    return {"score": torch.stack(score, dim=1), "maps": torch.stack(maps, dim=1)}


def kad_state(network, bert, head):
    text = prefixed("bert_model.", bert.state_dict()) | prefixed("mlp_embed.", head.state_dict())
    image = network.image_state() | prefixed("resnet.", network.trunk.state_dict())
    model = prefixed("decoder_norm.", network.norm.state_dict())
    model |= prefixed("decoder.norm.", network.norm.state_dict())
    model |= prefixed("decoder.layers.", network.layers.state_dict())
    model |= prefixed("mlp_head.0.", network.answer.state_dict())
    scale = {"logit_scale": torch.tensor(2.6)}
    parts = {"model": model | scale, "image_encoder": image, "text_encoder": text | scale}
    return parts | {"epoch": 3}


@pytest.fixture
def kad_head():
    return lively(nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU(), nn.Linear(12, WIDTH)), 4)


@pytest.fixture
def book_file(tmp_path):
    (tmp_path / "book.json").write_text(json.dumps(BOOK))
    return tmp_path / "book.json"


@pytest.mark.parametrize("stage", [3, 4])
@torch.no_grad()
def test_kad_asks_its_book_at_once(stage, trunk, bert, kad_head, bert_folder, book_file, bring):
    network = Network(trunk, stage)
    peer = bring("kad", kad_state(network, bert, kad_head), config=book_file)
    side = 224 if stage == 3 else 512
    assert peer.preprocessing.prepare.size == side
    images = pictures(side)

    def query(text):
        return network.norm(kad_head(bert(ids_of(bert_folder, text)).pooler_output)[0])

    regions = network.regions(normalised(images, *IMAGENET))
    expected = answers(network, network.norm(regions), query, last=True) | {"regions": regions}
    check(f"kad {stage}", peer, images, expected, sentences=ASKED)
    assert sum(peer.provenance["unused_tensors"].values()) == len(trunk.state_dict()) + 2 + 2


@torch.no_grad()
def test_kad_asks_chestx_ray14_where_no_book_is_given(trunk, bert, kad_head, bring):
    peer = bring("kad", kad_state(Network(trunk, 3), bert, kad_head))
    assert len(peer.fusion.texts) == 14
    question = "There is no evidence of pleural thickening."
    assert peer.fusion.question(question) == ("pleural thicken", True)


@torch.no_grad()
def test_medklip_asks_by_descriptions_without_sep(trunk, bert, bert_folder, book_file, bring):
    network, embed = Network(trunk, 3), lively(nn.Linear(WIDTH, WIDTH), 4)
    torch.save(bert.state_dict(), bert_folder / "pytorch_model.bin")
    state = network.image_state() | prefixed("decoder.layers.", network.layers.state_dict())
    state |= prefixed("decoder.norm.", network.norm.state_dict())
    state |= prefixed("disease_embedding_layer.", embed.state_dict())
    state |= prefixed("classifier.", network.answer.state_dict())
    state |= {"cl_fc.weight": torch.zeros(768, WIDTH), "cl_fc.bias": torch.zeros(768)}
    content = {"model": prefixed("module.", state), "epoch": 1}
    peer = bring("medklip", content, config=book_file)
    images = pictures(224)
    regions = network.regions(normalised(images, *IMAGENET))

    def query(text):
        return embed(bert(ids_of(bert_folder, text)[:, :-1]).last_hidden_state[0, 0])

    expected = answers(network, regions, query, last=False) | {"regions": regions}
    check("medklip", peer, images, expected, sentences=ASKED)
    assert peer.fusion.question("pleural effusions")[0] == BOOK["effusion"]
    longest = peer.token_ids(["no " * 90])[0]
    assert len(longest) == peer.max_tokens == 32  # the small BERT's; 64 of a larger one
    assert peer.provenance["unused_tensors"]["parts of the training loss alone"] == 2
