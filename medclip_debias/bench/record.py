"""What one model reached on one card: ``record.json`` beside the evaluation's own files.

A benchmark's folder is ``RESULTS/MODEL/CARD@VERSION/`` with ``results.json`` and ``items/`` as
`medclip_debias.evaluation.evaluate` writes them, and ``record.json`` (`Record`); ``RESULTS/MODEL/
model.json`` (`ModelRecord`) says whose they are. Names and figures only: no id, no report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field

from medclip_debias.bench.card import MeasuredCard
from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError
from medclip_debias.evaluation.archives import trained_on
from medclip_debias.files import is_there, read_json, write_json
from medclip_debias.models.load import expected_images
from medclip_debias.models.synthetic import trained_on_synthetic

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

RECORD, MODEL, RESULTS = "record.json", "model.json", "results.json"
CACHE = "cache"
"""Folder of the results that holds prepared sets and vectors: it stays on this machine."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
"""A model's name, which is its folder's."""
INCOMPLETE = 0.01
"""Share of a card's images or boxes; where more are missing, its figures are marked incomplete."""
S = TypeVar("S", bound=Settings)


class Figure(Settings):
    """A metric with its 95% interval over patients, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


class Judged(Settings):
    """What was judged.

    Attributes:
        archive: kind of source.
        set_hash: content of the prepared set.
        list_hash: of the ids of the judged images; equal for two models that saw the same ones.
        wanted: images that the card's list has; None where nobody has said.
        found: of them, on the disk and readable.
        missing: ``wanted - found``, or what the preparation counted as missing.
        boxes: boxes that were evaluated; None for a card without boxes.
        boxes_wanted: boxes that the card has; None where nobody has said.
    """

    archive: str
    set_hash: str
    list_hash: str
    wanted: int | None = Field(ge=0)
    found: int = Field(ge=0)
    missing: int = Field(0, ge=0)
    boxes: int | None = Field(None, ge=0)
    boxes_wanted: int | None = Field(None, ge=0)

    @property
    def lacks(self) -> str:
        """More than 1% of the images or boxes that are missing, in words; "" for fewer."""
        wanted = self.found + self.missing if self.wanted is None else self.wanted
        if self.missing > INCOMPLETE * wanted:
            of = "" if self.wanted is None else f" of {self.wanted}"
            return f"{self.missing}{of} images are missing"
        if self.boxes is not None and self.boxes_wanted is not None:
            missing = self.boxes_wanted - self.boxes
            if missing > INCOMPLETE * self.boxes_wanted:
                return f"{missing} of {self.boxes_wanted} boxes are missing"
        return ""

    @property
    def status(self) -> Literal["complete", "incomplete"]:
        """Whether (nearly) every image and box of the card was judged."""
        return "incomplete" if self.lacks else "complete"


class Record(Settings):
    """A model on a card."""

    format: Literal[1] = 1
    card: MeasuredCard
    model_hash: str
    preset: str
    judged: Judged
    status: Literal["complete", "incomplete"]
    metrics: dict[str, Figure]
    reasons: dict[str, str] = Field({})
    notes: tuple[str, ...] = ()
    seconds: dict[str, float] = Field({})
    versions: dict[str, str] = Field({})
    command: str


class ModelRecord(Settings):
    """Whose results stand in a folder."""

    format: Literal[1] = 1
    name: str
    hash: str
    kind: str = "medclip_debias"
    licence: str | None = None
    synthetic: bool = False
    provenance: dict[str, Any] = Field({})


def read_record(folder: Path, root: Path | None = None) -> Record:
    """Read ``folder/record.json``; no link leads out of ``root``."""
    return _read(Record, folder / RECORD, root)


def read_model(folder: Path, root: Path | None = None) -> ModelRecord:
    """Read ``folder/model.json``; see `read_record`."""
    return _read(ModelRecord, folder / MODEL, root)


def _read(kind: type[S], path: Path, root: Path | None) -> S:
    content = read_json(path, "run 'bench' again", limit=16 << 20, folder=root or path.parent)
    return validate(kind, content, str(path))


def named_models(words: Sequence[str]) -> dict[str, Path]:
    """Folders of models by the names that tables show."""
    folders: dict[str, Path] = {}
    for word in words:
        name, equals, rest = word.partition("=")
        if is_there(word) or not equals:
            folder = Path(word)
            place = folder.absolute()
            name = place.parent.name if place.name == "model" else place.name
        else:
            folder = Path(rest)
        if not folder.is_dir():
            raise UserError(f"{folder}: there is no such model folder.")
        expected_images(folder)
        if not NAME.fullmatch(name) or name == CACHE:
            raise UserError(
                f"'{name}' cannot name a model's folder of results; write NAME={folder} with"
                " letters, digits, dots and dashes."
            )
        if name in folders:
            raise UserError(f"Two models are called '{name}'; write NAME=FOLDER for one of them.")
        folders[name] = folder
    return folders


def record_of(name: str, model: ImageTextModel) -> ModelRecord:
    """What is said of a model: no path of this machine among it."""
    provenance = model.provenance
    train = provenance.get("train")
    public: dict[str, Any] = {"trained_on": trained_on(provenance)}
    if isinstance(train, Mapping):
        public["train"] = {key: train.get(key) for key in ("seed", "steps", "batch_size")}
    for key in ("loss", "imported", "studies", "weights", "best_step"):
        if key in provenance:
            public[key] = provenance[key]
    licence = provenance.get("licence", provenance.get("license"))
    return ModelRecord(
        name=name,
        hash=str(model.content_hash),
        kind=str(getattr(model.settings, "kind", "medclip_debias")),
        licence=licence if isinstance(licence, str) else None,
        synthetic=trained_on_synthetic(provenance) is True,
        provenance=without_places(public, {}),
    )


def check_model(out: Path, record: ModelRecord) -> None:
    """See that ``OUT/NAME`` is free or the same model's."""
    folder = out / record.name
    if (folder / MODEL).exists():
        known = read_model(folder)
        if known.hash != record.hash:
            raise UserError(
                f"{folder}: holds results of another model of that name ({known.hash}, not"
                f" {record.hash}); write OTHERNAME=FOLDER, or give another --out."
            )


def keep_model(out: Path, record: ModelRecord) -> None:
    """Write ``OUT/NAME/model.json``, unless it says so already."""
    folder = out / record.name
    if not (folder / MODEL).exists() or read_model(folder) != record:
        write_json(folder / MODEL, record.model_dump(mode="json"))


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
