"""Image towers on ResNet, Swin, DINOv2 and timm's ViT; those of CLIP's kin are in `..clip_towers`.

Where a network was trained on grey images in three equal channels, it reads one channel, whose
first filters are the sum of the three (`..checkpoint.summed_channels`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.models.backbones.dinov2 import Dinov2Regions
from medclip_debias.models.backbones.resnet import ResNetRegions
from medclip_debias.models.backbones.timm_trunk import timm_package
from medclip_debias.models.hf_config import hf_config
from medclip_debias.models.peers.settings import (
    Dinov2Settings,
    Kind,
    RadDinoSettings,
    ResNetSettings,
    SwinSettings,
    ViTSettings,
)
from medclip_debias.models.tower import Tower


class BioViLImages(Tower):
    """BioViL (Boecking et al. 2022): ResNet-50, then 1x1 conv, batch norm, ReLU, 1x1 conv.

    With ``settings.temporal`` it is BioViL-T (Bannur et al. 2023): the regions are mapped to 256
    channels, joined with 256 that hold what changed since a previous image, or a learned vector
    when there is none.
    """

    layer_lists = ("encoder.layers",)
    after_layers = ("backbone_to_vit", "vit_pooler")
    into_space = ("projector",)

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


class _OnResNet(Tower):
    """A tower whose layers are those of its ResNet-50."""

    layer_lists = ("model.layers",)

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.model = ResNetRegions("resnet50", channels)


class GloriaImages(_OnResNet):
    """GLoRIA (Huang et al. 2021): regions from layer 3, the whole from the pooled layer 4."""

    into_space = ("local_embedder", "global_embedder")

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.local_embedder = nn.Conv2d(self.model.width // 2, dim, 1, bias=False)
        self.global_embedder = nn.Linear(self.model.width, dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 1, 299, 299]`` to regions ``[B, 361, dim]`` and whole ``[B, dim]``."""
        local = self.model.features_upto(images, 3)
        whole = self.global_embedder(self.model.features_after(local, 3).mean(dim=(2, 3)))
        return self.local_embedder(local).flatten(2).transpose(1, 2), whole


class MgcaResNet(_OnResNet):
    """MGCA (Wang et al. 2022): as GLoRIA, with `Embedding` for both maps."""

    into_space = ("local_embed", "global_embed")

    def __init__(self, settings: ResNetSettings, dim: int) -> None:
        super().__init__()
        self.global_embed = Embedding(self.model.width, settings.hidden, dim)
        self.local_embed = Embedding(self.model.width // 2, settings.hidden, dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 1, 299, 299]`` to regions ``[B, 361, dim]`` and whole ``[B, dim]``."""
        local = self.model.features_upto(images, 3)
        whole = self.global_embed(self.model.features_after(local, 3).mean(dim=(2, 3)))
        return self.local_embed(local.flatten(2).transpose(1, 2)), whole


class Embedding(nn.Module):
    """MGCA's map: two layers with batch norm after each, the second norm without learned part."""

    def __init__(self, width: int, hidden: int, dim: int) -> None:
        super().__init__()
        self.head = nn.Sequential(
            nn.Linear(width, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, dim),
            nn.BatchNorm1d(dim, affine=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[..., width]`` to ``[..., dim]``."""
        result: Tensor = self.head(x.flatten(0, -2)).unflatten(0, x.shape[:-1])
        return result


class MeanOfResNet(_OnResNet):
    """MedCLIP (Wang et al. 2022) and CXR-CLIP (You et al. 2023) on a ResNet-50.

    Pooling and map are linear, so the published vector is the mean of the regions that are mapped
    one by one: class activation mapping, exactly. CXR-CLIP normalises three channels by three
    means, so that it reads three.
    """

    def __init__(self, kind: Kind, dim: int) -> None:
        medclip = kind == "medclip"
        super().__init__(1 if medclip else 3)
        self.into_space = ("fc" if medclip else "projection",)
        self.add_module(self.into_space[0], nn.Linear(self.model.width, dim, bias=not medclip))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 1 or 3, S, S]`` to regions ``[B, N, dim]`` and their mean."""
        features = self.model(images).flatten(2).transpose(1, 2)
        regions = self.get_submodule(self.into_space[0])(features)
        return regions, regions.mean(dim=1)


class SwinImages(Tower):
    """MedCLIP and CXR-CLIP on a Swin transformer, which has no class token.

    MedCLIP's pooling is a mean, so its regions are exact. CXR-CLIP's code takes the first token,
    that of the upper left corner, after four stages of attention; so that is the whole image, and
    the other regions go through the same map, which no loss trained them for.
    """

    layer_lists = ("model.encoder.layers",)
    after_layers = ("model.layernorm",)

    def __init__(self, settings: SwinSettings, kind: Kind, dim: int) -> None:
        from transformers import SwinModel

        super().__init__()
        made = hf_config({**settings.config, "model_type": "swin"}, "peer.yaml", "image.config.")
        self.model = SwinModel(made, add_pooling_layer=False)
        self.medclip = kind == "medclip"
        self.into_space = ("projection_head" if self.medclip else "projection",)
        linear = nn.Linear(self.model.num_features, dim, bias=not self.medclip)
        self.add_module(self.into_space[0], linear)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 1, S, S]`` to regions ``[B, N, dim]`` and whole ``[B, dim]``."""
        tokens = self.model(images.expand(-1, 3, -1, -1)).last_hidden_state
        regions = self.get_submodule(self.into_space[0])(tokens)
        return regions, regions.mean(dim=1) if self.medclip else regions[:, 0]


class QueriedResNet(_OnResNet):
    """KAD and MedKLIP: a ResNet-50 up to a stage, and two layers for each region.

    Three channels, since they are normalised by three means.
    """

    into_space = ("res_l1", "res_l2")

    def __init__(self, settings: ResNetSettings, dim: int) -> None:
        super().__init__(channels=3)
        self.stage = settings.stage
        width = self.model.width
        if self.stage == 3:
            width //= 2
            self.model.layer4 = nn.Identity()
        self.res_l1, self.res_l2 = nn.Linear(width, width), nn.Linear(width, dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 3, S, S]`` to regions ``[B, N, dim]`` and their mean."""
        x = self.model.features_upto(images, self.stage).flatten(2).transpose(1, 2)
        regions = self.res_l2(F.relu(self.res_l1(x)))
        return regions, regions.mean(dim=1)


class DinoImages(Tower):
    """RAD-DINO and its kin: the class token and the patches, both after the last norm."""

    layer_lists = ("encoder.layers",)

    def __init__(self, settings: RadDinoSettings) -> None:
        super().__init__()
        self.encoder = Dinov2Regions("dinov2", settings.config, "peer.yaml")

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 3, S, S]`` to regions ``[B, N, width]`` and the class token ``[B, width]``."""
        tokens = self.encoder.trunk(images).last_hidden_state
        return tokens[:, self.encoder.prefix :], tokens[:, 0]


class Dinov2Images(Tower):
    """A DINOv2 whose tokens pass through trained blocks, and a norm or a linear map.

    RadZero (Park et al. 2025) ends with a layer norm, which its sentences share; CoNNS with a map
    without bias. The whole image is the class token. The trunk's norm, below other blocks, is
    trained with its stem.
    """

    layer_lists = ("encoder.layers", "blocks.layer")
    into_space = ("head",)

    def __init__(self, settings: Dinov2Settings, dim: int) -> None:
        from transformers import Dinov2Config
        from transformers.models.dinov2.modeling_dinov2 import Dinov2Encoder

        super().__init__()
        self.encoder = Dinov2Regions("dinov2", settings.config, "peer.yaml")
        width = self.encoder.width
        made = Dinov2Config(
            hidden_size=width,
            num_hidden_layers=settings.blocks,
            num_attention_heads=settings.block_heads,
            mlp_ratio=settings.block_ratio,
        )
        made._attn_implementation = "sdpa"
        self.blocks: Any = Dinov2Encoder(made)
        self.head: nn.Module = (
            nn.LayerNorm(width) if settings.head == "norm" else nn.Linear(width, dim, bias=False)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 1 or 3, S, S]`` to regions ``[B, N, dim]`` and whole ``[B, dim]``."""
        x = self.encoder.trunk(images.expand(-1, 3, -1, -1)).last_hidden_state
        x = self.head(self.blocks(x).last_hidden_state)
        return x[:, 1:], x[:, 0]


class CarzeroImages(Tower):
    """CARZero (Lai et al. 2024): a ViT's tokens after the last norm, standardised."""

    layer_lists = ("model.blocks",)
    after_layers = ("model.norm",)

    def __init__(self, settings: ViTSettings) -> None:
        timm_package()
        from timm.models.vision_transformer import VisionTransformer

        super().__init__()
        self.model: Any = VisionTransformer(
            img_size=settings.image_size,
            patch_size=settings.patch,
            embed_dim=settings.width,
            depth=settings.layers,
            num_heads=settings.heads,
            mlp_ratio=settings.hidden / settings.width,
            num_classes=0,
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 3, S, S]`` to regions ``[B, N, D]`` and whole ``[B, D]``, each of zero mean."""
        x = self.model.forward_features(images)
        x = F.layer_norm(x, x.shape[-1:])
        return x[:, 1:], x[:, 0]


class MgcaViT(CarzeroImages):
    """MGCA on the same: the class token and the patches, each with a map."""

    into_space = ("global_embed", "local_embed")

    def __init__(self, settings: ViTSettings, dim: int, hidden: int) -> None:
        super().__init__(settings)
        self.global_embed = Embedding(settings.width, hidden, dim)
        self.local_embed = Embedding(settings.width, hidden, dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 3, S, S]`` to regions ``[B, N, dim]`` and whole ``[B, dim]``."""
        x = self.model.forward_features(images)
        return self.local_embed(x[:, 1:]), self.global_embed(x[:, 0])
