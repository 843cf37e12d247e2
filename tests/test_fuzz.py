"""Random damage to DICOM files and reports: read or refused in a sentence, never anything else.

Every input is a function of its number, which hypothesis draws (and prints, if it fails): small
valid DICOM files of every form that the reader takes, a few bytes of which are changed, cut,
doubled, or replaced by another file's; reports changed in up to eight places. For more of them than
a run of all tests has time for: ``FUZZ=100000 pytest tests/test_fuzz.py``.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from dicom_files import radiograph
from lossless_jpeg import lossless_jpeg
from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import prepare_image, read_radiograph
from medclip_debias.data.images.headers import view_position
from medclip_debias.data.text.languages import language
from medclip_debias.data.text.reports import (
    ReportSettings,
    report_sentences,
    sections,
    words_in,
)
from medclip_debias.data.text.sentences import DROPPED
from medclip_debias.errors import UserError

many = examples(max_examples=int(os.environ.get("FUZZ", "150")), deadline=10_000, derandomize=True)
INTERESTING = (b"\0\0", b"\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"-1")


def seeds() -> list[bytes]:
    """Small valid files of every form that the reader takes."""
    from PIL import Image
    from pydicom import dcmwrite
    from pydicom.dataset import Dataset
    from pydicom.encaps import encapsulate
    from pydicom.uid import UID

    def made(dtype: str, syntax: str = "1.2.840.10008.1.2.1", **elements: Any) -> bytes:
        array = (np.arange(40)[:, None] * 4 + np.arange(36) * 2).astype(dtype)
        header = {
            "SOPClassUID": UID("1.2.840.10008.5.1.4.1.1.1.1"),
            "SOPInstanceUID": UID("2.25.1"),
        }
        header["PhotometricInterpretation"] = "MONOCHROME1"
        dataset = radiograph(array, **header | elements)
        big = syntax.endswith(".2.2")
        if syntax.endswith(("1.2.1", "1.2.1.99")) or big:
            dataset.PixelData = array.byteswap().tobytes() if big else array.tobytes()
        elif syntax.endswith((".70", ".50")):
            picture = io.BytesIO()
            if syntax.endswith(".50"):
                Image.fromarray(array).save(picture, "JPEG")
            else:
                picture.write(lossless_jpeg(array, 8 * array.dtype.itemsize))
            dataset.PixelData = encapsulate([picture.getvalue()])
            dataset["PixelData"].is_undefined_length = True
        else:
            dataset.compress(syntax, generate_instance_uid=False)
        dataset.file_meta.TransferSyntaxUID = UID(syntax)
        stream = io.BytesIO()
        dcmwrite(stream, dataset, little_endian=not big, implicit_vr=False)
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


class Seeds(list[Any]):
    """What is damaged; hypothesis shows its number instead of all of it."""

    def __repr__(self) -> str:
        return f"<{len(self)} seeds>"


@pytest.fixture(scope="module")
def files() -> Seeds:
    """The valid files."""
    return Seeds(seeds())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where an input is written."""
    return tmp_path_factory.mktemp("fuzz") / "input.dcm"


@pytest.mark.filterwarnings("ignore")
@many
@given(number=st.integers(0, 2**32 - 1))
def test_a_damaged_dicom_file_is_read_or_refused(files, place, number):
    place.write_bytes(mutated(number, files))
    with contextlib.suppress(UserError):
        view_position(place)
        prepare_image(read_radiograph(place), PrepareSettings(size=32))


# --------------------------------------------------------------------------------- reports

TOKENS = (
    *("\n", "\r\n", "\r", "\n \n", "\t", " ", ":", ": ", ".", "\u2028", "\x0b", "\x00", "\ufeff"),
    *("Hallazgos: ", "\n IMPRESIÓN:", "Conclusión : ", " izq. ", "Größe", " œdème", " . "),
    *("FINDINGS:", "\n FINDINGS:\n", "Impression: ", "IMPRESSION", "\n WET READ: 9:11 PM\n"),
    *("\n FINAL ADDENDUM\n", "COMPARISON", "findings:", "CHEST, TWO VIEWS (PA/LAT):", "LUNGS:"),
    *("\n PORTABLE CHEST, 10:30 A.M.: ", ". Comparison: ", " TECHNIQUE: ", "\n ETT: ", "\n XYZ: "),
    *("\n\n PORTABLE CHEST\n\n", ". PA VIEW: ", "\nDictated by: J. Roe, M.D.\n", "Signed by Dr. "),
    *("FINAL REPORT", "_" * 78, "___", "XXXX", "1. ", "\n2) ", "(3) ", "- ", "\u2022 ", "Dr. "),
    *("1.5", " cm. ", " approx. ", " pt. ", "Bilat. ", "No. of ", " ? ", "normal.The", " R.U.L. "),
    *(" 3 p.m. ", "\u222f", "\u2668", "\u0130", "\u00df", "\ud83d\ude00", "\u0301", "\u202e", "["),
)
SETTINGS = (
    ReportSettings(language="en"),
    ReportSettings(sections=("impression", "wet_read", "addendum"), order="settings"),
    ReportSettings(sections=("findings",), fallback=(), min_words=3, max_words=20),
    ReportSettings(drop_repeated=True),
    ReportSettings(language="es"),
)
DEIDENTIFIED = re.compile(r"_+|\bX{3,}\b")


@pytest.fixture(scope="module")
def reports(phantom_tree: Path) -> Seeds:
    """The phantom's reports."""
    return Seeds(sorted({path.read_text() for path in phantom_tree.rglob("s*.txt")}))


@many
@given(number=st.integers(0, 2**32 - 1))
def test_no_damage_to_a_report_breaks_a_promise_of_its_sentences(reports, number):
    text = mutate(random.Random(number), reports)
    assert check(text, SETTINGS[number % len(SETTINGS)]) == ""


def mutate(source: random.Random, seeds: list[str]) -> str:
    """Return a report changed in up to eight places, or two of them spliced."""
    text = source.choice(seeds)
    if source.random() < 0.2:
        other = source.choice(seeds)
        text = text[: source.randint(0, len(text))] + other[source.randint(0, len(other)) :]
    for _ in range(source.randint(1, 8)):
        start = source.randint(0, len(text))
        end = min(len(text), start + int(source.expovariate(1 / 12)))
        text = text[:start] + _replacement(source, text[start:end]) + text[end:]
    return text


def _replacement(source: random.Random, piece: str) -> str:
    choices = (
        lambda: source.choice(TOKENS),
        lambda: source.choice(TOKENS) * source.randint(2, 40),
        lambda: "",
        lambda: piece * source.randint(2, 4),
        lambda: piece.swapcase(),
        lambda: piece[::-1],
        lambda: chr(source.randint(0, source.choice((0x2FF, 0xFFFF)))),
        lambda: piece.replace(" ", source.choice(("\n", "", "\n ", "\u00a0", "  "))),
    )
    return source.choice(choices)()


def check(text: str, settings: ReportSettings) -> str:
    """Return the promise that this input breaks, or ``""``."""
    spoken = "en" if settings.language == "auto" else settings.language
    cut = report_sentences(text, settings)
    if cut.language != spoken:
        return "another language than the one given"
    named = (*settings.sections, *settings.fallback)
    found = sections(text, named, language(spoken)).texts
    if not all(name and piece and piece == piece.strip() for name, piece in found.items()):
        return "an empty section"
    if any(name != name.lower() or " " in name for name in found):
        return "a name that is not normal"
    kept, dropped, used, aside, _ = cut
    if used + aside.total() > words_in(text):
        return "words counted twice"
    if any(name == name.upper() or len(name) > 30 for name in aside):
        return "a heading of the report among the counts"
    if set(dropped) - set(DROPPED) or min(dropped.values(), default=1) < 1:
        return "an unknown count"
    for name, sentence in kept:
        if name not in found or sentence != " ".join(sentence.split()):
            return "a sentence that is not clean"
        if not any(c.isalpha() for c in DEIDENTIFIED.sub("", sentence)):
            return "a sentence without a word"
    if settings in (SETTINGS[0], SETTINGS[-1]) and not dropped["signature"]:
        wanted = [n for n in found if n in settings.sections]
        wanted = wanted or [n for n in settings.fallback if n in found][:1]
        whole = " ".join(found[name] for name in wanted)
        if _letters(whole) != _letters(" ".join(sentence for _, sentence in kept)):
            return "lost letters"
    return ""


def _letters(text: str) -> list[str]:
    return [c for c in DEIDENTIFIED.sub(" ", text) if c.isalpha()]
