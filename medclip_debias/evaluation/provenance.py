"""What ``results.json`` says about where its metrics come from: model, data, options, versions."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from medclip_debias import __version__
from medclip_debias.data.labels import CHEX5
from medclip_debias.evaluation.metrics import CALIBRATION_BINS, MIDDLE_THRESHOLDS, THRESHOLDS
from medclip_debias.evaluation.multiclass import MULTICLASS_RULE
from medclip_debias.evaluation.options import SEVERAL_PROMPTS
from medclip_debias.evaluation.prompt_checks import UNSAID
from medclip_debias.evaluation.protocol import Draw, Request
from medclip_debias.evaluation.protocols.phrase_grounding import BOX_LEVELS
from medclip_debias.evaluation.protocols.retrieval import PRECISIONS, RECALLS, SHOWN_RECALLS
from medclip_debias.files import code_hash
from medclip_debias.grounding.denials import FREQUENCIES, RULE
from medclip_debias.grounding.validation import NOT_MEASURED

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.evaluation.table import Results


def describe(request: Request, draw: Draw, archives: Mapping[str, Any]) -> dict[str, Any]:
    """Model, data, every choice behind the metrics, and versions: parts of ``results.json``."""
    model, data, label_map = request.model, request.data, request.label_map
    named = {} if label_map is None else {"label_map": [label_map.name, label_map.digest]}
    options, all_labels = request.options, request.options.precision_match == "all"
    by_mean = options.several_views == "mean"
    # What is fixed, in words and numbers, beside the options.
    rules = {
        "bootstrap": {
            "resamples": draw.resamples,
            "unit": "patient",
            "level": 0.95,
            "interval": "expanded percentile",
        },
        "several_prompts": SEVERAL_PROMPTS,
        "decision": "positive when its score is larger; a tie is negative",
        "f1_threshold": "the score of highest F1 on the validate images; the highest of equals",
        "calibration": {"probability": "sigmoid(g2 * difference)", "bins": CALIBRATION_BINS},
        "multiclass": MULTICLASS_RULE,
        "miou_thresholds": THRESHOLDS.tolist(),
        "miou_middle_thresholds": MIDDLE_THRESHOLDS.tolist(),
        "box_recall_levels": list(BOX_LEVELS),
        "groundable": RULE,
        "sentence_frequency": [list(group) for group in FREQUENCIES],
        "recall_at": list(RECALLS),
        "recalls_shown": list(SHOWN_RECALLS),
        "retrieval_ties": "mean rank",
        "study_retrieval": {
            "report_score": options.report_score,
            "image_of_a_study": "the mean of the scores of its judged images"
            if by_mean
            else "the first of its rows that are judged",
            "precision_at": list(PRECISIONS),
            "precision_counts": f"a study with {'all' if all_labels else 'any'} positive "
            f"label{'s' if all_labels else ''} of the query",
            "precision_classes": list(CHEX5),
            "own_study_in_precision": False,
        },
    }
    return {
        "data_hash": data.content_hash,
        "model_hash": model.content_hash,
        "code_hash": code_hash(),
        "seed": draw.seed,
        "prompts": request.prompts.model_dump(mode="json"),
        # A preset adds metrics and changes none: it stands with what it added.
        "options": options.model_dump(mode="json", exclude={"preset"}) | named | rules,
        "archives": archives,
        "model": {
            "hash": model.content_hash,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "grid": list(model.grid.shape),
            "architecture": model.settings.model_dump(mode="json"),
            "preprocessing": model.preprocessing.model_dump(mode="json"),
            "provenance": {name: v for name, v in model.provenance.items() if name != UNSAID},
        },
        "data": {
            "source": data.meta.get("kind", data.meta.get("source")),
            "synthetic": bool(data.meta.get("synthetic", False)),
            "counts": data.meta["counts"],
            "splits": splits(data),
            "funnel": data.funnel,
            "content_hash": data.content_hash,
            "prepare": data.settings.model_dump(mode="json"),
        },
        "self_test": model.self_test,
        "versions": versions(),
    }


def describe_maps(results: Results, *, synthetic: bool) -> dict[str, Any]:
    """The part ``maps`` of ``results.json``.

    Returns:
        ``validated``: whether signed contrast is higher inside a sentence's own boxes than inside
        those of other images of its class, with the whole 95% interval of the difference, on real
        images; ``real``; the ``phrases`` and ``boxes`` measured; ``sentence``: what to say beside
        every map, None where they are validated.
    """
    grounding = results.details("grounding")
    if not grounding or synthetic:
        nothing = {"validated": False, "real": False, "phrases": 0, "boxes": 0}
        return nothing | {"sentence": NOT_MEASURED}
    counts = {"phrases": grounding["phrases"], "boxes": grounding["boxes"]}
    head = f"On {counts['boxes']} boxes of real radiographs this model's maps"
    above = results.row("grounding", "cnr_above_others")
    sentence: str | None
    if above is None or above["low"] is None:
        sentence = (
            f"{head} were measured, but not compared with other images' boxes with an interval."
        )
    elif above["low"] > 0:
        sentence = None
    else:
        value, low, high = (above[key] for key in ("value", "low", "high"))
        sentence = (
            f"{head} do not show the place: signed contrast is {value:.2f} [{low:.2f}, {high:.2f}]"
            " higher inside the right boxes than inside those of other images."
        )
    return {"validated": sentence is None, "real": True, **counts, "sentence": sentence}


def splits(data: PreparedSet) -> dict[str, int]:
    """How many images each split has."""
    return {str(name): int(n) for name, n in data.images["split"].value_counts().items()}


def versions() -> dict[str, str]:
    """Versions of what computes the metrics."""
    import torch

    return {
        "medclip_debias": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def plain(value: Any) -> Any:
    """The same value as JSON can hold it: NaN and infinities become None, arrays lists."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
