"""How fast a set is prepared, and how much memory a process needs for a set of any size.

``speed`` prepares a phantom of DICOM files with one and with two processes. ``memory``
prepares a table of many links to one small image, so that the bookkeeping shows and the decoding
does not; then it prepares large DICOM files and watches the worker processes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from common import in_fork, write_dicom

WHOLE_IMAGES = 377_110
"""Images of MIMIC-CXR."""


def write_dicoms(root: Path, images: int, side: tuple[int, int]) -> Path:
    """Write ``images`` 12-bit DICOM files of ``side`` pixels and their manifest."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(200, 3900, (side[0] // 20 + 1, side[1] // 20 + 1))
    rows = ["image,report"]
    for number in range(images):
        smooth = np.kron(np.roll(coarse, number), np.ones((20, 20)))[: side[0], : side[1]]
        pixels = np.clip(smooth + rng.integers(-50, 50, side), 0, 4095).astype(np.uint16)
        write_dicom(root / f"{number}.dcm", pixels, windowed=False, kind="MONOCHROME2")
        rows.append(f"{number}.dcm,Lungs are clear.")
    (root / "manifest.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return root


def speed(images: int, side: tuple[int, int], workers: list[int], repeats: int) -> dict:
    """Prepare ``images`` DICOM files of ``side`` pixels; images a second, median."""
    from medclip_debias.config import PrepareSettings
    from medclip_debias.data.prepare import prepare

    with tempfile.TemporaryDirectory() as folder:
        root = write_dicoms(Path(folder), images, side)
        numbers = {}
        for count in workers:
            times = []
            for _ in range(repeats):
                start = time.perf_counter()
                out = root / "out"
                prepare(root, out, PrepareSettings(), workers=count, overwrite=True)
                times.append(time.perf_counter() - start)
            numbers[f"{count} workers"] = round(images / statistics.median(times), 1)
    return {"images_per_second": numbers, "images": images, "side": list(side)}


def memory(sizes: list[int], images: int, side: tuple[int, int], workers: int) -> dict:
    """Peak memory of the main process for tables of each size, and of a worker for large files."""
    peaks = {size: in_fork(partial(one_memory, size)) for size in sizes}
    (a, low), (b, high) = min(peaks.items()), max(peaks.items())
    each = (high["peak_mib"] - low["peak_mib"]) / (b - a)
    whole = round(high["peak_mib"] + each * (WHOLE_IMAGES - b))
    main = {"peak_mib": peaks, "kib_per_image": round(1024 * each, 2), "whole_set_mib": whole}
    with tempfile.TemporaryDirectory() as folder:
        in_fork(lambda: {"written": str(write_dicoms(Path(folder), images, side))})
        large = in_fork(partial(one_workers, Path(folder), workers))
    return {"main_process": main, "large_files": {"images": images, "side": list(side)} | large}


def one_workers(root: Path, workers: int) -> dict:
    """Prepare the files of a folder; the peak of this process and of its largest worker.

    Forked workers share what the main process has loaded; the peak counts that, too.
    """
    from medclip_debias.config import PrepareSettings
    from medclip_debias.data.prepare import prepare

    prepare(root, root / "out", PrepareSettings(), workers=workers)
    own, worst = (
        round(resource.getrusage(who).ru_maxrss / 1024)
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {"workers": workers, "main_mib": own, "worst_worker_mib": worst}


def one_memory(images: int) -> dict:
    """Prepare a manifest of ``images`` links to one picture, in this process."""
    from PIL import Image

    from medclip_debias.config import PrepareSettings
    from medclip_debias.data.prepare import prepare

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        picture = root / "picture.png"
        Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(picture)
        (root / "files").mkdir()
        with (root / "manifest.csv").open("w", encoding="utf-8") as table:
            table.write("image,patient_id,study_id,view,report\n")
            for i in range(images):
                name = f"files/{i:08x}-{i:08x}-{i:08x}-{i:08x}-{i:08x}.png"
                (root / name).symlink_to(picture)
                said = f"Nodule number {i} is seen. Heart size is normal. No effusion. " * 2
                table.write(f"{name},{10_000_000 + i},{50_000_000 + i},PA,{said}\n")
        start = time.perf_counter()
        prepare(root, root / "out", PrepareSettings(size=16), workers=1)
        seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"peak_mib": round(peak), "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["speed", "memory"])
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--side", type=int, nargs=2, default=[3000, 2500])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=[5_000, 20_000])
    given = parser.parse_args()
    if given.what == "speed":
        numbers = speed(given.images, tuple(given.side), given.workers, given.repeats)
    else:
        numbers = memory(given.sizes, given.images, tuple(given.side), given.workers[-1])
    print(json.dumps(numbers))


if __name__ == "__main__":
    main()
