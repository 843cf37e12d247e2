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

_LISTS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
    "model": "",
}
"""Parts of the file, and what a sequence of steps is called in each."""
_KNOWN: Mapping[str, str] = {
    "normalizer": "BertNormalizer Lowercase NFC NFD NFKC NFKD Replace Strip StripAccents",
    "pre_tokenizer": "BertPreTokenizer ByteLevel Split Whitespace WhitespaceSplit",
    "post_processor": "BertProcessing ByteLevel RobertaProcessing TemplateProcessing",
    "decoder": "BPEDecoder ByteLevel WordPiece",
    "model": "BPE WordPiece",
}
_OF_PIECES: Mapping[str, str] = {
    "normalizer": "Precompiled",
    "pre_tokenizer": "Metaspace",
    "decoder": "ByteFallback Fuse Metaspace Replace Strip",
    "model": "Unigram",
}
"""What SentencePiece's have besides."""


class FileTokenizer:
    """A tokenizer of the library that is kept as ``tokenizer.json``.

    Attributes:
        pad_id: what sentences are filled up with.
    """

    pad_id: int

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    def pad(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, both ``[T, L]``, padded to the longest sentence."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        rows = [torch.tensor(row, dtype=torch.long) for row in ids]
        mask = [torch.ones(len(row), dtype=torch.long) for row in ids]
        return pad_sequence(rows, True, self.pad_id), pad_sequence(mask, True, 0)

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` into ``folder``."""
        self._tokenizer.save(str(folder / "tokenizer.json"))


def read_tokenizer(path: Path, *, pieces: bool = False) -> Tokenizer:
    """Read ``tokenizer.json``.

    Args:
        path: of the file.
        pieces: whether it may be SentencePiece's, too.
    """
    from tokenizers import Tokenizer

    content = read_json(path, "this is not a tokenizer file", limit=MAX_BYTES)
    check_parts(content, path, pieces=pieces)
    with explained(f"{path}: this is not a tokenizer file", Exception):
        return Tokenizer.from_str(json.dumps(content))  # what was looked at


def check_parts(content: dict[str, Any], where: object, *, pieces: bool = False) -> None:
    """Refuse content of a ``tokenizer.json`` with a part that is not on the list."""
    with explained(f"{where}: this is not a tokenizer file", Exception):
        problem = next(_problems(content, pieces), None)
    if problem:
        raise UserError(
            f"{where}: {problem}, which the tokenizers of BERT, CLIP and SigLIP do not have; it is "
            "not read."
        )


def _problems(content: dict[str, Any], pieces: bool) -> Iterator[str]:
    """What is not on the list; any exception means that the file is none of this format."""
    for place, kinds in _KNOWN.items():
        known = f"{kinds} {_OF_PIECES.get(place, '')}" if pieces else kinds
        part = content["model"] if place == "model" else content.get(place)
        yield from _of_part(place, part, known.split(), depth=0)
    added = content.get("added_tokens") or []
    if len(added) > _MAX_ADDED or any(len(token["content"]) > _LONGEST for token in added):
        yield "holds too many or too long added tokens"


def _of_part(place: str, part: Any, known: list[str], depth: int) -> Iterator[str]:
    if part is None and place != "model":
        return
    kind = part["type"] if place != "model" else part.get("type", "WordPiece")
    if kind == "Sequence" and depth < 2:
        steps = part[_LISTS[place]]
        if len(steps) > 16:
            yield f"has {len(steps)} steps in its {place}"
        for step in steps:
            yield from _of_part(place, step, known, depth + 1)
    elif kind not in known:
        yield f"has a {place} of another type than {', '.join(known)}"
    elif not _HARMLESS.get(kind, lambda _: True)(part):
        yield f"has a {place} ({kind}) with settings"


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
