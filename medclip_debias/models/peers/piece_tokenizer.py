"""Tokenizers of SigLIP and SigLIP 2: SentencePiece's unigrams, and Gemma's byte pairs.

From ``tokenizer.json``, or for unigrams from ``spiece.model``, which is read here without the
sentencepiece library. What the published processors do to a text before (lower case, and for
SigLIP no punctuation) is stored in the tokenizer's own file, as its normaliser.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from medclip_debias.errors import UserError, explained
from medclip_debias.files import read_bytes, read_json
from medclip_debias.models.tokenizer_file import (
    MAX_BYTES,
    PUNCTUATION,
    check_parts,
    padded,
    read_tokenizer,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Clean = Literal["canonical", "canonical_spaced", "lower"]
"""SigLIP's in transformers; in open_clip, where ``_`` becomes a blank first; SigLIP 2's."""
ENDS = ("</s>", "<eos>")


class PieceTokenizer:
    """Sentence to token ids with the end token behind, at most ``max_tokens`` with it."""

    def __init__(self, tokenizer: Tokenizer, where: str = "tokenizer") -> None:
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()
        vocabulary = tokenizer.get_vocab()
        end = next((token for token in ENDS if token in vocabulary), None)
        if end is None:
            raise UserError(f"{where}: the vocabulary has neither of the end tokens </s>, <eos>.")
        self.end_id = int(vocabulary[end])
        # SigLIP fills up with its end token though its vocabulary has <pad>; SigLIP 2 does not.
        self.pad_id = int(vocabulary.get("<pad>", self.end_id)) if end == "<eos>" else self.end_id

    @classmethod
    def load(cls, folder: Path) -> PieceTokenizer:
        """Read ``tokenizer.json`` of a peer's folder."""
        path = folder / "tokenizer.json"
        return cls(read_tokenizer(path, pieces=True), str(path))

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, sentences: Sequence[str], max_tokens: int) -> list[list[int]]:
        """Token ids of each sentence, the end token included, cut to ``max_tokens``."""
        found = self._tokenizer.encode_batch(list(sentences), add_special_tokens=False)
        return [[*row.ids[: max_tokens - 1], self.end_id] for row in found]

    def pad(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and mask, both ``[T, L]``, padded as published."""
        return padded(ids, self.pad_id)

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json``."""
        self._tokenizer.save(str(folder / "tokenizer.json"))


def read_pieces(folder: Path, clean: Clean | None = None) -> PieceTokenizer:
    """The tokenizer of a SigLIP folder.

    Args:
        folder: with ``tokenizer.json``, or ``spiece.model``.
        clean: what is done to a text first; None is what transformers does: `canonical` for
            unigrams (SigLIP) and `lower` for byte pairs (SigLIP 2).

    Raises:
        UserError: there is neither file, or it is damaged or of another kind.
    """
    from tokenizers import Tokenizer

    fast, pieces = folder / "tokenizer.json", folder / "spiece.model"
    if fast.is_file():
        content = json.loads(read_tokenizer(fast, pieces=True).to_str())
    elif pieces.is_file():
        content = json.loads(_unigrams(pieces).to_str())
    else:
        raise UserError(f"{folder}: holds no tokenizer: neither tokenizer.json nor spiece.model.")
    where = str(fast if fast.is_file() else pieces)
    if content["model"]["type"] not in ("Unigram", "BPE"):
        raise UserError(f"{where}: is no tokenizer of SigLIP (unigrams) or SigLIP 2 (byte pairs).")
    chosen = clean or ("canonical" if content["model"]["type"] == "Unigram" else "lower")
    content["normalizer"] = {
        "type": "Sequence",
        "normalizers": [*_cleaning(chosen), *_steps(content.get("normalizer"))],
    }
    check_parts(content, where, pieces=True)
    with explained(f"{where}: this is not a tokenizer file", Exception):
        made = Tokenizer.from_str(json.dumps(content))
    found = PieceTokenizer(made, where)
    config = folder / "tokenizer_config.json"
    if config.is_file():
        pad: Any = read_json(config, "copy the model folder again", limit=MAX_BYTES)
        pad = pad.get("pad_token")
        pad = pad.get("content") if isinstance(pad, dict) else pad
        number = made.token_to_id(pad) if isinstance(pad, str) else None
        found.pad_id = found.pad_id if number is None else number
    return found


def _steps(normalizer: Any) -> list[Any]:
    if normalizer is None:
        return []
    if normalizer["type"] == "Sequence":
        return [step for part in normalizer["normalizers"] for step in _steps(part)]
    return [normalizer]


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _cleaning(clean: Clean) -> list[dict[str, Any]]:
    lower: dict[str, Any] = {"type": "Lowercase"}
    if clean == "lower":
        return [lower]
    blanks = _replace({"Regex": r"\s+"}, " ")
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    first = [_replace({"String": "_"}, " ")] if clean == "canonical_spaced" else []
    return [*first, lower, _replace({"Regex": PUNCTUATION}, ""), blanks, strip]


# -------------------------------------------------------------------------------- spiece.model


def _unigrams(path: Path) -> Tokenizer:
    """SentencePiece's ``ModelProto`` (sentencepiece_model.proto), as its fast form."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    content = read_bytes(path, "copy the model folder again", limit=MAX_BYTES)
    vocabulary: list[tuple[str, float]] = []
    unknown, kind, charsmap, prefix = 0, 1, b"", True
    with explained(f"{path}: cannot be read as a SentencePiece model", Exception):
        for number, value in _fields(content):
            if number == 1:
                piece = dict(_fields(value))
                score = struct.unpack("<f", piece.get(2, b"\0\0\0\0"))[0]
                if piece.get(3) == 2:
                    unknown = len(vocabulary)
                vocabulary.append((piece[1].decode("utf-8"), score))
            elif number == 2:
                kind = dict(_fields(value)).get(3, 1)
            elif number == 3:
                rules = dict(_fields(value))
                charsmap, prefix = rules.get(2, b""), bool(rules.get(3, 1))
    if kind != 1:
        raise UserError(
            f"{path}: holds no unigrams (its model type is {kind}); give the folder's "
            "tokenizer.json."
        )
    with explained(f"{path}: cannot be read as a SentencePiece model", Exception):
        made = Tokenizer(models.Unigram(vocabulary, unk_id=unknown, byte_fallback=False))
        steps: list[Any] = [normalizers.Precompiled(charsmap)] if charsmap else []
        steps.append(normalizers.Replace(Regex(r" {2,}"), " "))
        made.normalizer = normalizers.Sequence(steps)
        scheme: Literal["always", "never"] = "always" if prefix else "never"
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    return made


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field of a protocol buffer: ints, or bytes of other kinds."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    while place < len(data):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, varint()
            continue
        length = {1: 8, 5: 4}[wire] if wire in (1, 5) else varint()
        if wire not in (1, 2, 5) or place + length > len(data):
            raise ValueError("damaged")
        yield number, data[place : place + length]
        place += length
