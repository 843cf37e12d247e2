"""Train a small BERT masked language model and its WordPiece tokenizer from report sentences.

For those who have no CXR-BERT at hand, and for the phantom. The folder it writes is a plain
BERT folder, interchangeable with CXR-BERT's everywhere in this project.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from medclip_debias.config import Settings
from medclip_debias.errors import UserError
from medclip_debias.files import atomic_folder, check_out, file_hash, write_json, write_text
from medclip_debias.language.vocabulary import allowed_words, without_others
from medclip_debias.models.checkpoint import WEIGHT_FILES, write_weights
from medclip_debias.models.text_encoder import SPECIAL_TOKENS, SentenceTokenizer, read_text_config

Progress = Callable[[int, int, float], None]


class LanguageModelSettings(Settings):
    """Size and training of the masked language model (BERT: Devlin et al. 2019).

    ``min_patients``: the tokenizer learns only words in the reports of so many patients, if the
    corpus names the patients (`medclip_debias.language.vocabulary`).
    """

    vocabulary: int = Field(2000, ge=50)
    hidden: int = Field(128, ge=8)
    layers: int = Field(2, ge=1)
    heads: int = Field(4, ge=1)
    max_tokens: int = Field(64, ge=8, le=512)
    dropout: float = Field(0.1, ge=0, lt=1)
    mask_share: float = Field(0.15, gt=0, lt=1)
    steps: int = Field(1500, ge=1)
    batch_size: int = Field(128, ge=1)
    lr: float = Field(2e-3, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    seed: int = Field(0, ge=0)
    min_patients: int = Field(5, ge=1)

    @model_validator(mode="after")
    def _divides(self) -> LanguageModelSettings:
        if self.hidden % self.heads:
            raise ValueError(f"heads {self.heads} must divide hidden {self.hidden}")
        return self


def train_tokenizer(sentences: Sequence[str], vocabulary: int) -> SentenceTokenizer:
    """Learn a lower-case WordPiece vocabulary of at most ``vocabulary`` tokens.

    The same sentences give the same vocabulary, whatever their order.
    """
    from tokenizers.implementations import BertWordPieceTokenizer

    words = BertWordPieceTokenizer(lowercase=True)
    counts = Counter(sentences)
    normalised = words._tokenizer.normalizer
    letters = sorted({c for text in counts for c in normalised.normalize_str(text)} - {" "})
    # The trainer numbers letters in the order of a hash map and breaks ties by number, so two
    # runs differ. Letters given as special tokens are numbered as given.
    alphabet = [*letters, *(f"##{letter}" for letter in letters)]
    words.train_from_iterator(
        (text for text, count in sorted(counts.items()) for _ in range(count)),
        vocab_size=max(vocabulary, len(SPECIAL_TOKENS) + len(alphabet)),
        min_frequency=2,
        special_tokens=[*SPECIAL_TOKENS, *alphabet],
        show_progress=False,
    )
    # Built again from the learned vocabulary, which adds the template of [CLS] and [SEP].
    fitted = BertWordPieceTokenizer(vocab=words.get_vocab(), lowercase=True)
    return SentenceTokenizer(fitted._tokenizer)


def train_masked_lm(
    sentences: Sequence[str],
    out: Path,
    settings: LanguageModelSettings | None = None,
    *,
    patients_of: Mapping[str, Collection[str]] | None = None,
    provenance: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train tokenizer and masked language model, write the BERT folder ``out``, return figures.

    Args:
        sentences: the corpus, one entry an occurrence: a frequent sentence is seen often.
        out: folder to write, atomically.
        settings: size and training.
        patients_of: patients of each distinct sentence: rare words and names then stay out of
            the vocabulary. None (text of no patient) lets every word in.
        provenance: what the corpus was; stored in ``training.json``.
        progress: called with step, steps and the running loss in nats a masked token.
    """
    from transformers import BertConfig, BertForMaskedLM

    settings = settings or LanguageModelSettings()
    if len(sentences) < 2:
        raise UserError("the corpus holds fewer than two sentences; there is nothing to learn.")
    check_out(out, "tokenizer.json", "language model")
    started = time.perf_counter()
    words, left_out = sentences, None
    if patients_of is not None:
        allowed, left_out = allowed_words(patients_of, settings.min_patients)
        words = [text for text in (without_others(s, allowed) for s in sentences) if text.strip()]
        if len(words) < 2:
            raise UserError(
                f"no word of the corpus occurs in the reports of {settings.min_patients} patients,"
                " so there is no vocabulary to learn; prepare more studies, or give min_patients=1"
                " for text that is of no patient."
            )
    tokenizer = train_tokenizer(words, settings.vocabulary)
    torch.manual_seed(settings.seed)
    config = BertConfig(
        vocab_size=tokenizer.size,
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=4 * settings.hidden,
        max_position_embeddings=settings.max_tokens,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
        pad_token_id=tokenizer.pad_id,
    )
    model = BertForMaskedLM(config)
    encoded = tokenizer.encode(sentences, settings.max_tokens)
    loss = _fit(model, tokenizer, encoded, settings, progress)
    figures = {
        "sentences": len(sentences),
        "distinct": len(set(sentences)),
        "tokens": tokenizer.size,
        **({} if left_out is None else {"words_left_out": left_out}),
        "parameters": sum(p.numel() for p in model.parameters()),
        "loss": loss,
        "seconds": time.perf_counter() - started,
    }
    _write(model, tokenizer, out, settings, figures, provenance or {})
    return figures


def _fit(
    model: Any,
    tokenizer: SentenceTokenizer,
    encoded: list[list[int]],
    settings: LanguageModelSettings,
    progress: Progress | None,
) -> float:
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings.lr, total_steps=settings.steps + 1, pct_start=0.1
    )
    model.train()
    running = float("nan")
    for step in range(settings.steps):
        rng = np.random.default_rng([settings.seed, step])
        chosen = rng.integers(0, len(encoded), settings.batch_size)
        ids, mask = tokenizer.pad([encoded[number] for number in chosen])
        inputs, places, targets = mask_tokens(ids, mask, tokenizer, settings.mask_share, rng)
        hidden = model.bert(input_ids=inputs, attention_mask=mask).last_hidden_state
        loss = F.cross_entropy(model.cls(hidden[places]), targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        running = loss.item() if step == 0 else 0.98 * running + 0.02 * loss.item()
        if progress:
            progress(step + 1, settings.steps, running)
    model.eval()
    return running


def mask_tokens(
    ids: Tensor, mask: Tensor, tokenizer: SentenceTokenizer, share: float, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """BERT's masking: of ``share`` of the tokens, 80% [MASK], 10% random, 10% kept.

    Returns input ids ``[T, L]``, the chosen places (bool, at least one a batch) and their true ids.
    """
    special = (ids == tokenizer.cls_id) | (ids == tokenizer.sep_id) | (mask == 0)
    draw = torch.from_numpy(rng.random(ids.shape))
    draw[special] = 1.0
    chosen = draw < share
    if not chosen.any():
        chosen.view(-1)[draw.argmin()] = True
    fate = torch.from_numpy(rng.random(ids.shape))
    random_ids: NDArray[np.int64] = rng.integers(len(SPECIAL_TOKENS), tokenizer.size, ids.shape)
    inputs = torch.where(chosen & (fate < 0.8), tokenizer.mask_id, ids)
    inputs = torch.where(chosen & (fate >= 0.9), torch.from_numpy(random_ids), inputs)
    return inputs, chosen, ids[chosen]


def _write(
    model: Any,
    tokenizer: SentenceTokenizer,
    out: Path,
    settings: LanguageModelSettings,
    figures: dict[str, Any],
    provenance: dict[str, Any],
) -> None:
    with atomic_folder(out) as folder:
        # The decoder shares the word embedding's memory, which safetensors refuses to store.
        decoder, state = "cls.predictions.decoder.", model.state_dict()
        own = {name: value for name, value in state.items() if not name.startswith(decoder)}
        write_weights(own, folder / "model.safetensors")
        write_json(folder / "config.json", model.config.to_dict() | {"model_type": "bert"})
        tokenizer.save(folder)
        write_text(folder / "README.md", _card(settings, figures))
        write_json(
            folder / "training.json",
            {
                "settings": settings.model_dump(mode="json"),
                "figures": {k: v for k, v in figures.items() if k != "seconds"},
                "provenance": provenance,
            },
        )


def _card(settings: LanguageModelSettings, figures: dict[str, Any]) -> str:
    """The model card: what the folder was learned from, and what of it may be found in it."""
    left_out = figures.get("words_left_out")
    words = (
        "The vocabulary was learned from every word of the corpus: share it only under the terms of"
        " the text."
        if left_out is None
        else f"Words in the reports of fewer than {settings.min_patients} patients, words that are"
        " mostly written as names, words after a title (Dr., Mr. ...) and numbers of three or"
        f" more digits were kept out of the vocabulary: {left_out:,} distinct words. Single"
        " letters, and pieces that such words share with others, are in it. This filter proves"
        " nothing: read"
        " tokenizer.json before you publish it."
    )
    return (
        "# Masked language model of report sentences\n\n"
        f"Learned from {figures['sentences']:,} sentences ({figures['distinct']:,} distinct);"
        " training.json names the set and the settings.\n\n"
        f"**Privacy.** {words} The weights were fitted to the sentences themselves and may have"
        " memorised some: share them under the terms of the reports.\n"
    )


def language_model_hash(folder: Path) -> str:
    """16 hex digits naming a language model: its weights, configuration and tokenizer."""
    read_text_config(folder)
    tokenizer = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
    names = ("config.json", *WEIGHT_FILES, *tokenizer, "1_Pooling/config.json")
    return file_hash(*(folder / name for name in names if (folder / name).is_file()))
