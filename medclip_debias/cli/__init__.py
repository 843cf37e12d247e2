"""The console command: one function a verb, no logic; everything heavy is imported inside.

A `UserError` becomes one line on standard error and exit code 2.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any

import typer

from medclip_debias import __version__

# In the order in which --help lists their verbs.
from medclip_debias.cli import demo, data, training, ops  # isort: skip  # noqa: F401
from medclip_debias.cli import evaluation, bench, grounding  # isort: skip  # noqa: F401
from medclip_debias.cli import experiments, hub  # isort: skip  # noqa: F401
from medclip_debias.cli.common import PROGRAM, app, option
from medclip_debias.cli.help import help_of
from medclip_debias.errors import EXIT_CODE, ReportedWarning, UserError, without_patients
from medclip_debias.training.signals import StoppedBySignalError, is_first_process

__all__ = ["app", "main", "run"]

COLLECT = (20_000, 20, 20)  # `gc.set_threshold`, for a process that is this program's own


def main() -> None:
    """Run the command line and exit with its code."""
    # What imports make stays: looked through at Python's own pace, it is one second in eight of
    # them (docs/performance.md).
    gc.set_threshold(*COLLECT)
    keep_freed_memory()
    sys.exit(run(sys.argv[1:]))


def keep_freed_memory() -> None:
    """Let glibc keep up to 256 MiB of what is freed for the next array; forked processes, too."""
    chosen = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not chosen:
        mallopt(-3, 64 * 2**20)  # M_MMAP_THRESHOLD: from here on an array has pages of its own
        mallopt(-1, 256 * 2**20)  # M_TRIM_THRESHOLD


def run(words: list[str]) -> int:
    """Run one command line; return its exit code, 2 with one sentence for what a user can mend."""
    with warnings.catch_warnings():
        warnings.showwarning = _plainly(warnings.showwarning)
        return _run(words)


def _run(words: list[str]) -> int:
    try:
        if (shown := help_of(app.built, PROGRAM, words)) is not None:
            typer.echo(shown)
            return 0
        app(words, prog_name=PROGRAM)
        return 0
    except SystemExit as end:  # typer's own: words that do not parse (2), an interrupt (130)
        code = end.code if isinstance(end.code, int) else 0
        if code == 130:
            _say("stopped; run the same command again to resume.", code)
        return code
    except UserError as error:
        return _say(str(error), EXIT_CODE)
    except StoppedBySignalError as stop:
        return _say(str(stop), stop.code) if is_first_process() else stop.code
    except OSError as error:
        if _debugging():
            raise
        name = error.filename or "a file"
        return _say(f"{name}: {error.strerror or type(error).__name__}.", EXIT_CODE)
    except Exception as error:
        if _debugging():
            raise
        kind = type(error).__name__
        request = "please report it with what MEDCLIP_DEBIAS_DEBUG=1 prints."
        return _say(f"internal error ({kind}); {request}", 1)


def _plainly(usual: Callable[..., None]) -> Callable[..., None]:
    """Show our own warnings as the sentence that they are, any other as ever."""

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, ReportedWarning):
            typer.echo(f"medclip-debias: {without_patients(str(message))}", err=True)
        else:
            usual(message, category, *place)

    return show


def _debugging() -> bool:
    return bool(os.environ.get("MEDCLIP_DEBIAS_DEBUG"))


def _say(sentence: str, code: int) -> int:
    typer.echo(f"medclip-debias: {without_patients(sentence)}", err=True)
    return code


def _version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, option("Print the version.", "--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    del version
