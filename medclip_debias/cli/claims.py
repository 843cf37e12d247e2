"""Verb that reads what sentences claim: claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli.common import DATA, AsJson, app, progress, show


@app.command(rich_help_panel=DATA, example="claims data/prepared --lexicon english")
def claims(
    prepared: Annotated[Path, typer.Argument(help="Prepared set.")],
    lexicon: Annotated[
        str | None, typer.Option(help="YAML file, or the name of a packaged one: english, phantom.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Claims that another program read (CSV or Parquet).")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="Language model that reads them, as http://127.0.0.1:8080/v1."),
    ] = None,
    model: Annotated[str, typer.Option(help="Name of the model on that server.")] = "default",
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="Let sentences go to a server on another machine."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Store which findings every distinct sentence claims: present, absent, where, how sure."""
    from medclip_debias.config import validate
    from medclip_debias.data.text.claims.server import ServerSettings
    from medclip_debias.data.text.claims.table import FILE, claim_set

    chosen = None
    if server is not None:
        content = {"url": server, "model": model, "allow_remote": allow_remote}
        chosen = validate(ServerSettings, content, "the command line")
    with progress("Sentences") as advance:
        found = claim_set(prepared, lexicon, table, chosen, advance)
    show({"claims": str(prepared / FILE), **found}, as_json)
