"""Learned numbers come back from their bounds; inside them nothing changes."""

from __future__ import annotations

import doctest
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias import bounds
from medclip_debias.bounds import keep_in_bounds, within
from medclip_debias.config import SimilaritySettings
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.clip import CLIP
from medclip_debias.losses.sogclr import SogCLR, SogCLRSettings
from medclip_debias.models.similarity import Similarity


@given(st.floats(-3, 8, width=32), st.sampled_from([-2.5, -1.0, 1.0, 2.5]))
def test_the_value_is_a_clamp_and_the_gradient_never_stops_a_way_back(value, slope):
    x = torch.tensor(value, requires_grad=True)
    plain = torch.tensor(value, requires_grad=True)
    y, expected = within(x, 0.0, 4.0), plain.clamp(0.0, 4.0)
    (slope * y).backward()
    (slope * expected).backward()
    assert torch.equal(y, expected)
    if 0 < value < 4:
        assert torch.equal(x.grad, plain.grad)
    elif value in (0, 4):  # where clamp's own gradient is 0
        assert x.grad.item() == slope
    else:  # a step against a negative slope leads up
        back = (slope < 0) == (value < 0)
        assert x.grad.item() == (slope if back else 0.0)


def test_the_example_is_right():
    assert doctest.testmod(bounds).failed == 0


def pairs(noisy):
    """Similarities of perfect pairs, or of pairs that say nothing."""
    eye = torch.eye(8)
    return eye[torch.arange(8).roll(1)] if noisy else eye


def test_a_scale_driven_to_its_cap_comes_back_on_noisy_data():
    similarity = Similarity(SimilaritySettings(initial_scale=60.0), dim=4)
    optimizer = torch.optim.AdamW(similarity.parameters(), lr=0.05, weight_decay=0.0)
    scales = []
    for noisy in (False, True):
        for _ in range(90):
            optimizer.zero_grad()
            CLIP()(ContrastiveBatch(0.05 * pairs(noisy), similarity.scale)).loss.backward()
            optimizer.step()
            keep_in_bounds([similarity])
        scales.append(similarity.scale.item())
    assert scales[0] == pytest.approx(100, rel=1e-6)
    assert scales[1] < 10


@pytest.mark.parametrize("stored", [7.0, -2.0])
def test_a_stored_scale_at_or_beyond_a_bound_still_learns(stored):
    """As a caller may set it, before any step."""
    similarity = Similarity(SimilaritySettings(), dim=4)
    similarity.log_scale.data.fill_(stored)
    noisy = stored > 0  # of little use above, of great use below
    CLIP()(ContrastiveBatch(pairs(noisy), similarity.scale)).loss.backward()
    assert (similarity.log_scale.grad > 0) == (stored > 0)
    assert similarity.log_scale.grad != 0
    keep_in_bounds([similarity])
    assert 1.0 <= similarity.scale.item() <= 100.0
    assert 0.0 <= similarity.log_scale.item() <= math.log(100.0) + 1e-6


def test_a_temperature_driven_to_its_bound_comes_back():
    """The margin pulls it down where pairs are perfect, the spread of noisy ones up again."""
    settings = SogCLRSettings(temperature="modality", tau=0.05, tau_min=0.02, rho=0.5, gamma=1.0)
    objective = SogCLR(settings)
    optimizer = torch.optim.AdamW(objective.parameters(), lr=0.05, weight_decay=0.0)
    found = []
    for noisy in (False, True):
        for _ in range(60):
            optimizer.zero_grad()
            batch = ContrastiveBatch(
                0.3 * pairs(noisy), torch.tensor(1.0), sample_ids=torch.arange(8)
            )
            objective(batch).loss.backward()
            optimizer.step()
            keep_in_bounds([objective])
        found.append([objective.log_tau[side].exp().item() for side in ("text", "image")])
    assert found[0] == pytest.approx([0.02, 0.02], rel=1e-5)
    assert min(found[1]) > 0.1
