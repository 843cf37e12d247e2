"""Image towers of RadZero, CoNNS, CARZero, MGCA, CXR-CLIP, KAD and MedKLIP."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.models.backbones.dinov2 import Dinov2Regions
from medclip_debias.models.backbones.resnet import ResNetRegions
from medclip_debias.models.backbones.timm_trunk import timm_package
from medclip_debias.models.hf_config import hf_config
from medclip_debias.models.interface import Head
from medclip_debias.models.peers.settings import (
    Dinov2Settings,
    ResNetSettings,
    SwinSettings,
    ViTSettings,
)


class Dinov2Images(nn.Module):
    """A DINOv2 whose tokens pass through trained blocks, and a norm or a linear map.

    RadZero ends with a layer norm, which its sentences share; CoNNS with a map without bias.
    The whole image is the class token.
    """

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

    @property
    def layers(self) -> list[nn.Module]:
        """The blocks of DINOv2, and those after its last norm."""
        return [*self.encoder.layers, *self.blocks.layer]

    @property
    def above(self) -> list[nn.Module]:
        """Nothing but the head; the trunk's norm, below other blocks, goes with its stem."""
        return []

    @property
    def heads(self) -> list[Head]:
        """The norm or the map into the shared space."""
        return [self.head]


class _OnViT(nn.Module):
    """A tower on timm's plain vision transformer, whose tokens end with its last norm."""

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

    @property
    def layers(self) -> list[nn.Module]:
        """The blocks, the lowest first."""
        return list(self.model.blocks)

    @property
    def above(self) -> list[nn.Module]:
        """The last norm."""
        return [self.model.norm]

    @property
    def heads(self) -> list[Head]:
        """No map into the shared space."""
        return []


class CarzeroImages(_OnViT):
    """CARZero: a ViT's tokens after the last norm, standardised; the whole is the class token."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 3, S, S]`` to regions ``[B, N, D]`` and whole ``[B, D]``, each of zero mean."""
        x = self.model.forward_features(images)
        x = F.layer_norm(x, x.shape[-1:])
        return x[:, 1:], x[:, 0]


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


class MgcaViT(_OnViT):
    """MGCA on a vision transformer: the class token and the patches, each with a map."""

    def __init__(self, settings: ViTSettings, dim: int, hidden: int) -> None:
        super().__init__(settings)
        self.global_embed = Embedding(settings.width, hidden, dim)
        self.local_embed = Embedding(settings.width, hidden, dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 3, S, S]`` to regions ``[B, N, dim]`` and whole ``[B, dim]``."""
        x = self.model.forward_features(images)
        return self.local_embed(x[:, 1:]), self.global_embed(x[:, 0])


class MgcaResNet(nn.Module):
    """MGCA on a ResNet-50: regions from layer 3, the whole from the pooled layer 4."""

    def __init__(self, settings: ResNetSettings, dim: int) -> None:
        super().__init__()
        self.model = ResNetRegions("resnet50")
        self.global_embed = Embedding(self.model.width, settings.hidden, dim)
        self.local_embed = Embedding(self.model.width // 2, settings.hidden, dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 1, 299, 299]`` to regions ``[B, 361, dim]`` and whole ``[B, dim]``."""
        local = self.model.features_upto(images, 3)
        whole = self.global_embed(self.model.features_after(local, 3).mean(dim=(2, 3)))
        return self.local_embed(local.flatten(2).transpose(1, 2)), whole


class CxrClipResNet(nn.Module):
    """CXR-CLIP (You et al. 2023) on a ResNet-50: the mean region through a linear map.

    Each region through that map has the published vector as its mean, exactly. Three channels,
    since they are normalised by three means.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.model = ResNetRegions("resnet50")
        first = self.model.conv1
        self.model.conv1 = nn.Conv2d(3, first.out_channels, 7, stride=2, padding=3, bias=False)
        self.projection = nn.Linear(self.model.width, dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 3, S, S]`` to regions ``[B, N, dim]`` and their mean."""
        regions = self.projection(self.model(images).flatten(2).transpose(1, 2))
        return regions, regions.mean(dim=1)


class CxrClipSwin(nn.Module):
    """CXR-CLIP on a Swin transformer, which has no class token.

    The published code takes the first token all the same, that of the upper left corner, after
    four stages of attention. So that is the whole image here; other regions go through the same
    map, which no loss trained them for.
    """

    def __init__(self, settings: SwinSettings, dim: int) -> None:
        from transformers import SwinModel

        super().__init__()
        made = hf_config({**settings.config, "model_type": "swin"}, "peer.yaml", "image.config.")
        self.model = SwinModel(made, add_pooling_layer=False)
        self.projection = nn.Linear(self.model.num_features, dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """``[B, 1, S, S]`` to regions ``[B, N, dim]`` and the first of them."""
        regions = self.projection(self.model(images.expand(-1, 3, -1, -1)).last_hidden_state)
        return regions, regions[:, 0]


class QueriedResNet(nn.Module):
    """KAD and MedKLIP: a ResNet-50 up to a stage, and two layers for each region.

    Three channels, since they are normalised by three means.
    """

    def __init__(self, settings: ResNetSettings, dim: int) -> None:
        super().__init__()
        self.stage = settings.stage
        self.model = ResNetRegions("resnet50")
        first = self.model.conv1
        self.model.conv1 = nn.Conv2d(3, first.out_channels, 7, stride=2, padding=3, bias=False)
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


def class_token_first(regions: Tensor, whole: Tensor | None) -> Tensor:
    """Tokens ``[B, 1 + N, D]``; without ``whole`` the first of ``regions`` is it already."""
    return regions if whole is None else torch.cat([whole[:, None], regions], dim=1)
