"""What every image encoder offers, and how one is chosen by ``model.image.arch``.

The encoders themselves are in `medclip_debias.models.backbones`, one family a file.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from medclip_debias.config import ImageEncoderSettings
from medclip_debias.errors import UserError
from medclip_debias.models.checkpoint import check_room, load_strictly, read_checkpoint
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.models.tower import Tower
from medclip_debias.registry import Registry


class ImageEncoder(Tower):
    """Grey images ``[B, 1, H, W]`` to region features ``[B, C, rows, columns]``.

    Attributes:
        config: what `rebuild` needs beside the name ``arch``; kept in model folders.
        width: channels C of a region.
        stride: input pixels that a region advances.
        first_centre: region r lies at ``first_centre + r stride``, in continuous input pixels.
        side_multiple: an input's side must be a multiple of it.
        splits: whether `features_upto` can stop at any layer, or at the last alone.
    """

    arch: str
    config: dict[str, Any]
    width: int
    side_multiple: int = 1
    splits: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def build(cls, settings: ImageEncoderSettings) -> ImageEncoder:
        """The encoder that a run starts from, weights included."""

    @classmethod
    @abstractmethod
    def rebuild(cls, arch: str, config: Mapping[str, Any], where: str) -> ImageEncoder:
        """The encoder of a model folder, to be filled with its weights."""

    @staticmethod
    def to_file(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The encoder's tensors under the names of published files, which model folders keep."""
        return dict(state)

    @staticmethod
    def from_file(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(state)

    def grid(self, side: int) -> RegionGrid:
        cells = -(-side // self.stride)
        return RegionGrid(cells, cells, self.stride, self.first_centre)

    def check_side(self, side: int, where: str) -> None:
        """Refuse an input whose side is no multiple of `side_multiple`."""
        left = side % self.side_multiple
        if left:
            raise UserError(
                f"{where}: an input of {side} pixels does not fit {self.arch}, which reads "
                f"multiples of {self.side_multiple}; set preprocessing.input_size to "
                f"{side - left} or {side - left + self.side_multiple}."
            )

    def features_upto(self, images: Tensor, depth: int) -> Tensor:
        """What the stem and the first ``depth`` of `layers` give."""
        assert depth > len(self.layers)
        return self(images)

    def features_after(self, features: Tensor, depth: int) -> Tensor:
        assert depth > len(self.layers)
        return features


IMAGE_ENCODERS: Registry[type[ImageEncoder]] = Registry(
    "image encoder", "medclip_debias.models.backbones", known="known architectures"
)


def build_image_encoder(settings: ImageEncoderSettings) -> ImageEncoder:
    family = IMAGE_ENCODERS.find(settings.arch, "the settings", "model.image.arch")
    if settings.name is not None and settings.arch != "timm":
        raise UserError(
            "the settings: setting 'model.image.name' is a model of timm; it needs arch: timm, "
            f"not {settings.arch}."
        )
    return family.build(settings)


E = TypeVar("E", bound=ImageEncoder)


def filled(build: Callable[[], E], path: Path, heads: re.Pattern[str], where: str) -> E:
    """An encoder with the ``trunk`` of a published file, which may lie inside of a larger model."""
    check_room(build, path, where)
    encoder = build()
    trunk = encoder.get_submodule("trunk")
    state, first = read_checkpoint(path), next(iter(trunk.state_dict()))
    prefix = min((k.removesuffix(first) for k in state if k.endswith(first)), key=len, default="")
    kept = {
        key.removeprefix(prefix): value
        for key, value in state.items()
        if not (heads.search(key.removeprefix(prefix)) or heads.search(key))
    }
    load_strictly(trunk, encoder.from_file(kept), str(path))
    return encoder
