"""Golden samples: a model folder's own test that this machine computes what its author's did.

``golden.json`` holds the scores of a few generated images and fixed sentences. Loading computes
them again and warns where ``weights`` (or tokenizer, settings) have another hash, the sentences are
cut into other ``tokens``, or the numbers ``drift`` though files and tokens are the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.errors import ReportedWarning
from medclip_debias.files import read_json_or_none, write_json
from medclip_debias.models.peers.settings import PeerPreprocessing

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

FILE, FORMAT = "golden.json", 1
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


def golden_scores(model: ImageTextModel, side: int) -> dict[str, Any]:
    """What the model says about the golden samples."""
    images = golden_images(side).to(model.device)
    if not isinstance(model.preprocessing, PeerPreprocessing):  # which is of whatever side
        scaled = (
            images[:, None].float() / 255 - model.preprocessing.mean
        ) / model.preprocessing.std
        images = scaled.to(next(model.parameters()).dtype)
    with _evaluating(model), torch.no_grad(), torch.autocast(model.device.type, enabled=False):
        features = model.encode_images(images)
        sentences = model.encode_sentences(SENTENCES)
        maps = model.region_scores(features, sentences).double()
        low, high = maps.amin(-1), maps.amax(-1)
        sd = maps.var(-1, unbiased=False).sqrt()
        return {
            "similarity": _rounded(model.score(features, sentences)),
            "scale": round(1.0 if model.learned_scale is None else model.learned_scale, 6),
            "regions": _rounded(torch.stack([maps.mean(-1), sd, low, high], dim=-1)),
        }


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


def _rounded(values: Tensor) -> Any:
    return values.double().cpu().mul(1e7).round().div(1e7).tolist()


def write_golden(model: ImageTextModel, folder: Path, files: str) -> None:
    """Write ``golden.json`` into a model folder; not for a model whose scores are not finite."""
    side = golden_side(model)
    scores = golden_scores(model, side)
    if not np.isfinite(_numbers(scores)).all():
        return
    content = {
        "format": FORMAT,
        "side": side,
        "sentences": list(SENTENCES),
        "tokens": model.tokenizer.encode(list(SENTENCES), model.max_tokens),
        "files": files,
        "precision": precision(model),
        "torch": str(torch.__version__),
    }
    write_json(folder / FILE, content | scores)


def self_test(model: ImageTextModel, folder: Path, files: str) -> dict[str, Any]:
    """Compare a loaded model with its ``golden.json``; warn in one sentence when it differs.

    ``status`` is ``passed``, ``weights``, ``tokens``, ``drift``, ``damaged`` or ``absent``; where
    there are scores, ``largest_difference``, ``tolerance``, ``precision`` and ``stored`` follow.
    """
    path = folder / FILE
    if not path.exists():
        return {"status": "absent"}
    try:
        stored = read_json_or_none(path, limit=_LARGEST) or {}
        if stored["format"] != FORMAT:
            return {"status": "absent"}
        expected, tokens = _numbers(stored), stored["tokens"]
        side, saved = int(stored["side"]), {key: str(stored[key]) for key in ("precision", "torch")}
        known = tuple(stored["sentences"]) == SENTENCES and "files" in stored
        known &= len(expected) == 1 + 5 * IMAGES * len(SENTENCES)
        damaged = not known or not 1 <= side <= max(golden_side(model), LARGEST_SIDE)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        damaged = True
    if damaged:
        sentence = (
            f"{path}: is damaged, so nobody can tell whether this machine computes what "
            "the model's author did; bring the file back, or save or import the model again."
        )
        warnings.warn(sentence, SelfTestWarning, stacklevel=3)
        return {"status": "damaged", "sentence": sentence}
    # The learned scale multiplies scores by up to 100; as a number it is compared relatively.
    gaps = np.abs(_numbers(golden_scores(model, side)) - expected)
    gaps /= np.maximum(1, np.abs(expected))
    largest = float(np.nan_to_num(gaps, nan=np.inf).max())
    own = precision(model)
    usual = TOLERANCES["float32"]
    tolerance = max(TOLERANCES.get(kind, usual) for kind in (own, saved["precision"]))
    status, why = "passed", ""
    if stored["files"] != files:
        status = "weights"
        why = "weights, tokenizer or settings are not those that were saved with these scores"
    elif model.tokenizer.encode(list(SENTENCES), model.max_tokens) != tokens:
        status = "tokens"
        why = "the same sentences are cut into other tokens here, so the tokenizer library differs"
    elif largest > tolerance:
        status = "drift"
        why = (
            f"the same files give other numbers here ({own}, torch {torch.__version__}; "
            f"saved with {saved['precision']}, torch {saved['torch']})"
        )
    report: dict[str, Any] = {
        "status": status,
        "largest_difference": largest if largest < float("inf") else None,
        "tolerance": tolerance,
        "precision": own,
        "stored": saved,
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


def _numbers(scores: Mapping[str, Any]) -> NDArray[np.float64]:
    """All scores in one order."""
    parts = (np.array(scores[key], dtype=np.float64) for key in ("similarity", "scale", "regions"))
    return np.concatenate([part.ravel() for part in parts])
