"""What ``results.json`` holds, and how the file is read.

Keys that this version does not know are kept, not refused, so that an older version can read what
a newer one of the same format wrote.
docs/results.md says the same in words, docs/results.schema.json as JSON Schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from medclip_debias.errors import UserError
from medclip_debias.evaluation.record.part import Part
from medclip_debias.evaluation.record.tasks import (
    Grounding,
    Laterality,
    Progression,
    Retrieval,
    Segmentation,
    SentenceBoxes,
    StudyRetrieval,
    Triplets,
)
from medclip_debias.evaluation.record.zero_shot import ZeroShot
from medclip_debias.files import read_json

FORMAT = 2
"""Version of ``results.json``."""


class Counts(Part):
    """What was looked at."""

    images: int = Field(description="Images encoded.")
    labelled_images: int | None = Field(None, description="Images with labels.")
    phrases: int | None = Field(None, description="Phrases.")
    asked_sentences: int | None = Field(None, description="Sentences asked, each of one image.")
    sentences: int | None = Field(None, description="Distinct sentences encoded.")
    cut_sentences: int | None = Field(None, description="Sentences longer than the encoder reads.")


class SelfTest(Part):
    """Whether the model still gives the scores that were stored with it."""

    status: Literal["passed", "weights", "tokens", "drift", "damaged", "absent", "off"] = Field(
        description="Outcome (docs/results.md)."
    )
    largest_difference: float | None = Field(None, description="Of any stored number.")
    tolerance: float | None = Field(None, description="Largest that passes on this device.")
    sentence: str | None = Field(None, description="The warning, when there was one.")


class Archive(Part):
    """What a model was trained on, or is tested on."""

    kind: str | None = Field(description="Kind of source; null where the model does not say.")
    synthetic: bool | None = Field(description="Whether it is a phantom.")
    data_hash: str | None = Field(description="Names the prepared set's content.")


class Archives(Part):
    """Whether the model is tested on the archive that it was trained on."""

    model: Archive = Field(description="What the model was trained on.")
    data: Archive = Field(description="What it is tested on.")
    relation: Literal["same set", "same archive", "another archive", "unknown"] = Field(
        description="How the two are related."
    )


class MapsValidation(Part):
    """Whether maps were held against boxes of real radiographs."""

    validated: bool = Field(description="They score higher inside the right boxes than others'.")
    real: bool = Field(description="Whether boxes on real radiographs were measured.")
    phrases: int = Field(description="Phrases measured on real radiographs.")
    boxes: int = Field(description="Their boxes.")
    sentence: str | None = Field(description="What to say beside every map; null if validated.")


class PresetResults(Part):
    """The same predictions as a published protocol counts them (docs/protocols.md)."""

    about: str = Field(description="What the preset does.")
    paper: str = Field(description="Where it is from.")
    follows: list[dict[str, Any]] = Field([], description="Published code that it follows.")
    lacking: list[str] = Field([], description="What is not published, or not taken over.")
    zero_shot: dict[str, Any] | None = Field(None, description="Its metrics, and per class.")
    grounding: dict[str, Any] | None = Field(None, description="Its metrics, and per category.")
    study_retrieval: dict[str, Any] | None = Field(None, description="Its metrics.")


class Results(Part):
    """The content of ``results.json``."""

    format: Literal[2] = Field(description="Version of this file.")
    split: str = Field(description="Split of the images.")
    zero_shot: ZeroShot | None = Field(None, description="Zero-shot classification.")
    grounding: Grounding | None = Field(None, description="Phrase grounding.")
    sentence_boxes: SentenceBoxes | None = Field(
        None, description="Boxes for sentences that may not be in the image."
    )
    retrieval: Retrieval | None = Field(None, description="Box-sentence retrieval.")
    study_retrieval: StudyRetrieval | None = Field(None, description="Whole-study retrieval.")
    triplets: Triplets | None = Field(None, description="Report triplets.")
    laterality: Laterality | None = Field(None, description="Sentences against their mirrors.")
    segmentation: Segmentation | None = Field(None, description="Maps against masks.")
    progression: Progression | None = Field(None, description="Findings over time.")
    maps: MapsValidation | None = Field(None, description="Whether maps were shown to be right.")
    presets: dict[str, PresetResults] = Field({}, description="By preset, beside our own.")
    skipped: dict[str, str] = Field({}, description="Protocols left out, and why.")
    notes: list[str] = Field([], description="What a reader must know, in sentences.")
    counts: Counts | None = Field(None, description="What was looked at.")
    data_hash: str = Field(description="64 hex digits naming the prepared set's content.")
    model_hash: str | None = Field(description="16 hex digits naming the model's content.")
    code_hash: str | None = Field(None, description="16 hex digits naming the package's files.")
    seed: int = Field(description="Of the bootstrap.")
    prompts: dict[str, Any] = Field({}, description="The prompt set, word for word.")
    options: dict[str, Any] = Field({}, description="Every choice behind the metrics.")
    model: dict[str, Any] = Field({}, description="Architecture, preprocessing, provenance.")
    archives: Archives | None = Field(None, description="The model's archive, and this one.")
    data: dict[str, Any] = Field({}, description="Source, counts, splits, funnel, settings.")
    self_test: SelfTest | None = Field(None, description="The model's golden samples.")
    versions: dict[str, str] = Field({}, description="Versions of what computed the metrics.")
    timing: dict[str, float | None] = Field({}, description="Seconds taken.")


def read_results(path: Path) -> dict[str, Any]:
    """Read and check ``results.json``; the content as it stands in the file.

    Raises:
        UserError: no such file, no JSON, another format, or a part that is missing or wrong.
    """
    content = read_json(path, "run 'medclip-debias evaluate' to write it")
    check_results(content, str(path))
    return content


def check_results(content: Any, where: str) -> None:
    """Refuse what is no results file, in one sentence that names the first wrong key.

    Raises:
        UserError: as said.
    """
    if not isinstance(content, dict):
        raise UserError(f"{where}: is not a results file; run 'evaluate' again.")
    if content.get("format") != FORMAT:
        raise UserError(
            f"{where}: results of format {content.get('format')!r}, but this version reads format "
            f"{FORMAT}; run 'evaluate' again."
        )
    try:
        Results.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise UserError(
            f"{where}: is damaged at '{place}' ({message}); run 'evaluate' again."
        ) from None


def json_schema() -> str:
    """The JSON Schema of `Results`, as the site holds it."""
    schema = Results.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2) + "\n"
