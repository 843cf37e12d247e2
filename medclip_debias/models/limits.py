"""What a stranger's model folder may hold: sizes of networks, fields, parts of tokenizers.

Nothing of a folder is run, but sizes alone can take all memory, and a ``tokenizer.json`` is a small
language: replacements may make a word a gigabyte, patterns may take years on one sentence. So sizes
have limits far above every published model, and every part of a tokenizer is on a list.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.errors import UserError, explained
from medclip_debias.files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig

MAX_JSON, MAX_TOKENIZER = 16 << 20, 64 << 20


def read_model_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a model folder; a missing file is an empty one."""
    if not path.is_file():
        return {}
    return read_json(path, "copy the model folder again", limit=MAX_JSON)


# --------------------------------------------------------------------------- networks' settings

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
_WIDEST, _LONGEST_LIST = 16_384, 1024
_AT_LEAST_ONE = re.compile(r"size|heads|layers|embeddings|ratio|channels")


def within_limits(config: dict[str, Any]) -> dict[str, Any]:
    """``config`` of any library, if none of its sizes is absurd and it names no other code."""
    pairs = list(config.items())
    for name, value in pairs:
        if isinstance(value, dict):
            pairs += value.items()
        if _changes_code(name, value):
            raise ValueError(f"'{name}' changes how the model is computed, and is not supported")
        if reason := _wrong_value(name, value):
            raise ValueError(f"'{name}': {reason}")
    return config


def _changes_code(name: str, value: Any) -> bool:
    """Whether a field changes what is computed, or by which code."""
    implementation = name.strip("_").startswith("attn_implementation") and value
    return bool(implementation) or (name in _USUAL and value not in _USUAL[name])


def _wrong_value(name: str, value: Any) -> str | None:
    """Why a field has no value that a network may be built with; None where it may."""
    if isinstance(value, Mapping):
        if value.get("rope_type", "default") != "default":
            return "only the plain rotation is read"
        return next((why for k, v in value.items() if (why := _wrong_value(k, v))), None)
    if name.endswith(("_act", "_activation")):
        return None if value in ACTIVATIONS else f"known are {', '.join(ACTIVATIONS)}"
    numbers = value if isinstance(value, list | tuple) else [value]
    if len(numbers) > _LONGEST_LIST:
        return "it has too many values"
    most = next((most for part, most in _LIMITS if re.search(part, name)), _WIDEST)
    least = 1 if _AT_LEAST_ONE.search(name) and not name.startswith("projection") else 0
    for number in numbers:
        real = isinstance(number, int | float) and not isinstance(number, bool)
        if real and not least <= number <= most:
            return f"it is not from {least} to {most:,}"
    return None


_IDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
"""Which a sentence encoder never reads; their defaults are of the published vocabulary."""
_OLDER = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
"""What earlier ModernBERT files say in the place of two lists; transformers reads them still."""
_UNREAD = re.compile(r"^_|^use_cache$|classifier|decoder|cross_attention|sparse|deterministic")


def hf_config(config: object, where: str, prefix: str) -> PretrainedConfig:
    """transformers' configuration of what ``model_type`` names, within limits.

    Fields that transformers' own class does not have (``architectures``, ``auto_map`` ...) are left
    aside; one that would change what is computed, or by which code, is refused.
    """
    from transformers import AutoConfig, PretrainedConfig

    if not isinstance(config, Mapping):
        raise UserError(f"{where}: the encoder's configuration is not a JSON object.")
    usual = AutoConfig.for_model(str(config["model_type"]))
    base = {field.name for field in dataclasses.fields(PretrainedConfig)}
    known = {field.name for field in dataclasses.fields(usual)} - base
    known = {name for name in known if not _UNREAD.search(name)}
    unset = {name: None for name in _IDS if name in known and getattr(usual, name) is not None}
    read = (known - unset.keys()) | set(_OLDER)
    for name, value in config.items():
        if _changes_code(name, value):
            raise UserError(
                f"{where}: the field '{name}' changes how the model is computed, and is not"
                " supported; remove it if the model does not need it."
            )
        reason = _wrong_value(name, value) if name in {*read, "projection_size"} else None
        number = isinstance(getattr(usual, name, None), int | float)
        if name in known and number and isinstance(value, str):
            reason = "it is not a number"
        if reason:
            raise UserError(f"{where}: the field '{prefix}{name}' is wrong: {reason}.")
    fields = {name: value for name, value in config.items() if name in read}
    sentence = (
        f"{where}: {prefix.rstrip('.') or 'this'} is not a configuration of {usual.model_type}"
    )
    with explained(sentence, Exception):
        sizes = AutoConfig.for_model(usual.model_type, **fields, **unset)
    width, heads = (getattr(sizes, name, 0) for name in ("hidden_size", "num_attention_heads"))
    if isinstance(heads, int) and heads and width % heads:
        raise UserError(f"{where}: in {prefix}: num_attention_heads must divide hidden_size.")
    pad = getattr(sizes, "pad_token_id", None)
    if pad is not None and pad >= getattr(sizes, "vocab_size", pad + 1):
        raise UserError(f"{where}: in {prefix}: pad_token_id must be below vocab_size.")
    return sizes


# ----------------------------------------------------------------------------------- tokenizers

CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
"""CLIP's words (openai/CLIP, simple_tokenizer.py)."""
_CLIP_MARKS = rf"<\|startoftext\|>|<\|endoftext\|>|{CLIP_WORDS}"
PUNCTUATION = r"[!-/:-@\[-`{-~]"
"""ASCII's, which SigLIP's processors take out."""
_PATTERNS = (r"\s+", r" {2,}", CLIP_WORDS, _CLIP_MARKS, PUNCTUATION)
_MAX_ADDED = 10_000
_LONGEST = 100  # characters of a prefix, a suffix, an added token

_PARTS: Mapping[str, tuple[str, str, str]] = {
    "normalizer": (
        "normalizers",
        "BertNormalizer Lowercase NFC NFD NFKC NFKD Replace Strip StripAccents",
        "Precompiled",
    ),
    "pre_tokenizer": (
        "pretokenizers",
        "BertPreTokenizer ByteLevel Split Whitespace WhitespaceSplit",
        "Metaspace",
    ),
    "post_processor": (
        "processors",
        "BertProcessing ByteLevel RobertaProcessing TemplateProcessing",
        "",
    ),
    "decoder": (
        "decoders",
        "BPEDecoder ByteLevel WordPiece",
        "ByteFallback Fuse Metaspace Replace Strip",
    ),
    "model": ("", "BPE WordPiece", "Unigram"),
}
"""What a sequence of steps of a part is called, the known kinds, and SentencePiece's besides."""


def read_tokenizer(path: Path, *, pieces: bool = False) -> Tokenizer:
    """Read ``tokenizer.json``; with ``pieces`` it may be SentencePiece's, too."""
    content = read_json(path, "this is not a tokenizer file", limit=MAX_TOKENIZER)
    return checked_tokenizer(content, path, pieces=pieces)


def checked_tokenizer(content: dict[str, Any], where: object, *, pieces: bool = False) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``'s content, if every part is on the list."""
    from tokenizers import Tokenizer

    with explained(f"{where}: this is not a tokenizer file", Exception):
        problem = next(_problems(content, pieces), None)
    if problem:
        raise UserError(
            f"{where}: {problem}, which the tokenizers of BERT, CLIP and SigLIP do not have; it is "
            "not read."
        )
    with explained(f"{where}: this is not a tokenizer file", Exception):
        return Tokenizer.from_str(json.dumps(content))  # what was looked at


def _problems(content: dict[str, Any], pieces: bool) -> Iterator[str]:
    """What is not on the list; any exception means that the file is none of this format."""
    for place, (sequence, kinds, of_pieces) in _PARTS.items():
        known = [*kinds.split(), *(of_pieces.split() if pieces else ())]
        part = content["model"] if place == "model" else content.get(place)
        steps: list[Any] = [part] if part is not None or place == "model" else []
        for _ in range(2):  # sequences of sequences, but no deeper ones
            inner = [step[sequence] if _kind(step) == "Sequence" else [step] for step in steps]
            steps = [step for several in inner for step in several]
        if len(steps) > 16:
            yield f"has {len(steps)} steps in its {place}"
        for step in steps:
            kind = _kind(step)
            if kind not in known:
                yield f"has a {place} of another type than {', '.join(known)}"
            elif kind in _HARMLESS and not _HARMLESS[kind](step):
                yield f"has a {place} ({kind}) with settings"
    added = content.get("added_tokens") or []
    if len(added) > _MAX_ADDED or any(len(token["content"]) > _LONGEST for token in added):
        yield "holds too many or too long added tokens"


def _kind(step: Any) -> str:
    return str(step.get("type", "WordPiece"))  # older files do not say it of their model


def _no_growth(part: Any) -> bool:
    """A replacement by no more than it replaces."""
    ((kind, pattern),) = part["pattern"].items()
    content = part["content"]
    if kind == "Regex":
        return pattern in _PATTERNS and len(content) <= 1
    return bool(kind == "String" and pattern and len(content) <= len(pattern) <= _LONGEST)


def _known_pattern(part: Any) -> bool:
    ((kind, pattern),) = part["pattern"].items()
    return bool(pattern in _PATTERNS if kind == "Regex" else pattern)


def _short_template(part: Any) -> bool:
    ids = part["special_tokens"].values()
    short = all(len(one["ids"]) <= 4 and len(one["tokens"]) <= 4 for one in ids)
    return short and len(part["single"]) <= 8 and len(part["pair"]) <= 8


def _short_affixes(part: Any) -> bool:
    affixes = (part.get("continuing_subword_prefix"), part.get("end_of_word_suffix"))
    short = all(len(affix or "") <= _LONGEST for affix in affixes)
    return short and int(part.get("max_input_chars_per_word", 100)) <= 1000


def _short_rows(part: Any) -> bool:
    """SentencePiece's table of characters: no replacement longer than a few letters."""
    table = base64.b64decode(part["precompiled_charsmap"])
    trie = int.from_bytes(table[:4], "little")
    return max((len(row) for row in table[4 + trie :].split(b"\0")), default=0) <= _LONGEST


_HARMLESS: Mapping[str, Callable[[Any], bool]] = {
    "Replace": _no_growth,
    "Split": _known_pattern,
    "TemplateProcessing": _short_template,
    "WordPiece": _short_affixes,
    "BPE": lambda part: part.get("dropout") is None and _short_affixes(part),
    "Precompiled": _short_rows,
    "Metaspace": lambda part: len(part["replacement"]) == 1,
    "Unigram": lambda part: 0 <= int(part["unk_id"]) < len(part["vocab"]),
}
"""Whether the settings of a part are harmless, where it has some that may not be."""
