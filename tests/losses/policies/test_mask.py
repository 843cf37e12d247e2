"""Masks: the same study and the same sentence."""

from __future__ import annotations

from medclip_debias.losses import MaskIdenticalText, MaskSameStudy


def test_same_study_and_identical_text_are_not_pushed_apart(
    make_batch, both_sides, effective, pairs
):
    batch = make_batch(1)
    for side, anchors in both_sides(batch):
        study = effective(MaskSameStudy().apply_to(anchors, batch))
        text = effective(MaskIdenticalText().apply_to(anchors, batch))
        for j, c, mine, theirs, said in pairs(side, anchors, batch):
            assert study[j, c] == (batch.sample_ids[mine] != batch.sample_ids[theirs])
            assert text[j, c] == all(batch.text_ids[j] != batch.text_ids[n] for n in said)
    # The tests above would pass on data where nothing is masked.
    assert (study == 0).sum() > (~anchors.negatives).sum()
    assert (text == 0).sum() > (~anchors.negatives).sum()
