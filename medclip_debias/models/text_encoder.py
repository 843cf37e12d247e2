"""BERT sentence encoder and its tokenizer, read from a BERT or CXR-BERT folder.

CXR-BERT-specialized has its own model type and projection head; both are read here without
running any code from its folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from medclip_debias.errors import UserError, explained
from medclip_debias.files import read_json
from medclip_debias.models.bert_config import bert_fields, check_room, make_bert_config
from medclip_debias.models.tokenizer_file import MAX_BYTES, read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import BertForMaskedLM, BertModel

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
MAX_JSON = 16 << 20
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class SentenceTokenizer:
    """WordPiece with [CLS] and [SEP], from ``tokenizer.json`` or ``vocab.txt``.

    Built on the ``tokenizers`` library itself, whose file format is stable, instead of the
    wrappers whose interface changes between major versions of transformers.
    """

    def __init__(self, tokenizer: Tokenizer, where: str = "tokenizer") -> None:
        self._tokenizer = tokenizer
        vocabulary = tokenizer.get_vocab()
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = _special(
            vocabulary, where
        )
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if tokenizer.encode("x").ids[:1] != [self.cls_id]:
            raise UserError(f"{where}: this tokenizer adds no [CLS]; use one of a BERT.")

    @classmethod
    def load(cls, folder: Path) -> SentenceTokenizer:
        """Read ``tokenizer.json``, or else ``vocab.txt``, from ``folder``."""
        from tokenizers.implementations import BertWordPieceTokenizer

        fast, vocabulary = folder / "tokenizer.json", folder / "vocab.txt"
        if fast.is_file():
            tokenizer = read_tokenizer(fast)
            with explained(f"{fast}: this is not a tokenizer file", ValueError, RuntimeError):
                return cls(tokenizer, str(fast))
        if vocabulary.is_file():
            lowercase = read_model_json(folder / "tokenizer_config.json").get("do_lower_case", True)
            if vocabulary.stat().st_size > MAX_BYTES:
                raise UserError(f"{vocabulary}: is too large for a vocabulary.")
            with explained(f"{vocabulary}: this is not UTF-8 text", UnicodeDecodeError):
                words = vocabulary.read_text(encoding="utf-8").splitlines()
            table = {word: number for number, word in enumerate(words)}
            _special(table, str(vocabulary))
            made = BertWordPieceTokenizer(vocab=table, lowercase=bool(lowercase))
            return cls(made._tokenizer, str(vocabulary))
        raise UserError(f"{folder}: holds neither tokenizer.json nor vocab.txt.")

    @property
    def size(self) -> int:
        """Number of tokens in the vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, sentences: Sequence[str], max_tokens: int) -> list[list[int]]:
        """Token ids of each sentence, [CLS] and [SEP] included, cut to ``max_tokens``."""
        encoded = self._tokenizer.encode_batch(list(sentences))
        return [
            e.ids if len(e.ids) <= max_tokens else [*e.ids[: max_tokens - 1], self.sep_id]
            for e in encoded
        ]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The tokens behind ``ids``."""
        return [self._tokenizer.id_to_token(number) or "[UNK]" for number in ids]

    def save(self, folder: Path) -> None:
        """Write ``tokenizer.json`` into ``folder``."""
        self._tokenizer.save(str(folder / "tokenizer.json"))

    def pad(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, both ``[T, L]``, padded to the longest sentence."""
        longest = max(len(row) for row in ids)
        padded = torch.full((len(ids), longest), self.pad_id, dtype=torch.long)
        mask = torch.zeros_like(padded)
        for number, row in enumerate(ids):
            padded[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        return padded, mask


def _special(vocabulary: dict[str, int], where: str) -> list[int]:
    for token in SPECIAL_TOKENS:
        if token not in vocabulary:
            raise UserError(f"{where}: the vocabulary lacks the special token {token}.")
    return [vocabulary[token] for token in SPECIAL_TOKENS]


class ProjectionHead(nn.Module):
    """CXR-BERT-specialized's head on [CLS]: Linear, GELU, LayerNorm, Linear (768 to 128)."""

    def __init__(self, width: int, out: int, eps: float) -> None:
        super().__init__()
        self.dense_to_hidden = nn.Linear(width, out)
        self.transform_act_fn = nn.GELU()
        self.LayerNorm = nn.LayerNorm(out, eps=eps)
        self.dense_to_output = nn.Linear(out, out)

    def forward(self, cls: Tensor) -> Tensor:
        """``[T, width]`` to ``[T, out]``."""
        hidden = self.LayerNorm(self.transform_act_fn(self.dense_to_hidden(cls)))
        result: Tensor = self.dense_to_output(hidden)
        return result


class TextEncoder(nn.Module):
    """BERT's [CLS] vector, through CXR-BERT's projection head when the folder has one.

    Attributes:
        width: size of the sentence feature.
    """

    def __init__(
        self,
        config: dict[str, Any],
        use_projection_head: bool = False,
        where: str = "config.json",
    ) -> None:
        from transformers import BertModel

        super().__init__()
        projected = bert_fields(config, where).projection_size
        self.config = config
        bert_config = make_bert_config(config, where)
        self.bert: BertModel = BertModel(bert_config, add_pooling_layer=False)
        self.head: ProjectionHead | None = None
        self.width: int = bert_config.hidden_size
        if use_projection_head and projected:
            self.head = ProjectionHead(self.width, projected, bert_config.layer_norm_eps)
            self.width = projected

    @classmethod
    def from_folder(cls, folder: Path, use_projection_head: bool = True) -> TextEncoder:
        """Read a BERT or CXR-BERT folder, weights included."""
        config, where = read_bert_config(folder), f"{folder}/config.json"
        with torch.device("meta"):
            check_room(cls(config, use_projection_head, where), _weights(folder), where)
        encoder = cls(config, use_projection_head, where)
        state = read_bert_state(folder)
        found = {k.removeprefix("bert."): v for k, v in state.items() if k.startswith("bert.")}
        found = found or state  # a bare BertModel has no prefix
        own = encoder.bert.state_dict()
        absent = [key for key in own if key not in found or found[key].shape != own[key].shape]
        if absent:
            raise UserError(
                f"{folder}: its weights do not fit its config.json "
                f"({len(absent)} of {len(own)} tensors, first '{absent[0]}')."
            )
        encoder.bert.load_state_dict({key: found[key] for key in own})
        if encoder.head is not None:
            name = "cls_projection_head."
            head = {k.removeprefix(name): v for k, v in state.items() if k.startswith(name)}
            with explained(f"{folder}: its projection head does not fit config.json", RuntimeError):
                encoder.head.load_state_dict(head)
        return encoder

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask ``[T, L]`` to sentence features ``[T, width]``."""
        cls: Tensor = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]
        return cls if self.head is None else self.head(cls)

    def words(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask ``[T, L]`` to features of the tokens ``[T, L, width]``.

        Those of padding mean nothing. The projection head, which was trained for [CLS], is
        applied to each token.
        """
        hidden: Tensor = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden if self.head is None else self.head(hidden)


def read_bert_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` of a BERT-like folder.

    Raises:
        UserError: no such folder, no config, or a model that is not a BERT.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder}: there is no such language-model folder; "
            "make one with 'medclip-debias language-model', or give a BERT folder."
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: holds no config.json, so it is no BERT folder.")
    config = read_model_json(folder / "config.json")
    if config.get("model_type") not in ("bert", "cxr-bert"):
        raise UserError(
            f"{folder}/config.json: model_type is {config.get('model_type')!r}; "
            "only 'bert' and 'cxr-bert' can be read."
        )
    return config


def read_bert_state(folder: Path) -> dict[str, Tensor]:
    """Read a BERT folder's weights, safetensors first; never runs pickled code."""
    from medclip_debias.models.image_encoder import read_state

    return read_state(_weights(folder))


def _weights(folder: Path) -> Path:
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"{folder}: holds none of {', '.join(WEIGHT_FILES)}.")


def load_masked_lm(folder: Path) -> BertForMaskedLM:
    """Read the folder's masked language model, in evaluation mode, float32."""
    from transformers import BertForMaskedLM, BertModel

    config = make_bert_config(read_bert_config(folder), f"{folder}/config.json")
    with torch.device("meta"):
        check_room(BertModel(config, add_pooling_layer=False), _weights(folder), folder)
    with explained(f"{folder}: cannot be read as a masked language model", Exception), _quiet():
        model, report = BertForMaskedLM.from_pretrained(
            folder,
            config=config,
            use_safetensors=(folder / WEIGHT_FILES[0]).is_file(),
            local_files_only=True,
            output_loading_info=True,
            dtype=torch.float32,
        )
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    missing = sorted(set(report["missing_keys"]) - tied)
    if missing:
        raise UserError(
            f"{folder}: its weights lack the masked-language-model head ('{missing[0]}'), "
            "so it cannot score sentences."
        )
    model.eval()
    return model


def read_model_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a model folder; a missing file is an empty one."""
    remedy = "copy the model folder again"
    return read_json(path, remedy, limit=MAX_JSON) if path.is_file() else {}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' load report and progress bar off the user's screen."""
    from transformers.utils import logging as hf_logging

    level = hf_logging.get_verbosity()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        hf_logging.enable_progress_bar()
