"""Were a model's maps measured on boxes that people drew on radiographs, and did they find them?

A map always has a brightest place. Unless it was shown that it lies in a sentence's own boxes more
than in those of other images, whoever looks at a map must be told so.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.files import read_json

NOT_MEASURED = (
    "This model's maps were not measured on boxes that people drew on radiographs: a bright place"
    " is no evidence that a finding is there."
)


def describe_maps(grounding: Mapping[str, Any] | None, synthetic: bool) -> dict[str, Any]:
    """The part ``maps`` of ``results.json``.

    Args:
        grounding: its part ``grounding``; None where it was not measured.
        synthetic: whether the images are a phantom's.

    Returns:
        ``validated``: whether signed contrast is higher inside a sentence's own boxes than inside
        those of other images of its class, with the whole 95% interval of the difference, on real
        images; ``real``; the ``phrases`` and ``boxes`` measured; ``sentence``: what to say beside
        every map, None where they are validated.
    """
    if grounding is None or synthetic:
        nothing = {"validated": False, "real": False, "phrases": 0, "boxes": 0}
        return nothing | {"sentence": NOT_MEASURED}
    bounds = grounding["interval"].get("cnr_above_others")
    validated = bool(bounds) and bounds[0] > 0
    counts = {"phrases": grounding["phrases"], "boxes": grounding["boxes"]}
    sentence = None if validated else _not_validated(grounding, bounds)
    return {"validated": validated, "real": True, **counts, "sentence": sentence}


def maps_warning(
    model_folder: Path, model_hash: str | None = None, method: str = "similarity"
) -> str | None:
    """What to say beside every map of a model; None where its maps were validated.

    Read from the ``results.json`` that ``evaluate`` left beside the model's folder, if it is of
    this model, and of maps by this method.
    """
    path = Path(model_folder).absolute().parent / "results.json"
    try:
        results = read_json(path, "run 'medclip-debias evaluate' to write it")
    except UserError:
        return NOT_MEASURED
    maps = results.get("maps") if isinstance(results, Mapping) else None
    if not isinstance(maps, Mapping) or model_hash not in (None, results.get("model_hash")):
        return NOT_MEASURED
    if results.get("options", {}).get("method", "similarity") != method:
        return NOT_MEASURED
    return None if maps.get("validated") is True else str(maps.get("sentence") or NOT_MEASURED)


def _not_validated(grounding: Mapping[str, Any], bounds: Any) -> str:
    head = f"On {grounding['boxes']} boxes of real radiographs this model's maps"
    if not bounds:
        return f"{head} were measured, and not held against other images' boxes with an interval."
    value, (low, high) = grounding["cnr_above_others"], bounds
    return (
        f"{head} do not show the place: signed contrast is {value:.2f} [{low:.2f}, {high:.2f}]"
        " higher inside the right boxes than inside those of other images."
    )
