"""What every verb shares: the application, common options, progress and printed results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from medclip_debias.errors import without_patients

app = typer.Typer(
    name="medclip-debias",
    help="Learn from chest radiographs and their reports, corrected for false negatives.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# The panels of --help, in its order.
DATA, TRAINING, EVALUATION = "Data", "Training", "Evaluation"
LOOKING, EXPERIMENTS = "Looking and searching", "Experiments"
SHARING = "Sharing"

AsJson = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")]
Seed = Annotated[int, typer.Option(help="Same seed, same bytes.", min=0)]
Loss = Annotated[
    str | None,
    typer.Option("--loss", help="Preset over the file, as debiased_0.05; `losses` lists them."),
]
RunFile = Annotated[
    Path, typer.Argument(help="YAML file of the run, or a name that `config list` shows.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Prompts = Annotated[
    str | None, typer.Option(help="Prompt set: a name or a YAML file; default the model's.")
]
Classes = Annotated[
    str | None, typer.Option(help="Classes of the prompt set, as 'Edema,Pneumonia'.")
]
Labels = Annotated[
    Path | None, typer.Option(help="Label table (CSV, Parquet) instead of the set's labels.")
]
LabelMap = Annotated[
    str | None,
    typer.Option(help="What labels of other names say of the classes: an archive or a YAML."),
]


def note(sentence: str) -> None:
    """Say something on standard error while a verb works."""
    typer.echo(without_patients(sentence), err=True)


def warn(sentence: str | None) -> None:
    """Say in red on standard error what must not be overlooked; nothing for None."""
    if sentence is None:
        return
    from rich.console import Console
    from rich.text import Text

    text = Text(without_patients(sentence), style="bold red")
    Console(stderr=True).print(text, soft_wrap=True)


def words(text: str | None) -> list[str] | None:
    """Words of an option that takes a list, as ``AP,PA``; None stays None."""
    return None if text is None else [word.strip() for word in text.split(",")]


def given(**values: Any) -> dict[str, Any]:
    """The options that were given, so that the others keep their defaults."""
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def progress(unit: str) -> Iterator[Callable[..., None]]:
    """Progress on standard error: done, time taken, time left, and a loss if given.

    A bar in a terminal; in a log file one line each half minute.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _log_lines(unit)
        return
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
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )
    with Progress(*columns, console=console) as bars:
        task = bars.add_task(unit, total=None, loss="")

        def advance(done: int, total: int, loss: float | None = None) -> None:
            shown = "" if loss is None or loss != loss else f"loss {loss:.4f}"
            bars.update(task, completed=done, total=total, loss=shown)

        yield advance


def _log_lines(unit: str, every: float = 30.0) -> Callable[..., None]:
    began = last = time.monotonic()

    def advance(done: int, total: int, loss: float | None = None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < every or not done:
            return
        last = now
        left = (now - began) / done * (total - done)
        shown = "" if loss is None or loss != loss else f", loss {loss:.4f}"
        typer.echo(f"{unit} {done} of {total}, {left:.0f} s left{shown}", err=True)

    return advance


def show(values: dict[str, Any], as_json: bool, funnel: list[dict[str, Any]] | None = None) -> None:
    """Print results: one JSON object on standard output, or aligned lines."""
    if as_json:
        typer.echo(json.dumps(values | ({"funnel": funnel} if funnel else {})))
        return
    if funnel:
        from medclip_debias.data.funnel import table

        typer.echo(table(funnel))
    for name, value in values.items():
        for line in _lines(name, value):
            typer.echo(line)


def _lines(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, float):
        yield f"{name}: {value:.4g}"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _lines(f"{name}.{key}", item)
    elif isinstance(value, list):
        for item in value:
            yield f"{name}: {item}"
    else:
        yield f"{name}: {value}"
