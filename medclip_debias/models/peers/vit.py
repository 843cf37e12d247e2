"""Vision transformer and causal text transformer of CLIP (Radford et al. 2021, section 2.4).

The parameters carry the names of OpenAI's checkpoints, which open_clip's share. With
``pre_norm`` off and ``patch_bias`` on the vision transformer is timm's ``vit_base_patch16_224``
(Dosovitskiy et al. 2021), the image tower of BiomedCLIP.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from medclip_debias.models.interface import Head
from medclip_debias.models.peers.settings import ClipTextSettings, ViTSettings


class QuickGELU(nn.Module):
    """``x sigmoid(1.702 x)``, the activation of OpenAI's weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    """Pre-norm transformer block: attention, then two layers of width ``hidden``."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        quick_gelu: bool,
        eps: float,
        layer_scale: bool = False,
    ) -> None:
        super().__init__()
        self.ls_1: nn.Module = _Scale(width) if layer_scale else nn.Identity()
        self.ls_2: nn.Module = _Scale(width) if layer_scale else nn.Identity()
        self.ln_1 = nn.LayerNorm(width, eps=eps)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=eps)
        self.mlp = nn.Sequential(
            OrderedDict(
                c_fc=nn.Linear(width, hidden),
                gelu=QuickGELU() if quick_gelu else nn.GELU(),
                c_proj=nn.Linear(hidden, width),
            )
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, L, width]``; ``mask`` ``[L, L]`` is added to the attention's logits."""
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
        self,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        quick_gelu: bool,
        eps: float,
        layer_scale: bool = False,
    ) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(
            Block(width, heads, hidden, quick_gelu, eps, layer_scale) for _ in range(layers)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """``[B, L, width]``."""
        for block in self.resblocks:
            x = block(x, mask)
        return x


class VisionTransformer(nn.Module):
    """Image to one vector from the class token (or the patches' mean), and one from each patch.

    The whole-image vector is the published one. Where it is the class token's, the patch vectors
    go through the same last norm and projection, which no loss trained them for: an approximation,
    as in many analyses of CLIP. Where it is the patches' mean, the projection is that of every
    patch, so the regions are exact, but for a last norm that comes after the mean.
    """

    def __init__(self, settings: ViTSettings, dim: int) -> None:
        super().__init__()
        s = settings
        self.side = s.image_size // s.patch
        self.conv1 = nn.Conv2d(3, s.width, s.patch, stride=s.patch, bias=s.patch_bias)
        self.class_embedding = nn.Parameter(torch.zeros(s.width))
        self.positional_embedding = nn.Parameter(torch.zeros(self.side**2 + 1, s.width))
        self.ln_pre = nn.LayerNorm(s.width, eps=s.eps) if s.pre_norm else nn.Identity()
        self.pool, self.norm_after_pool = s.pool, s.norm_after_pool
        self.transformer = Stack(
            s.layers, s.width, s.heads, s.hidden, s.quick_gelu, s.eps, s.layer_scale
        )
        self.ln_post = nn.LayerNorm(s.width, eps=s.eps)
        self.proj = nn.Parameter(torch.zeros(s.width, dim))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised ``[B, 3, S, S]`` to patch vectors ``[B, N, dim]`` and whole ``[B, dim]``."""
        patches = self.conv1(images).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(len(patches), 1, -1)
        x = torch.cat([first, patches], dim=1) + self.positional_embedding
        x = self.transformer(self.ln_pre(x))
        normed = self.ln_post(x)
        source = x if self.norm_after_pool else normed
        whole = source[:, 0] if self.pool == "token" else source[:, 1:].mean(dim=1)
        if self.norm_after_pool:
            whole = self.ln_post(whole)
        return normed[:, 1:] @ self.proj, whole @ self.proj

    @property
    def layers(self) -> list[nn.Module]:
        """The blocks, the lowest first."""
        return list(self.transformer.resblocks)

    @property
    def above(self) -> list[nn.Module]:
        """The last norm."""
        return [self.ln_post]

    @property
    def heads(self) -> list[Head]:
        """The map into the shared space."""
        return [self.proj]


class ClipText(nn.Module):
    """CLIP's text tower: causal attention, the vector of the end-of-text token."""

    def __init__(self, settings: ClipTextSettings, dim: int) -> None:
        super().__init__()
        s = settings
        self.context = s.context
        self.token_embedding = nn.Embedding(s.vocabulary, s.width)
        self.positional_embedding = nn.Parameter(torch.zeros(s.context, s.width))
        self.transformer = Stack(s.layers, s.width, s.heads, s.hidden, s.quick_gelu, 1e-5)
        self.ln_final = nn.LayerNorm(s.width)
        self.text_projection = nn.Parameter(torch.zeros(s.width, dim))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask ``[T, L]`` to ``[T, dim]``.

        Attention is causal, so what stands behind the end-of-text token does not count, and the
        padding to the full context that CLIP was trained with can be left out.
        """
        length = ids.shape[1]
        x = self.token_embedding(ids) + self.positional_embedding[:length]
        later = torch.full((length, length), float("-inf"), device=ids.device).triu(1)
        x = self.ln_final(self.transformer(x, later))
        last = mask.sum(dim=1) - 1
        result: Tensor = x[torch.arange(len(x), device=ids.device), last] @ self.text_projection
        return result

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
