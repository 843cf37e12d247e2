"""Probe a model folder on a prepared set: what its image features hold, and how they lie.

Linear probe, nearest neighbours, alignment, uniformity; and how well false negatives are found, on
a set whose truth is known (`medclip_debias.phantom`). A negative is a sentence with the image of
another study; it is false when that image agrees with the sentence. Detectors: the model's own
similarity (the most similar share of each sentence's negatives, as FNC and GloFND do), shared
positive labels, the same sentence in the other study's report.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from medclip_debias import __version__
from medclip_debias.config import Settings
from medclip_debias.data.labels import LabelPolicy
from medclip_debias.data.layout import STUDY_COLUMNS
from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import too_few, weighted_auc
from medclip_debias.evaluation.encoding import Network, Progress, row_scores
from medclip_debias.evaluation.label_table import study_labels
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.evaluation.provenance import plain
from medclip_debias.files import write_json
from medclip_debias.grounding.preparation import model_and_set
from medclip_debias.models.finite import finite
from medclip_debias.models.interface import compares, need_vectors
from medclip_debias.models.sentences import one_vector
from medclip_debias.parquet import read_parquet
from medclip_debias.phantom.truth import Truth

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.float64]
FORMAT = 1


class ProbeOptions(Settings):
    """Every choice that changes a metric; stored with the results.

    ``shares`` of the training patients whose labels a linear probe sees; small shares are sampled
    ``repeats`` times. ``neighbours`` are the k of nearest neighbours. ``removed`` are the shares
    of each sentence's negatives that the similarity takes for false; at most ``sentences``
    sentences of the split are judged.
    """

    labels: LabelPolicy = LabelPolicy()
    shares: tuple[float, ...] = (0.01, 0.1, 1.0)
    repeats: int = Field(5, ge=1)
    neighbours: tuple[int, ...] = (10, 50)
    cost: float = Field(1.0, gt=0)
    removed: tuple[float, ...] = (0.01, 0.05, 0.1, 0.3)
    sentences: int = Field(1000, ge=1)


def probe(
    model_folder: Path,
    prepared: Path,
    out: Path,
    *,
    split: str = "test",
    truth: Path | None = None,
    seed: int = 0,
    bootstrap: int = 1000,
    device: str = "auto",
    options: ProbeOptions | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Probe the image features; write ``probe.json``.

    Features are the mean of an image's region vectors, brought to unit length; of a peer, the
    vector by which its authors score the whole image. A model that reads images alone (RAD-DINO)
    has no alignment with sentences: what is of sentences is null in ``probe.json``.

    The probe learns from the set's train split. ``truth`` is that of the phantom that the set came
    from, for false negatives.
    """
    if split == "train":
        raise UserError(
            "The probe learns from the split 'train', so it cannot be scored on it; give --split "
            "test or validate."
        )
    began = time.perf_counter()
    options = options or ProbeOptions()
    model, data = model_and_set(model_folder, prepared, device)
    known_truth = Truth(Path(truth)) if truth is not None else None
    if known_truth is not None:
        need_vectors(model, "probe --truth", several=compares(model, "images"))
    rows = {name: _rows(data, name) for name in ("train", split)}
    names = [name for name in data.studies.columns if name not in STUDY_COLUMNS]
    if not names:
        raise UserError(f"{data.folder}: its studies have no labels; there is nothing to probe.")
    labels = study_labels(data, data.images["study_id"].tolist(), names)[1]
    every = np.concatenate(list(rows.values()))
    vectors, paired = _features(model, data, every, rows[split], progress)
    of_part = dict(zip(rows, np.split(vectors, [len(rows["train"])]), strict=True))
    patients = data.images["patient_id"].astype(str).to_numpy()
    draw = Draw(bootstrap, seed)
    classes, refused = {}, {}
    for name, values in labels.items():
        judged = options.labels.apply(values)
        sides: dict[str, Side] = {}
        for part, where in rows.items():
            known = ~np.isnan(judged[where])
            labelled = where[known]
            sides[part] = of_part[part][known], judged[labelled], patients[labelled].tolist()
        counts = {part: [int((y == v).sum()) for v in (1, 0)] for part, (_, y, _) in sides.items()}
        if min(min(pair) for pair in counts.values()) == 0:
            refused[name] = {"positive_negative": counts}
            continue
        ways = _one_class(sides["train"], sides[split], options, draw)
        classes[name] = ways | {"positive_negative": counts}
    if not classes:
        raise UserError(
            f"{prepared}: no label has both values in train and {split}; nothing to probe."
        )
    shared = set.intersection(*(set(of_class) for of_class in classes.values()))
    named = [way for way in next(iter(classes.values())) if way in shared - {"positive_negative"}]
    results: dict[str, Any] = {
        "format": FORMAT,
        "split": split,
        "classes": classes,
        "mean": {w: float(np.mean([c[w]["auc"] for c in classes.values()])) for w in named},
        "refused": refused,
        "alignment": alignment(paired["images"], paired["sentences"]) if paired else None,
        "uniformity": {
            "images": uniformity(of_part[split]),
            "sentences": uniformity(paired["distinct"]) if paired else None,
        },
        "counts": {part: len(where) for part, where in rows.items()}
        | {
            "images_of_other_views": int(data.images["split"].isin(list(rows)).sum()) - len(every),
            "pairs": len(paired.get("images", ())),
            "distinct_sentences": len(paired.get("distinct", ())),
        },
    }
    if known_truth is not None:
        results["false_negatives"] = _false_negatives(
            model, data, rows[split], labels, known_truth, options, seed
        )
    out = Path(out)
    results |= {
        "options": options.model_dump(mode="json"),
        "seed": seed,
        "bootstrap": {"resamples": bootstrap, "unit": "patient", "level": 0.95},
        "features": "vector of the whole image, unit length"
        if model.outputs.has_whole
        else "mean of the region vectors, unit length",
        "data_hash": data.content_hash,
        "model_hash": model.content_hash,
        "medclip_debias": __version__,
        "seconds": time.perf_counter() - began,
    }
    results = plain(results)
    write_json(out / "probe.json", results)
    return results


# ------------------------------------------------------------------------------ what is read


def _rows(data: PreparedSet, split: str) -> NDArray[np.int64]:
    rows = np.flatnonzero((data.images["split"] == split).to_numpy() & data.frontal)
    if not len(rows):
        there = set(data.images["split"])
        what, names = "frontal image" if split in there else "image", ", ".join(sorted(there))
        raise UserError(f"{data.folder}: has no {what} in the split '{split}'; it has {names}.")
    return rows


def _features(
    model: ImageTextModel,
    data: PreparedSet,
    rows: NDArray[np.int64],
    split_rows: NDArray[np.int64],
    progress: Progress | None,
) -> tuple[Floats, dict[str, Floats]]:
    """Image features of ``rows``; paired image and sentence vectors of the split, if it has any."""
    import torch

    parts, network = [], Network(model, data)
    with torch.inference_mode():
        for start in range(0, len(rows), 64):
            pooled = network.images(rows[start : start + 64].tolist()).pooled
            parts.append(finite(pooled, "probe").astype(np.float64))
            if progress:
                progress(min(start + 64, len(rows)), len(rows))
        vectors = np.concatenate(parts)
        if model.outputs.text_form == "none" or not compares(model, "images"):
            return vectors, {}
        sentences = data.sentences[["study_id", "text"]].drop_duplicates()
        place = {row: number for number, row in enumerate(rows)}
        of_study = {data.images["study_id"].iloc[row]: place[row] for row in split_rows}
        written = sentences[sentences["study_id"].isin(list(of_study))]
        if written.empty:
            raise UserError(f"{data.folder}: no study of the split has a sentence.")
        texts = list(dict.fromkeys(written["text"]))
        of_texts = one_vector(model.encode_sentences(texts), model.outputs.sentence_rows)
        encoded = finite(of_texts, "probe").astype(np.float64)
    number = {text: n for n, text in enumerate(texts)}
    return vectors, {
        "images": vectors[[of_study[study] for study in written["study_id"]]],
        "sentences": encoded[[number[text] for text in written["text"]]],
        "distinct": encoded,
    }


# -------------------------------------------------------------------------------- measures


Side = tuple[Floats, Floats, list[str]]
"""Features, labels and patients of the images of a split that have a label."""


def _one_class(learn: Side, ask: Side, options: ProbeOptions, draw: Draw) -> dict[str, Any]:
    (train, labels, patients), (test, truth, asked) = learn, ask
    ways: dict[str, Any] = {}
    for share in options.shares:
        values = []
        for repeat in range(1 if share >= 1 else options.repeats):
            chosen = few_labels(labels, patients, share, np.random.default_rng([draw.seed, repeat]))
            scores = linear_probe(train[chosen], labels[chosen], test, options.cost)
            values.append(auc_with_interval(scores, truth, asked, draw))
        aucs = np.array([value["auc"] for value in values])
        ways[f"linear at {share:g}"] = {
            "auc": float(aucs.mean()),
            "sd": float(aucs.std(ddof=1)) if len(aucs) > 1 else None,
            "interval": values[0]["interval"] if len(values) == 1 else None,
            "repeats": len(values),
        }
    for k in options.neighbours:
        if k <= len(train):
            scores = nearest_neighbours(train, labels, test, k)
            ways[f"{k} neighbours"] = auc_with_interval(scores, truth, asked, draw)
    return ways


def _false_negatives(
    model: ImageTextModel,
    data: PreparedSet,
    rows: NDArray[np.int64],
    labels: Mapping[str, Floats],
    known: Truth,
    options: ProbeOptions,
    seed: int,
) -> dict[str, Any]:
    studies = data.images["study_id"].iloc[rows].astype(str).to_numpy()
    written = data.sentences[data.sentences["study_id"].isin(set(studies))]
    written = written[[known.knows(text) for text in written["text"]]]
    if written.empty:
        raise UserError(
            "the truth tables have no sentence of this split; give those of its phantom."
        )
    if len(written) > options.sentences:
        written = written.sample(options.sentences, random_state=seed)
    texts, owners = written["text"].tolist(), written["study_id"].astype(str).to_numpy()
    agree = known.agreement(texts, data.images["image_id"].iloc[rows].tolist())
    negatives = owners[:, None] != studies[None, :]
    says = data.sentences["study_id"].astype(str).groupby(data.sentences["text"]).agg(set)
    same_text = np.array([[study in says[text] for study in studies] for text in texts])
    scores = row_scores(model, data, rows, texts, what="probe").T
    positive = np.stack(list(labels.values()), axis=1) == 1
    first = dict(zip(data.images["study_id"].astype(str), positive, strict=True))
    of_owners, of_studies = (
        np.array([first[name] for name in names], dtype=int) for names in (owners, studies)
    )
    same_label = of_owners @ of_studies.T > 0
    measured = detectors(scores, agree, negatives, same_label, same_text, options.removed)
    return measured | {"sentences": len(texts), "images": len(rows)} | _eta(data, known)


def _eta(data: PreparedSet, known: Truth) -> dict[str, Any]:
    """How log p of a language model follows the true class probability (Spearman's rho)."""
    from scipy.stats import spearmanr

    path = data.folder / "scores.parquet"
    if not path.is_file():
        return {}
    scores = read_parquet(path, ["text", "log_prob"])
    scores = scores[[known.knows(text) for text in scores["text"]]].reset_index(drop=True)
    if len(scores) < 3:
        return {}
    counts = data.sentences["text"].value_counts().reindex(scores["text"]).fillna(0).astype(int)
    often = np.repeat(np.arange(len(scores)), counts.to_numpy())
    eta, log_prob = known.eta(scores["text"].tolist()), scores["log_prob"].to_numpy()
    return {
        "log_prob_against_true_eta": {
            "distinct_sentences": float(spearmanr(log_prob, eta).statistic),
            "as_often_as_said": float(spearmanr(log_prob[often], eta[often]).statistic),
        }
    }


Bools = NDArray[np.bool_]


def alignment(first: Floats, second: Floats) -> float:
    """Mean squared distance of paired unit vectors ``[n, D]``: 0 is perfect, 2 is the chance level.

    Wang and Isola (2020), equation 4 with alpha = 2.
    """
    return float(((first - second) ** 2).sum(axis=1).mean())


def uniformity(vectors: Floats, block: int = 1024) -> float:
    """Log of the mean of ``exp(-2 d^2)`` over all pairs of different unit vectors ``[n, D]``.

    Wang and Isola (2020), equation 5 with t = 2: 0 when all are the same, -4 for vectors spread
    evenly over a sphere of many dimensions.
    """
    n = len(vectors)
    if n < 2:
        raise UserError("uniformity needs at least two vectors.")
    total = 0.0
    for start in range(0, n, block):
        cosine = vectors[start : start + block] @ vectors.T
        # d^2 = 2 - 2 cos for unit vectors; the pair of a vector with itself is taken out below.
        total += float(np.exp(-2 * (2 - 2 * cosine)).sum())
    own = float(np.exp(-2 * (2 - 2 * (vectors**2).sum(axis=1))).sum())
    return float(np.log((total - own) / (n * (n - 1))))


def nearest_neighbours(train: Floats, labels: Floats, test: Floats, k: int) -> Floats:
    """Share of positives among each test vector's ``k`` most similar training vectors ``[t]``.

    Vectors ``[n, D]`` and ``[t, D]`` are of unit length.
    """
    from sklearn.neighbors import KNeighborsRegressor

    if not 1 <= k <= len(train):
        raise UserError(f"{k} neighbours cannot be taken from {len(train)} training images.")
    machine = KNeighborsRegressor(k, metric="cosine", algorithm="brute").fit(train, labels)
    return np.asarray(machine.predict(test))


def few_labels(
    labels: Floats, patients: Sequence[str], share: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of a random ``share`` of the patients that holds both label values.

    Patients come in one random order, and more are taken until both values are there, so that
    a smaller share is part of a larger one under the same ``rng`` state.
    """
    names, of_row = np.unique(np.asarray(patients, dtype=str), return_inverse=True)
    order = rng.permutation(len(names))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    place = rank[of_row]
    least = max(place[labels == value].min() for value in (0.0, 1.0)) + 1
    return np.flatnonzero(place < max(round(share * len(names)), least))


def linear_probe(train: Floats, labels: Floats, test: Floats, cost: float = 1.0) -> Floats:
    """Scores ``[t]`` of logistic regression on standardised features.

    ``cost`` is the inverse strength of the L2 penalty.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scale = StandardScaler().fit(train)
    machine = LogisticRegression(C=cost, max_iter=2000).fit(scale.transform(train), labels)
    return np.asarray(machine.decision_function(scale.transform(test)))


def auc_with_interval(
    scores: Floats, labels: Floats, patients: Sequence[str], draw: Draw
) -> dict[str, Any]:
    """AUC and its bootstrap interval over patients; none of `too_few`."""
    positive = labels == 1
    area = draw.estimates(lambda w: {"auc": weighted_auc(positive, scores, w)}, patients)["auc"]
    interval = None if too_few(positive, patients) else area.interval
    return {"auc": area.value, "interval": interval}


# --------------------------------------------------------------------- false negatives


def detection(removed: Bools, false: Bools, negatives: Bools) -> dict[str, float | None]:
    """Precision, recall and F1 of the removed negatives.

    All are ``[T, I]``; only ``negatives`` count. Precision is None when nothing was removed, recall
    when nothing is false.
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

    Of ``[T, I]``, the ``ceil(share (N - 1))`` largest, at least one when the share is above 0.
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
    same_label: Bools,
    same_text: Bools,
    shares: tuple[float, ...],
) -> dict[str, Any]:
    """Every detector's metrics, the rate of false negatives, and the similarity's ranking.

    All are ``[T, I]``: ``agree`` is the truth, ``negatives`` pairs with another study's image,
    ``shares`` what the similarity removes of each sentence's negatives.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    truth, values = agree[negatives], scores[negatives]
    both = 0 < truth.sum() < truth.size
    measured: dict[str, Any] = {
        "negatives": int(negatives.sum()),
        "false_rate": float(truth.mean()),
        "same text": detection(same_text, agree, negatives),
        "shared label": detection(same_label, agree, negatives),
    }
    for share in shares:
        removed = most_similar(scores, negatives, share)
        measured[f"most similar {share:g}"] = detection(removed, agree, negatives)
    measured["similarity"] = {
        "average_precision": float(average_precision_score(truth, values)) if both else None,
        "auc": float(roc_auc_score(truth, values)) if both else None,
    }
    return measured
