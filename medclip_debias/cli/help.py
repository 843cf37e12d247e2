"""The help of every verb: sections of plain text, shown before anything heavy is imported.

Typer's own help draws boxes with rich, whose import alone takes as long as all the rest, and reads
``VERB --help`` as it reads any line, which builds pydantic's adapters. A help that is asked for is
therefore answered first, and by click's formatter.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from medclip_debias.errors import did_you_mean

WIDTH = 100
OPTIONS = ("-h", "--help")
USUAL = "run"
"""The verb of a group that is meant where none is named."""
ORDER = (
    *("demo", "docs"),
    *("phantom", "prepare", "merge", "claims"),
    *("language-model", "score", "train", "losses", "config", "doctor"),
    *("evaluate", "report", "compare", "calibrate", "bench", "import-model"),
    *("ground", "view", "index", "search"),
    *("experiment", "study"),
    *("export", "hub"),
)
"""The verbs as ``--help`` lists them."""
SETTINGS: Mapping[str, Any] = {"help_option_names": list(OPTIONS), "max_content_width": WIDTH}


def help_of(command: Any, program: str, words: Sequence[str]) -> str | None:
    """The help that ``words`` ask for, as ``train --help``; None if they ask for something else."""
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

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the verbs; those of the first level in `ORDER`."""
        names = super().list_commands(ctx)
        if ctx.parent is not None:
            return names
        return sorted(names, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs, then the options."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                rows.setdefault(_title(panel, "Verbs"), []).append((name, _said(command)))
        _write(formatter, rows)
        _write(formatter, _parameters(self, ctx))


class UsualGroup(Group):
    """A group of which ``NAME ...`` is ``NAME run ...``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``run`` before words that are no verb of the group, nor look like one."""
        typed = bool(args and did_you_mean(args[0], self.commands) and not Path(args[0]).exists())
        if args and not typed and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [USUAL, *args]
        return super().parse_args(ctx, args)


class VerbGroup(UsualGroup):
    """A verb with further verbs: its help is that of the usual one, and lists the others."""

    def get_help(self, ctx: Any) -> str:
        """The help of ``run`` under the group's own name, and the other verbs below."""
        usual = self.commands[USUAL]
        context = typer.Context(usual, parent=ctx.parent, info_name=ctx.info_name, **SETTINGS)
        formatter = ctx.make_formatter()
        others = [name for name in self.commands if name != USUAL]
        rows = [(f"{ctx.info_name} {name}", _said(self.commands[name])) for name in others]
        _write(formatter, {"Further": rows})
        return f"{usual.get_help(context)}\n\n{formatter.getvalue().strip()}"


class Verb(TyperCommand):
    """A verb whose help has its options in panels."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words; one with dashes that is no option may be meant as a setting."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # click's NoSuchOption, of which a typer may have its own copy
            settings = [each for each in self.params if each.name == "settings"]
            if type(error).__name__ == "NoSuchOption" and settings:
                word = vars(error)["option_name"].lstrip("-")
                if settings[0].param_type_name == "argument":
                    vars(error)["message"] += f"; a setting has no dashes, as {word}=VALUE"
            raise

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


def _said(command: Any) -> str:
    """The first paragraph of a verb's help, in one line."""
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())


def _title(panel: Any, default: str) -> str:
    return panel if isinstance(panel, str) else default


def _write(formatter: Any, rows: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    for title, records in rows.items():
        if records:
            with formatter.section(typer.style(title, bold=True)):
                formatter.write_dl(records)
