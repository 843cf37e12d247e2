"""Pre-train a small trunk on the training images of a prepared set, without any text: SimCLR.

What a frozen radiograph-pretrained trunk is worth cannot be tried here with published weights. This
one saw nothing but the training images of the set; two views of an image are a crop of 30 to 100%
of its area, a turn of up to 10 degrees, and other grey values. Never mirrored: the heart would
change sides.

Run as ``python scripts/studies/pretrain_trunk.py PREPARED OUT.safetensors``;
``model.image.weights`` reads the file.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from medclip_debias.losses import InfoNCE, InfoNCESettings
from medclip_debias.models.backbones.resnet import ResNetRegions

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from commands import run_script
from medclip_debias.data.store import PreparedSet
from medclip_debias.files import atomic_file
from studies.images import fit

SIDE = 64
"""Of a view, as the input of openi/base and phantom/base."""
MEAN, STD = 0.5, 0.25
"""Of the input's grey levels, as `medclip_debias.config.PreprocessingSettings`."""


def radiograph_view(images: Tensor, generator: torch.Generator) -> Tensor:
    """One random view of each image ``[n, 1, H, W]`` in 0..1: ``[n, 1, 64, 64]``, standardised."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(images), generator=generator)

    side = uniform(0.3, 1.0).sqrt()
    turn = uniform(-math.pi / 18, math.pi / 18)
    x, y = (uniform(-1, 1) * (1 - side) for _ in range(2))
    rows = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], dim=1)
    turned = rows.view(-1, 2, 2) * side[:, None, None]
    theta = torch.cat([turned, torch.stack([x, y], dim=1)[:, :, None]], dim=2)
    grid = F.affine_grid(theta, [len(images), 1, SIDE, SIDE], align_corners=False)
    cut = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    contrast, brightness = (v.view(-1, 1, 1, 1) for v in (uniform(0.6, 1.4), uniform(-0.2, 0.2)))
    changed = (cut - 0.5) * contrast + 0.5 + brightness
    changed = changed + 0.02 * torch.randn(changed.shape, generator=generator)
    return (changed.clamp(0, 1) - MEAN) / STD


def main(
    prepared: Path,
    out: Path,
    arch: str = "resnet_small",
    steps: int = 1500,
    batch: int = 128,
    seed: int = 0,
) -> None:
    """Pre-train a small trunk on the training images of a prepared set (SimCLR)."""
    data = PreparedSet.open(prepared)
    rows = np.flatnonzero((data.images["split"] == "train").to_numpy())
    images = (data.pixels[rows].astype(np.float32) / np.float32(255))[:, None]
    torch.manual_seed(seed)
    regions = ResNetRegions(arch)
    trunk = nn.Sequential(regions, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    how: dict[str, Any] = {"steps": steps, "batch": batch, "temperature": 0.2, "seed": seed}
    fit(images, InfoNCE(InfoNCESettings()), trunk=trunk, views=radiograph_view, **how)
    with atomic_file(out) as temporary:
        save_file({k: v.contiguous() for k, v in regions.state_dict().items()}, temporary)
    print({"images": len(images)})


if __name__ == "__main__":
    sys.exit(run_script(main))
