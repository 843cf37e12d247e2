"""What a model gives: rows, devices and stored forms of features; whose images it knows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.synthetic import WARNING, synthetic_warning, trained_on_synthetic

IMAGES, REGIONS, DIM = 5, 6, 4


def made(whole=True):
    g = torch.Generator().manual_seed(0)
    regions = F.normalize(torch.randn(IMAGES, REGIONS, DIM, generator=g), dim=-1)
    vectors = F.normalize(torch.randn(IMAGES, DIM, generator=g), dim=-1)
    return ImageFeatures(regions, vectors if whole else None)


def same(a, b):
    assert torch.equal(a.regions, b.regions)
    assert (a.whole is None) == (b.whole is None)
    assert a.whole is None or torch.equal(a.whole, b.whole)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        (slice(None, None, 2), [0, 2, 4]),
        ([3, 0, 3], [3, 0, 3]),
        ([], []),
        (np.int64(-1), [4]),
        (torch.tensor([4, 1]), [4, 1]),
        (np.array([True, False, False, True, False]), [0, 3]),
    ],
)
def test_rows_take_the_regions_and_the_whole_of_the_same_images(rows, chosen, whole):
    features = made(whole)
    kept = None if features.whole is None else features.whole[chosen]
    same(features[rows], ImageFeatures(features.regions[chosen], kept))
    with pytest.raises(IndexError):
        features[IMAGES]


@pytest.mark.parametrize("whole", [True, False])
def test_one_by_one_and_together_again_are_the_same_images(whole):
    features = made(whole)
    assert [len(part) for part in features] == [1] * IMAGES
    same(ImageFeatures.cat(list(features)), features)
    same(features.to("cpu").cpu(), features)
    for part in (features.to("meta").regions, features.to("meta").whole):
        assert part is None or part.device.type == "meta"
    for parts in ([features, made(not whole)], []):
        with pytest.raises(ValueError, match="all with 'whole' or all without"):
            ImageFeatures.cat(parts)


def test_pooled_is_the_whole_vector_or_else_the_direction_of_the_mean_region():
    assert torch.equal(made().pooled, made().whole)
    expected = F.normalize(made(False).regions.double().mean(dim=1), dim=-1)
    torch.testing.assert_close(made(False).pooled.double(), expected, atol=1e-6, rtol=0)


def test_what_is_stored_is_one_vector_an_image_or_all_regions_and_can_be_read_back():
    features = made()
    assert torch.equal(features.stored, features.whole[:, None])
    back = ImageFeatures.of_stored(features.stored.half().float())
    torch.testing.assert_close(back.whole.norm(dim=1), torch.ones(IMAGES), atol=1e-6, rtol=0)
    torch.testing.assert_close(back.whole, features.whole, atol=1e-3, rtol=0)
    regions = made(False)
    same(ImageFeatures.of_stored(regions.stored), regions)
    # A model of one region scores by it, so it comes back as it was stored.
    single = ImageFeatures(regions.regions[:, :1].half().float())
    assert torch.equal(ImageFeatures.of_stored(single.stored).regions, single.regions)


@pytest.mark.parametrize(
    ("provenance", "expected"),
    [
        ({"data": {"kind": "mimic_cxr", "synthetic": True}}, True),
        ({"synthetic": False, "data": {"synthetic": True}}, False),
        ({"synthetic": "unknown"}, "unknown"),
        ({"synthetic": None, "data": "mimic_cxr"}, "unknown"),
    ],
)
def test_a_model_of_generated_images_says_so_of_all_but_generated_images(provenance, expected):
    assert trained_on_synthetic(provenance) == expected
    warned = WARNING if expected is True else None
    said = [synthetic_warning(provenance, synthetic) for synthetic in (None, False, True)]
    assert said == [warned, warned, None]
