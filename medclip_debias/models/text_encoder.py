"""Sentence encoder and its tokenizer, read from a folder of a BERT or one of its kin.

BERT, CXR-BERT, RoBERTa, MPNet and ModernBERT (`medclip_debias.models.hf_config.FAMILIES`).
CXR-BERT-specialized has its own model type and projection head; both are read here without
running any code from its folder.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from medclip_debias.errors import ReportedWarning, UserError, explained
from medclip_debias.files import read_json, read_json_value, read_text
from medclip_debias.models.checkpoint import load_strictly, read_checkpoint
from medclip_debias.models.hf_config import (
    check_room,
    encoder_tensors,
    family_of,
    text_config,
)
from medclip_debias.models.image_encoder import WEIGHT_FILES, weight_file
from medclip_debias.models.tokenizer_file import MAX_BYTES, FileTokenizer, read_tokenizer
from medclip_debias.models.tower import Tower

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import BertForMaskedLM

MAX_JSON = 16 << 20
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
Pooling = Literal["cls", "mean"]


class SentenceTokenizer(FileTokenizer):
    """Sentence to token ids between [CLS] and [SEP] (RoBERTa's and MPNet's ``<s>``, ``</s>``).

    From ``tokenizer.json``, WordPiece's ``vocab.txt``, or RoBERTa's ``vocab.json`` and
    ``merges.txt``.

    Built on the ``tokenizers`` library itself, whose file format is stable, instead of the
    wrappers whose interface changes between major versions of transformers.
    """

    def __init__(self, tokenizer: Tokenizer, where: str = "tokenizer") -> None:
        super().__init__(tokenizer)
        vocabulary = tokenizer.get_vocab()
        sentence = f"{where}: its vocabulary of {len(vocabulary)} tokens reads no text"
        with explained(sentence, Exception):
            encoded = tokenizer.encode("x")
        # MPNet's vocabulary holds BERT's special tokens as well: what is put first decides.
        names = _ROBERTA_TOKENS if encoded.tokens[:1] == [_ROBERTA_TOKENS[2]] else SPECIAL_TOKENS
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = _special(
            vocabulary, where, names
        )
        if encoded.ids[:1] != [self.cls_id]:
            raise UserError(f"{where}: this tokenizer adds no [CLS]; use one of a BERT.")

    @classmethod
    def load(cls, folder: Path) -> SentenceTokenizer:
        """Read ``tokenizer.json``, else ``vocab.txt``, else ``vocab.json``, from ``folder``."""
        from tokenizers.implementations import BertWordPieceTokenizer

        fast, vocabulary = folder / "tokenizer.json", folder / "vocab.txt"
        if fast.is_file():
            return cls(read_tokenizer(fast), str(fast))
        if vocabulary.is_file():
            lowercase = read_model_json(folder / "tokenizer_config.json").get("do_lower_case", True)
            words = read_text(vocabulary, "copy the folder again", limit=MAX_BYTES).splitlines()
            table = {word: number for number, word in enumerate(words)}
            _special(table, str(vocabulary))
            made = BertWordPieceTokenizer(vocab=table, lowercase=bool(lowercase))
            return cls(made._tokenizer, str(vocabulary))
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            return cls(_byte_pairs(folder), str(folder / "vocab.json"))
        raise UserError(
            f"{folder}: holds neither tokenizer.json nor vocab.txt, nor vocab.json with merges.txt."
        )

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

    def copy(self) -> Tokenizer:
        """The library's own tokenizer, to be changed at will."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self._tokenizer.to_str())


def _byte_pairs(folder: Path) -> Tokenizer:
    """RoBERTa's tokenizer (byte-level BPE, Liu et al. 2019) from its two files."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    path, merges = folder / "vocab.json", folder / "merges.txt"
    table = read_json(path, "this is not a vocabulary", limit=MAX_BYTES)
    lines = read_text(merges, "copy the folder again", limit=MAX_BYTES).splitlines()
    pairs = [line.split(" ") for line in lines if line and not line.startswith("#version")]
    _special(table, str(path), _ROBERTA_TOKENS)
    sentence = f"{folder}: vocab.json and merges.txt do not belong together"
    with explained(sentence, Exception):
        made = Tokenizer(models.BPE(vocab=table, merges=[(a, b) for a, b in pairs]))
    made.add_special_tokens(list(_ROBERTA_TOKENS))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", table["</s>"]), ("<s>", table["<s>"]), add_prefix_space=False
    )
    return made


def _special(
    vocabulary: dict[str, int], where: str, names: Sequence[str] = SPECIAL_TOKENS
) -> list[int]:
    for token in names:
        if token not in vocabulary:
            raise UserError(f"{where}: the vocabulary lacks the special token {token}.")
    return [vocabulary[token] for token in names]


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


class TextEncoder(Tower):
    """A sentence's vector: [CLS] or the mean of its tokens, through CXR-BERT's head if it has one.

    Args:
        config: content of ``config.json``.
        use_projection_head: whether the head of a CXR-BERT that has one is used, on [CLS].
        where: names the file of ``config``, for messages.
        pooling: ``cls``, or ``mean`` over the tokens that are no padding, as sentence encoders do
            (Reimers and Gurevych 2019).

    Attributes:
        bert: transformers' own module, of whatever family.
        width: size of the sentence feature.
        longest: most tokens that can be read.
        pooling: as given.
    """

    def __init__(
        self,
        config: dict[str, Any],
        use_projection_head: bool = False,
        where: str = "config.json",
        pooling: Pooling = "cls",
    ) -> None:
        from transformers import AutoModel

        super().__init__()
        self.config = config
        self.family = family_of(config, where)
        self.pooling = pooling
        extra = {"add_pooling_layer": False} if self.family.pooler else {}
        sizes = text_config(config, where)
        self.bert: Any = AutoModel.from_config(sizes, trust_remote_code=False, **extra)
        self.layer_lists = (f"bert.{self.family.layers}",)
        made = self.bert.config
        self.vocabulary, self.pad_id = made.vocab_size, made.pad_token_id
        self.longest = made.max_position_embeddings
        if self.family.counts_from_padding:
            self.longest -= made.pad_token_id + 1
        self.head: ProjectionHead | None = None
        self.width: int = made.hidden_size
        projected = config.get("projection_size") if self.family.model_type == "bert" else None
        if use_projection_head and projected:
            if pooling == "mean":
                raise UserError(
                    f"{where}: CXR-BERT's projection head was trained on [CLS]; set "
                    "model.text.use_projection_head=false for pooling 'mean'."
                )
            self.head = ProjectionHead(self.width, projected, made.layer_norm_eps)
            self.width = projected
            self.into_space = ("head",)
        norm = ("bert.final_norm",) if hasattr(self.bert, "final_norm") else ()
        self.after_layers = (*norm, "head")

    @classmethod
    def from_folder(
        cls, folder: Path, use_projection_head: bool = True, pooling: Pooling | None = None
    ) -> TextEncoder:
        """Read a text encoder's folder, weights included.

        Args:
            folder: of a family of `medclip_debias.models.hf_config.FAMILIES`.
            use_projection_head: as for the class.
            pooling: as for the class; None takes what the folder says (`folder_pooling`).
        """
        config, where = read_text_config(folder), f"{folder}/config.json"
        pooled = pooling or folder_pooling(folder)
        with torch.device("meta"):
            check_room(cls(config, use_projection_head, where, pooled), weight_file(folder), where)
        encoder = cls(config, use_projection_head, where, pooled)
        state = read_bert_state(folder)
        tensors = encoder_tensors(state, encoder.family)
        load_strictly(encoder.bert, tensors, f"{folder}: its weights do not fit its config.json")
        if encoder.head is not None:
            name = "cls_projection_head."
            head = {k.removeprefix(name): v for k, v in state.items() if k.startswith(name)}
            with explained(f"{folder}: its projection head does not fit config.json", RuntimeError):
                encoder.head.load_state_dict(head)
        return encoder

    def hidden(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask ``[T, L]`` to the last layer's vectors ``[T, L, hidden_size]``."""
        result: Tensor = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        return result

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask ``[T, L]`` to sentence features ``[T, width]``."""
        hidden = self.hidden(ids, mask)
        if self.pooling == "mean":
            return token_mean(hidden, mask)
        cls = hidden[:, 0]
        return cls if self.head is None else self.head(cls)

    def words(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask ``[T, L]`` to features of the tokens ``[T, L, width]``.

        Those of padding mean nothing. The projection head, which was trained for [CLS], is
        applied to each token.
        """
        hidden: Tensor = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden if self.head is None else self.head(hidden)


def token_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``hidden`` ``[T, L, D]`` over the tokens whose ``mask`` ``[T, L]`` is 1."""
    weight = mask[..., None].to(hidden.dtype)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1)


_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
}


def folder_pooling(folder: Path) -> Pooling:
    """What a sentence-transformers folder says of its pooling; ``cls`` for any other folder.

    Warns:
        ReportedWarning: the folder lists modules after the pooling that are not read.
    """
    modules = folder / "modules.json"
    if modules.is_file():
        listed = read_json_value(modules, "copy the model folder again", limit=MAX_JSON)
        entries = listed if isinstance(listed, list) else []
        types = [str(one.get("type", "?")) for one in entries if isinstance(one, dict)]
        unread = [name for name in types if name.rpartition(".")[2] in ("Dense", "LayerNorm")]
        if unread:
            sentence = f"{modules}: of its {len(types)} modules, {len(unread)} after the pooling "
            sentence += "are not read; the projection into the shared space takes their place"
            warnings.warn(sentence, ReportedWarning, stacklevel=2)
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return "cls"
    content = read_model_json(path)
    on = [key for key, value in content.items() if key.startswith("pooling_mode_") and value]
    if len(on) != 1 or on[0] not in _POOLINGS:
        raise UserError(
            f"{path}: pools by {', '.join(on) or 'nothing'}; set model.text.pooling to cls or mean."
        )
    return _POOLINGS[on[0]]


def read_text_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` of a text encoder's folder."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: there is no such language-model folder; "
            "make one with 'medclip-debias language-model', or give a BERT folder."
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: holds no config.json, so it is no BERT folder.")
    config = read_model_json(folder / "config.json")
    family_of({"model_type": None} | config, f"{folder}/config.json")
    return config


def read_bert_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` of a folder that must be a BERT's or CXR-BERT's."""
    config = read_text_config(folder)
    if config.get("model_type") not in ("bert", "cxr-bert"):
        raise UserError(
            f"{folder}/config.json: model_type is {config.get('model_type')!r}; "
            "a masked language model is read of 'bert' and 'cxr-bert' only."
        )
    return config


def read_bert_state(folder: Path) -> dict[str, Tensor]:
    """Read a BERT folder's weights, safetensors first; never runs pickled code."""
    return read_checkpoint(weight_file(folder))


def load_masked_lm(folder: Path) -> BertForMaskedLM:
    """Read the folder's masked language model, in evaluation mode, float32."""
    from transformers import BertForMaskedLM, BertModel

    config = text_config(read_bert_config(folder), f"{folder}/config.json")
    with torch.device("meta"):
        check_room(BertModel(config, add_pooling_layer=False), weight_file(folder), folder)
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
