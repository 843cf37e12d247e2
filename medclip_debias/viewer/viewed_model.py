"""One model of the page: what it makes of a radiograph, and its maps by each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
from medclip_debias.grounding.regions import threshold_regions
from medclip_debias.grounding.saliency import SeenFeatures, checked_method, with_maps
from medclip_debias.grounding.sentences import cut_notes
from medclip_debias.grounding.settings import MapMethod
from medclip_debias.grounding.validation import NOT_MEASURED, maps_warning
from medclip_debias.models.device import best_device
from medclip_debias.models.load import load_model
from medclip_debias.models.synthetic import synthetic_warning
from medclip_debias.viewer.findings import Finder

if TYPE_CHECKING:
    from medclip_debias.data.images.radiograph import Radiograph
    from medclip_debias.models.interface import ImageTextModel

CALIBRATION = "calibration.json"
"""File of ``calibrate`` in a model's folder, which is taken where none is given."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """What a model keeps of one radiograph; ``absent``: by method, where colour begins."""

    features: SeenFeatures
    absent: dict[MapMethod, AbsentScores] = field(default_factory=dict)


@dataclass(frozen=True)
class _Maps:
    model: ImageTextModel
    absent: AbsentFindings


class ViewedModel:
    """A model with its prompts, its calibration, and its maps by each method."""

    def __init__(
        self,
        model: ImageTextModel,
        name: str,
        calibration: Calibration | None = None,
        folder: Path | None = None,
        method: str = "similarity",
    ) -> None:
        region_grid(model)
        self.model, self.name, self.folder = model, name, folder
        self.method = checked_method(method)
        self.finder = Finder(model, calibration)
        self._maps: dict[MapMethod, _Maps] = {}
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
        model = load_model(folder, best_device(device))
        calibration = calibrations.get(model.content_hash or "")
        default = Path(folder) / CALIBRATION
        if calibration is None and default.is_file():
            calibration = Calibration.read(default)
            calibration.check(str(default), model.content_hash, calibration.prompts)
        name = "/".join(Path(folder).resolve().parts[-2:]).lstrip("/")
        return cls(model, name, calibration, folder, method)

    def maps(self, method: MapMethod) -> _Maps:
        """The model with maps by a method, and its prompts' maps; made when first asked for."""
        if method not in self._maps:
            model = with_maps(self.model, method)
            self._maps[method] = _Maps(model, AbsentFindings(model))
        return self._maps[method]

    def maps_warning(self, method: MapMethod) -> str | None:
        """What is said beside every map; None where boxes on real radiographs confirm them."""
        if self.folder is None:
            return NOT_MEASURED
        return maps_warning(self.folder, self.model.content_hash, method)

    # ----------------------------------------------------------------------------- images

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
            encoded.absent[method] = self.maps(method).absent.of(features)[0]
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
        model = self.maps(method or self.method).model
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

    def rows(
        self, groundings: Sequence[Grounding], threshold: float | None
    ) -> list[dict[str, Any]]:
        """What ``groundings.json`` says of each sentence, with boxes from ``threshold`` on."""
        rows = []
        for grounding in groundings:
            heatmap = grounding.heatmap
            regions = [] if threshold is None else threshold_regions(heatmap, threshold)
            rows.append(grounding_row(grounding, heatmap, regions))
        return rows

    def findings(self, encoded: Encoded) -> list[dict[str, Any]]:
        """What is seen, in order (`medclip_debias.viewer.findings`)."""
        return [asdict(one) for one in self.finder.of(encoded.features.to(self.model.device))]

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
            "kind": self.maps(method).model.outputs.map_kind,
        }

    def geometry(self, shape: tuple[int, int], method: MapMethod | None = None) -> dict[str, Any]:
        """How pixels of an image fall on the grid of a map; `axis_places` in numbers."""
        how, grid = self.model.preprocessing, self.maps(method or self.method).model.grid
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
