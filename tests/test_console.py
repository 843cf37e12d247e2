"""What every verb of the console has: options in common, an example, hints, codes, completion."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys

import pytest
import typer

from medclip_debias.cli import COLLECT, app, common, main, run


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


def test_the_example_is_shown_under_the_help_and_brackets_stay(capsys):
    assert run(["prepare", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Example: medclip-debias prepare data/phantom" in shown
    assert "sections=[impression]" in shown
    assert shown.index("Which images") < shown.index("--blank-view") < shown.index("Splits")


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


def test_a_help_is_one_only_where_a_verb_is_named(capsys):
    assert run(["trian", "--help"]) == 2
    assert "Did you mean 'train'" in capsys.readouterr().err
    assert run(["train", "phantom/base", "-h"]) == 0
    assert "Usage: medclip-debias train" in capsys.readouterr().out


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
        (["train", "x.yaml", "--jsn"], "--json"),
        (["bench", "lst"], "Did you mean 'list'"),
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


def test_a_log_has_lines_with_elapsed_and_left_of_this_start(capsys):
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


def test_a_first_batch_that_takes_long_is_not_taken_for_one_image(capsys):
    now = [0.0]
    advance = common._log_lines("Images", 30.0, lambda: now[0])
    for done, moment in ((64, 80.0), (128, 160.0)):
        now[0] = moment
        advance(done, 192)
    assert capsys.readouterr().err == "Images 128 of 192, elapsed 0:02:40, left 0:01:20\n"


def test_of_frequent_lines_a_log_gets_one_now_and_then(capsys):
    line = common.log_lines(3600)
    for text, frequent in (("1", True), ("2", True), ("rare", False), ("3", True)):
        line(text, frequent)
    assert capsys.readouterr().err.split() == ["1", "rare"]


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


def test_a_script_for_completion_can_be_shown(capsys, monkeypatch):
    monkeypatch.setenv("SHELL", "/bin/bash")
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    assert run(["--show-completion"]) == 0
    assert "_MEDCLIP_DEBIAS_COMPLETE=complete_bash" in capsys.readouterr().out


def test_the_program_looks_less_often_through_what_its_imports_made(monkeypatch, capsys):
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    monkeypatch.setattr(sys, "argv", ["medclip-debias", "--version"])
    try:
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        assert gc.get_threshold() == COLLECT
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_verb_that_was_registered_later_is_known_and_gone_with_its_registration(name, capsys):
    @common.app.command(name)
    def later() -> None:
        """Say that it ran."""
        common.show({"ran": name}, True)

    try:
        assert run([name]) == 0
        assert json.loads(capsys.readouterr().out) == {"ran": name}
    finally:
        common.app.registered_commands.pop()
    assert run([name]) == 2
