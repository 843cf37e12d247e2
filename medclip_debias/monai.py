"""For pipelines of MONAI: this project's reading of radiographs, and its models as a network.

Importing this module imports MONAI, which takes seconds; nothing else in the package does so before
it is needed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from monai.data import MetaTensor
from monai.transforms import InvertibleTransform, MapTransform
from numpy.typing import NDArray
from torch import Tensor, nn

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images.files import read_radiograph
from medclip_debias.data.images.square import prepare_image
from medclip_debias.data.prompts import PromptSet
from medclip_debias.data.synthetic import in_phantom
from medclip_debias.errors import UserError
from medclip_debias.evaluation.metrics import sigmoid
from medclip_debias.evaluation.sides import prompt_differences
from medclip_debias.front.images import warn
from medclip_debias.front.model import Model, SyntheticModelWarning, load
from medclip_debias.front.prompts import PromptsLike, asked_classes
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.models.synthetic import synthetic_warning

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

__all__ = ["LoadRadiograph", "LoadRadiographd", "ZeroShotNetwork"]


class LoadRadiograph(InvertibleTransform):
    """Read a DICOM, JPG or PNG file as a ``MetaTensor``, as it is or as a model sees it.

    Spatial axes are rows and columns, in this order. Without a model the tensor is float32
    ``[1, H, W]``, the values of `medclip_debias.data.images.read_radiograph`. With one it is uint8
    ``[1, S, S]``, what ``model.network.encode_images`` takes without its first axis; its affine
    leads from the index of a pixel there to that in the original.

    The inverse leads maps back to the original's pixels, float32 ``[K, H, W]``, NaN where the model
    saw nothing. A map has the shape of the model's grid of regions or of its input, and any number
    of channels; values are interpolated as `medclip_debias.grounding.heatmaps` does.

    Args:
        model: whose preparation is applied; None to leave the image as it is.
    """

    def __init__(self, model: Model | ImageTextModel | None = None) -> None:
        self.network = model.network if isinstance(model, Model) else model

    def __call__(self, file: str | Path) -> MetaTensor:
        """Read a file.

        Raises:
            UserError: it cannot be used.
        """
        how = None if self.network is None else self.network.preprocessing
        image = read_radiograph(file, "first" if how is None else how.prepare.window)
        height, width = image.shape
        geometry: dict[str, Any] = {}
        affine = np.eye(4)
        if how is None or self.network is None:
            pixels: NDArray[Any] = image.display()
        else:
            square = prepare_image(image, how.prepare)
            start = (len(square) - how.input_size) // 2
            pixels = square[start : start + how.input_size, start : start + how.input_size].copy()
            geometry = {
                "size": how.prepare.size,
                "input_size": how.input_size,
                "fit": how.prepare.fit,
            }
            affine = _affine(SquareGeometry(height, width, **geometry))
        meta = {"filename_or_obj": str(file), "spatial_shape": np.array([height, width])}
        tensor = MetaTensor(
            torch.from_numpy(pixels)[None], affine=torch.from_numpy(affine), meta=meta
        )
        grid = None if self.network is None else asdict(self.network.grid)
        return self.push_transform(
            tensor, orig_size=(height, width), extra_info={"geometry": geometry, "grid": grid}
        )

    def inverse(self, maps: MetaTensor) -> MetaTensor:
        """Maps ``[K, h, w]`` at the pixels of the original ``[K, H, W]``.

        Raises:
            ValueError: they have neither the shape of the input nor of the grid of regions.
        """
        applied = self.pop_transform(maps)
        height, width = applied["orig_size"]
        info = applied["extra_info"]
        values = maps.as_tensor()
        if info["geometry"]:
            geometry = SquareGeometry(int(height), int(width), **info["geometry"])
            side, shape = geometry.input_size, tuple(values.shape[1:])
            grid = RegionGrid(**info["grid"])
            if shape == (side, side):
                grid = RegionGrid(side, side, 1.0, 0.5)
            if shape != grid.shape:
                raise ValueError(
                    f"expected maps of {grid.shape} regions or {(side, side)} pixels, got {shape}"
                )
            each = [upsample_to_original(one, geometry, grid) for one in values.cpu().numpy()]
            values = torch.from_numpy(np.stack(each))
        meta = {key: value for key, value in maps.meta.items() if key != "affine"}
        return MetaTensor(values, affine=torch.eye(4, dtype=torch.float64), meta=meta)


class LoadRadiographd(MapTransform, InvertibleTransform):
    """`LoadRadiograph` for the named items of a dictionary; ``Invertd`` leads maps back.

    Args:
        keys: items that are paths.
        model: whose preparation is applied; None to leave images as they are.
        allow_missing_keys: whether a dictionary may lack one of them.
    """

    def __init__(
        self,
        keys: Any,
        model: Model | ImageTextModel | None = None,
        allow_missing_keys: bool = False,
    ) -> None:
        super().__init__(keys, allow_missing_keys)
        self.reader = LoadRadiograph(model)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Read the items."""
        items = dict(data)
        for key in self.key_iterator(items):
            items[key] = self.reader(items[key])
        return items

    def inverse(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Lead maps back to the pixels of the originals."""
        items = dict(data)
        for key in self.key_iterator(items):
            items[key] = self.reader.inverse(items[key])
        return items


class ZeroShotNetwork(nn.Module):
    """Probabilities of named classes, as `medclip_debias.Model.zero_shot` gives them.

    Args:
        folder: of the model.
        prompts: as `medclip_debias.Model.zero_shot` takes them, with two sides a class.
        device: ``cpu``, ``cuda`` or ``auto``.

    Attributes:
        model: for `LoadRadiographd`.
        classes: in the order of the columns.

    Raises:
        UserError: the folder or the prompts cannot be used, or the model has no learned scale.
    """

    def __init__(
        self, folder: str | Path, prompts: PromptsLike = None, device: str = "cpu"
    ) -> None:
        super().__init__()
        self.model = load(folder, device)
        network = self.model.network
        asked = asked_classes(prompts, network.prompts)
        if not isinstance(asked, PromptSet):
            raise UserError("a network of classes needs two sides of each; give no bare sentences.")
        if network.learned_scale is None:
            raise UserError("this model has no learned scale, so its scores are not probabilities.")
        self._prompts, self._scale = asked, network.learned_scale
        self.classes = list(asked.classes)
        with torch.inference_mode():
            self._vectors = network.encode_sentences(asked.texts)

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities float64 ``[B, classes]`` of images as `LoadRadiographd` gives them.

        Args:
            images: uint8 ``[B, 1, S, S]``.
        """
        network = self.model.network
        pixels = torch.as_tensor(images).to("cpu", torch.uint8)[:, 0]
        with torch.inference_mode():
            scores = network.score(network.encode_images(pixels), self._vectors)
        differences = prompt_differences(scores.double().cpu().numpy(), self._prompts)
        columns = [sigmoid(self._scale * differences[name]) for name in self.classes]
        return torch.from_numpy(np.stack(columns, axis=1))

    def table(self, batches: Iterable[Mapping[str, Any]], key: str = "image") -> pd.DataFrame:
        """The table of `medclip_debias.Model.zero_shot`, a row an image, named by its file."""
        names: list[str] = []
        rows: list[Tensor] = []
        for batch in batches:
            names += [str(name) for name in batch[key].meta["filename_or_obj"]]
            rows.append(self(batch[key]))
        warning = synthetic_warning(
            self.model.network.provenance, all(in_phantom(Path(name)) for name in names)
        )
        if warning is not None:
            warn(warning, SyntheticModelWarning)
        values = torch.cat(rows).numpy() if rows else np.zeros((0, len(self.classes)))
        table = pd.DataFrame(values, index=pd.Index(names, name="image"), columns=self.classes)
        return table.rename_axis(columns="class")


def _affine(geometry: SquareGeometry) -> NDArray[np.float64]:
    """From (row, column) of a pixel of the input to that of the original, 4 x 4 as MONAI's."""
    corner = geometry.to_original([0.5, 0.5]) - 0.5  # the index of a pixel is that of its centre
    affine = np.eye(4)
    affine[[0, 1], [0, 1]] = 1 / geometry.scales[1], 1 / geometry.scales[0]
    affine[:2, 3] = corner[::-1]
    return affine
