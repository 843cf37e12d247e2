"""Time of one training image (512 -> random crop 480, brightness, contrast), five ways.

Makes its own files in a temporary folder. Each number is the time until a batch of uint8 or
float images lies in memory, in one process and thread:

    OMP_NUM_THREADS=1 python scripts/bench/loader.py
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import albumentations
import cv2
import numpy as np
import torch
from common import medians, picture, show, write_dicom
from PIL import Image
from torchvision import transforms

from medclip_debias.config import AugmentSettings, PrepareSettings
from medclip_debias.data.images import prepare_image, read_radiograph
from medclip_debias.data.loader import Batch, StepBatches, TrainingStudies

SIZE, SIDE, BATCH, ROWS = 512, 480, 64, 1024
BIG, SMALL = 4, 64  # files: DICOM of full size, JPG of 512 pixels
NAMES = ("(a) ours, memory map + albumentations", "(a) ours, for the device (whole rows)")

COLD = ("(e) plain copy, page cache dropped", "(a) ours, page cache dropped")


def batches(path: Path, where: Any) -> StepBatches:
    """Our loader over ``ROWS`` prepared images, one a study."""
    pixels = np.memmap(path, np.uint8, "r", shape=(ROWS, SIZE, SIZE))
    alone = [np.array([number]) for number in range(ROWS)]
    texts = [str(number) for number in range(ROWS)]
    return StepBatches(
        pixels,
        TrainingStudies(texts, alone, alone, np.ones(ROWS, dtype=np.int64)),
        batch_size=BATCH,
        sentences_per_study=1,
        input_size=SIDE,
        augment=AugmentSettings(where=where),
        seed=0,
    )


def stepping(made: StepBatches, finish: Callable[[Batch], Any]) -> Callable[[], int]:
    """Take the next four batches at each call."""
    state = iter(range(10**9))

    def run() -> int:
        for _ in range(4):
            finish(made[next(state)])
        return 4 * BATCH

    return run


def evict(path: Path) -> None:
    """Drop the file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def dicom_like_biovil(path: Path) -> torch.Tensor:
    """DICOM -> PIL -> torchvision at every epoch, in the steps of the BioViL code."""
    import pydicom

    dataset = pydicom.dcmread(path)
    values = dataset.pixel_array.astype(float)
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        values = 2**dataset.BitsStored - 1 - values
    values = (values - values.min()) / (values.max() - values.min()) * 255
    return BIOVIL(Image.fromarray(values.astype(np.uint8)).convert("L"))


BIOVIL = transforms.Compose(
    [
        transforms.Resize(SIZE),
        transforms.RandomCrop(SIDE),
        transforms.ColorJitter(brightness=0.2, contrast=0.2),
        transforms.ToTensor(),
        transforms.Lambda(lambda image: image.expand(3, -1, -1)),
    ]
)
JPG_TORCHVISION = transforms.Compose(
    [
        transforms.RandomCrop(SIDE),
        transforms.ColorJitter(brightness=0.2, contrast=0.2),
        transforms.ToTensor(),
    ]
)
JPG_ALBUMENTATIONS = albumentations.Compose(
    [
        albumentations.RandomCrop(SIDE, SIDE),
        albumentations.RandomBrightnessContrast(0.2, 0.2, p=1.0),
    ]
)


def main() -> None:
    """Make the files and print the table."""
    cv2.setNumThreads(0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        settings = PrepareSettings()
        dicoms = [folder / f"{number}.dcm" for number in range(BIG)]
        for number, path in enumerate(dicoms):
            write_dicom(path, picture(number))
        prepared = [prepare_image(read_radiograph(path), settings) for path in dicoms]
        jpgs = [folder / f"{number}.jpg" for number in range(SMALL)]
        for number, path in enumerate(jpgs):
            Image.fromarray(prepared[number % BIG]).save(path, quality=95)
        binary = folder / "images.bin"
        np.stack([prepared[number % BIG] for number in range(ROWS)]).tofile(binary)

        cpu, device = batches(binary, "cpu"), batches(binary, "device")
        pixels, rng = cpu.pixels, np.random.default_rng(0)

        def copied() -> int:
            for _ in range(4):
                np.asarray(pixels[rng.permutation(ROWS)[:BATCH]])
            return 4 * BATCH

        # Pages that a map still shows are not evicted: the cold ways open a file of their own.
        cold = folder / "cold.bin"
        cold.write_bytes(binary.read_bytes())

        def cold_copy() -> int:
            mapped = np.memmap(cold, np.uint8, "r", shape=(ROWS, SIZE, SIZE))
            np.asarray(mapped[rng.permutation(ROWS)[: 4 * BATCH]])
            return 4 * BATCH

        def cold_batches() -> int:
            return stepping(batches(cold, "cpu"), lambda batch: batch.images)()

        def one_by_one(paths: list[Path], read: Callable[[Path], Any]) -> Callable[[], int]:
            return lambda: len([read(path) for path in paths])

        def albumented(path: Path) -> Any:
            return JPG_ALBUMENTATIONS(image=np.asarray(Image.open(path).convert("L")))["image"]

        here = torch.device("cpu")
        found = medians(
            {
                NAMES[0]: stepping(cpu, lambda batch: batch.images),
                NAMES[1]: stepping(device, lambda batch: batch.images),
                "(a) the same, finished by torch on the CPU": stepping(
                    device, lambda batch: batch.images_on(here)
                ),
                "(b) DICOM, PIL, torchvision (BioViL)": one_by_one(dicoms, dicom_like_biovil),
                "(c) JPG of 512, PIL, albumentations": one_by_one(jpgs, albumented),
                "(d) JPG of 512, PIL, torchvision": one_by_one(
                    jpgs, lambda path: JPG_TORCHVISION(Image.open(path).convert("L"))
                ),
                "(e) plain copy of memory-mapped rows, warm": copied,
                COLD[0]: cold_copy,
                COLD[1]: cold_batches,
            },
            before={name: lambda: evict(cold) for name in COLD},
        )
    show(found, NAMES[0])
    for way, goal in (("(b)", 200), ("(c)", 5), ("(d)", 10)):
        ratio = next(v for k, v in found.items() if k.startswith(way)) / found[NAMES[0]]
        print(f"{way}: {ratio:.0f} times, goal {goal}: {'reached' if ratio >= goal else 'missed'}")


if __name__ == "__main__":
    main()
