"""The benchmark's verbs: `bench VERB`."""

from __future__ import annotations

import typer

from medclip_debias.cli.common import EVALUATION, app

bench = typer.Typer(
    no_args_is_help=True,
    help="The field's tasks by the field's protocols, and tables of what models reached.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench, name="bench", rich_help_panel=EVALUATION)
