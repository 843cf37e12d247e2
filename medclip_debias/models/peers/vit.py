"""Vision transformer and causal text transformer of CLIP (Radford et al. 2021, section 2.4).

The parameters carry the names of OpenAI's checkpoints, which open_clip's share. With
``pre_norm`` off and ``patch_bias`` on the vision transformer is timm's ``vit_base_patch16_224``
(Dosovitskiy et al. 2021), the image tower of BiomedCLIP. Without a class token and pooled by
attention it is SigLIP's (Zhai et al. 2023), and with many queries CoCa's (Yu et al. 2022).
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.models.interface import Head
from medclip_debias.models.peers.settings import ClipTextSettings, ViTSettings


class QuickGELU(nn.Module):
    """``x sigmoid(1.702 x)``, the activation of OpenAI's weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x * torch.sigmoid(1.702 * x)


def activation(settings: ViTSettings | ClipTextSettings) -> nn.Module:
    """The activation between the two layers of each block."""
    if settings.quick_gelu:
        return QuickGELU()
    return nn.GELU(approximate="tanh" if settings.tanh_gelu else "none")


def two_layers(width: int, hidden: int, between: nn.Module) -> nn.Sequential:
    """CLIP's ``mlp``."""
    parts = [("c_fc", nn.Linear(width, hidden)), ("gelu", between)]
    return nn.Sequential(OrderedDict([*parts, ("c_proj", nn.Linear(hidden, width))]))


class Block(nn.Module):
    """Pre-norm transformer block: attention, then two layers of width ``hidden``."""

    def __init__(
        self, settings: ViTSettings | ClipTextSettings, eps: float, layer_scale: bool = False
    ) -> None:
        super().__init__()
        s, width = settings, settings.width
        self.ls_1: nn.Module = _Scale(width) if layer_scale else nn.Identity()
        self.ls_2: nn.Module = _Scale(width) if layer_scale else nn.Identity()
        self.ln_1 = nn.LayerNorm(width, eps=eps)
        self.attn = nn.MultiheadAttention(width, s.heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=eps)
        self.mlp = two_layers(width, s.hidden, activation(s))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, L, width]``; ``mask`` ``[L, L]`` or ``[B * heads, L, L]`` is added to logits."""
        y = self.ln_1(x)
        x = x + self.ls_1(self.attn(y, y, y, need_weights=False, attn_mask=mask)[0])
        result: Tensor = x + self.ls_2(self.mlp(self.ln_2(x)))
        return result


class _Scale(nn.Module):
    """Multiplication by a learned vector (Touvron et al. 2021, LayerScale)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Stack(nn.Module):
    """Blocks in a row, under the name ``resblocks``."""

    def __init__(
        self, settings: ViTSettings | ClipTextSettings, eps: float, layer_scale: bool = False
    ) -> None:
        super().__init__()
        count = settings.layers
        self.resblocks = nn.ModuleList(Block(settings, eps, layer_scale) for _ in range(count))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, L, width]``."""
        for block in self.resblocks:
            x = block(x, mask)
        return x


class ViTTrunk(nn.Module):
    """Patches, and the class token first, through the blocks; `tokens` are before the last norm."""

    def __init__(self, settings: ViTSettings) -> None:
        super().__init__()
        s = settings
        self.side = s.image_size // s.patch
        self.first = int(s.class_token)
        self.conv1 = nn.Conv2d(3, s.width, s.patch, stride=s.patch, bias=s.patch_bias)
        if s.class_token:
            self.class_embedding = nn.Parameter(torch.zeros(s.width))
        self.positional_embedding = nn.Parameter(torch.zeros(self.side**2 + self.first, s.width))
        self.ln_pre = nn.LayerNorm(s.width, eps=s.eps) if s.pre_norm else nn.Identity()
        self.transformer = Stack(s, s.eps, s.layer_scale)
        self.ln_post = nn.LayerNorm(s.width, eps=s.eps)

    def tokens(self, images: Tensor) -> Tensor:
        """Normalised ``[B, 3, S, S]`` to ``[B, L, width]``, a class token before the patches."""
        x = self.conv1(images).flatten(2).transpose(1, 2)
        if self.first:
            x = torch.cat([self.class_embedding.expand(len(x), 1, -1), x], dim=1)
        result: Tensor = self.transformer(self.ln_pre(x + self.positional_embedding))
        return result


class VisionTransformer(ViTTrunk):
    """Image to one vector by the published pooling, and one from each patch.

    A patch's vector is what the pooling makes of the patch alone. Where the whole is the class
    token's, the patches go through the same last norm and projection, which no loss trained them
    for: an approximation, as in many analyses of CLIP. Where it is the patches' mean, the
    projection is that of every patch, so the regions are exact, but for a last norm that comes
    after the mean. Where it is attention over the patches, a patch alone has all of it, and the
    regions are an approximation again (Zhou et al. 2022, section 3.2, for the idea).
    """

    def __init__(self, settings: ViTSettings, dim: int) -> None:
        super().__init__(settings)
        s, width = settings, settings.width
        self.pool, self.norm_after_pool = s.pool, s.norm_after_pool
        self.attn_pool: MapPool | QueryPool | None = None
        if s.pool == "map":
            self.attn_pool = MapPool(s)
        elif s.pool == "queries":
            self.attn_pool, width = QueryPool(s, dim), dim
            self.ln_post = nn.LayerNorm(dim, eps=s.eps)
        self.proj = nn.Parameter(torch.zeros(width, dim)) if s.projection else None
        if self.proj is None and width != dim:
            raise ValueError("without a projection the image tower must be as wide as the space")

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised ``[B, 3, S, S]`` to patch vectors ``[B, N, dim]`` and whole ``[B, dim]``."""
        regions, whole = self._pooled(self.tokens(images))
        return (regions, whole) if self.proj is None else (regions @ self.proj, whole @ self.proj)

    @property
    def layers(self) -> list[nn.Module]:
        """The blocks, the lowest first."""
        return list(self.transformer.resblocks)

    @property
    def above(self) -> list[nn.Module]:
        """The last norm, and the pooling where it has weights and a map comes after it."""
        pool = self.attn_pool
        return [self.ln_post] if pool is None or self.proj is None else [self.ln_post, pool]

    @property
    def heads(self) -> list[Head]:
        """The map into the shared space; where there is none, the pooling that ends there."""
        if self.proj is not None:
            return [self.proj]
        return [] if self.attn_pool is None else [self.attn_pool]

    def _pooled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens ``[B, L, width]`` to what is projected: of each patch, and of the whole."""
        if isinstance(self.attn_pool, QueryPool):
            whole, alone = self.attn_pool(x), self.attn_pool.alone(x[:, self.first :])
            return self.ln_post(alone), self.ln_post(whole)
        normed = self.ln_post(x)
        if isinstance(self.attn_pool, MapPool):
            return self.attn_pool.alone(normed[:, self.first :]), self.attn_pool(normed)
        source = x if self.norm_after_pool else normed
        whole = source[:, 0] if self.pool == "token" else source[:, self.first :].mean(dim=1)
        return normed[:, self.first :], self.ln_post(whole) if self.norm_after_pool else whole


def _of_one_key(attention: nn.MultiheadAttention, keys: Tensor) -> Tensor:
    """What attention gives to a query that sees one key alone: ``[B, N, E]`` for N such keys."""
    width = attention.embed_dim
    weight = attention.v_proj_weight
    if weight is None:
        weight = attention.in_proj_weight[2 * width :]
    result: Tensor = attention.out_proj(F.linear(keys, weight, attention.in_proj_bias[2 * width :]))
    return result


class MapPool(nn.Module):
    """SigLIP's pooling: a learned query attends over the patches, then two layers."""

    def __init__(self, settings: ViTSettings) -> None:
        super().__init__()
        s = settings
        self.probe = nn.Parameter(torch.zeros(1, 1, s.width))
        self.attn = nn.MultiheadAttention(s.width, s.pool_heads, batch_first=True)
        self.ln = nn.LayerNorm(s.width, eps=s.eps)
        self.mlp = two_layers(s.width, s.pool_hidden, activation(s))

    def forward(self, x: Tensor) -> Tensor:
        """``[B, N, width]`` to ``[B, width]``."""
        probe = self.probe.expand(len(x), -1, -1)
        return self._after(self.attn(probe, x, x, need_weights=False)[0])[:, 0]

    def alone(self, x: Tensor) -> Tensor:
        """What each patch of ``[B, N, width]`` would be pooled to if it were alone."""
        return self._after(_of_one_key(self.attn, x))

    def _after(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.mlp(self.ln(x))
        return result


class QueryPool(nn.Module):
    """CoCa's pooling in open_clip: learned queries of width ``dim``, of which the first counts."""

    def __init__(self, settings: ViTSettings, dim: int) -> None:
        super().__init__()
        s = settings
        self.query = nn.Parameter(torch.zeros(s.queries, dim))
        self.attn = nn.MultiheadAttention(
            dim, s.pool_heads, kdim=s.width, vdim=s.width, batch_first=True
        )
        self.ln_q, self.ln_k = nn.LayerNorm(dim, eps=s.eps), nn.LayerNorm(s.width, eps=s.eps)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, L, width]``, the class token too, to ``[B, dim]``."""
        x = self.ln_k(x)
        query = self.ln_q(self.query[:1]).expand(len(x), -1, -1)
        result: Tensor = self.attn(query, x, x, need_weights=False)[0][:, 0]
        return result

    def alone(self, x: Tensor) -> Tensor:
        """What each token of ``[B, N, width]`` would be pooled to if it were alone."""
        return _of_one_key(self.attn, self.ln_k(x))


class ClipText(nn.Module):
    """Text tower of CLIP, SigLIP and CoCa (`ClipTextSettings` says which vector counts)."""

    def __init__(self, settings: ClipTextSettings, dim: int) -> None:
        super().__init__()
        s = settings
        self.context, self.causal, self.pool, self.pad = s.context, s.causal, s.pool, s.pad
        self.attention_heads = s.heads
        self.token_embedding = nn.Embedding(s.vocabulary, s.width)
        if s.pool == "appended":
            self.cls_emb = nn.Parameter(torch.zeros(s.width))
        positions = s.context + (s.pool == "appended")
        self.positional_embedding = nn.Parameter(torch.zeros(positions, s.width))
        self.transformer = Stack(s, s.eps)
        self.ln_final = nn.LayerNorm(s.width, eps=s.eps)
        self.text_projection: nn.Linear | nn.Parameter
        if s.bias:
            self.text_projection = nn.Linear(s.width, dim)
        else:
            self.text_projection = nn.Parameter(torch.zeros(s.width, dim))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask ``[T, L]`` to ``[T, dim]``.

        CLIP's attention is causal, so what stands behind the end-of-text token does not count, and
        the padding to the full context that it was trained with can be left out; the others need
        it.
        """
        last = mask.sum(dim=1) - 1
        if self.pool != "end":
            ids = ids.masked_fill(mask == 0, self.pad)
            ids = F.pad(ids, (0, self.context - ids.shape[1]), value=self.pad)
        x = self.token_embedding(ids)
        if self.pool == "appended":
            x = torch.cat([x, self.cls_emb.expand(len(x), 1, -1)], dim=1)
        x = x + self.positional_embedding[: x.shape[1]]
        x = self.ln_final(self.transformer(x, self._mask(ids)))
        found = x[torch.arange(len(x), device=x.device), last] if self.pool == "end" else x[:, -1]
        if isinstance(self.text_projection, nn.Linear):
            mapped: Tensor = self.text_projection(found)
            return mapped
        return found @ self.text_projection

    def _mask(self, ids: Tensor) -> Tensor | None:
        """What is added to the logits of attention."""
        if not self.causal:
            return None
        length = ids.shape[1] + (self.pool == "appended")
        later = torch.full((length, length), float("-inf"), device=ids.device).triu(1)
        if self.pool != "appended":
            return later
        # open_clip puts the appended token first in its mask of padding though it stands last, and
        # the published weights were trained so: each token hides the place behind its own.
        seen = F.pad(ids != self.pad, (1, 0), value=True)
        hidden = torch.zeros(seen.shape, device=ids.device).masked_fill(~seen, float("-inf"))
        return (later + hidden[:, None]).repeat_interleave(self.attention_heads, dim=0)

    @property
    def layers(self) -> list[nn.Module]:
        """The blocks, the lowest first."""
        return list(self.transformer.resblocks)

    @property
    def above(self) -> list[nn.Module]:
        """The last norm."""
        return [self.ln_final]

    @property
    def heads(self) -> list[Head]:
        """The map into the shared space."""
        return [self.text_projection]
