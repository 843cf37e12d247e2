"""The models of a benchmark: what they are called, and what is said of them in public."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.bench.record import MODEL, ModelRecord
from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.evaluation.archives import trained_on
from medclip_debias.files import read_json, write_json
from medclip_debias.models.expected_images import expected_images
from medclip_debias.models.synthetic import trained_on_synthetic

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

CACHE = "cache"
"""Folder of the results that holds sets and vectors: it stays on this machine."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")


def named_models(words: Sequence[str]) -> dict[str, Path]:
    """Folders of models by the names that tables show.

    Args:
        words: ``FOLDER``, named as the folder (as the run, where it is a run's ``model``), or
            ``NAME=FOLDER``.

    Raises:
        UserError: no model folder, a name that cannot be a folder's, or one for two models.
    """
    found: dict[str, Path] = {}
    for word in words:
        name, equals, rest = word.partition("=")
        if Path(word).exists() or not equals:
            folder = Path(word)
            place = folder.absolute()
            name = place.parent.name if place.name == "model" else place.name
        else:
            folder = Path(rest)
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such model folder.")
        expected_images(folder)
        if not _NAME.fullmatch(name) or name == CACHE:
            raise UserError(
                f"'{name}' cannot name a model's folder of results; write NAME={folder} with"
                " letters, digits, dots and dashes."
            )
        if name in found:
            raise UserError(f"Two models are called '{name}'; write NAME=FOLDER for one of them.")
        found[name] = folder
    return found


def record_of(name: str, model: ImageTextModel) -> ModelRecord:
    """What is said of a model: no path of this machine among it."""
    provenance = model.provenance
    train = provenance.get("train")
    said: dict[str, Any] = {"trained_on": trained_on(provenance)}
    if isinstance(train, Mapping):
        said["train"] = {key: train.get(key) for key in ("seed", "steps", "batch_size")}
    for key in ("loss", "imported", "studies", "weights", "best_step"):
        if key in provenance:
            said[key] = provenance[key]
    licence = provenance.get("licence", provenance.get("license"))
    return ModelRecord(
        name=name,
        hash=str(model.content_hash),
        kind=str(getattr(model.settings, "kind", "medclip_debias")),
        licence=licence if isinstance(licence, str) else None,
        synthetic=trained_on_synthetic(provenance) is True,
        provenance=without_places(said, {}),
    )


def check_model(out: Path, record: ModelRecord) -> None:
    """See that ``OUT/NAME`` is free or the same model's.

    Raises:
        UserError: another model's results are there.
    """
    folder = out / record.name
    if (folder / MODEL).is_file():
        known = read_model(folder)
        if known.hash != record.hash:
            raise UserError(
                f"{folder}: holds results of another model of that name ({known.hash}, not"
                f" {record.hash}); write OTHERNAME=FOLDER, or give another --out."
            )


def keep_model(out: Path, record: ModelRecord) -> None:
    """Write ``OUT/NAME/model.json``, unless it says so already."""
    path = out / record.name / MODEL
    if not path.is_file() or read_model(path.parent) != record:
        write_json(path, record.model_dump(mode="json"))


def read_model(folder: Path) -> ModelRecord:
    """Read ``folder/model.json``.

    Raises:
        UserError: it is missing, damaged, or of another format.
    """
    path = folder / MODEL
    return validate(ModelRecord, read_json(path, "run 'bench' again"), str(path))


def without_places(value: Any, places: Mapping[str, str]) -> Any:
    """The same JSON value without paths of this machine.

    Args:
        value: of JSON.
        places: absolute folders, and the words that stand for them within sentences. A text that
            is an absolute path altogether becomes its last part.

    >>> without_places({"a": "/data/me/lm", "b": ["/x/set: is empty."]}, {"/x/set": "SET"})
    {'a': 'lm', 'b': ['SET: is empty.']}
    """
    if isinstance(value, Mapping):
        return {key: without_places(item, places) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(item, places) for item in value]
    if isinstance(value, str):
        for place in sorted(places, key=len, reverse=True):
            value = value.replace(place, places[place])
        if value.startswith("/") and " " not in value:
            return Path(value).name
    return value
