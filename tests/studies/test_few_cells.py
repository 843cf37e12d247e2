"""Ten cells of a study, measured twice and compared."""

from __future__ import annotations

import pytest

from medclip_debias.errors import UserError
from studies.few_cells import measured, moved


def test_the_same_processor_measures_the_same(tmp_path):
    found = measured("fine-grained", 3, tmp_path)
    assert len(found["rows"]) == 3
    lines = moved(found, measured("fine-grained", 3, tmp_path))
    assert lines
    assert all(line["moved"] == 0 and line["largest"] == 0 for line in lines)


def test_what_moves_is_counted_by_figure():
    one = {"study": "x", "rows": [{"auc": 0.5, "at": [1, 2]}, {"auc": 0.7, "at": [3, 4]}]}
    other = {"study": "x", "rows": [{"auc": 0.5, "at": [1, 2]}, {"auc": 0.6, "at": [3, 6]}]}
    auc, at = moved(one, other)
    assert (auc["values"], auc["moved"], auc["largest"]) == (2, 1, pytest.approx(0.1))
    assert (at["values"], at["moved"], at["largest"]) == (4, 1, 2)
    with pytest.raises(UserError, match="same cells"):
        moved(one, {**other, "study": "y"})
