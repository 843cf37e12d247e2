"""Whatever is wrong with an input: one sentence and exit code 2, or a count of what was left aside.

Every case of tests/helpers/bad_inputs runs through the entry of the console command, with a planted
patient's name and ids. A traceback, something left behind half-written, a name in a message, or bad
input that is taken in silence fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bad_inputs import folder_cases
from bad_inputs.case import CASES, Case, play
from bad_inputs.world import Base, World


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad") / "base"
    folder.mkdir()
    return Base(folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.area}: {case.what}")
def test_bad_input_ends_in_a_sentence_or_is_counted(case, base, tmp_path):
    outcome = play(case, World(base, tmp_path / "case"))
    assert not outcome.fault, outcome.said


@pytest.mark.parametrize("damage", ["empty", "cut off", "missing"])
def test_every_damaged_file_of_a_search_index_is_refused(damage, base, tmp_path):
    cases = folder_cases.index_cases(base.index, damage)
    assert len(cases) > 3
    assert not faults(cases, base, tmp_path)


@pytest.mark.parametrize("damage", [*folder_cases.PART_DAMAGES])
def test_every_damaged_file_of_a_part_of_a_set_is_refused(damage, base, tmp_path):
    cases = folder_cases.part_cases(base.part, damage)
    assert len(cases) > 3
    assert not faults(cases, base, tmp_path)


def faults(cases: list[Case], base: Base, folder: Path) -> list[str]:
    outcomes = [play(case, World(base, folder / str(n))) for n, case in enumerate(cases)]
    return [f"{o.case.what}: {o.fault}: {o.said}" for o in outcomes if o.fault]


@pytest.fixture
def label_of_two():
    return next(case for case in CASES if (case.area, case.what) == ("manifest", "a label of 2"))


def test_bad_input_that_is_taken_in_silence_is_a_fault(label_of_two, base, tmp_path, monkeypatch):
    import medclip_debias.cli as cli

    real = cli.run
    monkeypatch.setattr(cli, "run", lambda words: real(words) and 0)
    assert "in silence" in play(label_of_two, World(base, tmp_path / "case")).fault


def test_a_patients_name_in_a_message_is_a_fault(label_of_two, base, tmp_path, monkeypatch):
    import medclip_debias.cli as cli
    from medclip_debias.cli.common import note

    real = cli.run
    monkeypatch.setattr(cli, "run", lambda words: note("Quackenbush") or real(words))
    assert "patient's name" in play(label_of_two, World(base, tmp_path / "case")).fault
