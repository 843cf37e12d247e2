"""Variance components against what they were generated with, and numpy's correlations."""

from __future__ import annotations

import numpy as np
import pytest

from studies.variance import variance_parts, variance_table


def rows_of(values):
    """``values`` ``[M, S, R]`` as rows."""
    return [
        {"method": f"m{m}", "seed": s, "auc": float(value)}
        for m, one in enumerate(values)
        for s, two in enumerate(one)
        for value in two
    ]


def made(rng, methods, seeds, replicates):
    """Variances: .04 of the seed, .01 of the method on a seed, .09 of a training."""
    levels = rng.normal(size=(methods, 1, 1))
    of_seed = 0.2 * rng.normal(size=(1, seeds, 1))
    both = 0.1 * rng.normal(size=(methods, seeds, 1))
    return levels + of_seed + both + 0.3 * rng.normal(size=(methods, seeds, replicates))


@pytest.mark.parametrize(("replicates", "training"), [(1, None), (3, 0.09)])
def test_the_components_are_what_the_values_were_generated_with(replicates, training):
    rng = np.random.default_rng(0)
    parts = variance_parts(rows_of(made(rng, 30, 300, replicates)), "auc")
    assert parts.seed == pytest.approx(0.04, rel=0.25)
    assert parts.rest == pytest.approx(0.10, rel=0.05)
    assert parts.replicates == replicates
    assert parts.training == (training and pytest.approx(training, rel=0.05))


def test_the_correlation_is_the_mean_over_the_pairs_of_methods():
    values = made(np.random.default_rng(1), 4, 6, 2)
    means = values.mean(axis=2)
    pairs = [np.corrcoef(means[i], means[j])[0, 1] for i in range(4) for j in range(i)]
    assert variance_parts(rows_of(values), "auc").correlation == pytest.approx(np.mean(pairs))


def test_a_paired_difference_varies_by_twice_the_rest():
    values = made(np.random.default_rng(2), 2, 500, 1)
    parts = variance_parts(rows_of(values), "auc")
    gaps = values[0, :, 0] - values[1, :, 0]
    assert gaps.var(ddof=1) == pytest.approx(2 * parts.rest)


def test_what_cannot_be_told_apart_is_not_said():
    one = rows_of(made(np.random.default_rng(3), 1, 5, 1))
    assert variance_parts(one, "auc") is None
    two = rows_of(made(np.random.default_rng(3), 2, 5, 2))
    assert variance_parts(two[:-1], "auc") is None
    assert variance_table("t", two[:-1], ["auc"], ["AUC"]) == []
    (table,) = variance_table("t", two, ["auc"], ["AUC"])
    assert table.rows[0][0] == "AUC"
    (single,) = variance_table("t", two[::2], ["auc"], ["AUC"])
    assert single.rows[0][3] == "not measured"
