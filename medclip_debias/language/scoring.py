"""Pseudo-log-likelihood of sentences under a masked language model (Salazar et al. 2020).

``log p(sentence) = sum_t log P(token_t | sentence with token_t masked)``; [CLS] and [SEP] are
never masked and not scored. The scores of a prepared set are stored beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.data.executor import map_pieces
from medclip_debias.data.store import PreparedSet, write_scores
from medclip_debias.data.verify import check_sample
from medclip_debias.language.masked_lm import language_model_hash
from medclip_debias.models.text_encoder import SentenceTokenizer, load_masked_lm

Group = Sequence[tuple[int, ...]]
"""Sentences of one length, as numbers of tokens."""


def pseudo_log_likelihood(
    model: Any,
    tokenizer: SentenceTokenizer,
    sentences: Sequence[str],
    *,
    tokens_per_batch: int = 16384,
    progress: Callable[[int, int], None] | None = None,
    over: Callable[[Iterable[Group]], Iterable[list[float]]] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Log probabilities in nats ``[S]`` (0 for an empty sentence) and scored tokens ``[S]``.

    Each distinct sequence is scored once; sentences of one length share a batch, so that nothing is
    padded, of at most ``tokens_per_batch``. ``model`` has ``bert`` and ``cls`` (`load_masked_lm`).
    ``progress`` is called with the masked tokens done and to do; ``over`` gives `group_scores` of
    each group in order, by default here.
    """
    longest = int(model.config.max_position_embeddings)
    encoded = [tuple(ids) for ids in tokenizer.encode(sentences, longest)]
    by_length: dict[int, list[tuple[int, ...]]] = {}
    for ids in dict.fromkeys(encoded):
        by_length.setdefault(len(ids), []).append(ids)
    total = sum((length - 2) * len(group) for length, group in by_length.items())
    scores: dict[tuple[int, ...], float] = dict.fromkeys(by_length.pop(2, ()), 0.0)
    groups = [
        list(group[start : start + step])
        for length, group in sorted(by_length.items())
        for step in [max(1, tokens_per_batch // (length * (length - 2)))]
        for start in range(0, len(group), step)
    ]
    done = 0
    of_groups = over or partial(map, partial(group_scores, model, tokenizer.mask_id))
    for group, found in zip(groups, of_groups(groups), strict=True):
        scores.update(zip(group, found, strict=True))
        done += (len(group[0]) - 2) * len(group)
        if progress:
            progress(done, total)
    values = np.array([scores[ids] for ids in encoded], dtype=np.float64)
    return values, np.array([len(ids) - 2 for ids in encoded], dtype=np.int64)


@torch.inference_mode()
def group_scores(model: Any, mask_id: int, group: Group) -> list[float]:
    """Scores of sentences of one length, each with every inner token masked in turn."""
    device = next(model.parameters()).device
    ids = torch.tensor(group, device=device)
    count, length = ids.shape
    places = torch.arange(1, length - 1, device=device)
    inputs = ids[:, None, :].repeat(1, len(places), 1)
    rows = torch.arange(len(places), device=device)
    inputs[:, rows, places] = mask_id
    hidden = last_hidden_at(model.bert, inputs.flatten(0, 1), places.repeat(count))
    log_probs = torch.log_softmax(model.cls(hidden).float(), dim=-1)
    scored = log_probs.gather(-1, ids[:, 1:-1].reshape(-1, 1)).view(count, -1)
    return scored.double().sum(dim=1).tolist()


def last_hidden_at(bert: Any, ids: Tensor, places: Tensor) -> Tensor:
    """Last hidden states ``[R, D]`` of ``bert`` at one of the ``places`` ``[R]`` of each row.

    Of the last layer, keys and values are of every token; the query, the output of the attention
    and the two layers after it (ten of a layer's twelve matrix products) of one.
    """
    *before, last = bert.encoder.layer
    hidden = bert.embeddings(input_ids=ids)
    for layer in before:
        hidden = layer(hidden)
    attention = last.attention.self
    at = hidden[torch.arange(len(ids), device=ids.device), places]

    def heads(x: Tensor) -> Tensor:  # [R, H, tokens, D / H]
        return x.unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)

    query, key, value = (
        attention.query(at[:, None]),
        attention.key(hidden),
        attention.value(hidden),
    )
    seen = F.scaled_dot_product_attention(heads(query), heads(key), heads(value))
    attended = last.attention.output(seen.flatten(1), at)
    return last.output(last.intermediate(attended), attended)


def score_prepared(
    prepared: PreparedSet,
    language_model: Path,
    *,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    cluster: str | None = None,
) -> dict[str, Any]:
    """Score the set's distinct sentences and write ``scores.parquet`` and ``scores.json``.

    ``cluster`` is where groups of sentences are scored instead of here, ``progress`` is called with
    masked tokens done and to do. Returns counts, the model's hash, percentiles (nats).
    """
    check_sample(prepared)
    name = language_model_hash(language_model)
    model = load_masked_lm(language_model).to(device)
    tokenizer = SentenceTokenizer.load(language_model)
    texts = prepared.texts
    there = partial(map_pieces, _scores_there, cluster=cluster, start=_load_there)
    there = partial(there, start_args=(str(language_model), device))
    log_probs, tokens = pseudo_log_likelihood(
        model, tokenizer, texts, progress=progress, over=there if cluster else None
    )
    write_scores(prepared.folder, texts, log_probs, tokens, name)
    spread = {f"p{p}": float(np.percentile(log_probs, p)) for p in (5, 50, 95)}
    return {
        "distinct_sentences": len(texts),
        "tokens": int(tokens.sum()),
        "language_model_hash": name,
        "log_prob": spread,
    }


_there: tuple[Any, int] | None = None
"""The model of a worker, and the number of its mask."""


def _load_there(language_model: str, device: str) -> None:
    global _there
    folder = Path(language_model)
    _there = load_masked_lm(folder).to(device), SentenceTokenizer.load(folder).mask_id


def _scores_there(group: Group) -> list[float]:
    assert _there is not None
    return group_scores(*_there, group)
