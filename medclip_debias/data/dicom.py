"""One grey image from a DICOM file: what to refuse, and what a stored value means.

Order of the steps (DICOM PS3.4, N.2): modality LUT or rescale, then VOI LUT or window, then
the inversion of MONOCHROME1. The first two are pydicom's, run on the values that a pixel can
hold instead of on the pixels.

Files without a Part-10 header (preamble, ``DICM``) are read when everything in them fits.
"""

from __future__ import annotations

import io
import logging
import math
import warnings
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.config import WindowPolicy
from medclip_debias.data.radiograph import Radiograph, check_size, encoded
from medclip_debias.errors import UserError

_DEFLATED = "1.2.840.10008.1.2.1.99"
_JPEG_EXTENDED = "1.2.840.10008.1.2.4.51"
_PLUGINS = {  # all others, JPEG lossless, 12-bit JPEG and HTJ2K, are pylibjpeg's
    "1.2.840.10008.1.2.4.50": "pillow",  # JPEG Baseline
    _JPEG_EXTENDED: "pillow",
    "1.2.840.10008.1.2.4.80": "pyjpegls",  # JPEG-LS lossless
    "1.2.840.10008.1.2.4.81": "pyjpegls",  # JPEG-LS near-lossless
    "1.2.840.10008.1.2.4.90": "pillow",  # JPEG 2000 lossless
    "1.2.840.10008.1.2.4.91": "pillow",  # JPEG 2000
    "1.2.840.10008.1.2.5": "pydicom",  # RLE
}
_OF_WINDOW = (
    *("WindowCenter", "WindowWidth", "VOILUTFunction"),
    *("PhotometricInterpretation", "BitsStored", "PixelRepresentation"),
)
_RADIOGRAPHS = (  # storage classes that a file without Part-10 header may have
    "1.2.840.10008.5.1.4.1.1.1",  # computed radiography
    "1.2.840.10008.5.1.4.1.1.1.1",  # digital X-ray, for presentation
    "1.2.840.10008.5.1.4.1.1.1.1.1",  # digital X-ray, for processing
    "1.2.840.10008.5.1.4.1.1.7",  # secondary capture
)
_IMPLICIT_LITTLE, _EXPLICIT_LITTLE = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1"
_JPEG_2000 = b"\xff\x4f\xff\x51"
# Start-of-frame markers of JPEG (C4, C8 and CC among them are others') and JPEG-LS (F7).
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {0xF7}


def read_dicom(path: Path, content: bytes, window: WindowPolicy, max_bytes: int) -> Radiograph:
    """Decode the DICOM file ``content``.

    Args:
        path: named in messages.
        content: the whole file.
        window: ``first`` applies the first VOI LUT, else the first window; ``none`` neither.
        max_bytes: a deflated file that unpacks to more is refused.

    Raises:
        UserError: damaged, or not one grey image.
    """
    import pydicom

    # pydicom warns about header values (sometimes quoting them) in files that read well.
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            bare = content[128:132] != b"DICM"
            start = 0 if bare else 132
            if is_deflated(io.BytesIO(content), start) and not unpacked_size_fits(
                content, start, max_bytes
            ):
                raise UserError(
                    f"{path}: unpacks to more than {max_bytes:,} bytes; export it again."
                )
            dataset = pydicom.dcmread(io.BytesIO(content), force=bare)
            if bare:
                _check_bare(path, dataset)
            _check_kind(path, dataset)
            codes, values = encoded(_pixels(path, dataset))
            values = _meaning(path, dataset, values, window)
        except UserError:
            raise
        # A damaged header surfaces as any of a dozen exception types, some quoting values.
        except Exception as error:
            raise UserError(
                f"{path}: the DICOM file is truncated or damaged"
                f" ({type(error).__name__}); copy it again."
            ) from error
    return Radiograph(codes, values, _photometric(dataset) == "MONOCHROME1")


# ----------------------------------------------------------------------- before decoding


def header_start(content: bytes) -> int | None:
    """Return where the elements of a DICOM file begin, ``None`` for another kind of file.

    132, behind the preamble and ``DICM`` of a Part-10 file; 0 for what older archives and network
    nodes write: the same elements from the first byte on.

    Args:
        content: the first 132 bytes, or more.
    """
    if content[128:132] == b"DICM":
        return 132
    group, kind = content[:2], content[4:6]
    if group == b"\x02\x00":
        return 0 if kind in (b"UL", b"OB", b"UI") else None
    short = int.from_bytes(content[4:8], "little") <= 64  # the length of an id or a date
    known = kind in (b"UL", b"UI", b"CS", b"DA", b"TM", b"SH", b"LO")
    return 0 if group == b"\x08\x00" and len(content) > 8 and (short or known) else None


def is_deflated(file: IO[bytes], start: int) -> bool:
    """Tell whether the elements behind the file's meta header are deflated."""
    from pydicom.filereader import read_dataset

    file.seek(start)
    if file.read(2) != b"\x02\x00":
        return False
    file.seek(start)
    meta = read_dataset(file, False, True, stop_when=lambda tag, *_: tag.group != 2)
    return bool(meta.get("TransferSyntaxUID") == _DEFLATED)


def unpacked_size_fits(content: bytes, start: int, max_bytes: int) -> bool:
    """Tell whether a deflated file stays small; pydicom unpacks without a limit."""
    from pydicom.filereader import read_dataset

    stream = io.BytesIO(content)
    stream.seek(start)
    read_dataset(stream, False, True, stop_when=lambda tag, *_: tag.group != 2)
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    unpacker.decompress(stream.read(), max_bytes)
    return not unpacker.unconsumed_tail


def _check_bare(path: Path, dataset: Any) -> None:
    """Refuse a file without Part-10 header unless its elements vouch for each other.

    Nothing at its start says that it is DICOM, or how its pixels are encoded: it must be of a
    class of radiographs, and plain pixels must be exactly as many as its rows and columns.
    """
    from pydicom.uid import UID

    if str(dataset.get("SOPClassUID") or "") not in _RADIOGRAPHS:
        raise UserError(f"{path}: this is not a DICOM, JPG or PNG image; give one of these.")
    if "PixelData" not in dataset or dataset.file_meta.get("TransferSyntaxUID"):
        return
    if dataset["PixelData"].is_undefined_length:
        raise UserError(
            f"{path}: has no DICOM header (preamble), and its pixels are compressed in a way that"
            " it does not name; export it again as a DICOM file."
        )
    implicit, little = dataset.original_encoding
    if not little:
        raise UserError(f"{path}: has no DICOM header (preamble); export it again.")
    sides = (dataset.get(name) or 0 for name in ("Rows", "Columns"))
    bits = int(dataset.get("BitsAllocated") or 0)
    samples = int(dataset.get("SamplesPerPixel") or 1) * int(dataset.get("NumberOfFrames") or 1)
    needed = math.prod(map(int, sides)) * samples * bits // 8
    if len(dataset.PixelData) not in (needed, needed + needed % 2):
        raise _misfit(path)
    dataset.file_meta.TransferSyntaxUID = UID(_IMPLICIT_LITTLE if implicit else _EXPLICIT_LITTLE)


def _photometric(dataset: Any) -> str:
    return str(dataset.get("PhotometricInterpretation") or "").strip().upper()


def _check_kind(path: Path, dataset: Any) -> None:
    """Refuse what is not one grey image, before any pixel is decoded."""
    if "PixelData" not in dataset:
        raise UserError(f"{path}: the DICOM file holds no pixels; it may be truncated.")
    if int(dataset.get("NumberOfFrames") or 1) > 1:
        raise UserError(
            f"{path}: the DICOM file holds several frames; give one file per radiograph."
        )
    photometric = _photometric(dataset)
    if photometric == "PALETTE COLOR":
        raise UserError(f"{path}: is a palette image; export it as a grey image.")
    if int(dataset.get("SamplesPerPixel") or 1) != 1 or (
        photometric not in ("MONOCHROME1", "MONOCHROME2", "")
    ):
        raise UserError(f"{path}: is a colour image; export it as a grey image.")
    if not photometric:
        raise UserError(
            f"{path}: does not say whether low values are bright or dark"
            " (PhotometricInterpretation is missing); export it again."
        )
    height, width = int(dataset.get("Rows") or 0), int(dataset.get("Columns") or 0)
    check_size(path, height, width)
    if dataset.file_meta.TransferSyntaxUID.is_encapsulated:
        _check_codestream(path, dataset, height, width)


def _check_codestream(path: Path, dataset: Any, height: int, width: int) -> None:
    """Refuse a compressed picture whose own size is another than the file's: a bomb."""
    from pydicom.encaps import get_frame

    size = codestream_size(get_frame(dataset.PixelData, 0, number_of_frames=1))
    if size is not None and size != (height, width):
        raise _misfit(path)


def codestream_size(frame: bytes) -> tuple[int, int] | None:
    """Height and width that a JPEG, JPEG-LS or JPEG 2000 stream states; None if it does not."""
    start = frame.find(_JPEG_2000, 0, 1024)
    if start >= 0:
        right, bottom, left, top = (
            int.from_bytes(frame[start + k : start + k + 4], "big") for k in (8, 12, 16, 20)
        )
        return bottom - top, right - left
    place = 2
    while frame[:2] == b"\xff\xd8" and place + 9 <= len(frame) and frame[place] == 0xFF:
        marker = frame[place + 1]
        if marker in _JPEG_FRAMES:
            height, width = frame[place + 5 : place + 7], frame[place + 7 : place + 9]
            return int.from_bytes(height, "big"), int.from_bytes(width, "big")
        # FF may be repeated before a marker
        place += 1 if marker == 0xFF else 2 + int.from_bytes(frame[place + 2 : place + 4], "big")
    return None


# ------------------------------------------------------------------------- pixels, values


def _pixels(path: Path, dataset: Any) -> NDArray[Any]:
    """Stored values as they lie in the file, bits above BitsStored included."""
    from pydicom.pixels import get_decoder

    syntax = dataset.file_meta.TransferSyntaxUID
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError as error:
        raise UserError(
            f"{path}: is compressed as '{syntax.name}', which holds no still picture that can be"
            " read here; export it again without compression."
        ) from error
    options: dict[str, Any] = {"view_only": True, "correct_unused_bits": False}
    if syntax.is_encapsulated:
        plugin = _plugin(str(syntax), int(dataset.BitsStored))
        if plugin not in decoder.available_plugins:
            raise UserError(
                f"{path}: is compressed as '{syntax.name}', which needs another decoder;"
                " run pip install 'medclip-debias[codecs]'."
            )
        options = {"decoding_plugin": plugin}
    array: NDArray[Any] = decoder.as_array(dataset, raw=True, **options)[0]
    if array.shape != (int(dataset.Rows), int(dataset.Columns)):
        raise _misfit(path)
    return array


def _plugin(syntax: str, bits: int) -> str:
    """The one decoder of a transfer syntax.

    Decoders of lossy JPEG differ by a grey level. Left to itself pydicom takes whichever is
    installed, so the same files would give other bytes on another machine.
    """
    if syntax == _JPEG_EXTENDED and bits > 8:
        return "pylibjpeg"
    return _PLUGINS.get(syntax, "pylibjpeg")


def _misfit(path: Path) -> UserError:
    return UserError(f"{path}: the pixels do not fit the rows and columns; export it again.")


def _meaning(
    path: Path, dataset: Any, stored: NDArray[Any], window: WindowPolicy
) -> NDArray[np.float64]:
    """What the stored values mean, after the modality LUT and (unless ``none``) the VOI LUT."""
    from pydicom.pixels import apply_modality_lut

    if not dataset.file_meta.TransferSyntaxUID.is_encapsulated:
        # What unused bits hold is not defined (PS3.5, 8.1.1); this also extends the sign.
        unused = 8 * stored.dtype.itemsize - int(dataset.BitsStored)
        stored = stored << unused >> unused
    values = apply_modality_lut(stored, dataset)
    if window != "none":
        try:
            values = _first_window(dataset, values)
        except Exception as error:
            raise UserError(
                f"{path}: its display window cannot be applied; correct WindowCenter and"
                " WindowWidth, or prepare with window: none."
            ) from error
    return np.asarray(values, dtype=np.float64)


def _first_window(dataset: Any, values: NDArray[Any]) -> NDArray[Any]:
    """The values after the first VOI LUT, else after the first window, if there is any."""
    from pydicom.dataset import Dataset
    from pydicom.pixels import apply_voi, apply_windowing

    if dataset.get("VOILUTSequence"):
        return np.asarray(apply_voi(values, dataset, index=0))
    if any(dataset.get(name) in (None, "") for name in ("WindowCenter", "WindowWidth")):
        return values
    # Without the rescale slope: pydicom scales the result by it, and one below 0 would turn
    # the picture into its negative.
    only = Dataset()
    for name in _OF_WINDOW:
        if name in dataset:
            only[name] = dataset[name]
    return np.asarray(apply_windowing(values, only, index=0))
