"""Low-rank adapters (LoRA, Hu et al. 2022, section 4.1): ``W + (alpha / rank) B A``.

Written as a parametrisation of torch's own, so that no module is wrapped or moved: a
model is encoded, copied and averaged as before, and `merged_state` gives plain weights. Why not
peft: docs/models.md.
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
_INSIDE = ".parametrizations.weight."  # where torch keeps a matrix and what is added to it
_ATTENTION = re.compile(r"(^|\.)(attn|attention|self_attn|Wqkv|Wo)(\.|$)")


class LowRank(nn.Module):
    """Adds the adapter to a matrix; nothing at the start, since ``up`` begins at 0.

    Args:
        weight: ``[out, in]``, adapted.
        rank: of the sum.
        alpha: the sum is scaled by alpha / rank.
    """

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
        """The adapted matrix."""
        adapted: Tensor = weight + self.scale * (self.up @ self.down)
        return adapted


def add_adapters(
    layers: Iterable[nn.Module], rank: int, alpha: float, targets: Targets
) -> list[nn.Parameter]:
    """Put an adapter on the linear maps of ``layers``, in place; return the new parameters.

    Args:
        layers: blocks of one encoder.
        rank: at most the smaller side of a matrix, to which it is cut.
        alpha: see `LowRank`.
        targets: ``attention`` for the maps of attention alone, ``linear`` for all.

    Returns:
        Empty where there is no such map, as in a ResNet.
    """
    found: list[nn.Parameter] = []
    for layer in layers:
        for name, module in list(layer.named_modules()):
            chosen = targets == "linear" or _ATTENTION.search(name)
            if type(module) is nn.Linear and chosen:
                adapter = LowRank(module.weight, min(rank, *module.weight.shape), alpha)
                parametrize.register_parametrization(module, "weight", adapter)
                found += [adapter.down, adapter.up]
    return found


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """``model.state_dict()`` with every adapter added to its matrix, under the plain names."""
    state = model.state_dict()
    merged = {}
    for key, value in state.items():
        name, middle, part = key.partition(_INSIDE)
        if not middle:
            merged[key] = value
        elif part == "original":
            inside = f"{name}{middle}0."
            low_rank = state[f"{inside}up"] @ state[f"{inside}down"]
            merged[f"{name}.weight"] = value + state[f"{inside}scale"] * low_rank
    return merged
