"""The image-text model: two encoders, a shared space, a similarity, and one folder on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from huggingface_hub import ModelHubMixin
from pydantic import Field
from torch import Tensor, nn

from medclip_debias import __version__
from medclip_debias.config import (
    ModelSettings,
    Preprocessing,
    Settings,
    SimilaritySettings,
    json_hash,
    validate,
)
from medclip_debias.errors import UserError
from medclip_debias.files import atomic_folder, file_hash, write_json
from medclip_debias.models.checkpoint import model_folder, need, read_model, write_weights
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.golden import self_test, write_golden
from medclip_debias.models.image_encoder import IMAGE_ENCODERS, ImageEncoder, build_image_encoder
from medclip_debias.models.interface import ImageTextModel, Outputs
from medclip_debias.models.limits import read_model_json
from medclip_debias.models.lora import merged_state
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.models.sentences import sentence_list
from medclip_debias.models.similarity import Similarity
from medclip_debias.models.text_encoder import SentenceTokenizer, TextEncoder, check_vocabulary
from medclip_debias.models.tower import Head

FORMAT = 1
MODEL_TYPE = "medclip_debias"
"""By which transformers' Auto classes know the folder (`medclip_debias.hub`)."""


class ModelFile(Settings):
    """What ``config.json`` of a model folder holds."""

    format: int
    medclip_debias: str = ""
    model_type: Literal["medclip_debias"] = "medclip_debias"
    architecture: ModelSettings
    image_config: dict[str, Any] = Field({})
    text_config: dict[str, Any] = Field({})
    preprocessing: Preprocessing
    prompts: dict[str, Any] = Field({})
    provenance: dict[str, Any] = Field({})


FIELDS = tuple(ModelFile.model_fields)


class BlockProjection(nn.Module):
    """Pre-norm transformer blocks over an image's regions, and a linear map of each.

    How dino.txt (Jose et al. 2024) and RadZero (Park et al. 2025) fit a frozen trunk to text.
    """

    def __init__(self, width: int, dim: int, blocks: int) -> None:
        super().__init__()
        heads = max(1, width // 64)
        if width % heads:
            raise UserError(
                f"setting 'model.image.blocks' is {blocks}, but a trunk of width {width} cannot be "
                f"cut into {heads} attention heads; leave the blocks out."
            )
        options: Any = {"activation": "gelu", "layer_norm_eps": 1e-6, "norm_first": True}
        layers = (
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, **options)
            for _ in range(blocks)
        )
        self.blocks = nn.ModuleList(layers)
        self.linear = nn.Linear(width, dim)

    def forward(self, regions: Tensor) -> Tensor:
        for block in self.blocks:
            regions = block(regions)
        return self.linear(regions)


class DualEncoder(ImageTextModel, ModelHubMixin):
    """Regions of an image and a sentence, embedded as unit vectors of one space.

    ``provenance`` is what it was trained on (data hash, run settings, step).
    """

    _unhashed: ClassVar[tuple[str, ...]] = ("provenance", "model_type")

    def __init__(
        self,
        settings: ModelSettings,
        preprocessing: Preprocessing,
        image_encoder: ImageEncoder,
        text_encoder: TextEncoder,
        tokenizer: SentenceTokenizer,
        prompts: Mapping[str, Any] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(settings, preprocessing, tokenizer, prompts, provenance)
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        width, blocks = image_encoder.width, settings.image.blocks
        self.image_projection: nn.Module = (
            BlockProjection(width, settings.dim, blocks)
            if blocks
            else nn.Linear(width, settings.dim)
        )
        self.text_projection = nn.Linear(text_encoder.width, settings.dim)
        self.similarity = Similarity(settings.similarity, settings.dim)

    @classmethod
    def create(cls, settings: ModelSettings, preprocessing: Preprocessing) -> DualEncoder:
        """Build a model whose encoders start from the weights that ``settings`` name."""
        folder = settings.text.folder
        tokenizer = SentenceTokenizer.load(folder)
        given = settings.text
        text = TextEncoder.from_folder(folder, given.use_projection_head, given.pooling)
        _check_text(tokenizer, text, str(folder))
        if given.max_tokens > text.longest:
            raise UserError(
                f"setting 'model.text.max_tokens' is {given.max_tokens}, but the model in "
                f"{folder} reads at most {text.longest} tokens."
            )
        if text.pooling != (given.pooling or "cls"):  # the folder's, which is not kept
            chosen = given.model_copy(update={"pooling": text.pooling})
            settings = settings.model_copy(update={"text": chosen})
        image = build_image_encoder(settings.image)
        image.check_side(preprocessing.input_size, "setting 'preprocessing.input_size'")
        return cls(settings, preprocessing, image, text, tokenizer)

    def begin_training(
        self, similarity: SimilaritySettings | None = None, max_tokens: int | None = None
    ) -> None:
        settings = self.settings
        if similarity is not None:
            similarity = similarity.model_copy(update={"initial_scale": self.learned_scale})
            settings = settings.model_copy(update={"similarity": similarity})
            self.similarity = Similarity(similarity, self.dim).to(self.device)
        if max_tokens is not None:
            text = settings.text.model_copy(update={"max_tokens": max_tokens})
            settings = settings.model_copy(update={"text": text})
        self.settings = settings

    @property
    def max_tokens(self) -> int:
        return int(self.settings.text.max_tokens)

    @property
    def outputs(self) -> Outputs:
        return Outputs(map_kind=self.similarity.map_kind)

    @property
    def learned_scale(self) -> float:
        return float(self.similarity.scale.detach())

    @property
    def grid(self) -> RegionGrid:
        return self.image_encoder.grid(self.preprocessing.input_size)

    @property
    def heads(self) -> list[Head]:
        return [self.image_projection, self.text_projection, self.similarity]

    def normalise(self, pixels: Tensor) -> Tensor:
        """Prepared uint8 ``[B, S, S]``, cropped and normalised, ``[B, 1, C, C]``."""
        return (self.cropped(pixels) - self.preprocessing.mean) / self.preprocessing.std

    def encode_images(self, images: Tensor) -> ImageFeatures:
        """Regions of prepared uint8 ``[B, S, S]`` or normalised ``[B, 1, C, C]``; no ``whole``."""
        x = self.normalise(images) if images.dtype == torch.uint8 else images
        return self._projected(self.image_encoder(x))

    def encode_features(self, features: Tensor, depth: int) -> ImageFeatures:
        """`encode_images` from what ``image_encoder.features_upto(images, depth)`` gave."""
        return self._projected(self.image_encoder.features_after(features, depth))

    def _projected(self, features: Tensor) -> ImageFeatures:
        rows = features.flatten(2).transpose(1, 2) if features.ndim == 4 else features
        return ImageFeatures(F.normalize(self.image_projection(rows).float(), dim=-1))

    def encode_tokens(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask ``[T, L]`` to unit vectors ``[T, D]``.

        For ``local_words`` to those of the words ``[T, max_tokens - 1, D]``, padded with zeros: the
        tokens without [CLS] and [SEP], or [CLS] where there is no other.
        """
        if not self._of_words:
            return self.encode_text_features(self.text_encoder(ids, mask))
        vectors = self.encode_text_features(self.text_encoder.words(ids, mask))
        cls, words = vectors[:, :1], vectors[:, 1:]
        there = mask[:, 1:].bool() & (ids[:, 1:] != self.tokenizer.sep_id)
        words = words * there[..., None]
        alone = ~there.any(dim=1)[:, None, None]
        words = torch.cat([torch.where(alone, cls, words[:, :1]), words[:, 1:]], dim=1)
        return F.pad(words, (0, 0, 0, max(self.max_tokens - 1 - words.shape[1], 0)))

    @property
    def _of_words(self) -> bool:
        return self.settings.similarity.aggregator == "local_words"

    def encode_text_features(self, features: Tensor) -> Tensor:
        """Unit vectors ``[..., D]`` from what the text encoder gave, ``[..., width]``."""
        return F.normalize(self.text_projection(features).float(), dim=-1)

    def encode_sentences(self, sentences: str | Sequence[str], batch_size: int = 256) -> Tensor:
        """As of `ImageTextModel`; with ``local_words`` the vectors of words ``[T, L, D]``."""
        texts = sentence_list(sentences)
        if not self._of_words:
            return super().encode_sentences(texts, batch_size)
        if not texts:
            return torch.zeros(0, 1, self.dim, device=self.device)
        ids = self.token_ids(texts)
        return self.encode_ids(ids, batch_size)[:, : max(max(len(row) for row in ids) - 2, 1)]

    def encode_padded(self, ids: list[list[int]]) -> Tensor:
        padded = self.tokenizer.pad(ids)
        return self.encode_tokens(*(part.to(self.device, non_blocking=True) for part in padded))

    def score(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        return self.similarity(features.regions, sentences)

    def region_scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        return self.similarity.maps(features.regions, sentences)

    def forward(self, images: Tensor, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Similarities ``[B, T]`` of images and tokenised sentences, and the learned scale."""
        scores = self.score(self.encode_images(images), self.encode_ids(ids))
        return scores, self.similarity.scale

    def save(self, folder: Path) -> None:
        """Write the model folder atomically: weights, architecture, preprocessing, tokenizer."""
        with atomic_folder(Path(folder)) as temporary:
            self._save_pretrained(temporary)

    def _save_pretrained(self, save_directory: Path) -> None:
        folder = Path(save_directory)
        state = _of_image(merged_state(self), self.image_encoder.to_file)
        write_weights(state, folder / "model.safetensors")
        self.tokenizer.save(folder)
        config = self.file_content()
        write_json(folder / "config.json", config)
        write_golden(self, folder, _computing_hash(config, _files_hash(folder)))

    def file_content(self) -> dict[str, Any]:
        """What ``config.json`` of its folder holds."""
        settings = self.settings.model_dump(mode="json")
        # Where the starting weights came from is provenance; the folder must load without them.
        settings["text"]["folder"], settings["image"]["weights"] = ".", None
        image_config = self.image_encoder.config  # none where the name says all
        return {
            "format": FORMAT,
            "medclip_debias": __version__,
            "model_type": MODEL_TYPE,
            "architecture": settings,
            **({"image_config": image_config} if image_config else {}),
            "text_config": self.text_encoder.config,
            "preprocessing": self.preprocessing.model_dump(mode="json"),
            "prompts": self.prompts,
            "provenance": self.provenance,
        }

    @classmethod
    def load(
        cls, folder: Path, device: str | torch.device = "cpu", *, check: bool = True
    ) -> DualEncoder:
        """Read a model folder, ready for evaluation.

        Args:
            folder: what `save` wrote.
            device: where the model shall be.
            check: compute the scores that were stored with it and warn when they differ
                (`medclip_debias.models.golden`).
        """
        folder = Path(folder)
        need(folder, "config.json", "model.safetensors", "tokenizer.json")
        config = read_model_json(folder / "config.json")
        if config.get("format") != FORMAT:
            raise UserError(
                f"{folder}/config.json: model format {config.get('format')!r} is not the format "
                f"{FORMAT} that this version reads; install medclip-debias "
                f"{config.get('medclip_debias', 'in its version')}, or train the model again."
            )
        where = f"{folder}/config.json"
        file = validate(ModelFile, config, where)
        settings, preprocessing = file.architecture, file.preprocessing
        tokenizer = SentenceTokenizer.load(folder)

        def build(_: Mapping[str, Tensor]) -> DualEncoder:
            chosen = settings.text
            pooling = chosen.pooling or "cls"
            text = TextEncoder(file.text_config, chosen.use_projection_head, where, pooling)
            _check_text(tokenizer, text, str(folder))
            image = family.rebuild(settings.image.arch, file.image_config, where)
            image.check_side(preprocessing.input_size, where)
            parts = image, text, tokenizer
            return cls(settings, preprocessing, *parts, file.prompts, file.provenance)

        family = IMAGE_ENCODERS.find(settings.image.arch, where, "architecture.image.arch")
        names = partial(_of_image, names=family.from_file)
        model = read_model(build, folder / "model.safetensors", where, names)
        hashed = {key: value for key, value in config.items() if key not in cls._unhashed}
        files = _files_hash(folder)
        model.content_hash = json_hash([hashed, files])
        model = model.to(device).eval()
        # The layout that convolutions are fastest in; the numbers change by rounding only.
        model.image_encoder.to(memory_format=torch.channels_last)
        if check:
            model.self_test = self_test(model, folder, _computing_hash(config, files))
        else:
            model.self_test = {"status": "off"}
        return model

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        device: str | torch.device = "cpu",
        **where: Any,
    ) -> DualEncoder:
        """`load`, also of a model on the Hugging Face Hub, which is downloaded when asked for.

        The folder alone says what the model is, so there is no other argument.

        Args:
            pretrained_model_name_or_path: a model folder, else the name of a model on the hub.
            device: where the model shall be.
            where: as of `medclip_debias.models.checkpoint.model_folder`; nothing is downloaded
                unless ``local_files_only=False``.

        Raises:
            UserError: the folder holds no whole model of this format, or it is not here.
            TypeError: an argument that is not known.
        """
        folder = model_folder(pretrained_model_name_or_path, **where)
        return cls.load(folder, device)

    def push_to_hub(self, *_: Any, **__: Any) -> str:
        """Refused: `medclip_debias.hub.push` lists what goes out and takes paths away."""
        raise UserError(
            "a model goes to the hub by 'medclip-debias hub push MODEL REPO', which lists its files"
            " first; save it, write its card with 'medclip-debias hub card', and push the folder."
        )


def _of_image(
    state: Mapping[str, Tensor], names: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """``state`` with ``names`` done to what is the image encoder's."""
    prefix = "image_encoder."
    inside = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    rest = {k: v for k, v in state.items() if not k.startswith(prefix)}
    return {f"{prefix}{k}": v for k, v in names(inside).items()} | rest


def _files_hash(folder: Path) -> str:
    return file_hash(folder / "model.safetensors", folder / "tokenizer.json")


def _computing_hash(config: Mapping[str, Any], files: str) -> str:
    """Names all of a folder that scores are computed from: not its prompts or provenance."""
    computing = ["architecture", "text_config", "preprocessing"]
    if "image_config" in config:  # folders without it keep their hash
        computing.append("image_config")
    return json_hash([[config.get(key) for key in computing], files])


def _check_text(tokenizer: SentenceTokenizer, text: TextEncoder, where: str) -> None:
    check_vocabulary(tokenizer, text.vocabulary, where)
    # These two count positions from the padding's number on, so that it decides.
    if text.family.counts_from_padding and tokenizer.pad_id != text.pad_id:
        raise UserError(
            f"{where}: the tokenizer's padding is token {tokenizer.pad_id}, the model's "
            f"{text.pad_id}; they do not belong together."
        )
