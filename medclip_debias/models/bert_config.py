"""``config.json`` of a BERT or CXR-BERT: the fields that are read, checked; nothing else is.

What reaches transformers are the fields of `BertFields` alone. Published files hold more, most of
which changes no number (``architectures``, ``transformers_version``, ``auto_map`` ...) and is left
aside. A field that would change what is computed, or by which code, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    from torch import nn
    from transformers import BertConfig

_USUAL: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", None),
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "pruned_heads": ({}, [], None),
    "quantization_config": (None,),
}
"""Fields that change what is computed, and the values that do not."""


class BertFields(Settings):
    """The fields that are read, with BERT's own defaults and with limits of size."""

    vocab_size: int = Field(30522, ge=1, le=2_000_000)
    hidden_size: int = Field(768, ge=1, le=16_384)
    num_hidden_layers: int = Field(12, ge=1, le=256)
    num_attention_heads: int = Field(12, ge=1, le=1024)
    intermediate_size: int = Field(3072, ge=1, le=131_072)
    hidden_act: Literal["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish"] = "gelu"
    hidden_dropout_prob: float = Field(0.1, ge=0, le=1)
    attention_probs_dropout_prob: float = Field(0.1, ge=0, le=1)
    max_position_embeddings: int = Field(512, ge=1, le=65_536)
    type_vocab_size: int = Field(2, ge=1, le=1024)
    initializer_range: float = Field(0.02, ge=0, le=10)
    layer_norm_eps: float = Field(1e-12, ge=0, le=1)
    pad_token_id: int | None = Field(0, ge=0)
    tie_word_embeddings: bool = True
    projection_size: int | None = Field(None, ge=0, le=16_384)

    @model_validator(mode="after")
    def _fit(self) -> BertFields:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError("num_attention_heads must divide hidden_size")
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError("pad_token_id must be below vocab_size")
        return self


def bert_fields(config: object, where: str) -> BertFields:
    """The checked fields of ``config``; ``where`` names its file for the message.

    Raises:
        UserError: it is no JSON object, a field is of absurd size or wrong type, or one is there
            that would change what is computed.
    """
    if not isinstance(config, Mapping):
        raise UserError(f"{where}: the text encoder's configuration is not a JSON object.")
    for name, value in config.items():
        implementation = str(name).strip("_").startswith("attn_implementation") and value
        if implementation or (name in _USUAL and value not in _USUAL[name]):
            raise UserError(
                f"{where}: the field '{name}' changes how the model is computed, and is not read;"
                " remove it if the model does not need it."
            )
    known = {key: value for key, value in config.items() if key in BertFields.model_fields}
    return validate(BertFields, known, where, "text_config.")


def make_bert_config(config: object, where: str = "config.json") -> BertConfig:
    """Turn ``config.json`` of a BERT or CXR-BERT into transformers' configuration.

    Raises:
        UserError: see `bert_fields`.
    """
    from transformers import BertConfig

    return BertConfig(**bert_fields(config, where).model_dump(exclude={"projection_size"}))


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
