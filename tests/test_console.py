"""What every verb of the console has: options in common, an example, hints, codes, completion."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import typer

from medclip_debias.cli import app, common, run
from medclip_debias.cli.help import help_of


def verbs(command, before=""):
    for name, one in command.commands.items():
        if hasattr(one, "commands"):
            yield from verbs(one, f"{before}{name} ")
        else:
            yield before + name, one


@pytest.fixture(scope="module")
def known():
    return dict(verbs(typer.main.get_command(app)))


def test_every_verb_has_json_quiet_and_an_example_of_itself(known):
    assert len(known) > 30
    for name, verb in known.items():
        options = {option for param in verb.params for option in param.opts}
        assert {"--json", "--quiet"} <= options, name
        shown = re.match(r"Example: medclip-debias (.+)", verb.epilog or "")
        assert shown, name
        assert shown[1].startswith(name.removesuffix(" run")), name


def test_every_help_is_answered_before_anything_is_parsed_or_drawn(known, capsys):
    slow = ("rich", "pydantic", "numpy", "yaml")
    code = (
        "import sys; from medclip_debias.cli import run;"
        "codes = {run([*words.split(), '--help']) for words in sys.argv[1:]};"
        f"print(codes, sorted(set(sys.modules) & set({slow!r})), file=sys.stderr)"
    )
    answered = subprocess.run(
        [sys.executable, "-c", code, "", "bench", "config", *known],
        capture_output=True,
        text=True,
        check=True,
    )
    assert answered.stderr == "{0} []\n"
    assert answered.stdout.count("Usage: medclip-debias") == len(known) + 3


def test_help_lists_every_verb_once_in_a_panel_and_fits_on_a_screen(known, capsys):
    shown = help_of(typer.main.get_command(app), "medclip-debias", ["--help"]).splitlines()
    assert len(shown) <= 50
    panels = {}
    for line in (re.sub(r"\x1b\[\d+m", "", line) for line in shown):
        if line.endswith(":") and not line.startswith(" "):
            panels[line] = []
        elif panels and line.startswith("  ") and line[2] not in " -":
            panels[[*panels][-1]].append(line.split()[0])
    order = ["First steps:", "Data:", "Training:", "Evaluation:", "Looking and searching:"]
    order += ["Experiments:", "Sharing:", "Options:"]
    assert list(panels) == order, "name a panel, or --help lists the verb apart from all"
    listed = sorted(name for names in panels.values() for name in names)
    assert listed == sorted({name.split()[0] for name in known})


def test_a_help_is_one_only_where_a_verb_is_named(capsys):
    assert run(["trian", "--help"]) == 2
    assert "Did you mean 'train'" in capsys.readouterr().err
    assert run(["train", "phantom/base", "-h"]) == 0
    assert "Usage: medclip-debias train" in capsys.readouterr().out
    assert run(["evaluate", "--help"]) == 0  # that of the usual one, and the further verbs
    shown = capsys.readouterr().out
    assert "--bootstrap" in shown
    assert "evaluate probe" in shown


@pytest.mark.parametrize(
    ("verb", "hint"), [("train", True), ("experiment", True), ("index", False)]
)
def test_a_setting_with_dashes_is_shown_how_it_is_given(verb, hint, capsys):
    assert run([verb, "phantom/demo", "somewhere", "--seed-of-all", "3"]) == 2
    assert ("as seed-of-all=VALUE" in capsys.readouterr().err) is hint


def test_a_help_names_what_typers_own_would(known, capsys):
    for name, verb in known.items():
        run([*name.split(), "-h"])
        shown = capsys.readouterr().out
        for param in verb.params:
            assert all(option in shown for option in param.opts), (name, param.name)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian"], "Did you mean 'train'"),
        (["config", "shwo"], "Did you mean 'show'"),
        (["train", "phantom/base", "train.step=5"], "did you mean 'steps'"),
        (["train", "phantom/base", "--loss", "debiasd"], "did you mean 'debiased"),
    ],
)
def test_a_typo_is_answered_by_what_was_meant(capsys, monkeypatch, words, hint):
    monkeypatch.chdir(__file__.rsplit("/tests", 1)[0])
    assert run(words) == 2
    assert hint in capsys.readouterr().err


def test_a_model_whose_name_is_like_a_verb_is_still_a_model(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lists").mkdir()
    assert run(["bench", "lists"]) == 2
    assert "Missing option '--data'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (ValueError("x"), 1, "internal error (ValueError)"),
        (FileNotFoundError(2, "No such file", "a.csv"), 2, "a.csv: No such file"),
        (KeyboardInterrupt(), 130, "stopped; run the same command again to resume."),
    ],
)
def test_how_a_verb_ends_is_said_by_its_exit_code(capsys, monkeypatch, error, code, sentence):
    def fail(*_):
        raise error

    monkeypatch.delenv("MEDCLIP_DEBIAS_DEBUG", raising=False)
    monkeypatch.setattr("medclip_debias.losses.describe", fail)
    assert run(["losses", "--quiet"]) == code
    assert sentence in capsys.readouterr().err


def test_quiet_leaves_results_warnings_and_errors(capsys):
    @common.app.command(example="speak")
    def speak(as_json: common.AsJson = False) -> None:
        """Say everything that a verb can say."""
        common.note("a note")
        common.must_know("a warning")
        with common.progress("Things") as advance:
            advance(1, 2)
        common.log_lines(0)("a line", False)
        common.show({"found": 1}, as_json)

    try:
        assert run(["speak", "--quiet", "--json"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out) == {"found": 1}
        assert captured.err == "a warning\n"
        assert run(["speak"]) == 0  # the option of one command line is not that of the next
        assert capsys.readouterr().err == "a note\na warning\na line\n"
    finally:
        common.app.registered_commands.pop()


def test_a_log_says_what_is_left_at_the_pace_of_this_start(capsys):
    now = [0.0]
    advance = common._log_lines("Steps", 30.0, lambda: now[0])
    for done, moment in ((51, 2.0), (52, 20.0), (60, 40.0), (70, 60.0), (71, 71.0)):
        now[0] = moment
        advance(done, 100, 0.5 if done == 60 else float("nan"))
    assert capsys.readouterr().err.splitlines() == [
        # 9 steps in 38 s, 40 are left; then 20 in 69 s
        "Steps 60 of 100, elapsed 0:00:40, left 0:02:49, loss 0.5000",
        "Steps 71 of 100, elapsed 0:01:11, left 0:01:40",
    ]
    advance = common._log_lines("Images", 30.0, lambda: now[0])
    for done, moment in ((64, 151.0), (128, 231.0)):  # a first batch that takes long
        now[0] = moment
        advance(done, 192)
    assert capsys.readouterr().err == "Images 128 of 192, elapsed 0:02:40, left 0:01:20\n"


def test_the_shell_completes_verbs_and_options(capsys, monkeypatch):
    monkeypatch.setenv("_MEDCLIP_DEBIAS_COMPLETE", "complete_bash")
    for typed, number, wanted in (
        ("medclip-debias tra", "1", {"train"}),
        ("medclip-debias bench va", "2", {"validate"}),
        ("medclip-debias train x --allow", "3", {"--allow-changed-data"}),
    ):
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", number)
        assert run([]) == 0
        assert set(capsys.readouterr().out.split()) == wanted
