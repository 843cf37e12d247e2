"""From the files that other groups publish to a peer folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from medclip_debias.config import PrepareSettings, validate
from medclip_debias.errors import UserError, did_you_mean, explained
from medclip_debias.files import file_hash
from medclip_debias.models.checkpoint import (
    Names,
    load_strictly,
    read_checkpoint,
    renamed,
    shape_of,
    summed_channels,
)
from medclip_debias.models.image_encoder import weight_file
from medclip_debias.models.peers.building import PeerTokenizer
from medclip_debias.models.peers.folder_models import READERS
from medclip_debias.models.peers.kad_medklip import read_kad, read_medklip
from medclip_debias.models.peers.licence import licence_line
from medclip_debias.models.peers.open_clip import (
    BUFFERS,
    Read,
    clip_preprocessing,
    read_chexzero,
    read_open_clip,
)
from medclip_debias.models.peers.peer import Peer
from medclip_debias.models.peers.processor import read_processor
from medclip_debias.models.peers.readers import (
    POOLER,
    POSITIONS,
    SWIN,
    TRAINING,
    read_carzero,
    read_conns,
    read_cxr_clip,
    read_mgca,
    read_radzero,
    swin_config,
    without,
)
from medclip_debias.models.peers.settings import (
    BertSettings,
    FusionSettings,
    HfClipSettings,
    Kind,
    PeerPreprocessing,
    PeerSettings,
    ResNetSettings,
    Score,
    SwinSettings,
)
from medclip_debias.models.peers.text import checked
from medclip_debias.models.text_encoder import (
    SentenceTokenizer,
    read_bert_config,
    read_bert_state,
)
from medclip_debias.models.unfilled import unfilled

BAD = (AssertionError, ValueError, TypeError, ZeroDivisionError, RuntimeError, AttributeError)
"""What building a model of numbers that do not fit raises, in one library or another."""
KINDS: tuple[Kind, ...] = get_args(Kind)
SIDE_FILES = (
    *("config.json", "preprocessor_config.json", "tokenizer_config.json"),
    *("tokenizer.json", "spiece.model", "merges.txt"),
)
"""What is read of a folder beside its weights."""
WORDS = "text.bert.embeddings.word_embeddings.weight"

RESNET: Names = (
    (r"^encoder\.encoder\.fc\.", None),
    (r"^encoder\.encoder\.", "image.encoder."),
    (r"^encoder\.", "image."),
    (r"^projector\.model\.", "image.projector."),
)
BIOVIL_TEXT: Names = (
    (BUFFERS, None),
    (r"^cls\.", None),
    (r"^bert\.pooler\.", None),
    (r"^bert\.", "text.bert."),
    (r"^cls_projection_head\.", "text.head."),
)
GLORIA: Names = (
    (BUFFERS, None),
    (r"^(gloria\.)?text_encoder\.model\.pooler\.", None),
    (r"^(gloria\.)?text_encoder\.model\.", "text.bert."),
    (r"^(gloria\.)?img_encoder\.", "image."),
)
MEDCLIP: Names = (
    (r"^logit_scale$", None),
    (BUFFERS, None),
    (r"^vision_model\.model\.fc\.", "image.fc."),
    (r"^vision_model\.model\.pooler\.", None),
    (r"^vision_model\.", "image."),
    (r"^text_model\.model\.pooler\.", None),
    (r"^text_model\.model\.", "text.bert."),
    (r"^text_model\.projection_head\.", "text.head."),
)


def import_model(
    kind: str,
    weights: Path,
    out: Path,
    *,
    text: Path | None = None,
    config: Path | None = None,
    golden: bool = False,
    score: str = "whole",
    levels: str | None = None,
    fit: str | None = None,
) -> Peer:
    """Read published files, check every tensor, and write a peer folder.

    Args:
        kind: one of `KINDS`.
        weights: the published image or image-text checkpoint, or the folder that transformers
            wrote (siglip, clip, rad_dino).
        out: folder to write.
        text: BERT folder, or for CLIP's tokenizer ``bpe_simple_vocab_16e6.txt.gz``.
        config: ``open_clip_config.json`` or open_clip's model configuration (open_clip), or
            ``preprocessor_config.json`` (radzero, conns), or the questions (kad, medklip).
        golden: store golden samples, with which every later loading tests the machine.
        score: by what `medclip_debias.models.load.load_model` shall let it score (GLoRIA).
        levels: grey levels of 8-bit files, ``stretched`` or ``as_stored``; None as published.
        fit: how an image becomes a square, ``pad``, ``crop`` or ``squash``; None as published.

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
    if score not in get_args(Score):
        raise UserError(
            f"there is no score '{score}'{did_you_mean(score, get_args(Score))}; known are "
            f"{', '.join(get_args(Score))}."
        )
    if score != "whole" and kind != "gloria":
        raise UserError(f"only gloria has a local score; leave --score {score} out for {kind}.")
    change = {name: value for name, value in (("levels", levels), ("fit", fit)) if value}
    places = {"weights": weights, "text": text}
    if kind in READERS:
        return _of_folder(kind, weights, out, (text, config), golden, change)
    state = read_checkpoint(weights)
    where = str(weights)
    learned = _learned_by_loss(state)
    files = [weights, *(path for path in (text, config) if path is not None and path.is_file())]
    unused: Counter[str] = Counter()
    with explained(f"{where}: a tensor of another shape than this model's", *BAD, LookupError):
        read, preprocessing = _read(kind, state, text, config, where, unused)
    settings, state, tokenizer = read
    if settings.fusion is None:
        settings = settings.model_copy(update=learned)
    if score != "whole":
        settings = settings.model_copy(update={"score": score})
    if preprocessing is None:
        preprocessing = clip_preprocessing(settings, config)
    preprocessing = _changed(preprocessing, change)
    provenance = {
        "imported": {path.name: file_hash(path) for path in files},
        "licence": licence_line(kind, places),
        "unused_tensors": dict(unused),
    }
    return _written(settings, state, tokenizer, preprocessing, provenance, out, golden, where)


def _of_folder(
    kind: Kind,
    folder: Path,
    out: Path,
    unused: tuple[Path | None, ...],
    golden: bool,
    change: Mapping[str, str],
) -> Peer:
    """A model whose weights, configuration and tokenizer lie in one folder."""
    if any(unused):
        raise UserError(f"{kind} is read from its one folder; leave --text and --config out.")
    if folder.is_file():
        folder = folder.parent
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; {kind} is read from a folder.")
    path = weight_file(folder)
    published = read_checkpoint(path)
    settings, state, tokenizer = READERS[kind](folder, published, str(path))
    settings = settings.model_copy(update=_learned_by_loss(published))
    image = settings.image
    size = image.image_size if isinstance(image, HfClipSettings) else None
    processor = folder / "preprocessor_config.json"
    preprocessing = _changed(read_processor(kind, processor, image_size=size), change)
    names = (path.name, *SIDE_FILES)
    provenance = {
        "imported": {n: file_hash(folder / n) for n in names if (folder / n).is_file()},
        "licence": licence_line(kind, {"weights": folder}),
        "unused_tensors": {},
    }
    return _written(settings, state, tokenizer, preprocessing, provenance, out, golden, str(path))


def _changed(published: PeerPreprocessing, change: Mapping[str, str]) -> PeerPreprocessing:
    """The published preprocessing with what was asked for in its place."""
    prepare = published.prepare.model_dump() | dict(change)
    return published.model_copy(
        update={"prepare": validate(PrepareSettings, prepare, "import-model")}
    )


def _written(
    settings: PeerSettings,
    state: Mapping[str, Tensor],
    tokenizer: PeerTokenizer,
    preprocessing: PeerPreprocessing,
    provenance: dict[str, Any],
    out: Path,
    golden: bool,
    where: str,
) -> Peer:
    """Build the model, fill it strictly, write its folder, and read that."""
    misfit = f"{where}: the widths and heads of this model do not fit together"
    with explained(misfit, *BAD), unfilled():
        peer = Peer(settings, preprocessing, tokenizer, provenance)
    load_strictly(peer, state, where)
    peer.eval().save(out, golden=golden)
    return Peer.load(out)


def _learned_scale(state: Mapping[str, Tensor]) -> float | None:
    """What cosines were multiplied by in training: CLIP, open_clip and MedCLIP keep its log."""
    for name, value in state.items():
        if name.rpartition(".")[2] == "logit_scale" and value.numel() == 1:
            scale = float(value.double().exp())
            return scale if 0 < scale <= 1e4 else None
    return None


def _learned_by_loss(state: Mapping[str, Tensor]) -> dict[str, float | None]:
    """Scale and SigLIP's bias of `PeerSettings`, as far as the file holds them."""
    found: dict[str, float | None] = {"scale": _learned_scale(state)}
    bias = state.get("logit_bias")
    if bias is not None and bias.numel() == 1 and abs(float(bias)) <= 1e4:
        found["bias"] = float(bias)
    return found


def _read(
    kind: Kind,
    state: Mapping[str, Tensor],
    text: Path | None,
    config: Path | None,
    where: str,
    unused: Counter[str],
) -> tuple[Read, PeerPreprocessing | None]:
    """Architecture, tensors, tokenizer; and the preprocessing, where a file of its own says it."""
    match kind:
        case "biovil" | "biovil_t":
            return _biovil(kind, state, _folder(text, kind), where), None
        case "gloria":
            return _gloria(state, _folder(text, kind), where), None
        case "medclip":
            return _medclip(state, _folder(text, kind), where), None
        case "chexzero":
            return read_chexzero(state, text, where), None
        case "carzero" | "cxr_clip" | "mgca":
            reader = {"carzero": read_carzero, "cxr_clip": read_cxr_clip, "mgca": read_mgca}[kind]
            return reader(state, _folder(text, kind), where, unused), None
        case "radzero" | "conns":
            other = read_radzero if kind == "radzero" else read_conns
            return other(state, _folder(text, kind), config, where, unused)
        case "kad" | "medklip":
            asked = read_kad if kind == "kad" else read_medklip
            return asked(state, _folder(text, kind), config, where, unused)
        case "afloc":
            return _afloc(state, _folder(text, kind), where, unused), None
        case _:
            return read_open_clip(state, text, config, where), None


def _folder(text: Path | None, kind: str) -> Path:
    if text is None:
        raise UserError(
            f"{kind} needs the folder of its BERT (config.json and vocab.txt); name it with --text."
        )
    return text


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
    checked(tokenizer, config["vocab_size"], text)
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
        text=BertSettings(config=config, pooling="last4"),
    )
    tokenizer = SentenceTokenizer.load(text)
    checked(
        tokenizer, shape_of(state, "text.bert.embeddings.word_embeddings.weight", where)[0], text
    )
    return settings, state, tokenizer


def _afloc(state: Mapping[str, Tensor], text: Path, where: str, unused: Counter[str]) -> Read:
    """AFLoc: one Lightning checkpoint, in GLoRIA's names; its level of words scores nothing."""
    state = {key.rpartition("afloc.")[2]: value for key, value in state.items()}
    left_out = [
        POSITIONS,
        (r"^text_encoder\.model\.pooler\.", POOLER),
        (r"^img_encoder\.local(2|_f)_embedder\.", TRAINING),
    ]
    settings, named, tokenizer = _gloria(without(state, left_out, unused), text, where)
    words = settings.text.model_copy(update={"positions": 97})
    fusion = FusionSettings(kind="products")
    change = {"kind": "afloc", "text": words, "fusion": fusion}
    return settings.model_copy(update=change), named, tokenizer


def _medclip(state: Mapping[str, Tensor], text: Path, where: str) -> Read:
    """MedCLIP: one ``pytorch_model.bin``, with a ResNet-50 or a Swin-T image tower."""
    config = read_bert_config(text)
    state = renamed(state, MEDCLIP)
    dim = shape_of(state, "text.head.weight", where)[0]
    image: ResNetSettings | SwinSettings = ResNetSettings()
    if "image.projection_head.weight" in state:
        swin = {key: value for key, value in state.items() if key.startswith("image.")}
        state = {key: state[key] for key in state if key not in swin} | renamed(swin, SWIN)
        image = SwinSettings(config=swin_config(state, where))
    else:
        state = summed_channels(state, "image.model.conv1.weight")
    settings = PeerSettings(
        kind="medclip",
        dim=dim,
        max_tokens=min(77, config.get("max_position_embeddings", 512)),
        image=image,
        text=BertSettings(config=config, pooling="three_layers"),
    )
    tokenizer = SentenceTokenizer.load(text)
    checked(
        tokenizer, shape_of(state, "text.bert.embeddings.word_embeddings.weight", where)[0], text
    )
    return settings, state, tokenizer
