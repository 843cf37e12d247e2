"""A peer: another group's two towers in one folder, an `ImageTextModel` like the project's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from medclip_debias.config import SimilaritySettings, json_hash, validate
from medclip_debias.errors import UserError
from medclip_debias.files import atomic_folder, file_hash, write_text
from medclip_debias.models.aggregators import SHARP_MAX, SHARP_MIN
from medclip_debias.models.checkpoint import need, read_model, write_weights
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.golden import self_test, write_golden
from medclip_debias.models.interface import ImageTextModel, Outputs
from medclip_debias.models.lora import merged_state
from medclip_debias.models.peers.families import book_prompts, cleaned
from medclip_debias.models.peers.fusion import (
    Cosines,
    Fusion,
    QueryNetwork,
    SimilarityAttention,
    WordAttention,
    build_fusion,
    tokens_of,
)
from medclip_debias.models.peers.images import BioViLImages, State, image_tower
from medclip_debias.models.peers.sentence_towers import text_tower, word_places
from medclip_debias.models.peers.settings import PeerPreprocessing, PeerSettings
from medclip_debias.models.peers.tokenizers import PeerTokenizer, saved_tokenizer
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.models.sentences import sentence_list
from medclip_debias.models.similarity import SCALE_MAX, SCALE_MIN, Similarity
from medclip_debias.models.tower import Head, Tower
from medclip_debias.settings_files import load_yaml

FORMAT = 2
FILE = "peer.yaml"
WEIGHTS, WORDS = "model.safetensors", "tokenizer.json"


class Peer(ImageTextModel):
    """Another group's model, as it was published or trained on from there.

    ``fusion`` is what scores are computed by. Once training has begun there is a `similarity`: the
    published score times a learned scale, or a similarity of the regions, in which case there is
    no ``fusion`` and no ``whole`` any more. ``state`` are the tensors that it will be filled with:
    what is not a library's own network is as large as they are.
    """

    def __init__(
        self,
        settings: PeerSettings,
        preprocessing: PeerPreprocessing,
        tokenizer: PeerTokenizer,
        provenance: Mapping[str, Any] | None = None,
        state: State | None = None,
    ) -> None:
        super().__init__(settings, preprocessing, tokenizer, book_prompts(settings), provenance)
        state = state or {}
        self.image, self.text = image_tower(settings, state), text_tower(settings, state)
        self.fusion: Fusion | None = None
        if not isinstance(settings.similarity, SimilaritySettings):
            self.fusion = build_fusion(settings, state)
        self.trained_similarity: Similarity | None = None
        if settings.similarity is not None:
            self.trained_similarity = build_similarity(settings)

    def begin_training(
        self, similarity: SimilaritySettings | None = None, max_tokens: int | None = None
    ) -> None:
        """Make ready for training: from here on the model has a scale that is learned."""
        before = self.settings
        if not isinstance(self.fusion, Cosines | SimilarityAttention | None):
            raise UserError(
                f"A {before.kind} cannot be trained on: its score is neither a cosine nor an "
                "attention by cosines; start from a model whose score is."
            )
        change: dict[str, Any] = {"max_tokens": max_tokens or before.max_tokens, "bias": None}
        if similarity is not None or before.similarity is None:
            change["similarity"] = similarity or "own"
            change["scale"] = self.learned_scale
        if similarity is not None:
            self.fusion = change["fusion"] = None
        self.settings = before.model_copy(update=change)
        if "similarity" in change:
            own = build_similarity(self.settings, self.fusion)
            self.trained_similarity = own.to(self.device)
        if self.fusion is not None:
            self.fusion.requires_grad_(False)  # what trains is the similarity in its place

    @property
    def image_encoder(self) -> Tower:
        return self.image

    @property
    def text_encoder(self) -> Tower:
        return self.text

    @property
    def similarity(self) -> Similarity:
        """Compares what `ImageFeatures.stored` holds with sentences, and holds the scale."""
        if self.trained_similarity is None:
            raise ValueError("call begin_training first")
        return self.trained_similarity

    @property
    def heads(self) -> list[Head]:
        return [*self.image.heads, *self.text.heads, self.similarity]

    @property
    def outputs(self) -> Outputs:
        if self.fusion is None:
            return Outputs(map_kind=self.similarity.map_kind)
        return self.fusion.outputs

    @property
    def learned_scale(self) -> float | None:
        if self.trained_similarity is not None:
            return float(self.trained_similarity.scale.detach())
        return None if self.fusion is None else self.fusion.scale

    @property
    def max_tokens(self) -> int:
        return int(self.settings.max_tokens)

    @property
    def grid(self) -> RegionGrid:
        """Where the regions lie, in pixels of the prepared image's central crop."""
        p, stride, first = self.preprocessing, self.image.stride, self.image.first_centre
        network = p.network_size or p.input_size
        # Padded convolutions, whose first place lies on the first pixel, reach over the edge.
        count = -(-network // stride) if first == 0.5 else network // stride
        enlarged = p.input_size / network
        if p.network_resize == "bilinear_corners" and network != p.input_size:
            # Corners stay on corners: the centre of pixel i of the network's input is that of
            # pixel i (side - 1) / (network - 1) of the crop.
            return RegionGrid(count, count, stride * (p.input_size - 1) / (network - 1), first)
        return RegionGrid(count, count, stride * enlarged, first * enlarged)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Prepared uint8 ``[B, S, S]`` as the network reads them, ``[B, 1 or 3, H, H]``."""
        p = self.preprocessing
        x = self.cropped(pixels)
        mean, std = (
            torch.tensor(values, device=x.device)[None, :, None, None]
            for values in (p.channel_mean, p.channel_std)
        )
        x = (x - mean) / std
        if p.network_size is None:
            return x
        corners = p.network_resize == "bilinear_corners"
        mode = "bilinear" if corners else "bicubic"
        return F.interpolate(x, size=(p.network_size,) * 2, mode=mode, align_corners=corners)

    def encode_images(self, images: Tensor) -> ImageFeatures:
        """Vectors of the regions and of the whole images, of unit length but for raw fusions."""
        x = self.normalise(images) if images.dtype == torch.uint8 else images
        regions, whole = (self._unit(vectors.float()) for vectors in self.image(x))
        outputs = self.outputs
        if not outputs.has_whole:
            return ImageFeatures(regions)
        return ImageFeatures(regions, whole, attended=not outputs.whole_alone)

    def _unit(self, vectors: Tensor) -> Tensor:
        raw = self.fusion is not None and self.fusion.raw
        return vectors if raw else F.normalize(vectors, dim=-1)

    def encode_pairs(self, images: Tensor, previous: Tensor) -> ImageFeatures:
        """As `encode_images`, for images with an earlier one of the same patient (BioViL-T)."""
        if not isinstance(self.image, BioViLImages) or self.image.vit_pooler is None:
            raise UserError("this model reads single images; only BioViL-T compares two.")
        pair = (self.normalise(x) if x.dtype == torch.uint8 else x for x in (images, previous))
        regions, whole = (F.normalize(vectors, dim=-1) for vectors in self.image(*pair))
        return ImageFeatures(regions, whole)

    def encode_sentences(self, sentences: str | Sequence[str], batch_size: int = 64) -> Tensor:
        """As of `ImageTextModel`: unit vectors ``[T, D]``, but for kinds with a fusion."""
        texts, fusion = sentence_list(sentences), self.fusion
        if not texts and (self.text.by_words or (fusion is not None and fusion.raw)):
            return torch.zeros(0, 2, self.dim, device=self.device)

        def encode(texts: list[str]) -> Tensor:
            return ImageTextModel.encode_sentences(self, texts, batch_size)

        return encode(texts) if fusion is None else fusion.encoded(texts, encode)

    def token_ids(self, sentences: Sequence[str]) -> list[list[int]]:
        text = self.settings.text
        sentences = cleaned(self.settings.kind, list(sentences))
        if not text.separator:
            longer = self.tokenizer.encode(sentences, self.max_tokens + 1)
            return [row[:-1] for row in longer]
        return super().token_ids(sentences)

    def encode_padded(self, ids: list[list[int]]) -> Tensor:
        padded, mask = (part.to(self.device, non_blocking=True) for part in self.tokenizer.pad(ids))
        by_words = isinstance(self.fusion, WordAttention)
        if self.text.by_words or by_words:
            places = word_places(self.tokenizer, ids).to(self.device)
            read: Any = self.text.words if by_words else self.text
            vectors: Tensor = read(padded, mask, places)
            return vectors.float()
        return self._unit(self.text(padded, mask).float())

    def score(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """The authors' score ``[B, T]``, or the one that it was trained by here."""
        if features.whole is None and self.outputs.whole_alone:
            raise ValueError("expected features with 'whole'; these are of another model")
        if self.trained_similarity is not None:
            attends = isinstance(self.fusion, SimilarityAttention)
            vectors = tokens_of(features) if attends else features.stored
            return self.trained_similarity(vectors, sentences)
        return self._published().scores(features, sentences)

    def region_scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        if self.fusion is None:
            return self.similarity.maps(features.regions, sentences)
        return self._published().maps(features, sentences)

    def _published(self) -> Fusion:
        """What the authors score by, once its book is read."""
        assert self.fusion is not None
        if isinstance(self.fusion, QueryNetwork) and self.fusion.book is None:
            self.fusion.book = self.encode_ids(self.token_ids(self.fusion.texts))
        return self.fusion

    def save(self, folder: Path, *, golden: bool | None = None) -> None:
        """Write the folder atomically: ``peer.yaml``, weights, tokenizer."""
        if golden and self.outputs.text_form == "none":
            raise UserError(
                "a self-test scores sentences, and this model reads images alone; import it "
                "without --self-test."
            )
        content = {
            "format": FORMAT,
            "architecture": self.settings.model_dump(mode="json"),
            "preprocessing": self.preprocessing.model_dump(mode="json"),
            "provenance": self.provenance,
        }
        with atomic_folder(Path(folder)) as temporary:
            write_weights(merged_state(self), temporary / WEIGHTS)
            self.tokenizer.save(temporary)
            write_text(temporary / FILE, yaml.safe_dump(content, sort_keys=False))
            if golden or (golden is None and self.trained_similarity is not None):
                write_golden(self, temporary, self._hash(temporary))

    def _hash(self, folder: Path) -> str:
        """Names all that scores are computed from."""
        names = (WEIGHTS,) if self.outputs.text_form == "none" else (WEIGHTS, WORDS)
        own = [self.settings.model_dump(mode="json"), self.preprocessing.model_dump(mode="json")]
        return json_hash([*own, file_hash(*(folder / name for name in names))])

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "cpu", *, check: bool = True) -> Peer:
        """Read a folder that ``import-model`` wrote; ``check`` scores its golden samples."""
        folder = Path(folder)
        weights = need(folder, WEIGHTS)
        content, where = load_yaml(folder / FILE), str(folder / FILE)
        if content.get("format") != FORMAT:
            raise UserError(
                f"{where}: format {content.get('format')!r} is not the format {FORMAT} that this "
                "version reads; import the model again."
            )
        settings = validate(PeerSettings, content.get("architecture", {}), where, "architecture.")
        preprocessing = validate(
            PeerPreprocessing, content.get("preprocessing", {}), where, "preprocessing."
        )
        tokenizer = saved_tokenizer(settings, folder)

        def build(state: State) -> Peer:
            try:
                return cls(settings, preprocessing, tokenizer, content.get("provenance"), state)
            except UserError as error:
                raise UserError(f"{where}: {error}") from error
            # Each library has its own words for widths that no head divides, and the like.
            except Exception as error:
                raise UserError(
                    f"{where}: no model can be built of its 'architecture'"
                    f" ({type(error).__name__})."
                ) from error

        model = read_model(build, weights, where)
        model.content_hash = files = model._hash(folder)
        model = model.to(device).eval()
        model.self_test = self_test(model, folder, files) if check else {"status": "off"}
        return model


def build_similarity(settings: PeerSettings, fusion: nn.Module | None = None) -> Similarity:
    """What a peer is trained with; ``fusion`` tells where an attention's temperature starts."""
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


def score_by_words(model: ImageTextModel, score: Literal["local", "both"] = "local") -> None:
    """Let a GLoRIA score by its words and regions from here on (`WordAttention`)."""
    if not isinstance(model, Peer) or model.settings.kind != "gloria":
        raise UserError("only GLoRIA has a local score, by attention from words to regions.")
    model.fusion, model.trained_similarity = WordAttention(score), None
