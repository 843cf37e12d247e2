"""Low-rank adapters (LoRA, Hu et al. 2022, section 4.1): ``W + (alpha / rank) B A``.

A parametrisation of torch's own, so that no module is wrapped or moved (docs/models.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Targets = Literal["attention", "linear"]
# Where torch keeps a matrix and what is added to it.
_INSIDE = re.compile(r"^(.*)\.parametrizations\.(\w+)\.(.*)$")
_ATTENTION = re.compile(r"(^|\.)(attn|attention|self_attn|Wqkv|Wo)(\.|$)")


class LowRank(nn.Module):
    """Adds the adapter to a matrix; nothing at the start, since ``up`` begins at 0."""

    scale: Tensor

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        out, into = weight.shape
        # A buffer, so that a state dict alone can be merged.
        self.register_buffer("scale", torch.tensor(alpha / rank))
        self.down = nn.Parameter(weight.new_empty(rank, into))
        self.up = nn.Parameter(weight.new_zeros(out, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * (self.up @ self.down)


def add_adapters(
    layers: Iterable[nn.Module], rank: int, alpha: float, targets: Targets
) -> list[nn.Parameter]:
    """Put an adapter on the linear maps of ``layers``, in place; return the new parameters."""
    adapters: list[nn.Parameter] = []
    for layer in layers:
        for name, module in list(layer.named_modules()):
            if targets != "linear" and not _ATTENTION.search(name):
                continue
            if type(module) is nn.Linear:
                places: list[tuple[nn.Module, str]] = [(module, "weight")]
            elif isinstance(module, nn.MultiheadAttention) and module.in_proj_weight is not None:
                places = [(module, "in_proj_weight"), (module.out_proj, "weight")]
            else:
                continue
            for owner, matrix in places:
                weight = owner.get_parameter(matrix)
                adapter = LowRank(weight, min(rank, *weight.shape), alpha)
                parametrize.register_parametrization(owner, matrix, adapter)
                adapters += [adapter.down, adapter.up]
    return adapters


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """``model.state_dict()`` with every adapter added to its matrix, under the plain names."""
    state = model.state_dict()
    merged = {}
    for key, value in state.items():
        place = _INSIDE.match(key)
        if place is None:
            merged[key] = value
        elif place[3] == "original":
            inside = f"{place[1]}.parametrizations.{place[2]}.0."
            low_rank = state[f"{inside}up"] @ state[f"{inside}down"]
            merged[f"{place[1]}.{place[2]}"] = value + state[f"{inside}scale"] * low_rank
    return merged
