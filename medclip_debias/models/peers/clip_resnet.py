"""CLIP's ResNet (Radford et al. 2021, section 2.4): three-layer stem, blurred strides, attention.

Parameters carry the names of OpenAI's checkpoints, which open_clip's share.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.models.interface import Head
from medclip_debias.models.peers.settings import ClipResNetSettings


class ClipResNet(nn.Module):
    """Image to one vector by attention pooling, and one from each place of the last feature map.

    The whole-image vector is the published one. A region's vector is the value and output maps of
    the pooling, applied to the place alone, which is what the pooling averages (Zhou et al. 2022,
    "Extract free dense labels from CLIP", section 3.2): no loss trained single places for it.
    """

    def __init__(self, settings: ClipResNetSettings, dim: int) -> None:
        super().__init__()
        width = settings.width
        self.conv1 = nn.Conv2d(3, width // 2, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width // 2)
        self.conv2 = nn.Conv2d(width // 2, width // 2, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width // 2)
        self.conv3 = nn.Conv2d(width // 2, width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        channels = width
        for number, depth in enumerate(settings.layers):
            planes, blocks = width * 2**number, []
            for place in range(depth):
                stride = 2 if number and not place else 1
                blocks.append(_Bottleneck(channels, planes, stride))
                channels = 4 * planes
            self.add_module(f"layer{number + 1}", nn.Sequential(*blocks))
        self.attnpool = _AttentionPool(settings.image_size // 32, channels, settings.heads, dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised ``[B, 3, S, S]`` to regions ``[B, N, dim]`` and whole ``[B, dim]``."""
        x = images
        for number in (1, 2, 3):
            conv, norm = (self.get_submodule(f"{name}{number}") for name in ("conv", "bn"))
            x = F.relu(norm(conv(x)))
        x = F.avg_pool2d(x, 2)
        for number in (1, 2, 3, 4):
            x = self.get_submodule(f"layer{number}")(x)
        regions, whole = self.attnpool(x.flatten(2).transpose(1, 2))
        return regions, whole

    @property
    def layers(self) -> list[nn.Module]:
        """The stages, the lowest first."""
        return [self.get_submodule(f"layer{number}") for number in (1, 2, 3, 4)]

    @property
    def above(self) -> list[nn.Module]:
        """Nothing."""
        return []

    @property
    def heads(self) -> list[Head]:
        """The attention pooling, which maps into the shared space."""
        return [self.attnpool]


class _Bottleneck(nn.Module):
    """Convolutions of stride 1; where the stride is 2, an average pool goes before the last."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.downsample: nn.Module | None = None
        if stride > 1 or channels != 4 * planes:
            parts = [
                ("-1", nn.AvgPool2d(stride)),
                ("0", nn.Conv2d(channels, 4 * planes, 1, bias=False)),
                ("1", nn.BatchNorm2d(4 * planes)),
            ]
            self.downsample = nn.Sequential(OrderedDict(parts))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        if self.stride > 1:
            y = F.avg_pool2d(y, self.stride)
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class _AttentionPool(nn.Module):
    """One attention head set that asks with the mean of all places."""

    def __init__(self, side: int, width: int, heads: int, dim: int) -> None:
        super().__init__()
        self.heads = heads
        self.positional_embedding = nn.Parameter(torch.zeros(side**2 + 1, width))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj = nn.Linear(width, dim)

    def forward(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, N, width]`` to regions ``[B, N, dim]`` and their attended mean ``[B, dim]``."""
        regions = self.c_proj(self.v_proj(places))
        x = torch.cat([places.mean(dim=1, keepdim=True), places], dim=1)
        x = x + self.positional_embedding
        q, k, v = (
            layer(part).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, part in ((self.q_proj, x[:, :1]), (self.k_proj, x), (self.v_proj, x))
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        return regions, self.c_proj(mixed.transpose(1, 2).flatten(2))[:, 0]
