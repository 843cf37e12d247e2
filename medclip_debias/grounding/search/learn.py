"""The global stage of an index: learned from stored regions, and measured against exact scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from medclip_debias.config import Settings
from medclip_debias.errors import explained
from medclip_debias.grounding.search.landmarks import (
    Floats,
    Landmarks,
    Progress,
    Regions,
    Score,
    blocks,
    image_scores,
    mean_direction,
    recall_at,
    sentence_scores,
)

SAMPLE = 4000  # images from which the landmarks' directions are learned
LADDER = (50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000)  # candidate counts tried

TEXT_FILE, IMAGE_FILE, LANDMARKS_FILE = "text.faiss", "image.faiss", "landmarks.safetensors"
FLAT_UP_TO = 500_000
"""Images up to which ``auto`` compares a query with every global vector."""

IndexKind = Literal["auto", "flat", "ivf"]


class IndexSettings(Settings):
    """How an index is built (docs/search.md, Settings); stored inside it."""

    landmarks: int = Field(1000, ge=2)
    rank: int = Field(256, ge=1)
    kind: IndexKind = "auto"
    k: int = Field(10, ge=1)
    target: float = Field(0.99, gt=0, le=1)
    queries: int = Field(100, ge=1)
    image_queries: int = Field(16, ge=0)
    batch_size: int = Field(32, ge=1)
    seed: int = Field(0, ge=0)

    def kind_for(self, images: int) -> IndexKind:
        """``kind``, with ``auto`` decided."""
        if self.kind != "auto":
            return self.kind
        return "flat" if images <= FLAT_UP_TO else "ivf"


def learn(
    folder: Path,
    regions: Regions,
    score: Score,
    learned_from: Tensor,
    held_out: Tensor,
    settings: IndexSettings,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the global vectors of every image into ``folder``; measure what they find.

    ``regions`` are stored vectors ``[n, N, D]``, usually memory-mapped, ``score`` is the model's
    own. ``learned_from`` are the vectors of the landmarks ``[M, D]``, ``held_out`` those of the
    sentences that measure the index; without any the landmarks are asked, and the result says so.

    Returns:
        ``kind`` of the FAISS indexes; ``recall``: for ``sentences`` and for ``images``, how many
        were asked, and the mean recall@k of the two stages against exact scores of every image,
        by number of candidates; ``candidates``: a number that reaches the target.
    """
    rng = np.random.default_rng(settings.seed)
    n, kind = len(regions), settings.kind_for(len(regions))
    asked = held_out if len(held_out) else learned_from[: settings.queries]
    sample = np.sort(rng.permutation(n)[:SAMPLE])
    scores = [
        sentence_scores(score, np.array(regions[sample[i : i + 128]]), learned_from)
        for i in range(0, len(sample), 128)
    ]
    landmarks = Landmarks.fit(learned_from.cpu().numpy(), np.concatenate(scores), settings.rank)
    landmarks.save(folder / LANDMARKS_FILE)

    together = torch.cat([learned_from, asked])
    vectors = np.empty((n, landmarks.directions.shape[1]), np.float32)
    directions = np.empty((n, regions.shape[2]), np.float32)
    exact = np.empty((n, len(asked)), np.float32)
    for place, block in blocks(regions):
        scored = sentence_scores(score, block, together)
        vectors[place] = landmarks.images(scored[:, : len(learned_from)])
        exact[place] = scored[:, len(learned_from) :]
        directions[place] = mean_direction(block)
        if progress:
            progress(place.stop, n)
    _write(folder / TEXT_FILE, vectors, kind, settings.seed)
    _write(folder / IMAGE_FILE, directions, kind, settings.seed)

    counts = [count for count in LADDER if count < n] + ([n] if n <= LADDER[-1] else [])
    enough: dict[str, int] = {}
    recall: dict[str, Any] = {"k": settings.k}

    def measure(what: str, file: str, queries: Floats, exact: Floats, **more: Any) -> None:
        index, of_query = open_faiss(folder / file), []
        for number, vector in enumerate(queries):
            rows = nearest(index, vector, counts[-1])[0]
            of_query.append([recall_at(exact[:, number], rows[:n], settings.k) for n in counts])
        recalls = np.mean(of_query, axis=0)
        reached = np.flatnonzero(recalls >= settings.target)
        # One step more than was enough for these queries: they chose it, so others find less.
        enough[what] = counts[min(reached[0] + 1, len(counts) - 1)] if len(reached) else counts[-1]
        by_count = {str(n): round(float(r), 4) for n, r in zip(counts, recalls, strict=True)}
        recall[what] = {"asked": len(queries), **more, "by_candidates": by_count}

    queries = landmarks.queries(asked.cpu().numpy())
    measure("sentences", TEXT_FILE, queries, exact, held_out=len(held_out) > 0)
    enough["images"] = enough["sentences"]
    chosen = np.sort(rng.permutation(n)[: settings.image_queries])
    if len(chosen):  # images that ask for images like them, themselves among them
        exact = np.empty((n, len(chosen)), np.float32)
        images = [torch.from_numpy(np.array(regions[row])).float() for row in chosen]
        for place, block in blocks(regions):
            exact[place] = np.stack([image_scores(image, block) for image in images], axis=1)
        measure("images", IMAGE_FILE, directions[chosen], exact)
    return {"kind": kind, "candidates": enough, "recall": recall}


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
    """Rows of the ``count`` largest inner products with ``vector``, best first, and these.

    Where the cells that ivf looks into hold fewer, it looks into all.
    """
    import faiss

    query, count = np.ascontiguousarray(vector[None]), min(count, index.ntotal)
    values, rows = index.search(query, count)
    if rows[0, -1] < 0:
        every: Any = faiss.SearchParametersIVF()
        every.nprobe = index.nlist
        values, rows = index.search(query, count, params=every)
    return rows[0], values[0]
