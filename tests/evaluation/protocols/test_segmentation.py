"""Maps against masks: by loops over pixels, at the limits, with thresholds of other patients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.options import BoxRule
from medclip_debias.evaluation.protocols.segmentation import (
    SHARES,
    best_share,
    mask_statistics,
    score_mask,
)
from tests.evaluation.conftest import measuring_only

RULE = BoxRule()


def dice_by_hand(heat, inside, threshold):
    """Twice the common pixels over the sum of both, one pixel after the other."""
    found = common = 0
    for score, truth in zip(heat.ravel().tolist(), inside.ravel().tolist(), strict=True):
        if not np.isnan(score) and score >= threshold - 1e-9:
            found += 1
            common += truth
    return 2 * common / (found + int(inside.sum()))


@given(st.integers(0, 10_000))
def test_every_share_of_the_range_is_dice_as_counted_pixel_by_pixel(seed):
    rng = np.random.default_rng(seed)
    heat = rng.integers(0, 30, (7, 9)) / 29  # ties, and scores that stand at a share
    heat[rng.random(heat.shape) < 0.2] = np.nan
    heat[0, :2] = -0.5, 1.5
    inside = rng.random(heat.shape) < 0.3
    inside[3, 3] = True
    found = score_mask(heat, inside, RULE)
    thresholds = -0.5 + SHARES * 2
    expected = [dice_by_hand(heat, inside, threshold) for threshold in thresholds]
    assert found["curve"] == pytest.approx(expected, abs=1e-12)
    assert found["dice_fixed"] == pytest.approx(dice_by_hand(heat, inside, 0.5), abs=1e-12)
    assert found["area"] == inside.mean()


def test_a_map_that_is_the_mask_is_perfect_and_a_flat_one_points_at_random():
    inside = np.zeros((10, 12), dtype=bool)
    inside[2:5, 3:9] = True
    perfect = score_mask(inside.astype(float), inside, RULE)
    assert (perfect["curve"] == 1).all()
    assert perfect["pointing_game"] == 1
    assert score_mask(np.full(inside.shape, 0.3), inside, RULE)["pointing_game"] == inside.mean()
    assert not score_mask(np.full(inside.shape, np.nan), inside, RULE)["curve"].any()


def test_means_are_over_classes_and_weights_repeat_masks():
    classes = ["a", "a", "a", "b"]
    values = {"dice": np.array([0.0, 0.3, 0.6, 1.0])}
    curves = np.zeros((4, len(SHARES)))
    curves[:3, 4], curves[3, 4], curves[3, 9] = 0.5, 0.1, 0.9
    statistics = mask_statistics(classes, values, curves)
    found = statistics(np.array([[1.0, 1, 1, 1], [0, 0, 2, 1], [1, 1, 1, 0]]))
    assert found["dice"] == pytest.approx([(0.3 + 1) / 2, (0.6 + 1) / 2, 0.3])
    assert found["a/dice"] == pytest.approx([0.3, 0.6, 0.3])
    # The best share of each resample: .45 at the tenth, then again, then .5 of class a alone.
    assert found["dice_test_threshold"] == pytest.approx([0.45, 0.45, 0.5])
    assert best_share(curves, classes) == 9
    assert best_share(curves[:3], classes[:3]) == 4


class TestOnASet:
    @pytest.fixture(scope="class")
    @staticmethod
    def judged(write_prepared, small_model, tmp_path_factory):
        folder = tmp_path_factory.mktemp("masks")
        splits = ("test", "validate", "train")
        prepared = write_prepared(folder / "set", splits=splits)
        found = {}
        for split in ("test", "validate"):
            words = {"split": split, "bootstrap": 0, "heatmaps": 0}
            with measuring_only("segmentation"):
                found[split] = evaluate(small_model, prepared, folder / split, **words)
        return PreparedSet.open(prepared), found

    def test_the_threshold_is_chosen_on_validation_masks_and_only_there(self, judged):
        data, found = judged
        part, other = (found[name].details("segmentation") for name in ("test", "validate"))
        images = dict(zip(data.images["image_id"], data.images["split"], strict=True))
        expected = [images[name] for name in data.phrases["image_id"]]
        assert part["masks"] == expected.count("test")
        assert part["threshold"]["masks"] == expected.count("validate")
        # On its own images, validation's choice is the best one: the bound of that split.
        assert part["threshold"]["share_of_range"] == other["test_threshold"]["share_of_range"]
        dice, bound = (
            found["test"].value("segmentation", name) for name in ("dice", "dice_test_threshold")
        )
        assert dice <= bound + 1e-12
        assert found["validate"].value("segmentation", "dice") is None
        assert "validate" in other["threshold"]["reason"]
