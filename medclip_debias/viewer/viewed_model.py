"""One model of the page: what it makes of a radiograph, its findings, and its maps by a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images import prepare_image
from medclip_debias.data.prompts import sets_of
from medclip_debias.evaluation.decisions.calibration import Calibration, FittedClass
from medclip_debias.evaluation.decisions.probability import thresholds
from medclip_debias.evaluation.metrics import sigmoid
from medclip_debias.evaluation.options import DecisionOptions
from medclip_debias.evaluation.sides import SideScores
from medclip_debias.grounding.absent import AbsentFindings, AbsentScores
from medclip_debias.grounding.files import grounding_row
from medclip_debias.grounding.ground import Grounder, Grounding, region_grid
from medclip_debias.grounding.saliency import SeenFeatures, checked_method, with_maps
from medclip_debias.grounding.sentences import cut_notes
from medclip_debias.grounding.settings import MapMethod
from medclip_debias.grounding.validation import maps_warning
from medclip_debias.models.finite import finite
from medclip_debias.models.load import load_model
from medclip_debias.models.synthetic import synthetic_warning

if TYPE_CHECKING:
    from medclip_debias.data.images.radiograph import Radiograph
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

CALIBRATION = "calibration.json"
"""File of ``calibrate`` in a model's folder, which is taken where none is given."""


class Finder:
    """What a model sees on an image before anybody asks: its prompts' classes, in an order."""

    def __init__(self, model: ImageTextModel, calibration: Calibration | None = None) -> None:
        self._model, self.calibrated = model, calibration is not None
        self.prompt_sets = sets_of(model.prompts)
        self._fitted: dict[str, FittedClass] = {}
        if calibration is not None:
            first, self._fitted = calibration.prompts, calibration.classes
            others = [[n for n in p.classes if n not in first.classes] for p in self.prompt_sets]
            pairs = zip(self.prompt_sets, others, strict=True)
            self.prompt_sets = [first, *(p.only(names) for p, names in pairs if names)]
        with torch.inference_mode():
            self._vectors = [model.encode_sentences(one.texts) for one in self.prompt_sets]
        self._youden = {name: _youden(fitted) for name, fitted in self._fitted.items()}

    def of(self, features: ImageFeatures) -> list[dict[str, Any]]:
        """The findings of one image: those seen first, and each part by falling probability.

        One class of one prompt set each; ``present`` and ``absent`` are mean scores.
        """
        findings: list[dict[str, Any]] = []
        scale = self._model.learned_scale
        for prompts, vectors in zip(self.prompt_sets, self._vectors, strict=True):
            with torch.inference_mode():
                scored = self._model.score(features, vectors)
            scores = finite(scored, "zero-shot classification").astype(np.float64)
            both = SideScores.of(scores, prompts)
            for name, sides in prompts.classes.items():
                difference = both.differences[name]
                fitted = self._fitted.get(name) if prompts is self.prompt_sets[0] else None
                score, threshold = 0.0, 0.5
                logit = None if scale is None else scale * difference
                if fitted is not None:
                    score, threshold = self._youden[name]
                    target, _ = fitted.chosen_prevalence(name, "validation", difference)
                    logit = fitted.logits(difference, target)
                findings.append(
                    {
                        "name": name,
                        "prompt_set": prompts.name,
                        "sentence": sides.positive[0],
                        "present": float(both.positive[name][0]),
                        "absent": float(both.negative[name][0]),
                        "probability": None if logit is None else float(sigmoid(logit)[0]),
                        "threshold": threshold,
                        "calibrated": fitted is not None,
                        "seen": bool(difference[0] >= score),
                    }
                )
        return sorted(
            findings,
            key=lambda finding: (
                not finding["seen"],
                1.0 if finding["probability"] is None else -finding["probability"],
                finding["absent"] - finding["present"],
            ),
        )


def _youden(fitted: FittedClass) -> tuple[float, float]:
    """Score and probability from which on a class counts as seen."""
    target = fitted.prevalence if fitted.target is None else fitted.target
    rules = {"sensitivity", "specificity", "threshold_probability"}
    score = thresholds(
        np.array(fitted.positive),
        np.array(fitted.negative),
        prevalence=target,
        **DecisionOptions().model_dump(include=rules),
    )["youden"]
    return score, float(sigmoid(fitted.logits(np.array([score]), target))[0])


@dataclass(frozen=True, eq=False)
class Encoded:
    """What a model keeps of one radiograph; ``absent``: by method, where colour begins."""

    features: SeenFeatures
    absent: dict[MapMethod, AbsentScores] = field(default_factory=dict)


class ViewedModel:
    """A model with its prompts, its calibration, and its maps by each method."""

    def __init__(
        self,
        model: ImageTextModel,
        name: str,
        calibration: Calibration | None,
        folder: Path,
        method: str,
    ) -> None:
        region_grid(model)
        self.model, self.name, self.folder = model, name, folder
        self.method = checked_method(method)
        self.finder = Finder(model, calibration)
        self._maps: dict[MapMethod, tuple[ImageTextModel, AbsentFindings]] = {}
        self.maps(self.method)

    @classmethod
    def open(
        cls,
        folder: Path,
        device: str,
        calibrations: Mapping[str, Calibration],
        method: str = "similarity",
    ) -> ViewedModel:
        """Load a model folder, also of another group's model."""
        model = load_model(folder, device)
        calibration = calibrations.get(model.content_hash or "")
        default = Path(folder) / CALIBRATION
        if calibration is None and default.is_file():
            calibration = Calibration.read(default)
            calibration.check(str(default), model.content_hash, calibration.prompts)
        name = "/".join(Path(folder).resolve().parts[-2:]).lstrip("/")
        return cls(model, name, calibration, folder, method)

    def maps(self, method: MapMethod) -> tuple[ImageTextModel, AbsentFindings]:
        """The model with maps by a method, and its prompts' maps; made when first asked for."""
        if method not in self._maps:
            model = with_maps(self.model, method)
            self._maps[method] = model, AbsentFindings(model)
        return self._maps[method]

    def maps_warning(self, method: MapMethod) -> str | None:
        """What is said beside every map; None where boxes on real radiographs confirm them."""
        return maps_warning(self.folder, self.model.content_hash, method)

    def encode(self, image: Radiograph) -> Encoded:
        """Look at a radiograph, as `read_radiograph` gives it with the model's own window."""
        return self.encode_square(prepare_image(image, self.model.preprocessing.prepare))

    def encode_square(self, square: NDArray[np.uint8]) -> Encoded:
        """Look at an image that is prepared already, as those of a prepared set are."""
        images = torch.from_numpy(square[None])
        with torch.inference_mode():
            features = self.model.encode_images(images).cpu()
        return Encoded(SeenFeatures(features.regions, features.whole, features.attended, images))

    def absent(self, encoded: Encoded, method: MapMethod) -> AbsentScores:
        """How high maps by a method are for findings that the image does not show."""
        if method not in encoded.absent:
            features = encoded.features.to(self.model.device)
            encoded.absent[method] = self.maps(method)[1].of(features)[0]
        return encoded.absent[method]

    # ---------------------------------------------------------------------------- answers

    def ground(
        self,
        encoded: Encoded,
        shape: tuple[int, int],
        sentences: Sequence[str],
        method: MapMethod | None = None,
    ) -> list[Grounding]:
        """The maps of sentences by a method, `method` where none is given."""
        features = encoded.features.to(self.model.device)
        model, _ = self.maps(method or self.method)
        return next(Grounder(model, sentences).of_features(features, [shape]))

    def look(
        self,
        encoded: Encoded,
        shape: tuple[int, int],
        sentence: str,
        method: MapMethod | None = None,
    ) -> dict[str, Any]:
        """What the page draws a map from: the scores of the regions, and what is said of them."""
        (grounding,) = self.ground(encoded, shape, [sentence], method)
        row = grounding_row(grounding, grounding.heatmap, [])
        return {key: row[key] for key in ("score", "lowest", "highest", "peak")} | {
            "grid": grounding.grid.astype(float).ravel().tolist(),
            "note": " ".join(cut_notes(self.model, [sentence])),
        }

    def findings(self, encoded: Encoded) -> list[dict[str, Any]]:
        """What is seen, in order (`Finder`)."""
        return self.finder.of(encoded.features.to(self.model.device))

    def opened(
        self, encoded: Encoded, shape: tuple[int, int], method: MapMethod | None = None
    ) -> dict[str, Any]:
        """What the page must know of a radiograph before it asks for a sentence."""
        method = method or self.method
        absent = self.absent(encoded, method)
        return {
            "findings": self.findings(encoded),
            "reference": absent.reference,
            # Whatever the maps are, colours run from the first, and to the second at least.
            "colours": list(absent.limits(float("-inf"))),
            "absent": list(absent.classes),
            "geometry": self.geometry(shape, method),
            "maps": self.maps_warning(method),
            "kind": self.maps(method)[0].outputs.map_kind,
        }

    def geometry(self, shape: tuple[int, int], method: MapMethod | None = None) -> dict[str, Any]:
        """How pixels of an image fall on the grid of a map; `axis_places` in numbers."""
        how, grid = self.model.preprocessing, self.maps(method or self.method)[0].grid
        square = SquareGeometry(*shape, how.prepare.size, how.input_size, how.prepare.fit)
        return {
            "size": square.size,
            "side_x": square.sides[0],
            "side_y": square.sides[1],
            "pad_x": square.pad_x,
            "pad_y": square.pad_y,
            "crop": square.crop,
            "input": square.input_size,
            **{name: getattr(grid, name) for name in ("first", "stride", "rows", "columns")},
        }

    # ------------------------------------------------------------------------- description

    @property
    def warning(self) -> str | None:
        """That the model was trained on synthetic images, if it was."""
        return synthetic_warning(self.model.provenance)

    def described(self) -> list[tuple[str, str]]:
        """Names and values for the head of the page."""
        model, how = self.model, self.model.preprocessing
        prepare, grid = how.prepare, model.grid
        clip = f"grey levels clipped at the {prepare.clip[0]:g} and {prepare.clip[1]:g} percentiles"
        squares = {"pad": "padded to a square", "crop": "central square"}
        fit = squares.get(prepare.fit, "squashed to a square")
        equalized = ", equalised" if prepare.equalize else ""
        calibrated = "calibrated on labelled images" if self.finder.calibrated else "not calibrated"
        return [
            ("Model", f"{self.name}, hash {model.content_hash or 'none (not from a folder)'}"),
            (
                "Sees",
                f"{clip}{equalized}; {fit}, {prepare.size} px a side, of which the central"
                f" {how.input_size}; {grid.rows} x {grid.columns} regions",
            ),
            ("Reads", f"sentences of up to {model.max_tokens} tokens"),
            ("Probabilities", calibrated),
        ]
