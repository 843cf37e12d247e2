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
    XCLRSettings,
)


def cross_entropy(logits, target):
    """Over the candidates that have a target, one exponential at a time."""
    z = sum(math.exp(logits[k]) for k in target)
    return -sum(q * math.log(math.exp(logits[k]) / z) for k, q in target.items())


def rows(batch, side):
    """Each anchor: its logits, and for each candidate the sentences that stand for it."""
    owners = batch.owners.tolist()
    scale = batch.scale.item()
    for j, owner in enumerate(owners):
        if side == "text_to_image":
            logits = (scale * batch.similarity[:, j]).tolist()
            said = {i: [n for n, o in enumerate(owners) if o == i] for i in range(6)}
            yield j, owner, owner, logits, said
        else:
            logits = (scale * batch.similarity[owner]).tolist()
            said = {n: [n] for n, o in enumerate(owners) if o != owner or n == j}
            yield j, owner, j, logits, said


@pytest.mark.parametrize("side", ["text_to_image", "image_to_text"])
@pytest.mark.parametrize("temperature", [0.05, 0.1, 1.0])
def test_xclr_is_the_cross_entropy_to_the_softened_graph(make_batch, side, temperature):
    batch = make_batch(3)
    loss = XCLR(XCLRSettings(direction=side, target_temperature=temperature))
    out = loss(batch)
    for j, _, _, logits, said in rows(batch, side):
        graph = {c: max(batch["text_similarity"][j, n].item() for n in s) for c, s in said.items()}
        z = sum(math.exp(g / temperature) for g in graph.values())
        target = {c: math.exp(g / temperature) / z for c, g in graph.items()}
        assert out.per_anchor[j].item() == pytest.approx(cross_entropy(logits, target), rel=1e-10)


@pytest.mark.parametrize("side", ["text_to_image", "image_to_text"])
@pytest.mark.parametrize("match", ["equal", "shared", "text"])
def test_supcon_is_the_mean_over_the_positives(make_batch, side, match):
    labels = torch.tensor([[1.0, 0], [1, 0], [0, 1], [1, 1], [0, 0], [0, 1]])
    batch = make_batch(4, labels=labels, label_names=("Cardiomegaly", "Edema"))
    names = ("Cardiomegaly", "Edema")
    loss = SupCon(SupConSettings(direction=side, match=match, labels=names))
    out = loss(batch)
    owners = batch.owners.tolist()
    for j, owner, own, logits, said in rows(batch, side):
        positives = {own}
        for c, sentences in said.items():
            other = c if side == "text_to_image" else owners[c]
            if match == "text":
                alike = any(batch["text_ids"][j] == batch["text_ids"][n] for n in sentences)
            elif match == "equal":
                alike = torch.equal(labels[owner], labels[other])
            else:
                alike = bool(((labels[owner] == 1) & (labels[other] == 1)).any())
            if alike and other != owner:
                positives.add(c)
        target = {c: (c in positives) / len(positives) for c in said}
        assert out.per_anchor[j].item() == pytest.approx(cross_entropy(logits, target), rel=1e-10)


def square(seed, ids, cosine_of_others=0.6):
    """A batch of pairs whose captions ``ids`` are alike exactly where equal."""
    g = torch.Generator().manual_seed(seed)
    similarity = torch.rand(len(ids), len(ids), generator=g, dtype=torch.float64) * 2 - 1
    same = torch.tensor(ids)[:, None] == torch.tensor(ids)[None, :]
    cosines = torch.where(same, 1.0, cosine_of_others).double()
    return ContrastiveBatch(
        similarity,
        torch.tensor(14.0).double(),
        text_similarity=cosines,
        text_ids=torch.tensor(ids),
    )


def test_as_the_target_temperature_falls_xclr_becomes_supcon_on_identical_captions():
    batch = square(0, [0, 0, 1, 2, 2, 2, 3])
    expected = SupCon(SupConSettings(match="text"))(batch).per_anchor
    errors = []
    for temperature in (0.2, 0.1, 0.05, 0.01):
        found = XCLR(XCLRSettings(target_temperature=temperature))(batch).per_anchor
        errors.append((found - expected).abs().max().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-12


def test_as_the_target_temperature_falls_xclr_becomes_infonce_on_unique_captions():
    batch = square(1, list(range(7)))
    soft = XCLR(XCLRSettings(target_temperature=0.01))(batch).per_anchor
    torch.testing.assert_close(soft, CLIP()(batch).per_anchor, rtol=1e-12, atol=1e-12)
    unique = SupCon(SupConSettings(match="text"))(batch).per_anchor
    torch.testing.assert_close(unique, CLIP()(batch).per_anchor, rtol=1e-12, atol=1e-12)


def test_a_given_graph_takes_the_place_of_the_texts(make_batch):
    batch = make_batch(6)
    given = make_batch(6, graph=batch["text_similarity"], text_similarity=None)
    a = XCLR(XCLRSettings(graph="text"))(batch).per_anchor
    b = XCLR(XCLRSettings(graph="given"))(given).per_anchor
    assert torch.equal(a, b)


def test_removed_negatives_leave_both_softmaxes_of_xclr(make_batch):
    batch = make_batch(7)
    settings = XCLRSettings(
        direction="text_to_image", negatives=({"kind": "remove_by_text", "threshold": 0.2},)
    )
    out = XCLR(settings)(batch)
    for j, owner, _, logits, said in rows(batch, "text_to_image"):
        graph = {c: max(batch["text_similarity"][j, n].item() for n in s) for c, s in said.items()}
        graph = {c: g for c, g in graph.items() if c == owner or g <= 0.2}
        z = sum(math.exp(g / 0.1) for g in graph.values())
        target = {c: math.exp(g / 0.1) / z for c, g in graph.items()}
        assert out.per_anchor[j].item() == pytest.approx(cross_entropy(logits, target), rel=1e-9)


def test_supcon_keeps_its_positives_whatever_the_policies_remove(make_batch):
    batch = make_batch(8)
    plain = SupConSettings(direction="text_to_image", match="shared")
    removing = plain.model_copy(
        update={"negatives": SupConSettings(negatives=({"kind": "remove_by_label"},)).negatives}
    )
    # The policy removes exactly the class's own, which are positives here.
    a, b = SupCon(plain)(batch).per_anchor, SupCon(removing)(batch).per_anchor
    torch.testing.assert_close(a, b)
