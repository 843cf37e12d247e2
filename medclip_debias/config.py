"""Validated settings: pydantic models of what files hold (`medclip_debias.settings_files`).

A setting that is unknown, of the wrong type or out of range is one sentence that names the
key and the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
    model_validator,
)

from medclip_debias.errors import UserError, did_you_mean


class Settings(BaseModel):
    """Base of every settings model: immutable, and no key that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


S = TypeVar("S", bound=BaseModel)


# --------------------------------------------------------------------------- preprocessing

WindowPolicy = Literal["first", "none"]
Fit = Literal["pad", "crop", "squash"]
Levels = Literal["stretched", "as_stored"]
Resample = Literal["area", "bilinear", "bicubic", "lanczos"]

FRONTAL_VIEWS = (
    "AP",
    "AP Supine",
    "AP Erect",
    "AP Semi Erect",
    "AP Upright",
    "PA",
    "PA Erect",
    "Frontal",
)
"""View positions that count as frontal by default."""
_POSTERIOR = re.compile(r"\b(?:ANTERO ?POSTERIOR|POSTERO ?ANTERIOR)\b")  # DICOM's CID 4010
LATERAL_VIEW, ALL_VIEWS = "LATERAL", "ALL"
"""Words for all lateral views, and for all views that are stated, among names of views."""


def plain_view(view: str) -> str:
    """Return a view position as it is compared.

    >>> plain_view("ap_semi-erect "), plain_view("postero-anterior (Erect)")
    ('AP SEMI ERECT', 'PA ERECT')
    """
    plain = " ".join(re.sub(r"[_()-]", " ", view).split()).upper()
    return _POSTERIOR.sub(lambda way: "AP" if way[0].startswith("A") else "PA", plain)


class PrepareSettings(Settings):
    """How a file becomes one row of the prepared set (stored with it, and with every model).

    ``size`` is the side of the stored square in pixels. Intensities are clipped at the
    percentiles ``clip`` of the whole image (a DICOM window, when present, is applied first),
    then stretched to 0..255; ``equalize`` adds the histogram equalisation of MIMIC-CXR-JPG.
    ``levels: as_stored`` leaves the grey levels of 8-bit images as they are in the file, without
    clipping; deeper images are stretched all the same.
    Of several windows the ``first`` is applied; ``window: none`` leaves them all out. ``fit``
    decides what becomes the square: ``pad`` keeps the whole image and adds black bands, ``crop``
    keeps the central square whose side is the image's shorter one, ``squash`` resizes the whole
    image whatever its proportions. ``resample`` is the filter:
    ``area`` (the mean of the pixels covered; bilinear when enlarging), or Pillow's antialiased
    ``bilinear``, ``bicubic`` or ``lanczos``, which other groups' models were published with.
    """

    size: int = Field(512, ge=16, le=4096)
    clip: tuple[float, float] = (0.5, 99.5)
    equalize: bool = False
    window: WindowPolicy = "first"
    fit: Fit = "pad"
    resample: Resample = "area"
    levels: Levels = "stretched"

    @model_validator(mode="after")
    def _ordered(self) -> PrepareSettings:
        low, high = self.clip
        if not 0 <= low < high <= 100:
            raise ValueError(f"clip must be two rising percentiles in 0..100, got {low}, {high}")
        if self.levels == "as_stored" and self.equalize:
            raise ValueError("levels as_stored and equalize exclude each other")
        return self

    def command_line(self) -> str:
        """The options of ``medclip-debias prepare`` that prepare a set in this way.

        >>> PrepareSettings(size=224, clip=(0, 100), fit="crop").command_line()
        '--size 224 --clip 0 100 --window first --fit crop --resample area'
        """
        words = f"--size {self.size} --clip {self.clip[0]:g} {self.clip[1]:g} "
        words += "--equalize " if self.equalize else ""
        words += f"--window {self.window} --fit {self.fit} --resample {self.resample}"
        return words if self.levels == "stretched" else f"{words} --levels {self.levels}"


class SelectionSettings(Settings):
    """Which images and studies of a source enter the prepared set.

    ``views`` are the view positions that are taken (upper or lower case, blanks and underscores
    alike); ``frontal`` and ``lateral`` stand for all names of such views, ``all`` for every view
    that is stated. ``blank_view`` decides on images whose view position is blank.
    ``multi_view`` decides on studies with several such images: ``all`` of them, ``one_at_random``
    (a function of ``seed`` and the study), or ``pa_first`` (one, a PA view if there is one); the
    one is a frontal view where there is one. Studies with boxes keep all their images.
    ``without_sentence`` decides on images whose study has no usable sentence: ``drop`` them,
    ``keep_for_evaluation`` those outside training whose study has labels or which have boxes, or
    ``keep`` those in training, too.
    """

    views: tuple[str, ...] = FRONTAL_VIEWS
    blank_view: Literal["exclude", "include"] = "exclude"
    multi_view: Literal["all", "one_at_random", "pa_first"] = "all"
    without_sentence: Literal["drop", "keep_for_evaluation", "keep"] = "keep_for_evaluation"
    seed: int = Field(0, ge=0)

    @field_validator("views")
    @classmethod
    def _all_names(cls, views: tuple[str, ...]) -> tuple[str, ...]:
        """Write ``frontal`` out, so that it is the same as the names it stands for."""
        names: list[str] = []
        for view in views:
            names += FRONTAL_VIEWS if plain_view(view) == "FRONTAL" else (view,)
        return tuple(dict.fromkeys(names))

    @model_validator(mode="after")
    def _some_view(self) -> SelectionSettings:
        if not any(view.strip() for view in self.views):
            raise ValueError("views must name at least one view position, as in AP,PA")
        return self


class Preprocessing(Settings):
    """Everything between a file and the network's input; travels inside the model folder.

    The network sees the central ``input_size`` square of the prepared image (a random one in
    training), divided by 255, minus ``mean``, over ``std``.
    """

    prepare: PrepareSettings = PrepareSettings()
    input_size: int = Field(480, ge=16, le=4096)
    mean: float = 0.5
    std: float = Field(0.25, gt=0)

    @model_validator(mode="after")
    def _crop_fits(self) -> Preprocessing:
        if self.input_size > self.prepare.size:
            raise ValueError(
                f"input_size {self.input_size} is larger than the prepared size {self.prepare.size}"
            )
        return self


# ------------------------------------------------------------------------- prepared sets


class SetSettings(Settings):
    """One of several prepared sets that a run learns from together (docs/training.md).

    ``weight``: its share of a batch is its weight over the sum of all; with 0 it is not trained on,
    but its patients are kept out of training elsewhere. ``patients``: sets with the same name share
    patient ids; by default sets of the same archive do. ``batches``: sets with the same name share
    batches that hold no other set; by default every batch is of all sets. ``boxes``: files of
    boxes that teach (``train.boxes``), beside those that the set was prepared with.
    """

    path: Path
    weight: float = Field(1.0, ge=0)
    patients: str | None = Field(None, min_length=1)
    batches: str = ""
    boxes: tuple[Path, ...] = ()

    @model_validator(mode="after")
    def _taught(self) -> SetSettings:
        if self.boxes and not self.weight:
            raise ValueError("a set of weight 0 teaches nothing; leave out its boxes")
        return self

    @model_validator(mode="before")
    @classmethod
    def _plain_path(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str | Path) else value


_SEVERAL = ("one set", "several sets")


Prepared = Annotated[
    Annotated[Path, Tag(_SEVERAL[0])]
    | Annotated[tuple[SetSettings, ...], Tag(_SEVERAL[1]), Field(min_length=1)],
    Discriminator(lambda value: _SEVERAL[isinstance(value, list | tuple)]),
]
"""A prepared set, or several that are learned from together."""


# ------------------------------------------------------------------------------- the model


class ImageEncoderSettings(Settings):
    """Region encoder (docs/models.md).

    ``arch`` is one of `medclip_debias.models.image_encoder.IMAGE_ENCODERS`. ``weights`` is a local
    file or folder, ``library`` (torchvision's own) or none. ``name`` is timm's name of the model,
    if the folder does not say it. ``blocks`` is the number of new transformer blocks on the trunk.
    """

    arch: str = Field("resnet18", pattern=r"^\w+$")
    weights: Path | Literal["library"] | None = None
    name: str | None = Field(None, pattern=r"^[\w.]+$")
    blocks: int = Field(0, ge=0, le=24)


class TextEncoderSettings(Settings):
    """Sentence encoder: ``folder`` holds a BERT-like model and its tokenizer (docs/models.md).

    ``pooling``: the vector of [CLS] or the mean over the tokens; none takes what a
    sentence-transformers folder says, and [CLS] for any other.
    """

    folder: Path
    max_tokens: int = Field(64, ge=8, le=512)
    use_projection_head: bool = True
    pooling: Literal["cls", "mean"] | None = None


class SimilaritySettings(Settings):
    """Similarity of regions and a sentence (docs/methods.md, Similarity).

    ``k``, ``temperature`` and ``local_weight`` are of LSE+NL; ``temperature`` is also where the
    learned one of ``attention`` and ``local_words`` starts, and ``k`` the sharpness over words.
    ``attention_value`` is what ``attention`` mixes, ``layers`` and ``heads`` are of
    ``cross_attention``.

    ``chunk``: images whose region scores are held at a time: a number, 0 for the whole batch, or
    none to choose by size. It changes memory and speed, not the result.
    """

    # fmt: off
    aggregator: Literal[
        "lse_nl", "lse", "nl", "global", "max", "mean",
        "attention", "cross_attention", "local_words",
    ] = "lse_nl"
    # fmt: on
    non_local: Literal["critical_region", "self_attention", "mean"] = "critical_region"
    k: float = Field(10.0, gt=0)
    temperature: float = Field(10.0, gt=0)
    local_weight: float = Field(0.5, ge=0, le=1)
    initial_scale: float = Field(14.0, ge=1, le=100)
    chunk: int | None = Field(None, ge=0)
    attention_value: Literal["similarity", "region"] = "similarity"
    layers: int = Field(2, ge=1, le=12)
    heads: int = Field(4, ge=1, le=64)

    def misfit(self, dim: int) -> str | None:
        """Why it cannot compare vectors of width ``dim``; None where it can."""
        if self.aggregator == "cross_attention" and dim % self.heads:
            return f"similarity.heads {self.heads} does not divide dim {dim}"
        return None


class ModelSettings(Settings):
    """Architecture of the dual encoder; ``dim`` is the shared embedding's width."""

    image: ImageEncoderSettings = ImageEncoderSettings()
    text: TextEncoderSettings
    dim: int = Field(128, ge=2, le=16_384)
    similarity: SimilaritySettings = SimilaritySettings()

    @model_validator(mode="after")
    def _heads_fit(self) -> ModelSettings:
        if reason := self.similarity.misfit(self.dim):
            raise ValueError(reason)
        return self

    @property
    def text_folder(self) -> Path | None:
        """Folder of the language model that the text encoder starts from."""
        return self.text.folder


class StartSettings(Settings):
    """A run that starts from a trained model, imported or of this project.

    Encoders, projections, tokenizer, preprocessing and learned scale are those of the folder
    ``start_from``. ``similarity``: the model's ``own`` score, which is the cosine of the whole
    image for a peer, or a similarity of its regions (`SimilaritySettings`). ``max_tokens``: none
    for as many as the model reads.
    """

    start_from: Path
    similarity: Literal["own"] | SimilaritySettings = "own"
    max_tokens: int | None = Field(None, ge=8, le=512)

    @property
    def text_folder(self) -> None:
        """No language model: what needs one has to name it."""


# ------------------------------------------------------------------------------- training


class AugmentSettings(Settings):
    """Random crop of ``input_size`` and random brightness / contrast (the paper's, 3.2).

    ``where`` they are done, ``cpu`` (in the loader's threads) or ``device`` (a whole batch at
    once, for a GPU that waits for images), does not change the pixels.
    """

    crop: bool = True
    brightness: float = Field(0.2, ge=0, le=1)
    contrast: float = Field(0.2, ge=0, le=1)
    where: Literal["cpu", "device"] = "cpu"

    @property
    def changes(self) -> bool:
        """Whether it changes images at all."""
        return self.crop or self.brightness > 0 or self.contrast > 0


class FeatureSettings(Settings):
    """Features of the frozen part of an encoder, computed once (docs/training.md).

    Attributes:
        cache: read the output of the frozen part of the image encoder from a file.
        dtype: of the file.
        augmentations: number of augmentations of each image, of which a step takes one at random;
            0 augments anew in every step. It applies without ``cache`` too.
        text: read the output of the frozen text encoder from a file.
        folder: of the files; by default ``features`` in the prepared set.
    """

    cache: bool = False
    dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    augmentations: int = Field(0, ge=0, le=1000)
    text: bool = False
    folder: Path | None = None


# ------------------------------------------------------------------------------- the loss


class Schedule(Settings):
    """How strongly a correction acts, by the share of the run that is done.

    0 before ``start``; from there 1 (``constant``), or from 1 down to 0 at ``end`` along a line
    (``linear``) or half a cosine; 0 after ``end``.

    Example:
        >>> fading = Schedule(end=0.4, shape="linear")
        >>> [fading.strength(k / 10) for k in (0, 2, 4, 9)]
        [1.0, 0.5, 0.0, 0.0]
    """

    start: float = Field(0.0, ge=0, le=1)
    end: float = Field(1.0, ge=0, le=1)
    shape: Literal["constant", "linear", "cosine"] = "constant"

    @model_validator(mode="after")
    def _takes_time(self) -> Schedule:
        if self.end <= self.start:
            raise ValueError(f"end {self.end} must be larger than start {self.start}")
        return self

    def strength(self, done: float) -> float:
        """Strength in [0, 1] when the share ``done`` of the run's steps lies behind."""
        if done < self.start or (done >= self.end and self.end < 1):
            return 0.0
        place = min((done - self.start) / (self.end - self.start), 1.0)
        cosine = 0.5 * (1 + math.cos(math.pi * place))
        return {"constant": 1.0, "linear": 1 - place, "cosine": cosine}[self.shape]


# ----------------------------------------------------------------------------- validation


def validate(model: type[S], content: Mapping[str, Any], where: str, prefix: str = "") -> S:
    """Validate ``content`` as ``model``; a failure names the first bad key and ``where``.

    Args:
        model: settings class.
        content: nested mapping.
        where: file (or command line) the content came from, for the message.
        prefix: dotted place of ``content`` in that file, as in ``"loss."``.
    """
    try:
        place = {"where": where, "prefix": prefix}
        return model.model_validate(content, context=place)
    except ValidationError as error:
        raise UserError(_sentence(model, error, where, prefix)) from None


def _sentence(model: type[BaseModel], error: ValidationError, where: str, prefix: str) -> str:
    problems = error.errors(include_url=False)
    # A misspelt key shows as "unknown" and often also as "missing": the first tells more.
    first = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    place, known = _resolve(model, first["loc"])
    key = (prefix + ".".join(place)).rstrip(".") or "the settings"
    if first["type"] == "extra_forbidden":
        hint = did_you_mean(place[-1], known)
        return f"{where}: unknown setting '{key}'{hint}; known here: {', '.join(known)}."
    if first["type"] == "missing":
        return f"{where}: setting '{key}' is missing; add it."
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    value = "" if isinstance(first["input"], Mapping) else f" (got {first['input']!r})"
    return f"{where}: setting '{key}' is wrong: {message}{value}."


def _resolve(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """The key a user wrote for pydantic's ``loc``, and the keys known beside its last part."""
    place: list[str] = []
    current: list[type[BaseModel]] = [model]
    for part in loc:
        if len(current) > 1:  # a union: this part is its tag, or its kind
            fields = [(m, m.model_fields.get("kind")) for m in current]
            current = [m for m, kind in fields if part in (m.__name__, kind and kind.default)]
            continue
        if part in _SEVERAL:  # nobody wrote the tag either
            continue
        if isinstance(part, int) and part != loc[-1]:  # of a list
            place.append(str(part))
            continue
        place.append(str(part))
        if part == loc[-1]:
            break
        field = current[0].model_fields.get(str(part)) if current else None
        current = _models_in(field.annotation) if field else []
    return place, list(current[0].model_fields) if current else []


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def settings_hash(settings: BaseModel) -> str:
    """Return 16 hex digits that name these settings: equal settings, equal digits."""
    return json_hash(settings.model_dump(mode="json"))


def json_hash(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of ``value`` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
