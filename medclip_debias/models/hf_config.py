"""Configurations of transformers' networks in a stranger's file: checked, then built.

What reaches transformers are the fields that its own configuration of the model type has, within
limits of size. Published files hold more, most of which changes no number (``architectures``,
``torch_dtype``, ``auto_map`` ...) and is left aside. A field that would change what is computed, or
by which code, is refused.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.errors import UserError, explained

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu", "silu", "swish")
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
_LIMITS = (
    (r"layers|depth|blocks|queries", 256),
    (r"heads|type_vocab|registers|patch", 1024),
    (r"vocab_size|_id$", 2_000_000),
    (r"position|intermediate|attention$", 131_072),
    (r"prob|dropout|drop_path|eps", 1),
    (r"theta", 10**12),
)
_WIDEST = 16_384
_AT_LEAST_ONE = re.compile(r"size|heads|layers|embeddings|ratio|channels")
_IDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
"""Which a sentence encoder never reads; their defaults are of the published vocabulary."""
_OLDER = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
"""What earlier ModernBERT files say in the place of two lists; transformers reads them still."""
_UNREAD = re.compile(r"^_|^use_cache$|classifier|decoder|cross_attention|sparse|deterministic")


@dataclass(frozen=True)
class Family:
    """How the text encoders of one ``model_type`` are read.

    Attributes:
        model_type: transformers' own.
        prefix: of the encoder's tensors in a file that holds heads as well.
        layers: path of its list of layers.
        pooler: whether the class takes ``add_pooling_layer``.
        counts_from_padding: whether the number of the padding token decides about positions.
    """

    model_type: str
    prefix: str
    layers: str = "encoder.layer"
    pooler: bool = True
    counts_from_padding: bool = False


FAMILIES: Mapping[str, Family] = {
    "bert": Family("bert", "bert."),
    "cxr-bert": Family("bert", "bert."),
    "roberta": Family("roberta", "roberta.", counts_from_padding=True),
    "mpnet": Family("mpnet", "mpnet.", counts_from_padding=True),
    "modernbert": Family("modernbert", "model.", "layers", pooler=False),
}
"""Text encoders by the ``model_type`` of their configuration."""

_HEADS = re.compile(
    r"^(\w+\.)?(pooler|classifier|cls|lm_head|head|decoder|cls_projection_head|qa_outputs)\."
    r"|(^|\.)embeddings\.position_ids$"
)
"""Tensors of published files that no sentence's vector is computed from."""


def family_of(config: object, where: str) -> Family:
    """The family of a ``config.json``; one that does not say is a BERT."""
    if not isinstance(config, Mapping):
        raise UserError(f"{where}: the text encoder's configuration is not a JSON object.")
    kind = config.get("model_type", "bert")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(
            f"{where}: model_type is {kind!r}; text encoders that can be read: "
            f"{', '.join(FAMILIES)}."
        )
    return FAMILIES[kind]


def text_config(config: object, where: str = "config.json") -> PretrainedConfig:
    """transformers' configuration of a text encoder of one of the `FAMILIES`."""
    family = family_of(config, where)
    assert isinstance(config, Mapping)
    return hf_config({**config, "model_type": family.model_type}, where, "text_config.")


def hf_config(config: object, where: str, prefix: str) -> PretrainedConfig:
    """transformers' configuration of what ``model_type`` names.

    Args:
        config: content of a ``config.json``.
        where: its file, for messages.
        prefix: dotted place of the fields, for messages.
    """
    from transformers import AutoConfig, PretrainedConfig

    if not isinstance(config, Mapping):
        raise UserError(f"{where}: the encoder's configuration is not a JSON object.")
    usual = AutoConfig.for_model(str(config["model_type"]))
    base = {field.name for field in dataclasses.fields(PretrainedConfig)}
    known = {f.name for f in dataclasses.fields(usual)} - base
    defaults = {name: getattr(usual, name) for name in known if not _UNREAD.search(name)}
    unset = dict.fromkeys(name for name in _IDS if defaults.pop(name, None) is not None)
    read = {**defaults, "projection_size": 0, **dict.fromkeys(_OLDER, 1)}
    for name, value in config.items():
        if _changes_code(name, value):
            raise UserError(
                f"{where}: the field '{name}' changes how the model is computed, and is not read;"
                " remove it if the model does not need it."
            )
        if name in read and (reason := _wrong(name, value, read[name])):
            raise UserError(f"{where}: the field '{prefix}{name}' is wrong: {reason}.")
    fields = {k: v for k, v in config.items() if k in defaults or k in _OLDER}
    sentence = f"{where}: {prefix.rstrip('.') or 'this'} is no configuration of {usual.model_type}"
    with explained(sentence, Exception):
        made = AutoConfig.for_model(usual.model_type, **fields, **unset)
    width, heads = (getattr(made, name, 0) for name in ("hidden_size", "num_attention_heads"))
    if isinstance(heads, int) and heads and width % heads:
        raise UserError(f"{where}: in {prefix}: num_attention_heads must divide hidden_size.")
    pad = getattr(made, "pad_token_id", None)
    if pad is not None and pad >= getattr(made, "vocab_size", pad + 1):
        raise UserError(f"{where}: in {prefix}: pad_token_id must be below vocab_size.")
    return made


def within_limits(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` of any library, if none of its sizes is absurd and it names no other code.

    Raises:
        ValueError: saying which field.
    """
    pairs = list(config.items())
    for name, value in pairs:
        if isinstance(value, dict):
            pairs += value.items()
        if _changes_code(name, value):
            raise ValueError(f"'{name}' changes how the model is computed, and is not read")
        if reason := _wrong(name, value, value):
            raise ValueError(f"'{name}': {reason}")
    return config


def _changes_code(name: str, value: Any) -> bool:
    implementation = name.strip("_").startswith("attn_implementation") and value
    return bool(implementation) or (name in _USUAL and value not in _USUAL[name])


def _wrong(name: str, value: Any, usual: Any) -> str | None:
    """Why a field has no value that a network can be built with; None where it may."""
    if isinstance(value, Mapping):
        if value.get("rope_type", "default") != "default":
            return "only the plain rotation is read"
        return next((why for k, v in value.items() if (why := _wrong(k, v, v))), None)
    if name.endswith("_act") or name.endswith("_activation"):
        return None if value in ACTIVATIONS else f"known are {', '.join(ACTIVATIONS)}"
    number = isinstance(usual, int | float) and not isinstance(usual, bool)
    if number and value is not None and not isinstance(value, int | float):
        return "it is no number"
    if isinstance(usual, int) and isinstance(value, float) and value != int(value):
        return "it is no whole number"
    numbers = value if isinstance(value, list | tuple) else [value]
    limit = next((most for part, most in _LIMITS if re.search(part, name)), _WIDEST)
    least = 1 if _AT_LEAST_ONE.search(name) and not name.startswith("projection") else 0
    for one in numbers[:1024]:
        if isinstance(one, int | float) and not isinstance(one, bool) and not least <= one <= limit:
            return f"it is not from {least} to {limit:,}"
    return "it has too many values" if len(numbers) > 1024 else None


def encoder_tensors(state: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The encoder's own tensors among those of a published file, under its own names.

    Heads and position numbers are left out by name (`_HEADS`), anything else is kept, so that a
    strict import can refuse it. Files converted from TensorFlow call a norm's weights gamma, beta.
    """
    # A whole model's file has the prefix; some bare encoders have a module of the same name.
    inside = [key for key in state if key.startswith(family.prefix)]
    tensors = {}
    for key, value in state.items():
        if _HEADS.search(key.removeprefix(family.prefix)) or _HEADS.search(key):
            continue
        name = key.removeprefix(family.prefix) if inside else key
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        tensors[name.replace("LayerNorm.beta", "LayerNorm.bias")] = value
    return tensors


def check_room(model: nn.Module, weights: Path, where: object) -> None:
    """Refuse sizes that the file of weights cannot fill, before any memory is taken for them.

    Args:
        model: built on the ``meta`` device, which takes none.
        weights: the file.
        where: the file that the sizes are from.
    """
    numbers = sum(value.numel() for value in model.state_dict().values())
    size = weights.stat().st_size
    if numbers > size:
        raise UserError(
            f"{where}: its sizes need {numbers:,} numbers, and {weights.name} has {size:,} bytes;"
            " it is of another architecture."
        )
