"""The parts of a peer as its settings name them: towers, similarity, and where regions lie."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from medclip_debias.config import SimilaritySettings
from medclip_debias.errors import UserError
from medclip_debias.models.aggregators import SHARP_MAX, SHARP_MIN
from medclip_debias.models.hf_config import check_room
from medclip_debias.models.peers.clip_towers import (
    HfClipImages,
    HfClipText,
    OpenClipImages,
    OpenClipText,
)
from medclip_debias.models.peers.fusion import SimilarityAttention, build_fusion
from medclip_debias.models.peers.images import (
    BioViLImages,
    DinoImages,
    GloriaImages,
    MedClipResNet,
    MedClipSwin,
)
from medclip_debias.models.peers.piece_tokenizer import PieceTokenizer
from medclip_debias.models.peers.sentence_towers import CarzeroText, EncoderText, MgcaText
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
from medclip_debias.models.peers.text import BertTower, ClipTokenizer, NoTokenizer
from medclip_debias.models.peers.trunks import (
    CarzeroImages,
    CxrClipResNet,
    CxrClipSwin,
    Dinov2Images,
    MgcaResNet,
    MgcaViT,
    QueriedResNet,
)
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.models.similarity import SCALE_MAX, SCALE_MIN, Similarity
from medclip_debias.models.text_encoder import SentenceTokenizer, TextEncoder

PeerTokenizer = SentenceTokenizer | ClipTokenizer | PieceTokenizer | NoTokenizer


def read_tokenizer(settings: PeerSettings, folder: Path) -> PeerTokenizer:
    """What a peer folder's sentences are read with."""
    text = settings.text
    if isinstance(text, NoTextSettings):
        return NoTokenizer()
    if isinstance(text, OpenClipTextSettings | HfClipTextSettings):
        return PieceTokenizer.load(folder) if text.pieces else ClipTokenizer.load(folder)
    return SentenceTokenizer.load(folder)


def check_buildable(settings: PeerSettings, weights: Path, where: str) -> None:
    """Refuse an architecture that does not fit itself, or that the weights cannot fill."""
    try:
        with torch.device("meta"):
            towers = nn.ModuleList(build_towers(settings))
            fusion = build_fusion(settings.fusion, settings.dim)
        if fusion is not None:
            towers.append(fusion)
            if settings.similarity is not None:
                towers.append(build_similarity(settings))
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    # Each library's modules have their own words for widths that no head divides, and the like.
    except Exception as error:
        raise UserError(
            f"{where}: no model can be built of its 'architecture' ({type(error).__name__})."
        ) from error
    check_room(towers, weights, where)


def build_similarity(settings: PeerSettings, fusion: nn.Module | None = None) -> Similarity:
    """What a peer is trained with; `ImageFeatures.stored` has one region where it is its own.

    ``fusion`` tells where the temperature of an attention starts.

    Raises:
        UserError: that temperature is outside of the bounds of what is trained here.
    """
    given = settings.similarity
    if settings.fusion is not None:
        # `SimilarityAttention`, over the class token and the regions.
        sharpness = fusion.sharpness if isinstance(fusion, SimilarityAttention) else SHARP_MIN
        if not SHARP_MIN <= sharpness <= SHARP_MAX:
            raise UserError(
                f"this {settings.kind} attends with a temperature of 1 / {sharpness:.4g}, and what "
                f"is trained here lies from 1 / {SHARP_MAX:g} to 1 / {SHARP_MIN:g}; choose a "
                "similarity of its regions in model.similarity."
            )
        given = SimilaritySettings(
            aggregator="attention", attention_value="region", temperature=sharpness
        )
    elif not isinstance(given, SimilaritySettings):
        given = SimilaritySettings(aggregator="mean")
    if settings.scale is not None:
        scale = min(max(settings.scale, SCALE_MIN), SCALE_MAX)
        given = given.model_copy(update={"initial_scale": scale})
    return Similarity(given, settings.dim)


def build_towers(settings: PeerSettings) -> tuple[nn.Module, nn.Module]:
    """The image tower and the text tower, with weights at random."""
    image, dim = settings.image, settings.dim
    text = settings.text
    match image:
        case Dinov2Settings():
            vision: nn.Module = Dinov2Images(image, dim)
        case ViTSettings() if settings.kind == "carzero":
            vision = CarzeroImages(image)
        case ViTSettings():
            hidden = text.hidden if isinstance(text, WordsTextSettings) else 0
            vision = MgcaViT(image, dim, hidden)
        case ResNetSettings() if settings.kind in ("kad", "medklip"):
            vision = QueriedResNet(image, dim)
        case ResNetSettings() if settings.kind == "mgca":
            vision = MgcaResNet(image, dim)
        case ResNetSettings() if settings.kind == "cxr_clip":
            vision = CxrClipResNet(dim)
        case SwinSettings() if settings.kind == "cxr_clip":
            vision = CxrClipSwin(image, dim)
        case OpenClipSettings():
            vision = OpenClipImages(image, dim)
        case HfClipSettings():
            vision = HfClipImages(image, dim)
        case SwinSettings():
            vision = MedClipSwin(image, dim)
        case RadDinoSettings():
            vision = DinoImages(image)
        case ResNetSettings() if settings.kind in ("gloria", "afloc"):
            vision = GloriaImages(dim)
        case ResNetSettings() if settings.kind == "medclip":
            vision = MedClipResNet(dim)
        case ResNetSettings():
            vision = BioViLImages(image, dim)
    if isinstance(text, OpenClipTextSettings):
        return vision, OpenClipText(text, dim)
    if isinstance(text, HfClipTextSettings):
        return vision, HfClipText(text, dim)
    if isinstance(text, NoTextSettings):
        return vision, nn.Identity()
    if isinstance(text, EncoderTextSettings):
        return vision, EncoderText(text, dim)
    if isinstance(text, WordsTextSettings):
        return vision, CarzeroText(text) if text.positions else MgcaText(text, dim)
    if text.pooling == "projection":
        return vision, TextEncoder(text.config, use_projection_head=True)
    return vision, BertTower(text, dim)


def _patch(image: object) -> int:
    """Side of the patches that an encoder cuts its input into; 0 for another."""
    if isinstance(image, ViTSettings):
        return image.patch
    if isinstance(image, HfClipSettings):
        return image.stride
    if isinstance(image, RadDinoSettings):
        return int(image.config.get("patch_size", 14))
    return image.stride if isinstance(image, OpenClipSettings) and not image.resnet else 0


def region_grid(settings: PeerSettings, preprocessing: PeerPreprocessing) -> RegionGrid:
    """Where the regions lie in the central crop that `Peer.normalise` takes."""
    side = preprocessing.input_size
    network = preprocessing.network_size or side
    image = settings.image
    patch = _patch(image)
    if patch:
        count, pixel = network // patch, side / network
        return RegionGrid(count, count, patch * pixel, patch * pixel / 2)
    if isinstance(image, SwinSettings):
        count = network // 32
        return RegionGrid.patches(count, count, float(side))
    if isinstance(image, OpenClipSettings):  # CLIP's ResNet
        count = network // 32
        # The strided stem centres its first place on the first pixel; each of the four average
        # pools of two puts the centre half a step further: .5 + 1 + 2 + 4 + 8.
        return RegionGrid(count, count, 32, 15.5)
    if isinstance(image, Dinov2Settings):
        count = network // int(image.config.get("patch_size", 14))
        return RegionGrid.patches(count, count, float(side))
    third = settings.kind in ("gloria", "mgca", "afloc")
    third |= isinstance(image, ResNetSettings) and image.stage == 3
    stride = 16 if third else 32
    count = -(-network // stride)
    if network == side:
        return RegionGrid(count, count, stride, 0.5)
    # Corners stay on corners: the centre of pixel i of the network's input is that of pixel
    # i (side - 1) / (network - 1) of the crop.
    return RegionGrid(count, count, stride * (side - 1) / (network - 1), 0.5)
