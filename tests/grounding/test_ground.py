"""Grounding images: maps lie where the image says they should, and nothing is encoded twice."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

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
    alone = [ground_image(model, image, [t], smoothing=0.7)[0] for image in images for t in texts]
    spies = {name: Mock(wraps=getattr(model, name)) for name in ("encode_images", "encode_ids")}
    for name, spy in spies.items():
        monkeypatch.setattr(model, name, spy)
    made = list(ground_images(model, images, texts, smoothing=0.7, batch_size=2))
    rows = {name: [len(one.args[0]) for one in spy.call_args_list] for name, spy in spies.items()}
    assert rows == {"encode_images": [2, 2, 1], "encode_ids": [2]}
    for one, grounding in zip(alone, [g for found in made for g in found], strict=True):
        assert grounding.text == one.text
        assert grounding.score == pytest.approx(one.score, abs=1e-5)
        np.testing.assert_allclose(grounding.heatmap, one.heatmap, atol=1e-5)


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
    image, text = radiograph(40, 40), ["Left lung."]
    whole = SimpleNamespace(grid=RegionGrid(1, 1, 40.0, 20.0), preprocessing=model.preprocessing)
    for words, ask in (
        ("Sentence 2 is empty", lambda: ground_images(model, [image], [*text, " "])),
        ("No sentence was given", lambda: ground_images(model, [image], [])),
        ("smoothing", lambda: ground_images(model, [image], text, smoothing=-1)),
        ("single grey value", lambda: ground_image(model, np.zeros((1, 1), np.uint8), text)),
        ("no regions", lambda: ground_images(whole, [image], text)),
    ):
        with pytest.raises(UserError, match=words):
            ask()
