"""From a trunk's regions into the shared space, through new transformer blocks if asked for."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from medclip_debias.errors import UserError

HEAD_WIDTH = 64


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


def image_projection(width: int, dim: int, blocks: int) -> nn.Module:
    """``[B, N, width]`` to ``[B, N, dim]``: a linear map, behind ``blocks`` transformer blocks."""
    return BlockProjection(width, dim, blocks) if blocks else nn.Linear(width, dim)
