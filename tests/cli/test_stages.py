"""Stages run in order, are left out where done, and stop at the first that fails."""

import contextlib
import json
import threading

import pytest

from medclip_debias.cli.stages import Stage, run_stages
from medclip_debias.errors import UserError


class Ran(list):
    """Command lines in the order in which they ran; `fail` ends with 2."""

    def __call__(self, words):
        self.append(words)
        return 2 if words == ["fail"] else 0


@pytest.fixture
def ran():
    return Ran()


@pytest.fixture
def out(tmp_path):
    (tmp_path / "results.json").write_text('{"timing": {"kept": 1.0}}')
    return tmp_path


def test_they_run_in_order_and_their_times_reach_the_results(ran, out, capsys):
    called = []
    stages = [
        Stage("a", ["a", "b c"]),
        Stage("done", ["no"], out / "results.json"),
        Stage("own", ["python", "x.py"], out / "not there", lambda: called.append(len(ran))),
        Stage("late", lambda: ["late", str(len(called))]),
        Stage("report", ["report"]),
    ]
    run_stages(stages, out, ran)
    assert ran == [["a", "b c"], ["late", "1"], ["report"]]
    assert called == [1]
    content = json.loads((out / "results.json").read_text())
    assert set(content["timing"]) == {"kept", "a", "own", "late", "report", "total"}
    assert content["resources"]["cores"] >= 1
    said = capsys.readouterr().out
    assert "$ medclip-debias a 'b c'" in said
    assert "$ python x.py" in said
    assert "is there already" in said


def test_the_first_that_fails_ends_the_run_with_its_code(ran, out):
    with pytest.raises(SystemExit) as stop:
        run_stages([Stage("a", ["fail"]), Stage("b", ["b"])], out, ran)
    assert stop.value.code == 2
    assert ran == [["fail"]]


def test_what_is_no_verb_says_its_error_in_one_sentence(ran, out, capsys):
    def wrong():
        raise UserError("this is wrong.")

    with pytest.raises(SystemExit) as stop:
        run_stages([Stage("a", ["x"], call=wrong)], out, ran)
    assert stop.value.code == 2
    assert capsys.readouterr().err == "medclip-debias: this is wrong.\n"


@pytest.mark.parametrize("words", [["a"], ["fail"]])
def test_nothing_counts_memory_after_the_last_stage(words, ran, out):
    before = threading.active_count()
    with contextlib.suppress(SystemExit):
        run_stages([Stage("a", words)], out, ran)
    assert threading.active_count() == before
