"""The verb that runs the benchmark, and those around it: bench list, show, table, validate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli import common
from medclip_debias.cli.common import group, note, option, progress, show, words
from medclip_debias.cli.help import USUAL, UsualGroup
from medclip_debias.errors import UserError, counted, one_of, printable

bench = group("bench", "Run models on the benchmark's task cards; tables of results.", UsualGroup)


@bench.command(
    USUAL, example="bench runs/demo/model --data archives --out results --tasks 'phantom/*'"
)
def run(
    models: Annotated[list[str], "Model folders, or NAME=FOLDER."],
    root: Annotated[Path, option("Folder below which the archives are.", "--data")],
    out: Annotated[Path, option("Folder of results.")],
    tasks: Annotated[
        str, "all, or names, patterns (chestxray14/*) or YAML files, separated by commas."
    ] = "all",
    bootstrap: common.Bootstrap = 1000,
    batch_size: Annotated[int, option("Images encoded at a time.", min=1)] = 32,
    workers: common.Workers = None,
    again: Annotated[bool, "Measure finished results again, from the kept vectors."] = False,
    cluster: common.Cluster = None,
    seed: common.Seed = 0,
    device: common.Device = "auto",
    as_json: common.AsJson = False,
) -> None:
    """Run every card whose archive is there; what was done before is not done again."""
    from medclip_debias.bench.card import cards_of
    from medclip_debias.bench.run import How, silent
    from medclip_debias.bench.run import bench as run_all
    from medclip_debias.evaluation.protocol import Draw

    cards, named = cards_of(tasks)
    how = How(
        Draw(bootstrap, seed),
        device,
        batch_size,
        workers,
        again,
        cluster,
        bars=silent if as_json else progress,
        say=None if as_json else note,
    )
    outcome = run_all(models, cards, root, out, how)
    reasons = {
        (model, card): f"not run: {model or 'every model'} on {card}: {why}"
        for (model, card), why in outcome.not_run.items()
    }
    failed = [key for key in reasons if key[1] in named or not outcome.records]
    if as_json:
        show(outcome.summary(), as_json)
    else:
        for (model, card), record in outcome.records.items():
            values = {key: figure.value for key, figure in record.metrics.items()}
            show({f"{model} {card}": {"status": record.status, **values}}, as_json)
        for key, reason in reasons.items():
            if key not in failed[-1:]:  # that one ends the command
                common.must_know(reason)
    if failed:
        raise UserError(reasons[failed[-1]])


@bench.command("list", example="bench list --data archives")
def list_cards(
    root: Annotated[
        Path | None, option("Also show which cards have their archive below this folder.", "--data")
    ] = None,
    as_json: common.AsJson = False,
) -> None:
    """List the task cards."""
    from medclip_debias.bench.card import packaged_cards
    from medclip_debias.bench.images import Archives

    archives = None if root is None else Archives(root)
    rows = {}
    for card in packaged_cards().values():
        row = {"kind": card.kind, "archive": card.data.archive, "title": card.title}
        if archives is not None:
            try:
                row["found"] = str(archives.of(card))
            except UserError as error:
                row["missing"] = str(error)
        rows[card.full_name] = row
    if as_json:
        show(rows, as_json)
        return
    for name, row in rows.items():
        typer.echo(f"{name:40}  {row['kind']:12}  {row['title']}")
        for key in ("found", "missing"):
            if key in row:
                typer.echo(f"    {key}: {row[key]}")


@bench.command("show", example="bench show openi/zero-shot")
def show_card(
    card: Annotated[str, "Name of a card, or a YAML file."],
    as_json: common.AsJson = False,
) -> None:
    """Show one card: data, prompts, protocol, metrics, and what others published."""
    from medclip_debias.bench.card import cards_of

    for one in cards_of(card)[0]:
        show(
            {"card": one.full_name, "hash": one.content_hash} | one.model_dump(mode="json"),
            as_json,
        )


Folder = Annotated[Path, "Results of 'bench'."]


@bench.command(example="bench table results --format latex --out table.tex")
def table(
    results: Folder,
    cards: Annotated[str | None, "Cards, as 'openi/zero-shot,phantom/retrieval'."] = None,
    models: Annotated[str | None, "Names of models, in the order wanted."] = None,
    baseline: Annotated[str | None, "Model to compare with; default the first."] = None,
    form: Annotated[str, option("md, latex, html or csv.", "--format")] = "md",
    out: Annotated[Path | None, "File; default the terminal."] = None,
    as_json: common.AsJson = False,
) -> None:
    """Check results, and print models x cards: intervals, ranks, differences, published figures."""
    from medclip_debias.bench.table import FORMATS, read_board
    from medclip_debias.files import write_text

    one_of(form, list(FORMATS), "--format")
    board = read_board(results, cards=words(cards), models=words(models), baseline=baseline)
    text = FORMATS[form](board)
    if out is not None:
        write_text(out, text)
    if as_json:
        show({"format": form, "table": text if out is None else str(out)}, as_json)
    elif out is None:
        typer.echo(common.printable_lines(text), nl=False)
    else:
        note(f"{out}")


@bench.command(example="bench validate results")
def validate(results: Folder, as_json: common.AsJson = False) -> None:
    """Check results that others handed in; every fault is one sentence, exit code 2."""
    from medclip_debias.bench.check import validate_folder

    report = validate_folder(results)
    if as_json:
        show({"faults": report.faults, "says": report.sentences}, as_json)
    else:
        for fault in report.faults:
            common.must_know(printable(fault))
    if report.faults:
        raise UserError(f"{results}: {counted(len(report.faults), 'fault')}.")
    if not as_json:
        typer.echo("\n".join(report.sentences))
