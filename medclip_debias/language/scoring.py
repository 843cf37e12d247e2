"""Score every distinct sentence of a prepared set, and store the scores beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from medclip_debias.data.store import PreparedSet, write_scores
from medclip_debias.data.verify import check_sample
from medclip_debias.language.masked_lm import language_model_hash
from medclip_debias.language.pseudo_likelihood import pseudo_log_likelihood
from medclip_debias.models.text_encoder import SentenceTokenizer, load_masked_lm


def score_prepared(
    prepared: PreparedSet,
    language_model: Path,
    *,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Score the set's distinct sentences and write ``scores.parquet`` and ``scores.json``.

    Args:
        prepared: set to score.
        language_model: BERT or CXR-BERT folder with its masked-language-model head.
        device: where the model runs.
        progress: called with masked tokens done and to do.

    Raises:
        UserError: the set is not what was prepared, or the folder holds no such model.

    Returns:
        Counts, the model's hash, and percentiles of the log probability (nats).
    """
    check_sample(prepared)
    name = language_model_hash(language_model)
    model = load_masked_lm(language_model).to(device)
    tokenizer = SentenceTokenizer.load(language_model)
    texts = prepared.texts
    log_probs, tokens = pseudo_log_likelihood(model, tokenizer, texts, progress=progress)
    write_scores(prepared.folder, texts, log_probs, tokens, name)
    spread = {f"p{p}": float(np.percentile(log_probs, p)) for p in (5, 50, 95)}
    return {
        "distinct_sentences": len(texts),
        "tokens": int(tokens.sum()),
        "language_model_hash": name,
        "log_prob": spread,
    }
