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
    for name in options:
        if name not in PrepareOptions.__annotations__:
            hint = did_you_mean(name, PrepareOptions.__annotations__)
            raise TypeError(f"prepare() has no option '{name}'{hint}")
    settings, reading = parsed_options(options, for_model, "prepare")
    return run(
        Path(source),
        Path(out),
        settings,
        workers=workers,
        cluster=cluster,
        progress=progress,
        say=say,
        overwrite=overwrite,
        update=update,
        **reading,
    )


def parsed_options(
    options: Mapping[str, Any], for_model: Path | str | None, where: str
) -> tuple[PrepareSettings, dict[str, Any]]:
    """How images become rows, and ``selection`` and ``reading`` of a source.

    Args:
        options: those of `PrepareOptions` that were given.
        for_model: model folder, whose settings of the images are taken.
        where: the options are from, for the message of a bad one.
    """
    settings = validate(PrepareSettings, _fields_of(PrepareSettings, options), where)
    if for_model is not None:
        from medclip_debias.models.load import expected_images

        expected = expected_images(Path(for_model)).prepare
        for name in settings.model_fields_set:
            value, wanted = getattr(settings, name), getattr(expected, name)
            if value != wanted:
                raise UserError(
                    f"{name}={value!r} is not what {for_model} expects ({wanted!r}); leave it out,"
                    " since the model sets it."
                )
        settings = expected
    sources = {
        field.name: options[field.name] for field in fields(Reading) if field.name in options
    }
    sources |= {key: Path(sources[key]) for key in _PATHS if sources.get(key) is not None}
    if "labels" in options:
        sources["labeller"] = options["labels"]
    text = dict(options.get("report_set", {}))
    if (language := sources.pop("language", "auto")) != "auto":
        text["language"] = language
    sources["text"] = validate(ReportSettings, text, where, "report_set.")
    selection = validate(SelectionSettings, _fields_of(SelectionSettings, options), where)
    return settings, {"selection": selection, "reading": Reading(**sources)}


def _fields_of(settings: type[Settings], options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in settings.model_fields if name in options}
