"""Random checkpoints with the tensor names of the published files.

Names from the public definitions: microsoft/hi-ml (health_multimodal/image/model), openai/CLIP,
mlfoundations/open_clip (model.py, timm_model.py, hf_model.py), marshuang80/gloria
(gloria/models), RyanWangZf/MedCLIP (medclip/modeling_medclip.py). ResNet-50 trunks have one block
a stage here and a quarter of its channels, so that files stay small and forward passes short; the
full-size names are checked on the meta device.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.machinery
import importlib.util
import json
import os
import struct
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from medclip_debias.models.backbones import resnet
from medclip_debias.models.backbones.resnet import Arch
from medclip_debias.models.peers import tokenizers
from medclip_debias.models.peers.peer import Peer

DIM = 6
THIRD, LAST = 256, 512
"""Channels of the last two stages of `trunk`."""
MERGES, CLIP_WORDS = 1000, 512 + 1000 + 2
"""Of `few_merges`: pairs that are merged, and tokens of the vocabulary (49,408 of CLIP's own)."""


def prefixed(prefix, state):
    return {prefix + key: value for key, value in state.items()}


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


def old_swin(state):
    """The names of published Swin transformers, from those of transformers 5."""
    pairs = (
        (".attention.q_proj.", ".attention.self.query."),
        (".attention.k_proj.", ".attention.self.key."),
        (".attention.v_proj.", ".attention.self.value."),
        (".attention.o_proj.", ".attention.output.dense."),
        (".attention.relative_position_bias.", ".attention.self."),
        (".mlp.fc1.", ".intermediate.dense."),
        (".mlp.fc2.", ".output.dense."),
    )
    published = {}
    for key, value in state.items():
        for new, old in pairs:
            key = key.replace(new, old)
        published[key] = value
    return published


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
def projector():
    torch.manual_seed(1)
    return lively(
        nn.Sequential(
            nn.Conv2d(LAST, 16, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, DIM, 1),
        )
    )


@pytest.fixture
def biovil_file(trunk, projector, tmp_path):
    state = prefixed("encoder.encoder.", trunk.state_dict())
    state |= prefixed("projector.model.", projector.state_dict())
    torch.save(state, tmp_path / "biovil_image.pt")
    return tmp_path / "biovil_image.pt"


@pytest.fixture
def bert(bert_folder):
    """A BERT with a pooler, of the folder's configuration."""
    from transformers import BertConfig, BertModel

    config = json.loads((bert_folder / "config.json").read_text())
    config.pop("model_type")
    torch.manual_seed(2)
    return lively(BertModel(BertConfig(**config)))


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


@pytest.fixture(scope="session")
def first_merges(merges_file, tmp_path_factory):
    rows = gzip.decompress(merges_file.read_bytes()).decode().split("\n")[: MERGES + 1]
    path = tmp_path_factory.mktemp("merges") / "bpe.txt.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    return path


@pytest.fixture
def few_merges(first_merges, monkeypatch):
    """The first of CLIP's merges as if they were all: reading the 48,894 anew takes long."""
    monkeypatch.setattr(tokenizers, "MERGES", MERGES)
    return first_merges


@pytest.fixture(scope="session")
def radiographs(shared_data):
    """Four real radiographs of different shapes."""
    return sorted((shared_data / "real_cxr").rglob("*.jpg"))[:40:10]


@pytest.fixture(scope="session")
def small_tree(tmp_path_factory):
    """A phantom as `phantom_tree`, of fewer studies: towers of these inputs take long."""
    from medclip_debias.phantom import PhantomSettings, generate

    out = tmp_path_factory.mktemp("small") / "tree"
    settings = PhantomSettings(studies=48, test_studies=16, seed=3, min_side=64, max_side=80)
    generate(out, settings, None, 1)
    return out


PIECES = [
    "▁no",
    "▁effusion",
    "▁ef",
    "fusion",
    "▁",
    "n",
    "o",
    "e",
    "f",
    "u",
    "s",
    "i",
    "l",
    "t",
    "a",
]
SCORES = [-2.0, -4.0, -3.0, -2.5, -3.5] + [-5.0 - 0.1 * n for n in range(10)]
UNIGRAMS = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *zip(PIECES, SCORES, strict=True)]


def spiece(path, rows=UNIGRAMS, kind=1):
    """Write SentencePiece's ``ModelProto`` by the rules of protocol buffers."""

    def varint(number):
        low, number = number & 127, number >> 7
        return bytes([low | 128]) + varint(number) if number else bytes([low])

    def field(number, value):
        if isinstance(value, int):
            return varint(number << 3) + varint(value)
        if isinstance(value, float):
            return varint(number << 3 | 5) + struct.pack("<f", value)
        return varint(number << 3 | 2) + varint(len(value)) + value

    types = {"<pad>": 3, "</s>": 3, "<unk>": 2}
    content = b""
    for piece, score in rows:
        row = field(1, piece.encode()) + field(2, score) + field(3, types.get(piece, 1))
        content += field(1, row)
    path.write_bytes(content + field(2, field(3, kind)) + field(3, field(3, 1)))
    return path


RECORDED = Path(__file__).with_name("recorded.json")
"""What each test's imported models gave when they were recorded; see `recorded_outputs`."""


def outputs(peer):
    """A few numbers of all that a model computes, on fixed images and sentences."""
    side = peer.preprocessing.input_size
    generator = torch.Generator().manual_seed(7)
    images = torch.randint(0, 256, (2, side, side), generator=generator, dtype=torch.uint8)
    with torch.inference_mode():
        features = peer.encode_images(images)
        found = [features.regions.flatten()[:: max(features.regions.numel() // 12, 1)]]
        if features.whole is not None:
            found.append(features.whole.flatten()[:12])
        if peer.outputs.text_form != "none":
            sentences = peer.encode_sentences(["no pleural effusion", "left", "1. No effusions."])
            maps = peer.region_scores(features, sentences)
            found += [sentences.flatten()[:: max(sentences.numel() // 12, 1)]]
            found += [peer.score(features, sentences).flatten()]
            found += [maps.flatten()[:: max(maps.numel() // 12, 1)]]
    return torch.cat(found).double().tolist()


@pytest.fixture(autouse=True)
def recorded_outputs(request, monkeypatch):
    """Hold every model that a test imports against what it gave before, to 1e-6.

    ``RECORD_PEERS=1`` records instead.
    """
    known = json.loads(RECORDED.read_text()) if RECORDED.is_file() else {}
    name, seen, load = request.node.name, [], Peer.load.__func__

    def loaded(cls, *where, **options):
        peer = load(cls, *where, **options)
        seen.append(outputs(peer))
        if name in known and len(seen) <= len(known[name]) and "RECORD_PEERS" not in os.environ:
            assert seen[-1] == pytest.approx(known[name][len(seen) - 1], rel=1e-5, abs=1e-6)
        return peer

    monkeypatch.setattr(Peer, "load", classmethod(loaded))
    yield
    if seen and "RECORD_PEERS" in os.environ:
        numbers = [[float(f"{value:.8g}") for value in one] for one in seen[:2]]
        RECORDED.write_text(json.dumps(known | {name: numbers}, indent=None) + "\n")
