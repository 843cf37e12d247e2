"""From the files that other groups publish to a peer folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from medclip_debias.errors import UserError, did_you_mean, explained
from medclip_debias.files import file_hash
from medclip_debias.models.peers.checkpoint import (
    Names,
    layers_in,
    load_strictly,
    read_checkpoint,
    renamed,
    shape_of,
    summed_channels,
)
from medclip_debias.models.peers.peer import Peer
from medclip_debias.models.peers.settings import (
    BertSettings,
    ClipTextSettings,
    Kind,
    PeerPreprocessing,
    PeerSettings,
    ResNetSettings,
    SwinSettings,
    ViTSettings,
    published_preprocessing,
)
from medclip_debias.models.peers.text import ClipTokenizer
from medclip_debias.models.text_encoder import (
    SentenceTokenizer,
    read_bert_config,
    read_bert_state,
)

KINDS: tuple[Kind, ...] = get_args(Kind)
WORDS = "text.bert.embeddings.word_embeddings.weight"
_BUFFERS = r"position_ids$|relative_position_index$|attn_mask$"

RESNET: Names = (
    (r"^encoder\.encoder\.fc\.", None),
    (r"^encoder\.encoder\.", "image.encoder."),
    (r"^encoder\.", "image."),
    (r"^projector\.model\.", "image.projector."),
)
BIOVIL_TEXT: Names = (
    (_BUFFERS, None),
    (r"^cls\.", None),
    (r"^bert\.pooler\.", None),
    (r"^bert\.", "text.bert."),
    (r"^cls_projection_head\.", "text.head."),
)
OPENAI: Names = (
    (r"^(logit_scale|logit_bias|input_resolution|context_length|vocab_size)$", None),
    (_BUFFERS, None),
    (r"^visual\.", "image."),
    (r"^", "text."),
)
TIMM: Names = (
    (r"^(logit_scale|logit_bias)$", None),
    (_BUFFERS, None),
    (r"^visual\.trunk\.cls_token$", "image.class_embedding"),
    (r"^visual\.trunk\.pos_embed$", "image.positional_embedding"),
    (r"^visual\.trunk\.patch_embed\.proj\.", "image.conv1."),
    (r"^visual\.trunk\.norm\.", "image.ln_post."),
    (r"^visual\.trunk\.(blocks\.\d+\.)norm(\d)\.", r"image.transformer.\1ln_\2."),
    (r"^visual\.trunk\.(blocks\.\d+\.attn\.)qkv\.", r"image.transformer.\1in_proj_"),
    (r"^visual\.trunk\.(blocks\.\d+\.attn\.)proj\.", r"image.transformer.\1out_proj."),
    (r"^visual\.trunk\.(blocks\.\d+\.mlp\.)fc1\.", r"image.transformer.\1c_fc."),
    (r"^visual\.trunk\.(blocks\.\d+\.mlp\.)fc2\.", r"image.transformer.\1c_proj."),
    (r"^visual\.head\.proj\.weight$", "image.proj"),
    (r"^text\.transformer\.pooler\.", None),
    (r"^text\.transformer\.", "text.bert."),
    (r"^text\.proj\.", "text.head."),
)
GLORIA: Names = (
    (_BUFFERS, None),
    (r"^(gloria\.)?text_encoder\.model\.pooler\.", None),
    (r"^(gloria\.)?text_encoder\.model\.", "text.bert."),
    (r"^(gloria\.)?img_encoder\.", "image."),
)
MEDCLIP: Names = (
    (r"^logit_scale$", None),
    (_BUFFERS, None),
    (r"^vision_model\.model\.fc\.", "image.fc."),
    (r"^vision_model\.model\.pooler\.", None),
    (r"^vision_model\.", "image."),
    (r"^text_model\.model\.", "text.bert."),
    (r"^text_model\.projection_head\.", "text.head."),
)
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


def import_model(
    kind: str, weights: Path, out: Path, *, text: Path | None = None, config: Path | None = None
) -> Peer:
    """Read published files, check every tensor, and write a peer folder.

    Args:
        kind: one of `KINDS`.
        weights: the published image or image-text checkpoint.
        out: folder to write.
        text: BERT folder, or for CLIP's tokenizer ``bpe_simple_vocab_16e6.txt.gz``.
        config: ``open_clip_config.json`` or open_clip's model configuration (open_clip only).

    Returns:
        The model, as `Peer.load` reads it from ``out``.

    Raises:
        UserError: an unknown kind, a file that is missing or holds code, or tensors that are
            missing, unknown or of another shape.
    """
    if kind not in KINDS:
        raise UserError(
            f"there is no kind of model '{kind}'{did_you_mean(kind, KINDS)}; "
            f"known are {', '.join(KINDS)}."
        )
    state = read_checkpoint(weights)
    where = str(weights)
    files = [weights, *(path for path in (text, config) if path is not None and path.is_file())]
    match kind:
        case "biovil" | "biovil_t":
            settings, state, tokenizer = _biovil(kind, state, _folder(text, kind), where)
        case "gloria":
            settings, state, tokenizer = _gloria(state, _folder(text, kind), where)
        case "medclip":
            settings, state, tokenizer = _medclip(state, _folder(text, kind), where)
        case _:
            settings, state, tokenizer = _clip(kind, state, text, config, where)
    preprocessing = _preprocessing(settings, config)
    provenance = {"imported": {path.name: file_hash(path) for path in files}}
    bad = (AssertionError, ValueError, TypeError, ZeroDivisionError, RuntimeError, AttributeError)
    with explained(f"{where}: the widths and heads of this model do not fit together", *bad):
        peer = Peer(settings, preprocessing, tokenizer, provenance)
    load_strictly(peer, state, where)
    peer.save(out)
    return Peer.load(out)


def _preprocessing(settings: PeerSettings, config: Path | None) -> PeerPreprocessing:
    size = settings.image.image_size if isinstance(settings.image, ViTSettings) else 224
    found = published_preprocessing(settings.kind, size)
    told = {} if config is None else _read_config(config).get("preprocess_cfg", {})
    if isinstance(told.get("mean"), list) and isinstance(told.get("std"), list):
        change = {"channel_mean": tuple(told["mean"]), "channel_std": tuple(told["std"])}
        found = found.model_copy(update=change)
    return found


def _folder(text: Path | None, kind: str) -> Path:
    if text is None:
        raise UserError(
            f"{kind} needs the folder of its BERT (config.json and vocab.txt); name it with --text."
        )
    return text


def _checked(tokenizer: SentenceTokenizer | ClipTokenizer, size: int, where: object) -> None:
    if tokenizer.size > size:
        raise UserError(
            f"{where}: the tokenizer has {tokenizer.size} tokens but the model only {size}; "
            "they do not belong together."
        )


Read = tuple[PeerSettings, dict[str, Tensor], SentenceTokenizer | ClipTokenizer]


def _biovil(kind: Kind, state: Mapping[str, Tensor], text: Path, where: str) -> Read:
    """BioViL and BioViL-T: an image file, and a CXR-BERT folder with its own weights."""
    config = read_bert_config(text)
    if not config.get("projection_size"):
        raise UserError(f"{text}/config.json: has no projection_size; give CXR-BERT-specialized.")
    hidden = shape_of(state, "projector.model.0.weight", where)[0]
    dim = shape_of(state, "projector.model.3.weight", where)[0]
    if dim != config["projection_size"]:
        raise UserError(
            f"{where}: maps to {dim} dimensions, the text model in {text} to "
            f"{config['projection_size']}; they do not belong together."
        )
    temporal = 0
    if kind == "biovil_t":
        temporal = shape_of(state, "encoder.backbone_to_vit.weight", where)[0]
    state = renamed(state, RESNET)
    state = summed_channels(state, "image.encoder.conv1.weight")
    state |= renamed(read_bert_state(text), BIOVIL_TEXT)
    settings = PeerSettings(
        kind=kind,
        dim=dim,
        max_tokens=config.get("max_position_embeddings", 512),
        image=ResNetSettings(hidden=hidden, temporal=temporal),
        text=BertSettings(config=config, pooling="projection"),
    )
    tokenizer = SentenceTokenizer.load(text)
    _checked(tokenizer, config["vocab_size"], text)
    return settings, state, tokenizer


def _gloria(state: Mapping[str, Tensor], text: Path, where: str) -> Read:
    """GLoRIA: one Lightning checkpoint; the BERT folder gives configuration and vocabulary."""
    config = read_bert_config(text)
    state = summed_channels(renamed(state, GLORIA), "image.model.conv1.weight")
    state = {k: v for k, v in state.items() if not k.startswith("image.model.fc.")}
    dim = shape_of(state, "image.global_embedder.weight", where)[0]
    settings = PeerSettings(
        kind="gloria",
        dim=dim,
        max_tokens=min(97, config.get("max_position_embeddings", 512)),
        image=ResNetSettings(),
        text=BertSettings(config=config, pooling="last4", words_only=True),
    )
    tokenizer = SentenceTokenizer.load(text)
    _checked(
        tokenizer, shape_of(state, "text.bert.embeddings.word_embeddings.weight", where)[0], text
    )
    return settings, state, tokenizer


def _medclip(state: Mapping[str, Tensor], text: Path, where: str) -> Read:
    """MedCLIP: one ``pytorch_model.bin``, with a ResNet-50 or a Swin-T image tower."""
    config = read_bert_config(text)
    state = renamed(state, MEDCLIP)
    dim = shape_of(state, "text.head.weight", where)[0]
    image: ResNetSettings | SwinSettings = ResNetSettings()
    if "image.projection_head.weight" in state:
        swin = {key: value for key, value in state.items() if key.startswith("image.")}
        state = {key: state[key] for key in state if key not in swin} | renamed(swin, SWIN)
        image = SwinSettings(config=_swin_config(state, where))
    else:
        state = summed_channels(state, "image.model.conv1.weight")
    settings = PeerSettings(
        kind="medclip",
        dim=dim,
        max_tokens=min(77, config.get("max_position_embeddings", 512)),
        image=image,
        text=BertSettings(config=config, pooling="pooler"),
    )
    tokenizer = SentenceTokenizer.load(text)
    _checked(
        tokenizer, shape_of(state, "text.bert.embeddings.word_embeddings.weight", where)[0], text
    )
    return settings, state, tokenizer


def _swin_config(state: Mapping[str, Tensor], where: str) -> dict[str, Any]:
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


# ---------------------------------------------------------------------------------- CLIP


def _clip(
    kind: Kind,
    state: Mapping[str, Tensor],
    text: Path | None,
    config: Path | None,
    where: str,
) -> Read:
    if kind == "chexzero":
        return _openai(kind, state, text, {"quick_gelu": True}, where)
    if config is None:
        raise UserError(
            "open_clip needs the model's configuration (open_clip_config.json); "
            "name it with --config."
        )
    content = _read_config(config)
    model = content.get("model_cfg", content)
    vision, words = model.get("vision_cfg"), model.get("text_cfg")
    if not isinstance(vision, Mapping) or not isinstance(words, Mapping):
        raise UserError(f"{config}: holds no vision_cfg and text_cfg; give open_clip's file.")
    timm, hugging = vision.get("timm_model_name"), words.get("hf_model_name")
    if timm is None and hugging is None and not isinstance(vision.get("layers"), Sequence):
        known = {"image_size", "layers", "width", "patch_size", "head_width", "mlp_ratio"}
        known |= {"context_length", "vocab_size", "heads", "tokenizer_kwargs"}
        if not set(vision) | set(words) <= known:
            odd = sorted((set(vision) | set(words)) - known)
            raise UserError(f"{config}: '{odd[0]}' is no option of a plain CLIP ViT, read here.")
        return _openai(kind, state, text, model, where)
    if timm == "vit_base_patch16_224" and words.get("hf_proj_type") == "mlp":
        return _biomed_clip(state, _folder(text, "this open_clip model"), words, where)
    raise UserError(
        f"{config}: only CLIP's own ViT and BiomedCLIP's towers (vit_base_patch16_224, BERT with "
        "an mlp projection) can be read here."
    )


def _openai(
    kind: Kind,
    state: Mapping[str, Tensor],
    text: Path | None,
    config: Mapping[str, Any],
    where: str,
) -> Read:
    """CLIP's ViT in OpenAI's names; every width is read off the tensors."""
    width, _, _, patch = shape_of(state, "visual.conv1.weight", where)
    side = round((shape_of(state, "visual.positional_embedding", where)[0] - 1) ** 0.5)
    context, text_width = shape_of(state, "positional_embedding", where)
    vocabulary = shape_of(state, "token_embedding.weight", where)[0]
    vision, words = config.get("vision_cfg", {}), config.get("text_cfg", {})
    quick = bool(config.get("quick_gelu", False))
    fc = "transformer.resblocks.0.mlp.c_fc.weight"
    settings = PeerSettings(
        kind=kind,
        dim=shape_of(state, "text_projection", where)[1],
        max_tokens=context,
        image=ViTSettings(
            image_size=side * patch,
            patch=patch,
            width=width,
            layers=layers_in(state, r"^visual\.transformer\.resblocks\.(\d+)\."),
            heads=width // int(vision.get("head_width", 64)),
            hidden=shape_of(state, "visual." + fc, where)[0],
            quick_gelu=quick,
        ),
        text=ClipTextSettings(
            context=context,
            vocabulary=vocabulary,
            width=text_width,
            layers=layers_in(state, r"^transformer\.resblocks\.(\d+)\."),
            heads=int(words.get("heads", text_width // 64)),
            hidden=shape_of(state, fc, where)[0],
            quick_gelu=quick,
        ),
    )
    tokenizer = ClipTokenizer.from_merges(text or _installed_merges())
    _checked(tokenizer, vocabulary, where)
    return settings, renamed(state, OPENAI), tokenizer


def _biomed_clip(
    state: Mapping[str, Tensor], text: Path, words: Mapping[str, Any], where: str
) -> Read:
    """BiomedCLIP: timm's ViT with a linear head, PubMedBERT with a two-layer head."""
    config = read_bert_config(text)
    width, _, _, patch = shape_of(state, "visual.trunk.patch_embed.proj.weight", where)
    side = round((shape_of(state, "visual.trunk.pos_embed", where)[1] - 1) ** 0.5)
    settings = PeerSettings(
        kind="open_clip",
        dim=shape_of(state, "visual.head.proj.weight", where)[0],
        max_tokens=int(words.get("context_length", 256)),
        image=ViTSettings(
            image_size=side * patch,
            patch=patch,
            width=width,
            layers=layers_in(state, r"^visual\.trunk\.blocks\.(\d+)\."),
            heads=width // 64,
            hidden=shape_of(state, "visual.trunk.blocks.0.mlp.fc1.weight", where)[0],
            pre_norm=False,
            patch_bias=True,
            eps=1e-6,
        ),
        text=BertSettings(
            config=config,
            pooling="mlp",
            hidden=shape_of(state, "text.proj.0.weight", where)[0],
        ),
    )
    state = renamed(state, TIMM)
    state = {key.replace(".blocks.", ".resblocks."): value for key, value in state.items()}
    shape_of(state, "image.class_embedding", where)
    state["image.class_embedding"] = state["image.class_embedding"].flatten()
    state["image.positional_embedding"] = state["image.positional_embedding"][0]
    state["image.proj"] = state["image.proj"].T.contiguous()
    tokenizer = SentenceTokenizer.load(text)
    _checked(tokenizer, config["vocab_size"], text)
    return settings, state, tokenizer


def _installed_merges() -> Path:
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


def _read_config(path: Path) -> dict[str, Any]:
    with explained(f"{path}: cannot be read as a JSON object", OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError
    return content
