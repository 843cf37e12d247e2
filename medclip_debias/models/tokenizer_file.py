"""``tokenizer.json``, read when it holds nothing but the parts of known tokenizers.

Those of BERT, CLIP and SigLIP (SentencePiece's unigrams, Gemma's byte pairs).

The format of the tokenizers library is a small language: replacements may make a word a gigabyte,
patterns may take years on one sentence. So every part is on a list, and patterns are known ones.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.errors import UserError, explained
from medclip_debias.files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

MAX_BYTES = 64 << 20
CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
"""CLIP's words (openai/CLIP, simple_tokenizer.py)."""
PUNCTUATION = r"[!-/:-@\[-`{-~]"
"""ASCII's, which SigLIP's processors take out."""
_PATTERNS = (r"\s+", r" {2,}", CLIP_WORDS, PUNCTUATION)
_MAX_ADDED = 10_000
_LONGEST = 100  # characters of a prefix, a suffix, an added token


def read_tokenizer(path: Path, *, pieces: bool = False) -> Tokenizer:
    """Read ``tokenizer.json``.

    Args:
        path: of the file.
        pieces: whether it may be SentencePiece's, too.

    Raises:
        UserError: it is damaged, too large, or holds a part that is not on the list (named).
    """
    from tokenizers import Tokenizer

    content = read_json(path, "this is not a tokenizer file", limit=MAX_BYTES)
    check_parts(content, path, pieces=pieces)
    with explained(f"{path}: this is not a tokenizer file", Exception):
        return Tokenizer.from_str(json.dumps(content))  # what was looked at


def check_parts(content: dict[str, Any], where: object, *, pieces: bool = False) -> None:
    """Refuse content of a ``tokenizer.json`` with a part that is not on the list.

    Raises:
        UserError: naming the part.
    """
    with explained(f"{where}: this is not a tokenizer file", Exception):
        problem = next(_problems(content, pieces), None)
    if problem:
        raise UserError(
            f"{where}: {problem}, which the tokenizers of BERT, CLIP and SigLIP do not have; it is "
            "not read."
        )


def _problems(content: dict[str, Any], pieces: bool) -> Iterator[str]:
    """What is not on the list; any exception means that the file is none of this format."""
    known = _KNOWN
    if pieces:
        known = {place: {**own, **_OF_PIECES.get(place, {})} for place, own in _KNOWN.items()}
    for place, own in known.items():
        yield from _parts(place, content["model"] if place == "model" else content.get(place), own)
    added = content.get("added_tokens") or []
    if len(added) > _MAX_ADDED or any(len(token["content"]) > _LONGEST for token in added):
        yield "holds too many or too long added tokens"


def _parts(
    place: str, part: Any, known: Mapping[str, Callable[[Any], bool]], depth: int = 0
) -> Iterator[str]:
    if part is None:
        return
    kind = part["type"] if place != "model" else part.get("type", "WordPiece")
    if kind == "Sequence" and depth < 2:
        inside = part[_LISTS[place]]
        if len(inside) > 16:
            yield f"has {len(inside)} steps in its {place}"
        for one in inside:
            yield from _parts(place, one, known, depth + 1)
    elif kind not in known:
        yield f"has a {place} of another type than {', '.join(known)}"
    elif not known[kind](part):
        yield f"has a {place} ({kind}) with settings"


def _always(_: Any) -> bool:
    return True


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


def _word_pieces(part: Any) -> bool:
    prefix = part.get("continuing_subword_prefix") or ""
    return len(prefix) <= _LONGEST and int(part.get("max_input_chars_per_word", 100)) <= 1000


def _byte_pairs(part: Any) -> bool:
    ends = (part.get("continuing_subword_prefix"), part.get("end_of_word_suffix"))
    return part.get("dropout") is None and all(len(end or "") <= _LONGEST for end in ends)


def _short_rows(part: Any) -> bool:
    """SentencePiece's table of characters: no replacement longer than a few letters."""
    table = base64.b64decode(part["precompiled_charsmap"])
    trie = int.from_bytes(table[:4], "little")
    return max((len(row) for row in table[4 + trie :].split(b"\0")), default=0) <= _LONGEST


def _unigram_rows(part: Any) -> bool:
    return 0 <= int(part["unk_id"]) < len(part["vocab"])


def _one_letter(part: Any) -> bool:
    return len(part["replacement"]) == 1


_LISTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
    "model": "",
}
_NORMALIZERS = {
    "BertNormalizer": _always,
    "Lowercase": _always,
    "NFC": _always,
    "NFD": _always,
    "NFKC": _always,
    "NFKD": _always,
    "Replace": _no_growth,
    "Strip": _always,
    "StripAccents": _always,
}
_SPLITTERS = {
    "BertPreTokenizer": _always,
    "ByteLevel": _always,
    "Split": _known_pattern,
    "Whitespace": _always,
    "WhitespaceSplit": _always,
}
_ENDS = {
    "BertProcessing": _always,
    "ByteLevel": _always,
    "RobertaProcessing": _always,
    "TemplateProcessing": _short_template,
}
_DECODERS = {"BPEDecoder": _always, "ByteLevel": _always, "WordPiece": _always}
_MODELS = {"BPE": _byte_pairs, "WordPiece": _word_pieces}
_KNOWN: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "normalizer": _NORMALIZERS,
    "pre_tokenizer": _SPLITTERS,
    "post_processor": _ENDS,
    "decoder": _DECODERS,
    "model": _MODELS,
}
_OF_PIECES: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "normalizer": {"Precompiled": _short_rows},
    "pre_tokenizer": {"Metaspace": _one_letter},
    "decoder": {
        "ByteFallback": _always,
        "Fuse": _always,
        "Metaspace": _one_letter,
        "Replace": _no_growth,
        "Strip": _always,
    },
    "model": {"Unigram": _unigram_rows},
}
"""What SentencePiece's have besides."""


def padded(ids: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, both ``[T, L]``, padded to the longest sentence."""
    import torch

    found = torch.full((len(ids), max(len(row) for row in ids)), pad, dtype=torch.long)
    mask = torch.zeros_like(found)
    for number, row in enumerate(ids):
        found[number, : len(row)] = torch.tensor(row)
        mask[number, : len(row)] = 1
    return found, mask
