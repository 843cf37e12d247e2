"""Published layouts of CARZero, RadZero, CoNNS, CXR-CLIP and MGCA, read into a peer.

What a file holds and no score is computed from is left out by name, and counted by its reason.
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
from medclip_debias.models.checkpoint import (
    Names,
    layers_in,
    renamed,
    shape_of,
    summed_channels,
)
from medclip_debias.models.peers.open_clip import Read
from medclip_debias.models.peers.processor import read_processor
from medclip_debias.models.peers.settings import (
    BertSettings,
    Dinov2Settings,
    EncoderTextSettings,
    FusionSettings,
    Kind,
    PeerPreprocessing,
    PeerSettings,
    ResNetSettings,
    SwinSettings,
    ViTSettings,
    WordsTextSettings,
)
from medclip_debias.models.peers.text import checked
from medclip_debias.models.text_encoder import (
    SentenceTokenizer,
    read_bert_config,
    read_text_config,
)

State = Mapping[str, Tensor]
Unused = Counter[str]
"""How many tensors of the file were left out, by the reason."""

BUFFER = "position numbers, which the library makes itself"
POOLER = "BERT's pooler, which no sentence's vector is computed from"
TRAINING = "parts of the training loss alone"
BERT_INSIDE = r"(?=embeddings\.|encoder\.)"
POSITIONS = (r"position_ids$|relative_position_index$", BUFFER)

# transformers 5 names the parts of Swin's attention otherwise than the published files.
SWIN: Names = (
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


def read_carzero(state: State, text: Path, where: str, unused: Unused) -> Read:
    """CARZero: one Lightning checkpoint; the BERT folder gives configuration and vocabulary."""
    state = {key.rpartition("CARZero.")[2]: value for key, value in state.items()}
    first, second = ("fusion_module.decoder_norm.", "fusion_module.decoder.norm.")
    for key in [key for key in state if key.startswith(second)]:
        other = state.get(key.replace(second, first))
        if other is None or not torch.equal(other, state[key]):
            raise UserError(
                f"{where}: '{key}' is not its decoder_norm, which CARZero's decoder ends with; "
                "these weights are of another architecture."
            )
    state = without(
        state,
        [
            POSITIONS,
            (r"^text_encoder\.model\.pooler\.", POOLER),
            (r"^fusion_module\.decoder\.norm\.", "the decoder's norm, stored a second time"),
            (
                r"^fusion_module\.decoder\.layers\.\d+\.(self_attn|norm1)\.",
                "self-attention of the decoder, which CARZero's forward pass leaves out",
            ),
            (r"^fusion_module\.logit_scale$", "a scale that no score is multiplied by"),
        ],
        unused,
    )
    image = _plain_vit(state, "img_encoder.model.", where)
    layer = r"fusion_module\.decoder\.layers\."
    steps = layers_in(state, r"^fusion_module\.mlp_head\.(\d+)\.") - 1
    numbers = [n for n in range(0, steps + 1, 3) if f"fusion_module.mlp_head.{n}.weight" in state]
    widths = [shape_of(state, f"fusion_module.mlp_head.{n}.weight", where)[0] for n in numbers]
    config = read_bert_config(text)
    settings = PeerSettings(
        kind="carzero",
        dim=image.width,
        max_tokens=min(97, config.get("max_position_embeddings", 512)),
        image=image,
        text=WordsTextSettings(config=config, positions=97),
        fusion=FusionSettings(
            kind="query_attention",
            positions=97,
            layers=layers_in(state, rf"^{layer}(\d+)\."),
            heads=4,
            hidden=shape_of(state, "fusion_module.decoder.layers.0.linear1.weight", where)[0],
            mlp=tuple(widths[:-1]),
        ),
    )
    named = renamed(
        state,
        [
            (rf"^text_encoder\.model\.{BERT_INSIDE}", "text.bert."),
            (rf"^{layer}", "fusion.layers."),
            (r"^fusion_module\.decoder_norm\.", "fusion.decoder_norm."),
            # Dropout, which stands in the published list and not in ours, changes the numbers.
            *(
                (rf"^fusion_module\.mlp_head\.{n}\.", f"fusion.mlp_head.{n // 3 * 2}.")
                for n in numbers
            ),
            (r"^img_encoder\.model\.", "image.model."),
        ],
    )
    return settings, named, word_pieces(text, named, "text.bert.", where)


def read_radzero(
    state: State, text: Path, config: Path | None, where: str, unused: Unused
) -> tuple[Read, PeerPreprocessing]:
    """RadZero: one file of all tensors; the folder of its MPNet gives configuration and words."""
    loss = "loss_fns.RadZeroLoss."
    state = without(state, [POSITIONS, (r"^text_model\.pooler\.", POOLER)], unused)
    image, named, preprocessing = _dinov2(
        "radzero",
        state,
        "vision_model.",
        "align_transformer.transformer_layers.layer.",
        "norm",
        config,
        where,
    )
    for name in ("weight", "bias"):
        shape_of(state, f"{loss}layer_norm.{name}", where)
        named[f"image.head.{name}"] = state[f"{loss}layer_norm.{name}"]
        named[f"text.head.{name}"] = state[f"{loss}layer_norm.{name}"].clone()
    rest = {key: value for key, value in state.items() if not key.startswith(f"{loss}layer_norm.")}
    named |= renamed(
        _other(rest, "vision_model.", "align_transformer.transformer_layers.layer."),
        [
            (rf"^text_model\.{BERT_INSIDE}", "text.encoder.bert."),
            (r"^loss_fns\.RadZeroLoss\.(?=(loss|attn)_temperature$)", "fusion."),
        ],
    )
    words = EncoderTextSettings(config=read_text_config(text), pooling="mean", head="norm")
    dim = int(image.config["hidden_size"])
    settings = _attending("radzero", dim, image, words, named)
    return (settings, named, word_pieces(text, named, "text.encoder.bert.", where)), preprocessing


def read_conns(
    state: State, text: Path, config: Path | None, where: str, unused: Unused
) -> tuple[Read, PeerPreprocessing]:
    """CoNNS: RAD-DINO with two blocks and CXR-BERT's [CLS], each with a map of its own."""
    state = {re.sub(r"^(module\.|_orig_mod\.)+", "", key): value for key, value in state.items()}
    state = without(
        state,
        [
            POSITIONS,
            (r"^text_encoder\.model\.(bert\.)?pooler\.", POOLER),
            (r"^text_encoder\.model\.cls\.", "CXR-BERT's masked-language head"),
            (
                r"^text_encoder\.model\.cls_projection_head\.",
                "CXR-BERT's own projection, in whose place CoNNS has a map",
            ),
            (r"^criterion\.nli_model\.", TRAINING),
        ],
        unused,
    )
    blocks = "vision_encoder.transformer_blocks.layer."
    image, named, preprocessing = _dinov2(
        "conns", state, "vision_encoder.rad_dino_model.", blocks, "linear", config, where
    )
    dim = shape_of(state, "vision_proj.weight", where)[0]
    named |= renamed(
        _other(state, "vision_encoder.rad_dino_model.", blocks),
        [
            (r"^vision_proj\.", "image.head."),
            (rf"^text_encoder\.model\.(bert\.)?{BERT_INSIDE}", "text.encoder.bert."),
            (r"^text_proj\.", "text.head."),
            (r"^criterion\.(?=(loss|attn)_temperature$)", "fusion."),
        ],
    )
    words = EncoderTextSettings(config=read_bert_config(text), pooling="cls", head="linear")
    settings = _attending("conns", dim, image, words, named)
    return (settings, named, word_pieces(text, named, "text.encoder.bert.", where)), preprocessing


def read_cxr_clip(state: State, text: Path, where: str, unused: Unused) -> Read:
    """CXR-CLIP: one file (its ``model``), with a ResNet-50 or a Swin-T image tower."""
    state = without(
        state,
        [
            POSITIONS,
            (r"^text_encoder\.text_encoder\.pooler\.", POOLER),
            (r"^logit_scale$", "a learned scale that cosines are multiplied by in training"),
        ],
        unused,
    )
    named = renamed(
        state,
        [
            (r"^image_encoder\.(resnet|image_encoder)\.", "image.model."),
            (r"^image_projection\.projection\.", "image.projection."),
            (rf"^text_encoder\.text_encoder\.{BERT_INSIDE}", "text.bert."),
            (r"^text_projection\.projection\.", "text.head."),
        ],
    )
    image: ResNetSettings | SwinSettings = ResNetSettings()
    if "image.model.conv1.weight" not in named:
        swin = {key: value for key, value in named.items() if key.startswith("image.")}
        named = {key: named[key] for key in named if key not in swin} | renamed(swin, SWIN)
        image = SwinSettings(config=swin_config(named, where))
    config = read_bert_config(text)
    settings = PeerSettings(
        kind="cxr_clip",
        dim=shape_of(named, "image.projection.weight", where)[0],
        max_tokens=min(256, config.get("max_position_embeddings", 512)),
        image=image,
        text=BertSettings(config=config, pooling="affine", token="last"),
    )
    return settings, named, word_pieces(text, named, "text.bert.", where)


def read_mgca(state: State, text: Path, where: str, unused: Unused) -> Read:
    """MGCA: one Lightning checkpoint, with a ViT-B/16 or a ResNet-50 image tower.

    Its BERT is six layers of Bio_ClinicalBERT without embeddings of token types.
    """
    state = without(
        state,
        [
            POSITIONS,
            (r"\.crossattention\.", "BERT's cross-attention, which reading text alone leaves out"),
            (r"^(patch|word)_local_atten_layer\.|^prototype_layer\.", TRAINING),
        ],
        unused,
    )
    squeezed = {
        key: value[..., 0] if ".local_embed.head." in key and value.ndim == 3 else value
        for key, value in state.items()
    }
    names: list[tuple[str, str | None]] = [
        (r"^img_encoder_q\.(?=(global|local)_embed\.)", "image."),
        (r"^text_encoder_q\.(?=(global|local)_embed\.)", "text."),
        (rf"^text_encoder_q\.model\.{BERT_INSIDE}", "text.bert."),
    ]
    image: ViTSettings | ResNetSettings
    if "img_encoder_q.model.conv1.weight" in squeezed:
        image = ResNetSettings(
            hidden=shape_of(squeezed, "img_encoder_q.global_embed.head.0.weight", where)[0]
        )
        named = renamed(squeezed, [*names, (r"^img_encoder_q\.model\.", "image.model.")])
        named = summed_channels(named, "image.model.conv1.weight")
    else:
        image = _plain_vit(squeezed, "img_encoder_q.model.", where)
        named = renamed(squeezed, [*names, (r"^img_encoder_q\.model\.", "image.model.")])
    layers = layers_in(named, r"^text\.bert\.encoder\.layer\.(\d+)\.")
    config = read_bert_config(text) | {"num_hidden_layers": max(layers, 1)}
    width = shape_of(named, "text.bert.embeddings.word_embeddings.weight", where)[1]
    types = "text.bert.embeddings.token_type_embeddings.weight"
    named.setdefault(types, torch.zeros(int(config.get("type_vocab_size", 2)), width))
    hidden = shape_of(named, "text.global_embed.head.0.weight", where)[0]
    settings = PeerSettings(
        kind="mgca",
        dim=shape_of(named, "image.global_embed.head.3.weight", where)[0],
        max_tokens=min(112, config.get("max_position_embeddings", 512)),
        image=image,
        text=WordsTextSettings(config=config, hidden=hidden),
        fusion=FusionSettings(kind="two_spaces"),
    )
    return settings, named, word_pieces(text, named, "text.bert.", where)


# ------------------------------------------------------------------------------------- parts


def without(state: State, left_out: Sequence[tuple[str, str]], unused: Unused) -> State:
    """``state`` without what is left out; each tensor is counted under its reason."""
    kept = {}
    for key, value in state.items():
        reason = next((why for pattern, why in left_out if re.search(pattern, key)), None)
        if reason is None:
            kept[key] = value
        else:
            unused[reason] += 1
    return kept


def _other(state: State, *prefixes: str) -> State:
    return {key: value for key, value in state.items() if not key.startswith(prefixes)}


def word_pieces(text: Path, named: State, prefix: str, where: str) -> SentenceTokenizer:
    """The tokenizer in ``text``, which must not have more words than the BERT at ``prefix``."""
    tokenizer = SentenceTokenizer.load(text)
    size = shape_of(named, f"{prefix}embeddings.word_embeddings.weight", where)[0]
    checked(tokenizer, size, text)
    return tokenizer


def _plain_vit(state: State, prefix: str, where: str) -> ViTSettings:
    """timm's plain vision transformer, whose sizes are read off the tensors; heads of 64."""
    width, _, _, patch = shape_of(state, f"{prefix}patch_embed.proj.weight", where)
    side = round((shape_of(state, f"{prefix}pos_embed", where)[1] - 1) ** 0.5)
    return ViTSettings(
        image_size=side * patch,
        patch=patch,
        width=width,
        layers=layers_in(state, rf"^{re.escape(prefix)}blocks\.(\d+)\."),
        heads=max(width // 64, 1),
        hidden=shape_of(state, f"{prefix}blocks.0.mlp.fc1.weight", where)[0],
    )


def _dinov2(
    kind: Kind, state: State, trunk: str, blocks: str, head: str, config: Path | None, where: str
) -> tuple[Dinov2Settings, dict[str, Tensor], PeerPreprocessing]:
    """A DINOv2 below ``trunk`` and the blocks after it: settings, tensors, preprocessing."""
    patches = shape_of(state, f"{trunk}embeddings.patch_embeddings.projection.weight", where)
    width, channels, _, patch = patches
    if channels != 3:
        raise UserError(f"{where}: its DINOv2 reads {channels} channels; one of 3 is wanted.")
    side = round((shape_of(state, f"{trunk}embeddings.position_embeddings", where)[1] - 1) ** 0.5)
    ratio = shape_of(state, f"{trunk}encoder.layer.0.mlp.fc1.weight", where)[0] // width
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers_in(state, rf"^{re.escape(trunk)}encoder\.layer\.(\d+)\."),
        "num_attention_heads": max(width // 64, 1),
        "mlp_ratio": ratio,
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "use_mask_token": f"{trunk}embeddings.mask_token" in state,
    }
    with torch.device("meta"):
        network = Dinov2Regions("dinov2", sizes, where)
    own = {key: value for key, value in state.items() if key.startswith((trunk, blocks))}
    names: Names = (
        (rf"^{re.escape(trunk)}", "image.encoder.trunk."),
        (rf"^{re.escape(blocks)}", "image.blocks.layer."),
    )
    if config is None:
        raise UserError(
            "this model needs preprocessor_config.json, which lies beside its weights or its image "
            "encoder's; name it with --config."
        )
    preprocessing = read_processor(kind, config, multiple=patch)
    settings = Dinov2Settings(
        config=network.config,
        image_size=preprocessing.input_size,
        blocks=max(layers_in(state, rf"^{re.escape(blocks)}(\d+)\."), 1),
        block_heads=max(width // 64, 1),
        block_ratio=shape_of(state, f"{blocks}0.mlp.fc1.weight", where)[0] // width,
        head="norm" if head == "norm" else "linear",
    )
    return settings, network.from_file(renamed(own, names)), preprocessing


def _attending(
    kind: Kind, dim: int, image: Dinov2Settings, text: EncoderTextSettings, named: State
) -> PeerSettings:
    longest = int(text.config.get("max_position_embeddings", 512))
    own = "fusion.attn_temperature" in named
    return PeerSettings(
        kind=kind,
        dim=dim,
        # MPNet counts positions from 2; CoNNS cuts its prompts at 128.
        max_tokens=min(128, longest) if kind == "conns" else min(512, longest - 2),
        image=image,
        text=text,
        fusion=FusionSettings(kind="similarity_attention", own_attention=own),
    )


def swin_config(state: State, where: str) -> dict[str, Any]:
    """Widths, depths and heads as the tensors tell; window 7 as published."""
    patches = "image.model.embeddings.patch_embeddings.projection.weight"
    stages = layers_in(state, r"^image\.model\.encoder\.layers\.(\d+)\.")
    name = "image.model.encoder.layers.{}.blocks.0.attention."
    name += "relative_position_bias.relative_position_bias_table"
    return {
        "embed_dim": shape_of(state, patches, where)[0],
        "depths": [
            layers_in(state, rf"^image\.model\.encoder\.layers\.{n}\.blocks\.(\d+)\.")
            for n in range(stages)
        ],
        "num_heads": [shape_of(state, name.format(n), where)[1] for n in range(stages)],
        "window_size": 7,
        "image_size": 224,
        "patch_size": shape_of(state, patches, where)[-1],
    }
