"""The parts of a peer as its settings name them: towers, similarity, tokenizer, and the grid."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from medclip_debias.config import SimilaritySettings
from medclip_debias.errors import UserError
from medclip_debias.models.aggregators import SHARP_MAX, SHARP_MIN
from medclip_debias.models.hf_config import check_room
from medclip_debias.models.peers import clip_towers, images, sentence_towers
from medclip_debias.models.peers.fusion import SimilarityAttention, build_fusion
from medclip_debias.models.peers.settings import (
    Dinov2Settings,
    EncoderTextSettings,
    HfClipSettings,
    HfClipTextSettings,
    NoTextSettings,
    OpenClipSettings,
    OpenClipTextSettings,
    PeerPreprocessing,
    PeerSettings,
    RadDinoSettings,
    ResNetSettings,
    SwinSettings,
    ViTSettings,
    WordsTextSettings,
)
from medclip_debias.models.peers.tokenizers import (
    ClipTokenizer,
    NoTokenizer,
    PeerTokenizer,
    PieceTokenizer,
)
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.models.similarity import SCALE_MAX, SCALE_MIN, Similarity
from medclip_debias.models.text_encoder import SentenceTokenizer, TextEncoder
from medclip_debias.models.tower import Tower


def read_tokenizer(settings: PeerSettings, folder: Path) -> PeerTokenizer:
    """What a peer folder's sentences are read with."""
    text = settings.text
    if isinstance(text, NoTextSettings):
        return NoTokenizer()
    if isinstance(text, OpenClipTextSettings | HfClipTextSettings):
        return (PieceTokenizer if text.pieces else ClipTokenizer).load(folder)
    return SentenceTokenizer.load(folder)


def check_buildable(settings: PeerSettings, weights: Path, where: str) -> None:
    """Refuse an architecture that does not fit itself, or that the weights cannot fill."""
    try:
        with torch.device("meta"):
            parts = nn.ModuleList(build_towers(settings))
            fusion = build_fusion(settings.fusion, settings.dim)
        if fusion is not None:
            parts.append(fusion)
            if settings.similarity is not None:
                parts.append(build_similarity(settings))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    # Each library's modules have their own words for widths that no head divides, and the like.
    except Exception as error:
        raise UserError(
            f"{where}: no model can be built of its 'architecture' ({type(error).__name__})."
        ) from error
    check_room(parts, weights, where)


def build_similarity(settings: PeerSettings, fusion: nn.Module | None = None) -> Similarity:
    """What a peer is trained with; `ImageFeatures.stored` has one region where it is its own.

    ``fusion`` tells where the temperature of an attention starts.
    """
    similarity = settings.similarity
    if settings.fusion is not None:
        # `SimilarityAttention`, over the class token and the regions.
        sharpness = fusion.sharpness if isinstance(fusion, SimilarityAttention) else SHARP_MIN
        if not SHARP_MIN <= sharpness <= SHARP_MAX:
            raise UserError(
                f"this {settings.kind} attends with a temperature of 1 / {sharpness:.4g}, and what "
                f"is trained here lies from 1 / {SHARP_MAX:g} to 1 / {SHARP_MIN:g}; choose a "
                "similarity of its regions in model.similarity."
            )
        similarity = SimilaritySettings(
            aggregator="attention", attention_value="region", temperature=sharpness
        )
    elif not isinstance(similarity, SimilaritySettings):
        similarity = SimilaritySettings(aggregator="mean")
    if settings.scale is not None:
        scale = min(max(settings.scale, SCALE_MIN), SCALE_MAX)
        similarity = similarity.model_copy(update={"initial_scale": scale})
    return Similarity(similarity, settings.dim)


def build_towers(settings: PeerSettings) -> tuple[Tower, Tower]:
    """The image tower and the text tower, with weights at random."""
    return _image_tower(settings), _text_tower(settings)


def _image_tower(settings: PeerSettings) -> Tower:
    kind, image, dim = settings.kind, settings.image, settings.dim
    match image:
        case OpenClipSettings():
            return clip_towers.OpenClipImages(image, dim)
        case HfClipSettings():
            return clip_towers.HfClipImages(image, dim)
        case RadDinoSettings():
            return images.DinoImages(image)
        case Dinov2Settings():
            return images.Dinov2Images(image, dim)
        case SwinSettings():
            return images.SwinImages(image, kind, dim)
        case ViTSettings() if kind == "carzero":
            return images.CarzeroImages(image)
        case ViTSettings():
            hidden = getattr(settings.text, "hidden", 0)
            return images.MgcaViT(image, dim, hidden)
    match kind:  # on a ResNet-50
        case "gloria" | "afloc":
            return images.GloriaImages(dim)
        case "medclip" | "cxr_clip":
            return images.MeanOfResNet(kind, dim)
        case "mgca":
            return images.MgcaResNet(image, dim)
        case "kad" | "medklip":
            return images.QueriedResNet(image, dim)
    return images.BioViLImages(image, dim)


def _text_tower(settings: PeerSettings) -> Tower:
    text, dim = settings.text, settings.dim
    match text:
        case OpenClipTextSettings():
            return clip_towers.OpenClipText(text, dim)
        case HfClipTextSettings():
            return clip_towers.HfClipText(text, dim)
        case NoTextSettings():
            return Tower()
        case EncoderTextSettings():
            return sentence_towers.EncoderText(text, dim)
        case WordsTextSettings() if text.positions:
            return sentence_towers.CarzeroText(text)
        case WordsTextSettings():
            return sentence_towers.MgcaText(text, dim)
    if text.pooling == "projection":
        return TextEncoder(text.config, use_projection_head=True)
    return sentence_towers.BertTower(text, dim)


def region_grid(settings: PeerSettings, preprocessing: PeerPreprocessing) -> RegionGrid:
    """Where the regions lie in the central crop that `Peer.normalise` takes."""
    side = preprocessing.input_size
    network = preprocessing.network_size or side
    match settings.image:
        case ResNetSettings() as image:
            third = image.stage == 3 or settings.kind in ("gloria", "mgca", "afloc")
            stride = 16 if third else 32
            count = -(-network // stride)
            if network == side:
                return RegionGrid(count, count, stride, 0.5)
            # Corners stay on corners: the centre of pixel i of the network's input is that of
            # pixel i (side - 1) / (network - 1) of the crop.
            return RegionGrid(count, count, stride * (side - 1) / (network - 1), 0.5)
        case OpenClipSettings() as image if image.resnet:
            # The strided stem centres its first place on the first pixel; each of the four average
            # pools of two puts the centre half a step further: .5 + 1 + 2 + 4 + 8.
            return RegionGrid(network // 32, network // 32, 32, 15.5)
        case SwinSettings():
            return RegionGrid.patches(network // 32, network // 32, float(side))
        case Dinov2Settings() as image:
            count = network // int(image.config.get("patch_size", 14))
            return RegionGrid.patches(count, count, float(side))
        case RadDinoSettings() as image:
            patch = int(image.config.get("patch_size", 14))
        case ViTSettings() as image:
            patch = image.patch
        case image:
            patch = image.stride
    count, width = network // patch, patch * (side / network)
    return RegionGrid(count, count, width, width / 2)
