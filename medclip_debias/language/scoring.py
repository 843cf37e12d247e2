"""Score every distinct sentence of a prepared set, and store the scores beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from medclip_debias.data.executor import map_pieces
from medclip_debias.data.store import PreparedSet, write_scores
from medclip_debias.data.verify import check_sample
from medclip_debias.language.masked_lm import language_model_hash
from medclip_debias.language.pseudo_likelihood import Group, group_scores, pseudo_log_likelihood
from medclip_debias.models.text_encoder import SentenceTokenizer, load_masked_lm


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
