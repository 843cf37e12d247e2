"""What of a model folder may be seen by others: files by name, and a provenance without paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.models.limits import read_model_json

CARD = "README.md"
EVAL_RESULTS = ".eval_results"
FILES = ("config.json", "model.safetensors", "tokenizer.json", "golden.json", CARD)
"""Files of a model folder that go out; of `EVAL_RESULTS` its YAML files go, too."""
_PLACES = ("prepared", "out", "model", "preprocessing")
"""Fields of a provenance that name this machine's folders, or say again what the folder says."""
_ABSOLUTE = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\\/](?:[^\s\\/]+[\\/])*([^\s\\/]+)")


def public_config(folder: Path) -> dict[str, Any]:
    """``config.json`` as others may see it: the same model and hash, no path of this machine."""
    if (folder / "peer.yaml").is_file():
        raise UserError(
            f"{folder}: is a peer, whose weights are its authors' to publish; give a model of this"
            " project."
        )
    content = read_model_json(folder / "config.json")
    if "architecture" not in content or "preprocessing" not in content:
        raise UserError(f"{folder}: is not a model folder of this project; give RUN/model.")
    provenance = content.get("provenance") or {}
    if not isinstance(provenance, Mapping):
        raise UserError(f"{folder}/config.json: the field 'provenance' is not a JSON object.")
    return content | {"provenance": public_provenance(provenance)}


def public_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """The same without paths: of a text that looks like one the last part stays.

    >>> public_provenance({"out": "runs/a", "loss": {"lm": "/home/me/lm"}, "studies": 5})
    {'loss': {'lm': 'lm'}, 'studies': 5}
    """
    kept = {name: value for name, value in provenance.items() if name not in _PLACES}
    cleaned: dict[str, Any] = _without_paths(kept)
    return cleaned


def _without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_paths(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(item) for item in value]
    if not isinstance(value, str):
        return value
    return pathless(value) if " " in value else PurePath(value.replace("\\", "/")).name


def pathless(sentence: str) -> str:
    """A sentence in which the last part of an absolute path stands for it.

    >>> pathless("/home/me/set: new and/or old")
    'set: new and/or old'
    """
    return _ABSOLUTE.sub(r"\1", sentence)
