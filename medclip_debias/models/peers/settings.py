"""What a peer is: its architecture, and the preprocessing its authors published."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from medclip_debias.config import Preprocessing, Settings, SimilaritySettings
from medclip_debias.models.limits import within_limits

Sizes = Annotated[dict[str, Any], AfterValidator(within_limits)]
"""A configuration of another library's."""
Width = Annotated[int, Field(ge=1, le=16_384)]
Hidden = Annotated[int, Field(ge=0, le=131_072)]
Layers = Annotated[int, Field(ge=1, le=256)]
Heads = Annotated[int, Field(ge=1, le=1024)]
Side = Annotated[int, Field(ge=16, le=4096)]
"""Limits far above every published model: a folder of other sizes is no model."""

# fmt: off
Kind = Literal[
    "biovil", "biovil_t", "chexzero", "open_clip", "gloria", "medclip",
    "siglip", "clip", "rad_dino",
    "carzero", "radzero", "conns", "cxr_clip", "mgca",
    "kad", "medklip", "afloc",
]
# fmt: on

Score = Literal["whole", "local", "both"]


class PeerPreprocessing(Preprocessing):
    """Preprocessing with what only peers need.

    Grey levels are divided by 255, enlarged to ``network_size`` if the network resizes its own
    input, then normalised channel by channel; one channel stands for three equal ones.
    """

    mean: float = 0.0
    std: float = Field(1.0, gt=0)
    channel_mean: tuple[float, ...] = Field((0.0,), min_length=1, max_length=3)
    channel_std: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (1.0,), min_length=1, max_length=3
    )
    network_size: Side | None = None
    network_resize: Literal["bilinear_corners", "bicubic"] = "bicubic"


class ResNetSettings(Settings):
    """ResNet-50 up to ``stage`` (KAD, MedKLIP); ``hidden``: inside its projector, if it has one.

    ``temporal`` is the width of BioViL-T's pooler of two images, 0 for none.
    """

    kind: Literal["resnet50"] = "resnet50"
    hidden: Hidden = 0
    temporal: Hidden = 0
    stage: Literal[3, 4] = 4


class ViTSettings(Settings):
    """timm's plain vision transformer (CARZero, MGCA); ``hidden`` is the width in its layers."""

    kind: Literal["vit"] = "vit"
    image_size: Side
    patch: int = Field(ge=1, le=512)
    width: Width
    layers: Layers
    heads: Heads
    hidden: Hidden


class OpenClipSettings(Settings):
    """An image tower of open_clip: its ``vision_cfg``; ``timm_stride`` is a timm network's."""

    kind: Literal["open_clip"] = "open_clip"
    config: Sizes
    quick_gelu: bool = False
    timm_stride: int = Field(0, ge=0, le=512)

    @property
    def image_size(self) -> int:
        return int(self.config.get("image_size") or 224)


class HfClipSettings(Settings):
    kind: Literal["hf_clip"] = "hf_clip"
    family: Literal["clip", "siglip"]
    config: Sizes


class SwinSettings(Settings):
    kind: Literal["swin"] = "swin"
    config: Sizes


class RadDinoSettings(Settings):
    kind: Literal["rad_dino"] = "rad_dino"
    config: dict[str, Any]


class Dinov2Settings(Settings):
    """DINOv2 as its ``config`` says, ``blocks`` more of its blocks, and a last norm or map."""

    kind: Literal["dinov2"] = "dinov2"
    config: dict[str, Any]
    image_size: Side
    blocks: Layers
    block_heads: Heads
    block_ratio: int = Field(4, ge=1, le=64)
    head: Literal["norm", "linear"]


class OpenClipTextSettings(Settings):
    """A text tower of open_clip: its ``text_cfg``.

    A sentence is filled up with ``pad`` to the context; ``pieces``: the tokenizer is SigLIP's.
    """

    kind: Literal["open_clip"] = "open_clip"
    config: Sizes
    quick_gelu: bool = False
    pad: int = Field(0, ge=0)
    pieces: bool = False


class HfClipTextSettings(HfClipSettings):
    pad: int = Field(0, ge=0)

    @property
    def pieces(self) -> bool:
        return self.family == "siglip"


class NoTextSettings(Settings):
    kind: Literal["none"] = "none"


class BertSettings(Settings):
    """BERT, and how one vector is computed from a sentence.

    ``pooling``: CXR-BERT's ``projection`` head on [CLS]; ``last4`` sums the last four layers over
    all tokens (GLoRIA; AFLoc's mean over ``positions``); ``three_layers`` averages 1, 2 and the
    last and maps (MedCLIP). All others take one ``token``: ``mlp`` puts it through two layers
    without biases, ``linear`` through one (open_clip), ``affine_mlp`` and ``affine`` through those
    with biases (KAD, CXR-CLIP). ``separator`` off: no [SEP] (MedKLIP).
    """

    kind: Literal["bert"] = "bert"
    config: dict[str, Any]
    pooling: Literal[
        "projection", "last4", "three_layers", "mlp", "linear", "affine", "affine_mlp", "none"
    ]
    token: Literal["first", "mean", "pooler", "last"] = "first"
    hidden: Hidden = 0
    positions: int = Field(0, ge=0, le=4096)
    separator: bool = True


class EncoderTextSettings(Settings):
    """A text encoder of any family that is read, its pooling, and a last norm or map."""

    kind: Literal["encoder"] = "encoder"
    config: dict[str, Any]
    pooling: Literal["cls", "mean"]
    head: Literal["norm", "linear"]


class WordsTextSettings(Settings):
    """BERT by words: of CARZero (``positions`` they are filled up to), or MGCA (``hidden``)."""

    kind: Literal["words"] = "words"
    config: dict[str, Any]
    positions: int = Field(0, ge=0, le=4096)
    hidden: Hidden = 0


class FusionSettings(Settings):
    """What scores are computed by where they are no plain cosines (`..fusion`).

    ``book`` is what is always asked together: names to the text of each. ``norm_inputs``: queries
    and regions pass the last norm first. ``last_map``: the map is the last layer's attention.
    """

    kind: Literal[
        "similarity_attention", "query_attention", "two_spaces", "query_network", "products"
    ]
    own_attention: bool = False
    positions: int = Field(0, ge=0, le=4096)
    layers: int = Field(0, ge=0, le=256)
    heads: Heads = 1
    hidden: Hidden = 0
    mlp: tuple[Width, ...] = Field((), max_length=16)
    book: dict[str, Annotated[str, Field(max_length=2000)]] = Field({}, max_length=2000)
    norm_inputs: bool = False
    last_map: bool = False


class PeerSettings(Settings):
    """Architecture of a peer; ``dim`` is the width of the space that its two towers share.

    ``score``: ``whole``, by the two vectors; of GLoRIA also ``local``, by words and regions, and
    ``both``. ``scale`` is what cosines were multiplied by in the authors' training, ``bias`` what
    SigLIP's loss then adds. ``similarity`` is what it was trained by here: its ``own`` score, or a
    similarity of its regions; none for a peer as it was published.
    """

    kind: Kind
    dim: Width
    max_tokens: int = Field(ge=3, le=65_536)
    image: (
        ResNetSettings
        | ViTSettings
        | OpenClipSettings
        | HfClipSettings
        | SwinSettings
        | RadDinoSettings
        | Dinov2Settings
    ) = Field(discriminator="kind")
    text: (
        OpenClipTextSettings
        | HfClipTextSettings
        | BertSettings
        | EncoderTextSettings
        | WordsTextSettings
        | NoTextSettings
    ) = Field(discriminator="kind")
    fusion: FusionSettings | None = None
    score: Score = "whole"
    scale: float | None = Field(None, gt=0, le=1e4)
    bias: float | None = Field(None, ge=-1e4, le=1e4)
    similarity: Literal["own"] | SimilaritySettings | None = None

    @model_validator(mode="after")
    def _scored(self) -> PeerSettings:
        if self.score != "whole" and self.kind != "gloria":
            raise ValueError("only GLoRIA has a local score: 'score' must be 'whole'")
        if self.score != "whole" and self.similarity is not None:
            raise ValueError("what was trained on has one score: 'score' must be 'whole'")
        if isinstance(self.similarity, SimilaritySettings):
            if self.similarity.aggregator == "local_words":
                raise ValueError("a peer's sentences have no words: no aggregator local_words")
            if reason := self.similarity.misfit(self.dim):
                raise ValueError(reason)
        return self
