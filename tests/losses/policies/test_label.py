"""Removal by labels against loops over single pairs."""

from __future__ import annotations

import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.losses import ContrastiveBatch, RemoveByLabel, RemoveByLabelSettings
from medclip_debias.losses.anchors import text_anchors
from medclip_debias.losses.labels import jaccard, label_sets


@pytest.mark.parametrize("uncertain", ["as_negative", "as_positive", "ignore"])
@pytest.mark.parametrize("match", ["shared", "equal"])
@pytest.mark.parametrize("draw", range(6))
def test_remove_by_label_is_what_the_label_sets_say(
    make_batch, uncertain, match, draw, both_sides, effective, pairs
):
    batch = make_batch(draw)
    policy = RemoveByLabel(RemoveByLabelSettings(match=match, uncertain=uncertain))
    for side, anchors in both_sides(batch):
        weights = effective(policy.apply_to(anchors, batch))
        for j, c, mine, theirs, _ in pairs(side, anchors, batch):
            values = []
            for image in (mine, theirs):
                row = {}
                for name, value in zip(batch.label_names, batch.labels[image], strict=True):
                    number = value.item()
                    if name == "Fracture":  # not one of the five
                        continue
                    if number == -1 and uncertain == "ignore":
                        continue
                    row[name] = number == 1 or (number == -1 and uncertain == "as_positive")
                values.append(row)
            common = values[0].keys() & values[1].keys()
            if match == "shared":
                alike = any(values[0][n] and values[1][n] for n in common)
            else:
                alike = bool(common) and all(values[0][n] == values[1][n] for n in common)
            assert weights[j, c].item() == (0 if alike else 1)


def test_a_study_without_any_label_is_never_taken_for_alike():
    nan = float("nan")
    batch = ContrastiveBatch(
        torch.zeros(3, 3),
        torch.tensor(1.0),
        labels=torch.tensor([[nan, nan], [nan, nan], [0, nan]]),
    )
    policy = RemoveByLabel(RemoveByLabelSettings(match="equal"))
    assert policy.apply_to(text_anchors(batch), batch).negatives.sum() == 6


def test_a_label_that_the_data_lacks_is_named(make_batch):
    policy = RemoveByLabel(RemoveByLabelSettings(labels=("Hernia",)))
    batch = make_batch()
    with pytest.raises(UserError, match="'Hernia'"):
        policy.apply_to(text_anchors(batch), batch)


def test_the_jaccard_index_counts_shared_labels(make_batch):
    batch = make_batch(2)
    names = batch.label_names
    similarity = jaccard(*label_sets(batch, names, "as_negative", "test"))
    for i in range(6):
        for k in range(6):
            a = {n for n, v in zip(names, batch.labels[i], strict=True) if v == 1}
            b = {n for n, v in zip(names, batch.labels[k], strict=True) if v == 1}
            expected = 1.0 if not a | b else len(a & b) / len(a | b)
            assert similarity[i, k].item() == pytest.approx(expected)
