"""Tokenizers of CLIP (byte pairs), SigLIP (SentencePiece's unigrams) and SigLIP 2 (Gemma's).

What the published processors do to a text before is kept in the file, as its normaliser.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from medclip_debias.errors import UserError, explained
from medclip_debias.files import read_bytes
from medclip_debias.models.checkpoint import need
from medclip_debias.models.limits import (
    MAX_TOKENIZER,
    PUNCTUATION,
    checked_tokenizer,
    read_model_json,
    read_tokenizer,
)
from medclip_debias.models.peers.settings import PeerSettings
from medclip_debias.models.text_encoder import FileTokenizer, SentenceTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START, END = "<|startoftext|>", "<|endoftext|>"
MERGES = 49152 - 256 - 2
Clean = Literal["canonical", "canonical_spaced", "lower"]
"""SigLIP's in transformers; in open_clip, where ``_`` becomes a blank first; SigLIP 2's."""
NO_TEXT = (
    "This model reads images alone and no sentences; use 'evaluate probe' (a linear probe and "
    "nearest neighbours of its image vectors)."
)


class ClipTokenizer(FileTokenizer):
    """Sentence to token ids between start and end; SigLIP's (`PieceTokenizer`) have no start."""

    starts: ClassVar[tuple[str, ...]] = (START,)
    ends: ClassVar[tuple[str, ...]] = (END,)
    pieces: ClassVar[bool] = False

    def __init__(self, tokenizer: Tokenizer, where: str = "tokenizer") -> None:
        super().__init__(tokenizer)
        vocabulary = tokenizer.get_vocab()
        end = next((token for token in self.ends if token in vocabulary), None)
        if end is None or not vocabulary.keys() >= set(self.starts):
            wanted = ", ".join([*self.starts, " or ".join(self.ends)])
            raise UserError(f"{where}: its vocabulary lacks {wanted}; it is another tokenizer.")
        self._start = [vocabulary[token] for token in self.starts]
        self.end_id = vocabulary[end]
        self.pad_id = 0
        if self.pieces:
            # SigLIP fills up with its end token though its vocabulary has <pad>; SigLIP 2 does not.
            self.pad_id = vocabulary.get("<pad>", self.end_id) if end == "<eos>" else self.end_id

    @classmethod
    def load(cls, folder: Path) -> ClipTokenizer:
        path = folder / "tokenizer.json"
        return cls(read_tokenizer(path, pieces=cls.pieces), str(path))

    def encode(self, sentences: Sequence[str], max_tokens: int) -> list[list[int]]:
        """Token ids of each sentence, start and end included, cut to ``max_tokens``."""
        rows = self._tokenizer.encode_batch(list(sentences), add_special_tokens=False)
        most = max_tokens - len(self._start) - 1
        return [[*self._start, *row.ids[:most], self.end_id] for row in rows]

    @classmethod
    def from_merges(cls, path: Path) -> ClipTokenizer:
        """Build CLIP's from ``bpe_simple_vocab_16e6.txt.gz`` (or the unpacked text)."""
        from transformers import CLIPTokenizer
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        damaged = (OSError, ValueError, EOFError, zlib.error)
        with explained(f"{path}: cannot be read as CLIP's merges file", *damaged):
            content = read_bytes(path, "give bpe_simple_vocab_16e6.txt.gz", limit=MAX_TOKENIZER)
            if content[:2] == b"\x1f\x8b":
                content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MAX_TOKENIZER)
            text = content.decode()
        lines = [line.split() for line in text.split("\n")[1 : MERGES + 1]]
        merges: list[Any] = [(pair[0], pair[1]) for pair in lines if len(pair) == 2]
        if len(merges) < MERGES:
            raise UserError(
                f"{path}: is not CLIP's merges file; give bpe_simple_vocab_16e6.txt.gz."
            )
        letters = list(bytes_to_unicode().values())
        words = [*letters, *(letter + "</w>" for letter in letters)]
        words += ["".join(pair) for pair in merges]
        vocabulary = {word: number for number, word in enumerate([*words, START, END])}
        return cls(CLIPTokenizer(vocab=vocabulary, merges=merges).backend_tokenizer)


class PieceTokenizer(ClipTokenizer):
    """SigLIP's and SigLIP 2's: no token at the start, the end token behind."""

    starts: ClassVar[tuple[str, ...]] = ()
    ends: ClassVar[tuple[str, ...]] = ("</s>", "<eos>")
    pieces: ClassVar[bool] = True


class NoTokenizer:
    """In the place of a tokenizer, where a model reads images alone."""

    size: ClassVar[int] = 0

    def encode(self, sentences: Sequence[str], _: int) -> list[list[int]]:
        if sentences:
            raise UserError(NO_TEXT)
        return []

    def pad(self, _: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        raise UserError(NO_TEXT)

    def save(self, folder: Path) -> None:
        """Nothing is written."""


PeerTokenizer = SentenceTokenizer | ClipTokenizer | NoTokenizer


def saved_tokenizer(settings: PeerSettings, folder: Path) -> PeerTokenizer:
    """The tokenizer of a peer's folder."""
    text = settings.text
    if text.kind == "none":
        return NoTokenizer()
    need(folder, "tokenizer.json")
    if text.kind in ("open_clip", "hf_clip"):
        return (PieceTokenizer if text.pieces else ClipTokenizer).load(folder)
    return SentenceTokenizer.load(folder)


def read_pieces(folder: Path, clean: Clean | None = None) -> PieceTokenizer:
    """The tokenizer of a SigLIP folder."""
    fast, pieces = folder / "tokenizer.json", folder / "spiece.model"
    where = str(fast if fast.is_file() else pieces)
    if fast.is_file():
        content = json.loads(read_tokenizer(fast, pieces=True).to_str())
    elif pieces.is_file():
        content = json.loads(_unigrams(pieces).to_str())
    else:
        raise UserError(f"{folder}: holds no tokenizer: neither tokenizer.json nor spiece.model.")
    if content["model"]["type"] not in ("Unigram", "BPE"):
        raise UserError(
            f"{where}: is not a tokenizer of SigLIP (unigrams) or SigLIP 2 (byte pairs)."
        )
    chosen = clean or ("canonical" if content["model"]["type"] == "Unigram" else "lower")
    steps: list[dict[str, Any]] = [{"type": "Lowercase"}]
    if chosen != "lower":
        steps += [_replace({"Regex": PUNCTUATION}, ""), _replace({"Regex": r"\s+"}, " ")]
        steps += [{"type": "Strip", "strip_left": True, "strip_right": True}]
    if chosen == "canonical_spaced":
        steps = [_replace({"String": "_"}, " "), *steps]
    steps += _steps(content.get("normalizer"))
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    made = checked_tokenizer(content, where, pieces=True)
    tokenizer = PieceTokenizer(made, where)
    pad = read_model_json(folder / "tokenizer_config.json").get("pad_token")
    pad = pad.get("content") if isinstance(pad, dict) else pad
    number = made.token_to_id(pad) if isinstance(pad, str) else None
    tokenizer.pad_id = tokenizer.pad_id if number is None else number
    return tokenizer


def _steps(normalizer: Any) -> list[Any]:
    if normalizer is None:
        return []
    if normalizer["type"] == "Sequence":
        return [step for part in normalizer["normalizers"] for step in _steps(part)]
    return [normalizer]


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _unigrams(path: Path) -> Tokenizer:
    """A SentencePiece file as its fast form."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers.utils.sentencepiece_model_pb2_new import ModelProto

    content = read_bytes(path, "copy the model folder again", limit=MAX_TOKENIZER)
    with explained(f"{path}: cannot be read as a SentencePiece model", Exception):
        proto = ModelProto.FromString(content)
    kind, rules, unknown = proto.trainer_spec.model_type, proto.normalizer_spec, 2
    if kind != 1:
        raise UserError(
            f"{path}: holds no unigrams (its model type is {kind}); give the folder's "
            "tokenizer.json."
        )
    numbers = [number for number, piece in enumerate(proto.pieces) if piece.type == unknown]
    with explained(f"{path}: cannot be read as a SentencePiece model", Exception):
        vocabulary = [(piece.piece, piece.score) for piece in proto.pieces]
        made = Tokenizer(models.Unigram(vocabulary, unk_id=numbers[-1], byte_fallback=False))
        steps: list[Any] = []
        if rules.precompiled_charsmap:
            steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
        steps.append(normalizers.Replace(Regex(r" {2,}"), " "))
        made.normalizer = normalizers.Sequence(steps)
        scheme: Literal["always", "never"] = "always" if rules.add_dummy_prefix else "never"
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=True)
    return made
