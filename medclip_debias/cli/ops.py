"""Verbs that look before a run: config list, new and show, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli import common
from medclip_debias.cli.common import app, argument, group, note, show

config_app = group("config", "List, copy and print the settings of runs.")


@config_app.command("list", example="config list")
def config_list(as_json: common.AsJson = False) -> None:
    """List the runs, grids and studies that come with the program, by name."""
    from medclip_debias.named_settings import about, names

    titles = {name: about(name) for name in names()}
    if as_json:
        show({"configs": titles}, as_json)
        return
    for name, title in titles.items():
        typer.echo(f"{name}\n  {title}")


@config_app.command("new", example="config new phantom/demo mine.yaml")
def config_new(
    name: Annotated[str, "Name that `config list` shows."],
    file: Annotated[Path, "YAML file to write, to change as you like."],
    overwrite: common.Overwrite = False,
    as_json: common.AsJson = False,
) -> None:
    """Copy settings that come with the program, with their comments, into a file of your own."""
    from medclip_debias.named_settings import copy

    copy(name, file, overwrite=overwrite)
    if as_json:
        show({"file": str(file), "from": name}, as_json)
    else:
        typer.echo(f"{file}: change it, then give it in place of {name}.")


@config_app.command("show", example="config show phantom/demo train.lr=1e-4 --only-changed")
def config_show(
    config: common.RunFile,
    settings: common.Overrides = None,
    loss: common.Loss = None,
    only_changed: Annotated[bool, "Leave out settings at their defaults."] = False,
    as_json: common.AsJson = False,
) -> None:
    """Print a run's settings as they are resolved: inheritance, overrides, defaults, checks."""
    import yaml

    from medclip_debias.training.resolve import changed, resolved

    content = (changed if only_changed else resolved)(config, settings or [], loss)
    if as_json:
        show(content, as_json)
    else:
        typer.echo(yaml.safe_dump(content, sort_keys=False), nl=False)


@app.command(example="doctor phantom/demo")
def doctor(
    config: Annotated[
        Path | None, argument("YAML file of a run; without it, only the machine is checked.")
    ] = None,
    settings: common.Overrides = None,
    loss: common.Loss = None,
    as_json: common.AsJson = False,
) -> None:
    """Check machine, data and settings before a long run."""
    from medclip_debias.doctor.examine import examine
    from medclip_debias.doctor.findings import STOPS, lines, summary
    from medclip_debias.errors import EXIT_CODE

    if as_json:
        findings = examine(config, settings or [], loss=loss)
        show({"checks": [finding.as_dict() for finding in findings]}, as_json)
    else:
        findings = examine(config, settings or [], note, lambda f: typer.echo(lines(f)), loss)
        typer.echo(summary(findings))
    if any(finding.state == STOPS for finding in findings):
        raise typer.Exit(EXIT_CODE)
