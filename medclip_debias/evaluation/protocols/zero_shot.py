"""Zero-shot classification: does an image score higher with "X" or with "no X"?

Per class, a positive and a negative score (`medclip_debias.evaluation.sides`). The decision is the
larger one (a tie counts as negative); AUC and average precision are on the difference d, also on
each side alone; calibration is on ``sigmoid(g2 d)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.label_maps import maps_for
from medclip_debias.data.labels import LabelPolicy
from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import Statistics, too_few, weighted_auc, weighted_mean
from medclip_debias.evaluation.catalogue import CHANCE
from medclip_debias.evaluation.decisions.measure import decide, read_calibration
from medclip_debias.evaluation.label_table import (
    THE_SET,
    Labels,
    class_list,
    labels_of,
    of_studies,
)
from medclip_debias.evaluation.metrics import (
    best_threshold,
    reliability,
    sigmoid,
    weighted_average_precision,
    weighted_ece,
    weighted_f1,
)
from medclip_debias.evaluation.multiclass import exclusive_classes, multiclass_accuracy
from medclip_debias.evaluation.offsets import (
    needed_scale,
    offset_rows,
    prompt_offsets,
    read_offsets,
)
from medclip_debias.evaluation.presets import OURS, Preset, ZeroShotRule
from medclip_debias.evaluation.presets import zero_shot as presets
from medclip_debias.evaluation.protocol import (
    Draw,
    Measured,
    Request,
    ScoreProtocol,
    Skipped,
    patients_of,
)
from medclip_debias.evaluation.sides import SideScores, prompt_differences, with_both_labels
from medclip_debias.evaluation.table import Row

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.float64]
NO_COLUMN, ONE_VALUE = "no such label column", "one label value only"
AUCS = {
    "auc": "mean_auc",
    "auc_positive": "mean_auc_positive",
    "auc_negative": "mean_auc_negative",
}
CONTRADICTION = "contradiction_rate"
AVERAGED = (*AUCS, "accuracy", "balanced_accuracy", "average_precision", "ece", "f1")


class ZeroShot(ScoreProtocol):
    """The protocol: one score for each image and prompt.

    ``labels`` take the place of what the request names; no threshold is then chosen.
    """

    name = file = "zero_shot"
    truth = ("label.",)
    counted = "labelled_images"

    def __init__(self, request: Request, labels: Labels | None = None) -> None:
        data, prompts, options = request.data, request.prompts, request.options
        self._data, self._prompts, self._options = data, prompts, options
        self.texts, self._classes = prompts.texts, list(prompts.classes)
        self._listed: Labels | None = None
        if request.class_images is not None:
            self._listed = class_list(request.class_images, data, self._classes, options.views)
        read = partial(
            labels_of,
            data,
            classes=self._classes,
            table=request.labels,
            label_map=request.label_map,
            views=options.views,
        )
        self._validation: Labels | None = None
        self._no_threshold = "labels were given for the evaluated images alone"
        if labels is None:
            try:
                labels = read(request.split)
            except Skipped:
                if self._listed is None:
                    raise
                listed = self._listed.source
                source = {"labels": listed["list"], "hash": listed["hash"]}
                source["made_of"] = "the list of classes: an image has its class and no other"
                labels = replace(self._listed, source=source)
            self._no_threshold = (
                "the validate split itself is evaluated, so no threshold can be chosen on it"
            )
            if request.split != "validate":
                try:
                    self._validation = read("validate")
                except Skipped as reason:
                    self._no_threshold = f"no threshold can be chosen: {reason}"
        self._images = len(labels.rows)
        known = [~np.isnan(values) for values in labels.values.values()]
        self.count = int(np.any(known, axis=0).sum())
        self._kept: Floats | None = None
        if options.offsets != "none":
            needed_scale(request.model)
        if options.offsets == "model" and request.model_folder is not None:
            model_hash = request.model.content_hash
            self._kept = read_offsets(request.model_folder, model_hash, self.texts)
        self._unlabelled = offset_rows(data, options.offsets, labels.rows, options.views)
        self._calibration = None
        if options.decisions is not None:
            self._calibration = read_calibration(
                options.decisions, request.model.content_hash, prompts, options.offsets
            )
        self.rows = frozenset(
            {
                *labels.rows,
                *self._unlabelled,
                *(self._listed.rows if self._listed else ()),
                *(self._validation.rows if self._validation else ()),
            }
        )
        self._views: dict[int, list[int]] = {}
        if options.several_views == "mean":
            labels, self._views = of_studies(labels, data)
            if self._validation is not None:
                self._validation, views_there = of_studies(self._validation, data)
                self._views |= views_there
        self.labels = labels

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        if self._options.preset != OURS:
            import torch

            from medclip_debias.models.interface import need_vectors

            need_vectors(model, "zero-shot classification under a preset")
            means = presets.side_vectors(vectors.detach().cpu().numpy(), self._prompts)
            vectors = torch.cat([vectors, torch.from_numpy(means).to(vectors)])
        super().begin(model, vectors)

    def measure(self, draw: Draw) -> Measured:
        rows, scale = self.labels.rows, self.model.learned_scale
        patients = patients_of(self._data, rows)
        if self._unlabelled and scale is not None:
            self._kept = prompt_offsets(self._scores_of(self._unlabelled, {}), scale)
        sides = SideScores.of(self._scores_of(rows, self._views), self._prompts)
        mapped = self.labels.mapped
        there: Validation | str = self._no_threshold
        if self._validation is not None:
            scores = self._scores_of(self._validation.rows, self._views)
            there = prompt_differences(scores, self._prompts), self._validation.values
        try:
            measured = zero_shot(
                sides,
                self.labels.values,
                patients,
                policy=self._options.labels,
                scale=scale,
                validation=there,
                not_judged=mapped.not_judged if mapped else self._map_hints(),
                draw=draw,
            )
        except UserError as error:
            aside = mapped.left_aside() if mapped else ""
            raise Skipped(f"{error} {aside}".strip()) from error
        several = self._multiclass(draw)
        table, details = measured.rows + several.rows, dict(measured.details)
        details |= {
            **({"studies": len(rows)} if self._views else {}),
            "images": self._images,
            "patients": len(set(patients)),
            "scale": scale,
            "source": self.labels.source,
            "offsets": None
            if self._kept is None
            else {
                "from": self._options.offsets,
                "images": len(self._unlabelled),
                "of_prompt": dict(zip(self.texts, self._kept.tolist(), strict=True)),
            },
            "label_map": mapped.describe() if mapped else None,
            "multiclass": several.details,
        }
        blank = np.full(len(rows), np.nan)
        truth = self._judged({n: self.labels.values.get(n, blank) for n in self._classes})
        if self._options.decisions is not None:
            if not isinstance(there, str):
                there = there[0], self._judged(there[1])
            decided = decide(
                self._options.decisions,
                self._calibration,
                sides.differences,
                {name: truth[name] for name in details["classes"]},
                patients,
                there,
                scale=scale,
                draw=draw,
            )
            table += decided.rows
            details["decisions"] = decided.details
        named = self._data.images["study_id" if self._views else "image_id"]
        columns: dict[str, Any] = {"id": named.iloc[rows].astype(str), "patient": patients}
        parts = {
            "score": sides.differences,
            "positive": sides.positive,
            "negative": sides.negative,
            "label": truth,
        }
        for part, of_part in parts.items():
            columns |= {f"{part}.{name}": values for name, values in of_part.items()}
        return Measured(table, details, pd.DataFrame(columns).reset_index(drop=True))

    def under(self, preset: Preset) -> dict[str, Any] | None:
        """See `Protocol.under`; the offsets of this run are not taken off."""
        rule, chosen, more = preset.zero_shot, None, {}
        if rule is None:
            return None
        sides = self._sides(rule, self.labels.rows, self._views)
        if rule.decision == "mcc":
            if self._validation is None:
                more = {"no_threshold": self._no_threshold}
            else:
                others = self._sides(rule, self._validation.rows, self._views)
                truth = self._judged(self._validation.values)
                chosen = presets.thresholds(presets.zero_shot_scores(rule, others), truth)
        truth, scores = self._judged(self.labels.values), presets.zero_shot_scores(rule, sides)
        metrics = presets.zero_shot_metrics(
            rule, scores, truth, chosen=chosen, positive=sides.positive
        )
        metrics |= more
        if rule.several != "none":
            rows, numbers, views = self._exclusive()
            if len(set(numbers.tolist())) > 1:
                alone = self._sides(rule, rows, views)
                metrics |= presets.one_of_several(rule, alone.positive, numbers)
            metrics["images_of_one_class"] = len(rows)
        return metrics

    @classmethod
    def statistics(cls, details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        """The metrics at the details' scale and thresholds."""
        positive, negative = _columns(items, "positive."), _columns(items, "negative.")
        truth = judged_labels(items)
        if not positive.keys() == negative.keys() >= truth.keys():  # the differences are enough
            positive, negative = {}, {}
        sides = SideScores(positive, negative, stored=_columns(items, "score."))
        thresholds = {
            name: float(value)
            for name, of_class in (details.get("classes") or {}).items()
            if (value := (of_class.get("threshold") or {}).get("value")) is not None
        }
        scale = details.get("scale")
        scale = None if scale is None else float(scale)
        return lambda weights: class_statistics(sides, truth, weights, scale, thresholds)

    def _raw(self, rows: Sequence[int], views: Mapping[int, Sequence[int]]) -> Floats:
        """Scores as the model gave them: of the texts, and of each side's mean if it was asked.

        A row that ``views`` has stands for its study, which scores as the mean of those images.
        """
        each = ([self.scores[r] for r in views.get(row, (row,))] for row in rows)
        return np.stack([np.mean(scores, axis=0, dtype=np.float64) for scores in each])

    def _scores_of(self, rows: Sequence[int], views: Mapping[int, Sequence[int]]) -> Floats:
        """Scores ``[rows, texts]``, less the constant of each prompt once that is known."""
        scores = self._raw(rows, views)[:, : len(self.texts)]
        return scores if self._kept is None else scores - self._kept

    def _sides(
        self, rule: ZeroShotRule, rows: Sequence[int], views: Mapping[int, Sequence[int]]
    ) -> SideScores:
        """Under a preset's rule, the scores of both sides of each class."""
        scores, ensembles = np.split(self._raw(rows, views), [len(self.texts)], axis=1)
        of_sides = ensembles if self._options.preset != OURS else None
        return presets.side_scores(rule, scores, self._prompts, of_sides)

    def _judged(self, labels: Mapping[str, Floats]) -> dict[str, Floats]:
        """Labels under the label policy."""
        policy = self._options.labels
        return {n: policy.apply(np.asarray(v, np.float64)) for n, v in labels.items()}

    def _map_hints(self) -> dict[str, str]:
        """Classes without a column for which the map of the set's archive has a rule."""
        lacking = [name for name in self._classes if name not in self.labels.values]
        if not lacking or self.labels.source.get("labels") != THE_SET:
            return {}
        return {
            name: f"{NO_COLUMN}; --label-map {rules.name} has a rule for it"
            for rules in maps_for(self._data.meta.get("kind"))
            for name in lacking
            if name in rules.classes
        }

    def _multiclass(self, draw: Draw) -> Measured:
        """Multi-class metrics, or the reason for none."""
        rows, truth, views = self._exclusive()
        source = {"source": dict(self._listed.source if self._listed else self.labels.source)}
        try:
            if len(self._classes) < 2 or not rows:
                raise Skipped("No image has exactly one of two or more classes.")
            positive = SideScores.of(self._scores_of(rows, views), self._prompts).positive
            scores = np.stack(list(positive.values()), axis=1)
            patients = patients_of(self._data, rows)
            measured = multiclass_accuracy(scores, truth, self._classes, patients, draw)
            return Measured(measured.rows, measured.details | source)
        except Skipped as reason:
            return Measured([], {"reason": str(reason)} | source)

    def _exclusive(self) -> tuple[list[int], NDArray[np.intp], Mapping[int, Sequence[int]]]:
        """Images of exactly one class, its number, and the images of those that are studies."""
        labels = self._listed or self.labels
        truth = exclusive_classes(labels.values, self._classes)
        rows = [row for row, number in zip(labels.rows, truth, strict=True) if number >= 0]
        return rows, truth[truth >= 0], {} if self._listed else self._views


def _columns(items: pd.DataFrame, start: str) -> dict[str, Floats]:
    """The columns whose names begin so, by what follows."""
    names = [str(name) for name in items.columns if str(name).startswith(start)]
    return {n.removeprefix(start): items[n].to_numpy(dtype=np.float64) for n in names}


def judged_labels(items: pd.DataFrame) -> dict[str, Floats]:
    """Labels of the classes that have both."""
    return with_both_labels(_columns(items, "label."))


# ----------------------------------------------------------------------- scores to metrics


def class_statistics(
    sides: SideScores,
    truth: Mapping[str, Floats],
    weights: Floats,
    scale: float | None,
    thresholds: Mapping[str, float],
) -> dict[str, Floats]:
    """Every metric of the classes of ``truth`` under each row of ``weights [b, images]``: ``[b]``.

    ``CLASS/METRIC`` of each class, and the means over them (of contradictions the sum).
    """
    result: dict[str, Floats] = {}
    for name, labels in truth.items():
        known = ~np.isnan(labels)
        positive, value, w = labels[known] == 1, sides.differences[name][known], weights[:, known]
        right = (value > 0) == positive
        halves = [weighted_mean(right[half], w[:, half]) for half in (positive, ~positive)]
        of_class = {"auc": weighted_auc(positive, value, w)}
        if name in sides.positive:
            above, below = sides.positive[name][known], -sides.negative[name][known]
            of_class["auc_positive"] = weighted_auc(positive, above, w)
            of_class["auc_negative"] = weighted_auc(positive, below, w)
        of_class |= {
            "accuracy": weighted_mean(right, w),
            "balanced_accuracy": (halves[0] + halves[1]) / 2,
            "average_precision": weighted_average_precision(positive, value, w),
        }
        if scale is not None:
            of_class["ece"] = weighted_ece(positive, sigmoid(scale * value), w)
        if name in thresholds:
            of_class["f1"] = weighted_f1(positive, value >= thresholds[name], w)
        if name in sides.contradictions:
            of_class[CONTRADICTION] = weighted_mean(sides.contradictions[name], weights)
        result |= {f"{name}/{metric}": values for metric, values in of_class.items()}
    for metric in AVERAGED:
        of_metric = [result[f"{n}/{metric}"] for n in truth if f"{n}/{metric}" in result]
        if of_metric:
            result[AUCS.get(metric, metric)] = np.mean(of_metric, axis=0)
    if sides.contradictions:
        every = np.any(list(sides.contradictions.values()), axis=0)
        result[CONTRADICTION] = weighted_mean(every, weights)
    return result


Validation = tuple[Mapping[str, Floats], Mapping[str, Floats]]
"""Differences and labels of other images, on which the thresholds of F1 are chosen."""


def zero_shot(
    sides: SideScores,
    labels: Mapping[str, Floats],
    patients: Sequence[str],
    *,
    policy: LabelPolicy | None = None,
    scale: float | None = 1.0,
    validation: Validation | str = "no images to choose a threshold on",
    not_judged: Mapping[str, str] | None = None,
    draw: Draw | None = None,
) -> Measured:
    """Metrics per class and their means over the classes that have them, with intervals.

    Details are ``classes`` (counts, ``threshold`` and ``reliability``), ``refused`` (classes with
    one label value only, with their counts), and ``few_patients`` (classes that are `too_few`, of
    which only shares of all images have intervals).
    """
    policy = policy or LabelPolicy()
    truth: dict[str, Floats] = {}
    counts: dict[str, dict[str, int]] = {}
    refused: dict[str, dict[str, Any]] = {}
    of_refused: list[Row] = []
    for name, difference in sides.differences.items():
        values = np.asarray(labels.get(name, np.full(len(difference), np.nan)), dtype=np.float64)
        judged = policy.apply(values)
        counts[name] = _counts(values, judged)
        if counts[name]["positive"] and counts[name]["negative"]:
            truth[name] = judged
            continue
        reason = ONE_VALUE if name in labels else (not_judged or {}).get(name, NO_COLUMN)
        refused[name] = {"reason": reason, **counts[name]}
        if name in sides.contradictions:
            rate = float(sides.contradictions[name].mean())
            of_refused.append(Row(CONTRADICTION, rate, of_class=name))
    if not truth:
        present = "; ".join(
            f"{name} {c['positive']} present, {c['negative']} absent" for name, c in counts.items()
        )
        raise UserError(
            f"Zero-shot classification needs images with both labels of a class, and none has "
            f"them ({present}); evaluate a split with labels, or another label policy."
        )
    thresholds = {name: _threshold(name, validation, policy) for name in truth}
    bounds = {name: t["value"] for name, t in thresholds.items() if "value" in t}
    estimates = (draw or Draw()).estimates(
        lambda weights: class_statistics(sides, truth, weights, scale, bounds), patients
    )
    every = {place: len(patients) for place in estimates if place.endswith(CONTRADICTION)}
    judged_images = np.any([~np.isnan(labels) for labels in truth.values()], axis=0)
    measured = estimates.rows(n=int(judged_images.sum()), fewer=every)
    if sides.chance is not None:
        measured.append(Row(CONTRADICTION, sides.chance, group=CHANCE))
    classes, few = {}, []
    for name, judged in truth.items():
        known = ~np.isnan(judged)
        positive, values = judged[known] == 1, sides.differences[name][known]
        rows = estimates.rows(f"{name}/", n=len(positive), fewer=every, of_class=name)
        if rare := too_few(positive, np.asarray(patients, dtype=object)[known]):
            few.append(f"{name} ({rare[0]} with it, {rare[1]} without)")
            of_all = "accuracy", CONTRADICTION
            rows = [r if r.metric in of_all else r._replace(low=None, high=None) for r in rows]
        measured += rows
        classes[name] = {
            "threshold": thresholds[name],
            "reliability": [] if scale is None else reliability(positive, sigmoid(scale * values)),
            **counts[name],
        }
    details = {"classes": classes, "refused": refused, "few_patients": few}
    return Measured(measured + of_refused, details)


def _counts(values: Floats, judged: Floats) -> dict[str, int]:
    return {
        "images": len(judged),
        "positive": int((judged == 1).sum()),
        "negative": int((judged == 0).sum()),
        "uncertain": int((values == -1).sum()),
        "blank": int(np.isnan(values).sum()),
        "left_out": int(np.isnan(judged).sum()),
    }


def _threshold(name: str, validation: Validation | str, policy: LabelPolicy) -> dict[str, Any]:
    """The threshold of best F1 on the validation images, or the reason for none."""
    if isinstance(validation, str):
        return {"reason": validation}
    differences, labels = validation
    if name not in labels:
        return {"reason": "no such label column on the images to choose a threshold on"}
    values = np.asarray(labels[name], dtype=np.float64)
    judged = policy.apply(values)
    counts = {key: n for key, n in _counts(values, judged).items() if key != "left_out"}
    if not counts["positive"] or not counts["negative"]:
        return {"reason": "one label value only on the images to choose a threshold on", **counts}
    known = ~np.isnan(judged)
    value, f1 = best_threshold(judged[known] == 1, differences[name][known])
    return {"value": value, "f1_there": f1, **counts}
