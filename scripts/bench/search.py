"""Two-stage search over generated studies: build time, bytes, time of a query, recall@10.

No model and no images: the region vectors are generated, with the structure that real ones have and
random noise has not. Anatomy varies smoothly over the grid and is nearly the same in every image;
patients differ in a few directions; findings, of which few are frequent and many rare, and which
resemble each other within a category, change the regions of one place of an image. Sentences lie
apart from the regions, as texts do from images, and name a finding and a place in varying words.
"""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import psutil
import torch
import torch.nn.functional as F
import typer

from medclip_debias.config import SimilaritySettings
from medclip_debias.grounding.search.learn import learn
from medclip_debias.grounding.search.query import SearchIndex
from medclip_debias.grounding.search.ranking import blocks, recall_at, sentence_scores
from medclip_debias.grounding.search.settings import IndexSettings
from medclip_debias.grounding.search.store import (
    ITEMS,
    REGIONS,
    map_regions,
    write_items,
    write_meta,
)
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.similarity import Similarity

SIDE, DIM = 15, 128
FINDINGS, CATEGORIES, PLACES = 200, 14, 12
BATCH = 250
SIMILARITY = Similarity(SimilaritySettings(), DIM)


def score(features: ImageFeatures, sentences: torch.Tensor) -> torch.Tensor:
    """The score of a model of this project, with its first settings."""
    scores: torch.Tensor = SIMILARITY(features.regions, sentences)
    return scores


class World:
    """What all generated studies share."""

    def __init__(self, seed: int) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        y, x = torch.meshgrid(*[torch.linspace(0, 1, SIDE)] * 2, indexing="ij")
        self.grid = torch.stack([x, y], dim=-1).reshape(-1, 2)
        waves = torch.cat([torch.cos(torch.pi * k * self.grid) for k in range(1, 4)], dim=1)
        self.anatomy = 0.6 * waves @ self.directions(waves.shape[1])
        self.patients = 0.25 * self.directions(16)
        category = self.directions(CATEGORIES)
        of = torch.arange(FINDINGS) % CATEGORIES
        self.findings = F.normalize(category[of] + 0.8 * self.directions(FINDINGS), dim=1)
        self.places = self.directions(PLACES)
        self.centres = torch.rand(PLACES, 2, generator=self.rng)
        self.image_side, self.text_side = self.directions(2)
        self.frequency = 1 / torch.arange(1, FINDINGS + 1).float()

    def directions(self, count: int) -> torch.Tensor:
        """Random unit vectors ``[count, DIM]``."""
        return F.normalize(torch.randn(count, DIM, generator=self.rng), dim=1)

    def draw(self, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        count = int(np.prod(shape))
        finding = torch.multinomial(self.frequency, count, replacement=True, generator=self.rng)
        place = torch.randint(0, PLACES, (count,), generator=self.rng)
        return finding.view(shape), place.view(shape)

    def images(self, count: int) -> np.ndarray:
        """Regions of new images: float16 unit vectors ``[count, SIDE * SIDE, DIM]``."""
        x = torch.randn(count, SIDE * SIDE, DIM, generator=self.rng).mul_(0.35 / DIM**0.5)
        x += self.anatomy + 0.5 * self.image_side
        x += (torch.randn(count, 1, 16, generator=self.rng) @ self.patients) / 2
        finding, place = self.draw((count, 4))
        # None to four findings an image, of varying strength and extent.
        strength = torch.rand(count, 4, generator=self.rng) * 1.6
        strength *= torch.rand(count, 4, generator=self.rng) < 0.4
        spread = 0.05 + 0.12 * torch.rand(count, 4, 1, generator=self.rng)
        centre = self.centres[place] + 0.08 * torch.randn(count, 4, 2, generator=self.rng)
        distance = (self.grid[None, None] - centre[:, :, None]).pow(2).sum(-1)
        blob = strength[..., None] * torch.exp(-distance / 2 / spread**2)
        x += blob.transpose(1, 2) @ (self.findings[finding] + 0.35 * self.places[place])
        return F.normalize(x, dim=-1).half().numpy()

    def sentences(self, count: int) -> torch.Tensor:
        """Unit vectors ``[count, DIM]`` of new sentences."""
        finding, place = self.draw((count,))
        words = 0.25 * self.directions(count)
        y = 0.6 * self.text_side + self.findings[finding] + 0.35 * self.places[place] + words
        return F.normalize(y, dim=1)


def build(folder: Path, images: int, world: World, settings: IndexSettings) -> dict[str, float]:
    """Make an index of generated studies; return the seconds of each part."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shape = (images, SIDE * SIDE, DIM)
    began = time.perf_counter()
    with (folder / REGIONS).open("wb") as stream:
        for start in range(0, images, BATCH):
            stream.write(world.images(min(BATCH, images - start)).tobytes())
    regions = map_regions(folder / REGIONS, shape)
    made = time.perf_counter()
    vectors = world.sentences(settings.landmarks + settings.queries)
    landmarks, held_out = vectors[: settings.landmarks], vectors[settings.landmarks :]
    learned = learn(folder, regions, score, landmarks, held_out, settings)
    ids = [f"image{row}" for row in range(images)]
    write_items(folder / ITEMS, pd.DataFrame({"image_id": ids, "study_id": ids}))
    content = {"model_hash": "made", "data_hash": "made", "regions": list(shape)}
    write_meta(folder, content | learned)
    return {"made": made - began, "learned and measured": time.perf_counter() - made}


def ask(folder: Path, vectors: torch.Tensor) -> tuple[list[float], list]:
    """Milliseconds and rows found of each sentence, one at a time, from a fresh opening."""
    began = time.perf_counter()
    index = SearchIndex.open(folder)
    print(f"open: {1000 * (time.perf_counter() - began):.1f} ms")
    spent, found = [], []
    for vector in vectors:
        began = time.perf_counter()
        hits = index.by_sentence(vector, score, 10)
        spent.append(1000 * (time.perf_counter() - began))
        found.append(np.array([hit.row for hit in hits]))
    return spent, found


def main(
    folder: Annotated[Path, typer.Argument(help="where to put the index; removed afterwards")],
    images: int = 50_000,
    queries: int = 200,
    threads: int = 2,
) -> None:
    """Build, ask, compare with exact scores of every image, print."""
    torch.set_num_threads(threads)
    import faiss

    faiss.omp_set_num_threads(threads)
    world = World(seed=1)
    settings = IndexSettings(image_queries=2)
    for name, seconds in build(folder, images, world, settings).items():
        print(f"{name}: {seconds:.0f} s")
    for path in sorted(folder.iterdir()):
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    index = SearchIndex.open(folder)
    print(f"kind {index.meta['kind']}, candidates {index.meta['candidates']}")
    for kind in ("sentences", "images"):
        print(f"recall@10 of {kind} by candidates: {index.meta['recall'].get(kind)}")
    vectors = world.sentences(queries)
    spent, found = ask(folder, vectors)
    exact = np.empty((images, len(vectors)), np.float32)
    began = time.perf_counter()
    for place, block in blocks(index._regions):
        exact[place] = sentence_scores(score, block, vectors)
    scanned = time.perf_counter() - began
    recalls = [recall_at(exact[:, number], rows, 10) for number, rows in enumerate(found)]
    print(f"first query: {spent[0]:.1f} ms")
    print(f"median query: {statistics.median(spent[1:]):.1f} ms")
    print(f"95th percentile: {np.percentile(spent[1:], 95):.1f} ms")
    print(f"recall@10 of {len(recalls)} other sentences: {np.mean(recalls):.4f}")
    print(f"exact scores of every image for all of them: {scanned:.0f} s")
    print(f"peak of this process: {psutil.Process().memory_info().rss / 1e9:.1f} GB at the end")
    shutil.rmtree(folder)


if __name__ == "__main__":
    typer.run(main)
