"""Batches of several sets: shares by weight, without repeats, by seed and step alone."""

from __future__ import annotations

from fractions import Fraction
from math import log2

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.mixture import Mixture

WEIGHTS = st.lists(st.integers(1, 40).map(lambda n: n / 8), min_size=1, max_size=5)


def mixture(weights, batch, sizes=None, seed=0, batches=None):
    sizes = sizes or [4 * batch] * len(weights)
    ends = np.cumsum(sizes)
    sets = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    return Mixture(sets, weights, batch, seed, [f"set {n}" for n in range(len(sets))], batches)


@given(WEIGHTS, st.integers(2, 12), st.integers(0, 3))
def test_a_pass_has_no_study_twice_and_no_batch_either(weights, batch, seed):
    sizes = [batch + 7 * n for n in range(len(weights))]
    drawn = mixture(weights, batch, sizes, seed)
    counts = drawn.counts(np.arange(60))
    ends = np.cumsum(sizes)
    seen = [set() for _ in weights]
    for step in range(60):
        members = drawn.members(step)
        assert len(set(members.tolist())) == batch
        which = np.searchsorted(ends, members, side="right")
        assert np.bincount(which, minlength=len(weights)).tolist() == counts[step].tolist()
        for number, size in enumerate(sizes):
            mine = set(members[which == number].tolist())
            if len(seen[number]) + len(mine) > size:  # the pass has no whole batch left
                seen[number] = set()
            assert not seen[number] & mine
            seen[number] |= mine


def test_a_batch_follows_from_seed_and_step_whatever_came_before():
    in_order, backwards = mixture([2, 1], 7), mixture([2, 1], 7)
    forward = [in_order.members(step) for step in range(50)]
    for step in reversed(range(50)):
        assert backwards.members(step).tolist() == forward[step].tolist()
    other = mixture([2, 1], 7, seed=1)
    assert any(other.members(n).tolist() != forward[n].tolist() for n in range(5))


@given(WEIGHTS, st.integers(1, 40), st.integers(1, 200), st.data())
def test_sets_of_other_batches_never_meet_and_every_share_is_kept(weights, batch, steps, data):
    names = data.draw(
        st.lists(st.sampled_from("abc"), min_size=len(weights), max_size=len(weights))
    )
    counts = mixture(weights, batch, batches=names).counts(np.arange(steps))
    assert (counts.sum(axis=1) == batch).all()
    owners = np.array(names)
    whose = [set(owners[row > 0]) for row in counts]
    assert all(len(one) == 1 for one in whose)
    exact = [Fraction(str(weight)) for weight in weights]
    for name in set(names):
        inside = sum(w for w, n in zip(exact, names, strict=True) if n == name)
        seen = np.cumsum([one == {name} for one in whose])
        for k in range(1, steps + 1):
            assert abs(seen[k - 1] - k * inside / sum(exact)) <= 1 + log2(k + 1)
        for number in np.flatnonzero(owners == name):
            share = batch * exact[number] / inside
            taken = counts[[one == {name} for one in whose], number]
            assert set(taken) <= {int(share), -int(-share // 1)}


def test_a_set_of_weight_0_has_no_batches_and_whole_shares_are_exact():
    counts = mixture([1, 0, 3], 8, batches=["a", "b", "a"]).counts(np.arange(40))
    assert (counts == [2, 0, 6]).all()
