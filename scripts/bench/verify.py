"""Time of comparing a prepared set with what was prepared: the sample at a start, and everything.

Makes a set of its own in a temporary folder, its pixels from the random generator and its tables
as wide as those of MIMIC-CXR:

    OMP_NUM_THREADS=1 python scripts/bench/verify.py --images 20000 --size 512
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medclip_debias.config import PrepareSettings
from medclip_debias.data.layout import FORMAT_VERSION, HASHES, MANIFEST, pixel_hash, table_hashes
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.verify import changes, check_sample
from medclip_debias.files import write_json

SENTENCES = 8  # a study
DISTINCT = 1000  # rows of pixels; repeated, for generating is slow and hashing is what is timed


def write_set(folder: Path, images: int, size: int) -> PreparedSet:
    """A prepared set with one image a study."""
    rng = np.random.default_rng(0)
    names = [f"{number:044d}" for number in range(images)]
    studies = [f"{number:08d}" for number in range(images)]
    split = ["train"] * images
    blocks = [rng.integers(0, 256, size * size, dtype=np.uint8).tobytes() for _ in range(DISTINCT)]
    hashes = [pixel_hash(block) for block in blocks]
    with (folder / "images.bin").open("wb") as file:
        for number in range(images):
            file.write(blocks[number % DISTINCT])
        os.fsync(file.fileno())
    base = {"study_id": studies, "patient_id": studies, "split": split}
    sides = {"view": "AP", "height": 3056, "width": 2544}
    tables = {
        "images": pd.DataFrame({"image_id": names} | base).assign(**sides),
        "studies": pd.DataFrame(base).assign(**{f"label {n}": 0.0 for n in range(14)}),
        "sentences": pd.DataFrame(
            {
                "study_id": np.repeat(studies, SENTENCES),
                "section": "findings",
                "position": np.tile(np.arange(SENTENCES), images),
                "text": [f"Sentence {n} of about sixty letters, as long as those of a report." for n
                         in rng.integers(0, 10**6, images * SENTENCES)],
            }
        ),
        "phrases": pd.DataFrame(
            {name: [] for name in ("phrase_id", "image_id", "category", "text", "split", "boxes")}
        ),
    }  # fmt: skip
    for name, table in tables.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    pd.DataFrame(
        {
            "image_id": names,
            "study_id": studies,
            "split": split,
            "row": range(images),
            "pixel_hash": [hashes[number % DISTINCT] for number in range(images)],
            "text_hash": [f"{number:032d}" for number in range(images)],
        }
    ).to_parquet(folder / MANIFEST, index=False)
    for name in ("rejected.csv", "funnel.json"):
        (folder / name).write_text("[]")
    settings = PrepareSettings(size=size).model_dump(mode="json")
    meta: dict[str, Any] = {"format_version": FORMAT_VERSION, "settings": settings}
    meta |= {"counts": {"images": images}, "content_hash": "", "files": [MANIFEST]}
    write_json(folder / "meta.json", meta | {HASHES: table_hashes(folder)})
    return PreparedSet.open(folder)


def forget(folder: Path) -> None:
    """Drop the files' pages from memory, as far as the kernel does what it is asked."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20000)
    parser.add_argument("--size", type=int, default=512)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared = write_set(folder, asked.images, asked.size)
        tables = sum(path.stat().st_size for path in folder.glob("*.parquet"))
        pixels = (folder / "images.bin").stat().st_size
        print(f"{asked.images} images: tables {tables / 1e6:.1f} MB, pixels {pixels / 1e9:.2f} GB")
        for what in ("sample, page cache dropped", "sample, again", "sample, again"):
            if "dropped" in what:
                forget(folder)
            began = time.perf_counter()
            check_sample(prepared)
            print(f"{what}: {time.perf_counter() - began:.3f} s")
        began = time.perf_counter()
        assert changes(prepared) == []
        print(f"everything: {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
