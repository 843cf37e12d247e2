"""The parts of a model that are exported: image tower, text tower, scores and maps.

Each takes and gives plain tensors, so that a program without this package can run them; what stands
between them and a file (preparing an image, cutting a sentence into tokens) is in ``export.json``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.golden import SENTENCES, golden_images


class ImageTower(nn.Module):
    """Prepared images uint8 ``[B, S, S]`` to regions ``[B, N, D]`` and pooled ``[B, D]``."""

    def __init__(self, network: DualEncoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Crop, normalise, encode."""
        features = self.network.encode_images(images)
        return features.regions, features.pooled


class TextTower(nn.Module):
    """Token ids and mask int64 ``[T, L]`` to unit vectors ``[T, D]``."""

    def __init__(self, network: DualEncoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Encode."""
        return self.network.encode_tokens(ids, mask)


class ScoreHead(nn.Module):
    """Regions ``[B, N, D]`` and sentences ``[T, D]`` to scores ``[B, T]`` and maps.

    The maps ``[B, T, rows, columns]`` are the cosines of `DualEncoder.region_scores`.
    """

    def __init__(self, network: DualEncoder) -> None:
        super().__init__()
        self.network = network
        self.shape = network.grid.shape

    def forward(self, regions: Tensor, sentences: Tensor) -> tuple[Tensor, Tensor]:
        """Compare."""
        scores = self.network.similarity.at_once(regions, sentences)
        maps = torch.einsum("bnd,td->btn", regions, sentences)
        return scores, maps.unflatten(-1, self.shape)


@dataclass(frozen=True)
class Part:
    """One exported network.

    Attributes:
        name: of its file.
        module: what is traced.
        inputs: names, each with the names of its axes; a number is fixed.
        outputs: likewise.
        example: inputs that it is traced with; no axis that may vary is 0 or 1 long.
        longest_sentence: most tokens that the axis ``tokens`` may have.
    """

    name: str
    module: nn.Module
    inputs: dict[str, tuple[str | int, ...]]
    outputs: dict[str, tuple[str | int, ...]]
    example: tuple[Tensor, ...]
    longest_sentence: int | None = None


@dataclass(frozen=True)
class Sample:
    """Inputs that an export is tested on: generated images, fixed sentences."""

    images: Tensor
    ids: Tensor
    mask: Tensor


def samples(network: DualEncoder) -> list[Sample]:
    """Several images and sentences, and one of each.

    Beside the smooth golden images stand noise and steps, in which every pixel counts.
    """
    side = network.preprocessing.prepare.size
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (2, side, side), generator=generator, dtype=torch.uint8)
    images = torch.cat([golden_images(side), noise])
    ids = network.tokenizer.encode(list(SENTENCES), network.max_tokens)
    alone = network.tokenizer.pad(ids[1:2])
    return [Sample(images, *network.tokenizer.pad(ids)), Sample(images[:1], *alone)]


def parts(network: DualEncoder, sample: Sample) -> list[Part]:
    """Image tower, text tower and head of a model."""
    side, dim = network.preprocessing.prepare.size, network.dim
    rows, columns = network.grid.shape
    with torch.no_grad():
        regions = network.encode_images(sample.images).regions
        sentences = network.encode_tokens(sample.ids, sample.mask)
    n = regions.shape[1]
    return [
        Part(
            "image",
            ImageTower(network),
            {"images": ("images", side, side)},
            {"regions": ("images", n, dim), "pooled": ("images", dim)},
            (sample.images,),
        ),
        Part(
            "text",
            TextTower(network),
            {"ids": ("sentences", "tokens"), "mask": ("sentences", "tokens")},
            {"sentences": ("sentences", dim)},
            (sample.ids, sample.mask),
            network.max_tokens,
        ),
        Part(
            "score",
            ScoreHead(network),
            {"regions": ("images", n, dim), "sentences": ("sentences", dim)},
            {"scores": ("images", "sentences"), "maps": ("images", "sentences", rows, columns)},
            (regions, sentences),
        ),
    ]
