"""Stages run in order, are left out where done, and stop at the first that fails."""

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
def out(tmp_path):
    """The folder of a run; in the end nothing counts its memory any more."""
    before = threading.active_count()
    (tmp_path / "results.json").write_text('{"timing": {"kept": 1.0}}')
    yield tmp_path
    assert threading.active_count() == before


def test_they_run_in_order_and_their_times_reach_the_results(out, capsys):
    called, ran = [], Ran()
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


def test_the_first_that_fails_ends_the_run_with_its_code_and_one_sentence(out, capsys):
    def wrong():
        raise UserError("this is wrong.")

    for first, said in (
        (Stage("a", ["fail"]), ""),
        (Stage("a", ["x"], call=wrong), "medclip-debias: this is wrong.\n"),
    ):
        ran = Ran()
        with pytest.raises(SystemExit) as stop:
            run_stages([first, Stage("b", ["b"])], out, ran)
        assert stop.value.code == 2
        assert ["b"] not in ran
        assert capsys.readouterr().err == said


def test_a_product_of_other_words_is_not_taken_for_these(out, capsys, monkeypatch):
    def made(studies, tree="phantom"):
        def verb(words):
            (out / "phantom").mkdir()
            return 0

        run_stages([Stage("phantom", ["phantom", tree, studies], out / "phantom")], out, verb)
        return capsys.readouterr().out

    monkeypatch.chdir(out)
    assert "is there already" not in made(10)
    assert "is there already" in made(10, out / "phantom")  # named otherwise, but the same
    with pytest.raises(UserError, match=r"phantom 10` made it, and not .*phantom 20`.* --fresh"):
        made(20)


def test_a_word_that_is_longer_than_any_name_of_a_file_is_a_word(out, capsys):
    """As a list of thirty classes is, which ended make real in a traceback."""
    classes = ",".join(f"Class {number}" for number in range(40))

    def verb(words):
        (out / "judged").mkdir()
        return 0

    stages = [Stage("judged", ["evaluate", "--classes", classes], out / "judged")]
    for _ in range(2):
        run_stages(stages, out, verb)
    assert "is there already" in capsys.readouterr().out
