"""Verbs that run grids: experiment, of settings, methods and seeds; study, of the papers."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

from medclip_debias.cli import common
from medclip_debias.cli.common import app, argument, note, option, progress, show
from medclip_debias.errors import UserError


@app.command(example="experiment experiments/phantom_demo --plan")
def experiment(
    grid: Annotated[Path, "YAML file of the grid, or a name that `config list` shows."],
    settings: Annotated[
        list[str] | None, argument("Overrides, as base.train.steps=500 seeds=[0,1].")
    ] = None,
    out: Annotated[Path | None, "Folder; default runs/experiments/NAME."] = None,
    workers: Annotated[int, option("Cells side by side; with --cluster its own.", min=1)] = 1,
    cluster: common.Cluster = None,
    planned: Annotated[
        bool, option("Only predict the time and write each cell's run.yaml.", "--plan")
    ] = False,
    reuse: Annotated[
        list[Path] | None, "Folder of another grid: cells it has measured are copied."
    ] = None,
    as_json: common.AsJson = False,
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


@app.command(example="study table1 --quick")
def study(
    name: Annotated[str | None, argument("Which study; --list names them.")] = None,
    settings: Annotated[list[str] | None, argument("Settings of the study, as seeds=5.")] = None,
    config: Annotated[Path | None, "YAML file of settings, or its name."] = None,
    out: Annotated[Path | None, "Folder; default runs/studies/NAME."] = None,
    quick: Annotated[bool, "A run of a few minutes."] = False,
    workers: Annotated[int | None, option("Processes.", min=1)] = None,
    rows_of: Annotated[
        Path | None,
        option(
            "Measure nothing: write page and plot again from these cells, such as "
            "docs/studies/NAME.parquet or a run's results.json.",
            "--from",
        ),
    ] = None,
    publish_to: Annotated[
        Path | None,
        option(
            "Put cells and plot in this folder, and the tables into its page: docs/studies.",
            "--publish",
        ),
    ] = None,
    listing: Annotated[bool, option("Name all studies.", "--list")] = False,
    as_json: common.AsJson = False,
) -> None:
    """Run one of the papers' studies: a grid, a plot, a page.

    The studies come with the source tree (scripts/studies), not with the installed package.
    """
    studies = studies_of_the_source()
    if listing or name is None:
        show(studies.titles(), as_json)
        return
    folder = out or Path("runs/studies") / (f"{name}-quick" if quick else name)
    if rows_of is not None:
        if settings or quick or config is not None:
            raise UserError("--from takes the settings of its file: leave out other settings.")
        results = studies.rewrite_named(name, rows_of, folder)
    else:
        with progress("Inputs and cells") as advance:
            results = studies.run_named(
                name,
                folder,
                words=settings or [],
                quick=quick,
                config=config,
                workers=workers,
                progress=advance,
                say=None if as_json else note,
            )
    if publish_to is not None:
        studies.publish(name, folder, publish_to)
    if as_json:
        show({key: results[key] for key in ("study", "findings", "figures", "cells")}, as_json)
        return
    show({"finding": results["findings"], "page": str(folder / "page.md")}, as_json)


def studies_of_the_source() -> ModuleType:
    """The module ``studies.command`` of the source tree, which the package does not hold.

    Its folder joins ``sys.path``, so that processes find it however they are started.
    """
    scripts = Path(__file__).resolve().parents[2] / "scripts"
    if "studies" not in sys.modules:  # else this is `python scripts/studies`
        if not (scripts / "studies" / "command.py").is_file():
            raise UserError(
                "the papers' studies are not part of the installed package: they come with its "
                "source tree; get that and run 'python scripts/studies --list' in it."
            )
        sys.path.insert(0, str(scripts))
    return importlib.import_module("studies.command")
