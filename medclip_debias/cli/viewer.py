"""The verb that opens the viewer: view."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from medclip_debias.cli.common import (
    LOOKING,
    AsJson,
    Device,
    app,
    argument,
    note,
    option,
    show,
    warn,
)


@app.command(rich_help_panel=LOOKING, example="view runs/demo/model --images data/phantom/files")
def view(
    model: Annotated[Path, argument("Model folder.")],
    index: Annotated[Path | None, option("Folder that 'index' wrote with this model.")] = None,
    images: Annotated[Path | None, option("Folder of radiographs to choose from.")] = None,
    beside: Annotated[
        Path | None, option("Folder of a second model, to be seen beside the first.")
    ] = None,
    boxes: Annotated[
        Path | None, option("MS-CXR or COCO file with true boxes of --images.")
    ] = None,
    method: Annotated[
        list[str] | None,
        option("Maps by similarity (default), gradcam or occlusion; a second one for --beside."),
    ] = None,
    calibration: Annotated[
        list[Path] | None,
        option("File of 'calibrate' for one of the models; may be repeated."),
    ] = None,
    host: Annotated[str | None, option("Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[
        int | None,
        option("Port; 0 for a free one.", min=0, max=65535, show_default="7860"),
    ] = None,
    socket: Annotated[
        Path | None,
        option("Listen on a unix socket at this path instead, which you alone can open."),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        option("A name under which browsers may open the page, beside localhost."),
    ] = None,
    token_file: Annotated[
        Path | None,
        option(
            "File with a token of your own; else $MEDCLIP_DEBIAS_VIEWER_TOKEN, else a new"
            " random one, which is printed."
        ),
    ] = None,
    no_token: Annotated[bool, option("Let in everybody who reaches the page.")] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show on a web page where a model sees sentences.

    With an index its images can be searched, too. Ctrl-C ends it.
    """
    from medclip_debias.errors import UserError
    from medclip_debias.viewer.access import new_token, read_token
    from medclip_debias.viewer.serve import LOOPBACK, PORT, check_installed, serve

    check_installed()
    if socket is not None and (host is not None or port is not None):
        raise UserError("give either --socket or --host and --port, not both.")
    if no_token and token_file is not None:
        raise UserError("give either --token-file or --no-token, not both.")
    own_token = None if no_token else read_token(token_file)
    token = None if no_token else own_token or new_token()
    from medclip_debias.viewer.answers import Answers

    answers = Answers.open(
        model,
        index,
        images,
        device,
        note,
        beside=beside,
        boxes=boxes,
        calibrations=calibration or (),
        methods=method or (),
    )
    for warning in dict.fromkeys(one.warning for one in answers.models):
        warn(warning)
    serve(
        answers,
        socket or (host or LOOPBACK, PORT if port is None else port),
        token,
        show_token=own_token is None,
        allowed=allow_host or [],
        say=_address_as_json() if as_json else typer.echo,
    )


def _address_as_json() -> Callable[[str], None]:
    """The first line, which is the address, as JSON; what else is to be known as a note."""
    lines = 0

    def say(line: str) -> None:
        nonlocal lines
        lines += 1
        if lines == 1:
            show({"address": line}, True)
        else:
            note(line)

    return say
