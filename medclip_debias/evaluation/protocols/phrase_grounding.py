"""Phrase grounding: does a sentence score higher inside its boxes than elsewhere?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.bootstrap import bootstrap_intervals, mean_where_known
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
from medclip_debias.evaluation.place_floors import OTHERS, moved_boxes, others_of, place_prior
from medclip_debias.evaluation.presets import Preset
from medclip_debias.evaluation.presets.grounding import merge_phrases, score_map, summarise_maps
from medclip_debias.evaluation.protocol import Draw, Measured, Protocol, Request, Skipped
from medclip_debias.evaluation.table import Row, rows, without_rows
from medclip_debias.evaluation.upsampled import Upsampled, box_threshold
from medclip_debias.grounding.boxes import overlaps, visible_boxes
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
BOX_METRICS = tuple(f"box_recall_{level}" for level in BOX_LEVELS)
METRICS = tuple(metric.name for metric in of_protocol("grounding"))
DIVISIONS = {"categories": "category", "areas": "area", "sentence_frequency": "frequency"}
"""Divisions of the phrases, and what their groups are called in the table of results."""
OF_OTHERS = {"other_boxes": "other images' boxes", "place_prior": "place prior"}
ABOVE_OTHERS = "cnr_above_others"
FLOORS = tuple(name for name in METRICS if name != ABOVE_OTHERS)
"""Metrics that other images' boxes and the place prior have, too."""


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

    Args:
        grid_map: region-sentence cosines ``[rows, columns]``.
        boxes: ``[K, 4]`` of x, y, width, height in original pixels; their union is the truth.
        geometry: the image's way into the model.
        grid: where the regions lie in the model's input.
        smoothing: sigma of a Gaussian over the grid, in cells; 0 for none.
        rule: where the map is cut to give boxes.

    Returns:
        `FLOORS` but the Dice coefficients, and ``area``: the truth's share of the image.
        ``box_recall_L`` is the share of the phrase's boxes that some box cut from the map overlaps
        with an IoU of at least L.
    """
    heatmap = Upsampled(grid_map, geometry, grid, boxes, smoothing=smoothing)
    return phrase_metrics(heatmap, boxes, rule or BoxRule())


def phrase_metrics(heatmap: Upsampled, boxes: ArrayLike, rule: BoxRule) -> dict[str, float]:
    """As `score_phrase`, of a map at the resolution of its image."""
    contrast = heatmap.cnr()
    found = heatmap.boxes_at_least(box_threshold(heatmap, rule), rule.connectivity)
    best = best_overlaps(boxes, found)
    return {
        "cnr": abs(contrast),
        "cnr_signed": contrast,
        "miou": float(heatmap.iou(THRESHOLDS).mean()),
        "miou_middle": float(heatmap.iou(MIDDLE_THRESHOLDS).mean()),
        "pointing_game": heatmap.pointing_game(),
        **{
            name: float((best >= level).mean())
            for name, level in zip(BOX_METRICS, BOX_LEVELS, strict=True)
        },
        "area": heatmap.area / (heatmap.height * heatmap.width),
    }


def best_overlaps(truth: ArrayLike, found: ArrayLike) -> Floats:
    """Highest IoU of each true box with any found box ``[K]``; 0 where none was found.

    Args:
        truth: ``[K, 4]`` of x, y, width, height.
        found: ``[F, 4]`` of the same.
    """
    shared = overlaps(truth, found)
    return shared.max(axis=1) if shared.shape[1] else np.zeros(len(shared))


def summarise_phrases(
    rows: Sequence[Mapping[str, float]],
    categories: Sequence[str],
    patients: Sequence[str],
    *,
    counts: Sequence[int] | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Means over phrases, overall and by group, with intervals.

    The chance levels of the overlap metrics come along: ``miou_floor`` is the mIoU of a map that is
    zero everywhere (21 of 41 thresholds take the whole image), ``pointing_game_floor`` the
    hit rate of a random pixel; both are set by the boxes' areas alone.

    Args:
        rows: `score_phrase` of each phrase.
        categories: category of each phrase.
        patients: patient of each phrase.
        counts: how many training studies say each phrase's sentence; None for no such groups.
        resamples: bootstrap resamples of the patients.
        seed: of the bootstrap.

    Returns:
        The metrics, and the same in ``categories``, ``areas`` (terciles of the boxes' share of
        their image) and ``sentence_frequency``.
    """
    values = {metric: np.array([row.get(metric, np.nan) for row in rows]) for metric in METRICS}
    area = np.array([row["area"] for row in rows])
    kinds = np.asarray(categories, dtype=object)
    terciles, bounds = area_terciles(area)
    groups: dict[str, dict[str, NDArray[np.bool_]]] = {
        "categories": {kind: kinds == kind for kind in sorted(set(categories))},
        "areas": terciles,
    }
    if counts is not None:
        names = np.array([frequency_group(count) for count in counts], dtype=object)
        order = [frequency_group(first) for first, _ in FREQUENCIES]
        groups["sentence_frequency"] = {n: names == n for n in order if (names == n).any()}

    def statistics(weights: Floats) -> dict[str, Floats]:
        result = {metric: mean_where_known(values[metric], weights) for metric in METRICS}
        for division, parts in groups.items():
            for name, members in parts.items():
                for metric in METRICS:
                    result[f"{division}/{name}/{metric}"] = mean_where_known(
                        values[metric][members], weights[:, members]
                    )
        return result

    intervals = bootstrap_intervals(statistics, patients, resamples=resamples, seed=seed)

    def metrics(members: NDArray[np.bool_], prefix: str) -> dict[str, Any]:
        return {
            **{metric: _mean(values[metric][members]) for metric in METRICS},
            "interval": {metric: intervals[f"{prefix}{metric}"] for metric in METRICS},
            "phrases": int(members.sum()),
            "area": float(area[members].mean()),
        }

    return {
        **metrics(np.ones(len(rows), dtype=bool), ""),
        "patients": len(set(patients)),
        "miou_floor": float(area.mean()) * float((THRESHOLDS <= 0).mean()),
        "pointing_game_floor": float(area.mean()),
        "area_tercile_bounds": bounds,
        **{
            division: {
                name: metrics(members, f"{division}/{name}/") for name, members in parts.items()
            }
            for division, parts in groups.items()
        },
    }


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def area_terciles(area: Floats) -> tuple[dict[str, NDArray[np.bool_]], list[float]]:
    """Phrases with small, middle and large boxes, and the two bounds between them.

    Bounds are the 1/3 and 2/3 quantiles; an area on a bound belongs to the smaller group, and a
    group that ties leave empty is absent.
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

    name: ClassVar[str] = "grounding"
    items_name: ClassVar[str] = "phrases"
    counted: ClassVar[tuple[str, ...]] = ("phrases",)

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
        self.floors: dict[int, dict[str, dict[str, float]]] = {}
        self._smoothing, self._rule = options.smoothing, options.boxes
        self._of_image = phrases_of_images(self._all)

    @classmethod
    def plan(cls, request: Request) -> Self:
        """See `Protocol.plan`."""
        validation: Phrases | str
        phrases = request.once(phrases_of)
        try:
            validation = request.once(validation_phrases)
        except Skipped as reason:
            validation = str(reason)
        options, prompts = request.options, request.model.prompts
        return cls(phrases, options=options, prompts=prompts, validation=validation)

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        """See `Protocol.begin`."""
        place = {text: number for number, text in enumerate(self.texts)}
        self._model, self._place = model, place
        self._vectors = vectors[[place[text] for text in self._sentences]]
        self._further = vectors[[place[text] for text in self._sharpener.texts]]

    def see(self, rows: Sequence[int], features: ImageFeatures) -> None:
        """See `Protocol.see`."""
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
        """See `Protocol.measure`; phrases that cannot be grounded stand apart."""
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
        summary = self._summary(yes, draw)
        measured = _rows(summary)
        for kind, group in OF_OTHERS.items():
            measured += rows(floors.pop(kind, {}), n=floors["phrases"], group=group)
        details = without_rows(summary, *DIVISIONS) | self.selected.counts
        details |= {
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
            measured += [
                row._replace(group=f"not groundable{f', {row.group}' if row.group else ''}")
                for row in _rows(self._summary(no, draw))
            ]
        return Measured(measured, details, self._items())

    def under(self, preset: Preset) -> dict[str, Any] | None:
        """See `Protocol.under`."""
        rule = preset.grounding
        if rule is None:
            return None
        kept = [
            (number, phrase)
            for number, phrase in enumerate(self.selected.phrases)
            if phrase.groundable or rule.phrases == "all"
        ]
        chosen = merge_phrases(
            rule,
            [phrase.row for _, phrase in kept],
            [phrase.text for _, phrase in kept],
            [phrase.boxes for _, phrase in kept],
        )
        scores = [
            score_map(
                rule,
                self.grids[kept[place][0]],
                boxes,
                kept[place][1].geometry,
                self._grid,
                smoothing=self._smoothing,
                scale=self._model.learned_scale,
            )
            for place, boxes in chosen
        ]
        found = summarise_maps(rule, scores, [kept[place][1].category for place, _ in chosen])
        return found | {"of_phrases": len(self.selected.phrases)}

    def counts(self) -> dict[str, int]:
        """See `Protocol.counts`."""
        return {"phrases": len(self.selected.phrases)}

    def write_pictures(self, out: Path, data: PreparedSet, count: int) -> None:
        """See `Protocol.write_pictures`; the maps of some phrases, in ``heatmaps/``."""
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
        others = [n for n in range(first, len(self._all)) if self._all[n].groundable]
        places: dict[str, int | None] = {
            "fixed": DICE_SHARES.index(0.5),
            "validated": self._best(others),
            "test_threshold": self._best(yes),
        }
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

    def _best(self, numbers: Sequence[int]) -> int | None:
        """The place in `DICE_SHARES` of the highest mean Dice; the first of equals."""
        if not numbers:
            return None
        return int(np.mean([self.curves[number] for number in numbers], axis=0).argmax())

    def _summary(self, numbers: Sequence[int], draw: Draw) -> dict[str, Any]:
        phrases = [self.selected.phrases[number] for number in numbers]
        return summarise_phrases(
            [self.metrics[number] for number in numbers],
            [phrase.category for phrase in phrases],
            [phrase.patient for phrase in phrases],
            counts=[phrase.sentence_count for phrase in phrases],
            **draw.keywords,
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


def _rows(summary: Mapping[str, Any]) -> list[Row]:
    """What `summarise_phrases` gave as rows, groups and floors as well."""
    part = dict(summary)
    chance = {"miou": part.pop("miou_floor"), "pointing_game": part.pop("pointing_game_floor")}
    found = rows(part, n=summary["phrases"]) + rows(chance, group=CHANCE)
    for division, kind in DIVISIONS.items():
        for name, own in (summary.get(division) or {}).items():
            found += rows(own, n=own["phrases"], group=f"{kind}: {name}")
    return found


def phrases_of_images(phrases: Sequence[Phrase]) -> dict[int, list[int]]:
    """Numbers of the phrases on each image, by the image's row."""
    result: dict[int, list[int]] = {}
    for number, phrase in enumerate(phrases):
        result.setdefault(phrase.row, []).append(number)
    return result
