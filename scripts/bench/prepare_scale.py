"""How much memory `prepare` needs for a set of any size; docs/clusters.md reckons from it.

A table of many links to one small image is prepared, so that the bookkeeping shows and the
decoding does not.

    python scripts/bench/prepare_scale.py 20000 50000
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np

WHOLE_IMAGES = 377_110
"""Images of MIMIC-CXR."""


def peak(images: int) -> float:
    """Prepare a manifest of ``images`` links to one picture here; this process's peak in MiB."""
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
                report = f"Nodule number {i} is seen. Heart size is normal. No effusion. " * 2
                table.write(f"{name},{10_000_000 + i},{50_000_000 + i},PA,{report}\n")
        prepare(root, root / "out", PrepareSettings(size=16), workers=1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    sizes = sorted(map(int, sys.argv[1:])) or [5_000, 20_000]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        peaks = pool.map(peak, sizes, chunksize=1)
    each = (peaks[-1] - peaks[0]) / (sizes[-1] - sizes[0])
    for size, mib in zip(sizes, peaks, strict=True):
        print(f"{size} images: {mib:.0f} MiB")
    whole = peaks[-1] + each * (WHOLE_IMAGES - sizes[-1])
    print(
        f"{1024 * each:.1f} KiB an image; {WHOLE_IMAGES} images: {whole:.0f} MiB by extrapolation"
    )


if __name__ == "__main__":
    main()
