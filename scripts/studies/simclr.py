"""SimCLR on small images, under any of our objectives: what the image-only studies train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from medclip_debias.losses.objective import Objective

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Encoder:
    """A trained network: ``trunk`` gives features, ``head`` what the objective saw of them."""

    trunk: torch.nn.Module
    head: torch.nn.Module

    def features(self, images: Floats) -> Floats:
        """Features before the projection head: ``[n, F]``."""
        return self._run(images, projected=False)

    def embeddings(self, images: Floats) -> Floats:
        """Unit vectors after it: ``[n, 64]``."""
        return self._run(images, projected=True)

    def _run(self, images: Floats, *, projected: bool) -> Floats:
        import torch
        import torch.nn.functional as F

        self.trunk.eval()
        with torch.no_grad():
            found = self.trunk(torch.from_numpy(images))
            if projected:
                found = F.normalize(self.head(found), dim=1)
        self.trunk.train()
        result: Floats = found.numpy()
        return result


def fit(
    images: Floats,
    objective: Objective,
    *,
    steps: int,
    batch: int,
    temperature: float,
    seed: int,
    fields: Mapping[str, NDArray[Any]] | None = None,
    watch: Callable[[int, Encoder], None] | None = None,
    trunk: torch.nn.Module | None = None,
    views: Callable[[Tensor, torch.Generator], Tensor] | None = None,
) -> Encoder:
    """Train SimCLR with Adam, learning rate 1e-3 and a cosine to 0.

    Args:
        images: ``[n, C, H, W]`` in 0..1.
        objective: of two-view batches.
        steps: of Adam.
        batch: images a step, sampled without replacement within it.
        temperature: tau; the similarity's scale is ``1 / tau``.
        seed: of everything.
        fields: what the objective reads beside the similarities, one entry an image.
        watch: called after every step, with its number from 1.
        trunk: another network than the one that fits the images' shape.
        views: another random view than `view`.
    """
    import torch

    from medclip_debias.losses import TwoViewBatch

    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    trunk = trunk or _trunk(images.shape[1:])
    views = views or view
    data = torch.from_numpy(images)
    width = trunk(data[:2]).shape[1]
    head = torch.nn.Sequential(
        torch.nn.Linear(width, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)
    )
    encoder = Encoder(trunk, head)
    tables = {name: torch.from_numpy(values) for name, values in (fields or {}).items()}
    parameters = [*trunk.parameters(), *head.parameters(), *objective.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(1, steps + 1):
        rows = torch.randperm(len(data), generator=generator)[:batch]
        first, second = (head(trunk(views(data[rows], generator))) for _ in range(2))
        own = {name: values[rows] for name, values in tables.items()}
        pairs = TwoViewBatch.from_views(first, second, 1 / temperature, **own)
        optimizer.zero_grad()
        objective(pairs).loss.backward()
        optimizer.step()
        schedule.step()
        if watch:
            watch(step, encoder)
    return encoder


def view(images: Tensor, generator: torch.Generator) -> Tensor:
    """One random view of each image: shift by up to an eighth, contrast, noise.

    No mirror image: it would make other digits of some.
    """
    import torch
    import torch.nn.functional as F

    n, _, height, width = images.shape
    reach = height // 8
    padded = F.pad(images, (reach,) * 4)
    top, left = torch.randint(0, 2 * reach + 1, (2, n), generator=generator)
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    places = torch.arange(n)[:, None, None]
    cut = padded.movedim(1, -1)[places, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
    contrast = 0.6 + 0.8 * torch.rand((n, 1, 1, 1), generator=generator)
    return cut * contrast + 0.15 * torch.randn(cut.shape, generator=generator)


def _trunk(shape: tuple[int, ...]) -> torch.nn.Module:
    """Two layers for 8 x 8 digits, resnet_tiny for grey images, a ResNet-18 for CIFAR-10."""
    from torch import nn

    if shape[1] <= 8:
        inputs = shape[0] * shape[1] * shape[2]
        return nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
        )
    if shape[0] == 1:
        from medclip_debias.models.backbones.resnet import ResNetRegions

        regions = ResNetRegions("resnet_tiny")
        return nn.Sequential(regions, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    from torchvision.models import resnet18

    network = resnet18(weights=None)
    network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    network.fc = nn.Identity()
    return network
