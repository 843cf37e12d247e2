"""How scripts run: typer reads the words, and what a user can mend is one sentence, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from medclip_debias.errors import EXIT_CODE, UserError


def run_script(main: Callable[..., Any] | typer.Typer, words: list[str] | None = None) -> int:
    """Run a script's function, or one of its commands, on words; the exit code."""
    if isinstance(main, typer.Typer):
        app = main
    else:
        app = typer.Typer(add_completion=False)
        app.command()(main)
    try:
        app(words)
    except SystemExit as end:  # as typer ends
        return int(end.code or 0)
    except UserError as error:
        print(f"medclip-debias: {error}", file=sys.stderr)
        return EXIT_CODE
    return 0
