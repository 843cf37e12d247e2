"""Removal by a table of what is known."""

from __future__ import annotations

from medclip_debias.losses import RemoveKnown
from medclip_debias.losses.anchors import image_anchors, text_anchors


def test_known_agreement_is_removed_pair_by_pair(make_batch):
    batch = make_batch()
    agree, texts, owners = batch.agreement, batch.text_ids.tolist(), batch.owners.tolist()
    policy = RemoveKnown()
    text, image = text_anchors(batch), image_anchors(batch)
    kept = policy.apply_to(text, batch).negatives
    for j in range(8):
        for i in range(6):
            expected = owners[j] != i and not bool(agree[i, texts[j]])
            assert bool(kept[j, i]) == expected
    kept = policy.apply_to(image, batch).negatives
    for anchor in range(8):
        for j in range(8):
            other = owners[anchor] != owners[j]
            expected = other and not bool(agree[owners[anchor], texts[j]])
            assert bool(kept[anchor, j]) == expected
