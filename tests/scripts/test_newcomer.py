"""The newcomer: what it takes from the pages, why it leaves something out, and that it can fail."""

from __future__ import annotations

import pytest

import newcomer
from newcomer import Shell, plan


def test_the_first_pages_can_be_followed_and_every_reason_is_still_needed():
    todo = plan()
    done = [step for step in todo if not step.left_out]
    commands = [step.command for step in done]
    assert commands[0] == "make demo"  # it builds what all others need
    assert commands.count("make demo") == 1
    activated = commands.index("source .venv/bin/activate")
    known = [n for n, step in enumerate(done) if step.python or "medclip-debias " in step.command]
    assert min(known) > activated  # before, the shell knows neither
    assert sum(step.python for step in done) >= 3
    assert {step.page for step in done} == set(newcomer.PAGES)
    reasons = {step.left_out for step in todo}
    assert reasons == {"", *newcomer.NEEDS_DATA.values(), "was done before"}
    assert any(command.startswith(newcomer.SERVES) for command in commands)


@pytest.fixture
def shell(tmp_path):
    opened = Shell(tmp_path, {"PATH": "/usr/bin:/bin"}, tmp_path)
    yield opened
    opened.close()


def test_what_one_step_sets_holds_for_the_next_and_a_failure_is_seen(shell, tmp_path, capfd):
    assert shell.run("export WHO=newcomer; cd /") == 0
    assert shell.run('test "$WHO" = newcomer && pwd    # a remark') == 0
    assert capfd.readouterr().out == "  /\n"
    assert shell.run("false") == 1
    assert shell.run("medclip-debias --help") == 127  # not in this shell's PATH
    assert shell.run("cat") == 0  # nothing to read: it cannot wait for us


def test_a_server_that_ends_is_a_failure(shell):
    assert shell.serve("python3 -c 'print(1)'") == 1
