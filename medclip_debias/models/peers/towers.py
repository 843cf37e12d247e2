"""The towers of a peer, as its settings name them, with weights at random."""

from __future__ import annotations

from medclip_debias.models.peers import clip_towers, images, sentence_towers
from medclip_debias.models.peers import settings as described
from medclip_debias.models.peers.settings import PeerPreprocessing, PeerSettings
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.models.text_encoder import TextEncoder
from medclip_debias.models.tower import Tower


def build_towers(settings: PeerSettings) -> tuple[Tower, Tower]:
    """The image tower and the text tower."""
    return _image_tower(settings), _text_tower(settings)


def _image_tower(settings: PeerSettings) -> Tower:
    kind, dim = settings.kind, settings.dim
    match settings.image:
        case described.OpenClipSettings() as image:
            return clip_towers.OpenClipImages(image, dim)
        case described.HfClipSettings() as image:
            return clip_towers.HfClipImages(image, dim)
        case described.RadDinoSettings() | described.Dinov2Settings() as image:
            return images.DinoImages(image, dim)
        case described.SwinSettings() as image:
            return images.SwinImages(image, kind, dim)
        case described.ViTSettings() as image:
            return images.PlainViT(image, kind, getattr(settings.text, "hidden", 0), dim)
        case image if kind in ("gloria", "afloc", "mgca"):
            return images.TwoStageResNet(image, kind, dim)
        case image if kind in ("medclip", "cxr_clip", "kad", "medklip"):
            return images.MeanOfResNet(image, kind, dim)
        case image:
            return images.BioViLImages(image, dim)


def _text_tower(settings: PeerSettings) -> Tower:
    dim = settings.dim
    match settings.text:
        case described.OpenClipTextSettings() as text:
            return clip_towers.OpenClipText(text, dim)
        case described.HfClipTextSettings() as text:
            return clip_towers.HfClipText(text, dim)
        case described.NoTextSettings():
            return Tower()
        case described.EncoderTextSettings() as text:
            return sentence_towers.EncoderText(text, dim)
        case described.WordsTextSettings() as text:
            return sentence_towers.WordsText(text, dim)
        case text if text.pooling == "projection":
            return TextEncoder(text.config, use_projection_head=True)
        case text:
            return sentence_towers.BertTower(text, dim)


def region_grid(image: Tower, preprocessing: PeerPreprocessing) -> RegionGrid:
    """Where the regions of ``image`` lie in the central crop that the authors' steps take."""
    side = preprocessing.input_size
    network = preprocessing.network_size or side
    if preprocessing.network_resize == "bilinear_corners" and network != side:
        # Corners stay on corners: the centre of pixel i of the network's input is that of
        # pixel i (side - 1) / (network - 1) of the crop.
        stride, first = image.stride * (side - 1) / (network - 1), image.first_centre
    else:
        stride, first = (x * (side / network) for x in (image.stride, image.first_centre))
    # Padded convolutions, whose first place lies on the first pixel, reach over the edge.
    count = -(-network // image.stride) if image.first_centre == 0.5 else network // image.stride
    return RegionGrid(count, count, stride, first)
