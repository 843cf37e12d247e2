"""Several positives: against loops over single pairs, limit cases, and pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
import torch

from medclip_debias.losses import ContrastiveBatch
from medclip_debias.losses.objective import build_objective, loss_settings


def objective(**content):
    whole = {"kind": "multi_positive", "threshold": 0.0} | content
    return build_objective(loss_settings(whole, "test")).double()


def plain(**content):
    return build_objective(loss_settings(content, "test")).double()


def pair_value(batch, i, j):
    said = [
        batch["stated"][i, abs(c) - 1].item() * (1 if c > 0 else -1)
        for c in batch["claims"][j].tolist()
        if c
    ]
    return min(said) / 100 if said else 0.0


def by_hand(batch, q_of, weight_of=lambda e: 1.0):
    """Definition A, sentence by sentence: candidates are the images."""
    images, sentences = batch.similarity.shape
    scale, losses = batch.scale.item(), []
    for j in range(sentences):
        own = batch.owners[j].item()
        q, total = {own: 1.0}, 0.0
        for i in range(images):
            value = pair_value(batch, i, j)
            if i != own:
                q[i] = q_of(value)
            kept = 1.0 if i == own or q[i] > 0 else weight_of(value)
            total += kept * math.exp(scale * batch.similarity[i, j].item())
        mass = sum(q.values())
        losses.append(
            -sum(
                share / mass * (scale * batch.similarity[i, j].item() - math.log(total))
                for i, share in q.items()
                if share
            )
        )
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_equals_definition_a_pair_by_pair(seed, make_batch):
    batch = make_batch(seed)
    got = objective()(batch).per_anchor
    assert torch.allclose(got, by_hand(batch, lambda e: float(e > 0)), atol=1e-10)
    got = objective(weigh="confidence", threshold=0.2, prior=0.1)(batch).per_anchor
    expected = by_hand(batch, lambda e: e if e > 0.2 else 0.1 if e == 0 else 0.0)
    assert torch.allclose(got, expected, atol=1e-6)  # evidence is in hundredths of float32


def test_policies_of_the_core_weigh_what_is_no_positive(make_batch):
    batch = make_batch(1)
    policy = {"kind": "weigh_by_evidence", "agree": 0.0, "contradict": 3.0, "unknown": 0.5}
    got = objective(core={"kind": "infonce", "negatives": [policy]})(batch).per_anchor
    expected = by_hand(
        batch, lambda e: float(e > 0), lambda e: 0.5 if e == 0 else 0.5 + 2.5 * -min(e, 0)
    )
    assert torch.allclose(got, expected, atol=1e-6)


def test_without_agreement_it_is_its_core(make_batch):
    nothing = torch.zeros(6, 3, dtype=torch.int8)
    for kind in ("infonce", "clip", "siglip"):
        batch = make_batch(stated=nothing)
        expected = plain(kind=kind)(batch).per_anchor
        assert torch.allclose(objective(core={"kind": kind})(batch).per_anchor, expected)


def test_weight_mixes_core_and_targets_and_the_schedule_fades_it(make_batch):
    batch, half = make_batch(done=0.25), {"end": 0.5, "shape": "linear"}
    core = plain(kind="clip")(batch).per_anchor
    whole = objective(core={"kind": "clip"})(batch).per_anchor
    mixed = objective(core={"kind": "clip"}, weight=0.3)(batch).per_anchor
    assert torch.allclose(mixed, 0.7 * core + 0.3 * whole)
    faded = objective(core={"kind": "clip"}, schedule=half)(batch).per_anchor
    assert torch.allclose(faded, 0.5 * core + 0.5 * whole)
    late = objective(core={"kind": "clip"}, schedule=half)(make_batch(done=0.6)).per_anchor
    assert torch.allclose(late, core)


def test_the_sigmoid_form_sums_yes_and_no_over_pairs(make_batch):
    batch = make_batch(2)
    got = objective(core={"kind": "siglip", "initial_bias": -1.5})(batch).per_anchor
    for j in range(8):
        total = 0.0
        for i in range(6):
            logit = batch.scale.item() * batch.similarity[i, j].item() - 1.5
            yes = batch.owners[j] == i or pair_value(batch, i, j) > 0
            total += math.log1p(math.exp(-logit if yes else logit))
        assert got[j].item() == pytest.approx(total)


def test_equal_labels_as_positives_are_supcon_of_pytorch_metric_learning():
    pml = pytest.importorskip("pytorch_metric_learning.losses")
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[1.0], [1.0], [0.0], [0.0], [1.0], [0.0]])
    batch = ContrastiveBatch.from_embeddings(first, second, 7.0, labels=labels)
    evidence = {"kind": "label", "match": "equal"}
    got = objective(core={"kind": "infonce"}, evidence=evidence)(batch).loss
    classes = labels[:, 0].long()
    theirs = pml.SupConLoss(temperature=1 / 7.0)(
        second, classes, ref_emb=first, ref_labels=classes.clone()
    )
    assert got.item() == pytest.approx(theirs.item(), rel=1e-6)


def test_a_shuffled_eta_keeps_the_dose_of_the_batch(make_batch):
    batch = make_batch()
    for eta in ({"kind": "table"}, {"kind": "language_model"}):
        out = plain(kind="debiased", eta=eta)(batch)
        control = plain(kind="debiased", eta=eta | {"control": "shuffled"})(batch)
        assert control.diagnostics["mean_eta"].item() == pytest.approx(
            out.diagnostics["mean_eta"].item()
        )
        assert not torch.allclose(out.per_anchor, control.per_anchor)


def test_eta_fades_and_anchors_are_weighed(make_batch):
    eta = {"kind": "table", "factor": 0.5}
    batch, fade = make_batch(done=0.25), {"end": 0.5, "shape": "linear"}
    quarter = plain(kind="debiased", eta={"kind": "table", "factor": 0.25})(batch).per_anchor
    faded = plain(kind="debiased", eta=eta, schedule=fade)(batch).per_anchor
    assert torch.allclose(faded, quarter)
    weighed = plain(kind="debiased", eta=eta, weigh_anchors=True)(batch).per_anchor
    expected = plain(kind="debiased", eta=eta)(batch).per_anchor * (1 - 0.5 * batch["eta"])
    assert torch.allclose(weighed, expected)
