"""How far cells are apart, on numbers whose spread is known."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.errors import UserError
from studies.machines import moved


def rows(shift: float, spread: float, seed: int):
    rng = np.random.default_rng(seed)
    return [
        {
            "method": method,
            "seed": n,
            "metrics": {"auc": 0.7 + 0.01 * n + shift + spread * rng.normal()},
        }
        for method in ("a", "b")
        for n in range(2000)
    ]


def test_the_spread_that_a_machine_adds_is_found():
    one = moved(rows(0, 0.03, 1), rows(0, 0.03, 2), ["auc"])[0]
    assert one["cells"] == 4000
    assert one["between_machines"] == pytest.approx(0.03, rel=0.05)
    assert one["of_means"] < 0.005
    assert moved(rows(0, 0, 1), rows(0.1, 0, 1), ["auc"])[0]["of_means"] == pytest.approx(0.1)


def test_only_shared_cells_count_and_without_any_it_says_so():
    first, second = rows(0, 0, 1)[:3], rows(0, 0, 1)[2:5]
    assert moved(first, second, ["auc"])[0]["cells"] == 1
    with pytest.raises(UserError, match="share no cell"):
        moved(first[:2], second, ["auc"])
