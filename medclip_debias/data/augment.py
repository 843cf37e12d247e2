"""Random crop, brightness and contrast of training images (the paper's, section 3.2).

What is sampled and where it is applied are apart: `draw` takes random numbers from the generator
handed in and nothing else, `augment` applies them with albumentations on the CPU,
`augment_on_device` in one go where the batch lies. Both give the same pixels.

Two views of one image (SimCLR) take two draws of the same. SimCLR's own strong augmentations are
left out on purpose: a mirrored chest has its heart on the wrong side, so a flip would teach that
left and right do not matter, and a rescaled crop needs interpolation, which is not the same to
the byte on the CPU and on a GPU. Prepare larger images and raise ``brightness`` and ``contrast``
for stronger views.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.config import AugmentSettings


@dataclass(frozen=True)
class Draws:
    """What happens to each image of a batch; every tensor is ``[B]``.

    Attributes:
        top: first row of the crop.
        left: first column of the crop.
        contrast: grey values are multiplied by it.
        brightness: and then this is added (float32, in grey levels).
        side: side of the crop.
    """

    top: Tensor
    left: Tensor
    contrast: Tensor
    brightness: Tensor
    side: int

    def pin_memory(self) -> Draws:
        """A copy in page-locked memory, from which a GPU reads without waiting."""
        tensors = {f.name: getattr(self, f.name).pin_memory() for f in fields(self)[:4]}
        return Draws(**tensors, side=self.side)

    def part(self, chosen: slice | Tensor) -> Draws:
        """The draws of some of the images."""
        tensors = {f.name: getattr(self, f.name)[chosen] for f in fields(self)[:4]}
        return Draws(**tensors, side=self.side)


def draw(
    rng: np.random.Generator, settings: AugmentSettings, count: int, size: int, side: int
) -> Draws:
    """Draw for ``count`` images as albumentations' RandomCrop and RandomBrightnessContrast do.

    Args:
        rng: every number comes from it.
        settings: which transforms, and how strong.
        count: images of the batch.
        size: side of the prepared images.
        side: side of the crop; without ``settings.crop`` it is the central one.
    """
    if settings.crop:
        corner = rng.integers(0, size - side, (2, count), endpoint=True)
    else:
        corner = np.full((2, count), (size - side) // 2)
    contrast = 1 + rng.uniform(-settings.contrast, settings.contrast, count)
    brightness = 255 * rng.uniform(-settings.brightness, settings.brightness, count)
    top, left = torch.from_numpy(corner)
    return Draws(
        top,
        left,
        torch.from_numpy(contrast.astype(np.float32)),
        torch.from_numpy(brightness.astype(np.float32)),
        side,
    )


def augment(
    pixels: NDArray[np.uint8], rows: Sequence[int] | NDArray[np.integer], draws: Draws
) -> NDArray[np.uint8]:
    """Crop and change ``pixels[rows]`` with albumentations: uint8 ``[B, C, C]``.

    Of a memory-mapped ``pixels`` only the crops are read.
    """
    change, side = _brightness_contrast(), draws.side
    result = np.empty((len(rows), side, side), dtype=np.uint8)
    numbers = (draws.top, draws.left, draws.contrast, draws.brightness)
    each = zip(result, rows, *(values.tolist() for values in numbers), strict=True)
    for out, row, top, left, contrast, brightness in each:
        crop = pixels[row, top : top + side, left : left + side]
        if contrast == 1 and brightness == 0:
            out[:] = crop
        else:
            out[:] = change.apply(np.asarray(crop), alpha=contrast, beta=brightness)
    return result


def augment_on_device(images: Tensor, draws: Draws) -> Tensor:
    """Crop and change whole prepared images where they lie: uint8 ``[B, S, S]``, ``[B, C, C]``.

    Multiplying and adding stay two steps: one fused step rounds otherwise, so that a grey level
    would differ from the CPU's here and there.
    """
    device = images.device

    def there(values: Tensor) -> Tensor:
        return values.to(device, non_blocking=True).reshape(-1, 1, 1)

    steps = torch.arange(draws.side, device=device)
    rows, columns = there(draws.top) + steps[:, None], there(draws.left) + steps
    cut = images[torch.arange(len(images), device=device)[:, None, None], rows, columns]
    grey = cut.float().mul_(there(draws.contrast)).add_(there(draws.brightness))
    return grey.clamp_(0, 255).to(torch.uint8)


@cache
def _brightness_contrast() -> Any:
    # Unless it is asked not to, albumentations asks a server for its newest version at import.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    import albumentations
    import cv2

    cv2.setNumThreads(0)
    return albumentations.RandomBrightnessContrast(p=1.0)
