"""The verb `experiment`: a grid of settings, methods and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli.common import EXPERIMENTS, AsJson, Cluster, app, note, progress, show


@app.command(rich_help_panel=EXPERIMENTS, example="experiment experiments/phantom_demo --plan")
def experiment(
    grid: Annotated[
        Path, typer.Argument(help="YAML file of the grid, or a name that `config list` shows.")
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Overrides, as base.train.steps=500 seeds=[0,1].")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder; default runs/experiments/NAME.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Cells trained side by side.", min=1)] = 1,
    cluster: Cluster = None,
    planned: Annotated[
        bool, typer.Option("--plan", help="Only predict the time and write each cell's run.yaml.")
    ] = False,
    reuse: Annotated[
        list[Path] | None,
        typer.Option("--reuse", help="Folder of another grid: cells it has measured are copied."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train and compare methods over several seeds.

    Run the same command again to resume; what was measured is not measured again.
    """
    from medclip_debias.experiments.command import run_grid

    with progress("Cells") as advance:
        results = run_grid(
            grid,
            settings or [],
            out=out,
            workers=workers,
            cluster=cluster,
            planned=planned,
            others=reuse or (),
            progress=advance,
            say=None if as_json else note,
        )
    if planned:
        show(results, as_json)
        return
    names = ("experiment", "findings", "cells", "figures")
    full = {name: results[name] for name in names}
    show({"finding": results["findings"], "page": results["page"]}, as_json, full=full)
