"""How well false negatives are found, on a set whose truth is known (the phantom).

A negative is a sentence with the image of another study; it is false when that image agrees
with the sentence. Detectors: the model's own similarity (the most similar share of each
sentence's negatives, as FNC and GloFND do), shared positive labels, the same sentence in the
other study's report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.agreement import write_agreement
from medclip_debias.data.phantom.catalogue import CLASS_NAMES
from medclip_debias.data.phantom.truth import agreement_matrix, statement_from_json
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError, explained

Bools = NDArray[np.bool_]


class Truth:
    """The phantom's tables: what every sentence states and every image shows.

    Args:
        folder: ``truth/`` of a phantom, or the phantom's folder.

    Raises:
        UserError: the folder holds no such tables.
    """

    def __init__(self, folder: Path) -> None:
        place = folder / "truth" if (folder / "truth").is_dir() else folder
        with explained(f"{folder}: holds no truth of a phantom (truth/*.parquet)", Exception):
            images = pd.read_parquet(place / "images.parquet")
            sentences = pd.read_parquet(place / "sentences.parquet")
            self._findings = images.set_index("dicom_id")[list(CLASS_NAMES)].astype(bool)
            distinct = sentences.drop_duplicates("text")
            self._statements = dict(zip(distinct["text"], distinct["statement"], strict=True))
            self._eta = dict(zip(distinct["text"], distinct["eta_true"], strict=True))

    def knows(self, text: str) -> bool:
        """Whether the truth of this sentence is known."""
        return text in self._statements

    def eta(self, texts: list[str]) -> NDArray[np.float64]:
        """True class probability of each sentence."""
        return np.array([self._eta[text] for text in texts], dtype=np.float64)

    def agreement(self, texts: list[str], images: list[str]) -> Bools:
        """Whether each image agrees with each sentence: ``[texts, images]``.

        Raises:
            UserError: an image is not in the tables.
        """
        missing = [name for name in images if name not in self._findings.index]
        if missing:
            raise UserError(
                f"{len(missing)} of {len(images)} images are not in the phantom's truth tables; "
                "give the truth of the phantom that the set was prepared from."
            )
        shown = self._findings.loc[images].to_numpy()
        statements = [statement_from_json(self._statements[text]) for text in texts]
        return np.asarray(agreement_matrix(statements, shown))


def write_truth(truth: Truth, prepared: PreparedSet, path: Path) -> None:
    """Write which training studies agree with which of their sentences, for ``remove_known``.

    Raises:
        UserError: the truth is of another phantom.
    """
    images = prepared.images[prepared.images["split"] == "train"].drop_duplicates("study_id")
    said = prepared.sentences
    texts = list(dict.fromkeys(said["text"][said["study_id"].isin(images["study_id"])]))
    unknown = sum(not truth.knows(text) for text in texts)
    if unknown:
        raise UserError(f"{unknown} of {len(texts)} sentences are not of this phantom.")
    agree = truth.agreement(texts, [str(name) for name in images["image_id"]])
    write_agreement(path, texts, [str(name) for name in images["study_id"]], agree)


def detection(removed: Bools, false: Bools, negatives: Bools) -> dict[str, float | None]:
    """Precision, recall and F1 of the removed negatives.

    Args:
        removed: what a detector takes for false negatives, ``[T, I]``.
        false: what are.
        negatives: what counts at all; pairs are neither.

    Returns:
        ``precision`` (None when nothing was removed), ``recall`` (None when nothing is false),
        ``f1`` and ``removed`` (share of the negatives).
    """
    taken, wrong = removed & negatives, false & negatives
    both = int((taken & wrong).sum())
    total, real = int(taken.sum()), int(wrong.sum())
    return {
        "precision": both / total if total else None,
        "recall": both / real if real else None,
        "f1": 2 * both / (total + real) if total + real else None,
        "removed": total / max(int(negatives.sum()), 1),
    }


def most_similar(scores: NDArray[np.floating], negatives: Bools, share: float) -> Bools:
    """The ``share`` most similar negatives of each sentence, as `losses.fnc` counts them.

    Args:
        scores: ``[T, I]``.
        negatives: ``[T, I]``.
        share: alpha; the ``ceil(alpha (N - 1))`` largest, at least one when above 0.
    """
    count = np.ceil(share * (negatives.sum(axis=1) - 1) - 1e-9).astype(int)
    count = np.maximum(count, 1 if share > 0 else 0)
    order = np.argsort(np.where(negatives, -scores, np.inf), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return np.asarray((rank < count[:, None]) & negatives)


def detectors(
    scores: NDArray[np.floating],
    agree: Bools,
    negatives: Bools,
    same_label: Bools | None,
    same_text: Bools,
    shares: tuple[float, ...],
) -> dict[str, Any]:
    """Every detector's metrics, the rate of false negatives, and the similarity's ranking.

    Args:
        scores: similarity of every sentence with every image, ``[T, I]``.
        agree: the truth.
        negatives: pairs of a sentence with another study's image.
        same_label: studies share a positive label; None without labels.
        same_text: the other study says the same sentence.
        shares: of each sentence's negatives that the similarity removes.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    truth, values = agree[negatives], scores[negatives]
    both = 0 < truth.sum() < truth.size
    found: dict[str, Any] = {
        "negatives": int(negatives.sum()),
        "false_rate": float(truth.mean()),
        "same text": detection(same_text, agree, negatives),
    }
    if same_label is not None:
        found["shared label"] = detection(same_label, agree, negatives)
    for share in shares:
        removed = most_similar(scores, negatives, share)
        found[f"most similar {share:g}"] = detection(removed, agree, negatives)
    found["similarity"] = {
        "average_precision": float(average_precision_score(truth, values)) if both else None,
        "auc": float(roc_auc_score(truth, values)) if both else None,
    }
    return found
