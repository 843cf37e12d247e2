"""CLIP and its relatives as open_clip describes and stores them: CheXzero, BiomedCLIP, UniMed-CLIP.

Both of its layouts are read (the text tower's tensors under ``text.``, or bare). Of a captioner
(CoCa) the decoder is left out. A BERT from Hugging Face comes from its folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.models.backbones.timm_trunk import timm_package, trunk_kind, trunk_stride
from medclip_debias.models.checkpoint import Names, layers_in, renamed, shape_of
from medclip_debias.models.peers.families import published_preprocessing
from medclip_debias.models.peers.settings import (
    BertSettings,
    Kind,
    OpenClipSettings,
    OpenClipTextSettings,
    PeerPreprocessing,
    PeerSettings,
)
from medclip_debias.models.peers.tokenizers import ClipTokenizer, checked, read_pieces
from medclip_debias.models.text_encoder import SentenceTokenizer, read_bert_config

AnyTokenizer = SentenceTokenizer | ClipTokenizer
Read = tuple[PeerSettings, dict[str, Tensor], AnyTokenizer]
State = Mapping[str, Tensor]

BUFFERS = r"position_ids$|relative_position_index$|attn_mask$"
NAMES: Names = (
    (r"^(logit_scale|logit_bias|input_resolution|context_length|vocab_size)$", None),
    (BUFFERS, None),
    (r"^text_decoder\.", None),
    (r"^visual\.", "image.visual."),
    (r"^(text\.)?", "text.text."),
)
BERT_NAMES: Names = (
    *NAMES[:-1],
    (r"^text\.transformer\.", "text.bert."),
    (r"^text\.proj\.", "text.head."),
)
_VIT = (
    "image_size layers width patch_size head_width mlp_ratio ls_init_value patch_dropout no_ln_pre "
    "pos_embed_type final_ln_after_pool pool_type output_tokens attentional_pool "
    "attn_pooler_queries attn_pooler_heads"
)
_RESNET = "image_size layers width patch_size head_width"
_TIMM = (
    "timm_model_name timm_model_pretrained timm_pool timm_proj timm_drop timm_drop_path "
    "timm_proj_bias image_size patch_dropout"
)
_TEXT = (
    "context_length vocab_size width heads layers mlp_ratio tokenizer_kwargs output_tokens "
    "embed_cls pad_id no_causal_mask pool_type proj_bias norm_kwargs act_kwargs hf_tokenizer_name"
)
_BERT = (  # open_clip ignores width, heads and layers beside a model of Hugging Face
    "hf_model_name hf_tokenizer_name hf_proj_type hf_pooler_type hf_model_pretrained "
    "context_length tokenizer_kwargs vocab_size output_tokens width heads layers"
)
Pooler = Literal["first", "mean", "pooler"]
_POOLERS: dict[str, Pooler] = {
    "cls_last_hidden_state_pooler": "first",
    "mean_pooler": "mean",
    "cls_pooler": "pooler",
}


def read_chexzero(state: State, text: Path | None, where: str) -> Read:
    """CheXzero: OpenAI's CLIP with a vision transformer, fine-tuned; sizes are the tensors'."""
    width, _, _, patch = shape_of(state, "visual.conv1.weight", where)
    side = round((shape_of(state, "visual.positional_embedding", where)[0] - 1) ** 0.5)
    context, words = shape_of(state, "positional_embedding", where)
    model = {
        "quick_gelu": True,
        "embed_dim": shape_of(state, "visual.proj", where)[1],
        "vision_cfg": {
            "image_size": side * patch,
            "patch_size": patch,
            "width": width,
            "layers": layers_in(state, r"^visual\.transformer\.resblocks\.(\d+)\."),
        },
        "text_cfg": {
            "context_length": context,
            "vocab_size": shape_of(state, "token_embedding.weight", where)[0],
            "width": words,
            "heads": max(words // 64, 1),
            "layers": layers_in(state, r"^transformer\.resblocks\.(\d+)\."),
        },
    }
    return _assemble("chexzero", state, text, model, where)


def read_open_clip(state: State, text: Path | None, config: Path | None, where: str) -> Read:
    """Any model of open_clip whose towers are read here."""
    if config is None:
        raise UserError(
            "open_clip needs the model's configuration (open_clip_config.json); "
            "name it with --config."
        )
    content = read_config(config)
    model = content.get("model_cfg", content)
    parts = (model.get("vision_cfg"), model.get("text_cfg")) if isinstance(model, Mapping) else ()
    if len(parts) != 2 or not all(isinstance(part, Mapping) for part in parts):
        raise UserError(f"{config}: holds no vision_cfg and text_cfg; give open_clip's file.")
    _check_options(model, str(config))
    return _assemble("open_clip", state, text, model, where)


def clip_preprocessing(settings: PeerSettings, config: Path | None) -> PeerPreprocessing:
    """The published preprocessing, with what the configuration says of its own."""
    assert isinstance(settings.image, OpenClipSettings)
    published = published_preprocessing(settings.kind, settings.image.image_size)
    if config is None:
        return published
    given = read_config(config).get("preprocess_cfg") or {}
    fits = {"shortest": "crop", "longest": "pad", "squash": "squash"}
    for name, known in (("resize_mode", tuple(fits)), ("interpolation", ("bicubic", "bilinear"))):
        if given.get(name, known[0]) not in known:
            raise UserError(
                f"{config}: its {name} '{given[name]}' is not offered here; known: "
                f"{', '.join(known)}."
            )
    prepare = {
        "resample": given.get("interpolation", published.prepare.resample),
        "fit": fits[given.get("resize_mode", "shortest")],
    }
    change: dict[str, Any] = {"prepare": published.prepare.model_copy(update=prepare)}
    if isinstance(given.get("mean"), list) and isinstance(given.get("std"), list):
        change |= {"channel_mean": tuple(given["mean"]), "channel_std": tuple(given["std"])}
    return published.model_copy(update=change)


def read_config(path: Path) -> dict[str, Any]:
    return read_json(path, "give the open_clip_config.json of the model", limit=16 << 20)


def installed_merges() -> Path:
    """CLIP's merges file out of an installed open_clip, without importing it."""
    from importlib.util import find_spec

    package = find_spec("open_clip")
    places = list(package.submodule_search_locations or []) if package else []
    for place in places:
        path = Path(place) / "bpe_simple_vocab_16e6.txt.gz"
        if path.is_file():
            return path
    raise UserError(
        "CLIP's tokenizer needs bpe_simple_vocab_16e6.txt.gz, from the repositories of CLIP, "
        "open_clip or CheXzero; name it with --text, or install open-clip-torch."
    )


def _assemble(
    kind: Kind, state: State, text: Path | None, model: Mapping[str, Any], where: str
) -> Read:
    """The two towers' settings, their tensors under the names they have here, the tokenizer."""
    vision, words = dict(model["vision_cfg"]), dict(model["text_cfg"])
    quick = bool(model.get("quick_gelu", False))
    dim = _width(model, state, where)
    image = _image(vision, quick, where)
    tower: BertSettings | OpenClipTextSettings
    tokenizer: AnyTokenizer
    if words.get("hf_model_name"):
        tower, tokenizer = _bert(state, text, words)
        unread = () if tower.token == "pooler" else ((r"^text\.transformer\.pooler\.", None),)
        named = renamed(state, (*unread, *BERT_NAMES))
    else:
        tower, tokenizer = _clip_text(text, words, quick, where)
        named = renamed(state, NAMES)
    tokens = int(words.get("context_length", 77))
    settings = PeerSettings(kind=kind, dim=dim, max_tokens=tokens, image=image, text=tower)
    return settings, named, tokenizer


def _width(model: Mapping[str, Any], state: State, where: str) -> int:
    """The width of the shared space: of the image tower's map, else as the configuration says."""
    maps = {"visual.proj": 1, "visual.head.proj.weight": 0, "visual.attnpool.c_proj.weight": 0}
    for name, side in maps.items():
        if name in state:
            return shape_of(state, name, where)[side]
    if isinstance(model.get("embed_dim"), int):
        return int(model["embed_dim"])
    raise UserError(f"{where}: its configuration does not say embed_dim.")


def _image(vision: dict[str, Any], quick: bool, where: str) -> OpenClipSettings:
    content = {"config": vision, "quick_gelu": quick}
    if vision.get("timm_model_name"):
        name = vision["timm_model_name"] = str(vision["timm_model_name"]).partition(".")[0]
        kind = trunk_kind(name, where)
        with torch.device("meta"):
            trunk = timm_package().create_model(name, pretrained=False)
        content["timm_stride"] = trunk_stride(trunk, kind, f"{where}: '{name}'")
    return validate(OpenClipSettings, content, where, "vision_cfg.")


def _check_options(model: Mapping[str, Any], where: str) -> None:
    """Refuse, by name, what the towers here do not have."""
    vision, words = model["vision_cfg"], model["text_cfg"]
    timm = vision.get("timm_model_name")
    resnet = isinstance(vision.get("layers"), Sequence)
    _refuse_unknown(vision, _TIMM if timm else _RESNET if resnet else _VIT, where)
    _refuse_unknown(words, _BERT if words.get("hf_model_name") else _TEXT, where)
    pools = ("tok",) if vision.get("attentional_pool") else ("tok", "avg")
    choices: list[tuple[Mapping[str, Any], str, Any, tuple[Any, ...]]] = [
        (vision, "attentional_pool", False, (False, True)),
        (vision, "pool_type", "tok", pools),
        (words, "hf_pooler_type", "mean_pooler", tuple(_POOLERS)),
        (words, "hf_proj_type", "mlp", ("mlp", "linear", None, "")),
    ]
    if timm:
        choices += [(vision, "timm_pool", "avg", ("", "token", "avg", "map"))]
        choices += [(vision, "timm_proj", "linear", ("linear", "mlp", "none", "", None))]
    if not words.get("hf_model_name"):
        # SigLIP's texts see all places of a context that is filled up.
        filled = bool(words.get("no_causal_mask"))
        ends = ("argmax", "last") if filled and not words.get("embed_cls") else ("argmax",)
        choices += [(words, "pool_type", "argmax", ends)]
        masks = (False,) if words.get("embed_cls") else (False, True)
        choices += [(words, "no_causal_mask", False, masks)]
    for part, name, usual, allowed in choices:
        if part.get(name, usual) not in allowed:
            shown = ", ".join(repr(value) for value in allowed)
            raise UserError(
                f"{where}: '{name}' is {part.get(name, usual)!r}, which is not read here; known: "
                f"{shown}."
            )


def _refuse_unknown(part: Mapping[str, Any], known: str, where: str) -> None:
    # An option that is switched off changes nothing.
    odd = sorted(name for name in set(part) - set(known.split()) if part[name] not in (None, False))
    if odd:
        raise UserError(f"{where}: '{odd[0]}' is an option of towers that are not read here.")


def _clip_text(
    text: Path | None, words: dict[str, Any], quick: bool, where: str
) -> tuple[OpenClipTextSettings, ClipTokenizer]:
    """The text tower of CLIP, SigLIP or CoCa, and its tokenizer."""
    if words.get("hf_tokenizer_name"):
        # SigLIP's, which open_clip takes from Hugging Face, cleaning as it says itself.
        if text is None or not text.is_dir():
            raise UserError(
                "this open_clip model needs the folder of its tokenizer "
                f"{words['hf_tokenizer_name']} (tokenizer.json); name it with --text."
            )
        clean = (words.get("tokenizer_kwargs") or {}).get("clean")
        if clean != "canonicalize":
            raise UserError(
                f"the tokenizer's way of cleaning a text, {clean!r}, is not read here; known: "
                "'canonicalize', SigLIP's."
            )
        tokenizer: ClipTokenizer = read_pieces(text, "canonical_spaced")
    else:
        tokenizer = ClipTokenizer.from_merges(text or installed_merges())
    checked(tokenizer, int(words.get("vocab_size", 49408)), where)
    unread = ("tokenizer_kwargs", "hf_tokenizer_name")
    content = {
        "config": {name: value for name, value in words.items() if name not in unread},
        "quick_gelu": quick,
        "pad": tokenizer.pad_id,
        "pieces": tokenizer.pieces,
    }
    return validate(OpenClipTextSettings, content, where, "text_cfg."), tokenizer


def _bert(
    state: State, text: Path | None, words: Mapping[str, Any]
) -> tuple[BertSettings, SentenceTokenizer]:
    """A BERT from Hugging Face, pooled and mapped as open_clip's ``HFTextEncoder`` does."""
    if text is None:
        raise UserError(
            "this open_clip model needs the folder of its BERT (config.json and vocab.txt); name "
            "it with --text."
        )
    config = read_bert_config(text)
    token = _POOLERS[str(words.get("hf_pooler_type", "mean_pooler"))]
    first = state.get("text.proj.0.weight")
    pooling: Literal["mlp", "linear", "none"]
    pooling = "mlp" if first is not None else "linear" if "text.proj.weight" in state else "none"
    hidden = 0 if first is None else len(first)
    tokenizer = SentenceTokenizer.load(text)
    checked(tokenizer, config["vocab_size"], text)
    return BertSettings(config=config, pooling=pooling, token=token, hidden=hidden), tokenizer
