"""CLIP and its relatives as open_clip describes and stores them: CheXzero, BiomedCLIP, UniMed-CLIP.

Of a captioner (CoCa) the decoder is left out. A BERT from Hugging Face comes from its folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.models.backbones.timm_trunk import timm_package, trunk_kind, trunk_stride
from medclip_debias.models.checkpoint import layers_in, shape_of
from medclip_debias.models.peers.checkpoints import Unused
from medclip_debias.models.peers.clip_towers import open_clip_networks
from medclip_debias.models.peers.families import published_preprocessing
from medclip_debias.models.peers.images import State
from medclip_debias.models.peers.settings import (
    ImageSettings,
    Kind,
    PeerPreprocessing,
    PeerSettings,
    TextSettings,
)
from medclip_debias.models.peers.tokenizers import ClipTokenizer, PeerTokenizer, read_pieces
from medclip_debias.models.text_encoder import SentenceTokenizer, check_vocabulary, read_bert_config

Pooler = Literal["first", "mean", "pooler"]
_POOLERS: dict[str, Pooler] = {
    "cls_last_hidden_state_pooler": "first",
    "mean_pooler": "mean",
    "cls_pooler": "pooler",
}


def read_open_clip(
    kind: Kind,
    named: dict[str, Tensor],
    text: Path | None,
    config: Path | None,
    where: str,
    unused: Unused,
) -> tuple[PeerSettings, dict[str, Tensor], PeerTokenizer, PeerPreprocessing]:
    """CheXzero, or any model of open_clip whose towers are read here."""
    content: dict[str, Any] = {}
    if kind == "chexzero":
        model = _chexzero(named)
    elif config is None:
        raise UserError(
            "open_clip needs the model's configuration (open_clip_config.json); "
            "name it with --config."
        )
    else:
        content = read_json(config, "give the open_clip_config.json of the model", limit=16 << 20)
        model = content.get("model_cfg", content)
        both = model if isinstance(model, Mapping) else {}
        vision, texts = both.get("vision_cfg"), both.get("text_cfg")
        if not isinstance(vision, Mapping) or not isinstance(texts, Mapping):
            raise UserError(f"{config}: holds no vision_cfg and text_cfg; give open_clip's file.")
        _check_options(vision, texts, str(config))
    words = dict(model["text_cfg"])
    quick = bool(model.get("quick_gelu", False))
    dim = _width(model, named, where)
    image = _image(dict(model["vision_cfg"]), quick, where)
    tokenizer: PeerTokenizer
    if words.get("hf_model_name"):
        tower, tokenizer = _bert(named, text, words)
        pooler = [key for key in named if key.startswith("text.bert.pooler.")]
        for key in pooler if tower.token != "pooler" else ():
            del named[key]
            unused["BERT's pooler, which no sentence's vector is computed from"] += 1
    else:
        tower, tokenizer = _clip_text(text, words, quick, where)
    tokens = int(words.get("context_length", 77))
    settings = PeerSettings(kind=kind, dim=dim, max_tokens=tokens, image=image, text=tower)
    how = content.get("preprocess_cfg") or {}
    side = int(image.config.get("image_size") or 224)
    return settings, named, tokenizer, _preprocessing(kind, side, how, config)


def _chexzero(named: State) -> dict[str, Any]:
    """OpenAI's CLIP with a vision transformer, fine-tuned; sizes are the tensors'."""
    width, _, _, patch = shape_of(named, "image.visual.conv1.weight")
    side = round((shape_of(named, "image.visual.positional_embedding")[0] - 1) ** 0.5)
    context, words = shape_of(named, "text.text.positional_embedding")
    return {
        "quick_gelu": True,
        "embed_dim": shape_of(named, "image.visual.proj")[1],
        "vision_cfg": {
            "image_size": side * patch,
            "patch_size": patch,
            "width": width,
            "layers": layers_in(named, r"^image\.visual\.transformer\.resblocks\.(\d+)\."),
        },
        "text_cfg": {
            "context_length": context,
            "vocab_size": shape_of(named, "text.text.token_embedding.weight")[0],
            "width": words,
            "heads": max(words // 64, 1),
            "layers": layers_in(named, r"^text\.text\.transformer\.resblocks\.(\d+)\."),
        },
    }


def _preprocessing(
    kind: Kind, image_size: int, given: Mapping[str, Any], config: Path | None
) -> PeerPreprocessing:
    """The published preprocessing, with what the configuration says of its own."""
    published = published_preprocessing(kind, image_size)
    if kind == "chexzero":
        return published
    fits = {"shortest": "crop", "longest": "pad", "squash": "squash"}
    for name, known in (("resize_mode", tuple(fits)), ("interpolation", ("bicubic", "bilinear"))):
        if given.get(name, known[0]) not in known:
            raise UserError(
                f"{config}: its {name} '{given[name]}' is not supported here; known: "
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


def installed_merges() -> Path:
    """CLIP's merges file out of an installed open_clip, without importing it."""
    from importlib.util import find_spec

    package = find_spec("open_clip")
    for place in (package.submodule_search_locations or []) if package else []:
        path = Path(place) / "bpe_simple_vocab_16e6.txt.gz"
        if path.is_file():
            return path
    raise UserError(
        "CLIP's tokenizer needs bpe_simple_vocab_16e6.txt.gz, from the repositories of CLIP, "
        "open_clip or CheXzero; name it with --text, or install open-clip-torch."
    )


def _width(model: Mapping[str, Any], named: State, where: str) -> int:
    """The width of the shared space: of the image tower's map, else as the configuration says."""
    for name, side in (("proj", 1), ("head.proj.weight", 0), ("attnpool.c_proj.weight", 0)):
        if f"image.visual.{name}" in named:
            return shape_of(named, f"image.visual.{name}")[side]
    if isinstance(model.get("embed_dim"), int):
        return int(model["embed_dim"])
    raise UserError(f"{where}: its configuration does not say embed_dim.")


def _image(vision: dict[str, Any], quick: bool, where: str) -> ImageSettings:
    content = {"kind": "open_clip", "config": vision, "quick_gelu": quick}
    if vision.get("timm_model_name"):
        name = vision["timm_model_name"] = str(vision["timm_model_name"]).partition(".")[0]
        kind = trunk_kind(name, where)
        with torch.device("meta"):
            trunk = timm_package().create_model(name, pretrained=False)
        content["timm_stride"] = trunk_stride(trunk, kind, f"{where}: '{name}'")
    return validate(ImageSettings, content, where, "vision_cfg.")


def _check_options(vision: Mapping[str, Any], words: Mapping[str, Any], where: str) -> None:
    """Refuse, by name, options that open_clip's towers do not have, or that ours do not follow."""
    networks = open_clip_networks()
    for part, towers in ((vision, networks.CLIPVisionCfg), (words, networks.CLIPTextCfg)):
        known = {field.name for field in fields(towers)}
        # An option that is switched off changes nothing.
        odd = sorted(
            n for n, value in part.items() if n not in known and value not in (None, False)
        )
        if odd:
            raise UserError(f"{where}: '{min(odd)}' is an option of towers that are not read here.")
    pooled = bool(vision.get("attentional_pool"))
    choices: list[tuple[Mapping[str, Any], str, Any, tuple[Any, ...]]] = [
        (vision, "attentional_pool", False, (False, True)),
        (vision, "pool_type", "tok", ("tok",) if pooled else ("tok", "avg")),
        (words, "hf_pooler_type", "mean_pooler", tuple(_POOLERS)),
        (words, "hf_proj_type", "mlp", ("mlp", "linear", None, "")),
        (words, "proj_type", "linear", ("linear",)),
        (words, "tokenizer_mode", None, (None,)),
    ]
    if vision.get("timm_model_name"):
        choices += [(vision, "timm_pool", "avg", ("", "token", "avg", "map"))]
        choices += [(vision, "timm_proj", "linear", ("linear", "mlp", "none", "", None))]
    if not words.get("hf_model_name"):
        # SigLIP's texts see all places of a context that is filled up.
        filled, own = bool(words.get("no_causal_mask")), bool(words.get("embed_cls"))
        ends = ("argmax", "last") if filled and not own else ("argmax",)
        choices += [(words, "pool_type", "argmax", ends)]
        choices += [(words, "no_causal_mask", False, (False,) if own else (False, True))]
    for part, name, usual, allowed in choices:
        if part.get(name, usual) not in allowed:
            shown = ", ".join(repr(value) for value in allowed)
            raise UserError(
                f"{where}: '{name}' is {part.get(name, usual)!r}, which is not read here; known: "
                f"{shown}."
            )


def _clip_text(
    text: Path | None, words: dict[str, Any], quick: bool, where: str
) -> tuple[TextSettings, ClipTokenizer]:
    """The text tower of CLIP, SigLIP or CoCa, and its tokenizer."""
    name, options = words.pop("hf_tokenizer_name", None), words.pop("tokenizer_kwargs", None) or {}
    if name:
        # SigLIP's, which open_clip takes from Hugging Face, cleaning as it says itself.
        if text is None or not text.is_dir():
            raise UserError(
                f"this open_clip model needs the folder of its tokenizer {name} (tokenizer.json); "
                "name it with --text."
            )
        if options.get("clean") != "canonicalize":
            raise UserError(
                f"the tokenizer's way of cleaning a text, {options.get('clean')!r}, is not read "
                "here; known: 'canonicalize', SigLIP's."
            )
        tokenizer: ClipTokenizer = read_pieces(text, "canonical_spaced")
    else:
        tokenizer = ClipTokenizer.from_merges(text or installed_merges())
    check_vocabulary(tokenizer, int(words.get("vocab_size", 49408)), where)
    content = {"kind": "open_clip", "config": words, "quick_gelu": quick}
    content |= {"pad": tokenizer.pad_id, "pieces": tokenizer.pieces}
    return validate(TextSettings, content, where, "text_cfg."), tokenizer


def _bert(
    named: State, text: Path | None, words: Mapping[str, Any]
) -> tuple[TextSettings, SentenceTokenizer]:
    """A BERT from Hugging Face, pooled and mapped as open_clip's ``HFTextEncoder`` does."""
    if text is None:
        raise UserError(
            "this open_clip model needs the folder of its BERT (config.json and vocab.txt); name "
            "it with --text."
        )
    config = read_bert_config(text)
    token = _POOLERS[str(words.get("hf_pooler_type", "mean_pooler"))]
    pooling: Literal["mlp", "linear", "none"] = "none"
    if "text.head.0.weight" in named:
        pooling = "mlp"
    elif "text.head.weight" in named:
        pooling = "linear"
    tokenizer = SentenceTokenizer.load(text)
    check_vocabulary(tokenizer, config["vocab_size"], text)
    return TextSettings(kind="bert", config=config, pooling=pooling, token=token), tokenizer
