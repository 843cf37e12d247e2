"""What a peer is: its architecture, and the preprocessing its authors published.

Sizes that tensors have are read off them when the towers are built.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from medclip_debias.config import Preprocessing, Settings, SimilaritySettings
from medclip_debias.models.limits import within_limits

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
    network_size: int | None = Field(None, ge=16, le=4096)
    network_resize: Literal["bilinear_corners", "bicubic"] = "bicubic"


class TowerSettings(Settings):
    """What both towers have; ``config`` is what the network's own library calls so."""

    kind: str
    config: dict[str, Any] = Field({})
    quick_gelu: bool = False

    @model_validator(mode="after")
    def _limits(self) -> Self:
        """Towers of transformers' own kinds have their sizes checked by `hf_config`."""
        if self.kind in ("open_clip", "hf_clip"):
            within_limits(self.config)
        return self


class ImageSettings(TowerSettings):
    """An image tower: whose network it is; ``timm_stride`` is a timm network's."""

    kind: Literal["resnet50", "vit", "swin", "dinov2", "rad_dino", "open_clip", "hf_clip"]
    timm_stride: int = Field(0, ge=0, le=512)


class TextSettings(TowerSettings):
    """A text tower: whose network it is, and how one vector is computed from a sentence.

    Of a ``bert``, ``pooling`` is CXR-BERT's ``projection`` head on [CLS]; ``last4`` sums the last
    four layers over all tokens (GLoRIA; AFLoc's mean over ``positions``); ``three_layers`` averages
    1, 2 and the last and maps (MedCLIP). All others take one ``token``: ``mlp`` puts it through two
    layers without biases, ``linear`` through one (open_clip), ``affine_mlp`` and ``affine`` through
    those with biases (KAD, CXR-CLIP). ``separator`` off: no [SEP] (MedKLIP). An ``encoder`` is of
    any family that is read, pooled by ``cls`` or ``mean``; ``words`` is a BERT by its words, of
    CARZero (``positions`` they are filled up to) or MGCA. Towers of CLIP's kin are filled up with
    ``pad`` to the context; ``pieces``: the tokenizer is SigLIP's.
    """

    kind: Literal["open_clip", "hf_clip", "bert", "encoder", "words", "none"]
    pad: int = Field(0, ge=0)
    pieces: bool = False
    # fmt: off
    pooling: Literal[
        "projection", "last4", "three_layers", "mlp", "linear", "affine", "affine_mlp", "none",
        "cls", "mean",
    ] = "none"
    # fmt: on
    token: Literal["first", "mean", "pooler", "last"] = "first"
    positions: int = Field(0, ge=0, le=4096)
    separator: bool = True


class FusionSettings(Settings):
    """What scores are computed by where they are no plain cosines (`..fusion`).

    ``book`` is what is always asked together: names to the text of each. ``norm_inputs``: queries
    and regions pass the last norm first. ``last_map``: the map is the last layer's attention.
    """

    kind: Literal[
        "similarity_attention", "query_attention", "two_spaces", "query_network", "products"
    ]
    positions: int = Field(0, ge=0, le=4096)
    heads: int = Field(1, ge=1, le=1024)
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
    dim: int = Field(ge=1, le=16_384)
    max_tokens: int = Field(ge=3, le=65_536)
    image: ImageSettings
    text: TextSettings
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
