"""False negative cancellation: the quantile, equal values, and its start."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.losses import ContrastiveBatch
from medclip_debias.losses.policies.fnc import FalseNegativeCancellation, FNCSettings


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**20), alpha=st.floats(0.001, 0.999), images=st.integers(3, 40))
def test_fnc_removes_what_lies_above_the_quantile(seed, alpha, images):
    g = torch.Generator().manual_seed(seed)
    similarity = torch.rand(images, images, generator=g, dtype=torch.float64)
    batch = ContrastiveBatch(similarity, torch.tensor(14.0).double())
    anchors = batch.anchors("text_to_image")[0]
    kept = FalseNegativeCancellation(FNCSettings(alpha=alpha)).apply_to(anchors, batch).negatives
    for j in range(images):
        row = np.delete(similarity[:, j].numpy(), j)
        removed = set(np.flatnonzero(~kept[j].numpy())) - {j}
        # numpy's quantile interpolates: exactly the values strictly above it go.
        position = (len(row) - 1) * (1 - alpha)
        if abs(position - round(position)) > 1e-6:
            above = np.flatnonzero(similarity[:, j].numpy() > np.quantile(row, 1 - alpha))
            assert removed == set(above) - {j}
        by_sort = np.argsort(-np.where(np.arange(images) == j, -1, similarity[:, j].numpy()))
        assert removed == set(by_sort[: len(removed)])
        assert len(removed) >= 1


def test_fnc_counts_exactly_also_among_equals():
    batch = ContrastiveBatch(torch.ones(101, 101), torch.tensor(14.0))
    anchors = batch.anchors("text_to_image")[0]
    for alpha, removed in ((0, 0), (1e-9, 1), (0.07, 7), (0.5, 50)):
        policy = FalseNegativeCancellation(FNCSettings(alpha=alpha))
        after = policy.apply_to(anchors, batch)
        assert ((anchors.negatives & ~after.negatives).sum(dim=1) == removed).all()
        torch.testing.assert_close(after.mass, torch.full((101,), 100.0))


def test_fnc_waits_for_its_start_and_a_resumed_one_does_not_wait_again():
    batch = ContrastiveBatch(
        torch.rand(8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor(14.0)
    )
    settings = FNCSettings(alpha=0.3, start_step=3)
    policy = FalseNegativeCancellation(settings)
    anchors = batch.anchors("text_to_image")[0]

    def removed(one):
        return int((anchors.negatives & ~one.apply_to(anchors, batch).negatives).sum())

    policy.eval()
    assert [removed(policy) for _ in range(4)] == [0] * 4  # looking is not training
    policy.train()
    assert [removed(policy) for _ in range(2)] == [0, 0]
    resumed = FalseNegativeCancellation(settings)
    resumed.load_state_dict(policy.state_dict())
    at_once = removed(FalseNegativeCancellation(FNCSettings(alpha=0.3)))
    assert [removed(resumed) for _ in range(2)] == [0, at_once]
    assert at_once == 8 * 2  # ceil(.3 x 6) of the seven negatives of each


def test_fnc_can_start_at_an_epoch_once_it_knows_how_long_one_is(make_batch):
    batch = make_batch(1)
    anchors = batch.anchors("text_to_image")[0]
    policy = FalseNegativeCancellation(FNCSettings(alpha=0.3, start_epoch=2, keep_mass=False))
    with pytest.raises(ValueError, match="'fnc' has a start_epoch"):
        policy.apply_to(anchors, batch)
    policy.begin(samples=10, steps_per_epoch=2)
    kept = [policy.apply_to(anchors, batch).negatives.equal(anchors.negatives) for _ in range(6)]
    assert kept == [True] * 4 + [False] * 2
    with pytest.raises(ValueError, match="start_step or start_epoch, not both"):
        FNCSettings(start_epoch=1, start_step=5)
