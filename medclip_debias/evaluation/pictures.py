"""Heatmap pictures of the evaluated phrases, chosen before anything is known about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.evaluation.phrase_selection import Phrase
from medclip_debias.files import atomic_folder, write_json
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.grounding.overlay import slug, write_overlay

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.region_grid import RegionGrid

NOTICE = (
    "Pictures, file names and this list hold patients' images and phrases of reports: share them as"
    " you may share the data."
)
CHOICE = (
    "One phrase of each category in turn, in the order of the phrase ids, each image once as long "
    "as there are others; the scores play no part."
)


def choose_phrases(phrases: Sequence[Phrase], count: int) -> list[int]:
    """Numbers of ``count`` phrases, spread over categories and images; see `CHOICE`."""
    queues: dict[str, list[int]] = {}
    for number in sorted(range(len(phrases)), key=lambda number: phrases[number].phrase_id):
        queues.setdefault(phrases[number].category, []).append(number)
    chosen: list[int] = []
    for again in (False, True):  # first with images not shown yet, then with any
        shown = {phrases[number].row for number in chosen}
        taken = True
        while taken and len(chosen) < count:
            taken = False
            for kind in sorted(queues):
                fresh = (n for n in queues[kind] if again or phrases[n].row not in shown)
                first = next(fresh, None)
                if first is None or len(chosen) == count:
                    continue
                queues[kind].remove(first)
                chosen.append(first)
                shown.add(phrases[first].row)
                taken = True
    return chosen


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
) -> list[dict[str, Any]]:
    """Write ``count`` pictures with true boxes, and ``index.json``, as one new folder.

    The pictures show the prepared image in the original's shape, in original coordinates.
    """
    items = []
    image_ids = prepared.images["image_id"].tolist()
    with atomic_folder(folder) as temporary:
        for place, number in enumerate(choose_phrases(phrases, count), start=1):
            phrase = phrases[number]
            geometry = phrase.geometry
            name = f"{place:02d}_{slug(phrase.category, 24)}_{slug(phrase.text)}.png"
            write_overlay(
                temporary / name,
                np.asarray(prepared.pixels[phrase.row]),
                upsample_to_original(grids[number], geometry, grid, smoothing=smoothing),
                boxes=phrase.boxes,
                # The prepared square reaches beyond the original by its padding.
                image_extent=(
                    -geometry.pad_x,
                    -geometry.pad_y,
                    geometry.side - geometry.pad_x,
                    geometry.side - geometry.pad_y,
                ),
            )
            items.append(
                {
                    "file": name,
                    "phrase_id": phrase.phrase_id,
                    "image_id": image_ids[phrase.row],
                    "category": phrase.category,
                    "text": phrase.text,
                    "boxes": phrase.boxes,
                    **{key: float(value) for key, value in metrics[number].items()},
                }
            )
        write_json(temporary / "index.json", {"choice": CHOICE, "notice": NOTICE, "items": items})
    return items
