"""BioViL, BioViL-T, GLoRIA and MedCLIP against torchvision, transformers and their definitions."""

import json
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from medclip_debias.models.peers.families import published_preprocessing
from medclip_debias.models.peers.images import TwoStageResNet
from medclip_debias.models.peers.importing import import_model
from medclip_debias.models.peers.peer import Peer
from medclip_debias.models.peers.settings import ResNetSettings
from medclip_debias.models.peers.towers import region_grid

from .conftest import DIM, LAST, THIRD, lively, old_swin, prefixed

SENTENCES = ["no pleural effusion", "left", "no pleural effusion"]


def pictures(side, count=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    small = torch.rand(count, 1, side // 16, side // 16, generator=g)
    return (F.interpolate(small, size=(side, side), mode="bilinear") * 255).to(torch.uint8)[:, 0]


def features(net, x):
    """torchvision's ResNet up to its last stage, and the output of its third."""
    x = net.layer2(net.layer1(net.maxpool(net.relu(net.bn1(net.conv1(x))))))
    third = net.layer3(x)
    return third, net.layer4(third)


def check_vectors(peer, images, regions, whole):
    """Regions, score and norms of ``peer`` against reference regions and whole-image vectors."""
    with torch.inference_mode():
        found = peer.encode_images(images)
        words = peer.encode_sentences(SENTENCES)
        unit = F.normalize(regions, dim=-1)
        assert found.regions.shape == (len(images), peer.grid.rows * peer.grid.columns, DIM)
        torch.testing.assert_close(found.regions, unit, atol=2e-5, rtol=0)
        torch.testing.assert_close(words.norm(dim=-1), torch.ones(3), atol=1e-6, rtol=0)
        score = F.normalize(whole, dim=-1) @ words.T
        torch.testing.assert_close(peer.score(found, words), score, atol=2e-5, rtol=0)
        cosines = torch.einsum("bnd,td->btn", unit, words)
        torch.testing.assert_close(peer.region_scores(found, words), cosines, atol=2e-5, rtol=0)
        assert torch.equal(words[0], words[2])
        assert torch.equal(peer.encode_images(images).regions, found.regions)


@torch.no_grad()
def test_biovil_gives_torchvisions_regions_and_their_mean(
    biovil_file, cxr_bert_folder, trunk, projector, tmp_path
):
    peer = import_model("biovil", biovil_file, tmp_path / "peer", text=cxr_bert_folder)
    images = pictures(512)
    x = images[:, None, 16:496, 16:496].float().expand(-1, 3, -1, -1) / 255
    maps = projector(features(trunk, x)[1])
    assert maps.shape[2:] == (15, 15)
    check_vectors(peer, images, maps.flatten(2).transpose(1, 2), maps.mean(dim=(2, 3)))
    assert peer.grid.shape == (15, 15)
    again = Peer.load(tmp_path / "peer")
    assert again.content_hash == peer.content_hash
    assert peer.provenance["imported"].keys() == {"biovil_image.pt"}


@torch.no_grad()
def test_biovils_regions_lie_where_its_gradient_says(biovil_file, cxr_bert_folder, tmp_path):
    peer = import_model("biovil", biovil_file, tmp_path / "peer", text=cxr_bert_folder)
    for layer in peer.image.modules():  # a linear, positive network: its gradient is its view
        if isinstance(layer, nn.Conv2d):
            layer.weight.fill_(1.0 / layer.weight[0].numel())
        elif isinstance(layer, nn.BatchNorm2d):
            layer.weight.fill_(1.0)
            layer.bias.zero_()
            layer.running_mean.zero_()
            layer.running_var.fill_(1.0)
    peer.image.encoder.maxpool = nn.AvgPool2d(3, 2, 1)
    with torch.enable_grad():
        x = torch.ones(1, 1, 480, 480, requires_grad=True)
        peer.image(x)[0].reshape(15, 15, -1)[7, 9, 0].backward()
    assert x.grad is not None
    view = x.grad[0, 0].double()
    place = torch.arange(480).double() + 0.5
    centre = [(view.sum(axis) @ place / view.sum()).item() for axis in (0, 1)]
    np.testing.assert_allclose(centre, peer.grid.centres()[7, 9], atol=0.01)


# --------------------------------------------------------------------------- BioViL-T


def pooled(state, current, previous, heads=8):
    """BioViL-T's pooler from its definition, with loops and torch's own attention."""
    side, width = current.shape[-1], current.shape[1]
    places = torch.zeros(side, side, width, dtype=torch.float64)
    half = width // 2
    for row in range(side):
        for column in range(side):
            for pair in range(half // 2):
                wave = 10_000 ** (2 * pair / half)
                for offset, index in ((0, row), (half, column)):
                    angle = (index + 1) / (side + 1e-6) * 2 * math.pi / wave
                    places[row, column, offset + 2 * pair] = math.sin(angle)
                    places[row, column, offset + 2 * pair + 1] = math.cos(angle)
    place = places.float().reshape(-1, width)
    kinds = state["type_embed"]
    extra = torch.cat([place + kinds[0], place + kinds[1]])
    x = torch.cat([v.flatten(2).transpose(1, 2) for v in (current, previous)], dim=1)
    for n in range(3):
        at = f"blocks.{n}."
        norm = [(state[f"{at}norm{k}.weight"], state[f"{at}norm{k}.bias"]) for k in (1, 2)]
        attention = nn.MultiheadAttention(width, heads, bias=True, batch_first=True)
        qkv = torch.cat([state[f"{at}attn.proj_{k}.weight"] for k in "qkv"])
        attention.in_proj_weight.copy_(qkv)
        attention.in_proj_bias.zero_()
        attention.out_proj.weight.copy_(state[f"{at}attn.proj.weight"])
        attention.out_proj.bias.copy_(state[f"{at}attn.proj.bias"])
        y = F.layer_norm(x, (width,), *norm[0], eps=1e-6) + extra
        x = x + attention(y, y, y)[0]
        y = F.layer_norm(x, (width,), *norm[1], eps=1e-6)
        y = F.gelu(F.linear(y, state[at + "mlp.fc1.weight"], state[at + "mlp.fc1.bias"]))
        x = x + F.linear(y, state[at + "mlp.fc2.weight"], state[at + "mlp.fc2.bias"])
    x = F.layer_norm(x, (width,), state["norm_post.weight"], state["norm_post.bias"], eps=1e-6)
    return x[:, : side * side].transpose(1, 2).reshape(current.shape)


@torch.no_grad()
def test_biovil_t_reads_one_image_and_two(trunk, cxr_bert_folder, tmp_path):
    width = 16
    g = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(*shape, generator=g) * 0.3

    pooler = {"norm_post.weight": random(width), "norm_post.bias": random(width)}
    pooler["type_embed"] = random(2, 1, width)
    for n in range(3):
        for name in ("norm1", "norm2"):
            pooler |= {f"blocks.{n}.{name}.{k}": random(width) for k in ("weight", "bias")}
        for name in ("proj_q", "proj_k", "proj_v", "proj"):
            pooler[f"blocks.{n}.attn.{name}.weight"] = random(width, width)
        pooler[f"blocks.{n}.attn.proj.bias"] = random(width)
        for name in ("fc1", "fc2"):
            pooler[f"blocks.{n}.mlp.{name}.weight"] = random(width, width)
            pooler[f"blocks.{n}.mlp.{name}.bias"] = random(width)
    to_vit, missing = random(width, LAST, 1, 1) * 0.1, random(1, width, 1, 1)
    head = lively(
        nn.Sequential(
            nn.Conv2d(2 * width, 8, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, DIM, 1),
        )
    )
    state = prefixed("encoder.encoder.", trunk.state_dict())
    state |= {"encoder.backbone_to_vit.weight": to_vit, "encoder.missing_previous_emb": missing}
    state |= prefixed("encoder.vit_pooler.", pooler) | prefixed(
        "projector.model.", head.state_dict()
    )
    torch.save(state, tmp_path / "biovil_t.pt")
    peer = import_model(
        "biovil_t", tmp_path / "biovil_t.pt", tmp_path / "peer", text=cxr_bert_folder
    )
    assert peer.grid.shape == (14, 14)

    images, before = pictures(448), pictures(448, seed=5)
    now, then = (
        F.conv2d(features(trunk, v[:, None].float().expand(-1, 3, -1, -1) / 255)[1], to_vit)
        for v in (images, before)
    )
    single = head(torch.cat([now, missing.expand_as(now)], dim=1))
    check_vectors(peer, images, single.flatten(2).transpose(1, 2), single.mean(dim=(2, 3)))
    double = head(torch.cat([now, pooled(pooler, now, then)], dim=1))
    found = peer.encode_pairs(images, before)
    unit = F.normalize(double.flatten(2).transpose(1, 2), dim=-1)
    torch.testing.assert_close(found.regions, unit, atol=5e-5, rtol=0)


# ----------------------------------------------------------------------------- GLoRIA


@torch.no_grad()
def test_gloria_gives_its_published_regions_global_score_and_sentences(
    trunk, bert, bert_folder, tmp_path
):
    width = bert.config.hidden_size
    local, whole = nn.Conv2d(THIRD, width, 1, bias=False), nn.Linear(LAST, width)
    state = prefixed("gloria.text_encoder.model.", bert.state_dict())
    image = {k: v for k, v in trunk.state_dict().items() if not k.startswith("fc.")}
    state |= prefixed("gloria.img_encoder.model.", image)
    state |= prefixed("gloria.img_encoder.local_embedder.", local.state_dict())
    state |= prefixed("gloria.img_encoder.global_embedder.", whole.state_dict())
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "gloria.ckpt")
    peer = import_model("gloria", tmp_path / "gloria.ckpt", tmp_path / "peer", text=bert_folder)

    images = pictures(256)
    x = images[:, None, 16:240, 16:240].float().expand(-1, 3, -1, -1) / 255
    x = nn.Upsample(size=(299, 299), mode="bilinear", align_corners=True)((x - 0.5) / 0.5)
    third, last = features(trunk, x)
    assert third.shape[2:] == (19, 19)
    found = peer.encode_images(images)
    unit = F.normalize(local(third).flatten(2).transpose(1, 2), dim=-1)
    torch.testing.assert_close(found.regions, unit, atol=2e-5, rtol=0)
    pooled_image = F.normalize(whole(last.mean(dim=(2, 3))), dim=-1)
    torch.testing.assert_close(found.whole, pooled_image, atol=2e-5, rtol=0)

    # The published sentence vector: pieces of words added up, mean over all places, four layers.
    text = "no left effusions"
    words = ["[CLS]", "no", "left", "effusion", "##s", "[SEP]"]
    ids = torch.tensor([[peer.tokenizer._tokenizer.token_to_id(word) for word in words]])
    assert peer.tokenizer.encode([text], 97) == ids.tolist()
    states = torch.stack(bert(ids, output_hidden_states=True).hidden_states[-4:])[:, 0]
    whole_words = [states[:, :1], states[:, 1:2], states[:, 2:3]]
    whole_words += [states[:, 3:5].sum(dim=1, keepdim=True), states[:, 5:]]
    expected = F.normalize(torch.cat(whole_words, dim=1).mean(dim=1).sum(dim=0), dim=0)
    found = peer.encode_sentences(["No LEFT, effusions."])[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_glorias_regions_are_moved_back_through_its_own_resize(shallow):
    grid = region_grid(
        TwoStageResNet(ResNetSettings(), "gloria", 4), published_preprocessing("gloria")
    )
    assert grid.shape == (19, 19)
    # A ramp that names its own place, through the resize; read where the regions are centred.
    ramp = (torch.arange(224.0) + 0.5).expand(1, 1, 224, 224)
    big = F.interpolate(ramp, size=(299, 299), mode="bilinear", align_corners=True)[0, 0, 0]
    np.testing.assert_allclose(grid.centres()[0, :, 0], big[0:299:16], atol=1e-3)


# ---------------------------------------------------------------------------- MedCLIP


@torch.no_grad()
def test_medclip_gives_torchvisions_output_and_the_mean_of_three_layers(
    trunk, bert_folder, tmp_path
):
    from transformers import BertConfig, BertModel

    config = json.loads((bert_folder / "config.json").read_text()) | {"num_hidden_layers": 3}
    (bert_folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(2)
    bert = lively(BertModel(BertConfig(**{k: v for k, v in config.items() if k != "model_type"})))
    trunk.fc = nn.Linear(LAST, DIM, bias=False)
    head = lively(nn.Linear(bert.config.hidden_size, DIM, bias=False))
    state = prefixed("vision_model.model.", trunk.state_dict())
    state |= prefixed("text_model.model.", bert.state_dict())
    state |= {"text_model.model.embeddings.position_ids": torch.arange(32)[None]}
    state |= prefixed("text_model.projection_head.", head.state_dict())
    state["logit_scale"] = torch.tensor(2.66)
    torch.save(state, tmp_path / "pytorch_model.bin")
    peer = import_model(
        "medclip", tmp_path / "pytorch_model.bin", tmp_path / "peer", text=bert_folder
    )
    images = pictures(224)
    x = images[:, None].float().expand(-1, 3, -1, -1) / 255
    x = (x - 0.5862785803043838) / 0.27950088968644304
    regions = trunk.fc(features(trunk, x)[1].flatten(2).transpose(1, 2))
    check_vectors(peer, images, regions, trunk(x))
    ids = torch.tensor(peer.tokenizer.encode(["no pleural effusion"], 77))
    states = bert(ids, output_hidden_states=True).hidden_states
    assert len(states) == 4  # the embeddings', and three layers
    # modeling_medclip.py: states 1, 2 and the last, the mean over positions, then over layers.
    three = torch.stack([states[1], states[2], states[-1]]).permute(1, 0, 2, 3)
    expected = F.normalize(head(three.mean(2).mean(1)), dim=-1)
    found = peer.encode_sentences(["left", "no pleural effusion", "no left effusions"])[1:2]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_medclip_on_a_swin_transformer_reads_the_old_names(bert, bert_folder, tmp_path):
    from transformers import SwinConfig, SwinModel

    torch.manual_seed(4)
    config = SwinConfig(embed_dim=8, depths=[1, 1, 2, 1], num_heads=[1, 2, 2, 4], window_size=7)
    swin = lively(SwinModel(config))
    old = old_swin(swin.state_dict())
    assert "encoder.layers.0.blocks.0.attention.self.relative_position_bias_table" in old
    image, words = (
        nn.Linear(64, DIM, bias=False),
        nn.Linear(bert.config.hidden_size, DIM, bias=False),
    )
    state = prefixed("vision_model.model.", old)
    state |= prefixed("vision_model.projection_head.", image.state_dict())
    state |= prefixed("text_model.model.", bert.state_dict())
    state |= prefixed("text_model.projection_head.", words.state_dict())
    torch.save(state, tmp_path / "pytorch_model.bin")
    peer = import_model(
        "medclip", tmp_path / "pytorch_model.bin", tmp_path / "peer", text=bert_folder
    )
    images = pictures(224)
    x = images[:, None].float().expand(-1, 3, -1, -1) / 255
    out = swin((x - 0.5862785803043838) / 0.27950088968644304)
    check_vectors(peer, images, image(out.last_hidden_state), image(out.pooler_output))
