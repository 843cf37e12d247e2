"""The families of peers: one table each in ``families/``, named by the kind.

A table says how published tensors are called here, which of them score nothing, what the towers and
the score are, how the authors prepare an image and clean a sentence, and under which terms they
published the weights.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from medclip_debias.config import Resample, Settings, validate
from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.models.peers.settings import Kind, PeerPreprocessing, PeerSettings
from medclip_debias.settings_files import load_yaml


class Family(Settings):
    """One kind of model as its authors publish it; patterns are regular expressions.

    Attributes:
        clean: what the authors' code does to a sentence first, a function below.
        preprocessing: what differs from `PeerPreprocessing`; ``network`` is the network's size.
        preprocessing_of_resnet: what differs from that where the image tower is a ResNet.
        towers: image towers that a checkpoint may hold; ``other_towers``: said where it has none.
        dim: tensor whose first axis is the width of the shared space, by its name here.
        strip: a prefix that every tensor may have.
        twice: pattern, replacement and name of tensors that are stored a second time.
        left_out: pattern and reason of tensors from which no score is computed.
        names: pattern and replacement; a tensor that none matches keeps its name.
        copies: beginnings of names whose tensors stand under another beginning, too.
        text, fusion: settings without sizes; ``text_...`` of the text folder's own weights.
        book: the questions that are asked together; ``other_names`` of findings and their entry.
    """

    licence: str = "not said in the files; the authors' page says it"
    clean: Literal["words_only", "repaired", "without_end_marks"] | None = None
    preprocessing: dict[str, Any]
    preprocessing_of_resnet: dict[str, Any] = Field({})
    towers: tuple[Literal["resnet", "vit", "swin", "dinov2"], ...] = ()
    other_towers: str = ""
    dim: str = ""
    strip: str = "^$"
    twice: tuple[tuple[str, str, str], ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    copies: dict[str, str] = Field({})
    text: dict[str, Any] = Field({})
    text_names: tuple[tuple[str, str], ...] = ()
    text_left_out: tuple[tuple[str, str], ...] = ()
    fusion: dict[str, Any] | None = None
    book: tuple[str, ...] = ()
    other_names: dict[str, str] = Field({})
    max_tokens: int = 512


_FILTERS: Mapping[int, Resample] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, which ``resample`` holds."""
_DINOV2 = ("radzero", "conns")
"""Kinds whose mean and standard deviation only the processor knows."""


@cache
def family(kind: Kind) -> Family:
    """The table of a kind."""
    path = Path(__file__).with_name("families") / f"{kind}.yaml"
    return validate(Family, load_yaml(path), str(path))


def published_preprocessing(
    kind: Kind, image_size: int = 224, *, resnet: bool = False
) -> PeerPreprocessing:
    """The preprocessing in the authors' inference code (docs/peers.md names each source)."""
    table = family(kind)
    values = dict(table.preprocessing) | (table.preprocessing_of_resnet if resnet else {})
    # No published code applies a DICOM window; most take the levels of 8-bit files as such.
    common = {"clip": (0, 100), "window": "none", "levels": "as_stored"}
    values["prepare"] = {**common, **values["prepare"]}
    if values["prepare"]["size"] == "network":
        values["prepare"]["size"] = values["input_size"] = image_size
    if values.get("network_size") == "network":
        values["network_size"] = None if image_size == values["input_size"] else image_size
    return validate(PeerPreprocessing, values, kind)


def read_processor(
    kind: Kind, path: Path, *, image_size: int | None = None, multiple: int = 1
) -> PeerPreprocessing:
    """What a processor says of size, filter, cut, mean and standard deviation.

    NaFlex, which keeps an image's proportions, has black bands here.
    """
    given = read_json(path, "give the preprocessor_config.json of the model", limit=16 << 20)
    published = published_preprocessing(kind, image_size or 224)
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if given.get(name, True) is not True:
            raise UserError(f"{path}: '{name}' is off, which is not supported here.")
    if given.get("do_pad"):
        raise UserError(f"{path}: 'do_pad' is on, which is not supported here.")
    factor = given.get("rescale_factor", 1 / 255)
    if not isinstance(factor, int | float) or abs(factor * 255 - 1) > 1e-6:
        raise UserError(f"{path}: grey levels are not divided by 255, which is not supported here.")
    naflex = "max_num_patches" in given  # resizes to whole patches; here to the square of them
    resample = given.get("resample", 2 if naflex else 3)
    if not isinstance(resample, int) or resample not in _FILTERS:
        raise UserError(
            f"{path}: its resample {resample!r} is not supported here; known: "
            f"{', '.join(f'{n} ({name})' for n, name in _FILTERS.items())}."
        )
    size = image_size if naflex else given.get("size", image_size)
    short = size.get("shortest_edge") if isinstance(size, Mapping) else None
    short = size if isinstance(size, int) and kind != "siglip" else short
    side = short or _square(size)
    cut = given.get("do_center_crop", bool(short) if kind in _DINOV2 else kind != "siglip")
    inside = _square(given.get("crop_size", image_size or side)) if cut else side
    misfit = side is None or inside is None or inside > side or bool(short) != bool(cut)
    if image_size is not None and (misfit or inside != image_size):
        raise UserError(
            f"{path}: its sizes do not end in the {image_size} x {image_size} pixels that the "
            "network has positions for."
        )
    if side is None or inside is None:
        raise UserError(f"{path}: its size is not that of a square.")
    if misfit or inside % multiple:
        raise UserError(f"{path}: an input of {inside} pixels does not fit patches of {multiple}.")
    values: dict[str, Any] = published.model_dump() | {"input_size": inside}
    fit = "crop" if short else "pad" if naflex else "squash"
    values["prepare"] |= {"size": side, "fit": fit, "resample": _FILTERS[resample]}
    for name, channels in (("image_mean", "channel_mean"), ("image_std", "channel_std")):
        numbers = given.get(name)
        if isinstance(numbers, list) and len(numbers) == 3:
            values[channels] = numbers
        elif kind in _DINOV2:
            raise UserError(f"{path}: holds no image_mean and image_std of three channels.")
    return validate(PeerPreprocessing, values, str(path), "")


def _square(size: Any) -> int | None:
    """The side of ``{height, width}``, or of one number; None if it is none of a square."""
    if isinstance(size, Mapping):
        size = size.get("height") if size.get("height") == size.get("width") else None
    return size if isinstance(size, int) else None


# ----------------------------------------------------------------------------------- questions


def read_book(kind: Kind, path: Path | None) -> dict[str, str]:
    """The questions of KAD and MedKLIP by name, from the user's file or the table; else none.

    MedKLIP's file has the entities' descriptions; `Family.other_names` name the same entries.
    """
    table = family(kind)
    if table.fusion is None or table.fusion["kind"] != "query_network":
        return {}
    if path is None and table.book:
        return {name: name for name in table.book} | table.other_names
    if path is None:
        raise UserError(
            f"{kind} needs its book of descriptions ('observation explanation.json' in its "
            "authors' repository); name it with --config."
        )
    book = read_json(path, "give a JSON object of names to questions")
    if not book or not all(isinstance(text, str) and text.strip() for text in book.values()):
        raise UserError(
            f"{path}: is not a JSON object that maps names to texts (the questions to ask)."
        )
    names = {} if table.book else table.other_names
    more = {name: book[entity] for name, entity in names.items() if entity in book}
    return book | {name: text for name, text in more.items() if name not in book}


def book_prompts(settings: PeerSettings) -> dict[str, Any]:
    """A chex5 prompt set that asks by the book's names; none without a book, or such names."""
    book = {} if settings.fusion is None else settings.fusion.book
    names = {name.lower() for name in book}
    findings = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")
    classes = {
        name: {"positive": [name.lower()], "negative": [f"no {name.lower()}"]}
        for name in findings
        if name.lower() in names
    }
    return {"chex5": {"name": f"chex5 ({settings.kind})", "classes": classes}} if classes else {}


# --------------------------------------------------------------------------- cleaning sentences


def words_only(sentence: str) -> str:
    """Lower-case words without enumeration, punctuation or other alphabets, as of GLoRIA."""
    words = re.findall(r"\w+", re.sub(r"[0-9]+\.", " ", sentence).lower())
    plain = [word.encode("ascii", "ignore").decode("ascii") for word in words]
    return " ".join(word for word in plain if word)


def repaired(sentence: str) -> str:
    """Broken Unicode, curly quotes and HTML's entities mended, as CLIP's code does."""
    import ftfy

    return html.unescape(html.unescape(ftfy.fix_text(sentence))).strip()


def without_end_marks(sentence: str) -> str:
    """Without the full stops, exclamation and question marks at its end, as hi-ml's code does."""
    return sentence.rstrip("!?.")


_CLEAN: dict[str | None, Callable[[str], str]] = {
    None: str,
    "words_only": words_only,
    "repaired": repaired,
    "without_end_marks": without_end_marks,
}


def cleaned(kind: Kind, sentences: list[str]) -> list[str]:
    """Sentences as the authors' code makes them before it cuts them into tokens."""
    return list(map(_CLEAN[family(kind).clean], sentences))
