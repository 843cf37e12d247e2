"""Feed damaged DICOM files to the reader; whatever is not a `UserError` is a bug.

Every input is a function of its number: small valid files (plain, signed, big-endian, deflated,
RLE, JPEG (lossless too), JPEG-LS, JPEG 2000; with windows, LUTs and padding, with values in the
upper bits of their words; some without preamble), a few bytes of which are changed, cut, doubled,
or replaced by another file's. Chunks run in processes of their own, so that a crash of a C decoder
is seen and named, too:

    python scripts/fuzz/dicom.py --runs 100000

An input that failed comes back with ``--first NUMBER --runs 1 --keep input.dcm``.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import numpy as np

CHUNK = 2000
SECONDS = 10  # for one input
MEMORY = 4 << 30
INTERESTING = (b"\0\0", b"\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"-1")


def seeds() -> list[bytes]:
    """Small valid files of every form that the reader takes."""
    from PIL import Image
    from pydicom import dcmread, dcmwrite
    from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
    from pydicom.encaps import encapsulate
    from pydicom.uid import UID

    def made(dtype: str, syntax: str = "1.2.840.10008.1.2.1", **elements: Any) -> bytes:
        array = (np.arange(40)[:, None] * 4 + np.arange(36) * 2).astype(dtype)
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = UID("1.2.840.10008.5.1.4.1.1.1.1")
        meta.MediaStorageSOPInstanceUID = UID("2.25.1")
        meta.TransferSyntaxUID = UID("1.2.840.10008.1.2.1")
        dataset = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        dataset.SOPClassUID = meta.MediaStorageSOPClassUID
        dataset.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
        dataset.Rows, dataset.Columns = array.shape
        dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME1"
        bits = 8 * array.dtype.itemsize
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = bits, bits, bits - 1
        dataset.PixelRepresentation = int(array.dtype.kind == "i")
        dataset.PixelData = array.tobytes()
        for name, value in elements.items():
            setattr(dataset, name, value)
        stream = io.BytesIO()
        big = syntax.endswith(".2.2")
        if syntax.endswith(("1.2.1", "1.2.1.99")) or big:
            meta.TransferSyntaxUID = UID(syntax)
            dataset.PixelData = array.byteswap().tobytes() if big else array.tobytes()
        elif syntax.endswith(".70"):
            from lossless_jpeg import lossless_jpeg

            meta.TransferSyntaxUID = UID(syntax)
            dataset.PixelData = encapsulate([lossless_jpeg(array, bits)])
            dataset["PixelData"].is_undefined_length = True
        elif syntax.endswith((".50", ".51")):
            picture = io.BytesIO()
            Image.fromarray(array).save(picture, "JPEG")
            meta.TransferSyntaxUID = UID(syntax)
            dataset.PixelData = encapsulate([picture.getvalue()])
            dataset["PixelData"].is_undefined_length = True
        else:
            dataset.compress(syntax, generate_instance_uid=False)
        dcmwrite(stream, dataset, little_endian=not big, implicit_vr=False)
        assert dcmread(io.BytesIO(stream.getvalue())).Rows == 40
        return stream.getvalue()

    item = Dataset()
    item.LUTDescriptor, item.LUTData = [256, 0, 16], np.arange(256, dtype="<u2").tobytes()
    windows = {"WindowCenter": ["90", "200"], "WindowWidth": ["150", "30"]}
    rescale = {"RescaleSlope": "2.5", "RescaleIntercept": "-100"}
    encoded = [f"1.2.840.10008.1.2.{end}" for end in ("5", "4.50", "4.80", "4.90")]
    whole = [
        made("u2", **windows, **rescale),
        made("i2", **windows, VOILUTFunction="SIGMOID"),
        made("u1", VOILUTSequence=[item]),
        made("u2", ModalityLUTSequence=[item]),
        made("u2", BitsStored=12, HighBit=15, Modality="DX", **windows),
        made("i2", encoded[0], BitsStored=10, HighBit=12),
        made("i2", PixelPaddingValue=-3, PixelPaddingRangeLimit=40, **rescale),
        made("u2", encoded[2], PixelPaddingValue=100, Modality="CR"),
        made("u2", "1.2.840.10008.1.2.2", **rescale),
        made("u2", "1.2.840.10008.1.2.1.99", **windows),
        *(made("u1", syntax, **windows) for syntax in encoded),
        made("u2", encoded[0]),
        made("u2", encoded[2]),
        made("i2", encoded[3]),
        made("u2", "1.2.840.10008.1.2.4.70"),
        made("u1", "1.2.840.10008.1.2.4.70"),
    ]
    meta_only = [content[132:] for content in whole]
    return [*whole, meta_only[0], meta_only[5], *map(without_meta, (whole[0], whole[2]))]


def without_meta(content: bytes) -> bytes:
    """The elements of a DICOM file alone, as implicit VR: no preamble, no meta header."""
    from pydicom import dcmread, dcmwrite

    dataset, stream = dcmread(io.BytesIO(content)), io.BytesIO()
    del dataset.file_meta
    dataset.preamble = None
    dcmwrite(stream, dataset, implicit_vr=True, little_endian=True)
    return stream.getvalue()


def mutated(number: int, files: list[bytes]) -> bytes:
    """Input ``number``: one to six changes of one of ``files``, behind its preamble."""
    rng = np.random.default_rng([7, number])
    data = bytearray(files[number % len(files)])
    first = 132 if data[128:132] == b"DICM" else 4
    for _ in range(rng.integers(1, 7)):
        place = int(rng.integers(first, max(first + 1, len(data))))
        length = int(rng.integers(1, 33))
        match int(rng.integers(7)):
            case 0:
                data[place : place + 1] = bytes([int(rng.integers(256))])
            case 1 if place < len(data):
                data[place] ^= 1 << int(rng.integers(8))
            case 2:
                del data[place : place + length]
            case 3:
                data[place:place] = data[place : place + length]
            case 4:
                chosen = INTERESTING[int(rng.integers(len(INTERESTING)))]
                data[place : place + len(chosen)] = chosen
            case 5:
                other = files[int(rng.integers(len(files)))]
                start = int(rng.integers(132, len(other)))
                data[place : place + length] = other[start : start + length]
            case _ if rng.random() < 0.3:
                del data[place:]
    return bytes(data)


@contextmanager
def limited() -> Iterator[None]:
    """Turn an input that takes too long into an exception."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def read_all(first: int, count: int, current: Synchronized[int], results: Any) -> None:
    """Read the inputs ``first`` to ``first + count - 1``; put a count of what became of them."""
    from medclip_debias.config import PrepareSettings
    from medclip_debias.data.images import prepare_image, read_radiograph
    from medclip_debias.data.images.headers import view_position
    from medclip_debias.errors import UserError

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    files, settings = seeds(), PrepareSettings(size=32)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # C decoders complain there
    found: Counter[str] = Counter()
    bugs: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.dcm"
        for number in range(first, first + count):
            current.value = number
            path.write_bytes(mutated(number, files))
            try:
                with limited():
                    view_position(path)
                    prepare_image(read_radiograph(path), settings)
                found["read"] += 1
            except UserError:
                found["refused"] += 1
            except BaseException:
                found["uncaught"] += 1
                bugs.append(f"input {number}:\n{traceback.format_exc()}")
    results.put((found, bugs))


def main() -> int:
    """Run the chunks; the exit code is 1 when an input was a bug."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="write the first input here and stop")
    options = parser.parse_args()
    if options.keep:
        options.keep.write_bytes(mutated(options.first, seeds()))
        return 0
    context, total, began = get_context("spawn"), Counter[str](), time.monotonic()
    current, results = context.Value("q", 0), context.Queue()
    first, end = options.first, options.first + options.runs
    while first < end:
        count = min(CHUNK, end - first)
        current.value = first
        process = context.Process(target=read_all, args=(first, count, current, results))
        process.start()
        while process.is_alive() and results.empty():
            process.join(0.2)
        process.join()
        if process.exitcode != 0:
            print(f"input {current.value}: the process died with code {process.exitcode}")
            total["crashed"] += 1
            first = current.value + 1
            continue
        found, bugs = results.get()
        total += found
        print(*bugs, sep="\n", end="\n" if bugs else "")
        first += count
    words = ", ".join(f"{number} {name}" for name, number in sorted(total.items()))
    print(f"{sum(total.values())} inputs in {time.monotonic() - began:.0f} s: {words}")
    return 1 if total["uncaught"] or total["crashed"] else 0


if __name__ == "__main__":
    sys.exit(main())
