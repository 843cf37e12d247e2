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

from medclip_debias.errors import did_you_mean
from medclip_debias.files import is_there

WIDTH = 100
OPTIONS = ("-h", "--help")
USUAL = "run"
"""The verb of a group that is meant where none is named."""
PANELS = {
    "First steps": ("demo", "docs"),
    "Data": ("phantom", "prepare", "merge", "claims"),
    "Training": ("language-model", "score", "train", "losses", "config", "doctor"),
    "Evaluation": ("evaluate", "report", "compare", "calibrate", "bench", "import-model"),
    "Looking and searching": ("ground", "view", "index", "search"),
    "Experiments": ("experiment", "study"),
    "Sharing": ("export", "hub"),
}
"""The verbs as ``--help`` lists them; any other comes last."""
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


def write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments first, options by panel, and those without a panel last."""
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    rest: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        record = (record[0], record[1].replace("\\[", "["))  # rich's escape, for old typers
        panel = getattr(parameter, "rich_help_panel", None)
        if parameter.param_type_name == "argument":
            panels["Arguments"].append(record)
        elif isinstance(panel, str):
            panels.setdefault(panel, []).append(record)
        else:
            rest.append(record)
    for title, records in {**panels, "Options": rest}.items():
        _write(formatter, title, records)


class Group(TyperGroup):
    """A group whose help lists its verbs, those of the first level in `PANELS`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs, then the options."""
        panels: dict[str, Sequence[str]] = {} if ctx.parent is not None else {**PANELS}
        placed = {name for names in panels.values() for name in names}
        panels["Verbs"] = [name for name in self.commands if name not in placed]
        for title, names in panels.items():
            _write_verbs(formatter, title, {name: self.commands[name] for name in names})
        write_parameters(self, ctx, formatter)


class UsualGroup(Group):
    """A group of which ``NAME ...`` is ``NAME run ...``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``run`` before words that are no verb of the group, nor look like one."""
        typed = bool(args and did_you_mean(args[0], self.commands) and not is_there(args[0]))
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
        others = {f"{ctx.info_name} {name}": verb for name, verb in self.commands.items()}
        del others[f"{ctx.info_name} {USUAL}"]
        _write_verbs(formatter, "Further", others)
        return f"{usual.get_help(context)}\n\n{formatter.getvalue().strip()}"


class Verb(TyperCommand):
    """A verb whose help has its options in panels."""

    format_options = write_parameters

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


def _write_verbs(formatter: Any, title: str, verbs: Mapping[str, Any]) -> None:
    """Write names of verbs, and the first paragraph of each one's help in one line."""
    helps = {name: inspect.cleandoc(verb.help or "") for name, verb in verbs.items()}
    rows = [(name, " ".join(text.split("\n\n")[0].split())) for name, text in helps.items()]
    _write(formatter, title, rows)


def _write(formatter: Any, title: str, records: Sequence[tuple[str, str]]) -> None:
    if records:
        with formatter.section(typer.style(title, bold=True)):
            formatter.write_dl(records)
