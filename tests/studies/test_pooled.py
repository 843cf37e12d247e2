"""Differences over the seeds of several grids."""

from __future__ import annotations

import pytest

from medclip_debias.errors import UserError
from studies.pooled import paired


def rows(seeds, shift):
    return [
        {"method": method, "seed": seed, "metrics": {"auc": 0.1 * seed + extra}}
        for seed in seeds
        for method, extra in (("a", shift), ("b", 0.0))
    ]


def test_seeds_of_two_grids_are_paired_and_never_counted_twice():
    found = paired([rows([2, 0], 0.5), rows([1], 0.25)], "a", "b", "auc")
    assert found == pytest.approx([0.5, 0.25, 0.5])
    with pytest.raises(UserError, match="seed 0 of 'a' is in two"):
        paired([rows([0], 0), rows([0], 0)], "a", "b", "auc")
    with pytest.raises(UserError, match="fewer than two seeds"):
        paired([rows([0], 0)], "a", "c", "auc")
