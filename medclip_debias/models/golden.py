"""Golden samples: a model folder's own test that this machine computes what its author's did.

``golden.json`` holds the scores of a few generated images and fixed sentences. Loading computes
them again and warns where ``weights`` (or tokenizer, settings) have another hash, the sentences are
cut into other ``tokens``, or the numbers ``drift`` though files and tokens are the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError, model_validator
from torch import Tensor

from medclip_debias.errors import ReportedWarning
from medclip_debias.files import read_json_or_none, write_json
from medclip_debias.models.peers.settings import PeerPreprocessing

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

FILE = "golden.json"
_LARGEST = 16 << 20
IMAGES = 2
LARGEST_SIDE = 160
"""Images are cut to this side, so that a model of large inputs does not load slowly."""
SENTENCES = (
    "No acute cardiopulmonary process.",
    "Small left pleural effusion.",
    "Mild pulmonary edema.",
    "The heart is enlarged.",
    "No pneumothorax.",
)
TOLERANCES = {"float32": 1e-4, "tf32": 5e-3, "bfloat16": 3e-2}
"""Largest difference of a cosine that passes, by how the device multiplies."""


class SelfTestWarning(ReportedWarning):
    """A loaded model does not give the scores that were stored with it."""


def golden_images(side: int) -> Tensor:
    """Generated images ``uint8 [IMAGES, side, side]`` of whole-number arithmetic: frozen."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    pictures = []
    for number in range(IMAGES):
        slope = (x * 97 + y * (61 + 40 * number)) // max(side, 1)
        wave = ((x * (3 + number) + y * 2) % 64 - 32).abs() + ((y * 5 - x) % 22 - 11).abs()
        square = ((x * 3 // side == 1) & (y * 3 // side == 1 - number)).long() * 70
        pictures.append((slope + wave + square).clamp(0, 255))
    return torch.stack(pictures).to(torch.uint8)


def golden_side(model: ImageTextModel) -> int:
    side = model.preprocessing.input_size
    if isinstance(model.preprocessing, PeerPreprocessing) or side <= LARGEST_SIDE:
        return side
    multiple = int(getattr(getattr(model, "image_encoder", None), "side_multiple", 1))
    return max(LARGEST_SIDE // multiple, 1) * multiple


@contextmanager
def _evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each module's own mode again."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


class GoldenFile(BaseModel):
    """What ``golden.json`` holds; ``files`` names weights, tokenizer and settings."""

    format: Literal[1] = 1
    side: int = Field(ge=1)
    sentences: tuple[str, ...]
    tokens: list[list[int]]
    files: str
    precision: str
    torch: str
    similarity: list[list[float]]
    scale: float
    regions: list[list[list[float]]]

    @model_validator(mode="after")
    def _of_this_version(self) -> GoldenFile:
        if self.sentences != SENTENCES or len(self.numbers) != 1 + 5 * IMAGES * len(SENTENCES):
            raise ValueError("other samples")
        return self

    @property
    def numbers(self) -> NDArray[np.float64]:
        """All scores in one order."""
        parts = (self.similarity, self.scale, self.regions)
        return np.concatenate([np.array(part, dtype=np.float64).ravel() for part in parts])


def golden_scores(model: ImageTextModel, side: int, files: str = "") -> GoldenFile:
    """What the model says about the golden samples, on this machine."""
    images = golden_images(side).to(model.device)
    how = model.preprocessing
    if not isinstance(how, PeerPreprocessing):  # which is of whatever side
        scaled = (images[:, None].float() / 255 - how.mean) / how.std
        images = scaled.to(next(model.parameters()).dtype)
    with _evaluating(model), torch.no_grad(), torch.autocast(model.device.type, enabled=False):
        features = model.encode_images(images)
        sentences = model.encode_sentences(SENTENCES)
        maps = model.region_scores(features, sentences).double()
        sd = maps.var(-1, unbiased=False).sqrt()
        regions = torch.stack([maps.mean(-1), sd, maps.amin(-1), maps.amax(-1)], dim=-1)
        similarity = model.score(features, sentences)
    similarity, regions = (
        x.double().cpu().mul(1e7).round().div(1e7) for x in (similarity, regions)
    )
    return GoldenFile(
        side=side,
        sentences=SENTENCES,
        tokens=model.tokenizer.encode(list(SENTENCES), model.max_tokens),
        files=files,
        precision=precision(model),
        torch=str(torch.__version__),
        similarity=similarity.tolist(),
        scale=round(1.0 if model.learned_scale is None else model.learned_scale, 6),
        regions=regions.tolist(),
    )


def write_golden(model: ImageTextModel, folder: Path, files: str) -> None:
    """Write ``golden.json`` into a model folder; not for a model whose scores are not finite."""
    golden = golden_scores(model, golden_side(model), files)
    if np.isfinite(golden.numbers).all():
        write_json(folder / FILE, golden.model_dump(mode="json"))


def self_test(model: ImageTextModel, folder: Path, files: str) -> dict[str, Any]:
    """Compare a loaded model with its ``golden.json``; warn in one sentence when it differs.

    ``status`` is ``passed``, ``weights``, ``tokens``, ``drift``, ``damaged`` or ``absent``; where
    there are scores, ``largest_difference``, ``tolerance``, ``precision`` and ``stored`` follow.
    """
    path = folder / FILE
    content = read_json_or_none(path, limit=_LARGEST) if path.exists() else {"format": None}
    if isinstance(content, dict) and content.get("format", 1) != 1:
        return {"status": "absent"}
    try:
        stored = GoldenFile.model_validate(content)
    except ValidationError:
        stored = None
    if stored is None or stored.side > max(golden_side(model), LARGEST_SIDE):
        sentence = (
            f"{path}: is damaged, so it cannot be checked that this machine computes what the"
            " model's author did; restore the file, or save or import the model again."
        )
        warnings.warn(sentence, SelfTestWarning, stacklevel=3)
        return {"status": "damaged", "sentence": sentence}
    here = golden_scores(model, stored.side, files)
    # The learned scale multiplies scores by up to 100; as a number it is compared relatively.
    gaps = np.abs(here.numbers - stored.numbers) / np.maximum(1, np.abs(stored.numbers))
    largest = float(np.nan_to_num(gaps, nan=np.inf).max())
    usual = TOLERANCES["float32"]
    tolerance = max(TOLERANCES.get(one.precision, usual) for one in (here, stored))
    status, why = "passed", ""
    if stored.files != files:
        status = "weights"
        why = "weights, tokenizer or settings are not those that were saved with these scores"
    elif here.tokens != stored.tokens:
        status = "tokens"
        why = "the same sentences are cut into other tokens here, so the tokenizer library differs"
    elif largest > tolerance:
        status = "drift"
        why = (
            f"the same files give other numbers here ({here.precision}, torch {here.torch}; "
            f"saved with {stored.precision}, torch {stored.torch})"
        )
    report: dict[str, Any] = {
        "status": status,
        "largest_difference": largest if largest < float("inf") else None,
        "tolerance": tolerance,
        "precision": here.precision,
        "stored": {"precision": stored.precision, "torch": stored.torch},
    }
    if why:
        report["sentence"] = (
            f"{folder}: the self-test's scores differ by up to {largest:.2g} "
            f"(tolerance {tolerance:.0e}): {why}."
        )
        warnings.warn(report["sentence"], SelfTestWarning, stacklevel=3)
    return report


def precision(model: ImageTextModel) -> str:
    """How the model's device multiplies: ``float32``, ``tf32``, or ``bfloat16`` (any half)."""
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes & {torch.bfloat16, torch.float16}:
        return "bfloat16"
    return "tf32" if model.device.type == "cuda" else "float32"
