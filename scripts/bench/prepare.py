"""Time from a DICOM or JPG file to a prepared 512 x 512 image, against the plain way.

Makes its own 2544 x 3056 files in a temporary folder. ``OMP_NUM_THREADS=1`` keeps each process
on one core:

    OMP_NUM_THREADS=1 python scripts/bench/prepare.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import cv2
import numpy as np
from common import HEIGHT, ROUNDS, WIDTH, medians, picture, show, write_dicom

from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import prepare_image, read_radiograph, to_square

SETTINGS = PrepareSettings()
FILES = 4
GOAL = 105  # images a second on 8 cores


def ours(path: Path) -> np.ndarray:
    """The path that `prepare` takes."""
    return prepare_image(read_radiograph(path, SETTINGS.window), SETTINGS)


def plain(path: Path) -> np.ndarray:
    """The same steps, each on every pixel: pydicom, numpy and opencv as their manuals show."""
    import pydicom
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    dataset = pydicom.dcmread(path)
    values = apply_modality_lut(dataset.pixel_array, dataset)
    values = np.asarray(apply_voi_lut(values, dataset), dtype=np.float32)
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        values = values.max() + values.min() - values
    low, high = np.percentile(values, SETTINGS.clip)
    values = (np.clip(values, low, high) - low) / (high - low) * 255
    return to_square(np.rint(values).astype(np.uint8), SETTINGS.size)


def start_worker() -> None:
    """One thread a process: the processes are the parallel part."""
    cv2.setNumThreads(1)


def throughput(paths: list[Path], processes: int) -> float:
    """Images a second over processes, median of `ROUNDS`."""
    work, speeds = paths * 8, []
    with get_context("fork").Pool(processes, start_worker) as pool:
        pool.map(ours, paths, chunksize=1)
        for _ in range(ROUNDS):
            began = time.perf_counter()
            pool.map(ours, work, chunksize=2)
            speeds.append(len(work) / (time.perf_counter() - began))
    return median(speeds)


def import_seconds(module: str) -> float:
    """Seconds to import ``module`` in a fresh process, torch being there already."""
    program = (
        "import torch, time; began = time.perf_counter()\n"
        f"import {module}\nprint(time.perf_counter() - began)"
    )
    command = [sys.executable, "-c", program]
    return median(float(subprocess.check_output(command)) for _ in range(ROUNDS))


def spatial(grey: np.ndarray) -> None:
    """The spatial chain alone, ours and MONAI's, and what importing each costs."""
    import torch
    from monai.transforms import CenterSpatialCrop, Compose, Resize, SpatialPad

    torch.set_num_threads(1)
    side = max(grey.shape)
    chain = Compose(
        [
            SpatialPad((side, side)),
            Resize((SETTINGS.size, SETTINGS.size), mode="area"),
            CenterSpatialCrop((480, 480)),
        ]
    )

    def with_monai() -> int:
        chain(torch.from_numpy(grey[None].astype(np.float32)))
        return 1

    def with_ours() -> int:
        to_square(grey, SETTINGS.size)[16:496, 16:496].copy()
        return 1

    show(medians({"ours": with_ours, "MONAI": with_monai}), "ours")
    for module in ("cv2", "monai.transforms"):
        print(f"import of {module}: {import_seconds(module):.2f} s")


def main() -> None:
    """Make the files, print three tables."""
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.dcm" for number in range(FILES)]
        for number, path in enumerate(paths):
            write_dicom(path, picture(number), windowed=number % 2 == 0)
        jpg = Path(folder) / "a.jpg"
        grey = (picture(0) >> 4).astype(np.uint8)
        cv2.imwrite(str(jpg), grey, [cv2.IMWRITE_JPEG_QUALITY, 95])
        for path in paths:
            difference = np.abs(ours(path).astype(int) - plain(path)).max()
            print(f"{path.name}: ours and the plain way differ by {difference} grey levels at most")

        def every(way, files):  # type: ignore[no-untyped-def]
            return lambda: len([way(path) for path in files])

        found = medians(
            {
                "ours, DICOM": every(ours, paths),
                "plain way, DICOM": every(plain, paths),
                "ours, JPG of the same size": every(ours, [jpg]),
            }
        )
        print(f"\n{WIDTH} x {HEIGHT}, one process:\n")
        show(found, "ours, DICOM")
        for processes in (1, 2):
            speed = throughput(paths, processes)
            scaled = speed * 8 / processes
            print(
                f"{processes} processes: {speed:.1f} images a second; 8 cores by that: {scaled:.0f}"
            )
        print(f"goal on 8 cores: {GOAL} a second\n\nspatial chain alone:\n")
        spatial(grey)


if __name__ == "__main__":
    main()
