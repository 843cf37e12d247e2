"""The protocol of zero-shot classification: does an image score higher with "X" or with "no X"?

From scores to metrics: `medclip_debias.evaluation.zero_shot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.label_maps import maps_for
from medclip_debias.data.prompts import PromptSet
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation import offsets as constants
from medclip_debias.evaluation import zero_shot as scoring
from medclip_debias.evaluation.bootstrap import Statistics
from medclip_debias.evaluation.decisions.measure import Decider
from medclip_debias.evaluation.label_table import (
    THE_SET,
    ClassList,
    Labels,
    class_list,
    labels_of,
    of_studies,
)
from medclip_debias.evaluation.options import EvaluationOptions
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
from medclip_debias.evaluation.zero_shot import SideScores

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.float64]


class ZeroShot(ScoreProtocol):
    """The protocol: one score for each image and prompt.

    ``validation`` are labels of the images on which F1's thresholds are chosen, or why there are
    none; ``listed`` the images of the multi-class protocol (else those of ``labels`` with exactly
    one positive class); ``kept [texts]`` the constants of prompts, for the option ``offsets:
    model``; ``decider`` of probabilities and decisions, where they are asked for.
    """

    name = file = "zero_shot"
    truth = ("label.",)
    counted = ("labelled_images",)

    def __init__(
        self,
        data: PreparedSet,
        labels: Labels,
        prompts: PromptSet,
        options: EvaluationOptions,
        *,
        validation: Labels | str,
        listed: ClassList | None = None,
        kept: Floats | None = None,
        decider: Decider | None = None,
    ) -> None:
        self._data, self.labels, self._prompts, self._options = data, labels, prompts, options
        self._validation, self._listed, self._kept = validation, listed, kept
        self._decider, self._ensembles = decider, options.preset != OURS
        self.texts, self._classes = prompts.texts, list(prompts.classes)
        self._images = len(labels.rows)
        self._unlabelled = constants.offset_rows(data, options.offsets, labels.rows, options.views)
        rows = {*labels.rows, *self._unlabelled, *(listed.classes if listed else ())}
        if not isinstance(validation, str):
            rows |= set(validation.rows)
        self.rows = frozenset(rows)
        self._views: dict[int, list[int]] = {}
        self._by_study = options.several_views == "mean"
        if self._by_study:
            self.labels, self._views = of_studies(labels, data)
            if not isinstance(validation, str):
                self._validation, views_there = of_studies(validation, data)
                self._views |= views_there

    @classmethod
    def plan(cls, request: Request) -> Self:
        data, prompts, options = request.data, request.prompts, request.options
        classes, path, model = list(prompts.classes), request.class_images, request.model
        listed = class_list(path, data, classes, options.views) if path else None
        read = partial(
            labels_of,
            data,
            classes=classes,
            table=request.labels,
            label_map=request.label_map,
            views=options.views,
        )
        try:
            labels = read(request.split)
        except Skipped:
            if listed is None:
                raise
            labels = listed.labels(classes)
        validation: Labels | str = (
            "the validate split itself is evaluated, so no threshold can be chosen on it"
        )
        if request.split != "validate":
            try:
                validation = read("validate")
            except Skipped as reason:
                validation = f"no threshold can be chosen: {reason}"
        kept = None
        if options.offsets != "none":
            constants.needed_scale(model)
        if options.offsets == "model" and request.model_folder is not None:
            kept = constants.read_offsets(request.model_folder, model.content_hash, prompts.texts)
        decider = Decider.of(options.decisions, model.content_hash, prompts, options.offsets)
        return cls(
            data,
            labels,
            prompts,
            options,
            validation=validation,
            listed=listed,
            kept=kept,
            decider=decider,
        )

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        if self._ensembles:
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
            self._kept = constants.prompt_offsets(self._of(self._unlabelled, {}), scale)
        sides = SideScores.of(self._of(rows, self._views), self._prompts)
        mapped, validation = self.labels.mapped, self._validation
        there: scoring.Validation | str = "" if isinstance(validation, Labels) else validation
        if isinstance(validation, Labels):
            scores = self._of(validation.rows, self._views)
            differences = scoring.prompt_differences(scores, self._prompts)
            there = differences, validation.values
        try:
            measured = scoring.zero_shot(
                sides,
                self.labels.values,
                patients,
                policy=self._options.labels,
                scale=scale,
                validation=there,
                not_judged=mapped.not_judged if mapped else self._map_hints(),
                draw=draw,
                n=self._images,
            )
        except UserError as error:
            aside = mapped.left_aside() if mapped else ""
            raise Skipped(f"{error} {aside}".strip()) from error
        several = self._multiclass(draw)
        table, details = measured.rows + several.rows, dict(measured.details)
        if self._by_study:
            details["studies"] = len(rows)
        offsets = None
        if self._kept is not None:
            offsets = {
                "from": self._options.offsets,
                "images": len(self._unlabelled),
                "of_prompt": dict(zip(self.texts, self._kept.tolist(), strict=True)),
            }
        details |= {
            "images": self._images,
            "patients": len(set(patients)),
            "scale": scale,
            "source": self.labels.source,
            "offsets": offsets,
            "label_map": mapped.describe() if mapped else None,
            "multiclass": several.details,
        }
        if self._decider is not None:
            if not isinstance(there, str):
                there = there[0], self._judged(there[1], there[1])
            truth = self._judged(self.labels.values, details["classes"])
            decided = self._decider.decide(
                sides.differences, truth, patients, there, scale=scale, draw=draw
            )
            table += decided.rows
            details["decisions"] = decided.details
        named = self._data.images["study_id" if self._by_study else "image_id"]
        columns: dict[str, Any] = {"id": named.iloc[rows].astype(str), "patient": patients}
        parts = {"score": sides.differences, "positive": sides.positive, "negative": sides.negative}
        for part, scores_of in parts.items():
            columns |= {f"{part}.{name}": values for name, values in scores_of.items()}
        blank = np.full(len(rows), np.nan)
        labels = {name: self.labels.values.get(name, blank) for name in self._classes}
        judged = self._judged(labels, labels)
        columns |= {f"label.{name}": values for name, values in judged.items()}
        return Measured(table, details, pd.DataFrame(columns).reset_index(drop=True))

    def under(self, preset: Preset) -> dict[str, Any] | None:
        """See `Protocol.under`; the offsets of this run are not taken off."""
        rule, validation = preset.zero_shot, self._validation
        if rule is None:
            return None
        sides, chosen, more = self._sides(rule, self.labels.rows, self._views), None, {}
        if rule.decision in ("f1", "mcc"):
            if isinstance(validation, str):
                more = {"no_threshold": validation}
            else:
                others = self._sides(rule, validation.rows, self._views)
                truth = self._judged(validation.values, validation.values)
                chosen = presets.thresholds(rule, presets.zero_shot_scores(rule, others), truth)
        truth = self._judged(self.labels.values, self.labels.values)
        scores = presets.zero_shot_scores(rule, sides)
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

    @staticmethod
    def statistics(details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        """The metrics at the details' scale and thresholds."""
        positive, negative = _columns(items, "positive."), _columns(items, "negative.")
        truth = judged_labels(items)
        if not positive.keys() == negative.keys() >= truth.keys():
            positive, negative = {}, {}
        sides = SideScores(positive, negative, stored=_columns(items, "score."))
        thresholds = {
            name: float(value)
            for name, of_class in (details.get("classes") or {}).items()
            if (value := (of_class.get("threshold") or {}).get("value")) is not None
        }
        scale = details.get("scale")
        scale = None if scale is None else float(scale)
        return lambda weights: scoring.class_statistics(sides, truth, weights, scale, thresholds)

    def counts(self) -> dict[str, int]:
        return {"labelled_images": self._images}

    def _raw(self, rows: Sequence[int], views: Mapping[int, Sequence[int]]) -> Floats:
        """Scores as the model gave them: of the texts, and of each side's mean if it was asked.

        A row that ``views`` has stands for its study, which scores as the mean of those images.
        """
        return np.stack(
            [
                np.mean([self.scores[r] for r in views.get(row, (row,))], axis=0, dtype=np.float64)
                for row in rows
            ]
        )

    def _of(self, rows: Sequence[int], views: Mapping[int, Sequence[int]]) -> Floats:
        """Scores ``[rows, texts]``, less the constant of each prompt once that is known."""
        scores = self._raw(rows, views)[:, : len(self.texts)]
        return scores if self._kept is None else scores - self._kept

    def _sides(
        self, rule: ZeroShotRule, rows: Sequence[int], views: Mapping[int, Sequence[int]]
    ) -> SideScores:
        """Under a preset's rule, the scores of both sides of each class."""
        scores, ensembles = np.split(self._raw(rows, views), [len(self.texts)], axis=1)
        given = ensembles if self._ensembles else None
        return presets.side_scores(rule, scores, self._prompts, given)

    def _judged(self, labels: Mapping[str, Floats], names: Iterable[str]) -> dict[str, Floats]:
        """The truth of the classes ``names`` under the label policy."""
        policy = self._options.labels
        return {name: policy.apply(np.asarray(labels[name], np.float64)) for name in names}

    def _map_hints(self) -> dict[str, str]:
        """Classes without a column for which the map of the set's archive has a rule."""
        lacking = [name for name in self._classes if name not in self.labels.values]
        if not lacking or self.labels.source.get("labels") != THE_SET:
            return {}
        return {
            name: f"{scoring.NO_COLUMN}; --label-map {rules.name} has a rule for it"
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
            positive = SideScores.of(self._of(rows, views), self._prompts).positive
            scores, patients = (
                np.stack(list(positive.values()), axis=1),
                patients_of(self._data, rows),
            )
            found = scoring.multiclass_accuracy(scores, truth, self._classes, patients, draw)
            return Measured(found.rows, found.details | source)
        except Skipped as reason:
            return Measured([], {"reason": str(reason)} | source)

    def _exclusive(self) -> tuple[list[int], NDArray[np.intp], Mapping[int, Sequence[int]]]:
        """Images of exactly one class, its number, and the images of those that are studies."""
        if self._listed is None:
            truth = scoring.exclusive_classes(self.labels.values, self._classes)
            rows = [row for row, number in zip(self.labels.rows, truth, strict=True) if number >= 0]
            return rows, truth[truth >= 0], self._views
        place = {name: number for number, name in enumerate(self._classes)}
        rows = sorted(self._listed.classes)
        return rows, np.array([place[self._listed.classes[row]] for row in rows], np.intp), {}


def _columns(items: pd.DataFrame, start: str) -> dict[str, Floats]:
    """The columns whose names begin so, by what follows."""
    names = [str(name) for name in items.columns if str(name).startswith(start)]
    return {n.removeprefix(start): items[n].to_numpy(dtype=np.float64) for n in names}


def judged_labels(items: pd.DataFrame) -> dict[str, Floats]:
    """Labels of the classes that have both."""
    labels = _columns(items, "label.")
    return {n: v for n, v in labels.items() if (v == 1).any() and (v == 0).any()}
