"""One model of the page: what it makes of a radiograph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images import prepare_image
from medclip_debias.evaluation.decisions.calibration import Calibration
from medclip_debias.grounding.absent import AbsentFindings, AbsentScores
from medclip_debias.grounding.files import grounding_row
from medclip_debias.grounding.ground import Grounder, Grounding, region_grid
from medclip_debias.grounding.regions import ScoredRegion, threshold_regions
from medclip_debias.grounding.saliency import with_maps
from medclip_debias.grounding.sentences import cut_notes
from medclip_debias.grounding.validation import NOT_MEASURED, maps_warning
from medclip_debias.models.device import best_device
from medclip_debias.models.load import load_model
from medclip_debias.models.synthetic import synthetic_warning
from medclip_debias.viewer.findings import Finder

if TYPE_CHECKING:
    from medclip_debias.data.images.radiograph import Radiograph
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

CALIBRATION = "calibration.json"
"""File of ``calibrate`` in a model's folder, which is taken where none is given."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """What a model keeps of one radiograph.

    Attributes:
        features: of this one image.
        absent: how high regions score for findings that it does not show: where colour begins.
    """

    features: ImageFeatures
    absent: AbsentScores


class ViewedModel:
    """A model with its prompts and its calibration.

    Args:
        model: in evaluation mode, with regions.
        name: what the page calls it.
        calibration: of this model; None for probabilities that are not calibrated.
        maps_warning: what is said beside every map (`medclip_debias.grounding.validation`); None
            where boxes on real radiographs confirm the maps.

    Raises:
        UserError: the model has no regions, or its prompts are not whole.
    """

    def __init__(
        self,
        model: ImageTextModel,
        name: str,
        calibration: Calibration | None = None,
        maps_warning: str | None = NOT_MEASURED,
    ) -> None:
        self.grid = region_grid(model)
        self.model = model
        self.name = name
        self.maps_warning = maps_warning
        self.finder = Finder(model, calibration)
        self._absent = AbsentFindings(model)

    @classmethod
    def open(
        cls,
        folder: Path,
        device: str,
        calibrations: Mapping[str, Calibration],
        method: str = "similarity",
    ) -> ViewedModel:
        """Load a model folder, also of another group's model.

        Args:
            folder: the model's.
            device: cpu, cuda, or auto.
            calibrations: by the hash of their model.
            method: how maps are computed (`medclip_debias.grounding.saliency`).

        Raises:
            UserError: it cannot be loaded, does not allow the method, or its own calibration is
                damaged or another model's.
        """
        model = with_maps(load_model(folder, best_device(device)), method)
        calibration = calibrations.get(model.content_hash or "")
        default = Path(folder) / CALIBRATION
        if calibration is None and default.is_file():
            calibration = Calibration.read(default)
            calibration.check(str(default), model.content_hash, calibration.prompts)
        name = "/".join(Path(folder).resolve().parts[-2:]).lstrip("/")
        if method != "similarity":
            name = f"{name}, {method}"
        return cls(model, name, calibration, maps_warning(folder, model.content_hash, method))

    # ----------------------------------------------------------------------------- images

    def encode(self, image: Radiograph) -> Encoded:
        """Look at a radiograph, as `read_radiograph` gives it with the model's own window.

        Raises:
            UserError: nothing can be seen on it.
        """
        return self.encode_square(prepare_image(image, self.model.preprocessing.prepare))

    def encode_square(self, square: NDArray[np.uint8]) -> Encoded:
        """Look at an image that is prepared already, as those of a prepared set are."""
        with torch.inference_mode():
            features = self.model.encode_images(torch.from_numpy(square[None]))
        return Encoded(features.cpu(), self._absent.of(features)[0])

    # ---------------------------------------------------------------------------- answers

    def ground(
        self, encoded: Encoded, shape: tuple[int, int], sentences: Sequence[str]
    ) -> list[Grounding]:
        """The maps of sentences, whose reference is that of the image."""
        features = encoded.features.to(self.model.device)
        return next(Grounder(self.model, sentences).of_features(features, [shape]))

    def look(self, encoded: Encoded, shape: tuple[int, int], sentence: str) -> dict[str, Any]:
        """What the page draws a map from: the scores of the regions, and what is said of them."""
        (grounding,) = self.ground(encoded, shape, [sentence])
        row = self.rows([grounding], None)[0]
        return {
            "score": grounding.score,
            "lowest": row["lowest"],
            "highest": row["highest"],
            "peak": row["peak"],
            "grid": grounding.grid.astype(float).ravel().tolist(),
            "note": " ".join(cut_notes(self.model, [sentence])),
        }

    def rows(
        self, groundings: Sequence[Grounding], threshold: float | None
    ) -> list[dict[str, Any]]:
        """What ``groundings.json`` says of each sentence, with boxes from ``threshold`` on."""
        rows = []
        for grounding in groundings:
            heatmap = grounding.heatmap
            regions: list[ScoredRegion] = (
                [] if threshold is None else threshold_regions(heatmap, threshold)
            )
            rows.append(grounding_row(grounding, heatmap, regions))
        return rows

    def findings(self, encoded: Encoded) -> list[dict[str, Any]]:
        """What is seen, in order (`medclip_debias.viewer.findings`)."""
        return [asdict(one) for one in self.finder.of(encoded.features.to(self.model.device))]

    def opened(self, encoded: Encoded, shape: tuple[int, int]) -> dict[str, Any]:
        """What the page must know of a radiograph before it asks for a sentence."""
        return {
            "findings": self.findings(encoded),
            "reference": encoded.absent.reference,
            # Whatever the maps are, colours run from the first, and to the second at least.
            "colours": list(encoded.absent.limits(float("-inf"))),
            "absent": list(encoded.absent.classes),
            "geometry": self.geometry(shape),
        }

    def geometry(self, shape: tuple[int, int]) -> dict[str, Any]:
        """How pixels of an image fall on the grid of regions; `axis_places` in numbers."""
        how, grid = self.model.preprocessing, self.grid
        square = SquareGeometry(*shape, how.prepare.size, how.input_size, how.prepare.fit)
        return {
            "size": square.size,
            "side_x": square.sides[0],
            "side_y": square.sides[1],
            "pad_x": square.pad_x,
            "pad_y": square.pad_y,
            "crop": square.crop,
            "input": square.input_size,
            "first": grid.first,
            "stride": grid.stride,
            "rows": grid.rows,
            "columns": grid.columns,
        }

    # ------------------------------------------------------------------------- description

    @property
    def warning(self) -> str | None:
        """That the model was trained on synthetic images, if it was.

        Also before images of a phantom: the page cannot know what will be put on it.
        """
        return synthetic_warning(self.model.provenance)

    def described(self) -> list[tuple[str, str]]:
        """Names and values for the head of the page."""
        model, how = self.model, self.model.preprocessing
        prepare, grid = how.prepare, self.grid
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
