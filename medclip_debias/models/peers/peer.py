"""A peer: another group's two towers behind the interface of `DualEncoder`, in one folder.

A peer scores an image by a vector of the whole image, or by attention over that and the regions
(`medclip_debias.models.peers.fusion`); `encode_images` gives both
(`medclip_debias.models.features.ImageFeatures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor, nn

from medclip_debias.config import SimilaritySettings, json_hash, validate
from medclip_debias.errors import UserError
from medclip_debias.files import atomic_folder, file_hash, write_text
from medclip_debias.models.checkpoint import load_strictly, read_checkpoint
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.golden import self_test, write_golden
from medclip_debias.models.interface import Head, MapKind, SentenceRows, TextForm, Tower
from medclip_debias.models.lora import merged_state
from medclip_debias.models.peers.building import (
    PeerTokenizer,
    build_similarity,
    build_towers,
    check_buildable,
    read_tokenizer,
    region_grid,
)
from medclip_debias.models.peers.fusion import (
    Fusion,
    QueryNetwork,
    SimilarityAttention,
    build_fusion,
)
from medclip_debias.models.peers.images import BioViLImages
from medclip_debias.models.peers.questions import book_prompts
from medclip_debias.models.peers.sentence_towers import word_places
from medclip_debias.models.peers.settings import (
    BertSettings,
    NoTextSettings,
    PeerPreprocessing,
    PeerSettings,
    WordsTextSettings,
)
from medclip_debias.models.peers.text import CLEANED
from medclip_debias.models.peers.trunks import class_token_first
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.models.sentences import encode_distinct, sentence_list, stacked
from medclip_debias.models.similarity import SCALE_MAX, SCALE_MIN, Similarity, region_scores
from medclip_debias.models.text_encoder import SentenceTokenizer
from medclip_debias.models.unfilled import unfilled
from medclip_debias.settings_files import load_yaml

FORMAT = 1
FILE = "peer.yaml"
WEIGHTS, WORDS = "model.safetensors", "tokenizer.json"


class Peer(nn.Module):
    """Another group's model, as it was published or trained on from there.

    It has a `similarity` once training has begun: then its score is what trained. That is the
    published one, the cosine of ``whole``, times a learned scale; or a similarity of the regions,
    in which case there is no ``whole`` any more.

    Attributes:
        settings: architecture.
        preprocessing: the authors', everything between an image file and `encode_images`.
        prompts: none, so that the evaluation's packaged set is used; where questions are asked
            from a book, those of the same findings by the book's names.
        provenance: files the weights were imported from, with their hashes.
        content_hash: 16 hex digits naming the folder it was loaded from, or None.
        self_test: what `medclip_debias.models.golden.self_test` found at loading, or None.
    """

    def __init__(
        self,
        settings: PeerSettings,
        preprocessing: PeerPreprocessing,
        tokenizer: PeerTokenizer,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.preprocessing = preprocessing
        self.tokenizer = tokenizer
        self.prompts: dict[str, Any] = book_prompts(settings)
        self.provenance = dict(provenance or {})
        self.content_hash: str | None = None
        self.self_test: dict[str, Any] | None = None
        self.image, self.text = build_towers(settings)
        self.fusion: Fusion | None = build_fusion(settings.fusion, settings.dim)
        self.trained_similarity: Similarity | None = None
        if settings.similarity is not None:
            self.trained_similarity = build_similarity(settings)

    # ------------------------------------------------------------------------ training

    def begin_training(
        self, similarity: SimilaritySettings | None = None, max_tokens: int | None = None
    ) -> None:
        """Make ready for training: from here on the model has a scale that is learned.

        Args:
            similarity: of regions, instead of the model's own score.
            max_tokens: longest sentence that shall be read.

        Raises:
            UserError: the model's score is of a kind that is not trained here.
        """
        before, fusion = self.settings, self.fusion
        if fusion is not None and not isinstance(fusion, SimilarityAttention):
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
    def image_encoder(self) -> nn.Module:
        """The image tower, a `medclip_debias.models.interface.Tower`."""
        return self.image

    @property
    def text_encoder(self) -> nn.Module:
        """The text tower, a `medclip_debias.models.interface.Tower`."""
        return self.text

    @property
    def similarity(self) -> Similarity:
        """Compares what `ImageFeatures.stored` holds with sentences, and holds the scale.

        Raises:
            ValueError: no training has begun.
        """
        if self.trained_similarity is None:
            raise ValueError("call begin_training first")
        return self.trained_similarity

    @property
    def heads(self) -> list[Head]:
        """What maps into the shared space, and compares there; it always trains."""
        towers = [cast("Tower", tower).heads for tower in (self.image, self.text)]
        return [*towers[0], *towers[1], self.similarity]

    @property
    def has_whole(self) -> bool:
        """Whether the score is computed from the whole image, as published."""
        if self.fusion is not None:
            return self.fusion.takes_whole
        return not isinstance(self.settings.similarity, SimilaritySettings)

    @property
    def map_kind(self) -> MapKind:
        """What `region_scores` gives: cosines, but for some similarities that it was trained by."""
        if self.fusion is not None:
            return self.fusion.map_kind
        return "cosine" if self.has_whole else self.similarity.map_kind

    @property
    def whole_alone(self) -> bool:
        """Whether `score` reads ``whole`` and not the regions."""
        return self.has_whole and (self.fusion is None or self.fusion.whole_alone)

    @property
    def sentence_rows(self) -> SentenceRows | None:
        """Of a sentence's several vectors, that of whole images and that of regions."""
        return None if self.fusion is None else self.fusion.sentence_rows

    @property
    def learned_scale(self) -> float | None:
        """What scores were multiplied by in training, in [1, 100]; None where it is not known."""
        if self.trained_similarity is not None:
            return float(self.trained_similarity.scale.detach())
        if self.fusion is not None:
            return self.fusion.scale
        scale = self.settings.scale
        return None if scale is None else min(max(scale, SCALE_MIN), SCALE_MAX)

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device

    @property
    def text_form(self) -> TextForm:
        """Whether sentences are read."""
        return "none" if isinstance(self.settings.text, NoTextSettings) else "vector"

    @property
    def max_tokens(self) -> int:
        """Longest sentence that is read; the rest of a longer one is not seen."""
        return self.settings.max_tokens

    @property
    def dim(self) -> int:
        """D, the width of the shared space."""
        return self.settings.dim

    @property
    def grid(self) -> RegionGrid:
        """Where the regions lie, in pixels of the prepared image's central crop.

        A network that enlarges its input has its regions moved back through that resize.
        """
        return region_grid(self.settings, self.preprocessing)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Crop, resize and normalise prepared images as the authors do.

        Args:
            pixels: uint8 ``[B, S, S]``, S the prepared size or the input size.

        Returns:
            float32 ``[B, C, H, H]``, C = 1 or 3, H what the network reads.
        """
        p = self.preprocessing
        if pixels.dtype != torch.uint8 or pixels.ndim != 3:
            raise ValueError(
                f"expected uint8 images [B, S, S], got {pixels.dtype} {tuple(pixels.shape)}"
            )
        if pixels.shape[1] not in (p.input_size, p.prepare.size):
            raise ValueError(
                f"expected images of {p.prepare.size} or {p.input_size} pixels, "
                f"got {tuple(pixels.shape)}"
            )
        start = (pixels.shape[1] - p.input_size) // 2
        inside = slice(start, start + p.input_size)
        x = pixels[:, None, inside, inside].to(self.device).float() / 255
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
        """Unit vectors of the regions, and of the whole images.

        Args:
            images: prepared uint8 ``[B, S, S]``, or what `normalise` gave.
        """
        x = self.normalise(images) if images.dtype == torch.uint8 else images
        regions, whole = self.image(x)
        if self.fusion is not None and self.fusion.raw:
            found = ImageFeatures(regions.float(), whole.float())
        else:
            found = _unit(regions, whole)
        if not self.has_whole:
            return ImageFeatures(found.regions)
        return replace(found, attended=not self.whole_alone)

    def encode_pairs(self, images: Tensor, previous: Tensor) -> ImageFeatures:
        """As `encode_images`, for images with an earlier one of the same patient (BioViL-T)."""
        if not isinstance(self.image, BioViLImages) or self.image.vit_pooler is None:
            raise UserError("this model reads single images; only BioViL-T compares two.")
        pair = (self.normalise(x) if x.dtype == torch.uint8 else x for x in (images, previous))
        return _unit(*self.image(*pair))

    def encode_sentences(self, sentences: str | Sequence[str], batch_size: int = 64) -> Tensor:
        """Unit vectors ``[T, D]``; each distinct sentence is encoded once.

        A string is one sentence. CARZero and MGCA have several vectors a sentence, ``[T, K, D]``,
        K the most of any, filled up with zeros (`medclip_debias.models.peers.sentence_towers`);
        KAD, MedKLIP and AFLoc one of any length, ``[T, K, D]`` too (`..fusion`).

        Raises:
            UserError: something among them is no text, or this model reads images alone.
        """
        sentences = sentence_list(sentences)
        by_words = isinstance(self.settings.text, WordsTextSettings)
        if not sentences:
            return torch.zeros(0, *(2,) * (by_words or self._raw), self.dim, device=self.device)
        if self._raw:
            return self._queries(sentences, batch_size)
        if not by_words:
            return self.encode_ids(self.token_ids(sentences), batch_size)
        distinct = sorted(set(sentences), key=lambda sentence: (len(sentence), sentence))
        vectors = self._word_vectors(self.token_ids(distinct), batch_size)
        place = {sentence: row for row, sentence in enumerate(distinct)}
        return vectors[[place[sentence] for sentence in sentences]]

    def token_ids(self, sentences: Sequence[str]) -> list[list[int]]:
        """Each sentence as `encode_ids` takes it."""
        text = self.settings.text
        if cleaned := CLEANED.get(self.settings.kind):
            sentences = [cleaned(sentence) for sentence in sentences]
        if isinstance(text, BertSettings) and not text.separator:
            longer = self.tokenizer.encode(list(sentences), self.max_tokens + 1)
            return [row[:-1] for row in longer]
        return self.tokenizer.encode(list(sentences), self.max_tokens)

    @property
    def _raw(self) -> bool:
        return self.fusion is not None and self.fusion.raw

    def _queries(self, sentences: list[str], batch_size: int) -> Tensor:
        """Vectors of any length ``[T, 1, D]``, and of questions whether they deny ``[T, 2, D]``."""
        if not isinstance(self.fusion, QueryNetwork):
            return self._lengthy(sentences, batch_size)[:, None]
        asked = [self.fusion.question(sentence) for sentence in sentences]
        vectors = self._lengthy([text for text, _ in asked], batch_size)
        denied = vectors.new_tensor([float(no) for _, no in asked])
        return torch.stack([vectors, denied[:, None].expand_as(vectors)], dim=1)

    def _lengthy(self, texts: Sequence[str], batch_size: int) -> Tensor:
        return self.encode_ids(self.token_ids(texts), batch_size, unit=False)

    def _asked_of(self, features: ImageFeatures) -> tuple[Fusion, Tensor]:
        """The fusion, with its book read, and the tokens ``[B, 1 + N, D]`` that it takes."""
        fusion = self.fusion
        assert fusion is not None
        if isinstance(fusion, QueryNetwork) and fusion.book is None:
            fusion.book = self._lengthy(fusion.texts, 64)
        return fusion, class_token_first(features.regions, features.whole)

    def _word_vectors(self, ids: Sequence[Sequence[int]], batch_size: int) -> Tensor:
        """Vectors of a sentence and of its words ``[T, L, D]``, of a text tower that gives both."""
        parts = []
        for start in range(0, len(ids), batch_size):
            part = ids[start : start + batch_size]
            inputs = list(self.tokenizer.pad(part))
            if isinstance(self.tokenizer, SentenceTokenizer):
                inputs.append(word_places(self.tokenizer, part))
            parts.append(self.text(*(each.to(self.device) for each in inputs)).float())
        return stacked(parts)

    def encode_ids(
        self, ids: Sequence[Sequence[int]], group: int = 64, *, unit: bool = True
    ) -> Tensor:
        """Unit vectors ``[T, D]`` of tokenised sentences, each distinct one encoded once."""

        def encode(some: Sequence[Sequence[int]]) -> Tensor:
            padded, mask = self.tokenizer.pad(some)
            vectors = self.text(padded.to(self.device), mask.to(self.device))
            return F.normalize(vectors.float(), dim=-1) if unit else vectors.float()

        return encode_distinct(ids, encode, group)

    def score(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """The authors' score ``[B, T]``.

        The cosine of the whole image and the sentence ``[T, D]``, unless the model has a fusion
        (`medclip_debias.models.peers.fusion`).

        That of the regions, where the model was trained for that.

        Raises:
            ValueError: the features have no ``whole``, so another model gave them.
        """
        if self.fusion is not None and not self.whole_alone:
            fusion, tokens = self._asked_of(features)
            if self.trained_similarity is not None:
                attended: Tensor = self.trained_similarity(tokens, sentences)
                return attended
            return fusion.scores(tokens, sentences)
        if not self.has_whole:
            scores: Tensor = self.similarity(features.regions, sentences)
            return scores
        if features.whole is None:
            raise ValueError("expected features with 'whole'; these are of another model")
        if self.fusion is not None:
            return self.fusion.scores(features.whole[:, None], sentences)
        return features.whole @ sentences.T

    def region_scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """A map over the regions for every image and sentence ``[B, T, N]``, of `map_kind`."""
        if self.fusion is not None:
            fusion, tokens = self._asked_of(features)
            return fusion.maps(tokens, sentences)
        if not self.has_whole:
            return self.similarity.maps(features.regions, sentences)
        return region_scores(features.regions, sentences)

    # -------------------------------------------------------------------------- the folder

    def save(self, folder: Path, *, golden: bool | None = None) -> None:
        """Write the folder atomically: ``peer.yaml``, weights, tokenizer.

        Args:
            folder: where.
            golden: store golden samples too (`medclip_debias.models.golden`), so that loading
                tests the machine; that encodes two images of the model's input each time. None
                does so for what was trained here.
        """
        from safetensors.torch import save_file

        if golden and self.text_form == "none":
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
            state = {k: v.detach().cpu().contiguous() for k, v in merged_state(self).items()}
            save_file(state, temporary / "model.safetensors", metadata={"format": "pt"})
            self.tokenizer.save(temporary)
            write_text(temporary / FILE, yaml.safe_dump(content, sort_keys=False))
            if golden or (golden is None and self.trained_similarity is not None):
                files = [temporary / name for name in self.files]
                write_golden(self, temporary, self._hash(files))

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files beside ``peer.yaml`` that scores are computed from."""
        return _files(self.settings)

    def _hash(self, files: Sequence[Path]) -> str:
        """Names all that scores are computed from."""
        own = [self.settings.model_dump(mode="json"), self.preprocessing.model_dump(mode="json")]
        return json_hash([*own, file_hash(*files)])

    @classmethod
    def load(cls, folder: Path, device: str | torch.device = "cpu", *, check: bool = True) -> Peer:
        """Read a folder that ``import-model`` wrote, ready for evaluation.

        Args:
            folder: where it is.
            device: where the model runs.
            check: score the golden samples, where there are any, and warn if they moved.

        Raises:
            UserError: a file is missing, damaged, or of another version.
        """
        folder = Path(folder)
        _there(folder / WEIGHTS)
        content = load_yaml(folder / FILE)
        where = str(folder / FILE)
        if content.get("format") != FORMAT:
            raise UserError(
                f"{where}: format {content.get('format')!r} is not the format {FORMAT} that this "
                "version reads; import the model again."
            )
        settings = validate(PeerSettings, content.get("architecture", {}), where, "architecture.")
        preprocessing = validate(
            PeerPreprocessing, content.get("preprocessing", {}), where, "preprocessing."
        )
        files = [folder / name for name in _files(settings)]
        for path in files:
            _there(path)
        tokenizer = read_tokenizer(settings, folder)
        check_buildable(settings, files[0], where)
        with unfilled():
            model = cls(settings, preprocessing, tokenizer, content.get("provenance"))
        load_strictly(model, read_checkpoint(files[0]), str(files[0]))
        own = model.content_hash = model._hash(files)
        model = model.to(device).eval()
        if check:
            model.self_test = self_test(model, folder, own)
        else:
            model.self_test = {"status": "off"}
        return model


def _files(settings: PeerSettings) -> tuple[str, ...]:
    return (WEIGHTS,) if isinstance(settings.text, NoTextSettings) else (WEIGHTS, WORDS)


def _there(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path.parent}: is no whole model folder, it holds no {path.name}.")


def _unit(regions: Tensor, whole: Tensor) -> ImageFeatures:
    """What a tower gave, ``[B, N, D]`` and ``[B, D]``, brought to unit length."""
    return ImageFeatures(F.normalize(regions.float(), dim=-1), F.normalize(whole.float(), dim=-1))
