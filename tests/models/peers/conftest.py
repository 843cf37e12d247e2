"""Random checkpoints with the tensor names of the published files.

ResNet-50 trunks have one block a stage here and a quarter of its channels, so that files stay small
and forward passes short; the full-size names are checked on the meta device.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from medclip_debias.grounding.search.landmarks import sentence_scores
from medclip_debias.models.backbones import resnet
from medclip_debias.models.backbones.resnet import Arch
from medclip_debias.models.load import load_model
from medclip_debias.models.peers import tokenizers
from medclip_debias.models.peers.importing import import_model

DIM = 6
THIRD, LAST = 256, 512
"""Channels of the last two stages of `trunk`."""
MERGES, CLIP_WORDS = 1000, 512 + 1000 + 2
"""Of `few_merges`: pairs that are merged, and tokens of the vocabulary (49,408 of CLIP's own)."""
SENTENCES = ["No pleural effusions.", "left", "left effusion, no effusions"]
RAW = ("kad", "medklip", "afloc")
"""Kinds whose vectors have any length."""


def prefixed(prefix, state):
    return {prefix + key: value for key, value in state.items()}


def without(state, *parts):
    return {key: value for key, value in state.items() if not any(part in key for part in parts)}


def replaced(state, *pairs):
    result = {}
    for key, value in state.items():
        for new, old in pairs:
            key = key.replace(new, old)
        result[key] = value
    return result


def lively(module, seed=0):
    """Random weights, also where a fresh module has zeros or ones: no term may go untested."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in module.state_dict().items():
            if value.dtype.is_floating_point:
                noise = torch.randn(value.shape, generator=generator) * 0.2
                if "running_var" in name:
                    value.copy_(1 + noise.abs())
                elif value.ndim <= 1:
                    value.add_(noise)
                elif "embed" in name or value.abs().max() == 0:
                    value.copy_(noise)
    return module.eval()


def pictures(side, seed=0):
    """Two smooth images, uint8 ``[2, side, side]``."""
    g = torch.Generator().manual_seed(seed)
    small = torch.rand(2, 1, max(side // 16, 2), max(side // 16, 2), generator=g)
    return (F.interpolate(small, size=(side, side), mode="bilinear") * 255).to(torch.uint8)[:, 0]


def normalised(images, mean, std):
    x = images[:, None].float().expand(-1, 3, -1, -1) / 255
    mean, std = (torch.tensor(each).reshape(1, -1, 1, 1) for each in (mean, std))
    return (x - mean) / std


def close(found, expected, atol=1e-5):
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def unit(vectors):
    return F.normalize(vectors, dim=-1)


@pytest.fixture
def shallow(monkeypatch):
    stages = ((1, 16, 1), (1, 32, 2), (1, 64, 2), (1, 128, 2))
    monkeypatch.setitem(resnet.ARCHITECTURES, "resnet50", Arch("bottleneck", 64, 7, True, stages))


@pytest.fixture
def trunk(shallow):
    """torchvision's own ResNet, three channels in, its classifier 1000 wide."""
    from torchvision.models.resnet import Bottleneck, ResNet

    class Narrow(ResNet):
        def _make_layer(self, block, planes, *more, **named):
            return super()._make_layer(block, planes // 4, *more, **named)

    torch.manual_seed(0)
    net = Narrow(Bottleneck, [1, 1, 1, 1])
    net.fc = nn.Linear(LAST, 1000)
    return lively(net)


@pytest.fixture
def bert(bert_folder):
    """A BERT with a pooler, of the folder's configuration; its sentences differ."""
    from transformers import BertConfig, BertModel

    config = json.loads((bert_folder / "config.json").read_text())
    config.pop("model_type")
    torch.manual_seed(2)
    model = lively(BertModel(BertConfig(**config)))
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.mul_(20)
        for layer in model.encoder.layer:
            layer.attention.self.query.weight.mul_(20)
            layer.attention.self.value.weight.mul_(20)
        model.pooler.dense.weight.mul_(20)
    return model


@pytest.fixture
def bring(tmp_path, bert_folder):
    """Import a state dict, or what a file holds."""

    def imported(kind, state, text=bert_folder, config=None, **options):
        torch.save(state, tmp_path / "weights.pt")
        out = tmp_path / f"peer {len(list(tmp_path.iterdir()))}"
        files = {"text": text, "config": config}
        import_model(kind, tmp_path / "weights.pt", out, **files, **options)
        return load_model(out)

    return imported


@pytest.fixture
def biovil_file(trunk, tmp_path):
    """BioViL's image file; its projector is `biovil_projector`."""
    state = prefixed("encoder.encoder.", trunk.state_dict())
    state |= prefixed("projector.model.", biovil_projector(LAST).state_dict())
    torch.save(state, tmp_path / "biovil.pt")
    return tmp_path / "biovil.pt"


def biovil_projector(width):
    torch.manual_seed(1)
    first, last = nn.Conv2d(width, 16, 1, bias=False), nn.Conv2d(16, DIM, 1)
    return lively(nn.Sequential(first, nn.BatchNorm2d(16), nn.ReLU(), last))


@pytest.fixture(scope="session")
def open_clip_model():
    """open_clip's ``model`` module, without the tokenizer that its package imports first."""
    spec = importlib.util.find_spec("open_clip")
    if spec is None:
        pytest.skip("open_clip is not installed")
    bare = importlib.machinery.ModuleSpec("open_clip_networks", None, is_package=True)
    bare.submodule_search_locations = list(spec.submodule_search_locations)
    sys.modules["open_clip_networks"] = importlib.util.module_from_spec(bare)
    return importlib.import_module("open_clip_networks.model")


@pytest.fixture(scope="session")
def merges_file():
    from medclip_debias.models.peers.open_clip import installed_merges

    return installed_merges()


@pytest.fixture
def few_merges(merges_file, tmp_path, monkeypatch):
    """The first of CLIP's merges as if they were all: reading the 48,894 anew takes long."""
    rows = gzip.decompress(merges_file.read_bytes()).decode().split("\n")[: MERGES + 1]
    path = tmp_path / "bpe.txt.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    monkeypatch.setattr(tokenizers, "MERGES", MERGES)
    return path


@pytest.fixture(scope="session")
def radiographs(shared_data):
    """Two real radiographs, a wide and a tall one."""
    return sorted((shared_data / "real_cxr").rglob("*.jpg"))[:28:14]


PIECES = ["▁no", "▁effusion", "▁ef", "fusion", "▁", *"noefusilta"]
SCORES = [-2.0, -4.0, -3.0, -2.5, -3.5, *(-5.0 - 0.1 * n for n in range(10))]
UNIGRAMS = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *zip(PIECES, SCORES, strict=True)]


def spiece(path, rows=UNIGRAMS, kind=1):
    """Write a SentencePiece file."""
    from transformers.utils.sentencepiece_model_pb2_new import ModelProto

    types, proto = {"<pad>": 3, "</s>": 3, "<unk>": 2}, ModelProto()
    for piece, score in rows:
        proto.pieces.add(piece=piece, score=score, type=types.get(piece, 1))
    proto.trainer_spec.model_type, proto.normalizer_spec.add_dummy_prefix = kind, True
    path.write_bytes(proto.SerializeToString())
    return path


RECORDED = Path(__file__).with_name("recorded.json")


def computed(peer, images, sentences=SENTENCES):
    """What a model says of images and sentences, by name; its form is as documented."""
    features, outputs, kind = peer.encode_images(images), peer.outputs, peer.settings.kind
    count = peer.grid.rows * peer.grid.columns
    assert features.regions.shape == (len(images), count, peer.dim)
    assert outputs.has_whole == (features.whole is not None)
    found = {"regions": features.regions}
    if outputs.has_whole:
        assert features.whole.shape == (len(images), peer.dim)
        found["whole"] = features.whole
        kept = 1 if outputs.whole_alone else 1 + count
    else:
        kept = count
    assert features.stored.shape == (len(images), kept, peer.dim)
    if kind not in RAW and outputs.text_form != "words":
        for vectors in found.values():
            length = torch.linalg.vector_norm(vectors, dim=-1)
            close(length, torch.ones_like(length), 1e-6)
    if outputs.text_form == "none":
        return found
    vectors = peer.encode_sentences(sentences)
    found |= {"sentences": vectors, "score": peer.score(features, vectors)}
    found["maps"] = peer.region_scores(features, vectors)
    assert found["score"].shape == (len(images), len(sentences))
    assert found["maps"].shape == (len(images), len(sentences), count)
    none = peer.encode_sentences([])
    assert (len(none), none.ndim, none.shape[-1]) == (0, vectors.ndim, peer.dim)
    if outputs.map_kind == "attention" and kind != "carzero":  # there the whole has its share
        close(found["maps"].sum(dim=-1), torch.ones(found["score"].shape))
    # A score is a sentence's own, whatever is asked beside it.
    alone = peer.encode_sentences(sentences[1])
    close(peer.score(features, alone)[:, 0], found["score"][:, 1])
    if kind != "afloc" and outputs.text_form == "vector":  # what an index keeps scores alike
        stored = sentence_scores(peer.score, features.stored.half().numpy(), vectors)
        np.testing.assert_allclose(stored, found["score"], atol=2e-3)
    return found


def check_recorded(name, found):
    """Hold a few of all numbers against those of before; ``RECORD_PEERS=1`` records instead."""
    known = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    rows = [value.flatten()[:: max(value.numel() // 12, 1)] for value in found.values()]
    numbers = torch.cat(rows).double().tolist()
    if "RECORD_PEERS" in os.environ:
        numbers = [float(f"{value:.8g}") for value in numbers]
        RECORDED.write_text(json.dumps(known | {name: numbers}) + "\n")
    else:
        assert numbers == pytest.approx(known[name], rel=1e-5, abs=1e-6)


def plain(regions, whole, sentences):
    """What a model of cosines gives, from vectors of any length."""
    regions, whole, sentences = unit(regions), unit(whole), unit(sentences)
    maps = torch.einsum("bnd,td->btn", regions, sentences)
    found = {"regions": regions, "whole": whole, "sentences": sentences}
    return found | {"score": whole @ sentences.T, "maps": maps}


def check(name, peer, images, expected, atol=2e-5, sentences=SENTENCES):
    """A peer computes what is expected of it, what it did before, and not one and the same."""
    found = computed(peer, images, sentences)
    for key, value in expected.items():
        close(found[key], value, atol)
    check_recorded(name, found)
    if "score" in found:
        assert found["score"].std(dim=0).min() > 1e-6
        assert found["score"].std(dim=1).min() > 1e-6
    return found
