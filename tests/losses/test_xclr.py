"""X-CLR and SupCon against loops in float64, and the limits that tie them to each other."""

from __future__ import annotations

import math

import pytest
import torch

from medclip_debias.losses import (
    CLIP,
    XCLR,
    ContrastiveBatch,
    SupCon,
    SupConSettings,
    TwoViewBatch,
    XCLRSettings,
)
from tests.losses.conftest import rows_of

SIDES = ("text_to_image", "image_to_text")


def cross_entropy(logits, weights):
    """Of the softmax over the columns that have a weight to the weights brought to the sum 1."""
    z, total = sum(math.exp(logits[k]) for k in weights), sum(weights.values())
    return -sum(w / total * math.log(math.exp(logits[k]) / z) for k, w in weights.items())


@pytest.mark.parametrize("removes", [False, True])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
def test_xclr_is_the_cross_entropy_to_the_softened_graph(make_batch, side, temperature, removes):
    """Removed negatives leave both softmaxes."""
    batch = make_batch(3)
    negatives = [{"kind": "remove_by_text", "threshold": 0.2}] if removes else []
    losses = XCLR(
        XCLRSettings(direction=side, target_temperature=temperature, negatives=negatives)
    )(batch).per_anchor
    for j, row in enumerate(rows_of(batch, side)):
        cosines = batch["text_similarity"][j].tolist()
        graph = {c: max(cosines[n] for n in row.sentences[c]) for c in (row.own, *row.others)}
        weights = {
            c: math.exp(g / temperature)
            for c, g in graph.items()
            if c == row.own or not removes or g <= 0.2
        }
        assert losses[j].item() == pytest.approx(cross_entropy(row.logits, weights), rel=1e-9)


def test_xclr_on_two_views_tiles_the_graph_and_leaves_the_view_itself_out():
    g = torch.Generator().manual_seed(4)
    first, second = torch.randn(2, 7, 12, generator=g, dtype=torch.float64)
    graph = torch.rand(7, 7, generator=g, dtype=torch.float64)
    batch = TwoViewBatch.from_views(first, second, 6.0, text_similarity=graph)
    losses = XCLR(XCLRSettings(target_temperature=0.1))(batch).per_anchor
    for i, logits in enumerate((6.0 * batch.similarity).tolist()):
        weights = {k: math.exp(graph[i % 7, k % 7].item() / 0.1) for k in range(14) if k != i}
        assert losses[i].item() == pytest.approx(cross_entropy(logits, weights), rel=1e-10)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("match", ["equal", "shared", "text"])
def test_supcon_is_the_mean_over_the_positives_which_no_policy_removes(make_batch, side, match):
    names = ("Cardiomegaly", "Edema")
    labels = torch.tensor([[1.0, 0], [1, 0], [0, 1], [1, 1], [0, 0], [0, 1]])
    batch = make_batch(4, labels=labels, label_names=names)
    texts, settings = batch["text_ids"].tolist(), {"direction": side, "match": match}
    losses = SupCon(SupConSettings(labels=names, **settings))(batch).per_anchor

    def alike(row, c):
        mine, theirs = labels[row.image], labels[row.images[c]]
        if match == "text":
            return any(texts[row.sentence] == texts[n] for n in row.sentences[c])
        return torch.equal(mine, theirs) if match == "equal" else bool((mine * theirs).any())

    for j, row in enumerate(rows_of(batch, side)):
        weights = {c: float(alike(row, c)) for c in row.others} | {row.own: 1.0}
        assert losses[j].item() == pytest.approx(cross_entropy(row.logits, weights), rel=1e-10)
    if match == "shared":
        removes = [{"kind": "remove_by_label", "labels": names}]
        kept = SupCon(SupConSettings(labels=names, negatives=removes, **settings))(batch)
        torch.testing.assert_close(kept.per_anchor, losses)


def captions(ids):
    """Pairs whose captions ``ids`` are alike exactly where equal."""
    g, ids = torch.Generator().manual_seed(0), torch.tensor(ids)
    similarity = torch.rand(len(ids), len(ids), generator=g, dtype=torch.float64) * 2 - 1
    cosines = torch.where(ids[:, None] == ids[None, :], 1.0, 0.6).double()
    return ContrastiveBatch(similarity, 14.0, text_similarity=cosines, text_ids=ids)


def test_as_the_target_temperature_falls_xclr_becomes_supcon_and_on_unique_captions_clip():
    batch, unique = captions([0, 0, 1, 2, 2, 2, 3]), captions(range(7))
    supcon = SupCon(SupConSettings(match="text"))
    errors = []
    for temperature in (0.2, 0.1, 0.05, 0.01):
        xclr = XCLR(XCLRSettings(target_temperature=temperature))
        errors.append((xclr(batch).per_anchor - supcon(batch).per_anchor).abs().max().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-12
    for loss in (xclr, supcon):
        expected = CLIP()(unique).per_anchor
        torch.testing.assert_close(loss(unique).per_anchor, expected, rtol=1e-12, atol=1e-12)


def test_a_given_graph_takes_the_place_of_the_texts(make_batch):
    batch = make_batch(6)
    given = make_batch(6, graph=batch["text_similarity"], text_similarity=None)
    losses = XCLR(XCLRSettings(graph="text"))(batch).per_anchor
    assert torch.equal(XCLR(XCLRSettings(graph="given"))(given).per_anchor, losses)
