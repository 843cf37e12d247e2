"""``preprocessor_config.json`` of transformers: how images are resized, cut and normalised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medclip_debias.config import Resample, validate
from medclip_debias.errors import UserError
from medclip_debias.files import read_json
from medclip_debias.models.peers.families import published_preprocessing
from medclip_debias.models.peers.settings import Kind, PeerPreprocessing

_FILTERS: Mapping[int, Resample] = {1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, which ``resample`` holds."""
_DINOV2 = ("radzero", "conns")
"""Kinds whose mean and standard deviation only the processor knows."""


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
