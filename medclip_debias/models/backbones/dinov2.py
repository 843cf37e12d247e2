"""Vision transformers of the DINOv2 family (Oquab et al. 2023), in transformers' own modules.

``dinov2`` reads a folder as RAD-DINO's (Pérez-García et al. 2024) or DINOv2's own;
``vit_*_scratch`` are the same module with sizes for training from random weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medclip_debias.config import ImageEncoderSettings
from medclip_debias.errors import UserError
from medclip_debias.models.checkpoint import weight_file
from medclip_debias.models.image_encoder import IMAGE_ENCODERS, ImageEncoder, filled
from medclip_debias.models.limits import hf_config, read_model_json

_SIZES = (
    *("mlp_ratio", "hidden_act", "layer_norm_eps", "qkv_bias", "layerscale_value"),
    *("drop_path_rate", "use_swiglu_ffn", "num_register_tokens", "initializer_range"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob"),
)
"""What a model folder keeps of the sizes beside those of `SCRATCH`."""
_HEADS = re.compile(r"^(classifier|decode_head|head)\.")
_NAMES = (
    (".attention.attention.query.", ".attention.q_proj."),
    (".attention.attention.key.", ".attention.k_proj."),
    (".attention.attention.value.", ".attention.v_proj."),
    (".attention.output.dense.", ".attention.o_proj."),
    (".mlp.weights_out.", ".mlp.down_proj."),
)
"""Names of published files, and of later versions of transformers."""


SCRATCH: Mapping[str, Mapping[str, Any]] = {
    name: {
        "model_type": "dinov2",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "image_size": image,
        "patch_size": patch,
        "num_channels": 1,
        "use_mask_token": False,
    }
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
    """

    layer_lists = ("trunk.encoder.layer",)
    after_layers = ("trunk.layernorm",)

    def __init__(self, arch: str, config: Mapping[str, Any], where: str = "config.json") -> None:
        from transformers import AutoModel

        super().__init__()
        kind = config.get("model_type", "dinov2")
        if kind not in ("dinov2", "dinov2_with_registers"):
            raise UserError(
                f"{where}: model_type is {kind!r}; dinov2 and dinov2_with_registers can be read."
            )
        made: Any = hf_config({**config, "model_type": kind}, where, "image_config.")
        if made.num_channels not in (1, 3):
            raise UserError(f"{where}: num_channels is {made.num_channels}; 1 and 3 are read.")
        names = {"model_type", *SCRATCH["vit_base_scratch"], *_SIZES}
        self.config = {name: value for name, value in made.to_dict().items() if name in names}
        self.arch, self.width, self.channels = arch, made.hidden_size, made.num_channels
        self.stride = self.side_multiple = made.patch_size
        self.first_centre = made.patch_size / 2
        # Registers belong to no patch (Darcet et al. 2024), nor does the class token.
        self.prefix = 1 + int(getattr(made, "num_register_tokens", 0))
        self.trunk: nn.Module = AutoModel.from_config(made, trust_remote_code=False)
        for name, parameter in self.trunk.named_parameters():
            if name.endswith("mask_token"):  # of its own training, on images with holes
                parameter.requires_grad_(False)

    @classmethod
    def build(cls, settings: ImageEncoderSettings) -> Dinov2Regions:
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
        where = f"{folder}/config.json"
        if not (folder / "config.json").is_file():
            raise UserError(
                f"{folder}: there is no config.json; 'model.image.weights' of {settings.arch} is a "
                "folder with config.json and model.safetensors, as transformers writes it."
            )
        config = {"model_type": None} | read_model_json(folder / "config.json")
        build = partial(cls, settings.arch, config, where)
        encoder = filled(build, weight_file(folder), _HEADS, where)
        sizes = SCRATCH.get(settings.arch, {})
        if any(encoder.config.get(name) != value for name, value in sizes.items()):
            raise UserError(
                f"{where}: these sizes are not of {settings.arch}; set model.image.arch to dinov2."
            )
        return encoder

    @classmethod
    def rebuild(cls, arch: str, config: Mapping[str, Any], where: str) -> Dinov2Regions:
        return cls(arch, config, where)

    @staticmethod
    def from_file(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        renamed = {}
        for key, value in state.items():
            if ".mlp.weights_in." in key:
                for name, half in zip(("gate_proj", "up_proj"), value.chunk(2), strict=True):
                    renamed[key.replace("weights_in", name)] = half
                continue
            for published, own in _NAMES:
                key = key.replace(published, own)
            renamed[key] = value
        return renamed

    @staticmethod
    def to_file(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        renamed = {}
        for key, value in state.items():
            if ".mlp.up_proj." in key:
                continue
            if ".mlp.gate_proj." in key:
                halves = [value, state[key.replace("gate_proj", "up_proj")]]
                renamed[key.replace("gate_proj", "weights_in")] = torch.cat(halves)
                continue
            for published, own in _NAMES:
                key = key.replace(own, published)
            renamed[key] = value
        return renamed

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.trunk(images.expand(-1, self.channels, -1, -1)).last_hidden_state
        rows, columns = (side // self.stride for side in images.shape[2:])
        return tokens[:, self.prefix :].transpose(1, 2).unflatten(2, (rows, columns))


for _arch in ("dinov2", *SCRATCH):
    IMAGE_ENCODERS.add(_arch, Dinov2Regions)
