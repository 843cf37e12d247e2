"""The script of bad inputs: what it plays is answered rightly, and it sees when it is not."""

from __future__ import annotations

import functools
import runpy
import sys
from pathlib import Path

import pytest

from medclip_debias.reporting import prepared_page

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz" / "bad_inputs"


@pytest.fixture(scope="module")
def drawn_once():
    """A plot of a set's page that is asked for again is not drawn again: the sets are alike."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("bars", "levels"):
            patched.setattr(prepared_page, name, _kept(getattr(prepared_page, name)))
        yield


def _kept(draw):
    known = {}

    @functools.wraps(draw)
    def drawn(*given, **named):
        key = repr((given, named))
        if key not in known:
            known[key] = draw(*given, **named)
        return known[key]

    return drawn


@pytest.fixture
def play(monkeypatch, capsys, drawn_once):
    """A function that runs the script with words; its exit code and what it printed."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words])
        monkeypatch.setattr(sys, "path", [str(SCRIPT), *sys.path])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return end.value.code, capsys.readouterr().out

    yield run
    for path in SCRIPT.glob("[a-z]*.py"):  # flat names, which nobody else may meet
        sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("area", ["manifest", "image file", "results of a study"])
def test_bad_inputs_are_answered_rightly(play, area):
    code, said = play("--only", area)
    assert code == 0, said
    assert "; 0 faults" in said
    assert int(said.split(" bad inputs")[0]) > 5


def test_a_wrong_answer_is_seen(play, monkeypatch):
    """Bad input taken in silence, a name that is repeated, a traceback: none passes."""
    import medclip_debias.cli as cli
    from medclip_debias.cli.common import note

    real = cli.run
    monkeypatch.setattr(cli, "run", lambda words: real(words) and 0)
    code, said = play("--only", "a label of 2")
    assert code == 1
    assert "takes it in silence" in said
    monkeypatch.setattr(cli, "run", lambda words: note("Quackenbush") or real(words))
    code, said = play("--only", "a label of 2")
    assert code == 1
    assert "says a patient's name or id" in said
