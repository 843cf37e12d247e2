"""``config.json`` of a BERT-like text encoder: the fields that are read, checked; nothing else is.

What reaches transformers are the fields of `BertFields` and its kin alone. Published files hold
more, most of which changes no number (``architectures``, ``transformers_version``, ``auto_map``
...) and is left aside. A field that would change what is computed, or by which code, is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field, model_validator

from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    from torch import nn
    from transformers import BertConfig

F = TypeVar("F", bound=Settings)

Activation = Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"]

_USUAL: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, [], None),
    "quantization_config": (None,),
    "rope_scaling": (None,),
}
"""Fields that change what is computed, and the values that do not."""


class TransformerFields(Settings):
    """What every family has, with limits of size."""

    vocab_size: int = Field(30522, ge=1, le=2_000_000)
    hidden_size: int = Field(768, ge=1, le=16_384)
    num_hidden_layers: int = Field(12, ge=1, le=256)
    num_attention_heads: int = Field(12, ge=1, le=1024)
    intermediate_size: int = Field(3072, ge=1, le=131_072)
    max_position_embeddings: int = Field(512, ge=1, le=65_536)
    initializer_range: float = Field(0.02, ge=0, le=10)
    pad_token_id: int | None = Field(0, ge=0)
    tie_word_embeddings: bool = True

    @model_validator(mode="after")
    def _fit(self) -> TransformerFields:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("num_attention_heads must divide hidden_size")
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError("pad_token_id must be below vocab_size")
        return self

    @property
    def longest(self) -> int:
        """Most tokens that have a position."""
        return self.max_position_embeddings

    def arguments(self) -> dict[str, Any]:
        """What transformers' configuration is made of."""
        return self.model_dump()


class BertFields(TransformerFields):
    """BERT and CXR-BERT, with BERT's own defaults."""

    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = Field(0.1, ge=0, le=1)
    attention_probs_dropout_prob: float = Field(0.1, ge=0, le=1)
    type_vocab_size: int = Field(2, ge=1, le=1024)
    layer_norm_eps: float = Field(1e-12, ge=0, le=1)
    projection_size: int | None = Field(None, ge=0, le=16_384)

    def arguments(self) -> dict[str, Any]:
        """Without the projection, which is not transformers'."""
        return self.model_dump(exclude={"projection_size"})


class RobertaFields(TransformerFields):
    """RoBERTa: positions are counted from ``pad_token_id`` + 1."""

    vocab_size: int = Field(50265, ge=1, le=2_000_000)
    pad_token_id: int = Field(1, ge=0)
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = Field(0.1, ge=0, le=1)
    attention_probs_dropout_prob: float = Field(0.1, ge=0, le=1)
    type_vocab_size: int = Field(2, ge=1, le=1024)
    layer_norm_eps: float = Field(1e-12, ge=0, le=1)

    @property
    def longest(self) -> int:
        """Most tokens that have a position."""
        return self.max_position_embeddings - self.pad_token_id - 1


class MpnetFields(TransformerFields):
    """MPNet, with positions as RoBERTa's and a bias by distance."""

    vocab_size: int = Field(30527, ge=1, le=2_000_000)
    pad_token_id: int = Field(1, ge=0)
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = Field(0.1, ge=0, le=1)
    attention_probs_dropout_prob: float = Field(0.1, ge=0, le=1)
    layer_norm_eps: float = Field(1e-12, ge=0, le=1)
    relative_attention_num_buckets: int = Field(32, ge=2, le=1024)

    @property
    def longest(self) -> int:
        """Most tokens that have a position."""
        return self.max_position_embeddings - self.pad_token_id - 1


class Rope(Settings):
    """Rotation of one kind of layer; only the plain form is read."""

    rope_type: Literal["default"] = "default"
    rope_theta: float | None = Field(None, gt=0, le=1e12)


class RopeOfLayers(Settings):
    """ModernBERT's two kinds of layers."""

    full_attention: Rope = Rope()
    sliding_attention: Rope = Rope()


class ModernBertFields(TransformerFields):
    """ModernBERT, as its files of either form say (two thetas, or ``rope_parameters``)."""

    vocab_size: int = Field(50368, ge=1, le=2_000_000)
    num_hidden_layers: int = Field(22, ge=1, le=256)
    intermediate_size: int = Field(1152, ge=1, le=131_072)
    max_position_embeddings: int = Field(8192, ge=1, le=65_536)
    pad_token_id: int | None = Field(50283, ge=0)
    hidden_activation: Activation = "gelu"
    initializer_cutoff_factor: float = Field(2.0, gt=0, le=100)
    norm_eps: float = Field(1e-5, ge=0, le=1)
    norm_bias: bool = False
    attention_bias: bool = False
    attention_dropout: float = Field(0.0, ge=0, le=1)
    embedding_dropout: float = Field(0.0, ge=0, le=1)
    mlp_bias: bool = False
    mlp_dropout: float = Field(0.0, ge=0, le=1)
    local_attention: int = Field(128, ge=2, le=65_536)
    global_attn_every_n_layers: int = Field(3, ge=1, le=256)
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    global_rope_theta: float = Field(160_000.0, gt=0, le=1e12)
    local_rope_theta: float | None = Field(10_000.0, gt=0, le=1e12)
    rope_parameters: RopeOfLayers | None = None

    @model_validator(mode="after")
    def _layers(self) -> ModernBertFields:
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            raise ValueError("layer_types must name each of num_hidden_layers layers")
        return self

    def arguments(self) -> dict[str, Any]:
        """In the newer of the two forms."""
        given = self.rope_parameters or RopeOfLayers()
        local = self.local_rope_theta or self.global_rope_theta
        thetas = {"full_attention": self.global_rope_theta, "sliding_attention": local}
        rope = {
            kind: {"rope_type": "default", "rope_theta": getattr(given, kind).rope_theta or theta}
            for kind, theta in thetas.items()
        }
        kinds = self.layer_types or [
            "sliding_attention" if layer % self.global_attn_every_n_layers else "full_attention"
            for layer in range(self.num_hidden_layers)
        ]
        older = {"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"}
        # Ids that a sentence encoder never reads; the defaults are of the published vocabulary.
        unread = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
        return (
            self.model_dump(exclude=older | {"rope_parameters", "layer_types"})
            | {"rope_parameters": rope, "layer_types": kinds}
            | unread
        )


@dataclass(frozen=True)
class Family:
    """How one ``model_type`` is read.

    Attributes:
        fields: of its ``config.json``.
        name: of its classes in transformers, before ``Config`` and ``Model``.
        prefix: of the encoder's tensors in a file that holds heads as well.
        layers: path of its list of layers.
        pooler: whether the class takes ``add_pooling_layer``.
        counts_from_padding: whether the number of the padding token decides about positions.
    """

    fields: type[TransformerFields]
    name: str
    prefix: str
    layers: str = "encoder.layer"
    pooler: bool = True
    counts_from_padding: bool = False


FAMILIES: Mapping[str, Family] = {
    "bert": Family(BertFields, "Bert", "bert."),
    "cxr-bert": Family(BertFields, "Bert", "bert."),
    "roberta": Family(RobertaFields, "Roberta", "roberta.", counts_from_padding=True),
    "mpnet": Family(MpnetFields, "MPNet", "mpnet.", counts_from_padding=True),
    "modernbert": Family(ModernBertFields, "ModernBert", "model.", "layers", pooler=False),
}
"""Text encoders by the ``model_type`` of their configuration."""

_HEADS = re.compile(
    r"^(\w+\.)?(pooler|classifier|cls|lm_head|head|decoder|cls_projection_head|qa_outputs)\."
    r"|(^|\.)embeddings\.position_ids$"
)
"""Tensors of published files that no sentence's vector is computed from."""


def family_of(config: object, where: str) -> Family:
    """The family of a ``config.json``; one that does not say is a BERT.

    Raises:
        UserError: it is no JSON object, or of a family that is not read.
    """
    if not isinstance(config, Mapping):
        raise UserError(f"{where}: the text encoder's configuration is not a JSON object.")
    kind = config.get("model_type", "bert")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(
            f"{where}: model_type is {kind!r}; text encoders that can be read: "
            f"{', '.join(FAMILIES)}."
        )
    return FAMILIES[kind]


def text_fields(config: object, where: str) -> TransformerFields:
    """The checked fields of a text encoder's ``config``, of whatever family.

    Raises:
        UserError: see `family_of` and `checked_fields`.
    """
    return checked_fields(family_of(config, where).fields, config, where, "text_config.")


def make_text_model(config: object, where: str = "config.json") -> Any:
    """Build transformers' own module, with random weights and without a pooling layer.

    Raises:
        UserError: see `text_fields`.
    """
    import transformers

    family, arguments = family_of(config, where), text_fields(config, where).arguments()
    made = getattr(transformers, f"{family.name}Config")(**arguments)
    extra = {"add_pooling_layer": False} if family.pooler else {}
    return getattr(transformers, f"{family.name}Model")(made, **extra)


def encoder_tensors(state: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The encoder's own tensors among those of a published file, under its own names.

    Heads and position numbers are left out by name (`_HEADS`), anything else is kept, so that a
    strict import can refuse it. Files converted from TensorFlow call a norm's weights gamma, beta.
    """
    # A whole model's file has the prefix; some bare encoders have a module of the same name.
    inside = [key for key in state if key.startswith(family.prefix)]
    found = {}
    for key, value in state.items():
        if _HEADS.search(key.removeprefix(family.prefix)) or _HEADS.search(key):
            continue
        name = key.removeprefix(family.prefix) if inside else key
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        found[name.replace("LayerNorm.beta", "LayerNorm.bias")] = value
    return found


def checked_fields(fields: type[F], config: object, where: str, prefix: str) -> F:
    """The fields of ``config`` that a settings class knows.

    Args:
        fields: settings class.
        config: content of a ``config.json``.
        where: names its file for the message.
        prefix: dotted place of the fields for the message.

    Raises:
        UserError: it is no JSON object, a field is of absurd size or wrong type, or one is there
            that would change what is computed.
    """
    if not isinstance(config, Mapping):
        raise UserError(f"{where}: the encoder's configuration is not a JSON object.")
    for name, value in config.items():
        implementation = str(name).strip("_").startswith("attn_implementation") and value
        if implementation or (name in _USUAL and value not in _USUAL[name]):
            raise UserError(
                f"{where}: the field '{name}' changes how the model is computed, and is not read;"
                " remove it if the model does not need it."
            )
    known = {key: value for key, value in config.items() if key in fields.model_fields}
    return validate(fields, known, where, prefix)


def bert_fields(config: object, where: str) -> BertFields:
    """The checked fields of a BERT's or CXR-BERT's ``config``; see `checked_fields`.

    Raises:
        UserError: see there.
    """
    if not isinstance(config, Mapping):
        raise UserError(f"{where}: the text encoder's configuration is not a JSON object.")
    return checked_fields(BertFields, config, where, "text_config.")


def make_bert_config(config: object, where: str = "config.json") -> BertConfig:
    """Turn ``config.json`` of a BERT or CXR-BERT into transformers' configuration.

    Raises:
        UserError: see `bert_fields`.
    """
    from transformers import BertConfig

    return BertConfig(**bert_fields(config, where).arguments())


def check_room(model: nn.Module, weights: Path, where: object) -> None:
    """Refuse sizes that the file of weights cannot fill, before any memory is taken for them.

    Args:
        model: built on the ``meta`` device, which takes none.
        weights: the file.
        where: the file that the sizes are from.

    Raises:
        UserError: it has fewer bytes than the model has numbers.
    """
    numbers = sum(value.numel() for value in model.state_dict().values())
    size = weights.stat().st_size
    if numbers > size:
        raise UserError(
            f"{where}: its sizes need {numbers:,} numbers, and {weights.name} has {size:,} bytes;"
            " it is of another architecture."
        )
