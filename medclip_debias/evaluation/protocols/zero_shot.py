"""The protocol of zero-shot classification: does an image score higher with "X" or with "no X"?

From scores to metrics: `medclip_debias.evaluation.zero_shot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.label_maps import maps_for
from medclip_debias.data.prompts import PromptSet
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
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
from medclip_debias.evaluation.offsets import (
    needed_scale,
    offset_rows,
    prompt_offsets,
    read_offsets,
)
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.presets import OURS, Preset, ZeroShotRule
from medclip_debias.evaluation.presets.zero_shot import (
    one_of_several,
    side_scores,
    side_vectors,
    thresholds,
    zero_shot_metrics,
    zero_shot_scores,
)
from medclip_debias.evaluation.protocol import (
    Draw,
    Measured,
    Request,
    ScoreProtocol,
    Skipped,
    patients_of,
)
from medclip_debias.evaluation.zero_shot import (
    NO_COLUMN,
    SideScores,
    Validation,
    class_scores,
    class_statistics,
    exclusive_classes,
    multiclass_accuracy,
    prompt_differences,
    zero_shot,
)

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.float64]


class ZeroShot(ScoreProtocol):
    """The protocol: one score for each image and prompt.

    Args:
        data: the prepared set.
        labels: of the images to judge.
        prompts: the prompt set.
        options: how labels are read, whose images set offsets, whether studies are judged.
        validation: labels of the images on which F1's thresholds are chosen, or why there are
            none.
        listed: the images of the multi-class protocol; None for the images of ``labels`` with
            exactly one positive class.
        kept: ``[texts]`` the constants of prompts, for the option ``offsets: model``.
        decider: of probabilities and decisions, where they are asked for.

    Raises:
        UserError: studies are to be judged, and images of one have different labels.
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
        self.texts = prompts.texts
        self._images = len(labels.rows)
        self._unlabelled = offset_rows(data, options.offsets, labels.rows, options.views)
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
        classes, split, path = list(prompts.classes), request.split, request.class_images
        listed = class_list(path, data, classes, options.views) if path else None

        def labels_there(split: str) -> Labels:
            return labels_of(
                data,
                split,
                classes,
                table=request.labels,
                label_map=request.label_map,
                views=options.views,
            )

        try:
            labels = labels_there(split)
        except Skipped:
            if listed is None:
                raise
            labels = listed.labels(classes)
        validation: Labels | str
        if split == "validate":
            validation = (
                "the validate split itself is evaluated, so no threshold can be chosen on it"
            )
        else:
            try:
                validation = labels_there("validate")
            except Skipped as reason:
                validation = f"no threshold can be chosen: {reason}"
        model_hash = request.model.content_hash
        return cls(
            data,
            labels,
            prompts,
            options,
            validation=validation,
            listed=listed,
            kept=_kept_offsets(request),
            decider=Decider.of(options.decisions, model_hash, prompts, options.offsets),
        )

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        if self._ensembles:
            import torch

            from medclip_debias.models.interface import need_vectors

            need_vectors(model, "zero-shot classification under a preset")
            means = side_vectors(vectors.detach().cpu().numpy(), self._prompts)
            vectors = torch.cat([vectors, torch.from_numpy(means).to(vectors)])
        super().begin(model, vectors)

    def measure(self, draw: Draw) -> Measured:
        rows, scale = self.labels.rows, self.model.learned_scale
        patients = patients_of(self._data, rows)
        if self._unlabelled and scale is not None:
            self._kept = prompt_offsets(self._of(self._unlabelled), scale)
        offsets: dict[str, Any] | None = None
        if self._kept is not None:
            of_prompt = dict(zip(self.texts, self._kept.tolist(), strict=True))
            offsets = {"from": self._options.offsets, "images": len(self._unlabelled)}
            offsets["of_prompt"] = of_prompt
        sides = SideScores.of(self._of(rows, studies=True), self._prompts)
        mapped, validation = self.labels.mapped, self._scored_validation()
        try:
            measured = zero_shot(
                sides.differences,
                self.labels.values,
                patients,
                policy=self._options.labels,
                scale=scale,
                validation=validation,
                not_judged=mapped.not_judged if mapped else self._map_hints(),
                sides=sides,
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
            decided = self._decider.decide(
                sides.differences,
                self._judged(self.labels.values, details["classes"]),
                patients,
                validation
                if isinstance(validation, str)
                else (validation.differences, self._judged(validation.labels, validation.labels)),
                scale=scale,
                draw=draw,
            )
            table += decided.rows
            details["decisions"] = decided.details
        return Measured(table, details, self._items(sides, patients))

    def _scored_validation(self) -> Validation | str:
        """Differences of the validation images, or why there are none."""
        others = self._validation
        if isinstance(others, str):
            return others
        scores = self._of(others.rows, studies=True)
        return Validation(prompt_differences(scores, self._prompts), others.values)

    def under(self, preset: Preset) -> dict[str, Any] | None:
        """See `Protocol.under`; the offsets of this run are not taken off."""
        rule = preset.zero_shot
        if rule is None:
            return None
        sides, chosen, more = self._sides(rule, self.labels.rows), None, {}
        if rule.decision in ("f1", "mcc"):
            if isinstance(self._validation, str):
                more = {"no_threshold": self._validation}
            else:
                there, values = self._validation.rows, self._validation.values
                scores = zero_shot_scores(rule, self._sides(rule, there))
                chosen = thresholds(rule, scores, self._judged(values, values))
        truth = self._judged(self.labels.values, self.labels.values)
        scores, positive = zero_shot_scores(rule, sides), sides.positive
        found = zero_shot_metrics(rule, scores, truth, chosen=chosen, positive=positive) | more
        if rule.several != "none":
            rows, numbers = self._exclusive()
            if len(set(numbers.tolist())) > 1:
                alone = self._sides(rule, rows, studies=self._listed is None)
                found |= one_of_several(rule, alone.positive, numbers)
            found["images_of_one_class"] = len(rows)
        return found

    def _sides(
        self, rule: ZeroShotRule, rows: Sequence[int], *, studies: bool = True
    ) -> SideScores:
        """Under a preset's rule, the scores of both sides of each class."""
        both = self._raw(rows, studies=studies)
        scores, ensembles = np.split(both, [len(self.texts)], axis=1)
        return side_scores(rule, scores, self._prompts, ensembles if self._ensembles else None)

    @staticmethod
    def statistics(details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        """The metrics at the details' scale and thresholds."""
        scores, truth = class_columns(items)
        positive, negative = (_columns(items, side) for side in ("positive.", "negative."))
        complete = positive.keys() == negative.keys() >= scores.keys()
        sides = SideScores(positive, negative) if complete else None
        thresholds = {
            name: float(value)
            for name, of_class in (details.get("classes") or {}).items()
            if (value := (of_class.get("threshold") or {}).get("value")) is not None
        }
        scale = details.get("scale")
        scale = None if scale is None else float(scale)
        return lambda weights: class_statistics(scores, truth, weights, scale, thresholds, sides)

    def counts(self) -> dict[str, int]:
        return {"labelled_images": self._images}

    def _of(self, rows: Sequence[int], *, studies: bool = False) -> Floats:
        """Scores ``[rows, texts]``, less the constant of each prompt once that is known.

        With ``studies`` each row stands for its study, which scores as the mean of its images.
        """
        scores = self._raw(rows, studies=studies)[:, : len(self.texts)]
        return scores if self._kept is None else scores - self._kept

    def _raw(self, rows: Sequence[int], *, studies: bool = False) -> Floats:
        """Scores as the model gave them: of the texts, and of each side's mean if it was asked."""
        views = self._views if studies else {}
        means = [
            np.mean([self.scores[r] for r in views.get(row, (row,))], axis=0, dtype=np.float64)
            for row in rows
        ]
        return np.stack(means)

    def _judged(self, labels: Mapping[str, Floats], names: Iterable[str]) -> dict[str, Floats]:
        """The truth of the classes ``names`` under the label policy."""
        return {
            name: self._options.labels.apply(np.asarray(labels[name], np.float64)) for name in names
        }

    def _map_hints(self) -> dict[str, str]:
        """Classes without a column for which the map of the set's archive has a rule."""
        lacking = [name for name in self._prompts.classes if name not in self.labels.values]
        if not lacking or self.labels.source.get("labels") != THE_SET:
            return {}
        hints: dict[str, str] = {}
        for found in maps_for(self._data.meta.get("kind")):
            advice = f"{NO_COLUMN}; --label-map {found.name} has a rule for it"
            hints |= dict.fromkeys((name for name in lacking if name in found.classes), advice)
        return hints

    def _multiclass(self, draw: Draw) -> Measured:
        """Multi-class metrics, or the reason for none."""
        classes = list(self._prompts.classes)
        rows, truth = self._exclusive()
        source = dict(self._listed.source if self._listed else self.labels.source)
        try:
            if len(classes) < 2 or not rows:
                raise Skipped("No image has exactly one of two or more classes.")
            scored = self._of(rows, studies=self._listed is None)
            means = class_scores(scored, self._prompts)
            scores = np.stack([means[name] for name in classes], axis=1)
            patients = patients_of(self._data, rows)
            found = multiclass_accuracy(scores, truth, classes, patients, draw)
            return Measured(found.rows, found.details | {"source": source})
        except Skipped as reason:
            return Measured([], {"reason": str(reason), "source": source})

    def _exclusive(self) -> tuple[list[int], NDArray[np.intp]]:
        """Images of exactly one class, and its number."""
        classes = list(self._prompts.classes)
        if self._listed is None:
            truth = exclusive_classes(self.labels.values, classes)
            rows = [row for row, number in zip(self.labels.rows, truth, strict=True) if number >= 0]
            return rows, truth[truth >= 0]
        rows = sorted(self._listed.classes)
        return rows, np.array([classes.index(self._listed.classes[row]) for row in rows], np.intp)

    def _items(self, sides: SideScores, patients: Sequence[str]) -> pd.DataFrame:
        rows = self.labels.rows
        named = "study_id" if self._by_study else "image_id"
        columns: dict[str, Any] = {
            "id": [str(name) for name in self._data.images[named].iloc[rows]],
            "patient": list(patients),
        }
        columns |= {f"score.{name}": d for name, d in sides.differences.items()}
        columns |= {f"positive.{name}": score for name, score in sides.positive.items()}
        columns |= {f"negative.{name}": score for name, score in sides.negative.items()}
        for name in sides.differences:
            values = self.labels.values.get(name, np.full(len(rows), np.nan))
            columns[f"label.{name}"] = self._options.labels.apply(values)
        return pd.DataFrame(columns)


def _columns(items: pd.DataFrame, start: str) -> dict[str, Floats]:
    """The columns whose names begin so, by what follows."""
    names = [str(name) for name in items.columns if str(name).startswith(start)]
    return {n.removeprefix(start): items[n].to_numpy(dtype=np.float64) for n in names}


def class_columns(items: pd.DataFrame) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Score differences and labels of the classes that have both labels."""
    labels = _columns(items, "label.")
    truth = {n: v for n, v in labels.items() if (v == 1).any() and (v == 0).any()}
    return {n: items[f"score.{n}"].to_numpy(dtype=np.float64) for n in truth}, truth


def _kept_offsets(request: Request) -> Floats | None:
    """The constants that the model's folder keeps, where the options ask for them."""
    asked = request.options.offsets
    if asked != "none":
        needed_scale(request.model)
    if asked != "model" or request.model_folder is None:
        return None
    return read_offsets(request.model_folder, request.model.content_hash, request.prompts.texts)
