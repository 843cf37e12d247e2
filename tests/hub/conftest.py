"""A tiny untrained model of words, in a folder; no training."""

from __future__ import annotations

import json

import pytest
import torch

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    SimilaritySettings,
    TextEncoderSettings,
)
from medclip_debias.data.prompts import default_prompts
from medclip_debias.models.dual_encoder import DualEncoder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "no", "pleural", "effusion", "left", "."]


@pytest.fixture(scope="session")
def make_network(tmp_path_factory):
    """A function that makes an untrained model of 40-pixel inputs."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("words") / "bert"
    folder.mkdir()
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(
        vocab_size=len(WORDS), num_hidden_layers=1, max_position_embeddings=32, **sizes
    )
    state = BertModel(config, add_pooling_layer=False).state_dict()
    torch.save({f"bert.{k}": v for k, v in state.items()}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config.to_dict() | {"model_type": "bert"}))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")

    def make(arch="resnet_tiny", pooling="cls", **similarity):
        torch.manual_seed(1)
        settings = ModelSettings(
            image=ImageEncoderSettings(arch=arch),
            text=TextEncoderSettings(folder=folder, max_tokens=12, pooling=pooling),
            dim=12,
            similarity=SimilaritySettings(**similarity),
        )
        preprocessing = Preprocessing(prepare=PrepareSettings(size=48, clip=(1, 99)), input_size=40)
        network = DualEncoder.create(settings, preprocessing)
        network.prompts = default_prompts()
        network.provenance = {
            "prepared": "/home/someone/secret/prepared",
            "out": "/home/someone/secret/run",
            "model": {"text": {"folder": "/home/someone/lm"}},
            "loss": {"kind": "debiased", "eta": {"language_model": "/home/someone/lm"}},
            "train": {"seed": 3, "steps": 20, "batch_size": 8},
            "provenance": {"data_hash": "d" * 64},
            "studies": 5,
            "synthetic": True,
            "data": {"kind": "mimic_cxr", "synthetic": True},
        }
        return network.eval()

    return make


@pytest.fixture(scope="session")
def model_folder(make_network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    make_network().save(folder)
    return folder
