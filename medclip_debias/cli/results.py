"""What is done with results of the benchmark: table, pack, validate, site."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from medclip_debias.cli.bench import bench
from medclip_debias.cli.common import AsJson, must_know, note, show, words
from medclip_debias.errors import UserError, did_you_mean

Folder = Annotated[Path, typer.Argument(help="Results of 'bench', or a results repository.")]
Cards = Annotated[str | None, typer.Option(help="Cards, as 'openi/zero-shot,phantom/retrieval'.")]
Models = Annotated[str | None, typer.Option(help="Names of models, in the order wanted.")]
Baseline = Annotated[str | None, typer.Option(help="Model to compare with; default the first.")]


@bench.command(example="bench table results --format latex --out table.tex")
def table(
    results: Folder,
    cards: Cards = None,
    models: Models = None,
    baseline: Baseline = None,
    form: Annotated[str, typer.Option("--format", help="md, latex, html or csv.")] = "md",
    out: Annotated[Path | None, typer.Option("--out", help="File; default the terminal.")] = None,
    as_json: AsJson = False,
) -> None:
    """Models x cards: intervals, ranks, paired differences over patients, published figures."""
    from medclip_debias.bench.board import read_board
    from medclip_debias.bench.table import FORMATS
    from medclip_debias.files import write_text

    if form not in FORMATS:
        raise UserError(
            f"--format {form}: there is no such format{did_you_mean(form, FORMATS)}; it is one of "
            f"{', '.join(FORMATS)}."
        )
    board = read_board(results, cards=words(cards), models=words(models), baseline=baseline)
    text = FORMATS[form](board)
    if out is not None:
        write_text(out, text)
    if as_json:
        show({"format": form, "table": text if out is None else str(out)}, as_json)
    elif out is None:
        typer.echo(text, nl=False)
    else:
        note(f"{out}")


@bench.command(example="bench pack results --out repository")
def pack(
    results: Folder,
    out: Annotated[Path, typer.Option("--out", help="The results repository.")],
    models: Models = None,
    licence: Annotated[
        str | None, typer.Option(help="Licence of the weights, where a model does not say it.")
    ] = None,
    with_labels: Annotated[
        bool,
        typer.Option("--with-labels", help="Keep labels and boxes: where the archive allows it."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy results for others to see: figures and hashed ids; says what it leaves out."""
    from medclip_debias.bench.pack import pack_results

    packed = pack_results(
        results, out, models=words(models), licence=licence, with_labels=with_labels
    )
    _say({"repository": str(out), "says": list(packed)}, as_json)


@bench.command(example="bench validate repository")
def validate(repository: Folder, as_json: AsJson = False) -> None:
    """Check a results repository; every fault is one sentence, exit code 2."""
    from medclip_debias.bench.repository import validate_repository

    report = validate_repository(repository)
    if as_json:
        show({"faults": list(report.faults), "says": list(report.says)}, as_json)
    for fault in [] if as_json else report.faults:
        must_know(fault)
    if report.faults:
        raise UserError(f"{repository}: {len(report.faults)} faults; mend them, or pack again.")
    if not as_json:
        _say({"says": list(report.says)}, as_json)


@bench.command(example="bench site repository --out site")
def site(
    repository: Folder,
    out: Annotated[Path, typer.Option("--out", help="Folder for index.html.")],
    baseline: Baseline = None,
    as_json: AsJson = False,
) -> None:
    """Write a leaderboard: one page that needs no other file and no network."""
    from medclip_debias.bench.site import write_site

    page = str(write_site(repository, out, baseline=baseline))
    if as_json:
        show({"page": page}, as_json)
    else:
        typer.echo(page)


def _say(found: dict[str, Any], as_json: bool) -> None:
    """What was found, or its sentences alone."""
    if as_json:
        show(found, as_json)
        return
    for sentence in found["says"]:
        typer.echo(sentence)
