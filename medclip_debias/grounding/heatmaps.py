"""From a grid of region scores to a heatmap over the original image's pixels.

The model sees a square that was padded, scaled and cropped (`SquareGeometry`). Going back, the
scores are interpolated bilinearly between the centres of the regions, at the exact place of
every original pixel centre; nothing is rounded on the way.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.models.region_grid import RegionGrid

Floats = NDArray[np.floating]


def upsample_to_original(
    grid_map: Floats,
    geometry: SquareGeometry,
    grid: RegionGrid,
    *,
    smoothing: float = 0.0,
    dtype: type[np.float32] | type[np.float64] = np.float32,
) -> NDArray[np.floating]:
    """Interpolate a score grid at every pixel centre of the original image.

    Each score belongs to the centre of its region, as ``grid`` places it in the model's input.
    Between centres the map is bilinear; from the outermost centres to the input's edge it is
    constant. In single precision a score is within 2e-7 of the largest one's size from the exact.

    Args:
        grid_map: ``[rows, columns]``.
        geometry: the image's way into the model.
        grid: where the regions lie in the model's input.
        smoothing: sigma of a Gaussian applied to the grid first, in cells; 0 for none.
        dtype: of the map.

    Returns:
        ``[height, width]``, NaN where the pixel's centre lies outside what the model saw.
    """
    grid_map = np.asarray(grid_map, dtype=np.float64)
    if grid_map.shape != grid.shape:
        raise ValueError(f"expected a map of {grid.shape}, got one of {grid_map.shape}")
    if smoothing:
        grid_map = smooth(grid_map, smoothing)
    row_places, row_seen = axis_places(geometry, "y", grid)
    column_places, column_seen = axis_places(geometry, "x", grid)
    across = grid_map @ axis_weights(column_places, grid.columns).T
    across[:, ~column_seen] = np.nan
    return _down(across, row_places, row_seen, dtype)


def _down(
    across: NDArray[np.float64],
    place: NDArray[np.float64],
    seen: NDArray[np.bool_],
    dtype: type[np.float32] | type[np.float64],
) -> NDArray[np.floating]:
    """Interpolate linearly between the rows of ``across [rows, width]``, NaN where unseen.

    Between two rows of centres every row of pixels is ``a + t d``: one matrix product of
    ``[1, t]`` and ``[a, d]``, written in place. Products with all rows, most of whose weights are
    0, take several times as long. The step ``d`` is taken in double precision, so where scores
    are equal the map is constant.
    """
    place = np.clip(place, 0, len(across) - 1)
    above = np.minimum(np.floor(place).astype(np.intp), max(len(across) - 2, 0))
    steps = np.diff(across, axis=0, append=across[-1:])
    pairs = np.stack([across, steps], axis=1).astype(dtype)
    weights = np.stack([np.ones_like(place), place - above], axis=1).astype(dtype)
    heatmap = np.empty((len(place), across.shape[1]), dtype=dtype)
    bounds = np.searchsorted(above, np.arange(len(across) + 1))
    for row, (start, stop) in enumerate(pairwise(bounds)):
        np.matmul(weights[start:stop], pairs[row], out=heatmap[start:stop])
    heatmap[~seen] = np.nan
    return heatmap


def smooth(grid_map: Floats, sigma: float) -> NDArray[np.float64]:
    """Blur a grid with a Gaussian of ``sigma`` cells, cut at 4 sigma, as hi-ml does.

    At the border the grid is mirrored with its last cell repeated, ``d c b a | a b c d | d c b a``:
    scipy's ``reflect``, the default that `ImageTextInferenceEngine` of hi-ml takes.
    """
    from scipy.ndimage import gaussian_filter

    blurred: NDArray[np.float64] = gaussian_filter(
        np.asarray(grid_map, dtype=np.float64), sigma, mode="reflect"
    )
    return blurred


def axis_places(
    geometry: SquareGeometry, axis: str, grid: RegionGrid
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Where the pixels of the ``x`` or ``y`` axis lie among the regions' centres.

    As a fractional index of the grid (not clipped to it), and which pixels the model saw.
    """
    which = "xy".index(axis)
    length = (geometry.width, geometry.height)[which]
    pad = (geometry.pad_x, geometry.pad_y)[which]
    side = geometry.sides[which]
    position = geometry.scales[which] * (np.arange(length) + 0.5 + pad) - geometry.crop
    # In whole numbers: on the very edge of the input a rounded position would decide by chance.
    doubled = (2 * np.arange(length) + 1 + 2 * pad) * geometry.size - 2 * side * geometry.crop
    seen = (doubled >= 0) & (doubled <= 2 * side * geometry.input_size)
    return np.asarray(grid.place(position), dtype=np.float64), seen


def axis_weights(place: NDArray[np.float64], cells: int) -> NDArray[np.float64]:
    """Weights ``[pixels, cells]`` of linear interpolation at `axis_places`, constant outside."""
    place = np.clip(place, 0, cells - 1)
    before = np.minimum(np.floor(place).astype(np.intp), max(cells - 2, 0))
    weights = np.zeros((len(place), cells))
    pixel = np.arange(len(place))
    weights[pixel, before] = 1 - (place - before)
    if cells > 1:
        weights[pixel, before + 1] = place - before
    return weights
