"""Image towers on trunks of others: BioViL, BioViL-T, GLoRIA, MedCLIP, RAD-DINO.

Grey images enter one channel wide: the published first layers see the same channel three times,
which is one channel with the three summed filters (`checkpoint.summed_channels`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from medclip_debias.models.backbones.dinov2 import Dinov2Regions
from medclip_debias.models.backbones.resnet import ResNetRegions
from medclip_debias.models.hf_config import hf_config
from medclip_debias.models.interface import Head
from medclip_debias.models.peers.settings import (
    RadDinoSettings,
    ResNetSettings,
    SwinSettings,
)


class BioViLImages(nn.Module):
    """BioViL (Boecking et al. 2022): ResNet-50, then 1x1 conv, batch norm, ReLU, 1x1 conv.

    With ``settings.temporal`` it is BioViL-T (Bannur et al. 2023): the regions are mapped to 256
    channels, joined with 256 that hold what changed since a previous image, or a learned vector
    when there is none.
    """

    def __init__(self, settings: ResNetSettings, dim: int) -> None:
        super().__init__()
        self.encoder = ResNetRegions("resnet50")
        width = self.encoder.width
        self.backbone_to_vit: nn.Conv2d | None = None
        self.vit_pooler: TemporalPooler | None = None
        if settings.temporal:
            self.backbone_to_vit = nn.Conv2d(width, settings.temporal, 1, bias=False)
            self.missing_previous_emb = nn.Parameter(torch.zeros(1, settings.temporal, 1, 1))
            self.vit_pooler = TemporalPooler(settings.temporal, side=14)
            width = 2 * settings.temporal
        self.projector = nn.Sequential(
            nn.Conv2d(width, settings.hidden, 1, bias=False),
            nn.BatchNorm2d(settings.hidden),
            nn.ReLU(inplace=True),
            nn.Conv2d(settings.hidden, dim, 1),
        )

    def forward(self, images: Tensor, previous: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``[B, 1, S, S]``, ``previous`` alike, to regions ``[B, N, dim]`` and their mean."""
        x = self.encoder(images)
        if self.backbone_to_vit is not None and self.vit_pooler is not None:
            x = self.backbone_to_vit(x)
            if previous is None:
                change = self.missing_previous_emb.expand_as(x)
            else:
                change = self.vit_pooler(x, self.backbone_to_vit(self.encoder(previous)))
            x = torch.cat([x, change], dim=1)
        regions = self.projector(x).flatten(2).transpose(1, 2)
        return regions, regions.mean(dim=1)

    @property
    def layers(self) -> list[nn.Module]:
        """The stages, the lowest first."""
        return self.encoder.layers

    @property
    def above(self) -> list[nn.Module]:
        """What compares two images, in BioViL-T."""
        return [x for x in (self.backbone_to_vit, self.vit_pooler) if x is not None]

    @property
    def heads(self) -> list[Head]:
        """The map into the shared space."""
        return [self.projector]


class TemporalPooler(nn.Module):
    """Transformer of BioViL-T over the patches of two images: three blocks, eight heads.

    Every block adds the patches' places and the image's age to its normalised input.
    """

    def __init__(self, width: int, side: int, layers: int = 3, heads: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_TemporalBlock(width, heads) for _ in range(layers))
        self.norm_post = nn.LayerNorm(width, eps=1e-6)
        self.type_embed = nn.Parameter(torch.zeros(2, 1, width))
        self.register_buffer("place", sine_places(side, width), persistent=False)

    def forward(self, current: Tensor, previous: Tensor) -> Tensor:
        """``[B, width, side, side]`` twice to the current image's ``[B, width, side, side]``."""
        first, second = (x.flatten(2).transpose(1, 2) for x in (current, previous))
        place: Tensor = self.place  # type: ignore[assignment]
        age = torch.cat([place + self.type_embed[0], place + self.type_embed[1]])
        x = torch.cat([first, second], dim=1)
        for block in self.blocks:
            x = block(x, age)
        x = self.norm_post(x)[:, : first.shape[1]]
        return x.transpose(1, 2).reshape(current.shape)


class _TemporalBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, width), "fc2": nn.Linear(width, width)})

    def forward(self, x: Tensor, age: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x) + age)
        hidden = nn.functional.gelu(self.mlp["fc1"](self.norm2(x)))
        result: Tensor = x + self.mlp["fc2"](hidden)
        return result


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.proj_q, self.proj_k, self.proj_v = (
            nn.Linear(width, width, bias=False) for _ in range(3)
        )
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = [
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.proj_q, self.proj_k, self.proj_v)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*parts)
        result: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return result


def sine_places(side: int, width: int) -> Tensor:
    """Sine-cosine places ``[side * side, width]`` as in DETR: rows first, then columns.

    Half of the channels tell the row and half the column; a place runs from ``2 pi / side`` to
    ``2 pi``, and pairs of channels share the wavelength ``10000^(2 i / (width / 2))``.
    """
    half = width // 2
    position = torch.arange(1, side + 1, dtype=torch.float32) / (side + 1e-6) * 2 * math.pi
    wavelength = 10_000.0 ** (torch.arange(0, half, 2, dtype=torch.float32) / half)
    angle = position[:, None] / wavelength
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
    rows = waves[:, None].expand(side, side, half)
    columns = waves[None].expand(side, side, half)
    return torch.cat([rows, columns], dim=-1).reshape(side * side, width)


class _OnResNet(nn.Module):
    """A tower whose layers are those of its ResNet."""

    model: ResNetRegions

    @property
    def layers(self) -> list[nn.Module]:
        """The stages, the lowest first."""
        return self.model.layers

    @property
    def above(self) -> list[nn.Module]:
        """Nothing."""
        return []


class GloriaImages(_OnResNet):
    """GLoRIA (Huang et al. 2021): regions from layer 3, the whole from the pooled layer 4."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.model = ResNetRegions("resnet50")
        self.local_embedder = nn.Conv2d(self.model.width // 2, dim, 1, bias=False)
        self.global_embedder = nn.Linear(self.model.width, dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 1, 299, 299]`` to regions ``[B, 361, dim]`` and whole ``[B, dim]``."""
        local = self.model.features_upto(images, 3)
        whole = self.global_embedder(self.model.features_after(local, 3).mean(dim=(2, 3)))
        return self.local_embedder(local).flatten(2).transpose(1, 2), whole

    @property
    def heads(self) -> list[Head]:
        """The maps into the shared space, of regions and of the whole."""
        return [self.local_embedder, self.global_embedder]


class MedClipResNet(_OnResNet):
    """MedCLIP (Wang et al. 2022) on a ResNet-50 whose ``fc`` maps to the shared space.

    Pooling and ``fc`` are linear, so the published vector is the mean of the regions that ``fc``
    maps one by one: class activation mapping, exactly.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.model = ResNetRegions("resnet50")
        self.fc = nn.Linear(self.model.width, dim, bias=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 1, S, S]`` to regions ``[B, N, dim]`` and their mean."""
        regions = self.fc(self.model(images).flatten(2).transpose(1, 2))
        return regions, regions.mean(dim=1)

    @property
    def heads(self) -> list[Head]:
        """The map into the shared space."""
        return [self.fc]


class MedClipSwin(nn.Module):
    """MedCLIP on a Swin transformer; its pooling is a mean too, so the regions are exact."""

    def __init__(self, settings: SwinSettings, dim: int) -> None:
        from transformers import SwinModel

        super().__init__()
        self.model = SwinModel(
            hf_config({**settings.config, "model_type": "swin"}, "peer.yaml", "image.config."),
            add_pooling_layer=False,
        )
        self.projection_head = nn.Linear(self.model.num_features, dim, bias=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 1, S, S]`` to regions ``[B, N, dim]`` and their mean."""
        tokens = self.model(images.expand(-1, 3, -1, -1)).last_hidden_state
        regions = self.projection_head(tokens)
        return regions, regions.mean(dim=1)

    @property
    def layers(self) -> list[nn.Module]:
        """The stages, the lowest first."""
        return list(self.model.encoder.layers)

    @property
    def above(self) -> list[nn.Module]:
        """The last norm."""
        return [self.model.layernorm]

    @property
    def heads(self) -> list[Head]:
        """The map into the shared space."""
        return [self.projection_head]


class DinoImages(nn.Module):
    """RAD-DINO and its kin: the class token and the patches, both after the last norm."""

    def __init__(self, settings: RadDinoSettings) -> None:
        super().__init__()
        self.encoder = Dinov2Regions("dinov2", settings.config, "peer.yaml")

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 3, S, S]`` to regions ``[B, N, width]`` and the class token ``[B, width]``."""
        tokens = self.encoder.trunk(images).last_hidden_state
        return tokens[:, self.encoder.prefix :], tokens[:, 0]
