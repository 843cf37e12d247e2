"""Loading draws no random numbers, and leaves none of what was not drawn."""

from __future__ import annotations

import math
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.models import dual_encoder
from medclip_debias.models.checkpoint import _NothingDrawn, _skipped, uninitialised
from medclip_debias.models.dual_encoder import DualEncoder


class Poisoned(_NothingDrawn):
    """What would have been drawn is no number, so that whatever stays of it is seen."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs)
        drawn = _skipped(func)
        return found.detach().fill_(math.nan) if drawn else found


@contextmanager
def poisoned():
    with Poisoned():
        yield


def empty(module):
    """Names of tensors, buffers that no file holds among them, with a value that is no number."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name for name, value in tensors if not value.isfinite().all()}


@pytest.mark.parametrize("arch", ["resnet_small", "vit_tiny_scratch"])
def test_what_is_loaded_is_the_files_and_nothing_is_left_of_the_memory(
    arch, cxr_bert_folder, tmp_path, monkeypatch
):
    torch.manual_seed(0)
    side = 56 if arch.startswith("vit") else 64
    model = DualEncoder.create(
        ModelSettings(
            image=ImageEncoderSettings(arch=arch),
            text=TextEncoderSettings(folder=cxr_bert_folder, max_tokens=16),
            dim=8,
        ),
        Preprocessing(prepare=PrepareSettings(size=side), input_size=side),
    )
    model.save(tmp_path / "model")
    monkeypatch.setattr(dual_encoder, "uninitialised", poisoned)
    loaded = DualEncoder.load(tmp_path / "model")
    assert empty(loaded) == set()
    found, kept = loaded.state_dict(), model.state_dict()
    assert found.keys() == kept.keys()
    assert all(torch.equal(found[name], kept[name]) for name in kept)


@pytest.mark.parametrize("bounds", [(-2.0, 2.0), (0.3, 2.0), (1.0, 1.5)])
def test_what_is_drawn_until_it_lies_within_bounds_ends(bounds):
    """Memory that nobody filled lies anywhere; a loop that waits for it would never end."""
    with uninitialised():
        weight = torch.full((64, 64), 1e30)
        nn.init.trunc_normal_(weight, 0.0, 1.0, *bounds)
    assert bounds[0] <= float(weight.min()) < float(weight.max()) <= bounds[1]
