"""From a list of findings to pixels: frontal (with boxes) and lateral views.

All of it is computed in float64 by operations whose bits are the same on every processor (exact.py)
and rounded at the end, so that a picture has the same bytes everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from medclip_debias.phantom import exact
from medclip_debias.phantom.anatomy import (
    Scene,
    draw_lungs,
    new_scene,
    noise_field,
    random_thorax,
    smooth,
)
from medclip_debias.phantom.catalogue import CLASSES
from medclip_debias.phantom.findings import MARKERS, PAINTERS, Box, deform


@dataclass(frozen=True, slots=True)
class Picture:
    """One rendered view.

    Attributes:
        pixels: float32 ``[height, width]`` in 0..1, high = bright.
        boxes: class index -> boxes ``(x, y, width, height)`` in pixels of this picture.
    """

    pixels: np.ndarray
    boxes: dict[int, tuple[Box, ...]]


def render_frontal(
    key: tuple[int, ...],
    size: tuple[int, int],
    findings: list[int],
    *,
    portable: bool = False,
    visibility: float = 1.0,
    marker: bool = False,
) -> Picture:
    """Render a frontal view.

    Anatomy, noise and every finding draw from generators of their own, all derived from
    ``key``: adding a finding changes nothing but what that finding draws.

    Args:
        key: whole numbers that name this image, as in ``(seed, stream, study, view)``.
        size: height and width in pixels.
        findings: indices into ``CLASSES``.
        portable: AP instead of PA: more tilt, a slightly larger heart.
        visibility: contrast of the findings; 1 is plain to see.
        marker: draw the spurious marker in the corner.
    """
    height, width = size
    anatomy = exact.Generator([*key, 0])
    thorax = random_thorax(anatomy, portable)
    sources = {i: exact.Generator([*key, 2, i]) for i in findings}
    for i in findings:
        deform(thorax, CLASSES[i], sources[i], visibility)
    scene = new_scene(anatomy, height, width, thorax, portable)
    draw_lungs(scene, anatomy)
    order = {kind: place for place, kind in enumerate(PAINTERS)}
    marks = {}
    for i in sorted(findings, key=lambda i: (order.get(CLASSES[i].type, -1), i)):
        kind = CLASSES[i].type
        if kind in PAINTERS:
            marks[i] = PAINTERS[kind](scene, CLASSES[i], sources[i], visibility)
        else:
            marks[i] = MARKERS[kind](scene)
    boxes = {
        i: tuple(box for mark in found if (box := mark.box()) is not None)
        for i, found in marks.items()
    }
    value = _compose(scene, anatomy)
    _exposure(value, exact.Generator([*key, 1]), marker)
    return Picture(value.astype(np.float32), {i: b for i, b in boxes.items() if b})


def _compose(scene: Scene, rng: exact.Generator) -> np.ndarray:
    """Add up what the beam passes: soft tissue, minus air, plus bone and devices."""
    u, v, thorax = scene.u, scene.v, scene.thorax
    across = np.abs(u)
    wall = thorax.lateral(v)
    body = smooth((1.13 + 0.05 * exact.sin(2.1 * v) - across) / 0.06)
    neck = np.where(v < -0.72, 0.30 + 0.95 * smooth((v + 1.12) / 0.34), 2.0)
    body = body * smooth((neck - across) / 0.07)
    belly = smooth((v - 0.45) / 0.5)
    value = body * (0.60 + 0.09 * belly + 0.07 * exact.exp(-((u / 0.17) ** 2)))
    # Breast or muscle shadow over the lower lungs, of varying size.
    soft = rng.uniform(0.0, 0.09)
    for side in (-1.0, 1.0):
        q = ((u - side * 0.55) / 0.40) ** 2 + ((v - 0.32) / 0.36) ** 2
        value += soft * body * np.clip(1.0 - q, 0.0, 1.0)
    air = np.clip(scene.air, 0.0, 1.35)
    value -= 0.44 * air * body
    value += 0.13 * scene.vessels * np.clip(air, 0.0, 1.0)
    value += _bones(scene, across, wall, rng) * body
    windpipe = exact.exp(-(((u - 0.01) / 0.055) ** 2)) * smooth((-0.28 - v) / 0.1)
    value -= 0.10 * windpipe * body
    if rng.random() < 0.55:  # gas in the stomach, under the left hemidiaphragm
        q = ((u - 0.48) / 0.2) ** 2 + ((v - thorax.diaphragm[1.0] - 0.25) / 0.11) ** 2
        value -= 0.16 * smooth(1.0 - q) * body
    value += scene.bright * np.clip(body + 0.2, 0.0, 1.0)
    return value + 0.02


def _bones(scene: Scene, across: np.ndarray, wall: np.ndarray, rng: exact.Generator) -> np.ndarray:
    u, v, thorax = scene.u, scene.v, scene.thorax
    spacing = thorax.rib_spacing
    inside = smooth((wall + 0.07 - across) / 0.05) * smooth((across - 0.1) / 0.05)
    inside = inside * smooth((0.92 - v) / 0.2)
    # Posterior ribs: leave the spine going slightly up, then slope down to the wall. One
    # expression gives them all: the distance to the nearest whole number of spacings.
    reach = np.clip((across - 0.1) / 0.85, 0.0, 1.2)
    arch = -0.10 * exact.sin(np.minimum(2.2 * reach, np.pi)) + 0.30 * exact.power(reach, 2.4)
    t = (v - arch + 0.80) / spacing + thorax.rib_phase
    off = np.abs(t - np.round(t)) * spacing
    rib = smooth((0.040 - off) / 0.014) * (0.055 + 0.035 * smooth((off - 0.014) / 0.016))
    # Anterior ribs: fainter, sloping down towards the sternum, only in the outer half.
    t = (v + 0.42 * reach + 0.35) / (1.12 * spacing)
    off = np.abs(t - np.round(t)) * spacing
    front = 0.022 * smooth((0.042 - off) / 0.016) * smooth((reach - 0.3) / 0.2)
    bones = (rib + front) * inside
    middle = thorax.spine_u(v)
    column = smooth((0.105 - np.abs(u - middle)) / 0.03)
    discs = 0.75 + 0.25 * smooth(np.abs(((v + 5.0) / 0.15) % 1.0 - 0.5) / 0.18)
    bones += 0.085 * column * discs
    lift = rng.normal(0, 0.03)
    slope = -0.66 + lift - 0.30 * (across - 0.1) + 0.05 * exact.sin(5.0 * across)
    collar = smooth((0.036 - np.abs(v - slope)) / 0.014)
    collar *= smooth((across - 0.11) / 0.03) * smooth((0.98 - across) / 0.05)
    return bones + 0.085 * collar


def _exposure(value: np.ndarray, rng: exact.Generator, marker: bool) -> None:
    """The detector: uneven exposure, contrast, letters, blur, noise; in place."""
    height, width = value.shape
    gain, gamma = rng.uniform(0.85, 1.12), rng.uniform(0.85, 1.2)
    offset = rng.uniform(-0.03, 0.03)
    value += 0.022 * noise_field(rng, value.shape, (4, 4)) + offset
    value *= gain
    np.clip(value, 0.0, 1.15, out=value)
    value[:] = exact.power(value, gamma)
    if rng.random() < 0.4:  # the letter that marks the patient's left
        at = (int(width * rng.uniform(0.86, 0.92)), int(height * rng.uniform(0.08, 0.16)))
        letter = np.zeros(value.shape, np.uint8)
        cv2.putText(letter, "L", at, cv2.FONT_HERSHEY_SIMPLEX, height / 450, 255, 1, cv2.LINE_AA)
        value += 0.5 * letter / 255.0
    corner = rng.uniform(0.02, 0.05, 2)
    if marker:
        side = max(4, round(0.045 * min(height, width)))
        row, column = int(height * corner[0]), int(width * corner[1])
        value[row : row + side, column : column + side] = 1.0
    sigma = rng.uniform(0.4, 0.8)
    value[:] = exact.blur(value, sigma)
    grain = rng.grain(value.shape)
    value += rng.uniform(0.008, 0.02) * grain
    np.clip(value, 0.0, 1.0, out=value)


def render_lateral(key: tuple[int, ...], size: tuple[int, int]) -> Picture:
    """Render a plain lateral view: silhouette, spine, heart, retrosternal air; no findings."""
    rng = exact.Generator([*key, 0])
    scene = new_scene(rng, size[0], size[1], random_thorax(rng, False), False)
    u, v = scene.u, scene.v
    body = smooth((0.85 + 0.08 * exact.sin(2.0 * v + 0.5) - np.abs(u)) / 0.06)
    neck = np.where(v < -0.75, 0.34 + 0.6 * smooth((v + 1.1) / 0.3), 2.0)
    body = body * smooth((neck - np.abs(u)) / 0.06)
    q = ((u + 0.04) / 0.64) ** 2 + ((v + 0.08) / 0.84) ** 2
    dome = 0.42 + 0.35 * exact.power(np.clip(u + 0.2, 0, 1), 1.5)
    lung = smooth((1.0 - q) / 0.15) * smooth((dome - v) / 0.05)
    heart = smooth((1.0 - ((u + 0.25) / 0.3) ** 2 - ((v - 0.22) / 0.3) ** 2) / 0.2)
    value = body * (0.62 + 0.1 * smooth((v - 0.4) / 0.4)) - 0.34 * lung * (1 - 0.7 * heart) * body
    back = 0.52 + 0.10 * exact.cos(2.0 * v)
    bone = smooth((0.12 - np.abs(u - back)) / 0.03)
    discs = 0.6 + 0.4 * smooth(np.abs(((v + 5.0) / 0.16) % 1.0 - 0.5) / 0.2)
    value += 0.13 * bone * discs * body + 0.02
    value = np.ascontiguousarray(value)
    _exposure(value, exact.Generator([*key, 1]), False)
    return Picture(value.astype(np.float32), {})
