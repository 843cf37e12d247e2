"""Exact scores against loops in double precision; recall against sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from medclip_debias.config import SimilaritySettings
from medclip_debias.grounding.search.landmarks import (
    image_scores,
    recall_at,
    sentence_scores,
)

from .conftest import by_regions


def unit(*shape, seed=0):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return F.normalize(made, dim=-1)


@pytest.mark.parametrize("sentences", [1, 3, 40])
def test_stored_regions_score_as_lse_and_nl_say(sentences):
    """Fewer sentences than regions and more: the two ways to the same weights."""
    regions = unit(4, 9, 16).half().numpy()
    y = unit(sentences, 16, seed=1)
    found = sentence_scores(by_regions(SimilaritySettings(k=7, temperature=5), 16), regions, y)
    for image in range(4):
        x = regions[image].astype(np.float64)
        for number in range(sentences):
            h = x @ y[number].double().numpy()
            local = np.log(np.mean(np.exp(7 * h))) / 7
            weights = np.exp(5 * x @ x[np.argmax(h)])
            mixed = (weights * h).sum() / weights.sum()
            assert found[image, number] == pytest.approx((local + mixed) / 2, abs=1e-5)


def test_likeness_of_images_equals_a_loop_and_is_one_for_itself():
    regions = unit(3, 6, 8).half().numpy()
    query = unit(6, 8, seed=2)
    found = image_scores(query, regions)
    for image in range(3):
        cosines = query.double().numpy() @ regions[image].astype(np.float64).T
        there = np.mean([row.max() for row in cosines])
        back = np.mean([column.max() for column in cosines.T])
        assert found[image] == pytest.approx((there + back) / 2, abs=1e-5)
    own = torch.from_numpy(regions[1]).float()
    assert image_scores(own, regions)[1] == pytest.approx(1, abs=2e-3)
    swapped = image_scores(torch.from_numpy(regions[0]).float(), query[None].half().numpy())
    assert swapped[0] == pytest.approx(found[0], abs=1e-3)


scores = arrays(np.float32, st.integers(1, 12), elements=st.sampled_from([0.0, 0.1, 0.2, 0.3]))


@given(exact=scores, k=st.integers(1, 5), data=st.data())
def test_recall_counts_the_best_with_ties_in_the_candidates_favour(exact, k, data):
    n = len(exact)
    candidates = data.draw(st.lists(st.integers(0, n - 1), unique=True))
    k_here = min(k, n)
    limit = sorted(exact, reverse=True)[k_here - 1]
    good = [c for c in candidates if exact[c] >= limit]
    found = recall_at(exact, np.array(candidates, dtype=np.int64), k)
    assert found == min(len(good), k_here) / k_here
    assert recall_at(exact, np.arange(n), k) == 1
