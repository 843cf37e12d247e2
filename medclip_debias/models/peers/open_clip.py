"""CLIP and its relatives as open_clip describes and stores them: CheXzero, BiomedCLIP, UniMed-CLIP.

Image towers: CLIP's vision transformer and its variants, CLIP's ResNets, and timm's plain vision
transformers. Text towers: CLIP's own, and BERT from Hugging Face. Each image tower goes with each
text tower, in both of open_clip's layouts (the text tower's tensors under ``text.``, or bare).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.models.peers.checkpoint import Names, layers_in, renamed, shape_of
from medclip_debias.models.peers.settings import (
    BertSettings,
    ClipResNetSettings,
    ClipTextSettings,
    Kind,
    PeerPreprocessing,
    PeerSettings,
    ResNetSettings,
    ViTSettings,
    published_preprocessing,
)
from medclip_debias.models.peers.text import ClipTokenizer, checked
from medclip_debias.models.text_encoder import SentenceTokenizer, read_bert_config

Read = tuple[PeerSettings, dict[str, Tensor], SentenceTokenizer | ClipTokenizer]
State = Mapping[str, Tensor]

BUFFERS = r"position_ids$|relative_position_index$|attn_mask$"
LEFT_OUT: Names = (
    (r"^(logit_scale|logit_bias|input_resolution|context_length|vocab_size)$", None),
    (BUFFERS, None),
)
CLIP_IMAGE: Names = ((r"^visual\.", "image."),)


def timm_names(prefix: str, to: str) -> Names:
    """Names of timm's plain vision transformer below the pattern ``prefix``, as CLIP's."""
    block = rf"{to}transformer.resblocks.\1"
    return (
        (rf"^{prefix}cls_token$", f"{to}class_embedding"),
        (rf"^{prefix}pos_embed$", f"{to}positional_embedding"),
        (rf"^{prefix}patch_embed\.proj\.", f"{to}conv1."),
        (rf"^{prefix}norm\.", f"{to}ln_post."),
        (rf"^{prefix}blocks\.(\d+\.)norm(\d)\.", block + r"ln_\2."),
        (rf"^{prefix}blocks\.(\d+\.attn\.)qkv\.", block + "in_proj_"),
        (rf"^{prefix}blocks\.(\d+\.attn\.)proj\.", block + "out_proj."),
        (rf"^{prefix}blocks\.(\d+\.mlp\.)fc1\.", block + "c_fc."),
        (rf"^{prefix}blocks\.(\d+\.mlp\.)fc2\.", block + "c_proj."),
    )


TIMM_IMAGE: Names = (
    *timm_names(r"visual\.trunk\.", "image."),
    (r"^visual\.head\.proj\.weight$", "image.proj"),
)
BERT_TEXT: Names = (
    (r"^text\.transformer\.", "text.bert."),
    (r"^text\.proj\.", "text.head."),
)

_VIT_OPTIONS = {
    *("image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio", "ls_init_value"),
    *("patch_dropout", "no_ln_pre", "pos_embed_type", "final_ln_after_pool", "pool_type"),
    "output_tokens",
}
_RESNET_OPTIONS = {"image_size", "layers", "width", "patch_size", "head_width"}
_TIMM_OPTIONS = {
    *("timm_model_name", "timm_model_pretrained", "timm_pool", "timm_proj", "timm_drop"),
    *("timm_drop_path", "image_size", "patch_dropout"),
}
_TEXT_OPTIONS = {
    *("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"),
    *("tokenizer_kwargs", "output_tokens"),
}
_BERT_OPTIONS = {
    *("hf_model_name", "hf_tokenizer_name", "hf_proj_type", "hf_pooler_type"),
    *("hf_model_pretrained", "context_length", "tokenizer_kwargs", "vocab_size", "output_tokens"),
    *("width", "heads", "layers"),  # open_clip ignores them beside a model of Hugging Face
}
_TIMM_NAMES = r"vit_(tiny|small|base|large)_patch(8|14|16|32)_\d+(\.\w+)?"
Pooler = Literal["first", "mean", "pooler"]
_POOLERS: dict[str, Pooler] = {
    "cls_last_hidden_state_pooler": "first",
    "mean_pooler": "mean",
    "cls_pooler": "pooler",
}


def read_chexzero(state: State, text: Path | None, where: str) -> Read:
    """CheXzero: OpenAI's CLIP with a vision transformer, fine-tuned."""
    return _assemble("chexzero", state, text, {"quick_gelu": True}, where)


def read_open_clip(state: State, text: Path | None, config: Path | None, where: str) -> Read:
    """Any model of open_clip whose towers are read here.

    Args:
        state: its tensors.
        text: for BERT its folder; for CLIP's tokenizer its merges file, or None.
        config: ``open_clip_config.json``, or open_clip's model configuration.
        where: names the weights in messages.

    Raises:
        UserError: no configuration, an option or tower that is not read here (named), or tensors
            that do not fit.
    """
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
    """The published preprocessing, with what the configuration says of its own.

    Raises:
        UserError: the configuration asks for a way of resizing that is not offered here.
    """
    image = settings.image
    size = image.image_size if isinstance(image, ViTSettings | ClipResNetSettings) else 224
    resnet = isinstance(image, ResNetSettings)
    found = published_preprocessing(settings.kind, size, resnet=resnet)
    given = {} if config is None else read_config(config).get("preprocess_cfg") or {}
    for name, known in (("resize_mode", ("shortest",)), ("interpolation", ("bicubic", "bilinear"))):
        if given.get(name, known[0]) not in known:
            raise UserError(
                f"{config}: its {name} '{given[name]}' is not offered here; known: "
                f"{', '.join(known)}."
            )
    change: dict[str, Any] = {}
    if given.get("interpolation") == "bilinear":
        change["prepare"] = found.prepare.model_copy(update={"resample": "bilinear"})
    if isinstance(given.get("mean"), list) and isinstance(given.get("std"), list):
        change |= {"channel_mean": tuple(given["mean"]), "channel_std": tuple(given["std"])}
    return found.model_copy(update=change)


def read_config(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    return read_json(path, "give the open_clip_config.json of the model")


def installed_merges() -> Path:
    """CLIP's merges file out of an installed open_clip, without importing it."""
    from importlib.util import find_spec

    found = find_spec("open_clip")
    places = list(found.submodule_search_locations or []) if found else []
    for place in places:
        path = Path(place) / "bpe_simple_vocab_16e6.txt.gz"
        if path.is_file():
            return path
    raise UserError(
        "CLIP's tokenizer needs bpe_simple_vocab_16e6.txt.gz, from the repositories of CLIP, "
        "open_clip or CheXzero; name it with --text, or install open-clip-torch."
    )


# -------------------------------------------------------------------------------- assembly


def _assemble(
    kind: Kind, state: State, text: Path | None, model: Mapping[str, Any], where: str
) -> Read:
    """One image tower and one text tower, each with its tensors renamed."""
    vision, words = model.get("vision_cfg", {}), model.get("text_cfg", {})
    quick = bool(model.get("quick_gelu", False))
    image: ViTSettings | ClipResNetSettings
    if vision.get("timm_model_name"):
        image, pixels, dim = _timm_vit(state, where)
    elif isinstance(vision.get("layers"), Sequence):
        image, pixels, dim = _resnet(state, vision, where)
    else:
        image, pixels, dim = _clip_vit(state, vision, quick, where)
    if words.get("hf_model_name"):
        read = _bert(state, text, words, where)
    else:
        read = _clip_text(state, text, words, quick, where)
    tower, own, tokenizer, tokens = read
    settings = PeerSettings(kind=kind, dim=dim, max_tokens=tokens, image=image, text=tower)
    return settings, pixels | own, tokenizer


def _named(state: State, prefix: str, names: Names) -> dict[str, Tensor]:
    """The tensors below ``prefix`` under this project's names, without what scores nothing."""
    own = {key: value for key, value in state.items() if key.startswith(prefix)}
    return renamed(own, [*LEFT_OUT, *names])


def _check_options(model: Mapping[str, Any], where: str) -> None:
    """Refuse, by name, what the towers here do not have."""
    vision, words = model["vision_cfg"], model["text_cfg"]
    timm = vision.get("timm_model_name")
    if model.get("multimodal_cfg"):
        raise UserError(f"{where}: is a captioner (multimodal_cfg); only towers are read here.")
    if timm is not None and not re.fullmatch(_TIMM_NAMES, str(timm)):
        raise UserError(
            f"{where}: the image tower '{timm}' is not read here; of timm's towers only plain "
            "vision transformers are (vit_base_patch16_224 and its sizes)."
        )
    resnet = isinstance(vision.get("layers"), Sequence)
    known = _TIMM_OPTIONS if timm else _RESNET_OPTIONS if resnet else _VIT_OPTIONS
    _refuse_unknown(vision, known, where)
    _refuse_unknown(words, _BERT_OPTIONS if words.get("hf_model_name") else _TEXT_OPTIONS, where)
    choices: list[tuple[Mapping[str, Any], str, Any, tuple[Any, ...]]] = [
        (vision, "pool_type", "tok", ("tok", "avg")),
        (words, "hf_pooler_type", "mean_pooler", tuple(_POOLERS)),
        (words, "hf_proj_type", "mlp", ("mlp", "linear", None, "")),
    ]
    if timm:
        choices += [(vision, "timm_pool", "avg", ("", "token"))]
        choices += [(vision, "timm_proj", "linear", ("linear",))]
    for part, name, usual, allowed in choices:
        if part.get(name, usual) not in allowed:
            shown = ", ".join(repr(value) for value in allowed)
            raise UserError(
                f"{where}: '{name}' is {part.get(name, usual)!r}, which is not read here; known: "
                f"{shown}."
            )


def _refuse_unknown(part: Mapping[str, Any], known: set[str], where: str) -> None:
    # An option that is switched off changes nothing.
    odd = sorted(name for name in set(part) - known if part[name] not in (None, False))
    if odd:
        raise UserError(f"{where}: '{odd[0]}' is an option of towers that are not read here.")


# -------------------------------------------------------------------------------- image towers


def _clip_vit(
    state: State, vision: Mapping[str, Any], quick: bool, where: str
) -> tuple[ViTSettings, dict[str, Tensor], int]:
    """CLIP's vision transformer; every width is read off the tensors."""
    width, _, _, patch = shape_of(state, "visual.conv1.weight", where)
    side = round((shape_of(state, "visual.positional_embedding", where)[0] - 1) ** 0.5)
    block = "visual.transformer.resblocks.0."
    settings = ViTSettings(
        image_size=side * patch,
        patch=patch,
        width=width,
        layers=layers_in(state, r"^visual\.transformer\.resblocks\.(\d+)\."),
        heads=width // int(vision.get("head_width", 64)),
        hidden=shape_of(state, block + "mlp.c_fc.weight", where)[0],
        quick_gelu=quick,
        pre_norm="visual.ln_pre.weight" in state,
        layer_scale=block + "ls_1.gamma" in state,
        pool="mean" if vision.get("pool_type") == "avg" else "token",
        norm_after_pool=bool(vision.get("final_ln_after_pool", False)),
    )
    return settings, _named(state, "visual.", CLIP_IMAGE), shape_of(state, "visual.proj", where)[1]


def _timm_vit(state: State, where: str) -> tuple[ViTSettings, dict[str, Tensor], int]:
    """timm's plain vision transformer with a linear head (BiomedCLIP)."""
    width, _, _, patch = shape_of(state, "visual.trunk.patch_embed.proj.weight", where)
    side = round((shape_of(state, "visual.trunk.pos_embed", where)[1] - 1) ** 0.5)
    settings = ViTSettings(
        image_size=side * patch,
        patch=patch,
        width=width,
        layers=layers_in(state, r"^visual\.trunk\.blocks\.(\d+)\."),
        heads=width // 64,
        hidden=shape_of(state, "visual.trunk.blocks.0.mlp.fc1.weight", where)[0],
        pre_norm=False,
        patch_bias=True,
        eps=1e-6,
    )
    dim = shape_of(state, "visual.head.proj.weight", where)[0]
    named = _named(state, "visual.", TIMM_IMAGE)
    shape_of(named, "image.class_embedding", where)
    named["image.class_embedding"] = named["image.class_embedding"].flatten()
    named["image.positional_embedding"] = named["image.positional_embedding"][0]
    named["image.proj"] = named["image.proj"].T.contiguous()
    return settings, named, dim


def _resnet(
    state: State, vision: Mapping[str, Any], where: str
) -> tuple[ClipResNetSettings, dict[str, Tensor], int]:
    """CLIP's ResNet (RN50 to RN50x64)."""
    width = shape_of(state, "visual.conv3.weight", where)[0]
    places = shape_of(state, "visual.attnpool.positional_embedding", where)[0] - 1
    depths = [layers_in(state, rf"^visual\.layer{n}\.(\d+)\.") for n in (1, 2, 3, 4)]
    settings = ClipResNetSettings(
        image_size=32 * round(places**0.5),
        layers=(depths[0], depths[1], depths[2], depths[3]),
        width=width,
        heads=width * 32 // int(vision.get("head_width", 64)),
    )
    dim = shape_of(state, "visual.attnpool.c_proj.weight", where)[0]
    return settings, _named(state, "visual.", CLIP_IMAGE), dim


# --------------------------------------------------------------------------------- text towers

TextTower = tuple[
    ClipTextSettings | BertSettings, dict[str, Tensor], SentenceTokenizer | ClipTokenizer, int
]


def _clip_text(
    state: State, text: Path | None, words: Mapping[str, Any], quick: bool, where: str
) -> TextTower:
    """CLIP's causal transformer."""
    nested = "text.token_embedding.weight" in state
    state = {k: v for k, v in state.items() if k.startswith("text.") or not nested}
    state = {k.removeprefix("text."): v for k, v in state.items() if not k.startswith("visual.")}
    context, width = shape_of(state, "positional_embedding", where)
    vocabulary = shape_of(state, "token_embedding.weight", where)[0]
    shape_of(state, "text_projection", where)
    settings = ClipTextSettings(
        context=context,
        vocabulary=vocabulary,
        width=width,
        layers=layers_in(state, r"^transformer\.resblocks\.(\d+)\."),
        heads=int(words.get("heads", width // 64)),
        hidden=shape_of(state, "transformer.resblocks.0.mlp.c_fc.weight", where)[0],
        quick_gelu=quick,
    )
    tokenizer = ClipTokenizer.from_merges(text or installed_merges())
    checked(tokenizer, vocabulary, where)
    return settings, _named(state, "", ((r"^", "text."),)), tokenizer, context


def _bert(state: State, text: Path | None, words: Mapping[str, Any], where: str) -> TextTower:
    """A BERT from Hugging Face, pooled and mapped as open_clip's ``HFTextEncoder`` does."""
    if text is None:
        raise UserError(
            "this open_clip model needs the folder of its BERT (config.json and vocab.txt); name "
            "it with --text."
        )
    config = read_bert_config(text)
    token = _POOLERS[str(words.get("hf_pooler_type", "mean_pooler"))]
    if "text.proj.0.weight" in state:
        pooling, hidden = "mlp", shape_of(state, "text.proj.0.weight", where)[0]
    else:
        pooling, hidden = ("linear" if "text.proj.weight" in state else "none"), 0
    named = _named(state, "text.", BERT_TEXT)
    if token != "pooler":
        named = {k: v for k, v in named.items() if not k.startswith("text.bert.pooler.")}
    settings = BertSettings(config=config, pooling=pooling, token=token, hidden=hidden)
    tokenizer = SentenceTokenizer.load(text)
    checked(tokenizer, config["vocab_size"], text)
    return settings, named, tokenizer, int(words.get("context_length", 77))
