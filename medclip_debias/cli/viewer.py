"""The verb that opens the viewer: view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli.common import app


@app.command()
def view(
    model: Annotated[Path, typer.Argument(help="Model folder.")],
    index: Annotated[
        Path | None, typer.Option(help="Folder that 'index' made with this model.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder of radiographs to choose from.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; the default is this machine alone.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 for a free one.", min=0, max=65535)] = 7860,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
) -> None:
    """Show on a web page where a model sees sentences; search an index. Ctrl-C ends it."""
    from medclip_debias.viewer.serve import check_installed, serve

    check_installed()
    from medclip_debias.viewer.answers import Answers

    serve(Answers.open(model, index, images, device), host, port, say=typer.echo)
