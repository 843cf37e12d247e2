"""Differences over the seeds of several grids."""

from __future__ import annotations

import pytest

from medclip_debias.errors import UserError
from studies.pooled import in_one_family, paired


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


def test_the_differences_of_all_grids_are_one_family():
    def contrast(method, p):
        return {"method": method, "against": "b", "metric": "auc", "p": p}

    grids = [[contrast("a", 0.01), contrast("c", None)], [contrast("a", 0.02), contrast("c", 0.5)]]
    # Holm by hand: 3 x .01, then the larger of that and 2 x .02; the one without p is not tested.
    assert in_one_family(grids, "a", "b", "auc") == (pytest.approx([0.03, 0.04]), 3)
