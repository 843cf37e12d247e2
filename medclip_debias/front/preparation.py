"""`prepare` with plain keyword arguments, named as the options of ``medclip-debias prepare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from medclip_debias.config import PrepareSettings, SelectionSettings, Settings, validate
from medclip_debias.data.prepare import Reading
from medclip_debias.data.prepare import prepare as run
from medclip_debias.data.text.reports import ReportSettings
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.models.load import expected_images

if TYPE_CHECKING:
    from medclip_debias.data.prepare.chunks import Progress, Say
    from medclip_debias.data.store import PreparedSet

_PATHS = ("phrases", "reports", "tables", "split_file")


class PrepareOptions(TypedDict, total=False):
    """What `prepare` takes beside its own arguments; docs/data.md says what each does."""

    size: int
    clip: tuple[float, float]
    equalize: bool
    window: str
    fit: str
    resample: str
    levels: str
    views: Sequence[str]
    blank_view: str
    multi_view: str
    without_sentence: str
    seed: int
    kind: str
    phrases: Path | str | None
    reports: Path | str | None
    labels: str
    language: str
    split_seed: int | None
    report_set: Mapping[str, Any]
    tables: Path | str | None
    text_only: bool
    split_file: Path | str | None
    all_test: bool
    label_sentences: bool


def prepare(
    source: Path | str,
    out: Path | str,
    *,
    for_model: Path | str | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
    say: Say | None = None,
    overwrite: bool = False,
    update: bool = False,
    **options: Unpack[PrepareOptions],
) -> PreparedSet:
    """Read a source into a prepared set, on which models are trained and evaluated.

    A run that was killed resumes when it is called again. The set's ``funnel`` counts what each
    step skipped.

    Args:
        source: folder or file; docs/data.md lists the kinds.
        out: folder to make.
        for_model: model folder; the images are prepared as this model expects them.
        workers: processes; all processors by default.
        cluster: a Dask scheduler (``tcp://HOST:8786``) or a file of Slurm jobs, instead of
            processes.
        progress: called with (done, total) as the work proceeds.
        say: called with each message, such as ``print``.
        overwrite: replace the set at ``out``.
        update: prepare what changed since the set at ``out`` was prepared, and keep the rest.
        options: `PrepareOptions`; ``report_set`` maps names to values, as ``--report-set`` does.

    Raises:
        TypeError: an option does not exist.
        UserError: a value is invalid, the source cannot be used, or ``out`` exists.
    """
    given: dict[str, Any] = dict(options)
    known = PrepareOptions.__annotations__
    for name in given:
        if name not in known:
            raise TypeError(f"prepare() has no option '{name}'{did_you_mean(name, known)}")
    rows = _taken(given, PrepareSettings)
    settings = validate(PrepareSettings, rows, "prepare")
    if for_model is not None:
        settings = _as_expected(Path(for_model), rows)
    reading = {field.name: given[field.name] for field in fields(Reading) if field.name in given}
    reading |= {key: Path(reading[key]) for key in _PATHS if reading.get(key) is not None}
    if "labels" in given:
        reading["labeller"] = given["labels"]
    text = dict(given.get("report_set", {}))
    if given.get("language", "auto") != "auto":
        text["language"] = given["language"]
    reading["text"] = validate(ReportSettings, text, "prepare", "report_set.")
    return run(
        Path(source),
        Path(out),
        settings,
        selection=validate(SelectionSettings, _taken(given, SelectionSettings), "prepare"),
        reading=Reading(**reading),
        workers=workers,
        cluster=cluster,
        progress=progress,
        say=say,
        overwrite=overwrite,
        update=update,
    )


def _taken(given: Mapping[str, Any], settings: type[Settings]) -> dict[str, Any]:
    return {name: given[name] for name in settings.model_fields if name in given}


def _as_expected(model: Path, asked: Mapping[str, Any]) -> PrepareSettings:
    """The model's settings; what was given beside them must be the same."""
    wanted = expected_images(model).prepare
    chosen = validate(PrepareSettings, wanted.model_dump() | dict(asked), "prepare")
    for name in asked:
        if getattr(chosen, name) != getattr(wanted, name):
            raise UserError(
                f"{name}={getattr(chosen, name)!r} is not what {model} expects"
                f" ({getattr(wanted, name)!r}); leave it out, since for_model sets it."
            )
    return wanted
