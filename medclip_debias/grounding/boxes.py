"""Boxes over images: as pixel masks, and as features read off the region grid."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.models.region_grid import RegionGrid


def box_mask(boxes: ArrayLike, height: int, width: int) -> NDArray[np.bool_]:
    """Union of boxes ``[K, 4]`` of x, y, width, height: True where a pixel's centre is inside."""
    mask = np.zeros((height, width), dtype=bool)
    for left, top, right, bottom in pixel_edges(boxes, height, width):
        mask[top:bottom, left:right] = True
    return mask


def pixel_edges(boxes: ArrayLike, height: int, width: int) -> NDArray[np.intp]:
    """Boxes as left, top, right, bottom pixels; ends are exclusive and clipped to the image.

    Pixel j is inside when x <= j + .5 < x + w: whole-pixel boxes keep their exact area.
    """
    corners = corners_of(as_boxes(boxes))
    limit = np.array([width, height, width, height])
    return np.clip(np.ceil(corners - 0.5), 0, limit).astype(np.intp)


def as_boxes(boxes: ArrayLike) -> NDArray[np.float64]:
    """Boxes as a ``[K, 4]`` array, also for K = 0 and for nested arrays as Parquet gives them."""
    rows = [np.asarray(box, dtype=np.float64) for box in boxes]  # type: ignore[union-attr]
    return np.stack(rows) if rows else np.zeros((0, 4))


def corners_of(boxes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Left, top, right and bottom of boxes ``[K, 4]`` of x, y, width, height."""
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def overlaps(truth: ArrayLike, found: ArrayLike) -> NDArray[np.float64]:
    """IoU ``[K, F]`` of true boxes ``[K, 4]`` of x, y, width, height with found ones ``[F, 4]``."""
    a, b = as_boxes(truth)[:, None], as_boxes(found)[None]
    low = np.maximum(a[..., :2], b[..., :2])
    high = np.minimum(a[..., :2] + a[..., 2:], b[..., :2] + b[..., 2:])
    common = np.clip(high - low, 0, None).prod(axis=-1)
    union = a[..., 2:].prod(axis=-1) + b[..., 2:].prod(axis=-1) - common
    return np.asarray(common / union)


def visible_boxes(boxes: ArrayLike, geometry: SquareGeometry) -> NDArray[np.float64]:
    """The parts of the boxes that the model saw, as x0, y0, x1, y1 in its input's pixels.

    A box wholly outside the input is left out, so the result may have fewer rows, or none.
    """
    array = as_boxes(boxes)
    if not len(array):
        return array
    moved = np.asarray(geometry.box_to_model(array), dtype=np.float64)
    corners = np.clip(corners_of(moved), 0, geometry.input_size)
    kept = (corners[:, 2] > corners[:, 0]) & (corners[:, 3] > corners[:, 1])
    return np.asarray(corners[kept])


def box_features(regions: Tensor, grid: RegionGrid, boxes: Sequence[ArrayLike]) -> Tensor:
    """RoIAlign feature of each image's boxes: the mean over the boxes of the union.

    Every box is the average of the bilinearly interpolated regions inside it (``aligned=True``,
    one bin, about one sample for each grid cell the box spans). The result is not normalised.

    Args:
        regions: ``[B, N, D]``, N = rows x columns of ``grid`` in row-major order.
        grid: where the regions lie in the model's input.
        boxes: what `visible_boxes` gives of each of the B images, one box at least.

    Returns:
        ``[B, D]``.
    """
    from torchvision.ops import roi_align

    features = regions.transpose(1, 2).reshape(len(regions), -1, *grid.shape)
    arrays = [np.asarray(array, dtype=np.float64).reshape(-1, 4) for array in boxes]
    counts = [len(array) for array in arrays]
    if len(counts) != len(regions) or min(counts, default=1) == 0:
        raise ValueError("every image needs at least one box")
    # In roi_align's units cell j covers [j, j + 1], so its centre is j + .5. A spatial_scale of
    # grid / input would do for patches only, so the boxes are moved here and it stays 1.
    rois = [torch.as_tensor(grid.place(array) + 0.5).to(features) for array in arrays]
    pooled: Tensor = roi_align(features, rois, output_size=1, spatial_scale=1.0, aligned=True)
    parts = pooled.flatten(1).split(counts)
    return torch.stack([part.mean(dim=0) for part in parts])
