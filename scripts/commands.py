"""How scripts run: what a user can mend is one sentence, exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import typer

from medclip_debias.errors import EXIT_CODE, UserError


def exit_code(main: Callable[[], object]) -> int:
    """Run a script that reads its own words; the exit code."""
    try:
        main()
    except SystemExit as end:  # as typer ends
        return int(end.code or 0)
    except (UserError, FileNotFoundError) as error:
        print(f"medclip-debias: {error}", file=sys.stderr)
        return EXIT_CODE
    return 0


def run_script(main: Callable[..., Any] | typer.Typer, words: list[str] | None = None) -> int:
    """Run a script's function, or one of its commands, on words that typer reads."""
    if isinstance(main, typer.Typer):
        app = main
    else:
        app = typer.Typer(add_completion=False)
        app.command()(main)
    return exit_code(partial(app, words))
