"""Image towers that open_clip takes from timm: ConvNeXt, Swin, EVA, and vision transformers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from medclip_debias.errors import UserError, explained
from medclip_debias.models.backbones.timm_trunk import trunk_kind, trunk_layers, trunk_stride
from medclip_debias.models.interface import Head
from medclip_debias.models.peers.settings import TimmSettings


def tower_stride(name: str, where: str) -> int:
    """Input pixels of a region of timm's network ``name``.

    Raises:
        UserError: timm is not there, or the places of its regions are not known.
    """
    kind = trunk_kind(name, where)
    with torch.device("meta"):
        return trunk_stride(_trunk(name), kind, f"{where}: '{name}'")


def _trunk(name: str, **options: Any) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, **options)


class TimmTower(nn.Module):
    """A trunk of timm, pooled and mapped as open_clip's ``TimmModel`` does.

    A place's vector is what pooling and map make of an image that is this place everywhere: the
    whole's is their mean where both are linear (Swin), and an approximation for the others, which
    have a norm or an attention after the mean, or a class token.
    """

    def __init__(self, settings: TimmSettings, dim: int) -> None:
        super().__init__()
        s = settings
        where = f"the image tower '{s.name}'"
        self.kind = trunk_kind(s.name, where)
        with explained(f"{where}: timm cannot build it with pool '{s.pool}'", Exception):
            if s.proj in ("linear", "mlp"):
                self.trunk = _trunk(s.name)
                self.trunk.reset_classifier(0, **({"global_pool": s.pool} if s.pool else {}))
            else:
                classes = 0 if s.proj == "none" else dim
                self.trunk = _trunk(s.name, num_classes=classes, global_pool=s.pool)
        width = int(self.trunk.num_features)
        parts: list[tuple[str, nn.Module]] = []
        if s.proj == "linear":
            parts = [("proj", nn.Linear(width, dim, bias=s.bias))]
        elif s.proj == "mlp":
            parts = [("mlp", _Mlp(width, dim, s.bias))]
        elif s.proj == "none" and width != dim:
            raise UserError(f"{where}: is {width} wide and not mapped to {dim} dimensions.")
        self.head = nn.Sequential(OrderedDict(parts))
        self.side = s.image_size // s.stride
        size = getattr(getattr(self.trunk, "patch_embed", None), "img_size", None)
        if size is not None and tuple(size) != (s.image_size,) * 2:
            raise UserError(
                f"{where}: reads {size[0]} pixels in timm, and the configuration says "
                f"image_size {s.image_size}."
            )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised ``[B, 3, S, S]`` to regions ``[B, N, dim]`` and whole ``[B, dim]``."""
        x = self.trunk.forward_features(images)
        whole = self._mapped(x)
        if self.kind == "convnext":
            places = x.flatten(2).transpose(1, 2)
        elif self.kind == "swin_transformer":
            places = x.flatten(1, 2)
        else:
            places = x[:, self.trunk.num_prefix_tokens :]
        batch, count, width = places.shape
        alone = places.reshape(batch * count, width)
        if self.kind == "convnext":
            alone = alone[:, :, None, None]
        elif self.kind == "swin_transformer":
            alone = alone[:, None, None]
        else:
            alone = alone[:, None].expand(-1, 1 + self.trunk.num_prefix_tokens, -1)
        return self._mapped(alone).unflatten(0, (batch, count)), whole

    @property
    def layers(self) -> list[nn.Module]:
        """Transformer blocks of ViT and EVA, stages of Swin and ConvNeXt."""
        return trunk_layers(self.trunk, self.kind)

    @property
    def above(self) -> list[nn.Module]:
        """What of timm's network comes after the last layer, but for the map."""
        return [part for part in self._after if part not in self.heads]

    @property
    def heads(self) -> list[Head]:
        """The map into the shared space, open_clip's or timm's own."""
        own = [self.head] if list(self.head.parameters()) else []
        return [*own] or [self._after[-1]]

    @property
    def _after(self) -> list[nn.Module]:
        names = ("norm_pre", "norm", "attn_pool", "fc_norm", "head")
        parts = [getattr(self.trunk, name, None) for name in names]
        return [p for p in parts if isinstance(p, nn.Module) and list(p.parameters())]

    def _mapped(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.trunk.forward_head(x))
        return result


class _Mlp(nn.Module):
    """Two layers, the middle twice as wide as the space."""

    def __init__(self, width: int, dim: int, bias: bool) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 2 * dim), nn.Linear(2 * dim, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc2(nn.functional.gelu(self.fc1(x)))
        return result
