"""Every command of the pages is one that exists, with these options; Python blocks are Python."""

from __future__ import annotations

import ast
import re
import shlex
import textwrap
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


@cache
def console():
    """The command line, made once: it takes a fifth of a second."""
    return typer.main.get_command(app)


def fences(text, kinds):
    return [(bool(run), body) for run, kind, body in FENCE.findall(text) if kind in kinds]


def commands(text, program):
    """Command lines of a page that begin with ``program``, as words."""
    for _, body in fences(text, {"", "bash", "sh"}):
        for line in body.replace("\\\n", " ").splitlines():
            line = re.sub(r"^\s*\$ ", "", line)
            line = re.sub(r"^(?:(?:srun|[A-Z_]+=\S+) )+", "", line)
            if not line.startswith(program):
                continue
            line = re.sub(r"\[([^\[\]]*)\](?=\s|$)", r"\1", line)  # [--loss NAME]
            for part in re.split(r"\s(?:&&|\|)\s", line):
                if part.startswith(program):
                    words = [PLACES.get(w, w) for w in shlex.split(part, comments=True)]
                    yield line, [word for word in words if word != "..."]


def every(program):
    return [
        pytest.param(words, id=f"{name}: {line[:70]}")
        for name, text in TEXTS.items()
        for line, words in commands(text, program)
    ]


def parse(words):
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


def test_every_medclip_debias_line_parses():
    lines = [each.values[0] for each in every("medclip-debias ")]
    assert len(lines) > 60
    wrong = []
    for words in lines:
        try:
            parse(words[1:])
        except Exception as error:
            wrong.append(f"{shlex.join(words)}: {getattr(error, 'message', error)}")
    assert wrong == []


def test_a_wrong_verb_option_or_number_does_not_parse():
    parse(["bench", "MODEL", "--data", "D", "--out", "O"])
    for line in ("trian x", "train x --bogus", "prepare a", "prepare a b --size many"):
        with pytest.raises((AssertionError, typer.BadParameter.__mro__[1])):
            parse(line.split())


def test_verbs_and_options_named_in_a_sentence_exist():
    named = 0
    for page, text in TEXTS.items():
        prose = FENCE.sub("", text)
        for span in re.findall(r"`(medclip-debias [^`\n]+)`", prose):
            words = span.split()[1:]
            command = console()
            while hasattr(command, "commands") and words and words[0] in command.commands:
                command, words = command.commands[words[0]], words[1:]
            if hasattr(command, "commands") and words:
                bench = command.commands.get("run")
                assert words[0].startswith("-") or bench, f"{page}: {span}"
                command = bench or command
            there = {name for param in command.params for name in param.opts}
            for word in re.findall(r"(?<=\s)--[a-z-]+", " " + " ".join(words)):
                assert word in there | {"--help"}, f"{page}: {span}"
            named += 1
    assert named > 20


def test_every_make_target_exists():
    makefile = (REPO / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    named = [words[1] for text in TEXTS.values() for _, words in commands(text, "make ")]
    named += re.findall(r"`make ([a-z-]+)[^`]*`", "".join(TEXTS.values()))
    assert {"demo", "openi", "test", "docs"} <= set(named) <= targets


def options_of(script):
    """The options that a script declares, read from its source: imports take long."""
    files = [script] if script.is_file() else sorted(script.glob("*.py"))
    for node in (n for f in files for n in ast.walk(ast.parse(f.read_text(encoding="utf-8")))):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            names = [a.value for a in node.args if isinstance(a, ast.Constant)]
            negated = "BooleanOptionalAction" in ast.unparse(node)
            yield from names
            yield from (name.replace("--", "--no-", 1) for name in names if negated)
        if isinstance(node, ast.FunctionDef) and (node.name == "main" or node.decorator_list):
            given = node.args.args  # of a command by typer
            first = len(given) - len(node.args.defaults)
            yield from (
                "--" + argument.arg.replace("_", "-")
                for place, argument in enumerate(given)
                if place >= first or "Option(" in ast.unparse(argument)
            )


def test_every_script_exists_and_takes_these_options():
    scripts = set()
    for name, text in TEXTS.items():
        spans = re.findall(r"`(?:[A-Z_]+=\S+ )*(python\s+scripts/[^`]+)`", FENCE.sub("", text))
        named = [(span, shlex.split(span)) for span in spans]
        for line, words in [*commands(text, "python scripts/"), *named]:
            script = REPO / words[1]
            if words[1] == "scripts/studies":  # the verb of the same name
                parse(["study", *words[2:]])
                continue
            assert (script / "__main__.py" if script.is_dir() else script).is_file(), line
            taken = {*options_of(script), "--help"}
            given = {word.split("=")[0] for word in words[2:] if word.startswith("--")}
            assert given <= taken, f"{name}: {line}"
            scripts.add(script)
    assert len(scripts) > 12


def test_launch_scripts_and_configurations_named_in_commands_exist():
    scripts, settings = set(), set()
    families = "|".join(sorted({name.split("/")[0] for name in names()}))
    for text in TEXTS.values():
        for _, body in fences(text, {"", "bash", "sh"}):
            scripts |= set(re.findall(r"(?<![\w/.])(scripts/[\w./-]+\.\w+)", body))
            settings |= set(re.findall(rf"(?<![\w/.=])((?:{families})/\w+)(?![\w./-])", body))
    assert len(scripts) > 10
    assert len(settings) > 4
    assert [path for path in sorted(scripts) if not (REPO / path).exists()] == []
    assert settings <= set(names())


def test_python_blocks_are_python():
    blocks = [(n, body) for n, text in TEXTS.items() for _, body in fences(text, {"python"})]
    assert len(blocks) > 15
    for _, body in blocks:
        try:
            ast.parse(textwrap.dedent(body))
        except SyntaxError:  # an entry of a dictionary, as CONTRIBUTING.md has
            ast.parse(f"{{{body}}}")


def test_blocks_marked_to_run_do(reader):
    run = [
        (name, body)
        for name, text in TEXTS.items()
        for marked, body in fences(text, {"python"})
        if marked
    ]
    assert len(run) >= 2
    for name, body in run:
        exec(compile(body, name, "exec"), {})


def test_every_verb_has_an_example_that_parses():
    def examples(command):
        for one in command.commands.values():
            if hasattr(one, "commands"):
                yield from examples(one)
            else:
                yield one.epilog.split("Example: medclip-debias ")[1].split("\n")[0]

    lines = list(examples(console()))
    assert len(lines) > 30
    for line in lines:
        parse(shlex.split(line))
