"""The parts of a model that are exported: image tower, text tower, scores and maps.

Each takes and gives plain tensors, so that a program without this package can run them; what stands
between them and a file (preparing an image, cutting a sentence into tokens) is in ``export.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.golden import SENTENCES, golden_images

Axes = dict[str, tuple[str | int, ...]]
"""Names of tensors, each with the names of its axes; a number is fixed."""


@dataclass(frozen=True)
class Part:
    """One exported network.

    Attributes:
        name: of its file.
        module: what is traced.
        inputs: what it takes.
        outputs: what it gives.
        example: inputs that it is traced with; no axis that may vary is 0 or 1 long.
    """

    name: str
    module: nn.Module
    inputs: Axes
    outputs: Axes
    example: tuple[Tensor, ...]


class _Traced(nn.Module):
    """A function of tensors of the model, whose weights it holds."""

    def __init__(self, network: DualEncoder, function: Callable[..., Any]) -> None:
        super().__init__()
        self.network, self.function = network, function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def samples(network: DualEncoder) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Images, token ids and masks that an export is tested on: several, and one of each.

    Beside the smooth golden images stand noise and steps, in which every pixel counts.
    """
    side = network.preprocessing.prepare.size
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (2, side, side), generator=generator, dtype=torch.uint8)
    images = torch.cat([golden_images(side), noise])
    ids = network.token_ids(SENTENCES)
    return [
        (images, *network.tokenizer.pad(ids)),
        (images[:1], *network.tokenizer.pad(ids[1:2])),
    ]


def parts(network: DualEncoder) -> list[Part]:
    """Image tower, text tower and head of a model.

    The head's maps ``[B, T, rows, columns]`` are the cosines of `DualEncoder.region_scores`.
    """
    images, ids, mask = samples(network)[0]
    side, dim, shape = network.preprocessing.prepare.size, network.dim, network.grid.shape

    def image(pixels: Tensor) -> tuple[Tensor, Tensor]:
        features = network.encode_images(pixels)
        return features.regions, features.pooled

    def score(regions: Tensor, sentences: Tensor) -> tuple[Tensor, Tensor]:
        maps = torch.einsum("bnd,td->btn", regions, sentences)
        return network.similarity.at_once(regions, sentences), maps.unflatten(-1, shape)

    with torch.no_grad():
        regions, sentences = image(images)[0], network.encode_tokens(ids, mask)
    n = regions.shape[1]
    return [
        Part(
            "image",
            _Traced(network, image),
            {"images": ("images", side, side)},
            {"regions": ("images", n, dim), "pooled": ("images", dim)},
            (images,),
        ),
        Part(
            "text",
            _Traced(network, network.encode_tokens),
            {"ids": ("sentences", "tokens"), "mask": ("sentences", "tokens")},
            {"sentences": ("sentences", dim)},
            (ids, mask),
        ),
        Part(
            "score",
            _Traced(network, score),
            {"regions": ("images", n, dim), "sentences": ("sentences", dim)},
            {"scores": ("images", "sentences"), "maps": ("images", "sentences", *shape)},
            (regions, sentences),
        ),
    ]
