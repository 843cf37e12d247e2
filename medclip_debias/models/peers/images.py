"""Image towers on ResNet-50, Swin, DINOv2 and timm's ViT; those of CLIP's kin: `..clip_towers`.

Where a network was trained on grey images in three equal channels, it reads one channel, whose
first filters are the sum of the three.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.errors import UserError
from medclip_debias.models.backbones.dinov2 import Dinov2Regions
from medclip_debias.models.backbones.resnet import ResNetRegions
from medclip_debias.models.backbones.timm_trunk import timm_package
from medclip_debias.models.checkpoint import layers_in, shape_of
from medclip_debias.models.limits import hf_config
from medclip_debias.models.peers.clip_towers import HfClipImages, OpenClipImages
from medclip_debias.models.peers.settings import PeerSettings
from medclip_debias.models.tower import Tower

State = Mapping[str, Tensor]
"""A peer's tensors, by the names that they have here."""
_TRUNK = "image.encoder.trunk."
PATCHES = {
    "swin": "image.model.embeddings.patch_embeddings.projection.weight",
    "dinov2": f"{_TRUNK}embeddings.patch_embeddings.projection.weight",
    "vit": "image.model.patch_embed.proj.weight",
}
"""The filters of each tower's patches."""


def rows(state: State, name: str) -> int:
    """The first size of a tensor."""
    return shape_of(state, name)[0]


class BioViLImages(Tower):
    """BioViL (Boecking et al. 2022): ResNet-50 and a projector of 1x1 convolutions.

    BioViL-T's (Bannur et al. 2023) regions are joined with what changed since a previous image, or
    with a learned vector when there is none.
    """

    layer_lists = ("encoder.layers",)
    after_layers = ("backbone_to_vit", "vit_pooler")
    into_space = ("projector",)
    stride, first_centre = 32, 0.5

    def __init__(self, peer: PeerSettings, state: State) -> None:
        super().__init__()
        self.encoder = ResNetRegions("resnet50")
        width = self.encoder.width
        self.backbone_to_vit: nn.Conv2d | None = None
        self.vit_pooler: TemporalPooler | None = None
        if "image.backbone_to_vit.weight" in state:
            temporal = rows(state, "image.backbone_to_vit.weight")
            self.backbone_to_vit = nn.Conv2d(width, temporal, 1, bias=False)
            self.missing_previous_emb = nn.Parameter(torch.zeros(1, temporal, 1, 1))
            self.vit_pooler = TemporalPooler(temporal, side=14)
            width = 2 * temporal
        hidden = rows(state, "image.projector.0.weight")
        self.projector = nn.Sequential(
            nn.Conv2d(width, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, peer.dim, 1),
        )

    def forward(self, images: Tensor, previous: Tensor | None = None) -> tuple[Tensor, Tensor]:
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

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_TemporalBlock(width) for _ in range(3))
        self.norm_post = nn.LayerNorm(width, eps=1e-6)
        self.type_embed = nn.Parameter(torch.zeros(2, 1, width))
        self.register_buffer("place", sine_places(side, width), persistent=False)

    def forward(self, current: Tensor, previous: Tensor) -> Tensor:
        first, second = (x.flatten(2).transpose(1, 2) for x in (current, previous))
        place: Tensor = self.place  # type: ignore[assignment]
        age = torch.cat([place + self.type_embed[0], place + self.type_embed[1]])
        x = torch.cat([first, second], dim=1)
        for block in self.blocks:
            x = block(x, age)
        return self.norm_post(x)[:, : first.shape[1]].transpose(1, 2).reshape(current.shape)


class _TemporalBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        maps = {f"proj_{part}": nn.Linear(width, width, bias=False) for part in "qkv"}
        self.attn = nn.ModuleDict({**maps, "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({name: nn.Linear(width, width) for name in ("fc1", "fc2")})

    def forward(self, x: Tensor, age: Tensor) -> Tensor:
        y = self.norm1(x) + age
        parts = (self.attn[f"proj_{part}"](y).unflatten(-1, (8, -1)) for part in "qkv")
        mixed = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts))
        x = x + self.attn["proj"](mixed.transpose(1, 2).flatten(2))
        return x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))


def sine_places(side: int, width: int) -> Tensor:
    """Sine-cosine places ``[side * side, width]`` as in DETR: channels of rows, then of columns."""
    half = width // 2
    position = torch.arange(1, side + 1, dtype=torch.float32) / (side + 1e-6) * 2 * math.pi
    wavelength = 10_000.0 ** (torch.arange(0, half, 2, dtype=torch.float32) / half)
    angle = position[:, None] / wavelength
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
    rows = waves[:, None].expand(side, side, half)
    columns = waves[None].expand(side, side, half)
    return torch.cat([rows, columns], dim=-1).reshape(side * side, width)


class Embedding(nn.Module):
    """MGCA's map: two layers with batch norm after each, the second norm without learned part.

    ``name`` is its place in ``state``.
    """

    def __init__(self, width: int, state: State, name: str, dim: int) -> None:
        super().__init__()
        hidden = rows(state, f"{name}.head.0.weight")
        self.head = nn.Sequential(
            nn.Linear(width, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, dim),
            nn.BatchNorm1d(dim, affine=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(0, -2)).unflatten(0, x.shape[:-1])


class ResNetImages(Tower):
    """ResNet-50 whose regions, and whose whole image where that has a map of its own, are mapped.

    GLoRIA, AFLoc and MGCA map layer 3's regions, and the mean of layer 4. Of MedCLIP (Wang et al.
    2022) and CXR-CLIP (You et al. 2023) the map is linear, so that the regions' mean is the
    published vector. KAD and MedKLIP have two layers and score by the regions alone.
    """

    layer_lists = ("model.layers",)
    first_centre = 0.5

    def __init__(self, peer: PeerSettings, state: State) -> None:
        super().__init__()
        kind, dim = peer.kind, peer.dim
        colours = kind in ("cxr_clip", "kad", "medklip")
        self.model = ResNetRegions("resnet50", 3 if colours else 1)
        width = self.model.width
        self.two_maps = kind in ("gloria", "afloc", "mgca")
        shallow = kind in ("kad", "medklip") and not any(".layer4." in key for key in state)
        self.stage = 3 if self.two_maps or shallow else 4
        self.stride = 16 if self.stage == 3 else 32
        inside = width // 2 if self.stage == 3 else width
        maps: dict[str, nn.Module]
        if kind == "mgca":
            maps = {"local_embed": Embedding(inside, state, "image.local_embed", dim)}
            maps["global_embed"] = Embedding(width, state, "image.global_embed", dim)
        elif self.two_maps:
            maps = {"local_embedder": nn.Conv2d(inside, dim, 1, bias=False)}
            maps["global_embedder"] = nn.Linear(width, dim)
        elif kind in ("kad", "medklip"):
            maps = {"res_l1": nn.Linear(inside, inside), "res_l2": nn.Linear(inside, dim)}
        else:
            bias = kind != "medclip"
            maps = {"projection" if bias else "fc": nn.Linear(width, dim, bias=bias)}
        if shallow:
            self.model.layer4 = nn.Identity()
        for name, module in maps.items():
            self.add_module(name, module)
        self.into_space = tuple(maps)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        first, last = (self.get_submodule(name) for name in (self.into_space * 2)[:2])
        x = self.model.features_upto(images, self.stage)
        places = x.flatten(2).transpose(1, 2)
        if self.two_maps:
            whole = last(self.model.features_after(x, 3).mean(dim=(2, 3)))
            if isinstance(first, nn.Conv2d):
                return first(x).flatten(2).transpose(1, 2), whole
            return first(places), whole
        regions = last(F.relu(first(places)) if first is not last else places)
        return regions, regions.mean(dim=1)


class SwinImages(Tower):
    """MedCLIP and CXR-CLIP on a Swin transformer, which has no class token.

    MedCLIP's pooling is a mean, so its regions are exact. CXR-CLIP's code takes the first token,
    that of the upper left corner; the other regions go through the same map, untrained.
    """

    layer_lists = ("model.encoder.layers",)
    after_layers = ("model.layernorm",)
    stride, first_centre = 32, 16.0

    def __init__(self, peer: PeerSettings, state: State) -> None:
        from transformers import AutoModel

        super().__init__()
        width, _, _, patch = shape_of(state, PATCHES["swin"])
        stages = range(layers_in(state, r"^image\.model\.encoder\.layers\.(\d+)\."))
        blocks = "image.model.encoder.layers.{}.blocks."
        table = f"{blocks}0.attention.relative_position_bias.relative_position_bias_table"
        depths = [rf"^{re.escape(blocks.format(n))}(\d+)\." for n in stages]
        fields = {
            "model_type": "swin",
            "embed_dim": width,
            "depths": [layers_in(state, pattern) for pattern in depths],
            "num_heads": [shape_of(state, table.format(n))[1] for n in stages],
            "window_size": 7,  # as published
            "image_size": 224,
            "patch_size": patch,
        }
        config = hf_config(fields, "its image tower", "")
        self.model: Any = AutoModel.from_config(config, add_pooling_layer=False)
        self.medclip = peer.kind == "medclip"
        self.into_space = ("projection_head" if self.medclip else "projection",)
        linear = nn.Linear(self.model.num_features, peer.dim, bias=not self.medclip)
        self.add_module(self.into_space[0], linear)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.model(images.expand(-1, 3, -1, -1)).last_hidden_state
        regions = self.get_submodule(self.into_space[0])(tokens)
        return regions, regions.mean(dim=1) if self.medclip else regions[:, 0]


class DinoImages(Tower):
    """Class token and patches of a DINOv2 after its last norm, as of RAD-DINO.

    Of RadZero (Park et al. 2025) and CoNNS they pass through more blocks, and a layer norm, which
    RadZero's sentences share, or a map without bias.
    """

    layer_lists: tuple[str, ...] = ("encoder.layers",)

    def __init__(self, peer: PeerSettings, state: State) -> None:
        from transformers import Dinov2Config
        from transformers.models.dinov2.modeling_dinov2 import Dinov2Encoder

        super().__init__()
        published = peer.image.kind == "rad_dino"
        sizes = peer.image.config if published else dinov2_sizes(state)
        self.encoder = Dinov2Regions("dinov2", sizes, "its image tower")
        if self.encoder.channels != 3:
            raise UserError(f"its DINOv2 reads {self.encoder.channels} channels; 3 are read.")
        width, self.stride = self.encoder.width, self.encoder.stride
        self.first_centre = self.stride / 2
        if published:
            return
        blocks = "image.blocks.layer."
        self.layer_lists, self.into_space = ("encoder.layers", "blocks.layer"), ("head",)
        config = Dinov2Config(
            hidden_size=width,
            num_hidden_layers=max(layers_in(state, rf"^{re.escape(blocks)}(\d+)\."), 1),
            num_attention_heads=max(width // 64, 1),
            mlp_ratio=rows(state, f"{blocks}0.mlp.fc1.weight") // width,
        )
        config._attn_implementation = "sdpa"
        self.blocks: Any = Dinov2Encoder(config)
        self.head = norm_or_linear(state, "image.head.weight", width, peer.dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.encoder.trunk(images.expand(-1, 3, -1, -1)).last_hidden_state
        if self.into_space:
            x = self.head(self.blocks(x).last_hidden_state)
        return x[:, self.encoder.prefix :], x[:, 0]


def dinov2_sizes(state: State) -> dict[str, Any]:
    """transformers' configuration of a DINOv2; heads of 64."""
    width, channels, _, patch = shape_of(state, PATCHES["dinov2"])
    embeddings, layer = f"{_TRUNK}embeddings.", f"{_TRUNK}encoder.layer."
    side = round((shape_of(state, f"{embeddings}position_embeddings")[1] - 1) ** 0.5)
    return {
        "hidden_size": width,
        "num_hidden_layers": layers_in(state, rf"^{re.escape(layer)}(\d+)\."),
        "num_attention_heads": max(width // 64, 1),
        "mlp_ratio": rows(state, f"{layer}0.mlp.fc1.weight") // width,
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "use_mask_token": f"{embeddings}mask_token" in state,
    }


def norm_or_linear(state: State, name: str, width: int, dim: int) -> nn.Module:
    """The last step of RadZero's towers, a norm, and of CoNNS's, a map, by the weight ``name``."""
    is_norm = len(shape_of(state, name)) == 1
    return nn.LayerNorm(width) if is_norm else nn.Linear(width, dim, bias=False)


class PlainViT(Tower):
    """timm's ViT, with heads of 64.

    Of CARZero (Lai et al. 2024) the tokens are standardised, of MGCA each is mapped.
    """

    layer_lists = ("model.blocks",)
    after_layers = ("model.norm",)

    def __init__(self, peer: PeerSettings, state: State) -> None:
        timm_package()
        from timm.models.vision_transformer import VisionTransformer

        super().__init__()
        width, _, _, patch = shape_of(state, PATCHES["vit"])
        side = round((shape_of(state, "image.model.pos_embed")[1] - 1) ** 0.5)
        self.model: Any = VisionTransformer(
            img_size=side * patch,
            patch_size=patch,
            embed_dim=width,
            depth=layers_in(state, r"^image\.model\.blocks\.(\d+)\."),
            num_heads=max(width // 64, 1),
            mlp_ratio=rows(state, "image.model.blocks.0.mlp.fc1.weight") / width,
            num_classes=0,
        )
        self.stride, self.first_centre = patch, patch / 2
        if peer.kind == "mgca":
            self.into_space = ("global_embed", "local_embed")
            self.global_embed = Embedding(width, state, "image.global_embed", peer.dim)
            self.local_embed = Embedding(width, state, "image.local_embed", peer.dim)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.model.forward_features(images)
        if self.into_space:
            return self.local_embed(x[:, 1:]), self.global_embed(x[:, 0])
        x = F.layer_norm(x, x.shape[-1:])
        return x[:, 1:], x[:, 0]


_TOWERS: Mapping[str, Callable[[PeerSettings, State], Tower]] = {
    "open_clip": OpenClipImages,
    "hf_clip": HfClipImages,
    "rad_dino": DinoImages,
    "dinov2": DinoImages,
    "swin": SwinImages,
    "vit": PlainViT,
}


def image_tower(peer: PeerSettings, state: State) -> Tower:
    """The image tower of a peer, as large as the tensors of ``state``, with weights at random."""
    biovil = peer.kind in ("biovil", "biovil_t")
    return _TOWERS.get(peer.image.kind, BioViLImages if biovil else ResNetImages)(peer, state)
