"""Small models of other groups' kinds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from medclip_debias.config import PrepareSettings
from medclip_debias.models.peers.peer import Peer
from medclip_debias.models.peers.settings import PeerPreprocessing, PeerSettings
from medclip_debias.models.text_encoder import SentenceTokenizer

BOOK = {"pneumothorax": "pneumothorax", "cardiomegaly": "cardiomegaly", "edema": "edema"}


def _save_peer(folder: Path, language: Path, kind: str, size: int) -> Path:
    config = json.loads((language / "config.json").read_text())
    sizes = {"image_size": 64, "patch": 16, "width": 16, "layers": 1, "heads": 2, "hidden": 24}
    bare = {"kind": "vit", **sizes}
    dino = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 64}
    dino = {"kind": "dinov2", "config": dino | {"patch_size": 16}, "image_size": 64}
    queries = {"kind": "query_attention", "positions": 20, "layers": 1, "heads": 2, "hidden": 8}
    image, text, fusion = {
        "carzero": (bare, {"kind": "words", "positions": 20}, queries),
        "mgca": (bare, {"kind": "words", "hidden": 8}, {"kind": "two_spaces"}),
        "radzero": (
            dino | {"blocks": 1, "block_heads": 2, "head": "norm"},
            {"kind": "encoder", "pooling": "mean", "head": "norm"},
            {"kind": "similarity_attention"},
        ),
        "kad": (
            {"kind": "resnet50", "stage": 3},
            {"kind": "bert", "pooling": "affine_mlp", "token": "pooler", "hidden": 8},
            {"kind": "query_network", "layers": 1, "heads": 2, "hidden": 8, "book": BOOK},
        ),
        "gloria": (
            {"kind": "resnet50"},
            {"kind": "bert", "pooling": "last4"},
            None,
        ),
    }[kind]
    content = {"kind": kind, "dim": 16, "max_tokens": 16, "image": image, "fusion": fusion}
    content |= {"score": "both"} if kind == "gloria" else {}
    torch.manual_seed(3)
    peer = Peer(
        PeerSettings.model_validate(content | {"text": text | {"config": config}}),
        PeerPreprocessing(
            prepare=PrepareSettings(size=size),
            input_size=64,
            channel_mean=(0.5,) * (1 if kind == "gloria" else 3),
            channel_std=(0.25,) * (1 if kind == "gloria" else 3),
        ),
        SentenceTokenizer.load(language),
        {"synthetic": True},
    )
    deep = image["kind"] == "resnet50"  # whose numbers would grow beyond all bounds
    for parameter in (peer.text if deep else peer).parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    peer.eval().save(folder)
    return folder


@pytest.fixture(scope="session")
def save_peer() -> Callable[[Path, Path, str, int], Path]:
    """A function that saves an untrained model of a kind, for sets prepared at a size."""
    return _save_peer
