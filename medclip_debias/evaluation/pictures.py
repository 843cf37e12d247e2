"""Pictures: heatmaps of phrases, chosen before anything is known of them; answers of retrieval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from medclip_debias.evaluation.metrics import first_relevant_rank
from medclip_debias.evaluation.phrase_selection import Phrase
from medclip_debias.evaluation.protocol import geometry_of
from medclip_debias.files import atomic_folder, write_json
from medclip_debias.grounding.absent import PERCENTILE, AbsentScores
from medclip_debias.grounding.boxes import as_boxes
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.grounding.overlay import OverlayStyle, slug, write_overlay
from medclip_debias.models.interface import MapKind

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.region_grid import RegionGrid

Floats = NDArray[np.floating]
CASES = ("best", "median", "worst")
RETRIEVAL_NOTICE = (
    "Pictures and this list hold patients' images and sentences of reports: share them only under"
    " the terms of the data."
)
RETRIEVAL_CHOICE = (
    "The queries with the best, the median and the worst rank of their first right answer; of equal"
    " ranks the first in the order of the set."
)
_SENTENCES, _IMAGES = 5, 3
NOTICE = (
    "Pictures, file names and this list hold patients' images and phrases of reports: share them"
    " only under the terms of the data."
)
CHOICE = (
    "One phrase of each category in turn, in the order of the phrase ids, each image once as long "
    "as there are others; the scores play no part."
)
CHOICE_OF_CASES = (
    "Beside these, the phrases with the best, the median and the worst value of a metric, of those"
    " that can be grounded."
)
CASE_METRICS = ("cnr_signed", "miou")

STYLE = OverlayStyle(max_side=440)
_QUANTILES = 1000


def choose_phrases(phrases: Sequence[Phrase], count: int) -> list[int]:
    """Numbers of ``count`` phrases, spread over categories and images; see `CHOICE`."""
    queues: dict[str, list[int]] = {}
    for number in sorted(range(len(phrases)), key=lambda number: phrases[number].phrase_id):
        queues.setdefault(phrases[number].category, []).append(number)
    chosen: list[int] = []
    for again in (False, True):  # first with images not shown yet, then with any
        before = -1
        while before < len(chosen) < count:
            before = len(chosen)
            for _, queue in sorted(queues.items()):
                images = {phrases[number].row for number in chosen}
                fresh = [n for n in queue if again or phrases[n].row not in images]
                chosen += fresh[:1]
                queue[:] = [n for n in queue if n not in chosen]
    return chosen[:count]


def choose_cases(
    phrases: Sequence[Phrase], metrics: Mapping[int, Mapping[str, float]]
) -> list[tuple[str, str, int]]:
    """Metric, ``best``, ``median`` or ``worst``, and number of the phrase, for `CASE_METRICS`.

    Of equal values the first in the order of the phrase ids; of two medians the better.
    """
    usable = sorted(
        (n for n, phrase in enumerate(phrases) if phrase.groundable and n in metrics),
        key=lambda n: phrases[n].phrase_id,
    )
    return [
        (metric, case, usable[place])
        for metric in (CASE_METRICS if usable else ())
        for values in (np.array([metrics[n][metric] for n in usable]),)
        for case, place in zip(CASES, case_places(-values), strict=True)
    ]


def write_heatmaps(
    folder: Path,
    prepared: PreparedSet,
    phrases: Sequence[Phrase],
    grids: Mapping[int, NDArray[np.float32]],
    metrics: Mapping[int, Mapping[str, float]],
    count: int,
    grid: RegionGrid,
    *,
    smoothing: float = 0.0,
    kind: MapKind = "cosine",
) -> None:
    """Write ``count`` pictures with true boxes, and ``index.json``, as one new folder.

    Beside them those of `choose_cases`. The pictures show the prepared image in the original's
    shape, in original coordinates.
    """
    chosen, cases = choose_phrases(phrases, count), choose_cases(phrases, metrics)
    every = list(dict.fromkeys([*chosen, *(number for _, _, number in cases)]))

    def heatmap(number: int) -> NDArray[np.float32]:
        """Computed anew each time: sixteen maps of large radiographs would hold 500 MB."""
        where = phrases[number].geometry
        return upsample_to_original(grids[number], where, grid, smoothing=smoothing)

    maps = ((heatmap(number), phrases[number].boxes) for number in every)
    reference, limits = one_scale(maps) or (None, None)
    items: dict[int, dict[str, Any]] = {}
    image_ids = prepared.images["image_id"].tolist()
    with atomic_folder(folder) as temporary:
        for place, number in enumerate(every, start=1):
            phrase = phrases[number]
            geometry = phrase.geometry
            name = f"{place:02d}_{slug(phrase.category, 24)}_{slug(phrase.text)}.png"
            (across, down), left, top = geometry.sides, geometry.pad_x, geometry.pad_y
            write_overlay(
                temporary / name,
                np.asarray(prepared.pixels[phrase.row]),
                heatmap(number),
                boxes=phrase.boxes,
                limits=limits,
                reference=reference,
                kind=kind,
                style=STYLE,
                # The prepared square reaches beyond the original by its padding.
                image_extent=(-left, -top, across - left, down - top),
            )
            items[number] = {
                "file": name,
                "phrase_id": phrase.phrase_id,
                "image_id": image_ids[phrase.row],
                "category": phrase.category,
                "text": phrase.text,
                "boxes": phrase.boxes,
                # A category of one image alone has no boxes of others to be held against.
                **{k: float(v) for k, v in metrics[number].items() if not np.isnan(v)},
            }
        coloured = "Each picture has its own colour scale."
        if limits is not None:
            coloured = (
                f"All pictures have one colour scale, up to {limits[1]:.2f}. What scores less"
                f" than {reference:.2f}, the 95th percentile of the scores outside the true"
                " boxes of these pictures, has no colour."
            )
        index = {
            "choice": CHOICE,
            "choice_of_cases": CHOICE_OF_CASES,
            "notice": NOTICE,
            "scale": coloured,
            "items": [items[number] for number in chosen],
            "cases": [{"metric": m, "case": case} | items[number] for m, case, number in cases],
        }
        write_json(temporary / "index.json", index)


def one_scale(
    maps: Iterable[tuple[NDArray[np.floating], ArrayLike]],
) -> tuple[float, tuple[float, float]] | None:
    """The reference and limits of the colours of all maps, whose true boxes are known.

    The reference is the 95th percentile of the scores outside the true boxes, all maps weighing
    alike: places where what the sentence says is not to be seen. The colours run to the
    highest score, as `medclip_debias.grounding.absent.AbsentScores.limits` says.

    None where no map has a seen pixel outside its boxes.
    """
    outside, highest = [], -np.inf
    for heatmap, boxes in maps:
        inside = np.zeros(heatmap.shape, dtype=bool)
        for x, y, width, height in as_boxes(boxes):
            rows = slice(max(math.floor(y), 0), math.ceil(y + height))
            inside[rows, max(math.floor(x), 0) : math.ceil(x + width)] = True
        scores = heatmap[~inside & ~np.isnan(heatmap)]
        if scores.size:
            # As many quantiles of each, so that a large radiograph counts no more than a small one.
            outside.append(np.quantile(scores, (np.arange(_QUANTILES) + 0.5) / _QUANTILES))
            highest = max(highest, float(np.nanmax(heatmap)))
    if not outside:
        return None
    middle, reference = np.percentile(np.concatenate(outside), (50.0, PERCENTILE))
    absent = AbsentScores(float(reference), float(middle), ())
    return absent.reference, absent.limits(highest)


# ------------------------------------------------------------------- answers of retrieval


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

    def queries(scores: Floats, right: NDArray[np.bool_]) -> Iterator[tuple[int, dict[str, Any]]]:
        ranks = first_relevant_rank(scores, right)
        for case, place in zip(CASES, case_places(ranks), strict=True):
            count = int(right[place].sum())
            yield place, {"case": case, "rank": float(ranks[place]), "right": count}

    images, sentences = [], []
    for study, query in queries(scores, says):
        answers = [
            {"text": texts[t], "score": float(scores[study, t]), "right": bool(says[study, t])}
            for t in np.argsort(-scores[study], kind="stable")[:_SENTENCES]
        ]
        right = np.flatnonzero(says[study])
        first = int(right[np.argmax(scores[study, right])])
        query |= {"file": file(study), "candidates": len(texts), "own": texts[first]}
        images.append(query | {"answers": answers})
    for sentence, query in queries(scores.T, says.T):
        column = scores[:, sentence]
        answers = [
            {"file": file(int(s)), "score": float(column[s]), "right": bool(says[s, sentence])}
            for s in np.argsort(-column, kind="stable")[:_IMAGES]
        ]
        query |= {"text": texts[sentence], "candidates": len(rows), "answers": answers}
        sentences.append(query)
    index = {"choice": RETRIEVAL_CHOICE, "notice": RETRIEVAL_NOTICE, "image_to_sentence": images}
    index |= {"sentence_to_image": sentences}
    with atomic_folder(folder) as temporary:
        for study, name in files.items():
            _write_picture(temporary / name, prepared, rows[study])
        write_json(temporary / "index.json", index)
    return index


def _write_picture(path: Path, prepared: PreparedSet, row: int) -> None:
    """The prepared image without the borders that made it a square."""
    from PIL import Image

    size = prepared.settings.size
    where = geometry_of(prepared, row, size)
    pads = zip((where.pad_x, where.pad_y), where.scales, strict=True)
    left, top = (round(max(pad, 0) * scale) for pad, scale in pads)
    pixels = np.asarray(prepared.pixels[row])[top : size - top, left : size - left]
    Image.fromarray(pixels).save(path)
