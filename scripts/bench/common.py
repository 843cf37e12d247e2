"""What the timing scripts share: generated radiographs, medians in turn, and the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np

HEIGHT, WIDTH = 3056, 2544
ROUNDS = 5


def picture(seed: int) -> np.ndarray:
    """Smooth shapes with grain over the range of 12 bits, as large as a real radiograph."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    fx, fy = rng.uniform(250, 500, 2)
    values = 1900 + 1100 * np.sin(x / fx) * np.cos(y / fy) + rng.normal(0, 40, y.shape)
    return values.clip(0, 4095).astype(np.uint16)


def write_dicom(path: Path, array: np.ndarray, *, windowed: bool = True) -> None:
    """Write a 12-bit MONOCHROME1 DICOM file, uncompressed, as the large archives hold them."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.Rows, dataset.Columns = array.shape
    dataset.SamplesPerPixel = 1
    dataset.PhotometricInterpretation = "MONOCHROME1"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
    dataset.PixelRepresentation = 0
    if windowed:
        dataset.WindowCenter, dataset.WindowWidth = "2000", "3500"
    dataset.PixelData = array.tobytes()
    dataset.save_as(path, enforce_file_format=True)


def medians(
    ways: Mapping[str, Callable[[], int]], before: Mapping[str, Callable[[], None]] | None = None
) -> dict[str, float]:
    """Milliseconds an image: medians of `ROUNDS` rounds, all ways in turn in each round.

    Args:
        ways: name to a function that handles some images and returns how many.
        before: what is done, without being timed, before each call of the way of that name.
    """
    for way in ways.values():
        way()  # caches, imports, just-in-time tables
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            if before and name in before:
                before[name]()
            began = time.perf_counter()
            count = way()
            seconds[name].append((time.perf_counter() - began) / count)
    return {name: 1000 * median(values) for name, values in seconds.items()}


def show(found: Mapping[str, float], ours: str) -> None:
    """Print a Markdown table; the last column is how often ``ours`` fits into each."""
    print("| way | ms an image | times ours |\n| --- | ---: | ---: |")
    for name, value in found.items():
        print(f"| {name} | {value:.3f} | {value / found[ours]:.1f} |")


def resident(name: str) -> int:
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` at its peak (Linux)."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    (found,) = (line.split()[1] for line in text.splitlines() if line.startswith(f"{name}:"))
    return int(found) * 1024
