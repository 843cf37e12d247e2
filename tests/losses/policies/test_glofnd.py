"""GloFND's thresholds against the exact quantile, a loop over samples, and its limit cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.clip import InfoNCE, InfoNCESettings
from medclip_debias.losses.policies.glofnd import GloFND, GloFNDSettings, upper_quantile
from medclip_debias.losses.samples import SampleTable
from medclip_debias.losses.two_views import TwoViewBatch


def cosine_matrix(seed, samples=40, dim=6):
    g = torch.Generator().manual_seed(seed)
    x, y = (F.normalize(torch.randn(samples, dim, generator=g), dim=-1) for _ in range(2))
    return x @ y.T


def text_step(policy, similarity, ids):
    """One batch of the samples ``ids``; weights of the text anchors."""
    part = similarity[ids][:, ids]
    batch = ContrastiveBatch(part, torch.tensor(14.0), sample_ids=ids)
    return policy.apply_to(batch.anchors("text_to_image")[0], batch), batch


def exact_quantiles(similarity, alpha):
    """Of each sentence over the images of all other samples (columns of ``similarity``)."""
    s = similarity.numpy()
    return np.array([np.quantile(np.delete(s[:, j], j), 1 - alpha) for j in range(len(s))])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("alpha", [0.0, 0.003, 0.1, 0.5, 0.97])
def test_the_upper_quantile_is_that_of_numpy(alpha, seed):
    g = torch.Generator().manual_seed(seed)
    values = torch.randn(6, 11, generator=g, dtype=torch.float64)
    mask = torch.rand(6, 11, generator=g) < 0.6
    mask[0] = False
    found = upper_quantile(values, mask, mask.sum(dim=1), alpha)
    assert found[0] == 1
    for row in range(1, 6):
        expected = np.quantile(values[row][mask[row]].numpy(), 1 - alpha)
        assert found[row].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.15), ("adam", 0.005)])
@pytest.mark.parametrize("init", ["one", "quantile"])
def test_thresholds_converge_to_the_exact_quantile_of_a_fixed_set(optimizer, lr, init):
    """The algorithm as stated, with one rate throughout."""
    samples, alpha = 150, 0.1
    similarity = cosine_matrix(0, samples)
    exact = exact_quantiles(similarity, alpha)
    generator = torch.Generator().manual_seed(1)
    options = {"alpha": alpha, "optimizer": optimizer, "init": init, "lr": lr}
    policy = GloFND(GloFNDSettings(samples=samples, **options))
    for _ in range(150):
        for ids in torch.randperm(samples, generator=generator).split(50):
            text_step(policy, similarity, ids)
    found = policy.tables.text["threshold"].numpy()
    assert np.abs(found - exact).mean() <= 0.02
    policy.figures()  # drops what it counted on the way
    kept, _ = text_step(policy.eval(), similarity, torch.arange(samples))
    rate = 1 - kept.negatives.sum().item() / (samples * (samples - 1))
    assert rate == pytest.approx(alpha, abs=0.01)
    assert policy.figures()["glofnd_removed"].item() == pytest.approx(rate, abs=1e-6)


def loop_update(state, similarity, ids, settings):
    """Equation 4 (or Adam) one sample at a time, float64; thresholds, moments, own visits."""
    for sample in sorted(set(ids)):
        shares = []
        for j, owner in enumerate(ids):
            if owner != sample:
                continue
            others = [similarity[i][j] for i, other in enumerate(ids) if other != sample]
            shares.append(np.mean([s > state[sample]["lambda"] for s in others]))
        row = state[sample]
        gradient = settings.alpha - np.mean(shares)
        if settings.optimizer == "sgd":
            change = settings.lr * gradient
        else:
            first, second = settings.betas
            row["t"] += 1
            row["m"] = first * row["m"] + (1 - first) * gradient
            row["v"] = second * row["v"] + (1 - second) * gradient**2
            unbiased = row["v"] / (1 - second ** row["t"])
            change = settings.lr * row["m"] / (1 - first ** row["t"]) / (math.sqrt(unbiased) + 1e-8)
        row["lambda"] = min(max(row["lambda"] - change, -1), 1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_updates_equal_a_loop_over_samples_also_with_a_sample_drawn_twice(optimizer):
    settings = GloFNDSettings(alpha=0.3, optimizer=optimizer, lr=0.4 if optimizer == "sgd" else 0.1)
    similarity = cosine_matrix(2, 12)
    policy = GloFND(settings)
    state = {i: {"lambda": 1.0, "m": 0.0, "v": 0.0, "t": 0} for i in range(12)}
    generator = torch.Generator().manual_seed(3)
    for _ in range(25):
        ids = torch.randint(0, 12, (7,), generator=generator)
        kept, batch = text_step(policy, similarity, ids)
        loop_update(state, batch.similarity.tolist(), ids.tolist(), settings)
        thresholds = torch.tensor([state[i]["lambda"] for i in ids.tolist()])
        removed = (thresholds[:, None] < batch.similarity.T) & ~torch.eye(7, dtype=torch.bool)
        assert torch.equal(kept.negatives, ~removed & ~torch.eye(7, dtype=torch.bool))
    expected = [state[i]["lambda"] for i in range(12)]
    np.testing.assert_allclose(policy.tables.text["threshold"][:12], expected, atol=2e-6)


def test_the_first_visit_sets_the_threshold_to_the_batch_quantile():
    similarity = cosine_matrix(7, 10)
    policy = GloFND(GloFNDSettings(alpha=0.25, init="quantile"))
    text_step(policy, similarity, torch.arange(10))
    np.testing.assert_allclose(
        policy.tables.text["threshold"].numpy(), exact_quantiles(similarity, 0.25), atol=1e-6
    )


def test_nothing_is_learned_or_filtered_before_its_step():
    similarity = cosine_matrix(8, 10)
    policy = GloFND(GloFNDSettings(alpha=0.3, init="quantile", start_step=2, filter_step=4))
    removed, moved = [], []
    for _ in range(6):
        kept, _ = text_step(policy, similarity, torch.arange(10))
        removed.append(int(90 - kept.negatives.sum()))
        moved.append(bool((policy.tables.text["threshold"] < 1).any()))
    assert moved == [False, False, True, True, True, True]
    assert removed[:4] == [0] * 4
    assert min(removed[4:]) > 0


def test_the_two_views_of_an_image_share_one_threshold():
    g = torch.Generator().manual_seed(9)
    first, second = (torch.randn(5, 4, generator=g) for _ in range(2))
    batch = TwoViewBatch.from_views(first, second, 2.0, sample_ids=torch.arange(5))
    policy = GloFND(GloFNDSettings(alpha=0.4, optimizer="sgd", lr=0.5))
    (anchors,) = batch.anchors("symmetric")
    for _ in range(20):
        policy.apply_to(anchors, batch)
    table = policy.tables.view
    assert len(table) == 5
    assert table["visits"].tolist() == [20] * 5
    # One more step by hand: the mean over both views of their 8 negatives each.
    before = table["threshold"].clone()
    above = (batch.similarity > before.repeat(2)[:, None]) & anchors.negatives
    share = above.sum(dim=1).view(2, 5).float().mean(dim=0) / 8
    policy.apply_to(anchors, batch)
    expected = (before - 0.5 * (0.4 - share)).clamp(-1, 1)
    torch.testing.assert_close(table["threshold"], expected)


def test_text_and_image_anchors_have_their_own_thresholds():
    similarity = cosine_matrix(10, 8)
    batch = ContrastiveBatch(similarity, torch.tensor(14.0), sample_ids=torch.arange(8))
    negatives = [{"kind": "glofnd", "alpha": 0.3, "init": "quantile"}]
    loss = InfoNCE(InfoNCESettings(direction="symmetric", negatives=negatives))
    loss(batch)
    tables = loss.policies[0].tables
    np.testing.assert_allclose(
        tables.text["threshold"], exact_quantiles(similarity, 0.3), atol=1e-6
    )
    np.testing.assert_allclose(
        tables.image["threshold"], exact_quantiles(similarity.T, 0.3), atol=1e-6
    )
    assert len(tables.view) == 0


def test_evaluation_filters_but_does_not_move():
    similarity = cosine_matrix(13, 8)
    policy = GloFND(GloFNDSettings(alpha=0.3, init="quantile"))
    text_step(policy, similarity, torch.arange(8))
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    kept, _ = text_step(policy.eval(), similarity, torch.arange(8))
    assert kept.negatives.sum() < 56
    assert all(torch.equal(before[name], value) for name, value in policy.state_dict().items())


def test_figures_count_the_true_false_negatives_when_labels_are_known():
    similarity = torch.tensor(
        [[0.9, 0.8, 0.1, 0.7], [0.2, 0.9, 0.3, 0.1], [0.1, 0.0, 0.9, 0.6], [0.5, 0.2, 0.4, 0.9]]
    )
    labels = torch.tensor([[1.0], [1.0], [float("nan")], [-1.0]])
    batch = ContrastiveBatch(
        similarity, torch.tensor(5.0), sample_ids=torch.arange(4), labels=labels
    )
    policy = GloFND(GloFNDSettings(alpha=0.0))
    policy.settings = policy.settings.model_copy(update={"alpha": 0.5})
    policy.tables.text.reserve(torch.tensor([3]))
    policy.tables.text["threshold"][:] = 0.55
    policy.eval().apply_to(batch.anchors("text_to_image")[0], batch)
    figures = policy.figures()
    # Removed: sentence 1 from image 0, sentence 3 from images 0 and 2. True: (0, 1) both ways.
    assert figures["glofnd_removed"].item() == pytest.approx(3 / 12)
    assert figures["glofnd_precision"].item() == pytest.approx(1 / 3)
    assert figures["glofnd_recall"].item() == pytest.approx(1 / 2)
    assert figures["glofnd_f1"].item() == pytest.approx(2 / 5)
    errors = 0.55 - exact_quantiles(similarity, 0.5)
    assert figures["glofnd_mae"].item() == pytest.approx(np.abs(errors).mean(), abs=1e-6)
    assert figures["glofnd_rmse"].item() == pytest.approx(np.sqrt((errors**2).mean()), abs=1e-6)
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
