"""Retrieval of reports under a preset: which text belongs to this image?

Pure functions of arrays; ties share their mean rank, and the share expected at a cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.evaluation.metrics import good_shares, target_ranks
from medclip_debias.evaluation.presets import RetrievalRule

Floats = NDArray[np.floating]
SECTIONS = ("findings", "impression")


def retrieval_metrics(
    rule: RetrievalRule,
    scores: Floats,
    texts: Sequence[str],
    classes: NDArray[np.integer] | None = None,
) -> dict[str, Any]:
    """The metrics of a rule, an image ranking the texts.

    ``scores [images, texts]`` has the pairs on its diagonal; equal texts have equal columns;
    ``classes`` is -1 for an image without exactly one. A precision is None where there are too few.
    """
    result: dict[str, Any] = {}
    if rule.recalls:
        column_of, own = np.arange(len(texts)), np.arange(len(texts))
        if rule.pool == "distinct":
            first: dict[str, int] = {}
            own = np.array([first.setdefault(text, len(first)) for text in texts])
            column_of = np.unique(own, return_index=True)[1]
        ranks = target_ranks(scores[:, column_of], np.arange(len(own)), own)
        result |= {f"recall_at_{k}": float((ranks <= k).mean()) for k in rule.recalls}
        result |= {"mean_rank": float(ranks.mean()), "candidates": len(column_of)}
        result["images"] = len(scores)
    if rule.precisions:
        kept = np.flatnonzero(classes >= 0) if classes is not None else np.zeros(0, dtype=int)
        labels = classes[kept] if classes is not None else kept
        values = scores[np.ix_(kept, kept)].astype(np.float64)
        same = labels[:, None] == labels
        for k in rule.precisions:
            enough = k <= len(kept)
            mean = float(good_shares(values, same, k).mean()) if enough else None
            result[f"precision_at_{k}"] = mean
        result["precision_images"] = len(kept)
    return result


def whole_texts(
    rule: RetrievalRule, sentences: pd.DataFrame, studies: Sequence[str]
) -> dict[str, str]:
    """The one text of each study that a rule asks for; a study without such a section is absent."""
    if rule.text == "sentences":
        return {}
    asked = SECTIONS if rule.text == "longest" else ("impression",)
    rows = sentences[sentences["study_id"].isin(set(studies)) & sentences["section"].isin(asked)]
    sections: dict[str, dict[str, list[str]]] = {}
    for study, section, text in zip(
        *(rows.sort_values("position", kind="stable")[c] for c in ("study_id", "section", "text")),
        strict=True,
    ):
        sections.setdefault(str(study), {}).setdefault(str(section), []).append(str(text))
    texts = {
        study: {s: " ".join(t) for s, t in of_study.items()} for study, of_study in sections.items()
    }
    return {
        study: max((own[s] for s in SECTIONS if s in own), key=len) for study, own in texts.items()
    }
