"""The model as transformers' Auto classes know it: configuration, model, processor.

All that they need stands in the model folder already (``config.json``, ``tokenizer.json``), so they
read it from there and keep no second copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoProcessor,
    BaseImageProcessor,
    BatchFeature,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)
from transformers.utils import ModelOutput

from medclip_debias.config import ModelSettings, Preprocessing, validate
from medclip_debias.errors import UserError
from medclip_debias.files import write_json
from medclip_debias.front.images import ImagesLike, given_images
from medclip_debias.models.checkpoint import model_folder
from medclip_debias.models.dual_encoder import FIELDS, MODEL_TYPE, DualEncoder
from medclip_debias.models.limits import read_model_json
from medclip_debias.models.load import expected_images
from medclip_debias.models.sentences import sentence_list
from medclip_debias.models.text_encoder import SentenceTokenizer

PROCESSOR = "processor_config.json"
_OF_AUTO = ("_commit_hash", "_from_auto", "adapter_kwargs", "code_revision", "trust_remote_code")
"""What the Auto classes hand on and what is nothing to a model without remote code."""


class MedClipDebiasConfig(PreTrainedConfig):
    """``config.json`` of a model folder, as it is.

    Attributes:
        content: its fields; `medclip_debias.models.dual_encoder` says what they are.
    """

    model_type = MODEL_TYPE

    def __init__(self, **fields: Any) -> None:
        content = {name: fields.pop(name) for name in FIELDS if name in fields}
        super().__init__(**fields)
        self.content = content | {"model_type": MODEL_TYPE}

    def to_dict(self) -> dict[str, Any]:
        """The fields, and no others."""
        return dict(self.content)

    to_diff_dict = to_dict


@dataclass
class MedClipDebiasOutput(ModelOutput):
    """What the model says of B images and T sentences.

    Attributes:
        logits_per_image: ``[B, T]``, scores times the learned scale.
        logits_per_text: ``[T, B]``, the same turned.
        scores: ``[B, T]`` in [-1, 1]; what ``evaluate`` and ``ground`` call the score.
        maps: ``[B, T, rows, columns]``, cosine of each region with each sentence.
        text_embeds: unit vectors ``[T, D]``.
        image_embeds: unit vectors ``[B, D]``, the direction of the mean region. The scores are
            computed from the regions and are not the cosines of these.
        region_embeds: unit vectors ``[B, N, D]``.
    """

    logits_per_image: Tensor | None = None
    logits_per_text: Tensor | None = None
    scores: Tensor | None = None
    maps: Tensor | None = None
    text_embeds: Tensor | None = None
    image_embeds: Tensor | None = None
    region_embeds: Tensor | None = None


class MedClipDebiasModel(PreTrainedModel):
    """`DualEncoder` behind transformers' interface.

    Attributes:
        network: the model itself.
    """

    config_class = MedClipDebiasConfig
    base_model_prefix = "network"
    main_input_name = "pixel_values"

    def __init__(self, config: MedClipDebiasConfig, network: DualEncoder | None = None) -> None:
        """Wrap ``network``.

        Raises:
            UserError: there is none: a configuration alone says nothing of the weights.
        """
        super().__init__(config)
        if network is None:
            raise UserError(
                "a model of this project is read from its folder; use from_pretrained(FOLDER)."
            )
        self.network = network

    @classmethod
    def of(cls, network: DualEncoder) -> MedClipDebiasModel:
        """Wrap a model in memory."""
        return cls(MedClipDebiasConfig(**network.file_content()), network)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        *,
        config: PreTrainedConfig | None = None,
        device: str | torch.device = "cpu",
        **where: Any,
    ) -> MedClipDebiasModel:
        """Read a model folder, in evaluation mode.

        Args:
            pretrained_model_name_or_path: a model folder, else the name of a model on the hub.
            config: what `AutoConfig` read there; the folder decides.
            device: where the model shall be.
            where: as of `medclip_debias.models.checkpoint.model_folder`; nothing is downloaded
                unless ``local_files_only=False``.

        Raises:
            UserError: it holds no whole model, or is not here.
            TypeError: an argument that is not known.
        """
        del config
        folder = _folder(pretrained_model_name_or_path, where)
        return cls.of(DualEncoder.load(folder, device)).eval()

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write the model folder atomically, as `DualEncoder.save` does."""
        self.network.save(Path(save_directory))

    def push_to_hub(self, *arguments: Any, **more: Any) -> str:
        """Refused, as of `DualEncoder.push_to_hub`."""
        return self.network.push_to_hub(*arguments, **more)

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        """Prepared images uint8 ``[B, S, S]`` to unit vectors ``[B, D]`` of the whole images."""
        return self.network.encode_images(pixel_values).pooled

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Token ids and mask ``[T, L]`` to unit vectors ``[T, D]``."""
        if attention_mask is None:
            attention_mask = (input_ids != self.network.tokenizer.pad_id).long()
        return self.network.encode_tokens(input_ids, attention_mask)

    def forward(
        self,
        pixel_values: Tensor,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
    ) -> MedClipDebiasOutput:
        """Score every image with every sentence, as `MedClipDebiasProcessor` prepared them.

        Args:
            pixel_values: uint8 ``[B, S, S]``.
            input_ids: ``[T, L]``.
            attention_mask: ``[T, L]``; by default 1 where a token is no padding.
        """
        network = self.network
        features = network.encode_images(pixel_values)
        sentences = self.get_text_features(input_ids, attention_mask)
        scores = network.score(features, sentences)
        logits = scores * network.similarity.scale
        return MedClipDebiasOutput(
            logits_per_image=logits,
            logits_per_text=logits.T,
            scores=scores,
            maps=network.region_scores(features, sentences).unflatten(-1, network.grid.shape),
            text_embeds=sentences,
            image_embeds=features.pooled,
            region_embeds=features.regions,
        )


class MedClipDebiasImageProcessor(BaseImageProcessor):
    """Images as people hold them to the very bytes that ``prepare`` stores.

    Attributes:
        preprocessing: the model's.
    """

    model_input_names = ("pixel_values",)

    def __init__(self, preprocessing: Preprocessing | dict[str, Any] | None = None) -> None:
        super().__init__()
        if not isinstance(preprocessing, Preprocessing):
            preprocessing = validate(Preprocessing, preprocessing or {}, "preprocessing")
        self.preprocessing = preprocessing

    def __call__(self, images: ImagesLike, return_tensors: str | None = "pt") -> BatchFeature:
        """Prepare images.

        Args:
            images: paths (DICOM, JPG, PNG), arrays, Pillow images, pydicom data sets; one or many.
            return_tensors: ``pt`` or ``np``.

        Returns:
            ``pixel_values`` uint8 ``[B, S, S]``; the model crops and normalises them itself.

        Raises:
            UserError: an image cannot be used.
        """
        settings = self.preprocessing.prepare
        squares = [image.prepared(settings) for image in given_images(images)]
        shape = (len(squares), settings.size, settings.size)
        stacked = np.stack(squares) if squares else np.zeros(shape, dtype=np.uint8)
        return BatchFeature({"pixel_values": stacked}, tensor_type=return_tensors)

    preprocess = __call__

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` makes the same of."""
        kind = type(self).__name__
        prepared = self.preprocessing.model_dump(mode="json")
        return {"image_processor_type": kind, "preprocessing": prepared}

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, **where: Any
    ) -> MedClipDebiasImageProcessor:
        """Read it from a model folder, or from what `MedClipDebiasProcessor` saved."""
        folder = _folder(pretrained_model_name_or_path, where)
        return cls(_inputs(folder)[0])


class MedClipDebiasProcessor(ProcessorMixin):
    """Images and texts to what the model reads.

    Example:
        >>> inputs = processor(images=[image], text=["Left effusion.", "No effusion."])
        >>> sorted(inputs), inputs["pixel_values"].dtype
        (['attention_mask', 'input_ids', 'pixel_values'], torch.uint8)
    """

    def __init__(
        self, image_processor: MedClipDebiasImageProcessor, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        super().__init__(image_processor, tokenizer)

    def __call__(
        self,
        images: ImagesLike | None = None,
        text: str | list[str] | None = None,
        return_tensors: str | None = "pt",
    ) -> BatchFeature:
        """Prepare images, texts, or both.

        Args:
            images: as of `MedClipDebiasImageProcessor`.
            text: T texts; a string is one. A longer one than the model reads is cut.
            return_tensors: ``pt`` or ``np``.

        Returns:
            ``pixel_values`` uint8 ``[B, S, S]``; ``input_ids`` and ``attention_mask`` ``[T, L]``.

        Raises:
            UserError: an image or a text cannot be used.
        """
        if images is None and text is None:
            raise UserError("give images, text or both.")
        inputs: dict[str, Any] = {}
        if images is not None:
            inputs |= self.image_processor(images, return_tensors=return_tensors)
        if text is not None:
            texts = sentence_list(text)
            if not texts:
                raise UserError("text is an empty list; give at least one text.")
            how = {"padding": True, "truncation": True, "return_tensors": return_tensors}
            inputs |= self.tokenizer(texts, **how)
        return BatchFeature(inputs)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, **where: Any
    ) -> MedClipDebiasProcessor:
        """Read it from a model folder, or from what `save_pretrained` wrote.

        Args:
            pretrained_model_name_or_path: the folder, else the name of a model on the hub.
            where: as of `medclip_debias.models.checkpoint.model_folder`.

        Raises:
            UserError: it is no such folder.
        """
        folder = _folder(pretrained_model_name_or_path, where)
        preprocessing, max_tokens = _inputs(folder)
        own = SentenceTokenizer.load(folder)
        special = own.tokens([own.pad_id, own.unk_id, own.cls_id, own.sep_id, own.mask_id])
        keys = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
        names: dict[str, Any] = dict(zip(keys, special, strict=True))
        fast = PreTrainedTokenizerFast(
            tokenizer_object=own.copy(), model_max_length=max_tokens, **names
        )
        fast.model_input_names = ["input_ids", "attention_mask"]
        return cls(MedClipDebiasImageProcessor(preprocessing), fast)

    def save_pretrained(self, save_directory: str | Path) -> None:
        """Write it; beside a model that reads the same way there is nothing to write.

        Raises:
            UserError: the folder holds a model that reads its inputs in another way.
        """
        from tokenizers import Tokenizer

        folder = Path(save_directory)
        tokenizer = self.tokenizer.backend_tokenizer
        mine = self.image_processor.preprocessing, self.tokenizer.model_max_length
        if (folder / "config.json").is_file():
            own = SentenceTokenizer.load(folder).copy().get_vocab()
            if _inputs(folder) != mine or own != tokenizer.get_vocab():
                raise UserError(
                    f"{folder}: holds a model that reads its inputs in another way; save the"
                    " processor elsewhere."
                )
            return
        folder.mkdir(parents=True, exist_ok=True)
        # A copy, without the padding and cutting that the last call switched on.
        SentenceTokenizer(Tokenizer.from_str(tokenizer.to_str())).save(folder)
        content = {
            "processor_class": type(self).__name__,
            "image_processor": self.image_processor.to_dict(),
            "max_tokens": mine[1],
        }
        write_json(folder / PROCESSOR, content)


def register() -> None:
    """Tell transformers' Auto classes of the model; again does nothing."""
    AutoConfig.register(MODEL_TYPE, MedClipDebiasConfig, exist_ok=True)
    AutoModel.register(MedClipDebiasConfig, MedClipDebiasModel, exist_ok=True)
    AutoProcessor.register(MedClipDebiasConfig, MedClipDebiasProcessor, exist_ok=True)
    AutoImageProcessor.register(
        MedClipDebiasConfig,
        image_processor_classes={"pil": MedClipDebiasImageProcessor},
        exist_ok=True,
    )


def _inputs(folder: Path) -> tuple[Preprocessing, int]:
    """Preprocessing and longest sentence that a folder holds, of a model or of a processor."""
    path = folder / PROCESSOR
    if path.is_file() and not (folder / "config.json").is_file():
        content = read_model_json(path)
        own = content.get("image_processor", {})
        prepared = own.get("preprocessing") if isinstance(own, dict) else None
        longest = content.get("max_tokens")
        if not isinstance(prepared, dict) or not isinstance(longest, int):
            raise UserError(f"{path}: is not a processor of this project.")
        return validate(Preprocessing, prepared, str(path)), longest
    preprocessing = expected_images(folder)
    if (folder / "peer.yaml").is_file():
        raise UserError(f"{folder}: is a peer, which has no processor; load it with md.load.")
    where = f"{folder}/config.json"
    architecture = read_model_json(folder / "config.json").get("architecture", {})
    return preprocessing, validate(ModelSettings, architecture, where).text.max_tokens


def _folder(name: str | Path, where: dict[str, Any]) -> Path:
    return model_folder(name, **{key: v for key, v in where.items() if key not in _OF_AUTO})
