"""Models that score whole images by a cosine, or GLoRIA's by words, against their definitions.

Names and definitions from the public repositories microsoft/hi-ml, marshuang80/gloria,
RyanWangZf/MedCLIP and kakaobrain/cxr-clip.
"""

from __future__ import annotations

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from medclip_debias.errors import UserError
from medclip_debias.models.load import load_model
from medclip_debias.models.peers.importing import import_model
from medclip_debias.models.text_encoder import TextEncoder
from tests.helpers.small_models import write_bert

from .conftest import (
    DIM,
    LAST,
    SENTENCES,
    biovil_projector,
    check,
    close,
    lively,
    normalised,
    pictures,
    plain,
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


@torch.no_grad()
def test_biovil_and_where_its_regions_lie(trunk, biovil_file, cxr_bert_folder, tmp_path):
    peer = import_model("biovil", biovil_file, tmp_path / "peer", text=cxr_bert_folder)
    images = pictures(512)
    maps = biovil_projector(LAST)(features(trunk, normalised(inside(images, 480), [0.0], [1.0]))[1])
    # `tokenize_input_prompts` of hi-ml: ``prompt.rstrip("!?.")``.
    prompts = [sentence.rstrip("!?.") for sentence in SENTENCES]
    ids, mask = peer.tokenizer.pad(peer.tokenizer.encode(prompts, 32))
    sentences = TextEncoder.from_folder(cxr_bert_folder).eval()(ids, mask)
    check("biovil", peer, images, plain(rows_of(maps), maps.mean(dim=(2, 3)), sentences))
    assert peer.grid.shape == (15, 15)
    assert load_model(tmp_path / "peer").content_hash == peer.content_hash
    assert peer.provenance["imported"].keys() == {"biovil.pt"}
    check_places(peer)


@torch.no_grad()
def check_places(peer):
    """The gradient of a linear, positive network is its view: centred where the grid says."""
    for layer in peer.image.modules():
        if isinstance(layer, nn.Conv2d):
            layer.weight.fill_(1.0 / layer.weight[0].numel())
        elif isinstance(layer, nn.BatchNorm2d):
            layer.reset_parameters()
    peer.image.encoder.maxpool = nn.AvgPool2d(3, 2, 1)
    x = torch.ones(1, 1, 480, 480, requires_grad=True)
    with torch.enable_grad():
        (view,) = torch.autograd.grad(peer.image(x)[0].reshape(15, 15, -1)[7, 9, 0], x)
    mass, place = view[0, 0].double(), torch.arange(480).double() + 0.5
    centre = [(mass.sum(axis) @ place / mass.sum()).item() for axis in (0, 1)]
    assert centre == pytest.approx(list(peer.grid.centres()[7, 9]), abs=0.01)


def temporal_pooler(width):
    """BioViL-T's transformer over two images, with random weights."""
    g = torch.Generator().manual_seed(3)
    state = {"type_embed": (2, 1, width)}
    state |= {f"norm_post.{k}": (width,) for k in ("weight", "bias")}
    for n in range(3):
        at = f"blocks.{n}."
        state |= {f"{at}norm{m}.{k}": (width,) for m in (1, 2) for k in ("weight", "bias")}
        state |= {f"{at}attn.{name}.weight": (width, width) for name in ("proj_q", "proj_k")}
        state |= {f"{at}attn.{name}.weight": (width, width) for name in ("proj_v", "proj")}
        state |= {f"{at}attn.proj.bias": (width,)}
        for name in ("fc1", "fc2"):
            state |= {f"{at}mlp.{name}.weight": (width, width), f"{at}mlp.{name}.bias": (width,)}
    return {key: torch.randn(*shape, generator=g) * 0.3 for key, shape in state.items()}


def pooled(state, current, previous, heads=8):
    """The same from its definition, with loops and torch's own attention."""
    side, width = current.shape[-1], current.shape[1]
    place = torch.zeros(side, side, width)
    for row in range(side):
        for column in range(side):
            for pair in range(width // 4):
                for offset, index in ((0, row), (width // 2, column)):
                    angle = (index + 1) / (side + 1e-6) * 2 * math.pi
                    angle /= 10_000 ** (4 * pair / width)
                    place[row, column, offset + 2 * pair] = math.sin(angle)
                    place[row, column, offset + 2 * pair + 1] = math.cos(angle)
    place = place.reshape(-1, width)
    extra = torch.cat([place + kind for kind in state["type_embed"]])
    x = torch.cat([rows_of(current), rows_of(previous)], dim=1)

    def norm(x, name):
        return F.layer_norm(x, (width,), state[f"{name}.weight"], state[f"{name}.bias"], eps=1e-6)

    for n in range(3):
        at = f"blocks.{n}."
        attention = nn.MultiheadAttention(width, heads, batch_first=True)
        stacked = torch.cat([state[f"{at}attn.proj_{k}.weight"] for k in "qkv"])
        attention.in_proj_weight.copy_(stacked)
        attention.in_proj_bias.zero_()
        attention.out_proj.weight.copy_(state[f"{at}attn.proj.weight"])
        attention.out_proj.bias.copy_(state[f"{at}attn.proj.bias"])
        y = norm(x, f"{at}norm1") + extra
        x = x + attention(y, y, y)[0]
        y = norm(x, f"{at}norm2")
        y = F.gelu(F.linear(y, state[f"{at}mlp.fc1.weight"], state[f"{at}mlp.fc1.bias"]))
        x = x + F.linear(y, state[f"{at}mlp.fc2.weight"], state[f"{at}mlp.fc2.bias"])
    return norm(x, "norm_post")[:, : side * side].transpose(1, 2).reshape(current.shape)


@torch.no_grad()
def test_biovil_t_reads_one_image_and_two(trunk, cxr_bert_folder, bring):
    width = 16
    pooler, head = temporal_pooler(width), biovil_projector(2 * width)
    g = torch.Generator().manual_seed(4)
    to_vit = torch.randn(width, LAST, 1, 1, generator=g) * 0.03
    missing = torch.randn(1, width, 1, 1, generator=g) * 0.3
    state = prefixed("encoder.encoder.", trunk.state_dict())
    state |= {"encoder.backbone_to_vit.weight": to_vit, "encoder.missing_previous_emb": missing}
    state |= prefixed("encoder.vit_pooler.", pooler)
    state |= prefixed("projector.model.", head.state_dict())
    peer = bring("biovil_t", state, cxr_bert_folder)
    images, before = pictures(448), pictures(448, seed=5)
    now, then = (
        F.conv2d(features(trunk, normalised(v, [0.0], [1.0]))[1], to_vit) for v in (images, before)
    )
    single = head(torch.cat([now, missing.expand_as(now)], dim=1))
    ids, mask = peer.tokenizer.pad(peer.token_ids(SENTENCES))
    sentences = TextEncoder.from_folder(cxr_bert_folder).eval()(ids, mask)
    check("biovil_t", peer, images, plain(rows_of(single), single.mean(dim=(2, 3)), sentences))
    double = head(torch.cat([now, pooled(pooler, now, then)], dim=1))
    close(peer.encode_pairs(images, before).regions, unit(rows_of(double)), 5e-5)


def image_tower(tower, trunk, x):
    """Published tensors of a ResNet-50 or a Swin, and its vectors of all places."""
    if tower == "resnet":
        return without(trunk.state_dict(), "fc."), rows_of(features(trunk, x)[1])
    from transformers import SwinConfig, SwinModel

    torch.manual_seed(4)
    sizes = {"embed_dim": 8, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 2, 4], "window_size": 7}
    model = lively(SwinModel(SwinConfig(**sizes), add_pooling_layer=False))
    published = replaced(
        model.state_dict(),
        (".attention.q_proj.", ".attention.self.query."),
        (".attention.k_proj.", ".attention.self.key."),
        (".attention.v_proj.", ".attention.self.value."),
        (".attention.o_proj.", ".attention.output.dense."),
        (".attention.relative_position_bias.", ".attention.self."),
        (".mlp.fc1.", ".intermediate.dense."),
        (".mlp.fc2.", ".output.dense."),
    )
    return published, model(x).last_hidden_state


@pytest.mark.parametrize("tower", ["resnet", "swin"])
@torch.no_grad()
def test_medclip(tower, trunk, tmp_path, bring):
    from transformers import BertConfig, BertModel

    folder = write_bert(tmp_path / "three", num_hidden_layers=3)[0]
    bert = lively(BertModel(BertConfig(**json.loads((folder / "config.json").read_text()))))
    words = lively(nn.Linear(bert.config.hidden_size, DIM, bias=False))
    images = pictures(224)
    x = normalised(images, [0.5862785803043838], [0.27950088968644304])
    own, places = image_tower(tower, trunk, x)
    image = lively(nn.Linear(places.shape[-1], DIM, bias=False), 1)
    head = {"resnet": "model.fc.", "swin": "projection_head."}[tower]
    state = prefixed("vision_model.model.", own)
    state |= prefixed(f"vision_model.{head}", image.state_dict())
    state |= prefixed("text_model.model.", bert.state_dict())
    state |= {"text_model.model.embeddings.position_ids": torch.arange(32)[None]}
    state |= prefixed("text_model.projection_head.", words.state_dict())
    peer = bring("medclip", state | {"logit_scale": torch.tensor(2.66)}, folder)
    vectors = []
    for sentence in SENTENCES:
        states = bert(ids_of(folder, sentence, 32), output_hidden_states=True).hidden_states
        # modeling_medclip.py: states 1, 2 and the last, the mean over positions, then layers.
        three = torch.stack([states[1], states[2], states[-1]]).permute(1, 0, 2, 3)
        vectors.append(words(three.mean(2).mean(1))[0])
    regions = image(places)
    check(f"medclip {tower}", peer, images, plain(regions, regions.mean(1), torch.stack(vectors)))
    assert peer.learned_scale == pytest.approx(math.exp(2.66))


@pytest.mark.parametrize("tower", ["resnet", "swin"])
@torch.no_grad()
def test_cxr_clip_is_linear_after_either_image_tower(tower, trunk, bert, bert_folder, bring):
    images, norm = pictures(224), IMAGENET if tower == "resnet" else HALF
    own, places = image_tower(tower, trunk, normalised(images, *norm))
    image = lively(nn.Linear(places.shape[-1], DIM))
    words = lively(nn.Linear(bert.config.hidden_size, DIM), 4)
    regions = image(places)
    # The published code's "class token" of a Swin is its first place.
    whole = regions.mean(dim=1) if tower == "resnet" else regions[:, 0]
    state = prefixed(f"image_encoder.{'resnet' if tower == 'resnet' else 'image_encoder'}.", own)
    state |= prefixed("image_projection.projection.", image.state_dict())
    state |= prefixed("text_encoder.text_encoder.", bert.state_dict())
    state |= prefixed("text_projection.projection.", words.state_dict())
    peer = bring("cxr_clip", state)
    last = [bert(ids_of(bert_folder, s)).last_hidden_state[0, -1] for s in SENTENCES]
    check(f"cxr_clip {tower}", peer, images, plain(regions, whole, words(torch.stack(last))))
    assert "NC-SA" in peer.provenance["licence"]


def attention_of_words(words, regions):
    """GLoRIA's attention ``[W, N]`` and the best word's cosine of one image, in float64."""
    words, regions = words.double(), regions.double()
    shares = torch.stack([torch.stack([w @ r for w in words]).softmax(0) for r in regions])
    maps, cosines = [], []
    for number, word in enumerate(words):
        weights = (4 * shares[:, number]).softmax(0)
        mean = sum(w * r for w, r in zip(weights, regions, strict=True))
        maps.append(weights)
        cosines.append(word @ mean / (word.norm() * mean.norm()))
    return torch.stack(maps).mean(dim=0).float(), max(cosines).float()


@torch.no_grad()
def test_gloria_by_its_vectors_and_by_its_words(trunk, bert, bert_folder, bring):
    local, whole, state = gloria_state(trunk, bert)
    peer = bring("gloria", {"state_dict": state, "epoch": 3})
    images = pictures(256)
    third, last = features(trunk, enlarged(images))
    vectors = []
    for text, groups in zip(CLEANED, WORDS, strict=True):
        # Pieces of words added up, mean over all places, four layers.
        states = bert(ids_of(bert_folder, text), output_hidden_states=True).hidden_states[-4:]
        vectors.append(sum(of_words(layer[0], groups).mean(dim=0) for layer in states))
    regions, pooled_image = rows_of(local(third)), whole(last.mean(dim=(2, 3)))
    expected = plain(regions, pooled_image, torch.stack(vectors))
    check("gloria", peer, images, expected)
    # The ramp that names its own place, through the resize; read where the regions are centred.
    ramp = (torch.arange(224.0) + 0.5).expand(1, 1, 224, 224)
    big = F.interpolate(ramp, size=(299, 299), mode="bilinear", align_corners=True)[0, 0, 0]
    assert peer.grid.centres()[0, :, 0] == pytest.approx(big[0:299:16].numpy(), abs=1e-3)

    by_words = bring("gloria", {"state_dict": state}, score="both")
    score, maps = torch.zeros(2, 3), torch.zeros(2, 3, 361)
    for row, image in enumerate(regions):
        for column, (text, groups) in enumerate(zip(CLEANED, WORDS, strict=True)):
            words = of_words(last4(bert, ids_of(bert_folder, text)), groups)[1:-1]
            maps[row, column], score[row, column] = attention_of_words(words, image)
    # The authors' mean of 5 times the local score and the global cosine, as a share of its most, 3.
    both = {"score": (5 * score + expected["score"]) / 6, "maps": maps}
    check("gloria by words", by_words, images, both, 1e-4)
    with pytest.raises(UserError, match="Sentence 2 holds no word"):
        by_words.encode_sentences(["edema", "..."])
