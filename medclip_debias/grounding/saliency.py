"""Saliency: maps that explain a model's image-sentence score, beside the map of its regions.

``similarity`` is the map that the model computes itself. The other two are what the field explains
any network with, here on the score of an image with a sentence:

- ``gradcam``: Grad-CAM (Selvaraju et al. 2017, https://arxiv.org/abs/1610.02391) at the last layer
  of the image encoder: ``relu(sum over c of a_c A_c)``, ``a_c`` the mean over places of the score's
  derivative by channel ``A_c``. Of an encoder of tokens, at the last layer but one: behind the last
  the patches need not reach the score any more.
- ``occlusion``: how far the score falls while a square is covered with the image's mean (Zeiler and
  Fergus 2014, https://arxiv.org/abs/1311.2901), the mean over the squares that cover a place.

Both are computed by ``monai.visualize``, on the grid of `MapModel.grid`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.errors import UserError, one_of
from medclip_debias.grounding.settings import MapMethod
from medclip_debias.models.features import ImageFeatures, Rows
from medclip_debias.models.region_grid import RegionGrid

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel, MapKind, Outputs

CELLS = 16
"""Rows and columns of an occlusion map; the covered square has the side of two cells."""
_BATCH = 16  # covered images scored at a time


def with_maps(model: ImageTextModel, method: str) -> ImageTextModel:
    """The model (in evaluation mode) with maps of a method; itself for ``similarity``.

    Everything else stays: scores, vectors, prompts, hash.
    """
    known = checked_method(method)
    return model if known == "similarity" else cast("ImageTextModel", MapModel(model, known))


def checked_method(method: str) -> MapMethod:
    """The method of that name."""
    return one_of(method, get_args(MapMethod), "method for maps")


def without_maps(model: ImageTextModel) -> ImageTextModel:
    """The model that `with_maps` was given, whose `grid` is that of its regions."""
    return model.model if isinstance(model, MapModel) else model


@dataclass(frozen=True, eq=False)
class SeenFeatures(ImageFeatures):
    """Features together with the prepared images that they came from, which stay on the CPU."""

    images: Tensor | None = None

    def __getitem__(self, rows: Rows) -> Self:
        assert self.images is not None
        places = torch.atleast_1d(torch.arange(len(self))[rows])
        return replace(super().__getitem__(rows), images=self.images[places])


class MapModel:
    """A model whose `region_scores` explain its score; an `ImageTextModel` in all else."""

    def __init__(self, model: ImageTextModel, method: MapMethod) -> None:
        self.model, self.method = model, method
        self._layer = _layer(model) if method == "gradcam" else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @property
    def outputs(self) -> Outputs:
        """As the model's, with maps of the method."""
        return replace(self.model.outputs, map_kind=cast("MapKind", self.method))

    @property
    def grid(self) -> RegionGrid:
        """Where the values of a map lie in the model's input."""
        if self.method == "gradcam":
            return self.model.grid
        return RegionGrid.patches(CELLS, CELLS, self.model.preprocessing.input_size)

    def encode_images(self, images: Tensor) -> SeenFeatures:
        """The model's features of prepared images, uint8 ``[B, S, S]``, with the images."""
        features = self.model.encode_images(images)
        return SeenFeatures(features.regions, features.whole, features.attended, images.cpu())

    def region_scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """Maps ``[B, T, N]`` of images and T sentences' vectors, N = rows x columns of `grid`."""
        if not isinstance(features, SeenFeatures) or features.images is None:
            raise ValueError("expected the features of `MapModel.encode_images`")
        explain = self._gradcam if self.method == "gradcam" else self._occlusion
        with torch.inference_mode(False), _frozen(self.model):
            vectors = sentences.clone()  # inference mode's have no gradient, their copies have
            pixels = (self.model.normalise(image[None].clone()) for image in features.images)
            return torch.stack([explain(x, vectors) for x in pixels])

    def _gradcam(self, x: Tensor, vectors: Tensor) -> Tensor:
        """Maps ``[T, N]`` of one normalised image."""
        from monai.visualize import GradCAM

        assert self._layer is not None
        scorer = _Scorer(self.model, vectors, each_of_its_own=True)
        handle = self._layer.register_forward_hook(scorer.expose)
        try:
            with torch.enable_grad():
                maps: Tensor = GradCAM(scorer, target_layers="map").compute_map(x, class_idx=0)
        finally:
            handle.remove()
        return maps.detach().float().flatten(1)

    def _occlusion(self, x: Tensor, vectors: Tensor) -> Tensor:
        """Maps ``[T, N]`` of one normalised image."""
        from monai.visualize import OcclusionSensitivity

        scorer = _Scorer(self.model, vectors)
        occlude = OcclusionSensitivity(
            scorer,
            mask_size=2 * max(1, round(x.shape[-1] / CELLS)),
            n_batch=_BATCH,
            verbose=False,
            mode="mean_img",
            overlap=0.5,
            activate=False,
        )
        with torch.no_grad(), warnings.catch_warnings():
            # MONAI indexes in a way that PyTorch wants to change; the tests would see it.
            warnings.filterwarnings("ignore", "Using a non-tuple sequence")
            covered: Tensor = occlude(x)[0].as_tensor()[0]
            cells = F.adaptive_avg_pool2d(covered, CELLS).flatten(1)
            return (scorer(x)[0, :, None] - cells).float()


class _Scorer(nn.Module):
    """Scores of normalised images with sentences, as MONAI's explanations ask for them.

    With ``each_of_its_own`` one image's features are copied, a copy a sentence, and each copy is
    scored with its sentence alone: one pass back gives the gradients of all T scores.
    """

    def __init__(
        self, model: ImageTextModel, vectors: Tensor, *, each_of_its_own: bool = False
    ) -> None:
        super().__init__()
        self.map = nn.Identity()
        self._scored = model, vectors  # in a tuple: its parameters are not this module's
        self._each = each_of_its_own

    def forward(self, images: Tensor) -> Tensor:
        model, vectors = self._scored
        scores = model.score(model.encode_images(images), vectors)
        return scores.diagonal()[:, None] if self._each else scores

    def expose(self, _: nn.Module, __: Any, output: Any) -> Any:
        """A forward hook that leads a layer's output through ``map``, a copy a sentence."""
        model, vectors = self._scored
        features, grid = _first(output), model.grid
        copies = features.detach().expand(len(vectors), *features.shape[1:])
        layout = _layout(features, grid)
        if layout == "channels first":
            seen = self.map(copies.clone().requires_grad_())
        elif layout == "channels last":
            seen = self.map(copies.permute(0, 3, 1, 2).clone().requires_grad_())
            seen = seen.permute(0, 2, 3, 1)
        else:
            start = copies.shape[1] - grid.rows * grid.columns
            spatial = copies[:, start:].transpose(1, 2).unflatten(2, grid.shape)
            mapped = self.map(spatial.clone().requires_grad_())
            seen = torch.cat([copies[:, :start], mapped.flatten(2).transpose(1, 2)], dim=1)
        return (seen, *output[1:]) if isinstance(output, tuple) else seen


def _first(output: Any) -> Tensor:
    features: Tensor = output[0] if isinstance(output, tuple) else output
    return features


def _layout(output: Tensor, grid: RegionGrid) -> str:
    """How a layer's output lies on the grid of regions; empty where it does not."""
    if output.ndim == 4 and tuple(output.shape[2:]) == grid.shape:
        return "channels first"
    if output.ndim == 4 and tuple(output.shape[1:3]) == grid.shape:
        return "channels last"
    return "tokens" if output.ndim == 3 and output.shape[1] >= grid.rows * grid.columns else ""


def _layer(model: ImageTextModel) -> nn.Module:
    """The layer that Grad-CAM is taken at."""
    layers = list(getattr(getattr(model, "image_encoder", None), "layers", ()))
    outputs: list[Tensor] = []
    if layers:
        side = model.preprocessing.input_size
        handle = layers[-1].register_forward_hook(lambda *of: outputs.append(_first(of[2])))
        try:
            with torch.inference_mode():
                model.encode_images(torch.zeros(1, side, side, dtype=torch.uint8))
        finally:
            handle.remove()
    for output in outputs:
        layout = _layout(output, model.grid)
        if layout == "tokens" and len(layers) > 1:
            return layers[-2]
        if layout.startswith("channels"):
            return layers[-1]
    raise UserError(
        "Grad-CAM needs an image encoder whose last layer lies on the grid of the model's regions,"
        " and this model's does not; take the method 'occlusion'."
    )


@contextmanager
def _frozen(model: ImageTextModel) -> Iterator[None]:
    """No gradients of the weights, which nobody needs; afterwards as before."""
    learning = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in learning:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in learning:
            weight.requires_grad_(True)
