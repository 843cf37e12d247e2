"""Examples of whole-study retrieval: what the model takes for the best answers, right or wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.metrics import first_relevant_rank
from medclip_debias.files import atomic_folder, write_json

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet

Floats = NDArray[np.floating]
FOLDER = "retrieval"
CASES = ("best", "median", "worst")
NOTICE = (
    "Pictures and this list hold patients' images and sentences of reports: share them as you may "
    "share the data."
)
CHOICE = (
    "The queries with the best, the median and the worst rank of their first right answer; of equal"
    " ranks the first in the order of the set."
)
_SENTENCES, _IMAGES = 5, 3


def case_places(values: Floats) -> tuple[int, int, int]:
    """Places of the lowest value, the median (of two the lower) and the highest, first of equals.

    >>> case_places(np.array([3.0, 1.0, 1.0, 9.0]))
    (1, 2, 3)
    """
    order = np.argsort(values, kind="stable")
    highest = int(np.argmax(values))
    return int(order[0]), int(order[(len(order) - 1) // 2]), highest


def write_examples(
    folder: Path,
    prepared: PreparedSet,
    rows: Sequence[int],
    texts: Sequence[str],
    says: NDArray[np.bool_],
    scores: Floats,
) -> dict[str, Any]:
    """Write ``index.json`` and the pictures that it names, as one new folder.

    ``rows`` are of the images of S studies; ``says [S, T]`` whether a report holds a sentence, at
    least one in each line; ``scores [S, T]``.
    """
    files: dict[int, str] = {}

    def file(study: int) -> str:
        return files.setdefault(study, f"image_{len(files) + 1:02d}.png")

    def queries(scores: Floats, own: NDArray[np.bool_]) -> Iterator[tuple[int, dict[str, Any]]]:
        ranks = first_relevant_rank(scores, own)
        for case, place in zip(CASES, case_places(ranks), strict=True):
            right = int(own[place].sum())
            yield place, {"case": case, "rank": float(ranks[place]), "right": right}

    images, sentences = [], []
    for study, found in queries(scores, says):
        answers = [
            {"text": texts[t], "score": float(scores[study, t]), "right": bool(says[study, t])}
            for t in np.argsort(-scores[study], kind="stable")[:_SENTENCES]
        ]
        own = np.flatnonzero(says[study])
        first = int(own[np.argmax(scores[study, own])])
        found |= {"file": file(study), "candidates": len(texts), "own": texts[first]}
        images.append(found | {"answers": answers})
    for sentence, found in queries(scores.T, says.T):
        column = scores[:, sentence]
        answers = [
            {"file": file(int(s)), "score": float(column[s]), "right": bool(says[s, sentence])}
            for s in np.argsort(-column, kind="stable")[:_IMAGES]
        ]
        found |= {"text": texts[sentence], "candidates": len(rows), "answers": answers}
        sentences.append(found)
    index = {"choice": CHOICE, "notice": NOTICE, "image_to_sentence": images}
    index |= {"sentence_to_image": sentences}
    with atomic_folder(folder) as temporary:
        for study, name in files.items():
            _write_picture(temporary / name, prepared, rows[study])
        write_json(temporary / "index.json", index)
    return index


def _write_picture(path: Path, prepared: PreparedSet, row: int) -> None:
    """The prepared image without the borders that made it a square."""
    from PIL import Image

    of_row = prepared.images.iloc[row]
    settings = prepared.settings
    where = SquareGeometry(
        int(of_row["height"]), int(of_row["width"]), settings.size, settings.size, settings.fit
    )
    pads = zip((where.pad_x, where.pad_y), where.scales, strict=True)
    left, top = (round(max(pad, 0) * scale) for pad, scale in pads)
    pixels = np.asarray(prepared.pixels[row])
    pixels = pixels[top : settings.size - top, left : settings.size - left]
    Image.fromarray(pixels).save(path)
