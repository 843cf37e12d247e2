"""The global stage of an index: learned from stored regions, and measured against exact scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.errors import explained
from medclip_debias.grounding.search.landmarks import Landmarks
from medclip_debias.grounding.search.ranking import (
    Floats,
    Progress,
    Regions,
    Score,
    blocks,
    image_scores,
    mean_direction,
    recall_at,
    sentence_scores,
)
from medclip_debias.grounding.search.settings import IndexKind, IndexSettings

SAMPLE = 4000  # images from which the landmarks' directions are learned
LADDER = (50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000)  # candidate counts tried

TEXT_FILE, IMAGE_FILE, LANDMARKS_FILE = "text.faiss", "image.faiss", "landmarks.safetensors"


@dataclass(frozen=True)
class Queries:
    """Sentences of an index: those that it learns from, and those that measure it."""

    landmarks: Tensor
    held_out: Tensor


def learn(
    folder: Path,
    regions: Regions,
    score: Score,
    queries: Queries,
    settings: IndexSettings,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the global vectors of every image into ``folder``; measure what they find.

    Args:
        folder: gets `TEXT_FILE`, `IMAGE_FILE` and `LANDMARKS_FILE`.
        regions: stored vectors ``[n, N, D]``, usually memory-mapped.
        score: the model's own.
        queries: sentences.
        settings: how.
        progress: called with images scored and images in total.

    Returns:
        ``kind`` of the FAISS indexes; ``recall``: for ``sentences`` and for ``images``, how many
        were asked, and the mean recall@k of the two stages against exact scores of every image,
        by number of candidates; ``candidates``: a number that reaches the target (`_enough`).
    """
    rng = np.random.default_rng(settings.seed)
    n, kind = len(regions), settings.kind_for(len(regions))
    # Without held-out sentences the landmarks themselves are asked, and the result says so.
    held_out = queries.held_out if len(queries.held_out) else queries.landmarks[: settings.queries]
    sample = np.sort(rng.permutation(n)[:SAMPLE])
    scores = [
        sentence_scores(score, np.array(regions[sample[i : i + 128]]), queries.landmarks)
        for i in range(0, len(sample), 128)
    ]
    landmarks = Landmarks.fit(
        queries.landmarks.cpu().numpy(), np.concatenate(scores), settings.rank
    )
    landmarks.save(folder / LANDMARKS_FILE)

    together = torch.cat([queries.landmarks, held_out])
    vectors = np.empty((n, landmarks.directions.shape[1]), np.float32)
    directions = np.empty((n, regions.shape[2]), np.float32)
    exact = np.empty((n, len(held_out)), np.float32)
    for place, block in blocks(regions):
        scored = sentence_scores(score, block, together)
        vectors[place] = landmarks.images(scored[:, : len(queries.landmarks)])
        exact[place] = scored[:, len(queries.landmarks) :]
        directions[place] = mean_direction(block)
        if progress:
            progress(place.stop, n)
    _write(folder / TEXT_FILE, vectors, kind, settings.seed)
    _write(folder / IMAGE_FILE, directions, kind, settings.seed)

    counts = [count for count in LADDER if count < n] + ([n] if n <= LADDER[-1] else [])
    by_text = _mean_recalls(
        folder / TEXT_FILE, landmarks.queries(held_out.cpu().numpy()), exact, counts, settings.k
    )

    def rounded(recalls: NDArray[np.float64]) -> dict[str, float]:
        return {str(n): round(float(r), 4) for n, r in zip(counts, recalls, strict=True)}

    enough = {"sentences": _enough(counts, by_text, settings.target)}
    enough["images"] = enough["sentences"]
    asked = np.sort(rng.permutation(n)[: settings.image_queries])
    recall = {
        "k": settings.k,
        "sentences": {
            "asked": len(held_out),
            "held_out": len(queries.held_out) > 0,
            "by_candidates": rounded(by_text),
        },
    }
    if len(asked):  # images that ask for images like them, themselves among them
        exact = np.empty((n, len(asked)), np.float32)
        images = [torch.from_numpy(np.array(regions[row])).float() for row in asked]
        for place, block in blocks(regions):
            exact[place] = np.stack([image_scores(image, block) for image in images], axis=1)
        by_image = _mean_recalls(folder / IMAGE_FILE, directions[asked], exact, counts, settings.k)
        enough["images"] = _enough(counts, by_image, settings.target)
        recall["images"] = {"asked": len(asked), "by_candidates": rounded(by_image)}
    return {"kind": kind, "candidates": enough, "recall": recall}


def _enough(counts: list[int], recalls: NDArray[np.float64], target: float) -> int:
    """The count after the smallest whose recall is at least ``target``, or the largest.

    One step more than was enough for these queries: they chose it, so others find a little less.
    """
    reached = np.flatnonzero(recalls >= target)
    return counts[min(reached[0] + 1, len(counts) - 1)] if len(reached) else counts[-1]


def _mean_recalls(
    path: Path, vectors: Floats, exact: Floats, counts: list[int], k: int
) -> NDArray[np.float64]:
    """Mean recall of the queries ``vectors`` by number of candidates, each searched by itself."""
    index = open_faiss(path)
    recalls = []
    for number, vector in enumerate(vectors):
        rows = nearest(index, vector, counts[-1])[0]
        recalls.append([recall_at(exact[:, number], rows[:count], k) for count in counts])
    return np.asarray(np.mean(recalls, axis=0))


# ----------------------------------------------------------------------------------- FAISS


def _write(path: Path, vectors: Floats, kind: IndexKind, seed: int) -> None:
    import faiss

    dim = vectors.shape[1]
    index: Any = faiss.IndexFlatIP(dim)
    if kind == "ivf":
        cells = max(int(4 * np.sqrt(len(vectors))), 1)
        index = faiss.IndexIVFFlat(index, dim, cells, faiss.METRIC_INNER_PRODUCT)
        index.cp.seed = seed + 1
        index.cp.min_points_per_centroid = 1  # small sets are allowed, without a warning
        index.nprobe = max(cells // 8, 1)
        index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(path))


def open_faiss(path: Path) -> Any:
    """The FAISS index in a file, memory-mapped: nothing is read until it is searched."""
    import faiss

    with explained(f"{path}: cannot be read as a FAISS index; run 'index' again", RuntimeError):
        return faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)


def nearest(index: Any, vector: Floats, count: int) -> tuple[NDArray[np.int64], Floats]:
    """Rows of the ``count`` largest inner products with ``vector``, best first, and these."""
    values, rows = index.search(np.ascontiguousarray(vector[None]), min(count, index.ntotal))
    filled = rows[0] >= 0  # the cells that ivf looks into may hold fewer
    return rows[0][filled], values[0][filled]
