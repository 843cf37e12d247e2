"""Were a model's maps measured on boxes that people drew on radiographs, and did they find them?

A map always has a brightest place. Unless it was shown that it lies in a sentence's own boxes more
than in those of other images, whoever looks at a map must be told so.
"""

from __future__ import annotations

from pathlib import Path

from medclip_debias.errors import UserError
from medclip_debias.files import read_json

NOT_MEASURED = (
    "This model's maps were not measured on boxes that people drew on radiographs: a bright place"
    " is not evidence that a finding is there."
)


def maps_warning(
    model_folder: Path,
    model_hash: str | None = None,
    method: str = "similarity",
    sharpen: str = "none",
) -> str | None:
    """What to say beside every map of a model; None where its maps were validated.

    Read from the ``results.json`` that ``evaluate`` left beside the model's folder, if it is of
    this model, and of maps by this method that were sharpened in this way.
    """
    path = Path(model_folder).absolute().parent / "results.json"
    try:
        results = read_json(path, "run 'medclip-debias evaluate' to write it")
    except UserError:
        return NOT_MEASURED
    maps, options = results.get("maps"), results.get("options", {})
    if not isinstance(maps, dict) or model_hash not in (None, results.get("model_hash")):
        return NOT_MEASURED
    if not isinstance(options, dict):
        return NOT_MEASURED
    if (options.get("method", "similarity"), options.get("sharpen", "none")) != (method, sharpen):
        return NOT_MEASURED
    return None if maps.get("validated") is True else str(maps.get("sentence") or NOT_MEASURED)
