"""Draw each finding on a scene, with its own random shape, and box what was drawn.

A painter changes the scene's layers and returns masks (one per box: edema has two). The two
findings that change the anatomy itself, cardiomegaly and scoliosis, act on the thorax before
it is drawn and give their masks afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from medclip_debias.phantom import exact
from medclip_debias.phantom.anatomy import SIGN, Scene, Thorax, noise_field, smooth
from medclip_debias.phantom.catalogue import FindingClass

Box = tuple[float, float, float, float]
Rng = exact.Generator


@dataclass(frozen=True, slots=True)
class Mark:
    """Where something was drawn: a boolean mask at an offset in the image."""

    mask: np.ndarray
    row: int = 0
    column: int = 0

    def box(self) -> Box | None:
        """Smallest box ``x, y, width, height`` around the mask; None when nothing is drawn."""
        rows, columns = np.flatnonzero(self.mask.any(1)), np.flatnonzero(self.mask.any(0))
        if not len(rows):
            return None
        return (
            float(self.column + columns[0]),
            float(self.row + rows[0]),
            float(columns[-1] - columns[0] + 1),
            float(rows[-1] - rows[0] + 1),
        )


# ---------------------------------------------------------------- before the thorax is drawn


def deform(thorax: Thorax, finding: FindingClass, rng: Rng, visibility: float) -> None:
    """Let cardiomegaly or scoliosis change the thorax; other findings leave it alone."""
    if finding.type == "cardiomegaly":
        low, high = (1.26, 1.38) if finding.severity == "mild" else (1.5, 1.68)
        grow = 1.0 + (rng.uniform(low, high) - 1.0) * min(1.15, 0.4 + 0.6 * visibility)
        thorax.heart_u += 0.28 * thorax.heart_a * (grow - 1.0)
        thorax.heart_a *= grow
        thorax.heart_b *= 1.0 + 0.55 * (grow - 1.0)
        thorax.heart_v -= 0.10 * (grow - 1.0)
    elif finding.type == "scoliosis":
        size = rng.uniform(0.13, 0.22) * (0.5 + 0.5 * visibility)
        thorax.spine = size * (1.0 if rng.random() < 0.4 else -1.0)


def _mark_spine(scene: Scene) -> list[Mark]:
    middle = scene.thorax.spine_u(scene.v)
    # Both the straight and the curved course: the box holds all that the curve changed.
    low, high = np.minimum(middle, 0.0) - 0.13, np.maximum(middle, 0.0) + 0.13
    inside = (scene.u > low) & (scene.u < high) & (scene.v > -0.95) & (scene.v < 0.65)
    return [Mark(inside)]


# ------------------------------------------------------------------ after the lungs are drawn

Painter = Callable[[Scene, FindingClass, exact.Generator, float], list[Mark]]


def _fill(
    scene: Scene, window: tuple[slice, slice], shape: np.ndarray, opacity: float, bright: float
) -> Mark:
    """Fill air with tissue of the given soft shape (0..1); the mask is where it clearly shows."""
    scene.air[window] *= 1.0 - np.clip(opacity, 0.0, 1.0) * shape
    seen = shape * scene.lung[window]
    scene.bright[window] += bright * seen
    return Mark(seen > 0.12, window[0].start, window[1].start)


def _effusion(scene: Scene, finding: FindingClass, rng: Rng, visibility: float) -> list[Mark]:
    thorax, side = scene.thorax, SIGN[finding.side or "left"]
    window = scene.window(0.1 * side, 1.05 * side, -0.6, 1.0)
    u, v = scene.u[window], scene.v[window]
    wall = np.clip(np.abs(u) / 0.93, 0.0, 1.1)
    dome = thorax.diaphragm[side]
    if finding.severity == "small":
        # Fluid in the costophrenic angle: the level meets the dome and climbs the wall.
        level = dome + rng.uniform(0.10, 0.16) - rng.uniform(0.26, 0.36) * (wall**2) ** 2
    else:
        level = dome - rng.uniform(0.18, 0.48) - rng.uniform(0.16, 0.28) * (wall**2 * wall)
    shape = smooth((v - level) / 0.05) * (u * side > 0)
    return [_fill(scene, window, shape, 0.65 + 0.33 * min(1.0, visibility), 0.02)]


def _pneumothorax(scene: Scene, finding: FindingClass, rng: Rng, visibility: float) -> list[Mark]:
    thorax, side = scene.thorax, SIGN[finding.side or "left"]
    window = scene.window(0.05 * side, 1.05 * side, -1.0, 0.95)
    u, v = scene.u[window], scene.v[window]
    across = u * side
    if finding.severity == "small":
        drop, shrink, end = rng.uniform(0.17, 0.26), rng.uniform(0.86, 0.92), rng.uniform(-0.2, 0.1)
        collapse = 0.0
    else:
        drop, shrink, end = rng.uniform(0.45, 0.65), rng.uniform(0.50, 0.66), 3.0
        collapse = 0.45
    apex = thorax.apex + drop
    t = np.clip((v - thorax.base) / (thorax.base - apex), -1.0, 0.45)
    border = thorax.width * shrink * np.sqrt(np.clip(1.0 - t * t, 0.0, 1.0))
    # Towards its lower end the visceral pleura meets the wall again.
    border += (thorax.lateral(v) + 0.02 - border) * smooth((v - end + 0.25) / 0.25)
    gap = smooth((across - border) / 0.03) * scene.lung[window] * (across > 0)
    line = (
        exact.exp(-(((across - border + 0.008) / 0.013) ** 2)) * scene.lung[window] * (across > 0)
    )
    line *= border < thorax.lateral(v) - 0.01
    line *= (v > apex - 0.03) & (border > thorax.medial(v))
    air, strength = scene.air[window], 0.4 + 0.6 * min(1.2, visibility)
    air += gap * 0.30 * strength * (air > 0.05)
    inside = (1.0 - gap) * scene.lung[window] * (across > 0) * collapse * strength
    air *= 1.0 - inside
    scene.vessels[window] *= 1.0 - gap
    scene.bright[window] += 0.16 * strength * line
    shape = np.maximum(np.maximum(gap, line), inside)
    return [Mark(shape > 0.12, window[0].start, window[1].start)]


def _edema(scene: Scene, finding: FindingClass, rng: Rng, visibility: float) -> list[Mark]:
    severe = finding.severity == "severe"
    marks = []
    ru, rv = (0.42, 0.62) if severe else (0.34, 0.50)
    grow = rng.uniform(0.92, 1.1)
    opacity = rng.uniform(0.62, 0.78) if severe else rng.uniform(0.36, 0.48)
    opacity *= min(1.25, 0.25 + 0.75 * visibility)
    for side in (-1.0, 1.0):
        cu, cv = side * 0.36, 0.02 + rng.normal(0, 0.03)
        a, b = ru * grow * rng.uniform(0.93, 1.07), rv * grow * rng.uniform(0.93, 1.07)
        window, u, v = scene.around(cu, cv, a, b)
        bump = np.clip(1.0 - ((u - cu) / a) ** 2 - ((v - cv) / b) ** 2, 0.0, 1.0)
        mottle = 1.0 + 0.28 * noise_field(rng, bump.shape, (9, 7))
        shape = np.clip(smooth(bump * 1.5) * mottle, 0.0, 1.0)
        marks.append(_fill(scene, window, shape, opacity, 0.05 if severe else 0.02))
    return marks


def _pneumonia(scene: Scene, finding: FindingClass, rng: Rng, visibility: float) -> list[Mark]:
    side = SIGN[finding.side or "left"]
    upper = finding.zone == "upper"
    # The left lower zone starts lateral of the heart, or the heart would hide it.
    near = 0.34 if upper else (0.42 if side < 0 else 0.58)
    cu = side * rng.uniform(near, 0.52 if upper else 0.66)
    cv = rng.uniform(-0.56, -0.38) if upper else rng.uniform(0.20, 0.36)
    a, b = rng.uniform(0.17, 0.27), rng.uniform(0.15, 0.23)
    window, u, v = scene.around(cu, cv, 1.3 * a, 1.3 * b)
    q = ((u - cu) / a) ** 2 + ((v - cv) / b) ** 2
    ragged = noise_field(rng, q.shape, (5, 5))
    edge = np.clip(1.69 - q, 0, 1)  # nothing reaches the window's border
    shape = smooth((1.0 - q + 0.25 * ragged) / 0.8) * smooth(edge * 2)
    patchy = np.clip(1.0 + 0.12 * noise_field(rng, q.shape, (9, 9)), 0.5, 1.2)
    opacity = rng.uniform(0.55, 0.8) * min(1.2, 0.2 + 0.8 * visibility)
    return [_fill(scene, window, np.clip(shape * patchy, 0, 1), opacity, 0.03)]


def _atelectasis(scene: Scene, finding: FindingClass, rng: Rng, visibility: float) -> list[Mark]:
    side = SIGN[finding.side or "left"]
    cu = side * rng.uniform(0.56, 0.66)
    cv = scene.thorax.diaphragm[side] - rng.uniform(0.09, 0.24)
    length, slope = rng.uniform(0.17, 0.26), side * rng.uniform(-0.45, 0.15)
    window, u, v = scene.around(cu, cv, 0.33, 0.28)
    total = np.zeros_like(u)
    for k in range(1 + int(rng.random() < 0.45)):
        thick = rng.uniform(0.022, 0.038) * (1.0 if k == 0 else 0.75)
        c, s = exact.cos(slope), exact.sin(slope)
        along = c * (u - cu - 0.05 * k) + s * (v - cv + 0.085 * k)
        off = c * (v - cv + 0.085 * k) - s * (u - cu - 0.05 * k) + 0.3 * along**2
        bar = smooth((length - np.abs(along)) / 0.07) * smooth(1.6 - np.abs(off) / thick)
        total = np.maximum(total, bar)
    opacity = rng.uniform(0.6, 0.8) * min(1.2, 0.25 + 0.75 * visibility)
    return [_fill(scene, window, total, opacity, 0.06 * visibility)]


def _nodule(scene: Scene, finding: FindingClass, rng: Rng, visibility: float) -> list[Mark]:
    side = SIGN[finding.side or "left"]
    upper = finding.zone == "upper"
    near = 0.34 if upper else (0.45 if side < 0 else 0.64)
    cu = side * rng.uniform(near, 0.55 if upper else 0.76)
    cv = rng.uniform(-0.52, -0.22) if upper else rng.uniform(0.12, 0.38)
    radius = rng.uniform(0.05, 0.095)
    window, u, v = scene.around(cu, cv, 1.4 * radius, 1.4 * radius)
    x, y = (u - cu) / radius, (v - cv) / radius
    far = np.sqrt(x**2 + y**2)
    lobes, turn = rng.integers(2, 5), rng.uniform(0, 6.28)
    lobed = 1.0 + 0.05 * _wave_around(x, y, far, int(lobes), turn)
    shape = smooth((lobed - far) / 0.3 + 0.3)
    opacity = rng.uniform(0.6, 0.85) * min(1.15, 0.3 + 0.7 * visibility)
    return [_fill(scene, window, shape, opacity, 0.07 * visibility)]


def _wave_around(
    x: np.ndarray, y: np.ndarray, far: np.ndarray, times: int, turn: float
) -> np.ndarray:
    """Sine of ``times`` the angle of (x, y), plus ``turn``: the angle itself is not computed."""
    c, s = (
        np.divide(z, far, out=np.full_like(far, zero), where=far > 0)
        for z, zero in ((x, 1.0), (y, 0.0))
    )
    cosine, sine = c, s
    for _ in range(times - 1):
        cosine, sine = cosine * c - sine * s, cosine * s + sine * c
    return cosine * exact.sin(turn) + sine * exact.cos(turn)


def _hernia(scene: Scene, _finding: FindingClass, rng: Rng, visibility: float) -> list[Mark]:
    cu, cv = rng.uniform(-0.02, 0.14), rng.uniform(0.30, 0.42)
    a, b = rng.uniform(0.14, 0.2), rng.uniform(0.13, 0.18)
    window, u, v = scene.around(cu, cv, 1.25 * a, 1.25 * b)
    r = np.sqrt(((u - cu) / a) ** 2 + ((v - cv) / b) ** 2)
    strength = min(1.2, 0.35 + 0.65 * visibility)
    rim = smooth(1.0 - np.abs(r - 0.95) / 0.2)
    gas = smooth((0.85 - r) / 0.15) * smooth((cv + rng.uniform(-0.03, 0.05) - v) / 0.02)
    scene.bright[window] += strength * (0.07 * rim - 0.26 * gas)
    return [Mark(np.maximum(rim, gas) > 0.12, window[0].start, window[1].start)]


def _device(scene: Scene, shape: np.ndarray, gain: float) -> list[Mark]:
    scene.bright += gain * shape
    return [Mark(shape > 0.12)]


def _bezier(points: list[tuple[float, float]], steps: int = 24) -> np.ndarray:
    """Points on the Bezier curve of any number of control points (de Casteljau)."""
    t = np.linspace(0, 1, steps)[:, None, None]
    nodes = np.repeat(np.array(points)[None], steps, axis=0)
    while nodes.shape[1] > 1:
        nodes = (1 - t) * nodes[:, :-1] + t * nodes[:, 1:]
    return nodes[:, 0]


def _line(scene: Scene, finding: FindingClass, rng: Rng, visibility: float) -> list[Mark]:
    side = SIGN[finding.side or "left"]
    jit = rng.normal(0, 0.025, 6)
    tip = (-0.13 + 0.02 * jit[0], rng.uniform(-0.12, 0.12))
    start = (side * rng.uniform(0.80, 0.98), -0.62 + 2 * jit[1])
    bend = (side * 0.45, -0.86 + jit[2])
    if side < 0:
        control = [start, bend, (-0.16 + jit[3], -0.80 + jit[4]), (-0.15, -0.5), tip]
    else:
        control = [start, bend, (0.10 + jit[3], -0.66 + jit[4]), (-0.26, -0.62), (-0.14, -0.3), tip]
    shape = scene.stroke([_bezier(control)], 0.012)
    return _device(scene, shape, 0.24 * (0.4 + 0.6 * visibility))


def _tube(scene: Scene, _finding: FindingClass, rng: Rng, visibility: float) -> list[Mark]:
    u0, tip = rng.normal(0, 0.012), rng.uniform(-0.58, -0.40)
    walls = [
        _bezier([(u0 + d, -1.25), (u0 + d + rng.normal(0, 0.006), -0.9), (u0 + d, tip)], 8)
        for d in (-0.032, 0.032)
    ]
    middle = [_bezier([(u0 - 0.01, -1.25), (u0, tip)], 4)]
    shape = np.maximum(scene.stroke(walls, 0.012), 0.45 * scene.stroke(middle, 0.05))
    return _device(scene, shape, 0.24 * (0.4 + 0.6 * visibility))


def _pacemaker(scene: Scene, _finding: FindingClass, rng: Rng, visibility: float) -> list[Mark]:
    cu, cv = rng.uniform(0.58, 0.70), rng.uniform(-0.58, -0.44)
    a, b = rng.uniform(0.10, 0.13), rng.uniform(0.085, 0.11)
    window, u, v = scene.around(cu, cv, 1.3 * a, 1.3 * b)
    q = (((u - cu) / a) ** 2) ** 2 + (((v - cv) / b) ** 2) ** 2
    shape = np.zeros(scene.shape)
    shape[window] = smooth((1.15 - q) / 0.3)
    top = (cu - 0.4 * a, cv - 0.8 * b)
    leads = [
        _bezier([top, (0.40, -0.82), (0.05, -0.72), (-0.28, -0.35), (-0.12, 0.42), end])
        for end in ((0.22 + rng.normal(0, 0.04), 0.46), (-0.10, 0.16))[
            : 1 + int(rng.random() < 0.5)
        ]
    ]
    shape = np.maximum(shape, 0.7 * scene.stroke(leads, 0.010))
    return _device(scene, shape, 0.38 * (0.5 + 0.5 * visibility))


PAINTERS: dict[str, Painter] = {
    # In painting order: haze, then densities, then pleura, then devices on top.
    "edema": _edema,
    "hernia": _hernia,
    "pneumonia": _pneumonia,
    "atelectasis": _atelectasis,
    "effusion": _effusion,
    "pneumothorax": _pneumothorax,
    "nodule": _nodule,
    "line": _line,
    "tube": _tube,
    "pacemaker": _pacemaker,
}
MARKERS: dict[str, Callable[[Scene], list[Mark]]] = {
    "cardiomegaly": lambda scene: [Mark(scene.thorax.heart(scene.u, scene.v) > 0.05)],
    "scoliosis": _mark_spine,
}
