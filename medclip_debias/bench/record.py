"""What one model reached on one card: ``record.json`` beside the evaluation's own files.

A benchmark's folder is ``RESULTS/MODEL/CARD@VERSION/`` with ``results.json`` and ``items/`` as
`medclip_debias.evaluation.evaluate` writes them, and ``record.json`` (`Record`); ``RESULTS/MODEL/
model.json`` (`ModelRecord`) says whose they are. Names and figures only: no id, no report.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from medclip_debias.config import Settings, validate
from medclip_debias.files import read_json, write_json

FORMAT = 1
RECORD, MODEL = "record.json", "model.json"


class Figure(Settings):
    """A metric with its 95% interval over patients, where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


class CardName(Settings):
    """Which card was run."""

    name: str
    version: int
    hash: str


class Judged(Settings):
    """What was judged.

    Attributes:
        archive: kind of source.
        set_hash: content of the prepared set.
        list_hash: of the ids of the judged images; equal for two models that saw the same ones.
        wanted: images that the card's list has; None where nobody has said.
        found: of them, on the disk and readable.
        missing: ``wanted - found``, or what the preparation counted as missing.
    """

    archive: str
    set_hash: str
    list_hash: str
    wanted: int | None
    found: int
    missing: int = 0


class Record(Settings):
    """A model on a card.

    Attributes:
        status: ``incomplete`` when more than 1% of the card's images are missing.
        metrics: the card's, by key; a metric that could not be measured is in ``reasons``.
        seconds: of ``encode`` and ``score``.
        command: that repeats it.
    """

    format: Literal[1] = 1
    card: CardName
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
    """Whose results stand in a folder.

    Attributes:
        name: as tables show it.
        hash: of the weights.
        kind: ``medclip_debias`` or the peer's.
        licence: of the weights, as the model's folder says it.
        synthetic: whether it was trained on generated radiographs.
        provenance: training set's name, seed, and what else a reader may want; no paths.
    """

    format: Literal[1] = 1
    name: str
    hash: str
    kind: str = "medclip_debias"
    licence: str | None = None
    synthetic: bool = False
    provenance: dict[str, Any] = Field({})


def read_record(folder: Path) -> Record:
    """Read ``folder/record.json``.

    Raises:
        UserError: it is missing, damaged, or of another format.
    """
    return validate(Record, read_json(folder / RECORD, "run 'bench' again"), str(folder / RECORD))


def write_record(folder: Path, record: Record) -> None:
    """Write ``folder/record.json`` as a whole."""
    write_json(folder / RECORD, record.model_dump(mode="json"))
