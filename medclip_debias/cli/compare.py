"""The verb that tests differences between runs: compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli.common import EVALUATION, AsJson, Seed, app, argument, option, words


@app.command(
    rich_help_panel=EVALUATION,
    example="compare runs/uncorrected runs/debiased --out runs/comparison",
)
def compare(
    runs: Annotated[list[str], argument("Folders of 'evaluate', globs, or label=FOLDER,FOLDER.")],
    out: Annotated[Path | None, option("Folder for comparison.json, .html, .md, .tex ...")] = None,
    baseline: Annotated[
        str | None, option("Label or folder to compare with; default the first.")
    ] = None,
    group: Annotated[
        list[str] | None,
        option("Seeds of one method: label=FOLDER,FOLDER; may be repeated."),
    ] = None,
    metrics: Annotated[
        str | None, option("Metrics to compare, as 'zero_shot.mean_auc,grounding.cnr'.")
    ] = None,
    bootstrap: Annotated[int, option("Resamples of the patients.", min=100)] = 2000,
    seed: Seed = 0,
    force: Annotated[bool, option("Compare what was evaluated differently, and say so.")] = False,
    as_json: AsJson = False,
) -> None:
    """Test the differences between runs, and list their settings."""
    from medclip_debias.evaluation.compare import compare as run
    from medclip_debias.evaluation.provenance import plain
    from medclip_debias.reporting.comparison import write_comparison
    from medclip_debias.reporting.tables import (
        comparison_table,
        markdown,
        seeds_sentence,
        settings_table,
    )

    content = run(
        runs,
        named=group or (),
        baseline=baseline,
        metrics=words(metrics),
        force=force,
        resamples=bootstrap,
        seed=seed,
    )
    written = write_comparison(content, out) if out else []
    if as_json:
        import json

        typer.echo(json.dumps(plain(content)))
        return
    settings = settings_table(content)
    typer.echo(seeds_sentence(content) + "\n")
    for table in [settings] if settings else []:
        typer.echo(markdown(table))
    typer.echo(markdown(comparison_table(content)))
    for path in written:
        typer.echo(str(path))
