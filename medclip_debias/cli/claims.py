"""Verb that reads what sentences claim: claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli.common import DATA, AsJson, Cluster, app, progress, show


@app.command(rich_help_panel=DATA, example="claims data/prepared --lexicon english")
def claims(
    prepared: Annotated[Path, typer.Argument(help="Prepared set.")],
    lexicon: Annotated[
        str | None, typer.Option(help="YAML file, or the name of a packaged one: english, phantom.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option(help="Claims that another program read (CSV or Parquet).")
    ] = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """Store which findings each sentence claims."""
    from medclip_debias.data.text.claims.table import FILE, claim_set

    with progress("Sentences") as advance:
        found = claim_set(prepared, lexicon, table, advance, cluster)
    show({"claims": str(prepared / FILE), **found}, as_json)
