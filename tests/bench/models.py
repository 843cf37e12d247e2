"""A small model of this project's kind, and of other groups'."""

from __future__ import annotations

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
from medclip_debias.models.peers.settings import PeerPreprocessing
from tests.helpers.small_models import make_peer


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


def bench_peer(
    language: Path, size: int, input_size: int = 64, *, text: Any = None, **content: Any
) -> Peer:
    """An untrained model of another group's kind, of images prepared at ``size``."""
    channels = 1 if content.get("kind") == "gloria" else 3
    how = PeerPreprocessing(
        prepare=PrepareSettings(size=size),
        input_size=input_size,
        channel_mean=(0.5,) * channels,
        channel_std=(0.25,) * channels,
    )
    return make_peer(language, how, text=text, provenance={"synthetic": True}, **content)
