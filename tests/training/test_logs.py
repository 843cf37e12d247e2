"""Tables of a run's figures, also as a crash of the machine leaves them."""

from __future__ import annotations

import math

import pytest

from medclip_debias.training.logs import RunLog, last_loss

WHOLE = "step,loss,scale\n10,2.5,14\n20,1.5,13\n"


@pytest.mark.parametrize("torn", ["", "30", "30,", "30,1.25", "30,x,1", "\x00\x00\x00"])
def test_a_row_that_was_cut_off_is_dropped(tmp_path, torn):
    path = tmp_path / "metrics.csv"
    path.write_text(WHOLE + torn)
    assert last_loss(path) == 1.5
    with RunLog(tmp_path, 30) as log:
        log.write({"step": 40, "loss": 1.0, "scale": 12.0})
    assert path.read_text() == WHOLE + "40,1,12\n"


def test_rows_of_steps_that_are_taken_again_are_dropped(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text(WHOLE)
    with RunLog(tmp_path, 10):
        pass
    assert path.read_text() == "step,loss,scale\n10,2.5,14\n"
    assert last_loss(path) == 2.5
    with RunLog(tmp_path, 0):
        pass
    assert math.isnan(last_loss(path))
