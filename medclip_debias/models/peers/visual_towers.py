"""Image towers in open_clip's names: which they are, their sizes read off the tensors, and renamed.

CLIP's vision transformer and its variants, CLIP's ResNets, timm's plain vision transformers and
SigLIP's, and through timm itself ConvNeXt, Swin and EVA.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from medclip_debias.errors import UserError
from medclip_debias.models.peers.checkpoint import Names, layers_in, renamed, shape_of
from medclip_debias.models.peers.settings import (
    ClipResNetSettings,
    TimmSettings,
    ViTSettings,
)
from medclip_debias.models.peers.timm_tower import tower_stride

State = Mapping[str, Tensor]

BUFFERS = r"position_ids$|relative_position_index$|attn_mask$"
LEFT_OUT: Names = (
    (r"^(logit_scale|logit_bias|input_resolution|context_length|vocab_size)$", None),
    (BUFFERS, None),
    (r"^text_decoder\.", None),
)
CLIP_IMAGE: Names = ((r"^visual\.", "image."),)
POOLED_IMAGE: Names = (
    (r"^visual\.trunk\.attn_pool\.latent$", "image.attn_pool.probe"),
    (r"^visual\.trunk\.attn_pool\.in_proj_", "image.attn_pool.attn.in_proj_"),
    (r"^visual\.trunk\.attn_pool\.proj\.", "image.attn_pool.attn.out_proj."),
    (r"^visual\.trunk\.attn_pool\.norm\.", "image.attn_pool.ln."),
    (r"^visual\.trunk\.attn_pool\.mlp\.fc1\.", "image.attn_pool.mlp.c_fc."),
    (r"^visual\.trunk\.attn_pool\.mlp\.fc2\.", "image.attn_pool.mlp.c_proj."),
)


def timm_names(prefix: str, to: str) -> Names:
    """Names of timm's plain vision transformer below the pattern ``prefix``, as CLIP's."""
    block = rf"{to}transformer.resblocks.\1"
    return (
        (rf"^{prefix}cls_token$", f"{to}class_embedding"),
        (rf"^{prefix}pos_embed$", f"{to}positional_embedding"),
        (rf"^{prefix}patch_embed\.proj\.", f"{to}conv1."),
        (rf"^{prefix}norm\.", f"{to}ln_post."),
        (rf"^{prefix}blocks\.(\d+\.)norm(\d)\.", block + r"ln_\2."),
        (rf"^{prefix}blocks\.(\d+\.attn\.)qkv\.", block + "in_proj_"),
        (rf"^{prefix}blocks\.(\d+\.attn\.)proj\.", block + "out_proj."),
        (rf"^{prefix}blocks\.(\d+\.mlp\.)fc1\.", block + "c_fc."),
        (rf"^{prefix}blocks\.(\d+\.mlp\.)fc2\.", block + "c_proj."),
    )


TIMM_IMAGE: Names = (
    *timm_names(r"visual\.trunk\.", "image."),
    (r"^visual\.head\.proj\.weight$", "image.proj"),
)
_PLAIN = r"vit_(tiny|small|base|large)_patch(8|14|16|32)_\d+(\.\w+)?"
_SIGLIP = r"vit_\w+_siglip_\d+(\.\w+)?"
_TANH = r"vit_(base_patch32|large_patch16_siglip_512|so400m_patch16|giantopt)\w*"
"""SigLIP's transformers in timm whose activation is the tanh approximation."""


def is_plain(vision: Mapping[str, Any]) -> bool:
    """A transformer of timm that is this project's own, too."""
    plain = re.fullmatch(_PLAIN, str(vision.get("timm_model_name"))) is not None
    usual = vision.get("timm_pool", "avg") in ("", "token")
    return plain and usual and vision.get("timm_proj", "linear") == "linear" and not _biased(vision)


def is_siglip(vision: Mapping[str, Any]) -> bool:
    """A transformer of timm that SigLIP has, with its pooling."""
    named = re.fullmatch(_SIGLIP, str(vision.get("timm_model_name"))) is not None
    return named and vision.get("timm_pool") == "map" and vision.get("timm_proj") == "none"


def _biased(vision: Mapping[str, Any]) -> bool:
    return bool(vision.get("timm_proj_bias", False))


def named_below(state: State, prefix: str, names: Names) -> dict[str, Tensor]:
    """The tensors below ``prefix`` under this project's names, without what scores nothing."""
    own = {key: value for key, value in state.items() if key.startswith(prefix)}
    return renamed(own, [*LEFT_OUT, *names])


def clip_vit(
    state: State, vision: Mapping[str, Any], quick: bool, where: str
) -> tuple[ViTSettings, dict[str, Tensor], int]:
    """CLIP's vision transformer; every width is read off the tensors."""
    width, _, _, patch = shape_of(state, "visual.conv1.weight", where)
    side = round((shape_of(state, "visual.positional_embedding", where)[0] - 1) ** 0.5)
    block = "visual.transformer.resblocks.0."
    settings = ViTSettings(
        image_size=side * patch,
        patch=patch,
        width=width,
        layers=layers_in(state, r"^visual\.transformer\.resblocks\.(\d+)\."),
        heads=width // int(vision.get("head_width", 64)),
        hidden=shape_of(state, block + "mlp.c_fc.weight", where)[0],
        quick_gelu=quick,
        pre_norm="visual.ln_pre.weight" in state,
        layer_scale=block + "ls_1.gamma" in state,
        pool="mean" if vision.get("pool_type") == "avg" else "token",
        norm_after_pool=bool(vision.get("final_ln_after_pool", False)),
    )
    if vision.get("attentional_pool"):
        pooled = {
            "pool": "queries",
            "queries": shape_of(state, "visual.attn_pool.query", where)[0],
            "pool_heads": int(vision.get("attn_pooler_heads", 8)),
            "norm_after_pool": False,
        }
        settings = settings.model_copy(update=pooled)
    return (
        settings,
        named_below(state, "visual.", CLIP_IMAGE),
        shape_of(state, "visual.proj", where)[1],
    )


def siglip_vit(state: State, name: str, where: str) -> tuple[ViTSettings, dict[str, Tensor], int]:
    """timm's transformer of SigLIP: no class token, attention pooling, no map after it."""
    own = dict(state)
    for part in ("weight", "bias"):
        ends = [f"visual.trunk.attn_pool.{key}.{part}" for key in ("q", "kv")]
        rows = [torch.cat([*(own.pop(end) for end in ends)])] if all(e in own for e in ends) else []
        own |= {f"visual.trunk.attn_pool.in_proj_{part}": row for row in rows}
    width, _, patch, _ = shape_of(own, "visual.trunk.patch_embed.proj.weight", where)
    side = round(shape_of(own, "visual.trunk.pos_embed", where)[1] ** 0.5)
    # 14 pixels do not divide 384: a rim of the image is read by no patch.
    image_size = int(re.sub(r"\.\w+$", "", name).rpartition("_")[2])
    if image_size // patch != side:
        raise UserError(f"{where}: has {side}^2 positions, '{name}' has {image_size // patch}^2.")
    # 64 wide as everywhere, but for the shape-optimised sizes.
    heads = 16 if re.search("so400m|giantopt", name) else width // 64
    settings = ViTSettings(
        image_size=image_size,
        patch=patch,
        width=width,
        layers=layers_in(own, r"^visual\.trunk\.blocks\.(\d+)\."),
        heads=heads,
        hidden=shape_of(own, "visual.trunk.blocks.0.mlp.fc1.weight", where)[0],
        pre_norm=False,
        patch_bias=True,
        eps=1e-6,
        tanh_gelu=re.match(_TANH, name) is not None,
        pool="map",
        class_token=False,
        projection=False,
        pool_heads=heads,
        pool_hidden=shape_of(own, "visual.trunk.attn_pool.mlp.fc1.weight", where)[0],
    )
    named = named_below(own, "visual.", (*POOLED_IMAGE, *TIMM_IMAGE))
    named["image.positional_embedding"] = named["image.positional_embedding"][0]
    return settings, named, width


def timm_trunk(
    state: State, vision: Mapping[str, Any], dim: Any, where: str
) -> tuple[TimmSettings, dict[str, Tensor], int]:
    """Any other trunk, in timm's own modules."""
    name = str(vision["timm_model_name"]).partition(".")[0]
    if not isinstance(dim, int) or dim < 1:
        raise UserError(f"{where}: its configuration does not say embed_dim.")
    settings = TimmSettings(
        name=name,
        image_size=int(vision.get("image_size", 224)),
        stride=tower_stride(name, where),
        pool=str(vision.get("timm_pool", "avg")),
        proj=vision.get("timm_proj", "linear") or "",
        bias=_biased(vision),
    )
    return settings, named_below(state, "visual.", CLIP_IMAGE), dim


def timm_vit(state: State, where: str) -> tuple[ViTSettings, dict[str, Tensor], int]:
    """timm's plain vision transformer with a linear head (BiomedCLIP)."""
    width, _, _, patch = shape_of(state, "visual.trunk.patch_embed.proj.weight", where)
    side = round((shape_of(state, "visual.trunk.pos_embed", where)[1] - 1) ** 0.5)
    settings = ViTSettings(
        image_size=side * patch,
        patch=patch,
        width=width,
        layers=layers_in(state, r"^visual\.trunk\.blocks\.(\d+)\."),
        heads=width // 64,
        hidden=shape_of(state, "visual.trunk.blocks.0.mlp.fc1.weight", where)[0],
        pre_norm=False,
        patch_bias=True,
        eps=1e-6,
    )
    dim = shape_of(state, "visual.head.proj.weight", where)[0]
    named = named_below(state, "visual.", TIMM_IMAGE)
    shape_of(named, "image.class_embedding", where)
    named["image.class_embedding"] = named["image.class_embedding"].flatten()
    named["image.positional_embedding"] = named["image.positional_embedding"][0]
    named["image.proj"] = named["image.proj"].T.contiguous()
    return settings, named, dim


def clip_resnet(
    state: State, vision: Mapping[str, Any], where: str
) -> tuple[ClipResNetSettings, dict[str, Tensor], int]:
    """CLIP's ResNet (RN50 to RN50x64)."""
    width = shape_of(state, "visual.conv3.weight", where)[0]
    places = shape_of(state, "visual.attnpool.positional_embedding", where)[0] - 1
    depths = [layers_in(state, rf"^visual\.layer{n}\.(\d+)\.") for n in (1, 2, 3, 4)]
    settings = ClipResNetSettings(
        image_size=32 * round(places**0.5),
        layers=(depths[0], depths[1], depths[2], depths[3]),
        width=width,
        heads=width * 32 // int(vision.get("head_width", 64)),
    )
    dim = shape_of(state, "visual.attnpool.c_proj.weight", where)[0]
    return settings, named_below(state, "visual.", CLIP_IMAGE), dim
