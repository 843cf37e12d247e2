"""One constant per prompt, from unlabelled images, so that "X" and "no X" can be compared.

Losses from text to image do not determine a constant per sentence (docs/theory.md, statement 6): a
model may score every image higher with "no effusion" than with "effusion" and still rank the
images perfectly. With images x' of nobody's labels the constant that makes each prompt a
distribution over images is known (design/evidence.md, definition C)::

    s'(x, t) = s(x, t) - o_t,   o_t = (1/g2) log mean_x' exp(g2 s(x', t))

AUC of a prompt, and of a pair of prompts, does not change; the decision between them does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.views import Views
from medclip_debias.errors import UserError
from medclip_debias.evaluation.encoding import row_scores
from medclip_debias.evaluation.options import Offsets
from medclip_debias.files import read_json, write_json

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.float64]
FILE = "offsets.json"
MOST_IMAGES = 2000


def prompt_offsets(scores: Floats, scale: float) -> Floats:
    """The constant of each prompt, on the scale of the scores.

    Scores ``[images, prompts]`` give ``[prompts]``, between the mean and the largest score of each.

    Example:
        >>> prompt_offsets(np.array([[0.1, 0.4], [0.1, 0.4]]), 10.0)
        array([0.1, 0.4])
    """
    logits = scale * np.asarray(scores, dtype=np.float64)
    peak = logits.max(axis=0)
    return (peak + np.log(np.exp(logits - peak).mean(axis=0))) / scale


def offset_rows(
    data: PreparedSet, offsets: Offsets, rows: Sequence[int], views: Views = "frontal"
) -> list[int]:
    """Rows of the images that set the constants; at most `MOST_IMAGES`, evenly spaced."""
    if offsets in ("none", "model"):
        return []
    chosen = list(rows)
    if offsets != "evaluated":
        of_split = (data.images["split"] == offsets).to_numpy()
        chosen = np.flatnonzero(of_split & (data.frontal | (views == "all"))).tolist()
        if not chosen:
            what = "frontal image" if of_split.any() else "image"
            raise UserError(
                f"{data.folder}: has no {what} in the split '{offsets}' to set offsets with; "
                "choose offsets 'evaluated', or another split."
            )
    step = max(1, -(-len(chosen) // MOST_IMAGES))
    return sorted(chosen)[::step]


def save_offsets(
    folder: Path, model: ImageTextModel, data: PreparedSet, texts: Sequence[str], split: str
) -> dict[str, Any]:
    """Measure the constants of ``texts`` and keep them in a model's folder as ``offsets.json``.

    The set's labels are not read.
    """
    scale = needed_scale(model)
    rows = offset_rows(data, "train" if split == "train" else "validate", ())
    values = prompt_offsets(row_scores(model, data, rows, texts, what="offsets"), scale)
    content = {
        "model_hash": model.content_hash,
        "data_hash": data.content_hash,
        "split": split,
        "images": len(rows),
        "offsets": dict(zip(texts, values.tolist(), strict=True)),
    }
    write_json(Path(folder) / FILE, content)
    return content


def read_offsets(folder: Path, model_hash: str | None, texts: Sequence[str]) -> Floats:
    """The constants of ``texts`` that a model's folder keeps."""
    path = Path(folder) / FILE
    remedy = f"run `medclip-debias evaluate offsets {folder} PREPARED` first"
    if not path.is_file():
        raise UserError(f"{path}: is missing, so this model has no offsets; {remedy}.")
    content = read_json(path, remedy, keys=("model_hash", "offsets"))
    known = content["offsets"]
    numbers = known.values() if isinstance(known, dict) else [None]
    if not all(isinstance(value, float | int) for value in numbers):
        raise UserError(f"{path}: its offsets are not a number for each prompt; {remedy}.")
    if content["model_hash"] != model_hash:
        raise UserError(f"{path}: was made with other weights than this model's; {remedy}.")
    absent = [text for text in texts if text not in known]
    if absent:
        raise UserError(
            f"{path}: has no offset for {json.dumps(absent[0])} ({len(absent)} of {len(texts)} "
            f"prompts); {remedy} with these prompts."
        )
    return np.array([known[text] for text in texts], dtype=np.float64)


def needed_scale(model: ImageTextModel) -> float:
    """The model's g2."""
    scale = model.learned_scale
    if scale is None:
        raise UserError(
            "Offsets need a model with a learned scale (logit scale), and this one has none; leave "
            "offsets at 'none'."
        )
    return scale
