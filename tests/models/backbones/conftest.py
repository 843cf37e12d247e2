"""Where a region looks, from gradients; and folders as transformers and timm write them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file


def support(encoder, side, row, column):
    """Centre (x, y) and size of the input pixels that one region depends on."""
    image = torch.rand(1, 1, side, side, requires_grad=True)
    features = encoder(image)
    weight = torch.randn(features.shape[1])  # a norm's outputs sum to a constant
    (features[0, :, row, column] * weight).sum().backward()
    ys, xs = torch.nonzero(image.grad[0, 0], as_tuple=True)
    assert len(ys) == (xs.max() - xs.min() + 1) * (ys.max() - ys.min() + 1)  # a full rectangle
    centre = (xs.double() + 0.5).mean().item(), (ys.double() + 0.5).mean().item()
    return centre, int(xs.max() - xs.min() + 1)


@pytest.fixture
def dinov2_folder(tmp_path):
    """A function that writes a small DINOv2 with random weights; returns folder and model."""

    def write(name="dino", registers=None, **changes):
        from transformers import (
            Dinov2Config,
            Dinov2Model,
            Dinov2WithRegistersConfig,
            Dinov2WithRegistersModel,
        )

        sizes = {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 42,
            "patch_size": 14,
        } | changes
        torch.manual_seed(0)
        if registers is None:
            model = Dinov2Model(Dinov2Config(**sizes))
        else:
            sizes["num_register_tokens"] = registers
            model = Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**sizes))
        for parameter in model.parameters():  # also what begins at 0 or 1
            torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(tmp_path / name)
        return tmp_path / name, model.eval()

    return write


@pytest.fixture
def timm_folder(tmp_path):
    """A function that writes a timm model as its hub's folders hold it."""

    def write(name, arguments):
        timm = pytest.importorskip("timm")
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=3, **arguments).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        folder = tmp_path / name
        folder.mkdir()
        save_file(
            {k: v.contiguous() for k, v in model.state_dict().items()},
            folder / "model.safetensors",
        )
        content = {"architecture": name, "num_classes": 3, "model_args": arguments}
        (folder / "config.json").write_text(json.dumps(content))
        return folder, model

    return write
