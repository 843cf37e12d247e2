"""Published checkpoints of the families whose tables in ``families/`` name every tensor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medclip_debias.errors import UserError
from medclip_debias.models.backbones.dinov2 import Dinov2Regions
from medclip_debias.models.checkpoint import layers_in, shape_of, summed_channels
from medclip_debias.models.peers.families import (
    Family,
    family,
    published_preprocessing,
    read_book,
    read_processor,
)
from medclip_debias.models.peers.images import PATCHES, State
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
_TOWERS = {
    **{tower: (name,) for tower, name in PATCHES.items()},
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
    """A checkpoint whose table names every tensor."""
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
    vision = {key: value for key, value in named.items() if key.startswith("image.")}
    others = {key: value for key, value in named.items() if key not in vision}
    if tower == "swin":
        named = others | renamed(vision, _SWIN_NAMES)
    if tower == "dinov2":
        if config is None:
            raise UserError(
                "this model needs preprocessor_config.json, which is beside its weights or its "
                "image encoder's; name it with --config."
            )
        named = others | Dinov2Regions.from_file(vision)
        preprocessing = read_processor(kind, config, multiple=shape_of(named, PATCHES[tower])[3])
    else:
        # KAD's larger network, which has its last stage, reads 512 pixels.
        large = kind == "kad" and any(".layer4." in key for key in named)
        side = 512 if large else 224
        preprocessing = published_preprocessing(kind, side, resnet=tower == "resnet")
    if tower == "resnet" and len(preprocessing.channel_mean) == 1:
        for name in _TOWERS["resnet"]:
            named = summed_channels(named, name)
    dim = shape_of(named, table.dim)[0]
    longest = int(words.get("max_position_embeddings", 512))
    if family_of(words, str(text)).counts_from_padding:
        longest -= 2  # positions are counted from behind the padding's number, 1
    _complete_text(kind, words, named, dim, f"{where}, {text}")
    fusion = None if table.fusion is None else {**table.fusion, "book": dict(book)}
    settings = PeerSettings.model_validate(
        {
            "kind": kind,
            "dim": dim,
            "max_tokens": min(table.max_tokens, longest),
            "image": {"kind": "resnet50" if tower == "resnet" else tower},
            "text": {**table.text, "config": words},
            "fusion": fusion,
        }
    )
    tokenizer = SentenceTokenizer.load(text)
    prefix = "text.encoder.bert." if table.text["kind"] == "encoder" else "text.bert."
    vocabulary = shape_of(named, f"{prefix}embeddings.word_embeddings.weight")[0]
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


def _complete_text(
    kind: Kind, config: dict[str, Any], named: dict[str, Tensor], dim: int, where: str
) -> None:
    """What the published BERT's files leave out: its layers' number, or tables of zeros."""
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
        width = shape_of(named, "text.bert.embeddings.word_embeddings.weight")[1]
        types = torch.zeros(int(config.get("type_vocab_size", 2)), width)
        named.setdefault("text.bert.embeddings.token_type_embeddings.weight", types)
