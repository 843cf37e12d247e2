"""From a trunk's regions into the shared space, through new transformer blocks if asked for."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from medclip_debias.errors import UserError

HEAD_WIDTH = 64
FREQUENCIES = (0.5, 1.0, 2.0)
"""Half waves of places over an image's side."""


class BlockProjection(nn.Module):
    """Pre-norm transformer blocks over an image's regions, and a linear map of each.

    How dino.txt (Jose et al. 2024) and RadZero (Park et al. 2025) fit a frozen trunk to text.
    """

    def __init__(self, width: int, dim: int, blocks: int) -> None:
        super().__init__()
        heads = max(1, width // HEAD_WIDTH)
        if width % heads:
            raise UserError(
                f"setting 'model.image.blocks' is {blocks}, but a trunk of width {width} cannot be "
                f"cut into {heads} attention heads; leave the blocks out."
            )
        options: Any = {"activation": "gelu", "layer_norm_eps": 1e-6, "norm_first": True}
        layers = (
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, **options)
            for _ in range(blocks)
        )
        self.blocks = nn.ModuleList(layers)
        self.linear = nn.Linear(width, dim)

    def forward(self, regions: Tensor) -> Tensor:
        for block in self.blocks:
            regions = block(regions)
        result: Tensor = self.linear(regions)
        return result


class Placed(nn.Module):
    """A projection of regions that know where they are.

    Convolutions are shared over places, so that "left" and "right" have little to hold on to (Liu
    et al. 2018, An intriguing failing of convolutional neural networks). Sines and cosines of a
    region's coordinates are mapped to the trunk's width and added to its features. A grid of any
    side has the same coordinates: -1 to 1 from edge to edge.
    """

    def __init__(self, projection: nn.Module, width: int) -> None:
        super().__init__()
        self.projection = projection
        self.places = nn.Linear(4 * len(FREQUENCIES), width, bias=False)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, regions: Tensor) -> Tensor:
        """Add its place to each region, and project."""
        codes = place_codes(math.isqrt(regions.shape[1])).to(regions)
        result: Tensor = self.projection(regions + self.places(codes))
        return result


def place_codes(side: int) -> Tensor:
    """Sines and cosines of the centres of ``side * side`` regions, row by row: ``[N, 12]``.

    >>> place_codes(2).shape
    torch.Size([4, 12])
    """
    centres = (torch.arange(side) + 0.5) / side * 2 - 1
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    angles = [frequency * math.pi * axis.flatten() for axis in (x, y) for frequency in FREQUENCIES]
    return torch.stack([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)


def image_projection(width: int, dim: int, blocks: int, places: bool = False) -> nn.Module:
    """``[B, N, width]`` to ``[B, N, dim]``: a linear map, behind ``blocks`` transformer blocks."""
    projection = BlockProjection(width, dim, blocks) if blocks else nn.Linear(width, dim)
    return Placed(projection, width) if places else projection
