"""Folders as transformers writes them: its SigLIP and CLIP families, and DINOv2 (RAD-DINO).

A folder holds ``config.json``, ``model.safetensors`` (or ``pytorch_model.bin``), the tokenizer, and
``preprocessor_config.json``. Nothing in it is run; the networks are transformers' own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.models.backbones.dinov2 import Dinov2Regions
from medclip_debias.models.checkpoint import Names, renamed, shape_of
from medclip_debias.models.peers.settings import (
    HfClipSettings,
    HfClipTextSettings,
    Kind,
    NoTextSettings,
    PeerSettings,
    RadDinoSettings,
)
from medclip_debias.models.peers.tokenizers import (
    ClipTokenizer,
    NoTokenizer,
    PeerTokenizer,
    checked,
    read_pieces,
)

State = Mapping[str, Tensor]
FolderRead = tuple[PeerSettings, dict[str, Tensor], PeerTokenizer]
_LARGEST = 16 << 20

NAMES: Names = (
    (r"^(logit_scale|logit_bias)$", None),
    (r"position_ids$", None),
    (r"^vision_model\.", "image.tower."),
    (r"^visual_projection\.", "image.projection."),
    (r"^text_model\.", "text.tower."),
    (r"^text_projection\.", "text.projection."),
)
_SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("hidden_act", "layer_norm_eps"),
)
"""What is read of ``vision_config`` and ``text_config`` beside the tensors' own sizes."""
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "siglip": {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    "clip": {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
}
_ACTIVATIONS = ("gelu", "quick_gelu", "gelu_pytorch_tanh")


def read_siglip(folder: Path, state: State, where: str) -> FolderRead:
    """SigLIP and SigLIP 2 (Zhai et al. 2023, Tschannen et al. 2025): MedSigLIP, XraySigLIP.

    Of SigLIP 2's NaFlex the square of as many patches as it has positions is read.
    """
    content = _config(folder, ("siglip", "siglip2"))
    if (content.get("vision_config") or {}).get("vision_use_head", True) is not True:
        raise UserError(f"{folder}/config.json: 'vision_use_head' is off, which is not read.")
    state = _patches_as_convolution(state, where)
    image, text = _towers("siglip", folder, content, state, where, class_token=0)
    tokenizer = read_pieces(folder)
    checked(tokenizer, text.config["vocab_size"], where)
    text = text.model_copy(update={"pad": tokenizer.pad_id})
    width = shape_of(state, "vision_model.embeddings.patch_embedding.weight", where)[0]
    return _peer("siglip", width, image, text), renamed(state, NAMES), tokenizer


def read_clip(folder: Path, state: State, where: str) -> FolderRead:
    """CLIP in transformers' names and configuration: XrayCLIP, PubMedCLIP."""
    content = _config(folder, ("clip",))
    image, text = _towers("clip", folder, content, state, where, class_token=1)
    tokenizer = clip_tokenizer(folder)
    checked(tokenizer, text.config["vocab_size"], where)
    dim = shape_of(state, "visual_projection.weight", where)[0]
    return _peer("clip", dim, image, text), renamed(state, NAMES), tokenizer


def read_rad_dino(folder: Path, state: State, _: str) -> FolderRead:
    """RAD-DINO (Pérez-García et al. 2024) and other DINOv2: images alone."""
    content = _config(folder, ("dinov2", "dinov2_with_registers"))
    with torch.device("meta"):
        network = Dinov2Regions("dinov2", content, f"{folder}/config.json")
        named = network.from_file(state)
    settings = PeerSettings(
        kind="rad_dino",
        dim=network.width,
        max_tokens=3,
        image=RadDinoSettings(config=network.config),
        text=NoTextSettings(),
    )
    return settings, {f"image.encoder.trunk.{k}": v for k, v in named.items()}, NoTokenizer()


READERS: Mapping[Kind, Callable[[Path, State, str], FolderRead]] = {
    "siglip": read_siglip,
    "clip": read_clip,
    "rad_dino": read_rad_dino,
}
"""The kinds whose weights are a folder."""


def clip_tokenizer(folder: Path) -> ClipTokenizer:
    """CLIP's tokenizer from ``tokenizer.json`` or ``merges.txt``."""
    if (folder / "tokenizer.json").is_file():
        return ClipTokenizer.load(folder)
    if (folder / "merges.txt").is_file():
        return ClipTokenizer.from_merges(folder / "merges.txt")
    raise UserError(f"{folder}: holds no tokenizer: neither tokenizer.json nor merges.txt.")


# ------------------------------------------------------------------------------ configuration


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        raise UserError(
            f"{folder}: there is no {name}; give the whole folder as transformers writes it "
            "(config.json, model.safetensors, preprocessor_config.json, tokenizer.json)."
        )
    return read_json(path, "copy the model folder again", limit=_LARGEST)


def _config(folder: Path, types: tuple[str, ...]) -> dict[str, Any]:
    content = _json(folder, "config.json")
    if content.get("model_type") not in types:
        raise UserError(
            f"{folder}/config.json: model_type is {content.get('model_type')!r}; "
            f"{' and '.join(types)} can be read as this kind."
        )
    return content


def _towers(
    family: Literal["siglip", "clip"],
    folder: Path,
    content: Mapping[str, Any],
    state: State,
    where: str,
    *,
    class_token: int,
) -> tuple[HfClipSettings, HfClipTextSettings]:
    """Both towers' settings: sizes that a tensor tells are the tensor's."""
    file = f"{folder}/config.json"
    parts = {}
    for part in ("vision_config", "text_config"):
        given = content.get(part) or {}
        parts[part] = {name: given[name] for name in _SIZES if name in given}
        activation = parts[part].setdefault("hidden_act", _DEFAULTS[family]["hidden_act"])
        parts[part].setdefault("layer_norm_eps", _DEFAULTS[family]["layer_norm_eps"])
        if activation not in _ACTIVATIONS:
            raise UserError(f"{file}: {part}.hidden_act {activation!r} is not read.")
    name = "vision_model.embeddings.patch_embedding.weight"
    patch = shape_of(state, name, where)[-1]
    name = "vision_model.embeddings.position_embedding.weight"
    places = shape_of(state, name, where)[0] - class_token
    stated = (content.get("vision_config") or {}).get("image_size")
    default = 224 if content.get("model_type") in ("siglip", "clip") else None
    size = _image_size(places, patch, stated or default, where)
    vision = parts["vision_config"] | {"patch_size": patch, "image_size": size}
    vocabulary = shape_of(state, "text_model.embeddings.token_embedding.weight", where)[0]
    context = shape_of(state, "text_model.embeddings.position_embedding.weight", where)[0]
    words = parts["text_config"] | {
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
    }
    if family == "siglip":
        words["projection_size"] = shape_of(state, "text_model.head.weight", where)[0]
    image, text = ({"family": family, "config": config} for config in (vision, words))
    return (
        validate(HfClipSettings, image, file, "vision_config."),
        validate(HfClipTextSettings, text, file, "text_config."),
    )


def _peer(kind: Kind, dim: int, image: HfClipSettings, text: HfClipTextSettings) -> PeerSettings:
    context = text.config["max_position_embeddings"]
    return PeerSettings(kind=kind, dim=dim, max_tokens=context, image=image, text=text)


def _patches_as_convolution(state: State, where: str) -> dict[str, Tensor]:
    """NaFlex maps flattened patches (row, column, channel) by a matrix: the same convolution."""
    name = "vision_model.embeddings.patch_embedding.weight"
    shape = shape_of(state, name, where)
    if len(shape) == 4:
        return dict(state)
    patch = round((shape[1] / 3) ** 0.5) if len(shape) == 2 else 0
    if 3 * patch * patch != shape[-1]:
        raise UserError(f"{where}: the map of its patches is of no square of three channels.")
    filters = state[name].unflatten(1, (patch, patch, 3)).permute(0, 3, 1, 2)
    return {**state, name: filters.contiguous()}


def _image_size(places: int, patch: int, stated: int | None, where: str) -> int:
    """Side of the input that has these positions; a rim of less than a patch may be unread."""
    side = round(max(places, 0) ** 0.5)
    size = side * patch if stated is None else stated
    if side * side != places or not side or size // patch != side:
        raise UserError(
            f"{where}: its {places} positions do not belong to square patches of {patch} in an "
            f"image of {size} pixels."
        )
    return size
