"""The help of every verb: sections of plain text, shown before anything heavy is imported.

Typer's own help draws boxes with rich, whose import alone takes as long as all the rest, and reads
``VERB --help`` as it reads any line, which builds pydantic's adapters. A help that is asked for is
therefore answered first, and by click's formatter.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

WIDTH = 100
OPTIONS = ("-h", "--help")
SETTINGS: Mapping[str, Any] = {"help_option_names": list(OPTIONS), "max_content_width": WIDTH}


def help_of(command: Any, program: str, words: Sequence[str]) -> str | None:
    """The help that ``words`` ask for, as ``train --help``; None if they ask for something else.

    Args:
        command: of the application.
        program: its name on the command line.
        words: what follows the name.
    """
    *path, last = words or [""]
    if last not in OPTIONS:
        return None
    context = typer.Context(command, info_name=program, **SETTINGS)
    for name in path:
        command = getattr(command, "commands", {}).get(name)
        if command is None:
            return None
        context = typer.Context(command, parent=context, info_name=name)
    return str(command.get_help(context))


class Group(TyperGroup):
    """A group whose help lists its verbs in panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs, then the options."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                said = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
                rows.setdefault(_title(panel, "Verbs"), []).append((name, said))
        _write(formatter, rows)
        _write(formatter, _parameters(self, ctx))


class Verb(TyperCommand):
    """A verb whose help has its options in panels."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options."""
        _write(formatter, _parameters(self, ctx))


def _parameters(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Rows of the help by panel: arguments first, options without a panel last."""
    rows: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    rest: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        record = (record[0], record[1].replace("\\[", "["))  # rich's escape, for old typers
        panel = getattr(parameter, "rich_help_panel", None)
        if parameter.param_type_name == "argument":
            rows["Arguments"].append(record)
        elif panel:
            rows.setdefault(_title(panel, ""), []).append(record)
        else:
            rest.append(record)
    return {**rows, "Options": rest}


def _title(panel: Any, default: str) -> str:
    return panel if isinstance(panel, str) else default


def _write(formatter: Any, rows: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    for title, records in rows.items():
        if records:
            with formatter.section(typer.style(title, bold=True)):
                formatter.write_dl(records)
