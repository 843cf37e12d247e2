"""Whatever is wrong with an input: one sentence and exit code 2, or a count of what was left aside.

Every case of tests/helpers/bad_inputs runs through the entry of the console command, with a planted
patient's name and ids. A traceback, something left behind half-written, a name in a message, or bad
input that is taken in silence fails.
"""

from __future__ import annotations

import pytest

from bad_inputs.case import CASES, play
from bad_inputs.folder_cases import index_cases, part_cases
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


@pytest.mark.parametrize("every", [index_cases, part_cases])
def test_every_damaged_file_of_a_folder_is_refused(every, base, tmp_path):
    cases = every(base)
    assert len(cases) > 3
    for number, case in enumerate(cases):
        outcome = play(case, World(base, tmp_path / str(number)))
        assert not outcome.fault, (case.what, outcome.said)


@pytest.mark.parametrize(
    ("name", "code", "fault"), [("", 0, "in silence"), ("Quackenbush", 2, "patient's name")]
)
def test_silence_and_a_patients_name_in_a_message_are_faults(
    base, tmp_path, monkeypatch, name, code, fault
):
    import medclip_debias.cli as cli
    from medclip_debias.cli.common import note

    monkeypatch.setattr(cli, "run", lambda _: note(f"medclip-debias: {name}.") or code)
    assert fault in play(CASES[0], World(base, tmp_path / "case")).fault
