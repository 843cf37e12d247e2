"""A schematic thorax: geometry in its own frame, and the layers that findings draw on.

Frame: ``u`` runs across the image and ``v`` down it; the spine is ``u = 0`` and the inner chest
wall about ``u = +-0.95``. As on every frontal radiograph the patient's right is on the image's
left, so the right lung has ``u < 0``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import cv2
import numpy as np

from medclip_debias.phantom import exact

SIGN = {"right": -1.0, "left": 1.0}


def smooth(x: np.ndarray) -> np.ndarray:
    """Smooth step: 0 below 0, 1 above 1, cubic between."""
    x = np.clip(x, 0.0, 1.0)
    return x * x * (3.0 - 2.0 * x)


def noise_field(rng: exact.Generator, shape: tuple[int, int], cells: tuple[int, int]) -> np.ndarray:
    """Smooth random field with standard deviation near 1, from a coarse grid of normals."""
    return exact.enlarge(rng.grain(cells).astype(np.float64), shape)


@dataclass(slots=True)
class Thorax:
    """Parameters of one thorax; sampled once per image, then shared by every finding."""

    apex: float = -0.88
    width: float = 0.95
    base: float = 0.45
    diaphragm: dict[float, float] = field(default_factory=lambda: {-1.0: 0.52, 1.0: 0.57})
    heart_u: float = 0.13
    heart_v: float = 0.30
    heart_a: float = 0.42
    heart_b: float = 0.29
    heart_tilt: float = 0.45
    spine: float = 0.0  # amplitude of the curve
    rib_phase: float = 0.0
    rib_spacing: float = 0.165

    def lateral(self, v: np.ndarray) -> np.ndarray:
        """``|u|`` of the inner chest wall at height ``v`` (0 above the apex)."""
        t = (v - self.base) / (self.base - self.apex)
        t = np.where(v > self.base, 0.45 * t, t)
        return self.width * np.sqrt(np.clip(1.0 - t * t, 0.0, 1.0))

    def medial(self, v: np.ndarray) -> np.ndarray:
        """``|u|`` of the lung's inner border at height ``v``."""
        return 0.13 + 0.14 * smooth((-0.55 - v) / 0.35)

    def dome(self, side: float, u: np.ndarray) -> np.ndarray:
        """``v`` of the diaphragm on one side (-1 right, 1 left) at ``u``."""
        t = (np.abs(u) - 0.42) / 0.5
        return self.diaphragm[side] + np.where(t > 0, 0.24, 0.10) * t * t

    def lung_depth(self, side: float, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Roughly the distance from the border of one lung; positive inside."""
        across = u * side
        inner = np.minimum(self.lateral(v) - across, across - self.medial(v))
        return np.minimum(inner, self.dome(side, u) - v)

    def heart(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Soft mask of the heart, which ends where it lies on the diaphragm."""
        c, s = exact.cos(self.heart_tilt), exact.sin(self.heart_tilt)
        x, y = u - self.heart_u, v - self.heart_v
        y = np.where(y > 0, 0.8 * y, y)  # no gap of air between heart and diaphragm
        q = ((c * x + s * y) / self.heart_a) ** 2 + ((c * y - s * x) / self.heart_b) ** 2
        floor = self.diaphragm[1.0] + 0.09
        return smooth((1.06 - q) / 0.2) * smooth((floor - v) / 0.06)

    def spine_u(self, v: np.ndarray) -> np.ndarray:
        """``u`` of the spine's midline at height ``v``."""
        return self.spine * exact.sin(np.pi * np.clip((v + 0.95) / 1.6, 0.0, 1.0)) ** 2


@dataclass(slots=True)
class Scene:
    """One image while it is drawn: pixel grid, thorax, and the layers.

    ``air`` is how much aerated lung a pixel sees (0..1): findings fill it. ``bright`` is added
    at the end (devices, dense tissue); ``vessels`` are the lung markings.
    """

    thorax: Thorax
    to_pixels: np.ndarray  # 2 x 3
    u: np.ndarray
    v: np.ndarray
    lung: np.ndarray
    air: np.ndarray
    bright: np.ndarray
    vessels: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return (self.u.shape[0], self.u.shape[1])

    @property
    def unit(self) -> float:
        """Pixels per unit of the frame."""
        return math.sqrt(abs(_determinant(self.to_pixels)))

    def pixels(self, points: np.ndarray) -> np.ndarray:
        """Map frame points ``[n, 2]`` to continuous pixel coordinates."""
        u, v = np.asarray(points, dtype=float).T
        return np.stack([a * u + b * v + c for a, b, c in self.to_pixels], axis=-1)

    def window(self, u0: float, u1: float, v0: float, v1: float) -> tuple[slice, slice]:
        """Rows and columns that cover a rectangle of the frame (perhaps empty)."""
        xy = self.pixels(np.array([[u0, v0], [u1, v0], [u0, v1], [u1, v1]]))
        low, high = np.floor(xy.min(0)).astype(int) - 1, np.ceil(xy.max(0)).astype(int) + 2
        height, width = self.shape
        rows = slice(int(np.clip(low[1], 0, height)), int(np.clip(high[1], 0, height)))
        columns = slice(int(np.clip(low[0], 0, width)), int(np.clip(high[0], 0, width)))
        return rows, columns

    def around(self, u: float, v: float, a: float, b: float) -> tuple[Any, np.ndarray, np.ndarray]:
        """The `window` that reaches ``a`` across and ``b`` down from a point, and its u and v."""
        window = self.window(u - a, u + a, v - b, v + b)
        return window, self.u[window], self.v[window]

    def stroke(self, curves: list[np.ndarray], thickness: float) -> np.ndarray:
        """Anti-aliased curves (frame points) as a float mask of the whole image.

        Drawn with eight sub-pixel steps; a thickness under a pixel is drawn one pixel wide and
        fainter, so that a catheter stays visible on a small file.
        """
        canvas = np.zeros(self.shape, np.uint8)
        wide = thickness * self.unit
        for curve in curves:
            points = np.round((self.pixels(curve) - 0.5) * 8).astype(np.int32)
            cv2.polylines(canvas, [points], False, 255, max(1, round(wide)), cv2.LINE_AA, 3)
        return canvas.astype(np.float64) * (min(1.0, max(wide, 0.6)) / 255.0)


def _determinant(matrix: np.ndarray) -> float:
    return float(matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0])


def new_scene(
    rng: exact.Generator, height: int, width: int, thorax: Thorax, portable: bool
) -> Scene:
    """Place a thorax on a pixel grid, with jittered position, scale, proportions and tilt."""
    base = min(width / 2.3, height / 2.1)
    sx = base * rng.uniform(0.93, 1.08)
    sy = base * rng.uniform(0.93, 1.10)
    cx = width * (0.5 + rng.uniform(-0.04, 0.04))
    cy = height * (0.5 + rng.uniform(-0.03, 0.04)) + 0.06 * sy
    angle = np.deg2rad(rng.normal(0.0, 2.5 if portable else 1.2))
    c, s = float(exact.cos(angle)), float(exact.sin(angle))
    matrix = np.array([[sx * c, -sy * s, cx], [sx * s, sy * c, cy]])
    x = (np.arange(width) + 0.5 - cx)[None]
    y = (np.arange(height) + 0.5 - cy)[:, None]
    area = _determinant(matrix)
    u = (matrix[1, 1] * x - matrix[0, 1] * y) / area
    v = (matrix[0, 0] * y - matrix[1, 0] * x) / area
    lung = np.zeros((height, width))
    empty = np.zeros((height, width))
    return Scene(thorax, matrix, u, v, lung, empty.copy(), empty.copy(), empty)


def random_thorax(rng: exact.Generator, portable: bool) -> Thorax:
    """Draw a normal thorax: proportions vary, the heart stays within normal limits."""
    depth = rng.normal(0.0, 0.04)  # how far the patient breathed in
    return Thorax(
        apex=-0.88 + rng.normal(0, 0.02),
        width=0.95 + rng.normal(0, 0.015),
        base=0.42 + depth,
        diaphragm={-1.0: 0.50 + depth, 1.0: 0.55 + depth + rng.normal(0, 0.015)},
        heart_u=0.12 + rng.normal(0, 0.02),
        heart_v=0.27 + depth + rng.normal(0, 0.02),
        heart_a=0.40 + rng.normal(0, 0.018) + (0.02 if portable else 0.0),
        heart_b=0.28 + rng.normal(0, 0.015),
        heart_tilt=rng.uniform(0.35, 0.65),
        rib_phase=rng.uniform(-0.3, 0.3),
        rib_spacing=0.165 + rng.normal(0, 0.006),
    )


def draw_lungs(scene: Scene, rng: exact.Generator) -> None:
    """Fill the layers of normal lungs: aeration minus heart, and branching vessels."""
    thorax = scene.thorax
    depth = np.maximum(
        thorax.lung_depth(-1.0, scene.u, scene.v), thorax.lung_depth(1.0, scene.u, scene.v)
    )
    scene.lung[:] = smooth(depth / 0.05)
    heart = thorax.heart(scene.u, scene.v)
    knob = smooth((0.012 - (scene.u - 0.17) ** 2 - (scene.v + 0.36) ** 2) / 0.008)
    scene.air[:] = scene.lung * (1.0 - 0.93 * heart) * (1.0 - 0.75 * knob)
    scene.bright += 0.05 * heart + 0.03 * knob
    for side in (-1.0, 1.0):
        hilum = np.array([side * 0.2, -0.06 + 0.03 * side])
        q = (((scene.u - hilum[0]) / 0.11) ** 2 + ((scene.v - hilum[1]) / 0.17) ** 2).clip(0, 1)
        scene.bright += 0.10 * (1.0 - q) ** 2
        scene.vessels += _vessels(scene, rng, side, hilum)


def _vessels(scene: Scene, rng: exact.Generator, side: float, hilum: np.ndarray) -> np.ndarray:
    angles = np.linspace(-1.35, 1.35, 11) + rng.normal(0, 0.07, 11)
    lengths = rng.uniform(0.4, 0.72, 11)
    bends = rng.normal(0, 0.25, 11)
    t = np.linspace(0, 1, 7)[:, None]
    thick, thin = [], []
    ways = np.stack([side * exact.cos(angles), 1.15 * exact.sin(angles)], axis=1)
    for way, bend in zip(ways * lengths[:, None], bends, strict=True):
        across = np.array([-way[1], way[0]])
        curve = hilum + t * way + t * t * bend * across
        thick.append(curve[:4])
        thin.append(curve)
        fork = curve[3] + t[:5] * (way * 0.8 + across * rng.choice([-0.5, 0.5]))
        thin.append(fork)
    return 0.7 * scene.stroke(thick, 0.018) + 0.5 * scene.stroke(thin, 0.009)
