"""Published layouts of KAD and MedKLIP, read into a peer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import torch

from medclip_debias.errors import UserError
from medclip_debias.models.checkpoint import layers_in, renamed, shape_of
from medclip_debias.models.peers.open_clip import Read
from medclip_debias.models.peers.questions import kad_book, medklip_book
from medclip_debias.models.peers.readers import (
    BERT_INSIDE,
    POOLER,
    POSITIONS,
    TRAINING,
    State,
    Unused,
    without,
    word_pieces,
)
from medclip_debias.models.peers.settings import (
    BertSettings,
    FusionSettings,
    PeerPreprocessing,
    PeerSettings,
    ResNetSettings,
    published_preprocessing,
)
from medclip_debias.models.text_encoder import read_bert_config, read_bert_state

HEADS = 4
"""Of both decoders; no tensor tells it."""
_TRUNK = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}
"""torchvision's ResNet as a list of its parts."""


def read_kad(
    state: State, text: Path, config: Path | None, where: str, unused: Unused
) -> tuple[Read, PeerPreprocessing]:
    """KAD: one file of three state dicts, with a ResNet-50 at 224 (stage 3) or 512 pixels."""
    book = kad_book(config)
    if not any(key.startswith("image_encoder.res_features.") for key in state):
        raise UserError(
            f"{where}: holds no 'image_encoder' on a ResNet-50, which is what is read of KAD; "
            "those on DenseNet and on vision transformers are not."
        )
    for key in state:
        _check_twice(state, key, where)
    stage: Literal[3, 4] = 3
    if any(key.startswith("image_encoder.res_features.7.") for key in state):
        stage = 4
    rest = "fc" if stage == 4 else "fc|layer4"
    state = without(
        state,
        [
            POSITIONS,
            (rf"^image_encoder\.resnet\.({rest})\.", "the rest of ImageNet's ResNet-50"),
            (r"^image_encoder\.resnet\.", "the trunk, stored a second time"),
            (r"^model\.decoder\.norm\.", "the decoder's norm, stored a second time"),
            (r"^(model|text_encoder)\.logit_scale$", "a scale that no score is multiplied by"),
        ],
        unused,
    )
    named = renamed(
        state,
        [
            (r"^image_encoder\.(?=res_l\d\.)", "image."),
            (r"^text_encoder\.bert_model\.(?=embeddings\.|encoder\.|pooler\.)", "text.bert."),
            (r"^text_encoder\.mlp_embed\.", "text.head."),
            (r"^model\.decoder_norm\.", "fusion.norm."),
            (r"^model\.decoder\.layers\.", "fusion.layers."),
            (r"^model\.mlp_head\.0\.", "fusion.classifier."),
        ],
    )
    named = _trunk(named, "image_encoder.res_features.")
    config_of = read_bert_config(text)
    settings = PeerSettings(
        kind="kad",
        dim=shape_of(named, "image.res_l2.weight", where)[0],
        max_tokens=min(256, config_of.get("max_position_embeddings", 512)),
        image=ResNetSettings(stage=stage),
        text=BertSettings(
            config=config_of,
            pooling="affine_mlp",
            token="pooler",
            hidden=shape_of(named, "text.head.0.weight", where)[0],
        ),
        fusion=_network(named, book, where, norm_inputs=True, last_map=True),
    )
    how = published_preprocessing("kad", 224 if stage == 3 else 512)
    return (settings, named, word_pieces(text, named, "text.bert.", where)), how


def read_medklip(
    state: State, text: Path, config: Path | None, where: str, unused: Unused
) -> tuple[Read, PeerPreprocessing]:
    """MedKLIP: its file, the book of descriptions, and the folder of the BERT that reads it."""
    book = medklip_book(config)
    state = {re.sub(r"^module\.", "", key): value for key, value in state.items()}
    state = without(state, [POSITIONS, (r"^cl_fc\.", TRAINING)], unused)
    words = without(
        read_bert_state(text),
        [
            POSITIONS,
            (r"^(bert\.)?pooler\.", POOLER),
            (r"^cls\.", "BERT's heads of its own training"),
        ],
        unused,
    )
    named = renamed(
        state,
        [
            (r"^(?=res_l\d\.)", "image."),
            (r"^disease_embedding_layer\.", "text.head."),
            (r"^decoder\.norm\.", "fusion.norm."),
            (r"^decoder\.layers\.", "fusion.layers."),
            (r"^classifier\.", "fusion.classifier."),
        ],
    )
    named = _trunk(named, "res_features.")
    named |= renamed(words, [(rf"^(bert\.)?{BERT_INSIDE}", "text.bert.")])
    config_of = read_bert_config(text)
    settings = PeerSettings(
        kind="medklip",
        dim=shape_of(named, "image.res_l2.weight", where)[0],
        max_tokens=min(64, config_of.get("max_position_embeddings", 512)),
        image=ResNetSettings(stage=3),
        text=BertSettings(config=config_of, pooling="affine", separator=False),
        fusion=_network(named, book, where),
    )
    tokenizer = word_pieces(text, named, "text.bert.", where)
    return (settings, named, tokenizer), published_preprocessing("medklip", 224)


def _network(
    named: State,
    book: dict[str, str],
    where: str,
    *,
    norm_inputs: bool = False,
    last_map: bool = False,
) -> FusionSettings:
    return FusionSettings(
        kind="query_network",
        layers=layers_in(named, r"^fusion\.layers\.(\d+)\."),
        heads=HEADS,
        hidden=shape_of(named, "fusion.layers.0.linear1.weight", where)[0],
        book=book,
        norm_inputs=norm_inputs,
        last_map=last_map,
    )


def _trunk(state: State, prefix: str) -> dict[str, torch.Tensor]:
    """``prefix`` and a part's number to torchvision's name of it."""
    found = {}
    for key, value in state.items():
        number, dot, rest = key.removeprefix(prefix).partition(".")
        known = key.startswith(prefix) and dot and number in _TRUNK
        found[f"image.model.{_TRUNK[number]}.{rest}" if known else key] = value
    return found


def _check_twice(state: State, key: str, where: str) -> None:
    """Refuse a tensor that is stored twice (its module has two names) with other numbers."""
    other = key
    if key.startswith("model.decoder.norm."):
        other = key.replace(".decoder.norm.", ".decoder_norm.")
    elif key.startswith("image_encoder.resnet."):
        name, _, rest = key.removeprefix("image_encoder.resnet.").partition(".")
        number = next((number for number, part in _TRUNK.items() if part == name), "")
        second = f"image_encoder.res_features.{number}.{rest}"
        other = second if second in state else key
    if other not in state or not torch.equal(state[key], state[other]):
        raise UserError(
            f"{where}: '{key}' is not '{other}', which KAD stores it as a second time; these "
            "weights are of another architecture."
        )
