"""Pictures: size, place of the colours, boxes, unseen pixels, and the words beside them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from medclip_debias.grounding.overlay import OverlayStyle, write_overlay

ACROSS = np.tile(np.linspace(0, 1, 200, dtype=np.float32), (100, 1))


@pytest.fixture
def draw(tmp_path):
    """A function: the pixels of a picture, by default bare, two for each pixel of 100 x 200."""

    def draw(image, heat, style=None, dpi=100, **options):
        bare = OverlayStyle(**{"legend": False} | (style or {}))
        path = write_overlay(
            tmp_path / "new" / "a.png", image, heat, style=bare, dpi=dpi, **options
        )
        return np.asarray(Image.open(path).convert("RGB")).astype(int)

    return draw


@pytest.mark.parametrize(
    ("shape", "side", "dpi", "size"),
    [
        ((60, 100), 1024, 100, (240, 400)),
        ((1500, 1250), 1024, 100, (400, 333)),
        ((400, 40), 1024, 100, (400, 40)),
        ((331, 200), 0, None, (331, 200)),
        ((340, 1300), 0, None, (340, 1300)),
        ((340, 1300), 100, None, (26, 100)),
    ],
)
def test_both_axes_have_one_scale_or_the_original_size(draw, shape, side, dpi, size):
    picture = draw(np.eye(*shape), np.eye(*shape), {"max_side": side}, dpi)
    slack = 0 if side == 0 else 14 if shape[1] < 50 or side == 100 else 1  # the least paper
    np.testing.assert_allclose(picture.shape[:2], size, atol=slack)


def test_colours_and_boxes_lie_where_they_belong_and_found_ones_are_dashed(draw):
    heat = np.zeros((100, 200), np.float32)
    heat[10:30, 150:180] = 1
    heat[80:] = np.nan
    grey, shares = np.full((100, 200), 128.0), {}
    for kind in ("boxes", "found"):
        picture = draw(grey, heat, **{kind: [[20, 40, 60, 30]]})
        shares[kind] = (picture[80, 50:150].max(axis=1) > 200).mean()  # along the upper side
        colour = np.ptp(picture, axis=2)
        assert (colour[24:56, 304:356] > 40).all()
        assert (colour[164:, :] == 0).all()  # unseen: grey
        if kind == "boxes":
            rows, columns = np.nonzero((picture[..., 2] > 230) & (picture[..., 0] < 120))
            edges = columns.min(), columns.max(), rows.min(), rows.max()
            assert edges == pytest.approx((40, 160, 80, 140), abs=3)
    assert shares["boxes"] == 1
    assert 0.3 < shares["found"] < 0.8


def test_contours_lie_where_the_score_is_crossed(draw):
    picture = draw(np.zeros((100, 200)), ACROSS, {"alpha": 0, "contours": (0.25, 7)})
    rows, columns = np.nonzero(picture.min(axis=2) > 128)  # black but for the line
    assert len(rows) >= 190
    assert columns.mean() == pytest.approx(2 * 0.25 * 199 + 1, abs=1.0)


def test_nothing_below_the_reference_is_coloured(draw):
    picture = draw(np.eye(100, 200), ACROSS, {"alpha": 1}, limits=(0.0, 1.0), reference=0.75)
    coloured = np.ptp(picture, axis=2) > 8
    assert not coloured[:, :298].any()
    assert coloured[:, 302:].all()


def test_the_radiograph_alone_stands_on_the_left(draw):
    grey = np.tile(np.arange(100.0), (100, 1))
    style = {"legend": True, "alpha": 1}
    picture = draw(grey, ACROSS[:, ::2], style, boxes=[[10, 10, 50, 50]])
    assert picture.shape[:2] == (400, 888)
    assert (np.ptp(picture[:, :399], axis=2) == 0).all()  # no map and no box
    assert (np.ptp(picture[5:395, 600:800], axis=2) > 8).mean() > 0.9


def test_words_beside_a_map_are_within_the_picture_and_a_warning_is_red(draw):
    style, heat = {"legend": True, "alpha": 0, "beside": False}, 0.002 * ACROSS[:, ::2]
    plain, said = (draw(np.eye(100), heat, style, kind=kind) for kind in ("", "gradcam"))
    written = np.argwhere((plain != said).any(axis=2))
    assert len(written) > 50
    assert written[:, 1].max() < plain.shape[1] - 1  # no letter is cut off
    foot = draw(np.eye(100), heat, style, warning="Means nothing.")[405:]
    assert ((foot[..., 0] > foot[..., 1] + 80) & (foot[..., 0] > 150)).any()
