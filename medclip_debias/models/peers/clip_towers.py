"""Towers of CLIP and its relatives, in open_clip's own networks, timm's, and transformers'.

A region's vector is what the published pooling makes of the place alone: exact where the whole is a
mean of the places and what follows is linear, else an approximation, as in many analyses of CLIP
(Zhou et al. 2022, section 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.errors import UserError, need_packages
from medclip_debias.models.backbones.timm_trunk import trunk_kind, trunk_layers
from medclip_debias.models.peers.settings import PeerSettings
from medclip_debias.models.tower import Head, Tower


def open_clip_networks() -> Any:
    need_packages("Networks of this model", "peers", "open_clip")
    from open_clip import model

    return model


def own_value(attention: nn.MultiheadAttention, keys: Tensor) -> Tensor:
    """What attention gives to a query that sees one key alone: ``[B, N, E]`` for N such keys."""
    width = attention.embed_dim
    weight = attention.v_proj_weight
    if weight is None:
        weight = attention.in_proj_weight[2 * width :]
    values = F.linear(keys, weight, attention.in_proj_bias[2 * width :])
    return attention.out_proj(values)


class OpenClipImages(Tower):
    """An image tower of open_clip: its vision transformer, CLIP's ResNet, or a network of timm."""

    def __init__(self, peer: PeerSettings, _: Mapping[str, Tensor]) -> None:
        super().__init__()
        settings, dim, networks = peer.image, peer.dim, open_clip_networks()
        unchanged = {"output_tokens": False, "timm_model_pretrained": False, "patch_dropout": 0.0}
        config = networks.CLIPVisionCfg(**settings.config | unchanged)
        self.visual: Any = networks._build_vision_tower(dim, config, settings.quick_gelu)
        name = config.timm_model_name
        self.timm = name and trunk_kind(name, "vision_cfg")
        self.stride = settings.timm_stride or int(config.patch_size or 16)
        self.first_centre = self.stride / 2
        if hasattr(self.visual, "attnpool"):
            # The strided stem centres its first place on the first pixel; each of the four average
            # pools of two puts the centre half a step further: .5 + 1 + 2 + 4 + 8.
            self.stride, self.first_centre = 32, 15.5
        if not self.timm:
            return
        trunk = self.visual.trunk
        if config.timm_proj == "none" and trunk.num_features != dim:
            raise UserError(f"'{name}' is {trunk.num_features} wide and not mapped to {dim}.")
        size = getattr(getattr(trunk, "patch_embed", None), "img_size", None)
        if size is not None and tuple(size) != (config.image_size,) * 2:
            raise UserError(
                f"'{name}' reads {size[0]} pixels in timm, and the configuration says image_size "
                f"{config.image_size}."
            )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        visual = self.visual
        if self.timm:
            return self._timm(images)
        if hasattr(visual, "attnpool"):
            out = visual.forward_intermediates(images, indices=1, intermediates_only=True)
            places, pool = out["image_intermediates"][0], visual.attnpool
            regions = pool.c_proj(pool.v_proj(places.flatten(2).transpose(1, 2)))
            return regions, pool(places)
        tokens = visual.transformer(visual._embeds(images))
        patches = tokens[:, 1:]
        if visual.attn_pool is not None:
            patches = own_value(visual.attn_pool.attn, visual.attn_pool.ln_k(patches))
        return visual.ln_post(patches) @ visual.proj, visual._pool(tokens)[0] @ visual.proj

    def _timm(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """A place's vector is what pooling and map make of an image that is it everywhere."""
        trunk = self.visual.trunk
        x = trunk.forward_features(images)
        whole = self.visual.head(trunk.forward_head(x))
        if self.timm == "convnext":
            alone = x.flatten(2).transpose(1, 2).flatten(0, 1)[:, :, None, None]
        elif self.timm == "swin_transformer":
            alone = x.flatten(0, 2)[:, None, None]
        else:
            prefix = trunk.num_prefix_tokens
            alone = x[:, prefix:].flatten(0, 1)[:, None].expand(-1, 1 + prefix, -1)
        regions = self.visual.head(trunk.forward_head(alone))
        return regions.unflatten(0, (len(images), -1)), whole

    @property
    def layers(self) -> list[nn.Module]:
        if self.timm:
            return trunk_layers(self.visual.trunk, self.timm)
        if hasattr(self.visual, "attnpool"):
            return [self.visual.get_submodule(f"layer{number}") for number in (1, 2, 3, 4)]
        return list(self.visual.transformer.resblocks)

    @property
    def above(self) -> list[nn.Module]:
        if self.timm:
            return [part for part in self._timm_ends if part not in self.heads]
        if hasattr(self.visual, "attnpool"):
            return []
        return [p for p in (self.visual.ln_post, self.visual.attn_pool) if p is not None]

    @property
    def heads(self) -> list[Head]:
        if self.timm:
            mapped = list(self.visual.head.parameters())
            return [self.visual.head] if mapped else [self._timm_ends[-1]]
        return [self.visual.attnpool if hasattr(self.visual, "attnpool") else self.visual.proj]

    @property
    def _timm_ends(self) -> list[nn.Module]:
        names = ("norm_pre", "norm", "attn_pool", "fc_norm", "head")
        parts = [getattr(self.visual.trunk, name, None) for name in names]
        return [p for p in parts if isinstance(p, nn.Module) and list(p.parameters())]


class OpenClipText(Tower):
    """A text tower of open_clip (CLIP's, SigLIP's, or CoCa's), filled up to the full context."""

    layer_lists = ("text.transformer.resblocks",)
    after_layers = ("text.ln_final",)
    into_space = ("text.text_projection",)

    def __init__(self, peer: PeerSettings, _: Mapping[str, Tensor]) -> None:
        super().__init__()
        settings, networks = peer.text, open_clip_networks()
        config = networks.CLIPTextCfg(**settings.config | {"output_tokens": False})
        self.context, self.pad = config.context_length, settings.pad
        self.text: Any = networks._build_text_tower(peer.dim, config, settings.quick_gelu)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.text(filled_up(ids, mask, self.context, self.pad))


def filled_up(ids: Tensor, mask: Tensor, context: int, pad: int) -> Tensor:
    """Token ids ``[T, context]``, filled up with ``pad``."""
    ids = ids.masked_fill(mask == 0, pad)
    return F.pad(ids, (0, context - ids.shape[1]), value=pad)


class HfClipTower(Tower):
    """A tower (``Vision`` or ``Text``) of transformers' CLIP or SigLIP; CLIP's is mapped."""

    def __init__(self, peer: PeerSettings, part: str) -> None:
        import transformers

        super().__init__()
        self.siglip = peer.kind == "siglip"
        sizes = dict((peer.image if part == "Vision" else peer.text).config)
        if part == "Text" and not self.siglip:
            # The end token's place comes from the mask, so that its number need not be known.
            sizes |= {"bos_token_id": None, "eos_token_id": None}
        name = ("Siglip" if self.siglip else "CLIP") + part
        config = getattr(transformers, f"{name}Config")(**sizes)
        self.tower: Any = getattr(transformers, f"{name}Model")(config)
        self.layer_lists = ("tower.encoder.layers",)
        self.into_space = ("tower.head" if self.siglip else "projection",)
        if not self.siglip:
            self.projection = nn.Linear(config.hidden_size, peer.dim, bias=False)


class HfClipImages(HfClipTower):
    """The image tower."""

    after_layers = ("tower.post_layernorm",)

    def __init__(self, peer: PeerSettings, _: Mapping[str, Tensor]) -> None:
        super().__init__(peer, "Vision")
        config = self.tower.config
        if self.siglip and config.hidden_size != peer.dim:
            raise UserError(
                f"its image tower is {config.hidden_size} wide, and its text tower {peer.dim}."
            )
        self.stride, self.first_centre = config.patch_size, config.patch_size / 2

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        out = self.tower(pixel_values=images)
        if not self.siglip:
            patches = self.tower.post_layernorm(out.last_hidden_state[:, 1:])
            return self.projection(patches), self.projection(out.pooler_output)
        patches = out.last_hidden_state
        alone = self.tower.head(patches.flatten(0, 1)[:, None])
        return alone.unflatten(0, patches.shape[:2]), out.pooler_output


class HfClipText(HfClipTower):
    """The text tower."""

    after_layers = ("tower.final_layer_norm",)

    def __init__(self, peer: PeerSettings, _: Mapping[str, Tensor]) -> None:
        super().__init__(peer, "Text")
        self.context, self.pad = self.tower.config.max_position_embeddings, peer.text.pad

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        if self.siglip:
            ids = filled_up(ids, mask, self.context, self.pad)
            return self.tower(input_ids=ids).pooler_output
        hidden = self.tower.embeddings(input_ids=ids)
        causal = torch.full((ids.shape[1],) * 2, -torch.inf, device=ids.device).triu(1)
        hidden = self.tower.encoder(hidden, attention_mask=causal[None, None]).last_hidden_state
        hidden = self.tower.final_layer_norm(hidden)
        ends = hidden[torch.arange(len(ids), device=ids.device), mask.sum(dim=1) - 1]
        return self.projection(ends)
