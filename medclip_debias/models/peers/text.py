"""Text towers of the peers, and CLIP's tokenizer."""

from __future__ import annotations

import gzip
import html
import io
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from medclip_debias.errors import UserError, explained
from medclip_debias.files import read_bytes
from medclip_debias.models.hf_config import text_config
from medclip_debias.models.interface import Head
from medclip_debias.models.peers.settings import BertSettings, Kind
from medclip_debias.models.tokenizer_file import CLIP_WORDS, MAX_BYTES, padded, read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

START, END = "<|startoftext|>", "<|endoftext|>"
MERGES = 49152 - 256 - 2
NO_TEXT = (
    "This model reads images alone and no sentences; 'probe' is what it can do (a linear probe and "
    "nearest neighbours of its image vectors)."
)


class BertTower(nn.Module):
    """BERT and one vector of a sentence, computed as ``settings.pooling`` says."""

    def __init__(self, settings: BertSettings, dim: int) -> None:
        from transformers import BertModel

        super().__init__()
        self.pooling, self.token = settings.pooling, settings.token
        self.positions = settings.positions
        config = text_config(settings.config)
        self.bert = BertModel(config, add_pooling_layer=settings.token == "pooler")
        width = config.hidden_size
        match settings.pooling:
            case "three_layers":
                self.head: nn.Module = nn.Linear(width, dim, bias=False)
            case "mlp":
                self.head = nn.Sequential(
                    nn.Linear(width, settings.hidden, bias=False),
                    nn.GELU(),
                    nn.Linear(settings.hidden, dim, bias=False),
                )
            case "affine_mlp":
                self.head = nn.Sequential(
                    nn.Linear(width, settings.hidden), nn.GELU(), nn.Linear(settings.hidden, dim)
                )
            case "linear" | "affine":
                self.head = nn.Linear(width, dim, bias=settings.pooling == "affine")
            case _:
                self.head = nn.Identity()

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask ``[T, L]`` to ``[T, dim]``."""
        several = self.pooling in ("last4", "three_layers")
        out = self.bert(input_ids=ids, attention_mask=mask, output_hidden_states=several)
        if self.pooling == "three_layers":
            states = torch.stack([out.hidden_states[layer] for layer in (1, 2, -1)]).mean(dim=0)
            kept = mask[..., None].to(states)
            vectors: Tensor = self.head((states * kept).sum(dim=1) / kept.sum(dim=1))
            return vectors
        if self.pooling == "last4":
            # GLoRIA adds the pieces of a word, then takes the mean over words: but for the
            # length, which a cosine does not see, that is the sum over all tokens.
            states = torch.stack(out.hidden_states[-4:]).sum(dim=0)
            # AFLoc's vectors have their length: the mean is over all positions, most of them zero.
            count = self.positions or mask.sum(dim=1, keepdim=True)
            return (states * mask[..., None]).sum(dim=1) / count
        if self.token == "pooler":
            pooled = out.pooler_output
        elif self.token == "last":
            rows = torch.arange(len(ids), device=ids.device)
            pooled = out.last_hidden_state[rows, mask.sum(dim=1) - 1]
        elif self.token == "mean":
            kept = mask[..., None].to(out.last_hidden_state)
            pooled = (out.last_hidden_state * kept).sum(dim=1) / kept.sum(dim=1)
        else:
            pooled = out.last_hidden_state[:, 0]
        result: Tensor = self.head(pooled)
        return result

    @property
    def layers(self) -> list[nn.Module]:
        """The transformer's layers, the lowest first."""
        return list(self.bert.encoder.layer)

    @property
    def above(self) -> list[nn.Module]:
        """BERT's pooler, where the sentence's vector comes from it."""
        return [] if self.bert.pooler is None else [self.bert.pooler]

    @property
    def heads(self) -> list[Head]:
        """The map into the shared space."""
        return [self.head]


def words_only(sentence: str) -> str:
    """Lower-case words without enumeration, punctuation or other alphabets, as GLoRIA's code does.

    >>> words_only("1. Mild, left-sided effusion.")
    'mild left sided effusion'
    """
    words = re.findall(r"\w+", re.sub(r"[0-9]+\.", " ", sentence).lower())
    plain = [word.encode("ascii", "ignore").decode("ascii") for word in words]
    return " ".join(word for word in plain if word)


def repaired(sentence: str) -> str:
    """Broken Unicode, curly quotes and HTML's entities mended, as CLIP's and open_clip's code does.

    >>> repaired("No \u201clarge\u201d effusion &amp; no oedema")
    'No "large" effusion & no oedema'
    """
    import ftfy

    return html.unescape(html.unescape(ftfy.fix_text(sentence))).strip()


def without_end_marks(sentence: str) -> str:
    """Without the full stops, exclamation and question marks at its end, as hi-ml's code does.

    >>> without_end_marks("No pleural effusion.")
    'No pleural effusion'
    """
    return sentence.rstrip("!?.")


CLEANED: Mapping[Kind, Callable[[str], str]] = {
    "biovil": without_end_marks,
    "biovil_t": without_end_marks,
    "gloria": words_only,
    "afloc": words_only,
    "carzero": words_only,
    "mgca": words_only,
    "chexzero": repaired,
    "open_clip": repaired,
}
"""What the authors' code does to a text before it is cut into tokens; the others' does nothing."""


class ClipTokenizer:
    """CLIP's byte-pair encoding: lower case, at most ``context`` tokens, start and end added."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.start_id, self.end_id = map(self._number, (START, END))

    def _number(self, token: str) -> int:
        number = self._tokenizer.token_to_id(token)
        if number is None:
            raise KeyError(token)
        return int(number)

    @classmethod
    def from_merges(cls, path: Path) -> ClipTokenizer:
        """Build it from ``bpe_simple_vocab_16e6.txt.gz`` (or the unpacked text)."""
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

        damaged = (OSError, ValueError, EOFError, zlib.error)
        with explained(f"{path}: cannot be read as CLIP's merges file", *damaged):
            content = read_bytes(path, "give bpe_simple_vocab_16e6.txt.gz", limit=MAX_BYTES)
            if content[:2] == b"\x1f\x8b":
                content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(MAX_BYTES)
            text = content.decode()
        lines = [line.split() for line in text.split("\n")[1 : MERGES + 1]]
        merges = [(pair[0], pair[1]) for pair in lines if len(pair) == 2]
        if len(merges) < MERGES:
            raise UserError(
                f"{path}: is not CLIP's merges file; give bpe_simple_vocab_16e6.txt.gz."
            )
        letters = list(_byte_letters())
        words = [*letters, *(letter + "</w>" for letter in letters)]
        words += ["".join(pair) for pair in merges]
        vocabulary = {word: number for number, word in enumerate([*words, START, END])}
        made = Tokenizer(
            models.BPE(vocab=vocabulary, merges=merges, end_of_word_suffix="</w>", unk_token=END)
        )
        made.normalizer = normalizers.Sequence(
            [
                normalizers.NFC(),
                normalizers.Replace(Regex(r"\s+"), " "),
                normalizers.Lowercase(),
            ]
        )
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(CLIP_WORDS), behavior="removed", invert=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        return cls(made)

    @classmethod
    def load(cls, folder: Path) -> ClipTokenizer:
        """Read ``tokenizer.json``."""
        path = folder / "tokenizer.json"
        tokenizer = read_tokenizer(path)
        with explained(f"{path}: this is not a tokenizer of CLIP", KeyError):
            return cls(tokenizer)

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, sentences: Sequence[str], max_tokens: int) -> list[list[int]]:
        """Token ids of each sentence, start and end included, cut to ``max_tokens``."""
        found = self._tokenizer.encode_batch(list(sentences), add_special_tokens=False)
        return [[self.start_id, *row.ids[: max_tokens - 2], self.end_id] for row in found]

    def pad(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and mask, both ``[T, L]``, padded with 0."""
        return padded(ids, 0)

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json``."""
        self._tokenizer.save(str(folder / "tokenizer.json"))


class NoTokenizer:
    """In the place of a tokenizer, where a model reads images alone."""

    size: ClassVar[int] = 0

    def encode(self, sentences: Sequence[str], _: int) -> list[list[int]]:
        """Nothing of nothing.

        Raises:
            UserError: there is a sentence.
        """
        if sentences:
            raise UserError(NO_TEXT)
        return []

    def pad(self, _: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Never asked, as there are no ids."""
        raise UserError(NO_TEXT)

    def save(self, folder: Path) -> None:
        """Nothing is written."""


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


def checked(tokenizer: _Sized, size: int, where: object) -> None:
    """Refuse a tokenizer of more tokens than the model of ``where`` has embeddings for."""
    if tokenizer.size > size:
        raise UserError(
            f"{where}: the tokenizer has {tokenizer.size} tokens but the model only {size}; "
            "they do not belong together."
        )


def _byte_letters() -> Any:
    """The 256 printable letters that stand for bytes in GPT-2's and CLIP's vocabularies."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return (chr(code) for code in [*shown, *(256 + n for n in range(len(hidden)))])
