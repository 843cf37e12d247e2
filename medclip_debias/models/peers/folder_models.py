"""Folders as transformers writes them: its SigLIP and CLIP families, and DINOv2 (RAD-DINO).

A folder holds ``config.json``, ``model.safetensors`` (or ``pytorch_model.bin``), the tokenizer, and
``preprocessor_config.json``. Nothing in it is run. The networks here are this project's own, under
other names (`medclip_debias.models.peers.vit`); DINOv2's is transformers'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from medclip_debias.config import Settings
from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.models.backbones.dinov2 import Dinov2Fields, Dinov2Regions
from medclip_debias.models.bert_config import checked_fields
from medclip_debias.models.peers.checkpoint import Names, renamed, shape_of
from medclip_debias.models.peers.piece_tokenizer import PieceTokenizer, read_pieces
from medclip_debias.models.peers.settings import (
    ClipTextSettings,
    Kind,
    NoTextSettings,
    PeerPreprocessing,
    PeerSettings,
    RadDinoSettings,
    ViTSettings,
    published_preprocessing,
)
from medclip_debias.models.peers.text import ClipTokenizer, NoTokenizer, checked

Tokenizer = ClipTokenizer | PieceTokenizer | NoTokenizer
State = Mapping[str, Tensor]
FolderRead = tuple[PeerSettings, dict[str, Tensor], Tokenizer]
_LARGEST = 16 << 20

_BLOCKS: Names = (
    (r"^(\w+)_model\.encoder\.layers\.(\d+)\.self_attn\.out_proj\.", r"\1.B.\2.attn.out_proj."),
    (r"^(\w+)_model\.encoder\.layers\.(\d+)\.self_attn\.in_proj_", r"\1.B.\2.attn.in_proj_"),
    (r"^(\w+)_model\.encoder\.layers\.(\d+)\.layer_norm(\d)\.", r"\1.B.\2.ln_\3."),
    (r"^(\w+)_model\.encoder\.layers\.(\d+)\.mlp\.fc1\.", r"\1.B.\2.mlp.c_fc."),
    (r"^(\w+)_model\.encoder\.layers\.(\d+)\.mlp\.fc2\.", r"\1.B.\2.mlp.c_proj."),
)
_PARTS: Names = (
    (r"^(logit_scale|logit_bias)$", None),
    (r"position_ids$", None),
    (r"^vision\.B\.", "image.transformer.resblocks."),
    (r"^text\.B\.", "text.transformer.resblocks."),
    (r"^vision_model\.embeddings\.class_embedding$", "image.class_embedding"),
    (r"^vision_model\.embeddings\.patch_embedding\.", "image.conv1."),
    (r"^vision_model\.embeddings\.position_embedding\.weight$", "image.positional_embedding"),
    (r"^vision_model\.pre_layrnorm\.", "image.ln_pre."),
    (r"^vision_model\.post_layernorm\.", "image.ln_post."),
    (r"^vision_model\.head\.probe$", "image.attn_pool.probe"),
    (r"^vision_model\.head\.attention\.", "image.attn_pool.attn."),
    (r"^vision_model\.head\.layernorm\.", "image.attn_pool.ln."),
    (r"^vision_model\.head\.mlp\.fc1\.", "image.attn_pool.mlp.c_fc."),
    (r"^vision_model\.head\.mlp\.fc2\.", "image.attn_pool.mlp.c_proj."),
    (r"^visual_projection\.weight$", "image.proj"),
    (r"^text_model\.embeddings\.token_embedding\.", "text.token_embedding."),
    (r"^text_model\.embeddings\.position_embedding\.weight$", "text.positional_embedding"),
    (r"^text_model\.final_layer_norm\.", "text.ln_final."),
    (r"^text_model\.head\.", "text.text_projection."),
    (r"^text_projection\.weight$", "text.text_projection"),
)


class _Tower(Settings):
    """What both towers of a configuration have; sizes of tensors are read off the tensors."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    num_attention_heads: int = Field(12, ge=1, le=1024)
    layer_norm_eps: float = Field(1e-6, ge=0, le=1)
    hidden_act: Literal["gelu", "quick_gelu", "gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    image_size: int | None = Field(None, ge=16, le=4096)

    @property
    def activation(self) -> dict[str, bool]:
        return {
            "quick_gelu": self.hidden_act == "quick_gelu",
            "tanh_gelu": self.hidden_act == "gelu_pytorch_tanh",
        }


class _ClipImages(_Tower):
    image_size: int | None = Field(224, ge=16, le=4096)
    layer_norm_eps: float = Field(1e-5, ge=0, le=1)
    hidden_act: Literal["gelu", "quick_gelu", "gelu_pytorch_tanh"] = "quick_gelu"


class _ClipText(_ClipImages):
    num_attention_heads: int = Field(8, ge=1, le=1024)


class _SiglipImages(_Tower):
    vision_use_head: Literal[True] = True
    image_size: int | None = Field(224, ge=16, le=4096)


class _NaflexImages(_SiglipImages):
    image_size: None = None


def read_siglip(folder: Path, state: State, where: str) -> FolderRead:
    """SigLIP and SigLIP 2 (Zhai et al. 2023, Tschannen et al. 2025): MedSigLIP, XraySigLIP.

    Of SigLIP 2's NaFlex the square of as many patches as it has positions is read.
    """
    content = _config(folder, ("siglip", "siglip2"))
    own = _renamed(state)
    naflex = len(shape_of(own, "image.conv1.weight", where)) == 2
    vision, words = _towers(folder, content, _NaflexImages if naflex else _SiglipImages, _Tower)
    own = _patches_as_convolution(own, where)
    width, _, patch, _ = shape_of(own, "image.conv1.weight", where)
    places = shape_of(own, "image.positional_embedding", where)[0]
    image = ViTSettings(
        image_size=_image_size(places, patch, vision.image_size, where),
        patch=patch,
        width=width,
        layers=_layers(own, "image"),
        heads=vision.num_attention_heads,
        hidden=shape_of(own, "image.transformer.resblocks.0.mlp.c_fc.weight", where)[0],
        pre_norm=False,
        patch_bias=True,
        eps=vision.layer_norm_eps,
        pool="map",
        class_token=False,
        projection=False,
        pool_heads=vision.num_attention_heads,
        pool_hidden=shape_of(own, "image.attn_pool.mlp.c_fc.weight", where)[0],
        **vision.activation,
    )
    context = shape_of(own, "text.positional_embedding", where)[0]
    vocabulary = shape_of(own, "text.token_embedding.weight", where)[0]
    tokenizer = read_pieces(folder)
    checked(tokenizer, vocabulary, where)
    text = ClipTextSettings(
        context=context,
        vocabulary=vocabulary,
        heads=words.num_attention_heads,
        eps=words.layer_norm_eps,
        causal=False,
        pool="last",
        bias=True,
        pad=tokenizer.pad_id,
        pieces=True,
        **_text_sizes(own, where),
        **words.activation,
    )
    return _peer("siglip", width, context, image, text), own, tokenizer


def read_clip(folder: Path, state: State, where: str) -> FolderRead:
    """CLIP in transformers' names and configuration: XrayCLIP, PubMedCLIP."""
    vision, words = _towers(folder, _config(folder, ("clip",)), _ClipImages, _ClipText)
    own = _renamed(state)
    width, _, patch, _ = shape_of(own, "image.conv1.weight", where)
    places = shape_of(own, "image.positional_embedding", where)[0] - 1
    image = ViTSettings(
        image_size=_image_size(places, patch, vision.image_size, where),
        patch=patch,
        width=width,
        layers=_layers(own, "image"),
        heads=vision.num_attention_heads,
        hidden=shape_of(own, "image.transformer.resblocks.0.mlp.c_fc.weight", where)[0],
        eps=vision.layer_norm_eps,
        **vision.activation,
    )
    context = shape_of(own, "text.positional_embedding", where)[0]
    vocabulary = shape_of(own, "text.token_embedding.weight", where)[0]
    for name in ("image.proj", "text.text_projection"):
        shape_of(own, name, where)
        own[name] = own[name].T.contiguous()
    tokenizer = clip_tokenizer(folder)
    checked(tokenizer, vocabulary, where)
    text = ClipTextSettings(
        context=context,
        vocabulary=vocabulary,
        heads=words.num_attention_heads,
        eps=words.layer_norm_eps,
        **_text_sizes(own, where),
        **words.activation,
    )
    return _peer("clip", own["image.proj"].shape[1], context, image, text), own, tokenizer


def read_rad_dino(folder: Path, state: State, _: str) -> FolderRead:
    """RAD-DINO (Pérez-García et al. 2024) and other DINOv2: images alone."""
    content = _config(folder, ("dinov2", "dinov2_with_registers"))
    fields = checked_fields(Dinov2Fields, content, f"{folder}/config.json", "")
    with torch.device("meta"):
        named = Dinov2Regions("dinov2", fields).from_file(state)
    settings = PeerSettings(
        kind="rad_dino",
        dim=fields.hidden_size,
        max_tokens=3,
        image=RadDinoSettings(config=fields.model_dump(mode="json")),
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
    folder: Path, content: Mapping[str, Any], images: type[_Tower], words: type[_Tower]
) -> tuple[_Tower, _Tower]:
    where = f"{folder}/config.json"
    return (
        checked_fields(images, content.get("vision_config") or {}, where, "vision_config."),
        checked_fields(words, content.get("text_config") or {}, where, "text_config."),
    )


def _peer(
    kind: Kind, dim: int, context: int, image: ViTSettings, text: ClipTextSettings
) -> PeerSettings:
    return PeerSettings(kind=kind, dim=dim, max_tokens=context, image=image, text=text)


# ------------------------------------------------------------------------------------ tensors


def _renamed(state: State) -> dict[str, Tensor]:
    """Names of `medclip_debias.models.peers.vit`, queries, keys and values in one matrix."""
    joined: dict[str, Tensor] = {}
    for key, value in state.items():
        stem, part, rest = key.partition(".self_attn.q_proj.")
        if part:
            others = [f"{stem}.self_attn.{name}_proj.{rest}" for name in ("k", "v")]
            if all(name in state for name in others):
                three = [value, *(state[name] for name in others)]
                joined[f"{stem}.self_attn.in_proj_{rest}"] = torch.cat(three)
                continue
        fused = any(f".self_attn.{name}_proj." in key for name in ("k", "v"))
        first = key.replace(".self_attn.k_proj.", ".self_attn.q_proj.")
        if not (fused and first.replace(".self_attn.v_proj.", ".self_attn.q_proj.") in state):
            joined[key] = value
    return renamed(renamed(joined, _BLOCKS), _PARTS)


def _patches_as_convolution(state: dict[str, Tensor], where: str) -> dict[str, Tensor]:
    """NaFlex maps flattened patches (row, column, channel) by a matrix: the same convolution."""
    name = "image.conv1.weight"
    shape = shape_of(state, name, where)
    if len(shape) == 4:
        return state
    patch = round((shape[1] / 3) ** 0.5) if len(shape) == 2 else 0
    if 3 * patch * patch != shape[-1]:
        raise UserError(f"{where}: the map of its patches is of no square of three channels.")
    filters = state[name].unflatten(1, (patch, patch, 3)).permute(0, 3, 1, 2)
    return {**state, name: filters.contiguous()}


def _image_size(places: int, patch: int, said: int | None, where: str) -> int:
    """Side of the input that has these positions; a rim of less than a patch may be unread."""
    side = round(max(places, 0) ** 0.5)
    size = side * patch if said is None else said
    if side * side != places or not side or size // patch != side:
        raise UserError(
            f"{where}: its {places} positions do not belong to square patches of {patch} in an "
            f"image of {size} pixels."
        )
    return size


def _layers(state: State, tower: str) -> int:
    start = f"{tower}.transformer.resblocks."
    numbers = {key.removeprefix(start).partition(".")[0] for key in state if key.startswith(start)}
    return 1 + max((int(number) for number in numbers), default=0)


def _text_sizes(state: State, where: str) -> dict[str, int]:
    return {
        "width": shape_of(state, "text.token_embedding.weight", where)[1],
        "layers": _layers(state, "text"),
        "hidden": shape_of(state, "text.transformer.resblocks.0.mlp.c_fc.weight", where)[0],
    }


# ------------------------------------------------------------------------------ preprocessing

_FILTERS = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, which ``resample`` holds."""


def folder_preprocessing(kind: Kind, folder: Path, image_size: int | None) -> PeerPreprocessing:
    """What ``preprocessor_config.json`` says of size, filter, cut, mean and sd.

    ``image_size`` is the network's; None where it reads any (DINOv2) and the processor decides.

    NaFlex, which keeps an image's proportions, has black bands here.

    Raises:
        UserError: there is no such file, or it asks for what is not offered here.
    """
    path = folder / "preprocessor_config.json"
    given = _json(folder, path.name)
    if image_size is None:
        image_size = _square(given.get("crop_size", given.get("size")))
        if image_size is None:
            raise UserError(f"{path}: names no square 'crop_size'; it is not read.")
    found = published_preprocessing(kind, image_size)
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if given.get(name, True) is not True:
            raise UserError(f"{path}: '{name}' is off, which is not offered here.")
    if given.get("do_pad"):
        raise UserError(f"{path}: 'do_pad' is on, which is not offered here.")
    if abs(float(given.get("rescale_factor", 1 / 255)) * 255 - 1) > 1e-6:
        raise UserError(f"{path}: grey levels are not divided by 255, which is not offered here.")
    naflex = "max_num_patches" in given  # resizes to whole patches; here to the square of them
    size = image_size if naflex else given.get("size", image_size)
    cut = given.get("do_center_crop", kind != "siglip")
    crop = _square(given.get("crop_size", image_size)) if cut else image_size
    short = size.get("shortest_edge") if isinstance(size, Mapping) else None
    short = size if isinstance(size, int) and kind != "siglip" else short
    both = None if short else _square(size)
    if crop != image_size or (both or short or 0) < image_size or bool(short) != bool(cut):
        raise UserError(
            f"{path}: its sizes do not end in the {image_size} x {image_size} pixels that the "
            "network has positions for."
        )
    resample = given.get("resample", 2 if naflex else 3)
    if resample not in _FILTERS:
        raise UserError(
            f"{path}: its resample {resample!r} is not offered here; known: "
            f"{', '.join(f'{n} ({name})' for n, name in _FILTERS.items())}."
        )
    prepare = found.prepare.model_copy(
        update={
            "size": short or both,
            "fit": "crop" if short else "pad" if naflex else "squash",
            "resample": _FILTERS[resample],
        }
    )
    values = found.model_dump() | {"prepare": prepare.model_dump(), "input_size": image_size}
    for name, own in (("image_mean", "channel_mean"), ("image_std", "channel_std")):
        said = given.get(name)
        if isinstance(said, list) and len(said) == 3:
            values[own] = tuple(float(one) for one in said)
    return PeerPreprocessing.model_validate(values)


def _square(size: Any) -> int | None:
    """The side of ``{height, width}``, or of one number; None if it is none of a square."""
    if isinstance(size, int):
        return size
    if isinstance(size, Mapping) and size.get("height") == size.get("width"):
        side = size.get("height")
        return side if isinstance(side, int) else None
    return None
