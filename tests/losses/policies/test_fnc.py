"""False negative cancellation: the quantile, equal values, and its start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.losses import ContrastiveBatch
from medclip_debias.losses.policies.fnc import FalseNegativeCancellation, FNCSettings


def removed(policy, similarity):
    """``[A, C]`` bool, of text anchors."""
    batch = ContrastiveBatch(similarity, 14.0)
    (anchors,) = batch.anchors("text_to_image")
    after = policy.apply_to(anchors, batch)
    torch.testing.assert_close(after.mass, anchors.mass)
    return anchors.negatives & ~after.negatives


@given(seed=st.integers(0, 2**20), alpha=st.floats(0.001, 0.999), images=st.integers(3, 40))
def test_what_lies_above_the_quantile_is_removed(seed, alpha, images):
    g = torch.Generator().manual_seed(seed)
    similarity = torch.rand(images, images, generator=g, dtype=torch.float64)
    policy = FalseNegativeCancellation(FNCSettings(alpha=alpha))
    for j, gone in enumerate(removed(policy, similarity).numpy()):
        column = similarity[:, j].numpy().copy()
        row = np.delete(column, j)
        column[j] = -1
        assert set(np.flatnonzero(gone)) == set(np.argsort(-column)[: gone.sum()])
        assert gone.sum() >= 1
        # numpy's quantile interpolates: exactly the values strictly above it go.
        position = (len(row) - 1) * (1 - alpha)
        if abs(position - round(position)) > 1e-6:
            assert gone.sum() == (row > np.quantile(row, 1 - alpha)).sum()


@pytest.mark.parametrize(("alpha", "count"), [(0, 0), (1e-9, 1), (0.07, 7), (0.5, 50)])
def test_it_counts_exactly_also_among_equals(alpha, count):
    gone = removed(FalseNegativeCancellation(FNCSettings(alpha=alpha)), torch.ones(102, 102))
    assert (gone.sum(dim=1) == count).all()


def test_it_waits_for_its_start_and_a_resumed_one_does_not_wait_again():
    similarity = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    options = FNCSettings(alpha=0.3, start_step=3)
    policy, resumed = FalseNegativeCancellation(options), FalseNegativeCancellation(options)

    def counts(one, calls):
        return [int(removed(one, similarity).sum()) for _ in range(calls)]

    assert counts(policy.eval(), 4) == [0] * 4  # looking is not training
    assert counts(policy.train(), 2) == [0, 0]
    resumed.load_state_dict(policy.state_dict())
    assert counts(resumed, 2) == [0, 16]  # ceil(.3 x 6) of the seven negatives of each


def test_it_can_start_at_an_epoch_once_it_knows_how_long_one_is():
    policy = FalseNegativeCancellation(FNCSettings(alpha=0.3, start_epoch=2))
    with pytest.raises(ValueError, match="'fnc' has a start_epoch"):
        removed(policy, torch.eye(4))
    policy.begin(samples=10, steps_per_epoch=2)
    assert [bool(removed(policy, torch.eye(4)).any()) for _ in range(6)] == [False] * 4 + [True] * 2
    with pytest.raises(ValueError, match="start_step or start_epoch, not both"):
        FNCSettings(start_epoch=1, start_step=5)
