"""What every verb shares: the application, common options, progress and printed results."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import lru_cache, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer

from medclip_debias.cli.help import SETTINGS, Group, Verb
from medclip_debias.errors import printable, without_patients
from medclip_debias.training.pace import clock

PROGRAM = "medclip-debias"


def option(help: str, *names: str, **more: Any) -> Any:
    """An option of a verb. One that is off by default has no ``--no-`` of its name."""
    return typer.Option(*names, help=help, **more)


def argument(help: str, **more: Any) -> Any:
    """A word of a verb that needs no name."""
    return typer.Argument(help=help, **more)


Quiet = Annotated[
    bool, option("Only results, warnings and errors: no progress, no notes.", "--quiet", "-q")
]
Function = TypeVar("Function", bound=Callable[..., Any])

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


class Verbs(typer.Typer):
    """An application whose verbs all take ``--quiet`` and may show an example under their help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": Group, "rich_markup_mode": None, **settings})

    @property
    def built(self) -> Any:
        """The command of all verbs, built once for these: `demo` runs several of them."""
        return _built(self, *self.registered_commands, *self.registered_groups)

    def __call__(self, *words: Any, **options: Any) -> Any:
        """Run the command."""
        return self.built(*words, **options)

    def command(
        self,
        name: str | None = None,
        *,
        example: str = "",
        panels: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> Callable[[Function], Function]:
        """Register a verb; ``panels`` names the options of each panel of its help."""
        if example:
            rest["epilog"] = f"Example: {PROGRAM} {example}"
        register = super().command(name, **{"cls": Verb, **rest})

        def decorate(function: Function) -> Function:
            register(_as_verb(function, panels or {}))
            return function

        return decorate


@lru_cache(maxsize=2)
def _built(application: typer.Typer, *_registered: object) -> Any:
    return typer.main.get_command(application)


def _as_verb(function: Callable[..., Any], panels: Mapping[str, str]) -> Callable[..., Any]:
    """``function`` with ``--quiet``, which is in force while it runs, and options in panels."""

    @wraps(function)
    def verb(*words: Any, quiet: bool, **options: Any) -> Any:
        before = _quiet.set(quiet or _quiet.get())  # a verb of a quiet `demo` is quiet, too
        try:
            return function(*words, **options)
        finally:
            _quiet.reset(before)

    signature = inspect.signature(function, eval_str=True)
    own = inspect.Parameter(
        "quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet
    )
    parameters = [*signature.parameters.values(), own]
    panel_of = {option: panel for panel, names in panels.items() for option in names.split()}
    if unknown := panel_of.keys() - signature.parameters.keys():
        raise ValueError(f"{function.__name__} has no {', '.join(sorted(unknown))}")
    parameters = [
        each.replace(annotation=_placed(each, panel_of.get(each.name))) for each in parameters
    ]
    verb.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = {each.name: each.annotation for each in parameters}
    return verb


def _placed(parameter: inspect.Parameter, panel: str | None) -> Any:
    """The annotation of an option in its panel, and of a flag without its opposite.

    A text behind the type is the help of an option, or of an argument where there is no default.
    """
    if get_origin(parameter.annotation) is not Annotated:
        return parameter.annotation
    kind, info = get_args(parameter.annotation)
    if isinstance(info, str):
        info = argument(info) if parameter.default is inspect.Parameter.empty else option(info)
    info = copy(info)  # several verbs share one
    info.rich_help_panel = panel
    if parameter.default is False and info.default is ...:  # no name was given
        info.param_decls = (f"--{parameter.name.replace('_', '-')}",)
    return Annotated[kind, info]


app = Verbs(
    name=PROGRAM,
    help="Image-text models of chest radiographs, debiased sentence by sentence.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=dict(SETTINGS),
)


def group(name: str, help: str, kind: type[Group] = Group) -> Verbs:
    """A verb that has verbs of its own."""
    verbs = Verbs(cls=kind, no_args_is_help=True, help=help, context_settings=dict(SETTINGS))
    app.add_typer(verbs, name=name)
    return verbs


AsJson = Annotated[bool, option("Print the results as one JSON object.", "--json")]
ModelFolder = Annotated[Path, "Model folder."]
PreparedFolder = Annotated[Path, "Prepared set."]
Device = Annotated[str, "cpu, cuda, or auto."]
Bootstrap = Annotated[int, option("Resamples; 0 for no intervals.", min=0)]
Seed = Annotated[int, option("Same seed, same bytes.", min=0)]
Loss = Annotated[str | None, "Preset over the file, as debiased_0.05; `losses` lists them."]
RunFile = Annotated[Path, "YAML file, a name that `config list` shows, or the folder of a run."]
Workers = Annotated[int | None, "Processes; default all cores."]
Overrides = Annotated[list[str] | None, argument("Overrides, as train.lr=1e-5 loss.kind=infonce.")]
Cluster = Annotated[str | None, "Dask scheduler (tcp://HOST:8786), or a file of Slurm jobs."]
Overwrite = Annotated[bool, "Replace what is there."]
Prompts = Annotated[str | None, "Prompt set: a name or a YAML file; default the model's."]
Classes = Annotated[str | None, "Classes of the prompt set, as 'Edema,Pneumonia'."]
Labels = Annotated[Path | None, "Label table (CSV, Parquet) instead of the set's labels."]
LabelMap = Annotated[
    str | None, "How labels of other names map to the classes: an archive or a YAML file."
]


def printable_lines(text: str) -> str:
    """Lines of which none can steer a terminal (`medclip_debias.errors.printable`)."""
    return "\n".join(map(printable, text.split("\n")))


def note(sentence: str, *, always: bool = False) -> None:
    """Say something on standard error while a verb works; with --quiet only what is ``always``."""
    if always or not _quiet.get():
        typer.echo(printable_lines(without_patients(sentence)), err=True)


def must_know(sentence: str) -> None:
    """Say on standard error what went wrong or ended a verb, with --quiet too."""
    note(sentence, always=True)


def warn(sentence: str | None) -> None:
    """Say in red on standard error what must not be overlooked; nothing for None."""
    if sentence is None:
        return
    from rich.console import Console
    from rich.text import Text

    text = Text(printable_lines(without_patients(sentence)), style="bold red")
    Console(stderr=True).print(text, soft_wrap=True)


def words(text: str | None) -> list[str] | None:
    """Words of an option that takes a list, as ``AP,PA``; None stays None."""
    return None if text is None else [word.strip() for word in text.split(",")]


def given(**values: Any) -> dict[str, Any]:
    """The options that were given, so that the others keep their defaults."""
    return {name: value for name, value in values.items() if value is not None}


LINES_EVERY = 30.0  # seconds between two lines of progress in a log


def in_terminal() -> bool:
    """Whether standard error is a terminal, where progress is a bar."""
    from rich.console import Console

    return Console(stderr=True).is_terminal


@contextmanager
def progress(unit: str, *, lines: bool = True) -> Iterator[Callable[..., None]]:
    """Progress on standard error: done, time taken, time left, and a loss if given.

    A bar in a terminal; in a log file one line each half minute, or none where the verb has lines
    of its own (``lines``); nothing with --quiet.
    """
    if _quiet.get():
        yield lambda *_: None
        return
    if not in_terminal():
        yield _log_lines(unit) if lines else lambda *_: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("elapsed"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(unit, total=None, loss="")

        def advance(done: int, total: int, loss: float | None = None) -> None:
            shown = "" if loss is None or loss != loss else f"loss {loss:.4f}"
            bars.update(task, completed=done, total=total, loss=shown)

        yield advance


def _log_lines(
    unit: str, every: float = LINES_EVERY, now: Callable[[], float] = time.monotonic
) -> Callable[..., None]:
    """Lines for a log; the first call, perhaps of a resumed run, says where the rest begins."""
    began = last = now()
    first: tuple[int, float] | None = None

    def advance(done: int, total: int, loss: float | None = None) -> None:
        nonlocal last, first
        moment = now()
        first = first or (done, moment)
        before, since = first
        if moment - last < every or done <= before:
            return
        last, elapsed = moment, moment - began
        left = (moment - since) / (done - before) * (total - done)
        shown = "" if loss is None or loss != loss else f", loss {loss:.4f}"
        note(f"{unit} {done} of {total}, elapsed {clock(elapsed)}, left {clock(left)}{shown}")

    return advance


def log_lines(every: float = 10.0) -> Callable[[str, bool], None]:
    """How the lines of a run's log are shown.

    In a terminal, where the bar says the rest, only those that are rare; elsewhere all of them,
    but of the frequent ones at most one in ``every`` seconds.
    """
    last, bar = -every, in_terminal()

    def line(text: str, frequent: bool) -> None:
        nonlocal last
        now = time.monotonic()
        if frequent and (bar or now - last < every):
            return
        last = now if frequent else last
        note(text)

    return line


def show(
    values: dict[str, Any],
    as_json: bool,
    funnel: list[dict[str, Any]] | None = None,
    full: dict[str, Any] | None = None,
) -> None:
    """Print aligned lines, or one JSON object, with --json of all there is (``full``)."""
    if as_json:
        typer.echo(json.dumps((full or values) | ({"funnel": funnel} if funnel else {})))
        return
    if funnel:
        from medclip_debias.data.funnel import table

        typer.echo(table(funnel))
    for name, value in values.items():
        for line in _lines(name, value):
            typer.echo(line)


def _lines(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, float):
        yield printable(f"{name}: {value:,.0f}" if abs(value) >= 1e4 else f"{name}: {value:.4g}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _lines(f"{name}.{key}", item)
    elif isinstance(value, list):
        for item in value:
            yield printable(f"{name}: {item}")
    else:
        yield printable(f"{name}: {value}")
