"""Phrase grounding: does a sentence score higher inside its boxes than elsewhere?

A contrast-to-noise ratio without its sign, and even a hit rate above that of a random pixel, can be
had from the anatomy alone: hearts and effusions are always in one place. So each metric of a
sentence's map stands beside the same metric with the boxes of *other* images of its class, and
beside that of the mean of those boxes as a map (the place prior), both without the own patient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.bootstrap import Statistics, mean_where_known
from medclip_debias.evaluation.catalogue import CHANCE, of_protocol
from medclip_debias.evaluation.metrics import MIDDLE_THRESHOLDS, THRESHOLDS
from medclip_debias.evaluation.options import BoxRule, EvaluationOptions
from medclip_debias.evaluation.phrase_selection import (
    Phrase,
    Phrases,
    phrases_of,
    validation_phrases,
)
from medclip_debias.evaluation.pictures import write_heatmaps
from medclip_debias.evaluation.presets import Preset
from medclip_debias.evaluation.presets.grounding import merge_phrases, score_map, summarise_maps
from medclip_debias.evaluation.protocol import (
    Draw,
    Measured,
    Protocol,
    Request,
    Skipped,
    columns_of,
    items_by_row,
)
from medclip_debias.evaluation.table import Row, rows
from medclip_debias.evaluation.upsampled import Upsampled, box_threshold
from medclip_debias.grounding.boxes import as_boxes, overlaps, visible_boxes
from medclip_debias.grounding.denials import FREQUENCIES, frequency_group
from medclip_debias.grounding.sharpen import Sharpener
from medclip_debias.models.region_grid import RegionGrid

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.float64]
DICE_SHARES = tuple(k / 20 for k in range(2, 19))
"""Shares of a map's range at which it may be cut for its Dice coefficient."""
BOX_LEVELS = (0.1, 0.3, 0.5)
METRICS = tuple(metric.name for metric in of_protocol("grounding"))
OF_OTHERS = {"other_boxes": "other images' boxes", "place_prior": "place prior"}
ABOVE_OTHERS = "cnr_above_others"
FLOORS = tuple(name for name in METRICS if name != ABOVE_OTHERS)
"""Metrics that other images' boxes and the place prior have, too."""
OTHERS = 5
"""Other images whose boxes are laid on an image."""


def score_phrase(
    grid_map: NDArray[np.floating],
    boxes: ArrayLike,
    geometry: SquareGeometry,
    grid: RegionGrid,
    *,
    smoothing: float = 0.0,
    rule: BoxRule | None = None,
) -> dict[str, float]:
    """Metrics of one phrase, at the resolution of its original image.

    Boxes are in original pixels, their union the truth; ``smoothing`` is in grid cells.
    ``box_recall_L`` is the share of the phrase's boxes that some box cut from the map overlaps with
    an IoU of at least L; ``area`` the truth's share of the image.
    """
    heatmap = Upsampled(grid_map, geometry, grid, boxes, smoothing=smoothing)
    return phrase_metrics(heatmap, boxes, rule or BoxRule())


def phrase_metrics(heatmap: Upsampled, boxes: ArrayLike, rule: BoxRule) -> dict[str, float]:
    """As `score_phrase`, of a map at the resolution of its image."""
    contrast = heatmap.cnr()
    cut = heatmap.boxes_at_least(box_threshold(heatmap, rule), rule.connectivity)
    best = best_overlaps(boxes, cut)
    recalls = {f"box_recall_{level}": float((best >= level).mean()) for level in BOX_LEVELS}
    return {
        "cnr": abs(contrast),
        "cnr_signed": contrast,
        "miou": float(heatmap.iou(THRESHOLDS).mean()),
        "miou_middle": float(heatmap.iou(MIDDLE_THRESHOLDS).mean()),
        "pointing_game": heatmap.pointing_game(),
        **recalls,
        "area": heatmap.area / (heatmap.height * heatmap.width),
    }


def best_overlaps(truth: ArrayLike, found: ArrayLike) -> Floats:
    """Highest IoU of each true box with any found box ``[K]``; 0 where none was found."""
    shared = overlaps(truth, found)
    return shared.max(axis=1) if shared.shape[1] else np.zeros(len(shared))


def phrase_rows(
    metrics: Sequence[Mapping[str, float]],
    categories: Sequence[str],
    patients: Sequence[str],
    *,
    counts: Sequence[int] | None = None,
    draw: Draw | None = None,
    within: str = "",
) -> list[Row]:
    """Means over phrases, overall and by group, with intervals.

    Groups are categories, terciles of the boxes' share of their image (``area``), and how many
    training studies say the sentence (``frequency``). The chance levels come along: of mIoU that
    of a map that is zero everywhere (21 of 41 thresholds take the whole image), of the pointing
    game the hit rate of a random pixel; both are set by the boxes' areas alone.
    """
    values = {name: np.array([of_one.get(name, np.nan) for of_one in metrics]) for name in METRICS}
    area = np.array([of_one["area"] for of_one in metrics])
    kinds = np.asarray(categories, dtype=object)
    groups = {"": np.ones(len(metrics), dtype=bool)}
    groups |= {f"category: {kind}": kinds == kind for kind in sorted(set(categories))}
    groups |= {f"area: {name}": members for name, members in area_terciles(area)[0].items()}
    if counts is not None:
        names = np.array([frequency_group(count) for count in counts], dtype=object)
        order = [frequency_group(first) for first, _ in FREQUENCIES]
        groups |= {f"frequency: {n}": names == n for n in order if (names == n).any()}

    def statistics(weights: Floats) -> dict[str, Floats]:
        return {
            f"{group}/{name}" if group else name: mean_where_known(v[members], weights[:, members])
            for group, members in groups.items()
            for name, v in values.items()
        }

    estimates = (draw or Draw()).estimates(statistics, patients)
    measured = []
    for group, members in groups.items():
        part = estimates.part(f"{group}/" if group else "")
        for name, of_all in values.items():
            known = of_all[members][~np.isnan(of_all[members])]
            # The plain mean, whose last digit the weighted one may not have.
            part[name] = float(known.mean()) if known.size else float("nan")
        part["area"] = float(area[members].mean())
        label = ", ".join(filter(None, (within, group))) or None
        measured += rows(part, n=int(members.sum()), group=label)
        if not group:
            mean = part["area"]
            floors = {"miou": mean * float((THRESHOLDS <= 0).mean()), "pointing_game": mean}
            measured += rows(floors, group=", ".join(filter(None, (within, CHANCE))))
    return measured


def area_terciles(area: Floats) -> tuple[dict[str, NDArray[np.bool_]], list[float]]:
    """Phrases with small, middle and large boxes, and the 1/3 and 2/3 quantiles between them.

    An area on a bound belongs to the smaller group; a group that ties leave empty is absent.
    """
    low, high = (float(bound) for bound in np.quantile(area, [1 / 3, 2 / 3]))
    groups = {
        "small": area <= low,
        "middle": (area > low) & (area <= high),
        "large": area > high,
    }
    return {name: members for name, members in groups.items() if members.any()}, [low, high]


class PhraseGrounding(Protocol):
    """The protocol: every phrase's map on its image, against the union of its boxes."""

    name, file = "grounding", "phrases"
    truth = ("groundable", "area")
    counted = ("phrases",)

    def __init__(
        self,
        phrases: Phrases,
        *,
        options: EvaluationOptions,
        prompts: Mapping[str, Any],
        validation: Phrases | str = "no phrases to choose a threshold on",
    ) -> None:
        self.selected = phrases
        self._validation = validation
        others = [] if isinstance(validation, str) else validation.phrases
        self._all = [*phrases.phrases, *others]
        self._sentences = list(dict.fromkeys(phrase.text for phrase in self._all))
        self._sharpener = Sharpener(options.sharpen, self._sentences, prompts)
        self.texts = list(dict.fromkeys([*self._sentences, *self._sharpener.texts]))
        self.rows = frozenset(phrase.row for phrase in self._all)
        self.curves: dict[int, Floats] = {}
        self.grids: dict[int, NDArray[np.float32]] = {}
        self.metrics: dict[int, dict[str, float]] = {}
        self._smoothing, self._rule = options.smoothing, options.boxes
        self._of_image = items_by_row(phrase.row for phrase in self._all)

    @classmethod
    def plan(cls, request: Request) -> Self:
        validation: Phrases | str
        phrases = request.once(phrases_of)
        try:
            validation = request.once(validation_phrases)
        except Skipped as reason:
            validation = str(reason)
        options, prompts = request.options, request.model.prompts
        return cls(phrases, options=options, prompts=prompts, validation=validation)

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        place = {text: number for number, text in enumerate(self.texts)}
        self._model, self._place = model, place
        self._vectors = vectors[[place[text] for text in self._sentences]]
        self._further = vectors[[place[text] for text in self._sharpener.texts]]

    def see(self, rows: Sequence[int], features: ImageFeatures) -> None:
        for row, own in zip(rows, features, strict=True):
            numbers = self._of_image[row]
            columns = [self._place[self._all[number].text] for number in numbers]
            vectors = self._vectors[columns]
            maps = self._sharpener.maps(self._model, own, columns, vectors, self._further)[0]
            for number, scores in zip(numbers, maps, strict=True):
                self.take(number, scores.reshape(self._model.grid.shape), self._model.grid)

    def take(self, number: int, scores: NDArray[np.float32], grid: RegionGrid) -> None:
        """Take the map ``[rows, columns]`` of a phrase, by its number."""
        phrase, self._grid = self._all[number], grid
        heatmap = Upsampled(scores, phrase.geometry, grid, phrase.boxes, smoothing=self._smoothing)
        self.curves[number] = heatmap.dice(DICE_SHARES)
        if number < len(self.selected.phrases):
            self.grids[number] = scores
            self.metrics[number] = phrase_metrics(heatmap, phrase.boxes, self._rule)

    def measure(self, draw: Draw) -> Measured:
        phrases = self.selected.phrases
        yes = [number for number, phrase in enumerate(phrases) if phrase.groundable]
        no = [number for number, phrase in enumerate(phrases) if not phrase.groundable]
        if not yes:
            raise Skipped(
                f"None of the {len(phrases)} phrases can be grounded: each says that something is "
                "absent or normal."
            )
        chosen = self._cut(yes)
        floors = self._floors(yes, chosen["share_of_range"])
        measured = self._rows(yes, draw)
        for kind, group in OF_OTHERS.items():
            measured += rows(floors.pop(kind, {}), n=floors["phrases"], group=group)
        areas = np.array([self.metrics[number]["area"] for number in yes])
        details = self.selected.counts | {
            "phrases": len(yes),
            "patients": len({phrases[number].patient for number in yes}),
            "area_tercile_bounds": area_terciles(areas)[1],
            "boxes": sum(len(phrases[number].boxes) for number in yes),
            "floors": floors,
            "dice": chosen,
            "source": self.selected.source,
            "unseen_boxes": sum(
                not len(visible_boxes(phrase.boxes, phrase.geometry)) for phrase in phrases
            ),
            "not_groundable": len(no),
        }
        if no:
            measured += self._rows(no, draw, "not groundable")
        return Measured(measured, details, self._items())

    def under(self, preset: Preset) -> dict[str, Any] | None:
        rule = preset.grounding
        if rule is None:
            return None
        every = rule.phrases == "all"
        kept = [n for n, p in enumerate(self.selected.phrases) if p.groundable or every]
        phrases = [self.selected.phrases[number] for number in kept]
        chosen = merge_phrases(
            rule, [p.row for p in phrases], [p.text for p in phrases], [p.boxes for p in phrases]
        )
        scores = [
            score_map(
                rule,
                self.grids[kept[place]],
                boxes,
                phrases[place].geometry,
                self._grid,
                smoothing=self._smoothing,
                scale=self._model.learned_scale,
            )
            for place, boxes in chosen
        ]
        summary = summarise_maps(rule, scores, [phrases[place].category for place, _ in chosen])
        return summary | {"of_phrases": len(self.selected.phrases)}

    @staticmethod
    def statistics(details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        """Means of the groundable phrases."""
        del details
        yes = items["groundable"].to_numpy(dtype=bool)
        columns = {m.name: m.item for m in of_protocol("grounding") if m.compared and m.item}
        there = {name: column for name, column in columns.items() if column in items.columns}
        values = dict(zip(there, columns_of(items[yes], *there.values()), strict=True))
        return lambda weights: {
            name: mean_where_known(own, weights[:, yes]) for name, own in values.items()
        }

    def counts(self) -> dict[str, int]:
        return {"phrases": len(self.selected.phrases)}

    def write_pictures(self, out: Path, data: PreparedSet, count: int) -> None:
        """The maps of some phrases, in ``heatmaps/``."""
        write_heatmaps(
            out / "heatmaps",
            data,
            self.selected.phrases,
            self.grids,
            self.metrics,
            count,
            self._grid,
            smoothing=self._smoothing,
        )

    def _cut(self, yes: Sequence[int]) -> dict[str, Any]:
        """Add every phrase's Dice coefficients to its metrics; say where each rule cuts."""
        first = len(self.selected.phrases)
        others = [n for n, phrase in enumerate(self._all) if n >= first and phrase.groundable]

        def best(numbers: Sequence[int]) -> int | None:
            """The place in `DICE_SHARES` of the highest mean Dice; the first of equals."""
            curves = [self.curves[number] for number in numbers]
            return int(np.mean(curves, axis=0).argmax()) if curves else None

        places = {"fixed": DICE_SHARES.index(0.5), "validated": best(others)}
        places["test_threshold"] = best(yes)
        for number, own in self.metrics.items():
            for rule, place in places.items():
                if place is not None:
                    own[f"dice_{rule}"] = float(self.curves[number][place])
        shares = {n: None if p is None else DICE_SHARES[p] for n, p in places.items()}
        found: dict[str, Any] = {"share_of_range": shares, "validation_phrases": len(others)}
        if isinstance(self._validation, str):
            found["reason"] = self._validation
        return found

    def _floors(self, yes: Sequence[int], cuts: Mapping[str, float | None]) -> dict[str, Any]:
        """Means of every metric with other images' boxes and of the place prior.

        Adds to each phrase how far its signed CNR lies above that with others' boxes.
        """
        phrases = [self.selected.phrases[number] for number in yes]
        rows: dict[str, list[dict[str, float]]] = {"other_boxes": [], "place_prior": []}
        for number, phrase, places in zip(yes, phrases, others_of(phrases), strict=True):
            self.metrics[number][ABOVE_OTHERS] = float("nan")
            if not places:
                continue
            others = [phrases[place] for place in places]
            geometry = phrase.geometry
            laid = [
                self._metrics_of(
                    self.grids[number], geometry, moved_boxes(o.boxes, o.geometry, geometry), cuts
                )
                for o in others[:OTHERS]
            ]
            mean = {name: float(np.mean([each[name] for each in laid])) for name in laid[0]}
            prior = place_prior(others, geometry, self._grid)
            rows["other_boxes"].append(mean)
            rows["place_prior"].append(self._metrics_of(prior, geometry, phrase.boxes, cuts))
            contrast = self.metrics[number]["cnr_signed"] - mean["cnr_signed"]
            self.metrics[number][ABOVE_OTHERS] = contrast
        means = {
            kind: {name: float(np.mean([row[name] for row in found])) for name in found[0]}
            for kind, found in rows.items()
            if found
        }
        return {"phrases": len(rows["place_prior"]), "images_tried": OTHERS, **means}

    def _metrics_of(
        self,
        scores: NDArray[np.floating],
        geometry: SquareGeometry,
        boxes: ArrayLike,
        cuts: Mapping[str, float | None],
    ) -> dict[str, float]:
        """`FLOORS` of one map and some boxes."""
        heatmap = Upsampled(scores, geometry, self._grid, boxes, smoothing=self._smoothing)
        found = phrase_metrics(heatmap, boxes, self._rule)
        for rule, share in cuts.items():
            if share is not None:
                found[f"dice_{rule}"] = float(heatmap.dice([share])[0])
        return {name: found[name] for name in FLOORS if name in found}

    def _rows(self, numbers: Sequence[int], draw: Draw, within: str = "") -> list[Row]:
        phrases = [self.selected.phrases[number] for number in numbers]
        return phrase_rows(
            [self.metrics[number] for number in numbers],
            [phrase.category for phrase in phrases],
            [phrase.patient for phrase in phrases],
            counts=[phrase.sentence_count for phrase in phrases],
            draw=draw,
            within=within,
        )

    def _items(self) -> pd.DataFrame:
        phrases = self.selected.phrases
        metrics = pd.DataFrame([self.metrics[number] for number in range(len(phrases))])
        metrics = metrics.rename(columns={m.name: m.item for m in of_protocol(self.name)})
        head = pd.DataFrame(
            {
                "id": [phrase.phrase_id for phrase in phrases],
                "patient": [phrase.patient for phrase in phrases],
                "category": [phrase.category for phrase in phrases],
                "sentence_count": [phrase.sentence_count for phrase in phrases],
                "groundable": [phrase.groundable for phrase in phrases],
            }
        )
        return pd.concat([head, metrics], axis=1)


# --------------------------------------------------------------------------------- floors


def others_of(phrases: Sequence[Phrase]) -> list[list[int]]:
    """For each phrase the places of the phrases of its class of other patients.

    In an order that is the same for every model: one permutation of each class, read on from the
    phrase's own place.
    """
    members: dict[str, list[int]] = {}
    for place, phrase in enumerate(phrases):
        members.setdefault(phrase.category, []).append(place)
    found: list[list[int]] = [[] for _ in phrases]
    for places in members.values():
        order = np.random.default_rng(0).permutation(places).tolist()
        for number, place in enumerate(order):
            own = phrases[place].patient
            others = [*order[number + 1 :], *order[:number]]
            found[place] = [other for other in others if phrases[other].patient != own]
    return found


def moved_boxes(
    boxes: Sequence[Sequence[float]], own: SquareGeometry, to: SquareGeometry
) -> Floats:
    """Boxes ``[K, 4]`` of one image at the same shares of another's width and height."""
    across, down = to.width / own.width, to.height / own.height
    return np.asarray(as_boxes(boxes) * [across, down, across, down], dtype=np.float64)


def place_prior(others: Sequence[Phrase], geometry: SquareGeometry, grid: RegionGrid) -> Floats:
    """Share of ``others`` whose boxes hold the centre of each region ``[rows, columns]``."""
    centres = geometry.to_original(grid.centres())
    x, y = centres[0, :, 0] / geometry.width, centres[:, 0, 1] / geometry.height
    covered = np.zeros(grid.shape)
    for other in others:
        sides = [other.geometry.width, other.geometry.height] * 2
        left, top, width, height = (as_boxes(other.boxes) / sides).T[:, :, None]
        rows = (y >= top) & (y < top + height)
        columns = (x >= left) & (x < left + width)
        covered += (rows[:, :, None] & columns[:, None, :]).any(axis=0)
    return covered / len(others)
