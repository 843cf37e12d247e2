"""Verbs that look before a run: config show, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli.common import TRAINING, AsJson, Loss, Verbs, app, note

config_app = Verbs(help="Settings of a run.", no_args_is_help=True)
app.add_typer(config_app, name="config", rich_help_panel=TRAINING)

Words = Annotated[
    list[str] | None, typer.Argument(help="Overrides, as train.lr=1e-5 loss.kind=infonce.")
]


@config_app.command(
    "show", example="config show configs/phantom/demo.yaml train.lr=1e-4 --only-changed"
)
def config_show(
    config: Annotated[Path, typer.Argument(help="YAML file of a run.")],
    settings: Words = None,
    loss: Loss = None,
    only_changed: Annotated[
        bool, typer.Option("--only-changed", help="Leave out what is as by default.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print a run's settings as they are resolved: inheritance, overrides, defaults, checks."""
    import json

    import yaml

    from medclip_debias.training.resolve import changed, resolved

    content = (changed if only_changed else resolved)(config, settings or [], loss)
    if as_json:
        typer.echo(json.dumps(content))
    else:
        typer.echo(yaml.safe_dump(content, sort_keys=False), nl=False)


@app.command(rich_help_panel=TRAINING, example="doctor configs/phantom/demo.yaml")
def doctor(
    config: Annotated[
        Path | None, typer.Argument(help="YAML file of a run; without, the machine alone.")
    ] = None,
    settings: Words = None,
    loss: Loss = None,
    as_json: AsJson = False,
) -> None:
    """Check machine, data and settings before a long run, and estimate what it will take."""
    import json

    from medclip_debias.doctor.examine import examine
    from medclip_debias.doctor.findings import STOPS, Finding, lines, summary
    from medclip_debias.errors import EXIT_CODE

    def tell(finding: Finding) -> None:
        typer.echo(lines(finding))

    if as_json:
        findings = examine(config, settings or [], loss=loss)
        typer.echo(json.dumps({"checks": [finding.as_dict() for finding in findings]}))
    else:
        findings = examine(config, settings or [], note, tell, loss)
        typer.echo(summary(findings))
    if any(finding.state == STOPS for finding in findings):
        raise typer.Exit(EXIT_CODE)
