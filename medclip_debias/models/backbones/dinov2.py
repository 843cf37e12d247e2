"""Vision transformers of the DINOv2 family (Oquab et al. 2023), in transformers' own modules.

``dinov2`` reads a folder as RAD-DINO's (Pérez-García et al. 2024) or DINOv2's own: ``config.json``
and ``model.safetensors``. ``vit_*_scratch`` are the same module with sizes for training from
random weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from medclip_debias.config import ImageEncoderSettings, Settings
from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.models.bert_config import Activation, check_room, checked_fields
from medclip_debias.models.image_encoder import (
    IMAGE_ENCODERS,
    ImageEncoder,
    read_state,
    trunk_tensors,
    weight_file,
)
from medclip_debias.models.peers.checkpoint import load_strictly

_HEADS = re.compile(r"^(classifier|decode_head|head)\.")
_NAMES = (
    (".attention.attention.query.", ".attention.q_proj."),
    (".attention.attention.key.", ".attention.k_proj."),
    (".attention.attention.value.", ".attention.v_proj."),
    (".attention.output.dense.", ".attention.o_proj."),
    (".mlp.weights_out.", ".mlp.down_proj."),
)
"""Names of published files, and of later versions of transformers."""


class Dinov2Fields(Settings):
    """The fields of ``config.json`` that are read, with transformers' defaults and limits."""

    model_type: Literal["dinov2", "dinov2_with_registers"] = "dinov2"
    hidden_size: int = Field(768, ge=1, le=16_384)
    num_hidden_layers: int = Field(12, ge=1, le=256)
    num_attention_heads: int = Field(12, ge=1, le=1024)
    mlp_ratio: int = Field(4, ge=1, le=64)
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = Field(0.0, ge=0, le=1)
    attention_probs_dropout_prob: float = Field(0.0, ge=0, le=1)
    initializer_range: float = Field(0.02, ge=0, le=10)
    layer_norm_eps: float = Field(1e-6, ge=0, le=1)
    image_size: int = Field(224, ge=1, le=8192)
    patch_size: int = Field(14, ge=1, le=1024)
    num_channels: Literal[1, 3] = 3
    qkv_bias: bool = True
    layerscale_value: float = Field(1.0, ge=0, le=100)
    drop_path_rate: float = Field(0.0, ge=0, lt=1)
    use_swiglu_ffn: bool = False
    use_mask_token: bool = True
    num_register_tokens: int | None = Field(None, ge=0, le=1024)

    @model_validator(mode="after")
    def _fit(self) -> Dinov2Fields:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("num_attention_heads must divide hidden_size")
        if self.patch_size > self.image_size:
            raise ValueError("patch_size must not be above image_size")
        return self

    @property
    def registers(self) -> int:
        """Tokens beside the class token that belong to no patch (Darcet et al. 2024)."""
        if self.model_type == "dinov2":
            return 0
        return 4 if self.num_register_tokens is None else self.num_register_tokens


SCRATCH: Mapping[str, Dinov2Fields] = {
    name: Dinov2Fields(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        image_size=image,
        patch_size=patch,
        num_channels=1,
        use_mask_token=False,
    )
    for name, width, layers, image, patch in (
        ("vit_tiny_scratch", 128, 4, 64, 8),
        ("vit_small_scratch", 192, 6, 64, 8),
        ("vit_base_scratch", 768, 12, 518, 14),
    )
}
"""Sizes to train from random weights: for 64 pixels, and RAD-DINO's own."""


class Dinov2Regions(ImageEncoder):
    """The patches of a DINOv2 after its last norm; class token and registers are left out.

    Positions are interpolated for other input sizes as transformers does (bicubic). A network of
    three channels reads the grey image three times.

    Args:
        arch: ``dinov2``, or a name in `SCRATCH`.
        fields: sizes.
    """

    def __init__(self, arch: str, fields: Dinov2Fields) -> None:
        import transformers

        super().__init__()
        self.arch = arch
        self.config = fields.model_dump(mode="json")
        self.width = fields.hidden_size
        self.stride = self.side_multiple = fields.patch_size
        self.first_centre = fields.patch_size / 2
        self.channels, self.prefix = fields.num_channels, 1 + fields.registers
        sizes = fields.model_dump(exclude={"model_type", "num_register_tokens"})
        if fields.model_type == "dinov2":
            made: Any = transformers.Dinov2Config(**sizes)
            self.trunk: nn.Module = transformers.Dinov2Model(made)
        else:
            del sizes["use_mask_token"]  # this one always has it
            sizes["num_register_tokens"] = fields.registers
            made = transformers.Dinov2WithRegistersConfig(**sizes)
            self.trunk = transformers.Dinov2WithRegistersModel(made)
        for name, parameter in self.trunk.named_parameters():
            if name.endswith("mask_token"):  # of its own training, on images with holes
                parameter.requires_grad_(False)

    @classmethod
    def build(cls, settings: ImageEncoderSettings) -> Dinov2Regions:
        """From the folder ``settings.weights``, or with random weights of the named sizes."""
        if settings.weights == "library":
            raise UserError(
                f"{settings.arch} has no library weights; give a folder in model.image.weights"
                + ("." if settings.arch == "dinov2" else ", or null.")
            )
        if settings.weights is None:
            if settings.arch not in SCRATCH:
                raise UserError(
                    "setting 'model.image.weights' must name the folder of a DINOv2 "
                    "(config.json, model.safetensors); to start from random weights choose one of "
                    f"{', '.join(SCRATCH)}."
                )
            return cls(settings.arch, SCRATCH[settings.arch])
        folder = Path(settings.weights)
        fields, where = _folder_fields(folder, settings.arch), f"{folder}/config.json"
        path = weight_file(folder)
        with torch.device("meta"):
            check_room(cls(settings.arch, fields), path, where)
        encoder = cls(settings.arch, fields)
        state = trunk_tensors(read_state(path), ["embeddings.cls_token"], _HEADS)
        load_strictly(encoder.trunk, encoder.from_file(state), str(path))
        return encoder

    @classmethod
    def rebuild(cls, arch: str, config: Mapping[str, Any], where: str) -> Dinov2Regions:
        """From the sizes that a model folder holds."""
        return cls(arch, checked_fields(Dinov2Fields, config, where, "image_config."))

    @property
    def layers(self) -> list[nn.Module]:
        """The transformer's blocks."""
        return list(next(m for m in self.trunk.modules() if isinstance(m, nn.ModuleList)))

    @property
    def above(self) -> list[nn.Module]:
        """The last norm."""
        return [self.trunk.get_submodule("layernorm")]

    @property
    def _renamed(self) -> bool:
        """Whether this version of transformers names the maps of its blocks anew."""
        return any(".q_proj." in name for name, _ in self.trunk.named_parameters())

    def from_file(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Published names to this version's; a fused gate is cut in two, the gate first."""
        if not self._renamed:
            return dict(state)
        found = {}
        for key, value in state.items():
            if ".mlp.weights_in." in key:
                for name, half in zip(("gate_proj", "up_proj"), value.chunk(2), strict=True):
                    found[key.replace("weights_in", name)] = half
                continue
            for published, own in _NAMES:
                key = key.replace(published, own)
            found[key] = value
        return found

    def to_file(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """This version's names to the published ones."""
        if not self._renamed:
            return dict(state)
        found = {}
        for key, value in state.items():
            if ".mlp.up_proj." in key:
                continue
            if ".mlp.gate_proj." in key:
                halves = [value, state[key.replace("gate_proj", "up_proj")]]
                found[key.replace("gate_proj", "weights_in")] = torch.cat(halves)
                continue
            for published, own in _NAMES:
                key = key.replace(own, published)
            found[key] = value
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Map ``[B, 1, H, W]`` to ``[B, C, H / patch, W / patch]``."""
        tokens: Tensor = self.trunk(images.expand(-1, self.channels, -1, -1)).last_hidden_state
        rows, columns = (side // self.stride for side in images.shape[2:])
        return tokens[:, self.prefix :].transpose(1, 2).unflatten(2, (rows, columns))


def _folder_fields(folder: Path, arch: str) -> Dinov2Fields:
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(
            f"{folder}: there is no config.json; 'model.image.weights' of {arch} is a folder with "
            "config.json and model.safetensors, as transformers writes it."
        )
    content = read_json(path, "copy the model folder again", limit=16 << 20)
    if content.get("model_type") not in ("dinov2", "dinov2_with_registers"):
        raise UserError(
            f"{path}: model_type is {content.get('model_type')!r}; dinov2 and "
            "dinov2_with_registers can be read."
        )
    fields = checked_fields(Dinov2Fields, content, str(path), "")
    expected = SCRATCH.get(arch)
    if expected is not None and fields != expected:
        raise UserError(f"{path}: these sizes are not of {arch}; set model.image.arch to dinov2.")
    return fields


for _arch in ("dinov2", *SCRATCH):
    IMAGE_ENCODERS.add(_arch, Dinov2Regions)
