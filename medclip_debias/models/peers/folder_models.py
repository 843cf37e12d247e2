"""Folders as transformers writes them: its SigLIP and CLIP families, and DINOv2 (RAD-DINO)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.models.backbones.dinov2 import Dinov2Regions
from medclip_debias.models.checkpoint import shape_of
from medclip_debias.models.limits import read_model_json
from medclip_debias.models.peers.checkpoints import Published
from medclip_debias.models.peers.families import read_processor
from medclip_debias.models.peers.settings import ImageSettings, Kind, PeerSettings, TextSettings
from medclip_debias.models.peers.tokenizers import ClipTokenizer, NoTokenizer, read_pieces
from medclip_debias.models.text_encoder import check_vocabulary

MODEL_TYPES: Mapping[Kind, tuple[str, ...]] = {
    "siglip": ("siglip", "siglip2"),
    "clip": ("clip",),
    "rad_dino": ("dinov2", "dinov2_with_registers"),
}
"""The kinds whose weights are a folder, and ``model_type`` of their ``config.json``."""
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
_PATCHES = "image.tower.embeddings.patch_embedding.weight"


def read_folder(kind: Kind, folder: Path, named: dict[str, Tensor], where: str) -> Published:
    """A folder of SigLIP, CLIP or DINOv2.

    SigLIP and SigLIP 2 (MedSigLIP, XraySigLIP; of NaFlex the square of as many patches as it has
    positions), CLIP (XrayCLIP, PubMedCLIP), RAD-DINO and other DINOv2 (images alone).
    """
    file = folder / "config.json"
    if not file.is_file():
        raise UserError(
            f"{folder}: there is no config.json; give the whole folder as transformers writes it "
            "(config.json, model.safetensors, preprocessor_config.json, tokenizer.json)."
        )
    content = read_model_json(file)
    processor = folder / "preprocessor_config.json"
    if content.get("model_type") not in MODEL_TYPES[kind]:
        raise UserError(
            f"{file}: model_type is {content.get('model_type')!r}; "
            f"{' and '.join(MODEL_TYPES[kind])} can be read as this kind."
        )
    if kind == "rad_dino":
        with torch.device("meta"):
            network = Dinov2Regions("dinov2", content, str(file))
        settings = PeerSettings(
            kind=kind,
            dim=network.width,
            max_tokens=3,
            image=ImageSettings(kind="rad_dino", config=network.config),
            text=TextSettings(kind="none"),
        )
        return settings, network.from_file(named), NoTokenizer(), read_processor(kind, processor)
    stated = content.get("vision_config") or {}
    if kind == "siglip":
        if stated.get("vision_use_head", True) is not True:
            raise UserError(f"{file}: 'vision_use_head' is off, which is not read.")
        named = _patches_as_convolution(named, where)
    vision, words = (_sizes(kind, part, content, file) for part in ("vision_config", "text_config"))
    width, _, _, patch = shape_of(named, _PATCHES)
    positions = shape_of(named, "image.tower.embeddings.position_embedding.weight")[0]
    usual = None if content["model_type"] == "siglip2" else 224
    size = _image_size(positions - (kind == "clip"), patch, stated.get("image_size", usual), where)
    vision |= {"patch_size": patch, "image_size": size}
    embeddings = "text.tower.embeddings."
    words["vocab_size"] = shape_of(named, f"{embeddings}token_embedding.weight")[0]
    context = shape_of(named, f"{embeddings}position_embedding.weight")[0]
    words["max_position_embeddings"] = context
    if kind == "siglip":
        words["projection_size"] = shape_of(named, "text.tower.head.weight")[0]
    else:
        width = shape_of(named, "image.projection.weight")[0]
    tokenizer = _tokenizer(kind, folder)
    check_vocabulary(tokenizer, words["vocab_size"], where)
    image = {"kind": "hf_clip", "config": vision}
    text = {"kind": "hf_clip", "config": words, "pad": tokenizer.pad_id}
    text["pieces"] = kind == "siglip"
    settings = PeerSettings(
        kind=kind,
        dim=width,
        max_tokens=context,
        image=validate(ImageSettings, image, str(file), "vision_config."),
        text=validate(TextSettings, text, str(file), "text_config."),
    )
    return settings, named, tokenizer, read_processor(kind, processor, image_size=size)


def _tokenizer(kind: Kind, folder: Path) -> ClipTokenizer:
    if kind == "siglip":
        return read_pieces(folder)
    if (folder / "tokenizer.json").is_file():
        return ClipTokenizer.load(folder)
    if (folder / "merges.txt").is_file():
        return ClipTokenizer.from_merges(folder / "merges.txt")
    raise UserError(f"{folder}: holds no tokenizer: neither tokenizer.json nor merges.txt.")


def _sizes(kind: Kind, part: str, content: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """What a configuration says of a tower and no tensor tells."""
    stated = content.get(part) or {}
    sizes = dict(_DEFAULTS[kind]) | {name: stated[name] for name in _SIZES if name in stated}
    if sizes["hidden_act"] not in _ACTIVATIONS:
        raise UserError(f"{file}: {part}.hidden_act {sizes['hidden_act']!r} is not read.")
    return sizes


def _patches_as_convolution(named: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """NaFlex maps flattened patches (row, column, channel) by a matrix: the same convolution."""
    shape = shape_of(named, _PATCHES)
    if len(shape) == 4:
        return named
    patch = round((shape[1] / 3) ** 0.5) if len(shape) == 2 else 0
    if 3 * patch * patch != shape[-1]:
        raise UserError(f"{where}: its patch embedding is not square with three channels.")
    filters = named[_PATCHES].unflatten(1, (patch, patch, 3)).permute(0, 3, 1, 2)
    return {**named, _PATCHES: filters.contiguous()}


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
