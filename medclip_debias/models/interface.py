"""What evaluation, grounding and search ask of a model: a `DualEncoder`, or a peer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast

import torch
from torch import Tensor, nn

from medclip_debias.config import Preprocessing, Settings
from medclip_debias.errors import UserError
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.models.sentences import encode_distinct, sentence_list

MapKind = Literal["cosine", "attention", "gradcam", "occlusion"]
SentenceRows: TypeAlias = tuple[int | None, int | None]


class Tokenizer(Protocol):
    """What a model reads sentences with."""

    def encode(self, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
        """Token ids of each sentence, with special tokens, cut at ``max_tokens``."""

    def pad(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, both ``[T, L]``."""


@dataclass(frozen=True)
class Outputs:
    """What the vectors, scores and maps of a model are.

    Attributes:
        has_whole: whether `encode_images` gives ``whole``, from which `score` is then computed.
        whole_alone: whether `score` reads nothing but ``whole``, so that regions need not be kept.
        sentence_rows: of a sentence's ``[K, D]``, the row that lies with whole images, and with
            regions; a row is None where the two are not to be compared.
        text_form: what `encode_sentences` gives of each: one ``vector``, those of its ``words``,
            nothing. Only with vectors can sentences be kept, compared, or indexed.
        map_kind: what the maps of `region_scores` hold.
    """

    has_whole: bool = False
    whole_alone: bool = False
    sentence_rows: SentenceRows | None = None
    text_form: Literal["vector", "words", "none"] = "vector"
    map_kind: MapKind = "cosine"


class ImageTextModel(nn.Module):
    """An image-text model, in evaluation mode when it was loaded.

    Attributes:
        preprocessing: everything between an image file and `encode_images`.
        prompts: prompt sets for zero-shot classification, by name.
        provenance: where the weights come from.
        content_hash: 16 hex digits naming the folder it was loaded from, or None.
        self_test: what `medclip_debias.models.golden.self_test` found at loading, or None.
        dim: D, the width of the shared space.
    """

    def __init__(
        self,
        settings: Settings,
        preprocessing: Preprocessing,
        tokenizer: Tokenizer,
        prompts: Mapping[str, Any] | None,
        provenance: Mapping[str, Any] | None,
    ) -> None:
        super().__init__()
        self.settings = cast("Any", settings)
        self.preprocessing: Any = preprocessing
        self.tokenizer: Any = tokenizer
        self.prompts = dict(prompts or {})
        self.provenance = dict(provenance or {})
        self.content_hash: str | None = None
        self.self_test: dict[str, Any] | None = None
        self.dim = int(self.settings.dim)

    @property
    @abstractmethod
    def outputs(self) -> Outputs:
        """What vectors, scores and maps are."""

    @property
    @abstractmethod
    def grid(self) -> RegionGrid:
        """Where the regions of one input lie."""

    @property
    @abstractmethod
    def max_tokens(self) -> int:
        """Longest sentence that is read; the rest of a longer one is not seen."""

    @property
    @abstractmethod
    def learned_scale(self) -> float | None:
        """What scores were multiplied by in training, in [1, 100]; None where it is not known."""

    @abstractmethod
    def normalise(self, pixels: Tensor) -> Tensor:
        """Prepared images, uint8 ``[B, S, S]``, to what the image encoder reads."""

    @abstractmethod
    def encode_images(self, images: Tensor) -> ImageFeatures:
        """Features of prepared images, uint8 ``[B, S, S]``, or of normalised ones."""

    @abstractmethod
    def score(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """Image-sentence scores ``[B, T]`` in [-1, 1], from what the two encoders gave."""

    @abstractmethod
    def region_scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """A map over the regions for every image and sentence ``[B, T, N]``."""

    @abstractmethod
    def encode_padded(self, ids: list[list[int]]) -> Tensor:
        """Vectors ``[T, D]`` or ``[T, K, D]`` of some tokenised sentences, which are padded."""

    def encode_sentences(self, sentences: str | Sequence[str], batch_size: int = 64) -> Tensor:
        """Sentences to unit vectors ``[T, D]``; a string is one sentence.

        A model that scores a sentence by several vectors gives ``[T, K, D]``, filled with zeros.
        """
        ids = self.token_ids(sentence_list(sentences))
        if not ids:
            return torch.zeros(0, self.dim, device=self.device)
        return self.encode_ids(ids, batch_size)

    def token_ids(self, sentences: Sequence[str]) -> list[list[int]]:
        return self.tokenizer.encode(list(sentences), self.max_tokens)

    def encode_ids(self, ids: Sequence[Sequence[int]], group: int = 64) -> Tensor:
        """`encode_sentences` of tokenised sentences, of which equal ones are encoded once."""
        return encode_distinct(ids, self.encode_padded, group)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def cropped(self, pixels: Tensor) -> Tensor:
        """Grey levels in [0, 1], ``[B, 1, C, C]``, of prepared images cut to the input size."""
        side = self.preprocessing.input_size
        sizes = (side, self.preprocessing.prepare.size)
        if pixels.dtype != torch.uint8 or pixels.ndim != 3 or pixels.shape[1] not in sizes:
            raise ValueError(
                f"expected uint8 images [B, S, S] with S in {sizes}, "
                f"got {pixels.dtype} {tuple(pixels.shape)}"
            )
        start = (pixels.shape[1] - side) // 2
        inside = slice(start, start + side)
        return pixels[:, None, inside, inside].to(self.device).float() / 255


def compares(model: ImageTextModel, beside: Literal["images", "regions"]) -> bool:
    """Whether a cosine of a sentence with whole images, or with regions, says something."""
    rows = model.outputs.sentence_rows
    return rows is None or rows[beside == "regions"] is not None


def need_vectors(model: ImageTextModel, verb: str, *, several: bool = False) -> None:
    """Refuse a model of which a sentence has no single vector."""
    outputs = model.outputs
    if outputs.text_form == "none":
        raise UserError(
            f"'{verb}' needs sentences, and this model reads images alone; see 'evaluate probe'."
        )
    if outputs.text_form == "words" and not several:
        raise UserError(
            f"'{verb}' needs one vector per sentence, and this model scores by words and regions; "
            "import it with --score whole."
        )
    if outputs.sentence_rows is not None and not several:
        raise UserError(
            f"'{verb}' needs one vector per sentence, and this model scores a sentence by several, "
            "or by more than a cosine; leave that out for it."
        )
