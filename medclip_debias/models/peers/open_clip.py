"""CLIP and its relatives as open_clip describes and stores them: CheXzero, BiomedCLIP, UniMed-CLIP.

Image towers: CLIP's vision transformer and its variants, CLIP's ResNets, timm's plain vision
transformers and SigLIP's, and through timm itself ConvNeXt, Swin and EVA. Text towers: CLIP's own,
SigLIP's, CoCa's, and BERT from Hugging Face. Each image tower goes with each text tower, in both of
open_clip's layouts (the text tower's tensors under ``text.``, or bare). Of a captioner (CoCa) the
two towers are read; its decoder, which scores no image, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.models.peers.checkpoint import Names, layers_in, shape_of
from medclip_debias.models.peers.piece_tokenizer import PieceTokenizer, read_pieces
from medclip_debias.models.peers.settings import (
    BertSettings,
    ClipResNetSettings,
    ClipTextSettings,
    Kind,
    PeerPreprocessing,
    PeerSettings,
    ResNetSettings,
    TimmSettings,
    ViTSettings,
    published_preprocessing,
)
from medclip_debias.models.peers.text import ClipTokenizer, checked
from medclip_debias.models.peers.visual_towers import (
    clip_resnet,
    clip_vit,
    is_plain,
    is_siglip,
    named_below,
    siglip_vit,
    timm_trunk,
    timm_vit,
)
from medclip_debias.models.text_encoder import SentenceTokenizer, read_bert_config

AnyTokenizer = SentenceTokenizer | ClipTokenizer | PieceTokenizer
Read = tuple[PeerSettings, dict[str, Tensor], AnyTokenizer]
State = Mapping[str, Tensor]

BERT_TEXT: Names = (
    (r"^text\.transformer\.", "text.bert."),
    (r"^text\.proj\.", "text.head."),
)

_VIT_OPTIONS = {
    *("image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio", "ls_init_value"),
    *("patch_dropout", "no_ln_pre", "pos_embed_type", "final_ln_after_pool", "pool_type"),
    *("output_tokens", "attentional_pool", "attn_pooler_queries", "attn_pooler_heads"),
}
_RESNET_OPTIONS = {"image_size", "layers", "width", "patch_size", "head_width"}
_TIMM_OPTIONS = {
    *("timm_model_name", "timm_model_pretrained", "timm_pool", "timm_proj", "timm_drop"),
    *("timm_drop_path", "image_size", "patch_dropout", "timm_proj_bias"),
}
_TEXT_OPTIONS = {
    *("context_length", "vocab_size", "width", "heads", "layers", "mlp_ratio"),
    *("tokenizer_kwargs", "output_tokens", "embed_cls", "pad_id", "no_causal_mask", "pool_type"),
    *("proj_bias", "norm_kwargs", "act_kwargs", "hf_tokenizer_name"),
}
_BERT_OPTIONS = {
    *("hf_model_name", "hf_tokenizer_name", "hf_proj_type", "hf_pooler_type"),
    *("hf_model_pretrained", "context_length", "tokenizer_kwargs", "vocab_size", "output_tokens"),
    *("width", "heads", "layers"),  # open_clip ignores them beside a model of Hugging Face
}
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
    sized = ViTSettings | ClipResNetSettings | TimmSettings
    size = image.image_size if isinstance(image, sized) else 224
    resnet = isinstance(image, ResNetSettings)
    found = published_preprocessing(settings.kind, size, resnet=resnet)
    if config is None:
        return found
    given = read_config(config).get("preprocess_cfg") or {}
    modes = ("shortest", "longest", "squash")
    for name, known in (("resize_mode", modes), ("interpolation", ("bicubic", "bilinear"))):
        if given.get(name, known[0]) not in known:
            raise UserError(
                f"{config}: its {name} '{given[name]}' is not offered here; known: "
                f"{', '.join(known)}."
            )
    change: dict[str, Any] = {}
    prepare = {"resample": given.get("interpolation", found.prepare.resample)}
    fits = {"shortest": "crop", "longest": "pad", "squash": "squash"}
    prepare["fit"] = fits[given.get("resize_mode", "shortest")]
    change["prepare"] = found.prepare.model_copy(update=prepare)
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
    image: ViTSettings | ClipResNetSettings | TimmSettings
    if is_siglip(vision):
        image, pixels, dim = siglip_vit(state, str(vision["timm_model_name"]), where)
    elif vision.get("timm_model_name") and not is_plain(vision):
        image, pixels, dim = timm_trunk(state, vision, model.get("embed_dim"), where)
    elif vision.get("timm_model_name"):
        image, pixels, dim = timm_vit(state, where)
    elif isinstance(vision.get("layers"), Sequence):
        image, pixels, dim = clip_resnet(state, vision, where)
    else:
        image, pixels, dim = clip_vit(state, vision, quick, where)
    if words.get("hf_model_name"):
        read = _bert(state, text, words, where)
    else:
        read = _clip_text(state, text, words, quick, where)
    tower, own, tokenizer, tokens = read
    settings = PeerSettings(kind=kind, dim=dim, max_tokens=tokens, image=image, text=tower)
    return settings, pixels | own, tokenizer


def _check_options(model: Mapping[str, Any], where: str) -> None:
    """Refuse, by name, what the towers here do not have."""
    vision, words = model["vision_cfg"], model["text_cfg"]
    timm = vision.get("timm_model_name")
    resnet = isinstance(vision.get("layers"), Sequence)
    known = _TIMM_OPTIONS if timm else _RESNET_OPTIONS if resnet else _VIT_OPTIONS
    _refuse_unknown(vision, known, where)
    _refuse_unknown(words, _BERT_OPTIONS if words.get("hf_model_name") else _TEXT_OPTIONS, where)
    choices: list[tuple[Mapping[str, Any], str, Any, tuple[Any, ...]]] = [
        (vision, "attentional_pool", False, (False, True)),
        (
            vision,
            "pool_type",
            "tok",
            ("tok",) if vision.get("attentional_pool") else ("tok", "avg"),
        ),
        (words, "hf_pooler_type", "mean_pooler", tuple(_POOLERS)),
        (words, "hf_proj_type", "mlp", ("mlp", "linear", None, "")),
    ]
    if timm:
        choices += [(vision, "timm_pool", "avg", ("", "token", "avg", "map"))]
        choices += [(vision, "timm_proj", "linear", ("linear", "mlp", "none", "", None))]
    if not words.get("hf_model_name"):
        appended = bool(words.get("embed_cls"))
        pools = ("argmax",) if appended else ("argmax", "last") if _fills(words) else ("argmax",)
        choices += [(words, "pool_type", "argmax", pools)]
        choices += [(words, "no_causal_mask", False, (False,) if appended else (False, True))]
    for part, name, usual, allowed in choices:
        if part.get(name, usual) not in allowed:
            shown = ", ".join(repr(value) for value in allowed)
            raise UserError(
                f"{where}: '{name}' is {part.get(name, usual)!r}, which is not read here; known: "
                f"{shown}."
            )


def _fills(words: Mapping[str, Any]) -> bool:
    """SigLIP's texts, which see all places of a context that is filled up."""
    return bool(words.get("no_causal_mask"))


def _refuse_unknown(part: Mapping[str, Any], known: set[str], where: str) -> None:
    # An option that is switched off changes nothing.
    odd = sorted(name for name in set(part) - known if part[name] not in (None, False))
    if odd:
        raise UserError(f"{where}: '{odd[0]}' is an option of towers that are not read here.")


# --------------------------------------------------------------------------------- text towers

TextTower = tuple[ClipTextSettings | BertSettings, dict[str, Tensor], AnyTokenizer, int]


def _clip_text(
    state: State, text: Path | None, words: Mapping[str, Any], quick: bool, where: str
) -> TextTower:
    """CLIP's causal transformer."""
    nested = "text.token_embedding.weight" in state
    state = {k: v for k, v in state.items() if k.startswith("text.") or not nested}
    state = {k.removeprefix("text."): v for k, v in state.items() if not k.startswith("visual.")}
    context, width = shape_of(state, "positional_embedding", where)
    vocabulary = shape_of(state, "token_embedding.weight", where)[0]
    biased = bool(words.get("proj_bias"))
    shape_of(state, "text_projection.weight" if biased else "text_projection", where)
    appended = "cls_emb" in state
    context -= appended
    tokenizer: ClipTokenizer | PieceTokenizer
    if words.get("hf_tokenizer_name"):
        tokenizer = _pieces(text, words)
    else:
        tokenizer = ClipTokenizer.from_merges(text or installed_merges())
    end: Literal["last", "end"] = "last" if words.get("pool_type") == "last" else "end"
    settings = ClipTextSettings(
        context=context,
        vocabulary=vocabulary,
        width=width,
        layers=layers_in(state, r"^transformer\.resblocks\.(\d+)\."),
        heads=int(words.get("heads", width // 64)),
        hidden=shape_of(state, "transformer.resblocks.0.mlp.c_fc.weight", where)[0],
        quick_gelu=quick,
        tanh_gelu=(words.get("act_kwargs") or {}).get("approximate") == "tanh",
        eps=float((words.get("norm_kwargs") or {}).get("eps", 1e-5)),
        causal=not words.get("no_causal_mask"),
        pool="appended" if appended else end,
        bias=biased,
        pad=tokenizer.pad_id if isinstance(tokenizer, PieceTokenizer) else 0,
        pieces=isinstance(tokenizer, PieceTokenizer),
    )
    checked(tokenizer, vocabulary, where)
    return settings, named_below(state, "", ((r"^", "text."),)), tokenizer, context


def _pieces(text: Path | None, words: Mapping[str, Any]) -> PieceTokenizer:
    """SigLIP's tokenizer, which open_clip takes from Hugging Face, cleaning as it says itself."""
    if text is None or not text.is_dir():
        raise UserError(
            f"this open_clip model needs the folder of its tokenizer {words['hf_tokenizer_name']} "
            "(tokenizer.json); name it with --text."
        )
    clean = (words.get("tokenizer_kwargs") or {}).get("clean")
    if clean != "canonicalize":
        raise UserError(
            f"the tokenizer's way of cleaning a text, {clean!r}, is not read here; known: "
            "'canonicalize', SigLIP's."
        )
    return read_pieces(text, "canonical_spaced")


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
    named = named_below(state, "text.", BERT_TEXT)
    if token != "pooler":
        named = {k: v for k, v in named.items() if not k.startswith("text.bert.pooler.")}
    settings = BertSettings(config=config, pooling=pooling, token=token, hidden=hidden)
    tokenizer = SentenceTokenizer.load(text)
    checked(tokenizer, config["vocab_size"], text)
    return settings, named, tokenizer, int(words.get("context_length", 77))
