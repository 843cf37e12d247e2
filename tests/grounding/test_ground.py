"""Grounding images: maps lie where the image says they should, and nothing is encoded twice."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from medclip_debias.errors import UserError
from medclip_debias.grounding.ground import ground_image, ground_images
from medclip_debias.models.region_grid import RegionGrid


@pytest.mark.parametrize("shape", [(150, 240), (240, 150)])
@pytest.mark.parametrize("corner", [(0.2, 0.65), (0.6, 0.25)])
def test_a_change_in_the_image_changes_the_map_in_the_same_place(model, radiograph, shape, corner):
    height, width = shape
    top, left, side = int(corner[0] * height), int(corner[1] * width), 30
    before = ground_image(model, radiograph(*shape), ["Left lung."])[0].heatmap
    after = ground_image(model, radiograph(*shape, (top, left, side)), ["Left lung."])[0].heatmap
    assert after.shape == shape
    change = np.nan_to_num(after - before).astype(np.float64) ** 2
    rows, columns = np.mgrid[:height, :width] + 0.5
    y, x = ((change * axis).sum() / change.sum() for axis in (rows, columns))
    # An untrained network answers most where its receptive field is hit.
    cell = model.grid.stride * max(shape) / 96
    assert abs(y - (top + side / 2)) < 1.5 * cell
    assert abs(x - (left + side / 2)) < 1.5 * cell


def test_a_batch_gives_what_one_at_a_time_gives_and_encodes_each_once(
    model, radiograph, monkeypatch
):
    images = [radiograph(60 + 20 * i, 100, (20, 20, 15)) for i in range(5)]
    texts = ["Left lung.", "Right lung."]
    counts = {"encode_images": 0, "encode_ids": 0}

    def counting(name, encode):
        def counted(rows, *how):
            counts[name] += len(rows)
            return encode(rows, *how)

        return counted

    with monkeypatch.context() as patched:
        for name in counts:
            patched.setattr(model, name, counting(name, getattr(model, name)))
        together = list(ground_images(model, images, texts, smoothing=0.7, batch_size=2))
    assert counts == {"encode_images": 5, "encode_ids": 2}
    for image, found in zip(images, together, strict=True):
        for text, grounding in zip(texts, found, strict=True):
            (alone,) = ground_image(model, image, [text], smoothing=0.7)
            assert grounding.text == text
            assert grounding.score == pytest.approx(alone.score, abs=1e-5)
            np.testing.assert_allclose(grounding.heatmap, alone.heatmap, atol=1e-5)
            assert grounding.heatmap.shape == image.shape


def test_images_are_taken_only_a_batch_ahead(model, radiograph):
    taken = []

    def images():
        for number in range(7):
            taken.append(number)
            yield radiograph(50, 60)

    found = ground_images(model, images(), ["Left lung."], batch_size=3)
    assert taken == []
    for number in range(7):
        next(found)
        assert len(taken) == min((number // 3 + 1) * 3, 7)


def test_what_cannot_be_grounded_is_refused_at_once(model, radiograph):
    image = radiograph(40, 40)
    with pytest.raises(UserError, match="Sentence 2 is empty"):
        ground_images(model, [image], ["Left lung.", " "])
    with pytest.raises(UserError, match="No sentence was given"):
        ground_images(model, [image], [])
    with pytest.raises(UserError, match="smoothing"):
        ground_images(model, [image], ["Left lung."], smoothing=-1)
    with pytest.raises(UserError, match="single grey value"):
        ground_image(model, np.zeros((1, 1), np.uint8), ["Left lung."])
    whole = RegionGrid(1, 1, 40.0, 20.0)
    without_regions = SimpleNamespace(grid=whole, preprocessing=model.preprocessing)
    with pytest.raises(UserError, match="no regions"):
        ground_images(without_regions, [image], ["Left lung."])
