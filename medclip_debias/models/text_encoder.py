"""Sentence encoder and its tokenizer, read from a folder of a BERT or one of its kin.

Modules are transformers' own, built without running any code of the folder. CXR-BERT-specialized's
model type and projection head are read here.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from medclip_debias.errors import ReportedWarning, UserError, explained
from medclip_debias.files import read_json, read_json_value, read_text
from medclip_debias.models.checkpoint import (
    check_room,
    load_strictly,
    read_checkpoint,
    uninitialised,
    weight_file,
)
from medclip_debias.models.limits import (
    MAX_JSON,
    MAX_TOKENIZER,
    hf_config,
    read_model_json,
    read_tokenizer,
)
from medclip_debias.models.tower import Tower

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import BertForMaskedLM, PretrainedConfig

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
Pooling = Literal["cls", "mean"]


class FileTokenizer:
    """A tokenizer of the ``tokenizers`` library, kept as ``tokenizer.json``."""

    pad_id: int

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def pad(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and attention mask, both ``[T, L]``, padded to the longest sentence."""
        # In one piece: every step does this, and a tensor for each sentence takes longer.
        lengths = np.array([len(row) for row in ids])
        mask = np.arange(lengths.max()) < lengths[:, None]
        padded = np.full(mask.shape, self.pad_id, dtype=np.int64)
        padded[mask] = np.fromiter(chain.from_iterable(ids), np.int64)
        return torch.from_numpy(padded), torch.from_numpy(mask.astype(np.int64))

    def save(self, folder: Path) -> None:
        self._tokenizer.save(str(folder / "tokenizer.json"))


class SentenceTokenizer(FileTokenizer):
    """Sentence to token ids between [CLS] and [SEP] (RoBERTa's and MPNet's ``<s>``, ``</s>``)."""

    def __init__(self, tokenizer: Tokenizer, where: str = "tokenizer") -> None:
        super().__init__(tokenizer)
        vocabulary = tokenizer.get_vocab()
        sentence = f"{where}: its vocabulary of {len(vocabulary)} tokens reads no text"
        with explained(sentence, Exception):
            encoded = tokenizer.encode("x")
        # MPNet's vocabulary holds BERT's special tokens as well: what is put first decides.
        names = _ROBERTA_TOKENS if encoded.tokens[:1] == [_ROBERTA_TOKENS[2]] else SPECIAL_TOKENS
        _check_special(vocabulary, where, names)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(
            vocabulary.__getitem__, names
        )
        if encoded.ids[:1] != [self.cls_id]:
            raise UserError(f"{where}: this tokenizer adds no [CLS]; use one of a BERT.")

    @classmethod
    def load(cls, folder: Path) -> SentenceTokenizer:
        """Read ``tokenizer.json``, WordPiece's ``vocab.txt``, or RoBERTa's ``vocab.json``."""
        from tokenizers.implementations import BertWordPieceTokenizer

        fast, vocabulary = folder / "tokenizer.json", folder / "vocab.txt"
        if fast.is_file():
            return cls(read_tokenizer(fast), str(fast))
        if vocabulary.is_file():
            lowercase = read_model_json(folder / "tokenizer_config.json").get("do_lower_case", True)
            words = read_text(vocabulary, "copy the folder again", limit=MAX_TOKENIZER).splitlines()
            table = {word: number for number, word in enumerate(words)}
            _check_special(table, str(vocabulary), SPECIAL_TOKENS)
            pieces = BertWordPieceTokenizer(vocab=table, lowercase=bool(lowercase))
            return cls(pieces._tokenizer, str(vocabulary))
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
        return [self._tokenizer.id_to_token(number) or "[UNK]" for number in ids]

    def copy(self) -> Tokenizer:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self._tokenizer.to_str())


def check_vocabulary(tokenizer: FileTokenizer, size: int, where: object) -> None:
    """Refuse a tokenizer of more tokens than the model of ``where`` has embeddings for."""
    if tokenizer.size > size:
        raise UserError(
            f"{where}: the tokenizer has {tokenizer.size} tokens but the model only {size}; "
            "they do not belong together."
        )


def _byte_pairs(folder: Path) -> Tokenizer:
    """RoBERTa's tokenizer (byte-level BPE, Liu et al. 2019) from its two files."""
    from transformers import RobertaTokenizer

    path, merges = folder / "vocab.json", folder / "merges.txt"
    table: Any = read_json(path, "this is not a vocabulary", limit=MAX_TOKENIZER)
    lines = read_text(merges, "copy the folder again", limit=MAX_TOKENIZER).splitlines()
    pairs: list[Any] = [x.split(" ") for x in lines if x and not x.startswith("#version")]
    _check_special(table, str(path), _ROBERTA_TOKENS)
    with explained(f"{folder}: vocab.json and merges.txt do not belong together", Exception):
        pairs = [(first, second) for first, second in pairs]
        return RobertaTokenizer(vocab=table, merges=pairs).backend_tokenizer


def _check_special(vocabulary: Mapping[str, int], where: str, names: Sequence[str]) -> None:
    for token in names:
        if token not in vocabulary:
            raise UserError(f"{where}: the vocabulary lacks the special token {token}.")


@dataclass(frozen=True)
class Family:
    """How the text encoders of one ``model_type`` are read.

    ``prefix`` is of the encoder's tensors in a file that holds heads as well, ``layers`` the path
    of its layers; ``pooler``: it takes ``add_pooling_layer``; ``counts_from_padding``: the number
    of the padding token decides about positions.
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


class ProjectionHead(nn.Module):
    """CXR-BERT-specialized's head on [CLS]: Linear, GELU, LayerNorm, Linear (768 to 128)."""

    def __init__(self, width: int, out: int, eps: float) -> None:
        super().__init__()
        self.dense_to_hidden = nn.Linear(width, out)
        self.transform_act_fn = nn.GELU()
        self.LayerNorm = nn.LayerNorm(out, eps=eps)
        self.dense_to_output = nn.Linear(out, out)

    def forward(self, cls: Tensor) -> Tensor:
        hidden = self.LayerNorm(self.transform_act_fn(self.dense_to_hidden(cls)))
        return self.dense_to_output(hidden)


class TextEncoder(Tower):
    """A sentence's vector: [CLS] or the mean token, through CXR-BERT's head if it has one."""

    def __init__(
        self,
        config: dict[str, Any],
        use_projection_head: bool = False,
        where: str = "config.json",
        pooling: Pooling = "cls",
    ) -> None:
        from transformers import AutoModel

        super().__init__()
        self.config, self.pooling = config, pooling
        self.family = family_of(config, where)
        extra = {"add_pooling_layer": False} if self.family.pooler else {}
        sizes: Any = text_config(config, where)
        self.bert: Any = AutoModel.from_config(sizes, trust_remote_code=False, **extra)
        self.layer_lists = (f"bert.{self.family.layers}",)
        self.vocabulary, self.pad_id = sizes.vocab_size, sizes.pad_token_id
        self.longest = sizes.max_position_embeddings
        if self.family.counts_from_padding:
            self.longest -= sizes.pad_token_id + 1
        self.head: ProjectionHead | None = None
        self.width: int = sizes.hidden_size
        projected = config.get("projection_size") if self.family.model_type == "bert" else None
        if use_projection_head and projected:
            if pooling == "mean":
                raise UserError(
                    f"{where}: CXR-BERT's projection head was trained on [CLS]; set "
                    "model.text.use_projection_head=false for pooling 'mean'."
                )
            self.head = ProjectionHead(self.width, projected, sizes.layer_norm_eps)
            self.width = projected
            self.into_space = ("head",)
        norm = ("bert.final_norm",) if hasattr(self.bert, "final_norm") else ()
        self.after_layers = (*norm, "head")

    @classmethod
    def from_folder(
        cls, folder: Path, use_projection_head: bool = True, pooling: Pooling | None = None
    ) -> TextEncoder:
        """Read a text encoder's folder, weights included; ``pooling`` None is the folder's own."""
        config, where = read_text_config(folder), f"{folder}/config.json"
        pooled = pooling or folder_pooling(folder)
        build = partial(cls, config, use_projection_head, where, pooled)
        check_room(build, weight_file(folder), where)
        encoder, state = build(), read_bert_state(folder)
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
        return self.bert(input_ids=ids, attention_mask=mask).last_hidden_state

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.hidden(ids, mask)
        if self.pooling == "mean":
            return token_mean(hidden, mask)
        cls = hidden[:, 0]
        return cls if self.head is None else self.head(cls)

    def words(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Features of the tokens ``[T, L, width]``, through the head that was trained for [CLS]."""
        hidden = self.hidden(ids, mask)
        return hidden if self.head is None else self.head(hidden)


def token_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``hidden`` ``[T, L, D]`` over the tokens whose ``mask`` ``[T, L]`` is 1."""
    weight = mask[..., None].to(hidden.dtype)
    return (hidden * weight).sum(dim=1) / weight.sum(dim=1)


def encoder_tensors(state: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The encoder's own tensors of a published file, without heads and position numbers."""
    # A whole model's file has the prefix; some bare encoders have a module of the same name.
    inside = any(key.startswith(family.prefix) for key in state)
    tensors = {}
    for key, value in state.items():
        bare = key.removeprefix(family.prefix)
        if not (_HEADS.search(bare) or _HEADS.search(key)):
            tensors[bare if inside else key] = value
    return tensors


_POOLINGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
}


def folder_pooling(folder: Path) -> Pooling:
    """What a sentence-transformers folder says of its pooling; ``cls`` for any other folder."""
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
    if not folder.is_dir():
        raise UserError(
            f"{folder}: there is no such language-model folder; "
            "make one with 'medclip-debias language-model', or give a BERT folder."
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: holds no config.json, so it is not a BERT folder.")
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
    """Read a BERT folder's weights; files converted from TensorFlow say gamma and beta."""
    state = read_checkpoint(weight_file(folder))
    names = {"gamma": "weight", "beta": "bias"}
    pattern = re.compile(r"(?<=LayerNorm\.)(gamma|beta)$")
    return {pattern.sub(lambda found: names[found[1]], key): x for key, x in state.items()}


def load_masked_lm(folder: Path) -> BertForMaskedLM:
    """Read the folder's masked language model, in evaluation mode, float32."""
    from transformers import BertForMaskedLM

    config = text_config(read_bert_config(folder), f"{folder}/config.json")
    check_room(lambda: BertForMaskedLM(config).bert, weight_file(folder), folder)
    with uninitialised():
        model = BertForMaskedLM(config)
    model.tie_weights()
    state, own = read_bert_state(folder), model.state_dict()
    if not any(key.startswith("bert.") for key in state):
        state = {f"bert.{key}": value for key, value in state.items()}
    tied = {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}
    missing = sorted(own.keys() - state.keys() - tied)
    if missing:
        raise UserError(
            f"{folder}: its weights lack the masked-language-model head ('{missing[0]}'), "
            "so it cannot score sentences."
        )
    kept = {key: value for key, value in state.items() if key in own and key not in tied}
    with explained(f"{folder}: cannot be read as a masked language model", RuntimeError):
        model.load_state_dict(kept, strict=False)
    model.eval()
    return model
