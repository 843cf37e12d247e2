"""A small model of this project's kind, and of other groups'."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.data.prompts import default_prompts
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.peers.peer import Peer
from medclip_debias.models.peers.settings import PeerPreprocessing, PeerSettings
from medclip_debias.models.text_encoder import SentenceTokenizer


def save_language_model(folder: Path, texts: Sequence[str]) -> Path:
    """One step of training: its vocabulary is what matters."""
    small = LanguageModelSettings(
        vocabulary=120, hidden=16, layers=1, heads=2, steps=1, batch_size=8, max_tokens=16
    )
    train_masked_lm(texts, folder, small)
    return folder


def save_model(folder: Path, language: Path, size: int, seed: int = 0) -> Path:
    """An untrained model of images prepared at ``size``."""
    torch.manual_seed(seed)
    text = TextEncoderSettings(folder=language, max_tokens=16)
    settings = ModelSettings(image=ImageEncoderSettings(arch="resnet_tiny"), text=text, dim=8)
    model = DualEncoder.create(
        settings, Preprocessing(prepare=PrepareSettings(size=size), input_size=size - 8)
    )
    model.prompts = default_prompts()
    model.provenance = {"synthetic": True, "text": {"folder": "/somewhere/private/lm"}}
    model.save(folder)
    return folder


def make_peer(
    language: Path,
    content: dict[str, Any],
    size: int,
    input_size: int = 64,
    shapes: dict[str, tuple[int, ...]] | None = None,
) -> Peer:
    """An untrained model of another group's kind; its text's ``config`` is the language model's.

    ``shapes`` are of tensors that sizes are read off.
    """
    config = json.loads((language / "config.json").read_text())
    channels = 1 if content["kind"] == "gloria" else 3
    torch.manual_seed(3)
    content = {"dim": 16, "max_tokens": 16} | content
    return Peer(
        PeerSettings.model_validate(content | {"text": content["text"] | {"config": config}}),
        PeerPreprocessing(
            prepare=PrepareSettings(size=size),
            input_size=input_size,
            channel_mean=(0.5,) * channels,
            channel_std=(0.25,) * channels,
        ),
        SentenceTokenizer.load(language),
        {"synthetic": True},
        {name: torch.empty(shape) for name, shape in (shapes or {}).items()},
    ).eval()
