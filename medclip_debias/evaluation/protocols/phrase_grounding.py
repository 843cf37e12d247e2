"""Phrase grounding: does a sentence score higher inside its boxes than elsewhere?

A contrast-to-noise ratio without its sign, and even a hit rate above that of a random pixel, can be
had from the anatomy alone: hearts and effusions are always in one place. So each metric of a
sentence's map stands beside the same metric with the boxes of *other* images of its class, and
beside that of the mean of those boxes as a map (the place prior), both without the own patient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.bootstrap import Statistics, mean_where_known
from medclip_debias.evaluation.catalogue import CHANCE, of_protocol
from medclip_debias.evaluation.maps import MapProtocol
from medclip_debias.evaluation.metrics import MIDDLE_THRESHOLDS, THRESHOLDS
from medclip_debias.evaluation.options import BoxRule
from medclip_debias.evaluation.phrase_selection import Phrase, phrases_of, validation_phrases
from medclip_debias.evaluation.pictures import write_heatmaps
from medclip_debias.evaluation.presets import Preset
from medclip_debias.evaluation.presets.grounding import merge_phrases, score_map, summarise_maps
from medclip_debias.evaluation.protocol import Draw, Measured, Request, Skipped
from medclip_debias.evaluation.table import Row, rows
from medclip_debias.evaluation.upsampled import Upsampled, box_threshold
from medclip_debias.grounding.boxes import as_boxes, overlaps, visible_boxes
from medclip_debias.grounding.denials import FREQUENCIES, frequency_group
from medclip_debias.models.region_grid import RegionGrid

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet

Floats = NDArray[np.float64]
DICE_SHARES = tuple(k / 20 for k in range(2, 19))
"""Shares of a map's range at which it may be cut for its Dice coefficient."""
BOX_LEVELS = (0.1, 0.3, 0.5)
COLUMNS = {metric.name: metric.item for metric in of_protocol("grounding")}
"""The metrics, and the column of the item table that holds each."""
ABOVE_OTHERS = "cnr_above_others"
OTHERS = 5
"""Other images whose boxes are laid on an image."""


_MIDDLE = np.isin(THRESHOLDS, MIDDLE_THRESHOLDS)


def phrase_metrics(
    heatmap: Upsampled, boxes: ArrayLike, rule: BoxRule, cut: ArrayLike | None = None
) -> dict[str, float]:
    """Metrics of one phrase, at the resolution of its original image.

    Boxes are in original pixels, their union the truth. ``box_recall_L`` is the share of the
    phrase's boxes that some box cut from the map overlaps with an IoU of at least L; ``area`` the
    truth's share of the image. ``cut`` are the boxes cut from the map, where they are known.
    """
    contrast, overlap = heatmap.cnr(), heatmap.iou(THRESHOLDS)
    cut = cut_boxes(heatmap, rule) if cut is None else cut
    best = best_overlaps(boxes, cut)
    recalls = {f"box_recall_{level}": float((best >= level).mean()) for level in BOX_LEVELS}
    return {
        "cnr": abs(contrast),
        "cnr_signed": contrast,
        "miou": float(overlap.mean()),
        "miou_middle": float(overlap[_MIDDLE].mean()),
        "pointing_game": heatmap.pointing_game(),
        **recalls,
        "area": heatmap.area / (heatmap.height * heatmap.width),
    }


def cut_boxes(heatmap: Upsampled, rule: BoxRule) -> list[list[float]]:
    """The boxes that a rule cuts from a map, whatever its true boxes are."""
    return heatmap.regions_at_least(box_threshold(heatmap, rule), rule.connectivity)[0]


def best_overlaps(truth: ArrayLike, found: ArrayLike) -> Floats:
    """Highest IoU of each true box with any found box ``[K]``; 0 where none was found."""
    shared = overlaps(truth, found)
    return shared.max(axis=1) if shared.shape[1] else np.zeros(len(shared))


def phrase_rows(items: pd.DataFrame, draw: Draw, within: str = "") -> list[Row]:
    """Means over the phrases of an item table, overall and by group, with intervals.

    Groups are categories, terciles of the boxes' share of their image (``area``), and how many
    training studies say the sentence (``frequency``). The chance levels come along: of mIoU that
    of a map that is zero everywhere (21 of 41 thresholds take the whole image), of the pointing
    game the hit rate of a random pixel; both are set by the boxes' areas alone.
    """
    values = {n: items[c].to_numpy(np.float64) for n, c in COLUMNS.items() if c in items.columns}
    area, kinds = items["area"].to_numpy(), items["category"].to_numpy()
    frequency = items["sentence_count"].map(frequency_group).to_numpy()
    groups = {"": np.ones(len(items), dtype=bool)}
    groups |= {f"category: {kind}/": kinds == kind for kind in sorted(set(kinds))}
    groups |= {f"area: {name}/": members for name, members in area_terciles(area)[0].items()}
    order = [frequency_group(first) for first, _ in FREQUENCIES]
    groups |= {f"frequency: {n}/": frequency == n for n in order if (frequency == n).any()}
    places = {  # of each metric in each group its values, and whose they are
        f"{group}{name}": (v[members], members)
        for group, members in groups.items()
        for name, v in values.items()
    }

    def statistics(weights: Floats) -> dict[str, Floats]:
        return {p: mean_where_known(v, weights[:, members]) for p, (v, members) in places.items()}

    estimates = draw.estimates(statistics, items["patient"].tolist())
    known = {place: int((~np.isnan(v)).sum()) for place, (v, _) in places.items()}
    measured = []
    for group, members in groups.items():
        n = int(members.sum())
        label = ", ".join(filter(None, (within, group.removesuffix("/")))) or None
        measured += estimates.rows(group, fewer=known, group=label)
        mean = float(area[members].mean())
        measured.append(Row("area", mean, n=n, group=label))
        if not group:
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


class PhraseGrounding(MapProtocol):
    """The protocol: every phrase's map on its image, against the union of its boxes."""

    name, file = "grounding", "phrases"
    truth = ("groundable", "area")
    counted = "phrases"

    def __init__(self, request: Request) -> None:
        self._selected, self._options = request.once(phrases_of), request.options
        self._phrases, self._others = self._selected.phrases, list[Phrase]()
        self.count = len(self._phrases)
        self._reason: dict[str, str] = {}
        self._model = request.model
        try:
            self._others = request.once(validation_phrases).phrases
        except Skipped as reason:
            self._reason = {"reason": str(reason)}
        self._asked_phrases = [*self._phrases, *self._others]
        rows = [phrase.row for phrase in self._asked_phrases]
        texts = [phrase.text for phrase in self._asked_phrases]
        self.ask(request, rows, texts, sharpen=request.options.sharpen)
        self.curves: dict[int, Floats] = {}
        self._maps: dict[int, NDArray[np.float32]] = {}
        self._metrics: dict[int, dict[str, float]] = {}
        self._cut_boxes: dict[int, list[list[float]]] = {}

    def take(self, number: int, scores: NDArray[np.float32], grid: RegionGrid) -> None:
        phrase, self._grid = self._asked_phrases[number], grid
        heatmap = self._heatmap(scores, phrase.geometry, phrase.boxes)
        self.curves[number] = heatmap.dice(DICE_SHARES)
        if number < len(self._phrases):
            self._maps[number] = scores
            rule = self._options.boxes
            cut = self._cut_boxes[number] = cut_boxes(heatmap, rule)
            self._metrics[number] = phrase_metrics(heatmap, phrase.boxes, rule, cut)

    def _heatmap(
        self, scores: NDArray[np.floating], geometry: SquareGeometry, boxes: ArrayLike
    ) -> Upsampled:
        return Upsampled(scores, geometry, self._grid, boxes, smoothing=self._options.smoothing)

    def measure(self, draw: Draw) -> Measured:
        phrases = self._phrases
        yes = [number for number, phrase in enumerate(phrases) if phrase.groundable]
        if not yes:
            raise Skipped(
                f"None of the {len(phrases)} phrases can be grounded: each says that something is "
                "absent or normal."
            )
        cuts, validated = self._cut(yes)
        floors, with_floor = self._floors(yes, cuts)
        names = {"id": "phrase_id", **{n: n for n in ("patient", "category", "sentence_count")}}
        names["groundable"] = "groundable"
        columns = {name: [getattr(p, key) for p in phrases] for name, key in names.items()}
        metrics = pd.DataFrame([self._metrics[number] for number in range(len(phrases))])
        items = pd.concat([pd.DataFrame(columns), metrics.rename(columns=COLUMNS)], axis=1)
        judged, others = items[items["groundable"]], items[~items["groundable"]]
        measured = phrase_rows(judged, draw)
        for group, means in floors.items():
            measured += rows(means, n=with_floor, group=group)
        if len(others):
            measured += phrase_rows(others, draw, "not groundable")
        details = self._selected.counts | {
            "phrases": len(yes),
            "patients": judged["patient"].nunique(),
            "area_tercile_bounds": area_terciles(judged["area"].to_numpy())[1],
            "boxes": sum(len(phrases[number].boxes) for number in yes),
            "floors": {"phrases": with_floor, "images_tried": OTHERS},
            "dice": {"share_of_range": cuts, "validation_phrases": validated, **self._reason},
            "source": self._selected.source,
            "unseen_boxes": sum(not len(visible_boxes(p.boxes, p.geometry)) for p in phrases),
            "not_groundable": len(others),
        }
        return Measured(measured, details, items)

    def under(self, preset: Preset) -> dict[str, Any] | None:
        rule = preset.grounding
        if rule is None:
            return None
        every = rule.phrases == "all"
        kept = [n for n, p in enumerate(self._phrases) if p.groundable or every]
        phrases = [self._phrases[number] for number in kept]
        chosen = merge_phrases(
            rule, [p.row for p in phrases], [p.text for p in phrases], [p.boxes for p in phrases]
        )
        smoothing, scale = self._options.smoothing, self.model.learned_scale
        scores = [
            score_map(
                rule,
                self._maps[kept[place]],
                boxes,
                phrases[place].geometry,
                self._grid,
                smoothing=smoothing,
                scale=scale,
            )
            for place, boxes in chosen
        ]
        summary = summarise_maps(rule, scores, [phrases[place].category for place, _ in chosen])
        return summary | {"of_phrases": len(self._phrases)}

    @classmethod
    def statistics(cls, details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        """Means of the groundable phrases."""
        yes = items["groundable"].to_numpy(dtype=bool)
        means = super().statistics(details, items[yes])
        return lambda weights: means(weights[:, yes])

    def write_pictures(self, out: Path, data: PreparedSet, count: int) -> None:
        """The maps of some phrases, in ``heatmaps/``."""
        write_heatmaps(
            out / "heatmaps",
            data,
            self._phrases,
            self._maps,
            self._metrics,
            count,
            self._grid,
            smoothing=self._options.smoothing,
            kind=self._model.outputs.map_kind,
        )

    def _cut(self, yes: Sequence[int]) -> tuple[dict[str, float | None], int]:
        """Add every phrase's Dice coefficients to its metrics.

        Returns:
            Where each rule cuts, and on how many validation phrases that was chosen.
        """
        first = len(self._phrases)
        others = [first + n for n, phrase in enumerate(self._others) if phrase.groundable]

        def best(numbers: Sequence[int]) -> int | None:
            """The place in `DICE_SHARES` of the highest mean Dice; the first of equals."""
            curves = [self.curves[number] for number in numbers]
            return int(np.mean(curves, axis=0).argmax()) if curves else None

        places = {
            "fixed": DICE_SHARES.index(0.5),
            "validated": best(others),
            "test_threshold": best(yes),
        }
        for number, own in self._metrics.items():
            for rule, place in places.items():
                if place is not None:
                    own[f"dice_{rule}"] = float(self.curves[number][place])
        return {n: None if p is None else DICE_SHARES[p] for n, p in places.items()}, len(others)

    def _floors(
        self, yes: Sequence[int], cuts: Mapping[str, float | None]
    ) -> tuple[dict[str, dict[str, float]], int]:
        """Means of every metric with other images' boxes and of the place prior, by group.

        Adds to each phrase how far its signed CNR lies above that with others' boxes.

        Returns:
            The means, and over how many phrases they are.
        """

        def metrics_of(
            scores: NDArray[np.floating],
            geometry: SquareGeometry,
            boxes: ArrayLike,
            cut: ArrayLike | None = None,
        ) -> dict[str, float]:
            heatmap = self._heatmap(scores, geometry, boxes)
            metrics = phrase_metrics(heatmap, boxes, self._options.boxes, cut)
            chosen = {rule: share for rule, share in cuts.items() if share is not None}
            dice = heatmap.dice(list(chosen.values())).tolist()
            metrics |= {f"dice_{rule}": value for rule, value in zip(chosen, dice, strict=True)}
            return {name: metrics[name] for name in COLUMNS if name in metrics}

        def mean(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
            return {name: float(np.mean([one[name] for one in each])) for name in each[0]}

        phrases = [self._phrases[number] for number in yes]
        laid, priors = [], []
        for number, phrase, places in zip(yes, phrases, others_of(phrases), strict=True):
            own, geometry = self._metrics[number], phrase.geometry
            own[ABOVE_OTHERS] = float("nan")
            if not places:
                continue
            others = [phrases[place] for place in places]
            moved = [moved_boxes(o.boxes, o.geometry, geometry) for o in others[:OTHERS]]
            scores, cut = self._maps[number], self._cut_boxes[number]
            laid.append(mean([metrics_of(scores, geometry, boxes, cut) for boxes in moved]))
            prior = place_prior(others, geometry, self._grid)
            priors.append(metrics_of(prior, geometry, phrase.boxes))
            own[ABOVE_OTHERS] = own["cnr_signed"] - laid[-1]["cnr_signed"]
        if not laid:
            return {}, 0
        return {"other images' boxes": mean(laid), "place prior": mean(priors)}, len(laid)


# --------------------------------------------------------------------------------- floors


def others_of(phrases: Sequence[Phrase]) -> list[list[int]]:
    """For each phrase the places of the phrases of its class of other patients.

    In an order that is the same for every model: one permutation of each class, read on from the
    phrase's own place.
    """
    members: dict[str, list[int]] = {}
    for place, phrase in enumerate(phrases):
        members.setdefault(phrase.category, []).append(place)
    others_of_each: list[list[int]] = [[] for _ in phrases]
    for places in members.values():
        order = np.random.default_rng(0).permutation(places).tolist()
        for number, place in enumerate(order):
            own = phrases[place].patient
            others = [*order[number + 1 :], *order[:number]]
            others_of_each[place] = [other for other in others if phrases[other].patient != own]
    return others_of_each


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
