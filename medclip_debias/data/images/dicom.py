"""One grey image from a DICOM file: what to refuse, and what a stored value means.

Order of the steps (DICOM PS3.4, N.2): modality LUT or rescale, then VOI LUT or window, then
the inversion of MONOCHROME1. The first two are pydicom's, run on the values that a pixel can
hold instead of on the pixels. Padding (PS3.3, C.7.5.1.1.2) is found among the stored values,
before any of them; it is no part of the picture.

Files without a Part-10 header (preamble, ``DICM``) are read when everything in them fits.
"""

from __future__ import annotations

import io
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.config import WindowPolicy
from medclip_debias.data.images.decoders import LOSSLESS, plugins_of, remedy
from medclip_debias.data.images.elements import read_elements
from medclip_debias.data.images.radiograph import Radiograph, check_scans, check_size, encoded
from medclip_debias.errors import UserError

_OF_WINDOW = (
    *("WindowCenter", "WindowWidth", "VOILUTFunction"),
    *("PhotometricInterpretation", "BitsStored", "PixelRepresentation"),
)
_SIDES = ("PixelAspectRatio", "PixelSpacing", "ImagerPixelSpacing")
"""Height and width of a pixel, in this order."""
_ELEMENTS = (
    *("SOPClassUID", "Modality", "PixelData", "FloatPixelData", "DoubleFloatPixelData"),
    *("Rows", "Columns", "SamplesPerPixel", "NumberOfFrames", "PlanarConfiguration"),
    *("BitsAllocated", "HighBit", "PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("ExtendedOffsetTable", "ExtendedOffsetTableLengths"),
    *("ModalityLUTSequence", "RescaleSlope", "RescaleIntercept", "VOILUTSequence"),
    "PresentationLUTShape",
    *_SIDES,
    *_OF_WINDOW,
)
_RADIOGRAPHS = (  # storage classes of radiographs
    "1.2.840.10008.5.1.4.1.1.1",  # computed radiography
    "1.2.840.10008.5.1.4.1.1.1.1",  # digital X-ray, for presentation
    "1.2.840.10008.5.1.4.1.1.1.1.1",  # digital X-ray, for processing
    "1.2.840.10008.5.1.4.1.1.7",  # secondary capture
)
_OLDER_RADIOGRAPHS = (  # what a Part-10 file may be stored as, too
    "1.2.840.10008.5.1.4.1.1.7.2",  # multi-frame secondary capture, 8 bit (of one frame)
    "1.2.840.10008.5.1.4.1.1.7.3",  # the same, 16 bit
    "1.2.840.10008.5.1.4.1.1.12.2",  # radiofluoroscopy
)
NO_HIGH_BIT = "HighBit is missing"
"""As in one in twenty files of CheXpert Plus; BitsStored - 1 is the one value that agrees."""
TWO_POLARITIES = "PresentationLUTShape and PhotometricInterpretation contradict each other"
"""The latter counts (PS3.3, C.7.6.3.1.2 and C.11.6): the film may be shown as its negative."""
NOT_SQUARE = "its pixels are not square (PixelAspectRatio or a spacing says so)"
"""It is not stretched: boxes and maps are counted in its rows and columns."""

_STORAGE = "1.2.840.10008.5.1.4.1.1."  # all standard storage classes; vendors have their own
_MODALITIES = frozenset(("CR", "DX", "DR", "RG", "RF", "XR", "XC", "OT", "SC", "HC"))
_OTHERS = {  # said in words of this program's own: a header is never quoted
    "BMD": "a bone density image",
    "CT": "a CT image",
    "ECG": "an electrocardiogram",
    "ES": "an endoscopic image",
    "IO": "a dental radiograph",
    "MG": "a mammogram",
    "MR": "an MR image",
    "NM": "a nuclear medicine image",
    "OP": "an eye photograph",
    "PT": "a PET image",
    "PX": "a dental radiograph",
    "SM": "a microscopic image",
    "US": "an ultrasound image",
    "XA": "an angiogram",
}
_RLE = "1.2.840.10008.1.2.5"
_IMPLICIT_LITTLE, _EXPLICIT_LITTLE = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1"
_BEFORE_SCAN = frozenset((0xC4, 0xDD, 0xFE, *range(0xE0, 0xF0)))  # DHT, DRI, COM, APPn
_IN_SCAN = frozenset((0, *range(0xD0, 0xD8)))
_JPEG_2000 = b"\xff\x4f\xff\x51"
# Start-of-frame markers of JPEG (C4, C8 and CC among them are others') and JPEG-LS (F7).
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {0xF7}


def read_dicom(path: Path, content: bytes, window: WindowPolicy) -> Radiograph:
    """Decode the DICOM file ``content``."""
    # pydicom warns about header values (sometimes quoting them) in files that read well.
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
        try:
            dataset = read_elements(io.BytesIO(content), path, _ELEMENTS)
            if content[128:132] != b"DICM":
                _check_bare(path, dataset)
            _check_kind(path, dataset)
            codes, words = encoded(_pixels(path, dataset))
            stored = _stored(dataset, codes, words)
            values = _meaning(path, dataset, stored, window)
            padding = _padding(dataset, words, stored)
        except UserError:
            raise
        # A damaged header surfaces as any of a dozen exception types, some quoting values.
        except Exception as error:
            raise UserError(
                f"{path}: the DICOM file is truncated or damaged"
                f" ({type(error).__name__}); copy it again."
            ) from error
    inverted = _photometric(dataset) == "MONOCHROME1"
    other = "IDENTITY" if inverted else "INVERSE"
    odd = {
        NO_HIGH_BIT: dataset.get("HighBit") in (None, ""),
        TWO_POLARITIES: dataset.get("PresentationLUTShape") == other,
        NOT_SQUARE: any(_not_square(dataset, name) for name in _SIDES),
    }
    mended = next((what for what, found in odd.items() if found), "")
    return Radiograph(codes, values, inverted, padding, mended)


# ----------------------------------------------------------------------- before decoding


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


def _not_square(dataset: Any, name: str) -> bool:
    try:
        height, width = map(float, dataset.get(name) or (1, 1))
        return not 0.99 < height / width < 1.01
    except (TypeError, ValueError, ZeroDivisionError):  # it says nothing that can be used
        return False


def _photometric(dataset: Any) -> str:
    return str(dataset.get("PhotometricInterpretation") or "").strip().upper()


def _check_kind(path: Path, dataset: Any) -> None:
    """Refuse what is not one grey radiograph, before any pixel is decoded."""
    what = other_modality(dataset.get("Modality"), dataset.get("SOPClassUID"))
    if what:  # slices and pictures of other devices read well
        raise UserError(
            f"{path}: its header (Modality, SOPClassUID) says {what}, not a radiograph;"
            " leave it out."
        )
    if "FloatPixelData" in dataset or "DoubleFloatPixelData" in dataset:
        raise UserError(
            f"{path}: holds computed values (floating-point pixels), so it is not a radiograph;"
            " leave it out."
        )
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
    _check_bits(path, dataset)
    if dataset.file_meta.TransferSyntaxUID.is_encapsulated:
        _check_codestream(path, dataset, height, width)


def other_modality(modality: Any, storage_class: Any) -> str:
    """What an image is by ``Modality`` and ``SOPClassUID``, ``""`` for a radiograph."""
    modality, kind = str(modality or "").strip().upper(), str(storage_class or "").strip()
    known = kind in _RADIOGRAPHS or kind in _OLDER_RADIOGRAPHS
    other = kind.startswith(_STORAGE) and not known
    if other or (modality and modality not in _MODALITIES):
        return _OTHERS.get(modality, "an image of another kind")
    return ""


def _check_bits(path: Path, dataset: Any) -> None:
    """Refuse pixels whose place in their words the header does not say, or says twice."""
    allocated, stored = int(dataset.BitsAllocated), int(dataset.get("BitsStored") or 0)
    high = _high_bit(dataset)
    if stored == 1:
        raise UserError(f"{path}: has only black and white pixels (one bit each); leave it out.")
    if not 1 < stored <= high + 1 <= allocated:
        raise UserError(
            f"{path}: BitsAllocated, BitsStored and HighBit contradict each other; export it again."
        )
    syntax = dataset.file_meta.TransferSyntaxUID
    # The codecs but RLE store values, not words: where in a word they lay cannot be known.
    if high != stored - 1 and syntax.is_encapsulated and str(syntax) != _RLE:
        raise UserError(
            f"{path}: is compressed, and HighBit is not BitsStored - 1, so its values cannot be"
            " known; export it again without compression."
        )


def _high_bit(dataset: Any) -> int:
    high = dataset.get("HighBit")
    return int(dataset.BitsStored) - 1 if high in (None, "") else int(high)


def _check_codestream(path: Path, dataset: Any, height: int, width: int) -> None:
    """Refuse a compressed picture whose own size is another than the file's: a bomb."""
    from pydicom.encaps import get_frame

    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    if frame.startswith(b"\xff\xd8"):
        check_scans(path, frame, height, width)
    size = codestream_size(frame)
    if size is not None and size != (height, width):
        raise _misfit(path)


def _check_lossless(path: Path, dataset: Any) -> None:
    """Refuse a lossless JPEG stream that is not whole and plain (ITU-T T.81, annexes B and H).

    On others GDCM ends its process: one damaged file would end a preparation of many.
    """
    from pydicom.encaps import get_frame

    frame = get_frame(dataset.PixelData, 0, number_of_frames=1)
    damaged = UserError(
        f"{path}: its JPEG stream is damaged or of an unusual form; export it again."
    )
    place, seen = 2, b""
    if frame[:2] != b"\xff\xd8":
        raise damaged
    while seen[-1:] != b"\xda":
        size = int.from_bytes(frame[place + 2 : place + 4], "big")
        marker, body = frame[place : place + 2], frame[place + 4 : place + 2 + size]
        if marker[:1] != b"\xff" or size < 2 or len(body) < size - 2:
            raise damaged
        place, seen = place + 2 + size, seen + marker[1:]
        if marker == b"\xff\xc3":
            bits, one, ids = body[0], body[5:6], body[6:7]
            if (
                len(body) != 9
                or one != b"\1"
                or body[7] != 0x11
                or body[8]
                or not (int(dataset.BitsStored) <= bits <= int(dataset.BitsAllocated))
            ):
                raise damaged
        elif marker == b"\xff\xda":
            if seen.count(b"\xc3") != 1 or len(body) != 6 or body[:2] != b"\1" + ids:
                raise damaged
            if body[2] & 15 or body[2] >> 4 > 3 or not 1 <= body[3] <= 7 or body[4] or body[5] >> 4:
                raise damaged
        elif marker[1] not in _BEFORE_SCAN:
            raise damaged
    # In the scan FF stands before 00 (a byte FF) and D0 to D7 (restarts) alone, until the end.
    end = frame.rfind(b"\xff\xd9")
    scan = frame[place:end]
    marks = np.flatnonzero(np.frombuffer(scan[:-1], np.uint8) == 0xFF)
    inside = {scan[at + 1] for at in marks} if end > place else {256}
    if not inside <= _IN_SCAN:
        raise damaged


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
            f"{path}: is compressed as '{syntax.name}', which is not a still image that can be read"
            " here; export it again without compression."
        ) from error
    options: dict[str, Any] = {"view_only": True, "correct_unused_bits": False}
    if syntax.is_encapsulated:
        plugins = plugins_of(str(syntax), int(dataset.BitsStored))
        plugin = next((name for name in plugins if name in decoder.available_plugins), None)
        if plugin is None:
            raise UserError(f"{path}: is compressed as {remedy(syntax.name, plugins)}.")
        if plugins is LOSSLESS:
            _check_lossless(path, dataset)
        options = {"decoding_plugin": plugin, "correct_unused_bits": False}
    array: NDArray[Any] = decoder.as_array(dataset, raw=True, **options)[0]
    if array.shape != (int(dataset.Rows), int(dataset.Columns)):
        raise _misfit(path)
    return array


def _misfit(path: Path) -> UserError:
    return UserError(f"{path}: the pixels do not fit the rows and columns; export it again.")


def _stored(dataset: Any, codes: NDArray[Any], words: NDArray[Any]) -> NDArray[Any]:
    """The stored value in each word: bits ``HighBit - BitsStored + 1`` to ``HighBit``.

    What the other bits of a plain or RLE word hold is not defined (PS3.5, 8.1.1); older files keep
    overlays there. The shifts also extend the sign. The other codecs give values, of which signed
    ones may come without their sign extended (a JPEG stream knows no sign).
    """
    size, bits = 8 * words.dtype.itemsize, int(dataset.BitsStored)
    syntax = dataset.file_meta.TransferSyntaxUID
    if not syntax.is_encapsulated or str(syntax) == _RLE:
        above = size - 1 - _high_bit(dataset)
        return words << above >> (size - bits)
    if words.dtype.kind != "i" or bits >= size:
        return words
    occurring = words if codes.dtype.itemsize > 2 else words[np.bincount(codes.ravel()).nonzero()]
    if occurring.min() < 0 or occurring.max() >= 1 << bits:
        return words
    return words << (size - bits) >> (size - bits)


def _padding(dataset: Any, words: NDArray[Any], stored: NDArray[Any]) -> NDArray[np.bool_] | None:
    """``[n]``: which stored values mark pixels outside the picture; None where none does.

    That is the padding value, or all from it to the range limit. Some files give the value with
    the other sign (-2000 as 63536), or a whole word that the stored bits cannot hold.
    """
    value, limit = (dataset.get(name) for name in ("PixelPaddingValue", "PixelPaddingRangeLimit"))
    if not isinstance(value, int):
        return None
    low, high = sorted((value, limit if isinstance(limit, int) else value))
    bits = int(dataset.BitsStored)
    lowest = -(1 << (bits - 1)) if stored.dtype.kind == "i" else 0
    found: NDArray[np.bool_] = np.zeros(stored.shape, dtype=bool)
    for turn in (0, 1 << 16, -(1 << 16)):
        held = lowest <= low + turn and high + turn < lowest + (1 << bits)
        values = stored if held or _high_bit(dataset) != bits - 1 else words
        found |= (values >= low + turn) & (values <= high + turn)
    return found if found.any() else None


def _meaning(
    path: Path, dataset: Any, stored: NDArray[Any], window: WindowPolicy
) -> NDArray[np.float64]:
    """What the stored values mean, after the modality LUT and (unless ``none``) the VOI LUT."""
    from pydicom.pixels import apply_modality_lut

    for name in ("RescaleSlope", "RescaleIntercept"):  # a blank one says nothing, as a missing one
        if dataset.get(name) in (None, "") and name in dataset:
            del dataset[name]
    # pydicom leaves one without the other aside; a negative slope alone turns the picture round.
    if "RescaleSlope" in dataset or "RescaleIntercept" in dataset:
        dataset.setdefault("RescaleSlope", 1)
        dataset.setdefault("RescaleIntercept", 0)
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
