"""Residual networks that keep their regions: one feature vector for each cell of a grid.

ResNet-18/34/50 are built from torchvision's blocks and carry its parameter names. ``resnet_small``
is the same class with fewer, narrower layers, for runs on a processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from medclip_debias.config import ImageEncoderSettings
from medclip_debias.errors import UserError, explained
from medclip_debias.models.checkpoint import load_strictly, read_checkpoint, summed_channels
from medclip_debias.models.image_encoder import IMAGE_ENCODERS, ImageEncoder


@dataclass(frozen=True)
class Arch:
    """Shape of one network: ``stages`` lists (blocks, width, stride) of each residual stage."""

    block: Literal["basic", "bottleneck"]
    stem_width: int
    stem_kernel: int
    max_pool: bool
    stages: tuple[tuple[int, int, int], ...]


def _imagenet(block: Literal["basic", "bottleneck"], depths: tuple[int, ...]) -> Arch:
    widths, strides = (64, 128, 256, 512), (1, 2, 2, 2)
    return Arch(block, 64, 7, True, tuple(zip(depths, widths, strides, strict=True)))


ARCHITECTURES: dict[str, Arch] = {
    "resnet_tiny": Arch("basic", 16, 5, False, ((1, 32, 2), (1, 64, 2))),
    "resnet_small": Arch("basic", 24, 5, False, ((1, 32, 2), (1, 64, 2), (1, 128, 1))),
    "resnet_small_16": Arch("basic", 24, 5, False, ((1, 32, 2), (1, 64, 2), (1, 128, 2))),
    "resnet18": _imagenet("basic", (2, 2, 2, 2)),
    "resnet34": _imagenet("basic", (3, 4, 6, 3)),
    "resnet50": _imagenet("bottleneck", (3, 4, 6, 3)),
}


class ResNetRegions(ImageEncoder):
    """A residual network without pooling and classifier, each layer centred on its first input."""

    splits: ClassVar[bool] = True

    def __init__(self, arch: str = "resnet18", channels: int = 1) -> None:
        from torchvision.models.resnet import BasicBlock, Bottleneck

        super().__init__()
        spec = ARCHITECTURES[arch]
        block = BasicBlock if spec.block == "basic" else Bottleneck
        self.arch = arch
        self.config = {}
        self.first_centre = 0.5
        kernel = spec.stem_kernel
        self.conv1 = nn.Conv2d(channels, spec.stem_width, kernel, 2, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(spec.stem_width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if spec.max_pool else nn.Identity()
        self.stride = 4 if spec.max_pool else 2
        self._stages: list[str] = []
        width_in = spec.stem_width
        for number, (blocks, width, stride) in enumerate(spec.stages, start=1):
            layers = [_block(block, width_in, width, stride)]
            width_in = width * block.expansion
            layers += [_block(block, width_in, width, 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{number}", nn.Sequential(*layers))
            self._stages.append(f"layer{number}")
            self.stride *= stride
        self.width = width_in
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @classmethod
    def build(cls, settings: ImageEncoderSettings) -> ResNetRegions:
        encoder = cls(settings.arch)
        if settings.weights == "library":
            state = _library_weights(settings.arch)
            load_weights(encoder, state, f"torchvision's {settings.arch}")
        elif settings.weights is not None:
            path = Path(settings.weights)
            load_weights(encoder, read_checkpoint(path), str(path))
        return encoder

    @classmethod
    def rebuild(cls, arch: str, config: Mapping[str, Any], where: str) -> ResNetRegions:
        if config:
            raise UserError(
                f"{where}: the field 'image_config' does not belong in a {arch}'s folder."
            )
        return cls(arch)

    @property
    def layers(self) -> list[nn.Module]:
        return [self.get_submodule(name) for name in self._stages]

    def forward(self, images: Tensor) -> Tensor:
        return self.features_upto(images, len(self.layers))

    def features_upto(self, images: Tensor, depth: int) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in self.layers[:depth]:
            x = stage(x)
        return x

    def features_after(self, features: Tensor, depth: int) -> Tensor:
        for stage in self.layers[depth:]:
            features = stage(features)
        return features


def _block(block: Any, width_in: int, width: int, stride: int) -> nn.Module:
    shortcut = None
    if stride != 1 or width_in != width * block.expansion:
        shortcut = nn.Sequential(
            nn.Conv2d(width_in, width * block.expansion, 1, stride=stride, bias=False),
            nn.BatchNorm2d(width * block.expansion),
        )
    return block(width_in, width, stride, shortcut)


def load_weights(encoder: ResNetRegions, state: dict[str, Tensor], where: str) -> None:
    """Load torchvision-style weights, under any prefix; other parts, as ``fc``, are left out.

    A three-channel first layer is summed: the same response as feeding a grey image three times.
    """
    anchor = next((key for key in state if key.endswith("conv1.weight") and "layer" not in key), "")
    prefix = anchor.removesuffix("conv1.weight")
    state = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    state = {key: value for key, value in state.items() if key in encoder.state_dict()}
    grey = summed_channels(state, "conv1.weight")
    load_strictly(encoder, grey, f"{where}, read as a {encoder.arch}")


def _library_weights(arch: str) -> dict[str, Tensor]:
    from torchvision import models

    if arch not in ("resnet18", "resnet34", "resnet50"):
        raise UserError(f"{arch} has no library weights; set model.image.weights to null.")
    sentence = (
        f"torchvision's weights of {arch} cannot be downloaded here; give a local file in "
        "model.image.weights"
    )
    with explained(sentence, OSError, RuntimeError):
        weights = models.get_model_weights(arch).DEFAULT
        return weights.get_state_dict(progress=False, check_hash=True)


for _arch in ARCHITECTURES:
    IMAGE_ENCODERS.add(_arch, ResNetRegions)
