"""Ask an index: FAISS candidates by their global vectors, then their exact scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.data.synthetic import all_of_phantoms
from medclip_debias.errors import UserError, one_of
from medclip_debias.grounding.search.landmarks import (
    Floats,
    Landmarks,
    Regions,
    Score,
    image_scores,
    mean_direction,
    sentence_scores,
)
from medclip_debias.grounding.search.learn import (
    IMAGE_FILE,
    LANDMARKS_FILE,
    TEXT_FILE,
    nearest,
    open_faiss,
)
from medclip_debias.grounding.search.store import (
    AGAIN,
    ITEMS,
    REGIONS,
    check_content,
    map_items,
    map_regions,
    read_meta,
)
from medclip_debias.grounding.sentences import checked_sentences, cut_notes
from medclip_debias.models.synthetic import synthetic_warning

if TYPE_CHECKING:
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

ImageRanking = Literal["regions", "global"]
_AT_A_TIME = 64


@dataclass(frozen=True)
class Hit:
    """One result."""

    rank: int  # from 1, the best
    score: float  # exact, on the cosine scale; for images the likeness that ranked them
    image_id: str
    study_id: str
    row: int  # of the prepared set


class SearchIndex:
    """An index, opened in constant time; its parts are memory-mapped when they are first used.

    ``meta`` is the content of its ``index.json``.

    Example:
        ```python
        index = SearchIndex.open(Path("index"))
        model = index.load_model()
        hits = index.by_sentence(model.encode_sentences(["No effusion."])[0], model.score)
        ```
    """

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder = folder
        self.meta = meta

    @classmethod
    def open(cls, folder: Path) -> SearchIndex:
        """Open and check the index in ``folder``."""
        from medclip_debias.data.store import PreparedSet

        folder = Path(folder)
        meta = read_meta(folder)
        prepared = Path(meta.get("prepared", ""))
        # A set that was moved or deleted does not matter: the index holds what it needs.
        there = (prepared / "meta.json").is_file()
        if there and PreparedSet.open(prepared).content_hash != meta["data_hash"]:
            raise UserError(
                f"{folder}: is out of date, the prepared set {prepared} has changed since;"
                f" {AGAIN} with --overwrite."
            )
        return cls(folder, meta)

    def __len__(self) -> int:
        return int(self.meta["regions"][0])

    def load_model(self, folder: Path | None = None, device: str = "cpu") -> ImageTextModel:
        """The model that the index was built with, from ``folder`` or from where it was."""
        from medclip_debias.models.load import load_model

        place = Path(folder or self.meta["model"])
        if not place.is_dir():
            raise UserError(f"{place}: the index's model is missing; say with --model where it is.")
        model = load_model(place, device)
        self.check_model(model.content_hash, place)
        return model

    def check_model(self, content_hash: str | None, place: Path) -> None:
        """Refuse a model (in the folder ``place``) that the index was not built with."""
        if content_hash != self.meta["model_hash"]:
            raise UserError(
                f"{place}: is not the model that {self.folder} was built with ({content_hash}"
                f" instead of {self.meta['model_hash']}); {AGAIN} with --overwrite."
            )

    def by_sentence(
        self, vector: Tensor, score: Score, k: int = 10, candidates: int | None = None
    ) -> list[Hit]:
        """The ``k`` best images for a sentence, by exact score among the candidates.

        Args:
            vector: the sentence's unit vector ``[D]``.
            score: the model's own.
            k: results.
            candidates: images ranked exactly; by default as many as gave the target recall when
                the index was built.
        """
        query = self._landmarks.queries(vector[None].float().cpu().numpy())[0]
        count = self.meta["candidates"]["sentences"] if candidates is None else candidates
        rows, _ = self._nearest(TEXT_FILE, query, max(count, k))
        return self._ranked(rows, k, lambda x: sentence_scores(score, x, vector[None])[:, 0])

    def by_image(
        self,
        features: ImageFeatures,
        k: int = 10,
        candidates: int | None = None,
        ranking: ImageRanking = "regions",
    ) -> list[Hit]:
        """The ``k`` images most like one.

        Args:
            features: of that one image.
            k: results.
            candidates: as for `by_sentence`.
            ranking: ``regions`` ranks the candidates by `ranking.image_scores`; ``global`` leaves
                them in the order of the cosine of their mean directions.
        """
        vectors = features.stored.float()
        query = mean_direction(vectors.cpu().numpy())[0]
        if ranking == "global":
            return self._hits(*self._nearest(IMAGE_FILE, query, k), k)
        count = self.meta["candidates"]["images"] if candidates is None else candidates
        rows, _ = self._nearest(IMAGE_FILE, query, max(count, k))
        return self._ranked(rows, k, lambda x: image_scores(vectors[0], x))

    # ------------------------------------------------------------------------------- parts

    def _nearest(self, file: str, query: Floats, count: int) -> tuple[NDArray[np.int64], Floats]:
        if count < 1:
            raise UserError("the number of results and of candidates must be at least 1.")
        return nearest(self._faiss[file], query, count)

    def _ranked(
        self, rows: NDArray[np.int64], k: int, score: Callable[[Regions], Floats]
    ) -> list[Hit]:
        """The best of the candidates, a few of which are scored at a time, to stay in the cache."""
        rows = np.sort(rows)  # they lie on the disk in that order
        parts = [
            score(np.asarray(self._regions[rows[start : start + _AT_A_TIME]]))
            for start in range(0, len(rows), _AT_A_TIME)
        ]
        return self._hits(rows, np.concatenate(parts), k)

    def _hits(self, rows: NDArray[np.int64], scores: Floats, k: int) -> list[Hit]:
        order = np.lexsort((rows, -scores))[:k]
        items = self._items.take(rows[order]).to_pylist()
        return [
            Hit(rank, float(scores[place]), item["image_id"], item["study_id"], int(rows[place]))
            for rank, (place, item) in enumerate(zip(order, items, strict=True), start=1)
        ]

    @cached_property
    def _landmarks(self) -> Landmarks:
        return Landmarks.load(check_content(self.folder, LANDMARKS_FILE, self.meta))

    @cached_property
    def _faiss(self) -> dict[str, Any]:
        return {
            name: open_faiss(check_content(self.folder, name, self.meta))
            for name in (TEXT_FILE, IMAGE_FILE)
        }

    @cached_property
    def _regions(self) -> Regions:
        return map_regions(check_content(self.folder, REGIONS, self.meta), self.meta["regions"])

    @cached_property
    def _items(self) -> Any:
        return map_items(check_content(self.folder, ITEMS, self.meta))


def search(
    folder: Path,
    *,
    text: str | None = None,
    image: Path | None = None,
    k: int = 10,
    candidates: int | None = None,
    ranking: str = "regions",
    model: Path | None = None,
    device: str = "cpu",
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Search an index by one sentence or one image file; other arguments as in `SearchIndex`.

    ``model`` is where the index's model is, if it was moved; ``say`` is called where a sentence is
    longer than the encoder reads.

    Returns:
        ``hits``, best first, each a dict of `Hit`; ``images`` in the index; ``candidates``, how
        many of them were ranked exactly; ``warning``: a sentence where the model was trained on
        synthetic images and the index, or ``image``, is not known to be synthetic, else None.
    """
    from medclip_debias.data.images import prepare_image, read_radiograph

    if (text is None) == (image is None):
        raise UserError("give either a sentence with --text or an image with --image.")
    known: ImageRanking = one_of(ranking, get_args(ImageRanking), "ranking of images")
    if known == "global" and (image is None or candidates is not None):
        raise UserError(
            "--ranking global leaves out the exact stage of a search by --image: give neither"
            " --text nor --candidates with it."
        )
    sentences = checked_sentences([text]) if text is not None else []
    index = SearchIndex.open(folder)
    if image is not None and not Path(image).is_file():
        raise UserError(f"{image}: there is no such file; check the path.")
    encoder = index.load_model(model, device)
    measured = index.meta.get("recall", {}).get("k", k)
    if say and k > measured and candidates is None:
        say(f"candidates were chosen for {measured} results, not {k}: --candidates gives more.")
    synthetic = bool(index.meta.get("synthetic"))
    if image is None:
        kind = "sentences"
        if say:
            for line in cut_notes(encoder, sentences):
                say(line)
        with torch.inference_mode():
            vector = encoder.encode_sentences(sentences)[0]
        hits = index.by_sentence(vector, encoder.score, k, candidates)
    else:
        kind = "images"
        settings = encoder.preprocessing.prepare
        square = prepare_image(read_radiograph(Path(image), settings.window), settings)
        with torch.inference_mode():
            features = encoder.encode_images(torch.from_numpy(square[None]))
        hits = index.by_image(features, k, candidates, known)
        synthetic = synthetic and all_of_phantoms([Path(image)])
    used = index.meta["candidates"][kind] if candidates is None else candidates
    ranked = 0 if known == "global" else min(max(used, k), len(index))
    return {
        "hits": [asdict(hit) for hit in hits],
        "images": len(index),
        "candidates": ranked,
        "warning": synthetic_warning(encoder.provenance, synthetic),
    }
