"""Trunks of timm (Wightman 2019) whose regions lie on a known grid: ViT, EVA, Swin, ConvNeXt.

timm is optional: ``pip install medclip-debias[timm]``. Nothing is downloaded; names that point
elsewhere (``hf_hub:``, ``local-dir:``) are not taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from torch import Tensor, nn

from medclip_debias.config import ImageEncoderSettings, Settings, validate
from medclip_debias.errors import UserError, did_you_mean, explained, need_packages
from medclip_debias.models.checkpoint import weight_file
from medclip_debias.models.image_encoder import IMAGE_ENCODERS, ImageEncoder, filled
from medclip_debias.models.limits import read_model_json, within_limits

# What pools or classifies, and buffers of older files that timm computes itself.
_HEADS = re.compile(
    r"^(head|head_drop|fc_norm|attn_pool|pre_logits|norm_head)(\.|$)"
    r"|(attn_mask|relative_position_index|relative_coords_table)$"
)
_ANY_SIZE: Mapping[str, Mapping[str, Any]] = {
    "vision_transformer": {"dynamic_img_size": True},
    "eva": {"dynamic_img_size": True},
    "swin_transformer": {"strict_img_size": False},
    "convnext": {},
}
"""Modules of timm that are read, and what lets their networks take any input size."""
_ARGUMENTS = (
    "img_size patch_size embed_dim depth depths dims num_heads mlp_ratio qkv_bias qk_norm "
    "init_values class_token reg_tokens num_reg_tokens no_embed_class pre_norm window_size "
    "drop_rate drop_path_rate ls_init_value conv_mlp use_grn kernel_sizes proj_drop_rate "
    "attn_drop_rate final_norm"
)
Number = int | float | bool | None
Arguments = dict[str, Number | list[Number]]


def _read_alone(arguments: Arguments) -> Arguments:
    if odd := arguments.keys() - set(_ARGUMENTS.split()):
        raise ValueError(f"'{min(odd)}' is not one of the arguments that are read")
    return within_limits(arguments)


class TimmFields(Settings):
    """What a trunk is built from: timm's name, and arguments that differ from the name's own."""

    name: str = Field(pattern=r"^[a-z0-9_]+$", max_length=100)
    in_chans: Literal[1, 3] = 3
    arguments: Annotated[Arguments, AfterValidator(_read_alone)] = Field(default_factory=dict)


class TimmRegions(ImageEncoder):
    """The grid of a timm network before it pools; class and register tokens are left out.

    A network of three channels reads the grey image three times. Position embeddings are
    resampled for other input sizes by timm itself.
    """

    def __init__(self, fields: TimmFields, where: str = "the settings", arch: str = "timm") -> None:
        super().__init__()
        timm = timm_package()
        self.arch, self.config = arch, fields.model_dump(mode="json")
        self.kind = trunk_kind(fields.name, where)
        extra: dict[str, Any] = dict(fields.arguments) | dict(_ANY_SIZE[self.kind])
        with explained(
            f"{where}: timm cannot build '{fields.name}' with these settings", Exception
        ):
            trunk = timm.create_model(
                fields.name, pretrained=False, num_classes=0, in_chans=fields.in_chans, **extra
            )
        for name in ("head", "fc_norm", "attn_pool"):
            if isinstance(getattr(trunk, name, None), nn.Module):
                setattr(trunk, name, nn.Identity())
        self.trunk: Any = trunk
        self.width, self.channels = int(trunk.num_features), fields.in_chans
        self.stride = self.side_multiple = trunk_stride(
            trunk, self.kind, f"{where}: '{fields.name}'"
        )
        # Patches and their mergers never overlap, and other convolutions are centred.
        self.first_centre = self.stride / 2

    @classmethod
    def build(cls, settings: ImageEncoderSettings) -> TimmRegions:
        if settings.weights == "library":
            raise UserError("timm's weights are read from a local folder or file alone.")
        path = None if settings.weights is None else Path(settings.weights)
        fields = _fields(path, settings.name)
        where = "setting 'model.image.name'" if path is None else str(path)
        if path is None:
            return cls(fields, where)
        file = weight_file(path) if path.is_dir() else path
        return filled(partial(cls, fields, where), file, _HEADS, where)

    @classmethod
    def rebuild(cls, arch: str, config: Mapping[str, Any], where: str) -> TimmRegions:
        return cls(validate(TimmFields, config, where, "image_config."), where, arch)

    @property
    def layers(self) -> list[nn.Module]:
        return trunk_layers(self.trunk, self.kind)

    @property
    def above(self) -> list[nn.Module]:
        return [self.trunk.norm_pre if self.kind == "convnext" else self.trunk.norm]

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = self.trunk.forward_features(images.expand(-1, self.channels, -1, -1))
        if self.kind == "convnext":
            return x
        if self.kind == "swin_transformer":
            return x.permute(0, 3, 1, 2)
        rows, columns = (side // self.stride for side in images.shape[2:])
        patches = x[:, self.trunk.num_prefix_tokens :]
        return patches.transpose(1, 2).unflatten(2, (rows, columns))


def timm_package() -> Any:
    need_packages("Image encoders of arch: timm", "timm", "timm")
    import timm

    return timm


def trunk_kind(name: str, where: str) -> str:
    """The module of timm that a network is from, one whose regions' places are known."""
    timm = timm_package()
    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models())
        raise UserError(f"{where}: timm {timm.__version__} has no model '{name}'{hint}.")
    kind = str(timm.model_entrypoint(name).__module__.rpartition(".")[2])
    if kind not in _ANY_SIZE:
        raise UserError(
            f"{where}: '{name}' is of timm's {kind}, whose regions' places are not known here; "
            f"networks of {', '.join(_ANY_SIZE)} can be read."
        )
    return kind


def trunk_layers(trunk: Any, kind: str) -> list[nn.Module]:
    """Transformer blocks of ViT and EVA, stages of Swin and ConvNeXt, the lowest first."""
    names = {"swin_transformer": "layers", "convnext": "stages"}
    return list(getattr(trunk, names.get(kind, "blocks")))


def trunk_stride(trunk: Any, kind: str, what: str) -> int:
    """Input pixels of a region; refuses networks whose patches overlap."""
    if kind == "convnext":
        stem, steps = trunk.stem[0], [stage.downsample for stage in trunk.stages]
        convolutions = [stem, *(m for step in steps for m in step.modules())]
        convolutions = [m for m in convolutions if isinstance(m, nn.Conv2d)]
        apart = all(c.kernel_size == c.stride and c.padding == (0, 0) for c in convolutions)
        # A stage of stride 1 changes its width by a convolution of one pixel.
        if not apart or len(trunk.stem) > 2:
            raise UserError(f"{what} has patches that overlap; its regions' places are not known.")
        product = 1
        for convolution in convolutions:
            product *= int(convolution.stride[0])
        return product
    project = getattr(trunk.patch_embed, "proj", None)
    size = trunk.patch_embed.patch_size
    plain = isinstance(project, nn.Conv2d) and project.kernel_size == project.stride
    if not plain or size[0] != size[1]:
        raise UserError(f"{what} does not cut its input into square patches; it is not read.")
    if kind == "swin_transformer":
        return int(size[0]) * 2 ** (len(trunk.layers) - 1)
    return int(size[0])


def _fields(path: Path | None, name: str | None) -> TimmFields:
    """What to build: from ``config.json`` of a folder as timm saves it, or by name alone."""
    config = path / "config.json" if path is not None and path.is_dir() else None
    if config is None or not config.is_file():
        if name is None:
            raise UserError(
                "setting 'model.image.name' is missing: arch timm needs timm's name of the model, "
                "or in 'model.image.weights' a folder with config.json and model.safetensors."
            )
        return validate(TimmFields, {"name": name.partition(".")[0]}, "setting 'model.image.name'")
    content = read_model_json(config)
    stated = str(content.get("architecture", "")).partition(".")[0]
    if name is not None and name.partition(".")[0] != stated:
        raise UserError(
            f"{config}: is of '{stated}', but setting 'model.image.name' is '{name}'; leave it out."
        )
    arguments = dict(content.get("model_args") or {})
    content = {"name": stated, "in_chans": arguments.pop("in_chans", 3)}
    for unread in ("num_classes", "global_pool", "dynamic_img_size", "strict_img_size"):
        arguments.pop(unread, None)
    return validate(TimmFields, content | {"arguments": arguments}, str(config), "model_args.")


IMAGE_ENCODERS.add("timm", TimmRegions)
