"""What is drawn: where it is, on which side, in which tone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.phantom.render import render_frontal, render_lateral

SIZE = (120, 134)


def inside(boxes: tuple[tuple[float, ...], ...], margin: int) -> np.ndarray:
    mask = np.zeros(SIZE, dtype=bool)
    for x, y, w, h in boxes:
        rows = slice(max(0, int(y) - margin), int(y + h) + margin)
        mask[rows, max(0, int(x) - margin) : int(x + w) + margin] = True
    return mask


@pytest.mark.parametrize("index", range(len(CLASSES)), ids=[c.name for c in CLASSES])
def test_all_that_a_finding_changes_is_in_its_box(index: int) -> None:
    key = (1 + index % 2, index)
    without = render_frontal(key, SIZE, []).pixels
    picture = render_frontal(key, SIZE, [index])
    change = np.abs(picture.pixels - without)
    boxes = picture.boxes[index]
    assert len(boxes) == (2 if CLASSES[index].type == "edema" else 1)
    assert change.max() > 0.05, "the finding shows"
    # The detector's blur carries an edge two pixels further.
    assert change[~inside(boxes, 2)].max() < 0.01
    for x, y, width, height in boxes:
        assert min(x, y) >= 0 < min(width, height)
        assert x + width <= SIZE[1]
        assert y + height <= SIZE[0]
    for box in boxes:  # and no box is much larger than what changed
        rows, columns = np.nonzero((change > 0.01) & inside((box,), 0))
        assert np.ptp(columns) + 1 >= 0.8 * box[2] - 1
        assert np.ptp(rows) + 1 >= 0.75 * box[3] - 1


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["effusion", "pneumothorax"])
def test_the_patients_right_is_on_the_images_left_and_upper_findings_above_lower_ones(
    kind: str, side: str
) -> None:
    index = INDEX[f"{kind}_{side}_large"]
    for key in range(4):
        ((x, _, w, _),) = render_frontal((key,), SIZE, [index]).boxes[index]
        assert (x + w / 2 < SIZE[1] / 2) == (side == "right")
    for found in ("pneumonia", "nodule"):
        upper, lower = (INDEX[f"{found}_{zone}_{side}"] for zone in ("upper", "lower"))
        boxes = render_frontal((3,), SIZE, [upper, lower]).boxes
        assert boxes[upper][0][1] < boxes[lower][0][1]


def test_air_is_darker_and_fluid_brighter_by_its_visibility() -> None:
    for key in range(3):
        plain = render_frontal((key,), SIZE, []).pixels
        for name, sign in (("pneumothorax_right_small", -1), ("effusion_right_large", 1)):
            change = []
            for visibility in (0.3, 0.6, 1.0):
                picture = render_frontal((key,), SIZE, [INDEX[name]], visibility=visibility)
                box = picture.boxes[INDEX[name]]
                change.append(sign * (picture.pixels - plain)[inside(box, 0)].mean())
            assert 0 < change[0] < change[1] < change[2]
            assert change[2] > 0.01


def test_large_is_larger_than_small_and_severe_than_mild() -> None:
    def area(name: str, key: int) -> float:
        boxes = render_frontal((key,), SIZE, [INDEX[name]]).boxes[INDEX[name]]
        return sum(b[2] * b[3] for b in boxes)

    for key in range(2):
        for stem, less, more in (
            ("effusion_left", "small", "large"),
            ("pneumothorax_right", "small", "large"),
            ("cardiomegaly", "mild", "severe"),
            ("edema", "mild", "severe"),
        ):
            assert area(f"{stem}_{less}", key) < area(f"{stem}_{more}", key)


def test_boxes_survive_another_resolution() -> None:
    """The same key at twice the size draws the same thorax: boxes scale with it."""
    index = INDEX["cardiomegaly_severe"]
    small = np.array(render_frontal((6,), (150, 160), [index]).boxes[index][0])
    large = np.array(render_frontal((6,), (300, 320), [index]).boxes[index][0])
    assert large == pytest.approx(2 * small, abs=4)


def test_every_size_and_view_renders_in_range() -> None:
    for size in ((64, 64), (512, 400), (90, 130)):
        for picture in (render_frontal((1,), size, [0, 4]), render_lateral((1,), size)):
            assert picture.pixels.shape == size
            assert picture.pixels.dtype == np.float32
            assert picture.pixels.min() >= 0
            assert picture.pixels.max() <= 1
    assert render_lateral((1,), (80, 80)).boxes == {}


def test_marker_is_one_bright_square_in_the_corner() -> None:
    plain = render_frontal((7,), SIZE, []).pixels
    change = np.abs(render_frontal((7,), SIZE, [], marker=True).pixels - plain) > 0.3
    rows, columns = np.nonzero(change)
    assert rows.max() < 0.15 * SIZE[0]
    assert columns.max() < 0.15 * SIZE[1]


_FILES = """
import hashlib, sys
from pathlib import Path
from medclip_debias.phantom.catalogue import CLASSES
from phantom_layouts.content import quantised
from medclip_debias.phantom.files import write_jpg
from medclip_debias.phantom.render import render_frontal, render_lateral

def digests(folder):
    greys, files = hashlib.sha256(), hashlib.sha256()
    for key in range(6):
        findings = list(range(key, len(CLASSES), 6))
        front = render_frontal((key,), (240, 200), findings, portable=key % 2 > 0, marker=key > 3)
        for picture in (front, render_lateral((key,), (240, 200))):
            greys.update(quantised(picture.pixels).tobytes())
            greys.update(repr(sorted(picture.boxes.items())).encode())
            write_jpg(folder / "a.jpg", picture.pixels)
            files.update((folder / "a.jpg").read_bytes())
    return greys.hexdigest(), files.hexdigest()

if __name__ == "__main__":
    print(*digests(Path(sys.argv[1])))
"""
# Greys and boxes of the pictures above, on every processor and with every version of a library.
GREYS = "4ad2c1acf1e99d3b2f72f26021e80eb73d96f209e7a0878018022898b896d4e0"


def test_files_have_the_same_bytes_under_every_instruction_set(tmp_path: Path) -> None:
    """With the vector units of this machine, and with all libraries' plainest code."""
    from numpy._core._multiarray_umath import __cpu_dispatch__

    plain = {
        "NPY_DISABLE_CPU_FEATURES": " ".join(__cpu_dispatch__),
        "OPENBLAS_CORETYPE": "Prescott",
        "OPENCV_CPU_DISABLE": "AVX512-SKX,AVX2,FP16,FMA3,AVX",
        "OPENCV_IPP": "disabled",
        "JSIMD_FORCENONE": "1",  # libjpeg-turbo
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F",
    }
    names: dict[str, Any] = {"__name__": "here"}
    exec(_FILES, names)
    native = names["digests"](tmp_path)
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FILES, str(tmp_path)],
        env={**os.environ, **plain, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert tuple(found.stdout.split()[-2:]) == native
    assert native[0] == GREYS
