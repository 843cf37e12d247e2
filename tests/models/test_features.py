"""`ImageFeatures`: rows, devices and parts keep regions and whole images together."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from medclip_debias.models.features import ImageFeatures

IMAGES, REGIONS, DIM = 5, 6, 4


def made(whole=True, seed=0):
    g = torch.Generator().manual_seed(seed)
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
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, 2), [0, 2, 4]),
        ([3, 0, 3], [3, 0, 3]),
        ([], []),
        (2, [2]),
        (-1, [4]),
        (np.int64(3), [3]),
        (np.array([4, 1]), [4, 1]),
        (torch.tensor([4, 1]), [4, 1]),
        ([True, False, False, True, False], [0, 3]),
        (np.array([True, False, False, True, False]), [0, 3]),
        (torch.tensor([True, False, False, True, False]), [0, 3]),
    ],
)
def test_rows_take_the_regions_and_the_whole_of_the_same_images(rows, chosen, whole):
    features = made(whole)
    found = features[rows]
    assert len(found) == len(chosen)
    assert found.regions.shape == (len(chosen), REGIONS, DIM)
    for place, number in enumerate(chosen):
        assert torch.equal(found.regions[place], features.regions[number])
        if whole:
            assert torch.equal(found.whole[place], features.whole[number])
    assert (found.whole is None) == (not whole)


def test_a_row_that_is_not_there_is_an_error():
    with pytest.raises(IndexError):
        made()[IMAGES]


@pytest.mark.parametrize("whole", [True, False])
def test_one_by_one_and_together_again_are_the_same_images(whole):
    features = made(whole)
    parts = list(features)
    assert [len(part) for part in parts] == [1] * IMAGES
    same(ImageFeatures.cat(parts), features)
    same(ImageFeatures.cat([features[:2], features[2:]]), features)


def test_images_with_and_without_a_whole_vector_are_not_put_together():
    for parts in ([made(), made(False)], [made(False), made()], []):
        with pytest.raises(ValueError, match="all with 'whole' or all without"):
            ImageFeatures.cat(parts)


@pytest.mark.parametrize("whole", [True, False])
def test_regions_and_whole_go_to_a_device_together(whole):
    there = made(whole).to("meta")
    assert there.regions.device.type == "meta"
    assert there.whole is None or there.whole.device.type == "meta"
    same(made(whole).to("cpu").cpu(), made(whole))


def test_pooled_is_the_whole_vector_or_else_the_direction_of_the_mean_region():
    features = made()
    assert torch.equal(features.pooled, features.whole)
    mean = made(False).regions.double().mean(dim=1)
    expected = mean / mean.square().sum(dim=1, keepdim=True).sqrt()
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


def test_shapes_that_do_not_fit_are_refused():
    regions, whole = made().regions, made().whole
    for given, match in (
        ((regions[0],), r"expected regions \[B, N, D\], got \(6, 4\)"),
        ((regions, whole[:4]), r"expected whole \(5, 4\), got \(4, 4\)"),
        ((regions, whole[:, :3]), r"expected whole \(5, 4\), got \(5, 3\)"),
    ):
        with pytest.raises(ValueError, match=match):
            ImageFeatures(*given)
