"""Published checkpoints of the families whose tables in ``families/`` name every tensor.

Sizes are read off the tensors, once they have the names of the towers here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medclip_debias.errors import UserError
from medclip_debias.models.backbones.dinov2 import Dinov2Regions
from medclip_debias.models.checkpoint import layers_in, shape_of, summed_channels
from medclip_debias.models.peers.families import Family, family, published_preprocessing, read_book
from medclip_debias.models.peers.processor import read_processor
from medclip_debias.models.peers.settings import Kind, PeerPreprocessing, PeerSettings
from medclip_debias.models.peers.tokenizers import PeerTokenizer
from medclip_debias.models.text_encoder import (
    SentenceTokenizer,
    check_vocabulary,
    family_of,
    read_bert_config,
    read_bert_state,
    read_text_config,
)

State = Mapping[str, Tensor]
Rows = Sequence[tuple[str, str]]
Unused = Counter[str]
"""How many tensors of the files were left out, by the reason."""

Published = tuple[PeerSettings, dict[str, Tensor], PeerTokenizer, PeerPreprocessing]
"""Architecture, tensors under the names they have here, tokenizer and preprocessing."""

BUFFERS = (
    r"(^|\.)(position_ids|relative_position_index|attn_mask)$",
    "position numbers and masks, which the library makes itself",
)
POOLER = (r"\bpooler\.", "BERT's pooler, which no sentence's vector is computed from")
_SWIN = "image.model.embeddings.patch_embeddings.projection.weight"
_DINOV2 = "image.encoder.trunk.embeddings."
_VIT = "image.model.patch_embed.proj.weight"
_TOWERS = {
    "swin": (_SWIN,),
    "dinov2": (f"{_DINOV2}patch_embeddings.projection.weight",),
    "vit": (_VIT,),
    "resnet": ("image.model.conv1.weight", "image.encoder.conv1.weight"),
}
"""Tensors by which an image tower is known."""
# transformers 5 names the parts of Swin's attention otherwise than the published files.
_SWIN_NAMES = (
    (r"\.attention\.self\.query\.", ".attention.q_proj."),
    (r"\.attention\.self\.key\.", ".attention.k_proj."),
    (r"\.attention\.self\.value\.", ".attention.v_proj."),
    (r"\.attention\.output\.dense\.", ".attention.o_proj."),
    (
        r"\.attention\.self\.relative_position_bias_table$",
        ".attention.relative_position_bias.relative_position_bias_table",
    ),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
)


def read_published(
    kind: Kind,
    named: dict[str, Tensor],
    text: Path | None,
    config: Path | None,
    where: str,
    unused: Unused,
) -> Published:
    """A checkpoint whose table names every tensor; sizes are read off them."""
    if text is None:
        raise UserError(
            f"{kind} needs the folder of its BERT (config.json and vocab.txt); name it with --text."
        )
    table = family(kind)
    book = read_book(kind, config)
    words = dict(
        read_text_config(text) if table.text["kind"] == "encoder" else read_bert_config(text)
    )
    if table.text_names:
        inside = _without(read_bert_state(text), table.text_left_out, table.text_names, unused)
        named |= renamed(inside, table.text_names)
    tower = next((t for t in table.towers if any(n in named for n in _TOWERS[t])), None)
    if tower is None:
        hint = f"; {table.other_towers}" if table.other_towers else ""
        raise UserError(
            f"{where}: these weights are of another architecture; tensor "
            f"'{_TOWERS[table.towers[-1]][0]}' is missing{hint}."
        )
    if tower == "swin":
        vision = {key: value for key, value in named.items() if key.startswith("image.")}
        named = {key: named[key] for key in named if key not in vision}
        named |= renamed(vision, _SWIN_NAMES)
    if tower == "dinov2":
        image, preprocessing, named = _dinov2(kind, named, config, where)
    else:
        image = {"swin": _swin, "vit": _vit, "resnet": _resnet}[tower](named, where)
        # KAD's larger network reads 512 pixels.
        side = 512 if kind == "kad" and image["stage"] == 4 else 224
        preprocessing = published_preprocessing(kind, side, resnet=tower == "resnet")
    if tower == "resnet" and len(preprocessing.channel_mean) == 1:
        for name in _TOWERS["resnet"]:
            named = summed_channels(named, name)
    dim = shape_of(named, table.dim, where)[0]
    longest = int(words.get("max_position_embeddings", 512))
    if family_of(words, str(text)).counts_from_padding:
        longest -= 2  # positions are counted from behind the padding's number, 1
    settings = PeerSettings.model_validate(
        {
            "kind": kind,
            "dim": dim,
            "max_tokens": min(table.max_tokens, longest),
            "image": image,
            "text": _text(kind, table, words, named, dim, f"{where}, {text}"),
            "fusion": _fusion(table, named, book),
        }
    )
    tokenizer = SentenceTokenizer.load(text)
    prefix = "text.encoder.bert." if table.text["kind"] == "encoder" else "text.bert."
    vocabulary = shape_of(named, f"{prefix}embeddings.word_embeddings.weight", where)[0]
    check_vocabulary(tokenizer, vocabulary, text)
    return settings, named, tokenizer, preprocessing


def named_tensors(table: Family, state: State, where: str, unused: Unused) -> dict[str, Tensor]:
    """The tensors that scores are computed from, under the names of the towers here."""
    state = {re.sub(table.strip, "", key): value for key, value in state.items()}
    once = {}
    for key, value in state.items():
        pattern, other, part = next(
            (row for row in table.twice if re.search(row[0], key)), ("", "", "")
        )
        first = re.sub(pattern, other, key) if pattern else key
        if first == key or first not in state:
            once[key] = value
        elif torch.equal(value, state[first]):
            unused[f"{part}, stored a second time"] += 1
        else:
            raise UserError(
                f"{where}: '{key}' is not '{first}', which is {part} a second time; these weights "
                "are of another architecture."
            )
    named = renamed(_without(once, table.left_out, table.names, unused), table.names)
    # MGCA's map of regions is a convolution of one place.
    for key, value in named.items():
        if ".local_embed.head." in key and value.ndim == 3:
            named[key] = value[..., 0]
    for first, second in table.copies.items():
        inside = [key for key in named if key.startswith(first)]
        named |= {second + key.removeprefix(first): named[key].clone() for key in inside}
    return named


def renamed(state: State, names: Rows) -> dict[str, Tensor]:
    """``state`` under other names: of pattern and replacement the first that matches counts."""

    def name(key: str) -> str:
        row = next((row for row in names if re.search(row[0], key)), None)
        return key if row is None else re.sub(*row, key)

    return {name(key): value for key, value in state.items()}


def _without(state: State, left_out: Rows, names: Rows, unused: Unused) -> dict[str, Tensor]:
    """``state`` without what is left out; each tensor is counted under its reason."""
    kept = {}
    for key, value in state.items():
        rows = [BUFFERS, *left_out]
        if not any(re.search(pattern, key) for pattern, _ in names):
            rows.append(POOLER)
        reason = next((reason for pattern, reason in rows if re.search(pattern, key)), None)
        if reason is None:
            kept[key] = value
        else:
            unused[reason] += 1
    return kept


def _resnet(named: State, where: str) -> dict[str, Any]:
    sizes = {"kind": "resnet50", "stage": 4}
    for name in ("image.projector.0.weight", "image.global_embed.head.0.weight"):
        if name in named:
            sizes["hidden"] = shape_of(named, name, where)[0]
    if "image.backbone_to_vit.weight" in named:
        sizes["temporal"] = shape_of(named, "image.backbone_to_vit.weight", where)[0]
    if "image.res_l2.weight" in named and not layers_in(named, r"^image\.model\.layer4\.(\d+)\."):
        sizes["stage"] = 3
    return sizes


def _vit(named: State, where: str) -> dict[str, Any]:
    """timm's plain vision transformer; heads of 64."""
    width, _, _, patch = shape_of(named, _VIT, where)
    side = round((shape_of(named, "image.model.pos_embed", where)[1] - 1) ** 0.5)
    return {
        "kind": "vit",
        "image_size": side * patch,
        "patch": patch,
        "width": width,
        "layers": layers_in(named, r"^image\.model\.blocks\.(\d+)\."),
        "heads": max(width // 64, 1),
        "hidden": shape_of(named, "image.model.blocks.0.mlp.fc1.weight", where)[0],
    }


def _swin(named: State, where: str) -> dict[str, Any]:
    """Widths, depths and heads; window 7 as published."""
    width, _, _, patch = shape_of(named, _SWIN, where)
    stages = range(layers_in(named, r"^image\.model\.encoder\.layers\.(\d+)\."))
    stage = "image.model.encoder.layers.{}.blocks."
    table = f"{stage}0.attention.relative_position_bias.relative_position_bias_table"
    blocks = [rf"^{re.escape(stage.format(n))}(\d+)\." for n in stages]
    config = {
        "embed_dim": width,
        "depths": [layers_in(named, pattern) for pattern in blocks],
        "num_heads": [shape_of(named, table.format(n), where)[1] for n in stages],
        "window_size": 7,
        "image_size": 224,
        "patch_size": patch,
    }
    return {"kind": "swin", "config": config}


def _dinov2(
    kind: Kind, named: State, config: Path | None, where: str
) -> tuple[dict[str, Any], PeerPreprocessing, dict[str, Tensor]]:
    """A DINOv2 and the blocks after it: settings, preprocessing, and tensors."""
    patches = shape_of(named, f"{_DINOV2}patch_embeddings.projection.weight", where)
    width, channels, _, patch = patches
    if channels != 3:
        raise UserError(f"{where}: its DINOv2 reads {channels} channels; one of 3 is wanted.")
    side = round((shape_of(named, f"{_DINOV2}position_embeddings", where)[1] - 1) ** 0.5)
    layer = "image.encoder.trunk.encoder.layer."
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers_in(named, rf"^{re.escape(layer)}(\d+)\."),
        "num_attention_heads": max(width // 64, 1),
        "mlp_ratio": shape_of(named, f"{layer}0.mlp.fc1.weight", where)[0] // width,
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "use_mask_token": f"{_DINOV2}mask_token" in named,
    }
    with torch.device("meta"):
        network = Dinov2Regions("dinov2", sizes, where)
    if config is None:
        raise UserError(
            "this model needs preprocessor_config.json, which is beside its weights or its image "
            "encoder's; name it with --config."
        )
    preprocessing = read_processor(kind, config, multiple=patch)
    blocks = "image.blocks.layer."
    image = {
        "kind": "dinov2",
        "config": network.config,
        "image_size": preprocessing.input_size,
        "blocks": max(layers_in(named, rf"^{re.escape(blocks)}(\d+)\."), 1),
        "block_heads": max(width // 64, 1),
        "block_ratio": shape_of(named, f"{blocks}0.mlp.fc1.weight", where)[0] // width,
        "head": "norm" if len(shape_of(named, "image.head.weight", where)) == 1 else "linear",
    }
    vision = {key: value for key, value in named.items() if key.startswith("image.")}
    others = {key: value for key, value in named.items() if key not in vision}
    return image, preprocessing, others | network.from_file(vision)


def _text(
    kind: Kind,
    table: Family,
    config: dict[str, Any],
    named: dict[str, Tensor],
    dim: int,
    where: str,
) -> dict[str, Any]:
    """Settings of the text tower; where the published BERT lacks a table, its zeros are added."""
    text = dict(table.text)
    if kind in ("biovil", "biovil_t") and config.get("projection_size") != dim:
        if not config.get("projection_size"):
            raise UserError(
                f"{where}/config.json: has no projection_size; give CXR-BERT-specialized."
            )
        raise UserError(
            f"{where}: the image model maps to {dim} dimensions, the text model to "
            f"{config['projection_size']}; they do not belong together."
        )
    if kind == "mgca":
        layers = layers_in(named, r"^text\.bert\.encoder\.layer\.(\d+)\.")
        config["num_hidden_layers"] = max(layers, 1)
        width = shape_of(named, "text.bert.embeddings.word_embeddings.weight", where)[1]
        types = torch.zeros(int(config.get("type_vocab_size", 2)), width)
        named.setdefault("text.bert.embeddings.token_type_embeddings.weight", types)
    hidden = {"kad": "text.head.0.weight", "mgca": "text.global_embed.head.0.weight"}
    if kind in hidden:
        text["hidden"] = shape_of(named, hidden[kind], where)[0]
    return {**text, "config": config}


def _fusion(table: Family, named: State, book: Mapping[str, str]) -> dict[str, Any] | None:
    if table.fusion is None:
        return None
    fusion = dict(table.fusion)
    if fusion["kind"] == "similarity_attention":
        fusion["own_attention"] = "fusion.attn_temperature" in named
    if fusion["kind"] in ("query_attention", "query_network"):
        fusion["layers"] = layers_in(named, r"^fusion\.layers\.(\d+)\.")
        linear = named.get("fusion.layers.0.linear1.weight")
        fusion["hidden"] = 0 if linear is None else len(linear)
    if fusion["kind"] == "query_attention":
        maps = (named.get(f"fusion.mlp_head.{number}.weight") for number in range(0, 10, 2))
        fusion["mlp"] = [len(weight) for weight in maps if weight is not None][:-1]
    return {**fusion, "book": dict(book)}
