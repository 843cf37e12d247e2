"""From a grid of region scores to a heatmap over the original image's pixels.

The model sees a square that was padded, scaled and cropped (`SquareGeometry`). Going back, the
scores are interpolated bilinearly between the centres of the regions, at the exact place of
every original pixel centre; nothing is rounded on the way.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.errors import UserError
from medclip_debias.models.region_grid import RegionGrid

Floats = NDArray[np.floating]

_BAND = 64


def upsample_to_original(
    grid_map: Floats, geometry: SquareGeometry, grid: RegionGrid, *, smoothing: float = 0.0
) -> NDArray[np.float32]:
    """Interpolate a score grid at every pixel centre of the original image.

    Each score belongs to the centre of its region, as ``grid`` places it in the model's input.
    Between centres the map is bilinear; from the outermost centres to the input's edge it is
    constant.

    Args:
        grid_map: ``[rows, columns]``.
        geometry: the image's way into the model.
        grid: where the regions lie in the model's input.
        smoothing: sigma of a Gaussian applied to the grid first, in cells; 0 for none.

    Returns:
        ``[height, width]``, NaN where the pixel's centre lies outside what the model saw.
    """
    grid_map = np.asarray(grid_map, dtype=np.float64)
    if grid_map.shape != grid.shape:
        raise ValueError(f"expected a map of {grid.shape}, got one of {grid_map.shape}")
    if smoothing:
        grid_map = smooth(grid_map, smoothing)
    # Bilinear interpolation on a regular grid is one small matrix for each axis.
    row_places, row_seen = axis_places(geometry, "y", grid)
    column_places, column_seen = axis_places(geometry, "x", grid)
    rows = axis_weights(row_places, grid.rows)
    columns = axis_weights(column_places, grid.columns)
    # In double precision, so that pixels which are equal by symmetry stay equal when rounded; a
    # band of rows at a time, so that the doubles stay in the cache.
    heatmap = np.empty((geometry.height, geometry.width), dtype=np.float32)
    across = grid_map @ columns.T
    for start in range(0, geometry.height, _BAND):
        heatmap[start : start + _BAND] = rows[start : start + _BAND] @ across
    heatmap[~row_seen] = np.nan
    heatmap[:, ~column_seen] = np.nan
    return heatmap


def smooth(grid_map: Floats, sigma: float) -> NDArray[np.float64]:
    """Blur a grid with a Gaussian of ``sigma`` cells; the border repeats its last cell."""
    if not sigma > 0:
        raise UserError(f"smoothing must be a positive number of grid cells, got {sigma}.")
    from scipy.ndimage import gaussian_filter

    blurred: NDArray[np.float64] = gaussian_filter(
        np.asarray(grid_map, dtype=np.float64), sigma, mode="nearest"
    )
    return blurred


def region_centres(geometry: SquareGeometry, grid: RegionGrid) -> NDArray[np.float64]:
    """Centres of the regions in original coordinates: ``[rows, columns, 2]`` of (x, y)."""
    return np.asarray(geometry.to_original(grid.centres()), dtype=np.float64)


def axis_places(
    geometry: SquareGeometry, axis: str, grid: RegionGrid
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Where the pixels of the ``x`` or ``y`` axis lie among the regions' centres.

    Returns:
        The place of each pixel's centre as a fractional index of the grid (not clipped to it),
        and which pixels the model saw.
    """
    length = geometry.width if axis == "x" else geometry.height
    pad = geometry.pad_x if axis == "x" else geometry.pad_y
    side = geometry.input_size
    position = geometry.scale * (np.arange(length) + 0.5 + pad) - geometry.crop
    # In whole numbers: on the very edge of the input a rounded position would decide by chance.
    doubled = (
        2 * np.arange(length) + 1 + 2 * pad
    ) * geometry.size - 2 * geometry.side * geometry.crop
    seen = (doubled >= 0) & (doubled <= 2 * geometry.side * side)
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
