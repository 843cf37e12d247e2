"""The console command: one function a verb, no logic; everything heavy is imported inside.

A `UserError` becomes one line on standard error and exit code 2.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from medclip_debias import __version__
from medclip_debias.errors import EXIT_CODE, UserError

app = typer.Typer(
    name="medclip-debias",
    help="Learn from chest radiographs and their reports, corrected for false negatives.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")]
Seed = Annotated[int, typer.Option(help="Same seed, same bytes.", min=0)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


class ImageFormat(StrEnum):
    """File format of the phantom's images."""

    dicom = "dicom"
    jpg = "jpg"


@app.command()
def phantom(
    out: Annotated[Path, typer.Argument(help="Folder to write, as a MIMIC-CXR tree.")],
    studies: Annotated[int, typer.Option(help="Number of studies.")] = 3000,
    seed: Seed = 0,
    image_format: Annotated[ImageFormat, typer.Option("--format")] = ImageFormat.dicom,
    dials: Annotated[
        list[str] | None, typer.Option("--set", help="A dial, as key=value; may be repeated.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default all cores.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a synthetic set whose truth is known: images, reports, tables, boxes."""
    from medclip_debias.config import apply_overrides, validate
    from medclip_debias.data.phantom import PhantomSettings, generate

    content = {"studies": studies, "seed": seed, "format": image_format.value}
    settings = validate(PhantomSettings, apply_overrides(content, dials or []), "the command line")
    with _progress("Studies") as advance:
        figures = generate(out, settings, progress=advance, workers=workers)
    _show({"phantom": str(out), **figures}, as_json)


@app.command()
def prepare(
    source: Annotated[
        Path, typer.Argument(help="MIMIC-CXR(-JPG) or Open-i folder, or a manifest table.")
    ],
    out: Annotated[Path, typer.Argument(help="Folder of the prepared set.")],
    size: Annotated[int, typer.Option(help="Side of the stored square, pixels.")] = 512,
    clip: Annotated[
        tuple[float, float], typer.Option(help="Percentiles at which intensities are clipped.")
    ] = (0.5, 99.5),
    equalize: Annotated[
        bool, typer.Option("--equalize", help="Histogram equalisation, as MIMIC-CXR-JPG.")
    ] = False,
    window: Annotated[
        str, typer.Option(help="DICOM window to apply: the first one, or none.")
    ] = "first",
    views: Annotated[
        str | None, typer.Option(help="Views that count as frontal, as AP,PA; default all names.")
    ] = None,
    blank_view: Annotated[
        str, typer.Option(help="Images whose view is blank: exclude or include.")
    ] = "exclude",
    multi_view: Annotated[
        str, typer.Option(help="Studies of several views: all, one_at_random or pa_first.")
    ] = "all",
    without_sentence: Annotated[
        str, typer.Option(help="Studies without a sentence: keep_for_evaluation or drop.")
    ] = "keep_for_evaluation",
    seed: Annotated[int, typer.Option(help="Seed of one_at_random.", min=0)] = 0,
    reports: Annotated[
        Path | None, typer.Option(help="Folder or archive of reports that lie elsewhere.")
    ] = None,
    report_settings: Annotated[
        list[str] | None,
        typer.Option("--report-set", help="As sections=[impression] min_words=2; may be repeated."),
    ] = None,
    labels: Annotated[str, typer.Option(help="Automatic labels: chexpert or negbio.")] = "chexpert",
    split_seed: Annotated[
        int | None, typer.Option(help="Split patients by this seed, not the source's split.")
    ] = None,
    phrases: Annotated[
        Path | None, typer.Option(help="File of boxes; found by itself in most sets.")
    ] = None,
    kind: Annotated[str, typer.Option(help="mimic_cxr, openi, manifest or auto.")] = "auto",
    shard: Annotated[
        str | None, typer.Option(help="Do part i of n, as 1/8; then 'merge' the parts.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default all cores.")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Add what is new in the source to the set at OUT.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Read a source once: images, sentences, labels and boxes, and every count on the way.

    A run that was killed goes on when the same command is given again.
    """
    from medclip_debias.config import PrepareSettings, SelectionSettings, apply_overrides, validate
    from medclip_debias.data.prepare import Reading, prepare_part
    from medclip_debias.data.prepare import prepare as run
    from medclip_debias.data.reports import ReportSettings

    where = "the command line"
    rows = {"size": size, "clip": list(clip), "equalize": equalize, "window": window}
    chosen = {"blank_view": blank_view, "multi_view": multi_view, "seed": seed}
    chosen |= {"without_sentence": without_sentence} | _given(views=_words(views))
    text = validate(ReportSettings, apply_overrides({}, report_settings or []), "--report-set")
    settings = validate(PrepareSettings, rows, where)
    how: dict[str, Any] = {
        "selection": validate(SelectionSettings, chosen, where),
        "reading": Reading(kind, phrases, reports, labels, split_seed, text),
        "workers": workers,
        "say": None if as_json else _note,
        "overwrite": overwrite,
    }
    with _progress("Reports, images") as advance:
        how["progress"] = advance
        if shard is not None:
            figures = prepare_part(source, out, settings, shard, update=update, **how)
        else:
            prepared = run(source, out, settings, update=update, **how)
    if shard is not None:
        _show({"part": str(out), **figures}, as_json)
    else:
        _show({"prepared": str(out), **prepared.figures}, as_json, funnel=prepared.funnel)


@app.command()
def merge(
    parts: Annotated[list[Path], typer.Argument(help="Folders that 'prepare --shard' made.")],
    out: Annotated[Path, typer.Argument(help="Folder of the prepared set.")],
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Join the parts of a prepared set to the same bytes as one run."""
    from medclip_debias.data.shards import merge as run

    prepared = run(parts, out, overwrite=overwrite)
    _show({"prepared": str(out), **prepared.figures}, as_json, funnel=prepared.funnel)


@app.command("language-model")
def language_model(
    prepared: Annotated[Path, typer.Argument(help="Prepared set; its train split is read.")],
    out: Annotated[Path, typer.Argument(help="BERT folder to write.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Settings, as steps=500 hidden=64.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a small BERT masked language model and its tokenizer on the training sentences."""
    from medclip_debias.config import apply_overrides, validate
    from medclip_debias.data.loader import training_corpus
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm

    content = apply_overrides({}, settings or [])
    chosen = validate(LanguageModelSettings, content, "the command line")
    data = PreparedSet.open(prepared)
    provenance = {"data_hash": data.content_hash, "split": "train"}
    with _progress("Steps") as advance:
        figures = train_masked_lm(
            training_corpus(data), out, chosen, provenance=provenance, progress=advance
        )
    _show({"language_model": str(out), **figures}, as_json)


@app.command()
def score(
    prepared: Annotated[Path, typer.Argument(help="Prepared set to score.")],
    language_model: Annotated[
        Path, typer.Option("--language-model", help="BERT or CXR-BERT folder.")
    ],
    as_json: AsJson = False,
) -> None:
    """Store the log probability of every distinct sentence under a language model."""
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.language.scoring import score_prepared

    data = PreparedSet.open(prepared)
    with _progress("Masked tokens") as advance:
        figures = score_prepared(data, language_model, progress=advance)
    _show({"scores": str(prepared / "scores.parquet"), **figures}, as_json)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(help="YAML file of the run.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Overrides, as train.lr=1e-5 loss.kind=infonce.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; drop checkpoints.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model; run the same command again to resume."""
    from medclip_debias.config import RunSettings, load_settings
    from medclip_debias.training.train import train as run

    chosen = load_settings(RunSettings, config, settings or [])
    with _progress("Steps") as advance:
        result = run(chosen, where=str(config), fresh=fresh, progress=advance)
    figures = {
        "steps": result.steps,
        "resumed_at": result.resumed_at,
        "loss": result.loss,
        "images_per_second": result.images_per_second,
    }
    _show({"model": str(result.model), **figures}, as_json)


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    prepared: Annotated[Path, typer.Argument(help="Prepared set.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for results.json and heatmaps.")],
    split: Annotated[str, typer.Option(help="test or validate.")] = "test",
    prompts: Annotated[
        str | None, typer.Option(help="Prompt set: a name or a YAML file; default the model's.")
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Resamples; 0 for no intervals.", min=0)] = 1000,
    heatmaps: Annotated[int, typer.Option(help="Heatmap pictures to write.", min=0)] = 16,
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Zero-shot classification, phrase grounding and retrieval, with intervals."""
    from medclip_debias.evaluation.evaluate import evaluate as run

    with _progress("Images") as advance:
        results = run(
            model,
            prepared,
            out,
            split=split,
            seed=seed,
            bootstrap=bootstrap,
            heatmaps=heatmaps,
            prompts=prompts,
            device=device,
            progress=advance,
        )
    if as_json:
        _show(results, as_json)
        return
    from medclip_debias.evaluation.evaluate import headline

    _show({"results": str(out / "results.json"), **headline(results)}, as_json)


@app.command()
def ground(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    image: Annotated[Path, typer.Argument(help="DICOM, JPG or PNG file.")],
    text: Annotated[list[str], typer.Option("--text", help="A sentence; may be repeated.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for PNG overlays and NPY maps.")],
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Show where in an image each sentence is seen."""
    from medclip_debias.grounding.ground import ground as run
    from medclip_debias.models.dual_encoder import DualEncoder, best_device

    encoder = DualEncoder.load(model, best_device(device))
    maps = run(encoder, image, text, out)
    _show({"maps": maps} if as_json else {m["text"]: m["picture"] for m in maps}, as_json)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run folder: settings, metrics, results.")],
    as_json: AsJson = False,
) -> None:
    """Write a run's self-contained HTML report."""
    from medclip_debias.reporting.report import write_report

    _show({"report": str(write_report(run))}, as_json)


@app.command()
def losses(as_json: AsJson = False) -> None:
    """List every objective: what it computes, where it comes from, its settings."""
    from medclip_debias.losses.registry import describe

    listing = describe()
    if as_json:
        _show({"losses": listing}, as_json)
        return
    for entry in listing:
        typer.echo(f"{entry['kind']} ({entry['role']})\n  {entry['formula']}\n  {entry['paper']}")
        for name, default in entry["settings"].items():
            typer.echo(f"    {name} = {default}")


def main() -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(sys.argv[1:]))


def run(words: list[str]) -> int:
    """Run one command line; return its exit code, 2 with one sentence for what a user can mend.

    Args:
        words: the words after ``medclip-debias``.
    """
    try:
        app(words, prog_name="medclip-debias")
        return 0
    except SystemExit as end:  # typer's own: words that do not parse (2), an interrupt (130)
        code = end.code if isinstance(end.code, int) else 0
        if code == 130:
            _say("stopped; run the same command again to go on.", code)
        return code
    except UserError as error:
        return _say(str(error), EXIT_CODE)
    except OSError as error:
        if _debugging():
            raise
        name = error.filename or "a file"
        return _say(f"{name}: {error.strerror or type(error).__name__}.", EXIT_CODE)
    except Exception as error:
        if _debugging():
            raise
        kind = type(error).__name__
        told = "please report it with what MEDCLIP_DEBIAS_DEBUG=1 prints."
        return _say(f"internal error ({kind}); {told}", 1)


def _debugging() -> bool:
    return bool(os.environ.get("MEDCLIP_DEBIAS_DEBUG"))


def _say(sentence: str, code: int) -> int:
    typer.echo(f"medclip-debias: {sentence}", err=True)
    return code


def _note(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.strip() for word in text.split(",")]


def _given(**values: Any) -> dict[str, Any]:
    """The options that were given, so that the others keep their defaults."""
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def _progress(unit: str) -> Iterator[Callable[..., None]]:
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


def _show(
    figures: dict[str, Any], as_json: bool, funnel: list[dict[str, Any]] | None = None
) -> None:
    """Print figures: one JSON object on standard output, or aligned lines."""
    if as_json:
        typer.echo(json.dumps(figures | ({"funnel": funnel} if funnel else {})))
        return
    if funnel:
        from medclip_debias.data.funnel import table

        typer.echo(table(funnel))
    for name, value in figures.items():
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


def _version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version
