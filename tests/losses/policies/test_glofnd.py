"""GloFND's thresholds against the exact quantile, a loop over samples, and its limit cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from medclip_debias.losses import ContrastiveBatch, TwoViewBatch
from medclip_debias.losses.policies.glofnd import GloFND, GloFNDSettings, upper_quantile
from medclip_debias.losses.samples import SampleTable


def glofnd(**settings):
    return GloFND(GloFNDSettings(**settings))


def cosine_matrix(seed, samples=10, dim=6):
    g = torch.Generator().manual_seed(seed)
    x, y = F.normalize(torch.randn(2, samples, dim, generator=g), dim=-1)
    return x @ y.T


def text_step(policy, similarity, ids=None):
    """One batch of the samples ``ids``: its text anchors, and what the policy left of them."""
    ids = torch.arange(len(similarity)) if ids is None else ids
    batch = ContrastiveBatch(similarity[ids][:, ids], 14.0, sample_ids=ids)
    (anchors,) = batch.anchors("text_to_image")
    return batch, policy.apply_to(anchors, batch).negatives


def exact_quantiles(similarity, alpha):
    """Of each sentence over the images of all other samples (columns of ``similarity``)."""
    s = similarity.numpy()
    return np.array([np.quantile(np.delete(s[:, j], j), 1 - alpha) for j in range(len(s))])


@pytest.mark.parametrize("alpha", [0.0, 0.003, 0.1, 0.5, 0.97])
def test_the_upper_quantile_is_that_of_numpy(alpha):
    g = torch.Generator().manual_seed(0)
    values = torch.randn(30, 11, generator=g, dtype=torch.float64)
    mask = torch.rand(30, 11, generator=g) < 0.6
    mask[0] = False
    quantiles = upper_quantile(values, mask, mask.sum(dim=1), alpha)
    assert quantiles[0] == 1
    for row in range(1, 30):
        expected = np.quantile(values[row][mask[row]].numpy(), 1 - alpha)
        assert quantiles[row].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("optimizer", "lr", "init"), [("sgd", 0.15, "one"), ("adam", 0.005, "quantile")]
)
def test_thresholds_converge_to_the_exact_quantile_of_a_fixed_set(optimizer, lr, init):
    """The algorithm as stated, with one rate throughout."""
    samples, alpha = 150, 0.1
    similarity = cosine_matrix(0, samples)
    policy = glofnd(alpha=alpha, optimizer=optimizer, init=init, lr=lr, samples=samples)
    generator = torch.Generator().manual_seed(1)
    for _ in range(150):
        for ids in torch.randperm(samples, generator=generator).split(50):
            text_step(policy, similarity, ids)
    errors = policy.tables.text["threshold"].numpy() - exact_quantiles(similarity, alpha)
    assert np.abs(errors).mean() <= 0.02
    policy.figures()  # drops what it counted on the way
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    _, kept = text_step(policy.eval(), similarity)
    rate = 1 - kept.sum().item() / (samples * (samples - 1))
    assert rate == pytest.approx(alpha, abs=0.01)
    assert policy.figures()["glofnd_removed"].item() == pytest.approx(rate, abs=1e-6)
    # Evaluation filters, but moves nothing.
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())


def loop_update(state, similarity, ids, settings):
    """Equation 4 (or Adam) one sample at a time, float64; thresholds, moments, own visits."""
    for sample in sorted(set(ids)):
        row, shares = state[sample], []
        for j in (place for place, owner in enumerate(ids) if owner == sample):
            others = [similarity[i][j] for i, other in enumerate(ids) if other != sample]
            shares.append(np.mean([s > row["lambda"] for s in others]))
        gradient = settings.alpha - np.mean(shares)
        change = settings.lr * gradient
        if settings.optimizer == "adam":
            first, second = settings.betas
            row["t"] += 1
            row["m"] = first * row["m"] + (1 - first) * gradient
            row["v"] = second * row["v"] + (1 - second) * gradient**2
            unbiased = row["v"] / (1 - second ** row["t"])
            change = settings.lr * row["m"] / (1 - first ** row["t"]) / (math.sqrt(unbiased) + 1e-8)
        row["lambda"] = min(max(row["lambda"] - change, -1), 1)


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.4), ("adam", 0.1)])
def test_updates_equal_a_loop_over_samples_also_with_a_sample_drawn_twice(optimizer, lr):
    policy, similarity = glofnd(alpha=0.3, optimizer=optimizer, lr=lr), cosine_matrix(2, 12)
    state = [{"lambda": 1.0, "m": 0.0, "v": 0.0, "t": 0} for _ in range(12)]
    generator = torch.Generator().manual_seed(3)
    for _ in range(25):
        ids = torch.randint(0, 12, (7,), generator=generator)
        batch, kept = text_step(policy, similarity, ids)
        loop_update(state, batch.similarity.tolist(), ids.tolist(), policy.settings)
        thresholds = torch.tensor([state[i]["lambda"] for i in ids.tolist()])
        removed = (thresholds[:, None] < batch.similarity.T) | torch.eye(7, dtype=torch.bool)
        assert torch.equal(kept, ~removed)
    expected = [row["lambda"] for row in state]
    np.testing.assert_allclose(policy.tables.text["threshold"][:12], expected, atol=2e-6)


def test_the_two_views_of_an_image_share_one_threshold():
    first, second = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(9))
    batch = TwoViewBatch.from_views(first, second, 2.0, sample_ids=torch.arange(5))
    policy = glofnd(alpha=0.4, optimizer="sgd", lr=0.5)
    (anchors,) = batch.anchors("symmetric")
    for _ in range(20):
        policy.apply_to(anchors, batch)
    table = policy.tables.view
    assert table["visits"].tolist() == [20] * 5
    # One more step by hand: the mean over both views of their 8 negatives each.
    before = table["threshold"].clone()
    above = (batch.similarity > before.repeat(2)[:, None]) & anchors.negatives
    share = above.sum(dim=1).view(2, 5).float().mean(dim=0) / 8
    policy.apply_to(anchors, batch)
    expected = (before - 0.5 * (0.4 - share)).clamp(-1, 1)
    torch.testing.assert_close(table["threshold"], expected)


def test_figures_count_the_true_false_negatives_when_labels_are_known():
    similarity = torch.tensor(
        [[0.9, 0.8, 0.1, 0.7], [0.2, 0.9, 0.3, 0.1], [0.1, 0.0, 0.9, 0.6], [0.5, 0.2, 0.4, 0.9]]
    )
    labels = torch.tensor([[1.0], [1.0], [float("nan")], [-1.0]])
    batch = ContrastiveBatch(similarity, 5.0, sample_ids=torch.arange(4), labels=labels)
    policy = glofnd(alpha=0.5)
    policy.tables.text.reserve(torch.tensor([3]))
    policy.tables.text["threshold"][:] = 0.55
    policy.eval().apply_to(batch.anchors("text_to_image")[0], batch)
    figures = {name: value.item() for name, value in policy.figures().items()}
    # Removed: sentence 1 from image 0, sentence 3 from images 0 and 2. True: (0, 1) both ways.
    errors = 0.55 - exact_quantiles(similarity, 0.5)
    expected = {
        "glofnd_removed": 3 / 12,
        "glofnd_lambda": 0.55,
        "glofnd_precision": 1 / 3,
        "glofnd_recall": 1 / 2,
        "glofnd_f1": 2 / 5,
        "glofnd_mae": np.abs(errors).mean(),
        "glofnd_rmse": np.sqrt((errors**2).mean()),
    }
    assert figures == pytest.approx(expected, abs=1e-6)
    assert policy.figures() == {}


def test_a_table_grows_without_losing_what_it_holds():
    table = SampleTable({"value": 0.5, "visits": 0})
    table.reserve(torch.tensor([3]))
    table["value"][3] = 2.0
    table.reserve(torch.tensor([7, 1]))
    assert table["value"].tolist() == [0.5, 0.5, 0.5, 2.0, 0.5, 0.5, 0.5, 0.5]
    assert table.half()["value"].dtype == torch.float32
    assert table.double()["visits"].dtype == torch.int32
    with pytest.raises(ValueError, match="-1"):
        table.reserve(torch.tensor([-1]))
