"""A tiny untrained model of words, in a folder; no training."""

from __future__ import annotations

import pytest

from medclip_debias.data.prompts import default_prompts
from tests.helpers.small_models import WORDS, dual_encoder, write_bert


@pytest.fixture(scope="session")
def make_network(tmp_path_factory):
    """A function that makes an untrained model of 40-pixel inputs."""
    place = tmp_path_factory.mktemp("words") / "bert"
    folder, _ = write_bert(place, words=[*WORDS, "."], num_hidden_layers=1)

    def make(arch="resnet_tiny", pooling="cls", **similarity):
        text = {"folder": str(folder), "max_tokens": 12, "pooling": pooling}
        more = {"text": text, "dim": 12, "similarity": similarity}
        network = dual_encoder(folder, arch, 48, 40, (1, 99), **more)
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
        return network

    return make


@pytest.fixture(scope="session")
def model_folder(make_network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    make_network().save(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def autograd_before_exports():
    """Start torch's autograd: after an export its threads forbid tests that fork later."""
    import torch

    torch.ones(1, requires_grad=True).sum().backward()
