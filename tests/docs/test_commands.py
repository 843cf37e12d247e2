"""Every command of the pages is one that exists, with these options; blocks that say so run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

import pytest
import typer

from docs_site import OUTSIDE, REPO
from medclip_debias.cli import app
from medclip_debias.named_settings import names

PAGES = [*sorted((REPO / "docs").rglob("*.md")), *(REPO / n for n in ("README.md", *OUTSIDE))]
TEXTS = {str(page.relative_to(REPO)): page.read_text(encoding="utf-8") for page in PAGES}
PLACES = {"N": "1", "--workers=N": "--workers=1"}  # what a page writes where a number goes
FENCE = re.compile(r"(<!-- run -->\n)?^```(\w*)\n(.*?)^```$", re.S | re.M)
FENCES = [(name, *found) for name, text in TEXTS.items() for found in FENCE.findall(text)]
SHELL = "".join(body for _, _, kind, body in FENCES if kind in ("", "bash", "sh"))


@cache
def console():
    """The command line, made once: it takes a fifth of a second."""
    return typer.main.get_command(app)


def commands(program: str) -> Iterator[list[str]]:
    """Command lines of all pages that begin with ``program``, as words."""
    for line in SHELL.replace("\\\n", " ").splitlines():
        line = re.sub(r"^\s*(?:\$ )?(?:(?:srun|[A-Z_]+=\S+) )*", "", line)
        if not line.startswith(program):
            continue
        line = re.sub(r"\[([^\[\]]*)\](?=\s|$)", r"\1", line)  # [--loss NAME]
        for part in re.split(r"\s(?:&&|\|)\s", line):
            if part.startswith(program):
                words = [PLACES.get(w, w) for w in shlex.split(part, comments=True)]
                yield [word for word in words if word != "..."]


def examples(command) -> Iterator[list[str]]:
    """The example of each verb's --help."""
    for one in command.commands.values():
        if hasattr(one, "commands"):
            yield from examples(one)
        else:
            yield shlex.split(one.epilog.split("Example: medclip-debias ")[1].split("\n")[0])


def parse(words: list[str]) -> None:
    """Read the words of one command line as the console does, and run nothing."""
    command, parent = console(), None
    while hasattr(command, "commands"):
        options = {name for param in command.params for name in (*param.opts, "--help")}
        if words and words[0] in options:
            return
        parent = command.context_class(command, info_name=command.name, parent=parent)
        name = words[0] if words and words[0] in command.commands else "run"  # of bench
        assert name in command.commands, f"there is no verb '{words[0]}'"
        words = words[1:] if words and words[0] == name else words
        command = command.commands[name]
    if "--help" not in words:
        command.make_context(command.name, list(words), parent=parent)


def test_the_commands_of_the_pages_and_of_help_parse_and_wrong_ones_do_not():
    lines = [words[1:] for words in commands("medclip-debias ")]
    lines += [["study", *words[2:]] for words in commands("python scripts/studies ")]
    assert len(lines) > 60
    wrong = []
    for words in [*lines, *examples(console())]:
        try:
            parse(words)
        except Exception as error:
            wrong.append(f"{shlex.join(words)}: {getattr(error, 'message', error)}")
    assert wrong == []
    for line in ("trian x", "train x --bogus", "prepare a", "prepare a b --size many"):
        with pytest.raises((AssertionError, typer.BadParameter.__mro__[1])):
            parse(line.split())


def test_targets_scripts_and_settings_that_commands_name_exist():
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    targets = {words[1] for words in commands("make ")}
    assert {"demo", "openi"} <= targets <= set(re.findall(r"^([a-z-]+):", makefile, re.M))
    scripts = set(re.findall(r"(?<![\w/.])(scripts/[\w./-]+\.\w+)", SHELL))
    assert len(scripts) > 10
    assert [path for path in sorted(scripts) if not (REPO / path).exists()] == []
    families = "|".join(sorted({name.split("/")[0] for name in names()}))
    settings = set(re.findall(rf"(?<![\w/.=])((?:{families})/\w+)(?![\w./-])", SHELL))
    assert len(settings) > 4
    assert settings <= set(names())


def test_blocks_marked_to_run_do(reader):
    marked = [(name, body) for name, run, kind, body in FENCES if run and kind == "python"]
    assert len(marked) >= 2
    for name, body in marked:
        exec(compile(body, name, "exec"), {})
