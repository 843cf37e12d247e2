"""Pictures: aspect, place of the colours, boxes, unseen pixels, and no half-written file."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from medclip_debias.grounding.overlay import OverlayStyle, write_overlay

BARE = OverlayStyle(legend=False)


def read(path):
    return np.asarray(Image.open(path).convert("RGB")).astype(int)


@pytest.mark.parametrize("shape", [(60, 100), (1500, 1250), (400, 40)])
def test_one_scale_for_both_axes(shape, tmp_path):
    path = write_overlay(
        tmp_path / "a.png", np.zeros(shape), np.zeros(shape, np.float32), style=BARE, dpi=100
    )
    height, width = read(path).shape[:2]
    assert max(height, width) == pytest.approx(400, abs=1)
    assert height / width == pytest.approx(max(shape[0], shape[1] / 10) / shape[1], rel=0.02)


def test_colours_and_boxes_lie_where_they_belong(tmp_path):
    heat = np.zeros((100, 200), np.float32)
    heat[10:30, 150:180] = 1
    heat[80:] = np.nan
    path = write_overlay(
        tmp_path / "new" / "a.png",
        np.full((100, 200), 128.0),
        heat,
        boxes=[[20, 40, 60, 30]],
        style=BARE,
        dpi=100,
    )
    picture = read(path)  # 400 x 200: two pixels for each of the image's
    colour = picture.max(axis=2) - picture.min(axis=2)
    assert (colour[24:56, 304:356] > 40).all()
    assert (colour[164:, :] == 0).all()  # unseen: grey
    rows, columns = np.nonzero((picture[..., 2] > 230) & (picture[..., 0] < 120))
    assert columns.min() == pytest.approx(40, abs=3)
    assert columns.max() == pytest.approx(160, abs=3)
    assert rows.min() == pytest.approx(80, abs=3)
    assert rows.max() == pytest.approx(140, abs=3)


def test_a_failed_picture_leaves_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="not enough values"):
        write_overlay(tmp_path / "a.png", np.zeros((4, 4)), np.zeros((4, 4)), boxes=[[1, 2, 3]])
    assert list(tmp_path.iterdir()) == []


def test_contours_lie_where_the_score_is_crossed(tmp_path):
    across = np.tile(np.linspace(0, 1, 200, dtype=np.float32), (100, 1))
    options = {"legend": False, "alpha": 0.0}
    style = OverlayStyle(contours=(0.25,), **options)
    path = write_overlay(tmp_path / "a.png", np.zeros((100, 200)), across, style=style, dpi=100)
    picture = read(path)  # 400 x 200, black but for the line
    rows, columns = np.nonzero(picture.min(axis=2) > 128)
    assert len(rows) >= 190
    assert columns.mean() == pytest.approx(2 * 0.25 * 199 + 1, abs=1.0)
    style = OverlayStyle(contours=(7,), **options)
    flat = write_overlay(tmp_path / "b.png", np.zeros((100, 200)), across, style=style, dpi=100)
    assert read(flat).max() == 0


def test_found_boxes_are_dashed_and_reference_boxes_are_not(tmp_path):
    options = {"style": OverlayStyle(legend=False, alpha=0), "dpi": 100}
    heat = np.zeros((100, 100), np.float32)
    shares = {}
    for kind in ("boxes", "found"):
        path = write_overlay(
            tmp_path / "a.png",
            np.full((100, 100), 0.5),
            heat,
            **{kind: [[20, 30, 40, 50]]},
            **options,
        )
        edge = read(path)[120, 90:230].max(axis=1)  # along the upper side
        shares[kind] = (edge > 200).mean()
    assert shares["boxes"] == 1
    assert 0.3 < shares["found"] < 0.8


@pytest.mark.parametrize("shape", [(331, 200), (340, 1300)])
def test_without_a_legend_the_original_size_is_kept(shape, tmp_path):
    style = OverlayStyle(legend=False, max_side=0)
    path = write_overlay(tmp_path / "a.png", np.eye(*shape), np.eye(*shape), style=style)
    assert read(path).shape[:2] == shape
    style = OverlayStyle(legend=False, max_side=100)
    path = write_overlay(tmp_path / "a.png", np.eye(*shape), np.eye(*shape), style=style)
    assert max(read(path).shape[:2]) == min(100, max(shape))


def test_nothing_below_the_reference_is_coloured(tmp_path):
    across = np.tile(np.linspace(0, 1, 200, dtype=np.float32), (100, 1))
    options = {"style": OverlayStyle(legend=False, alpha=1), "dpi": 100, "limits": (0.0, 1.0)}
    path = write_overlay(tmp_path / "a.png", np.eye(100, 200), across, reference=0.75, **options)
    picture = read(path).astype(int)  # 400 x 200
    coloured = np.ptp(picture[:, :, :3], axis=2) > 8
    assert not coloured[:, :298].any()
    assert coloured[:, 302:].all()


def test_the_radiograph_alone_stands_on_the_left(tmp_path):
    grey = np.tile(np.arange(100.0), (100, 1))
    options = {"style": OverlayStyle(alpha=1), "dpi": 100, "boxes": [[10, 10, 50, 50]]}
    heat = np.tile(np.linspace(0, 1, 100), (100, 1))
    path = write_overlay(tmp_path / "a.png", grey, heat, **options)
    picture = read(path).astype(int)
    assert picture.shape[:2] == (400, 888)
    assert (np.ptp(picture[:, :399, :3], axis=2) == 0).all()  # no map and no box
    assert (np.ptp(picture[5:395, 600:800, :3], axis=2) > 8).mean() > 0.9


@pytest.mark.parametrize(("highest", "kind"), [(0.8, "cosine"), (0.002, "gradcam")])
def test_the_colour_bar_says_what_the_map_holds_within_the_picture(tmp_path, highest, kind):
    heat = np.tile(np.linspace(0, highest, 100), (100, 1))
    options = {"style": OverlayStyle(alpha=0, beside=False), "dpi": 100}
    labels = []
    for what in ("", kind):
        path = write_overlay(tmp_path / "a.png", np.eye(100), heat, kind=what, **options)
        labels.append(read(path).astype(int)[..., :3].sum(axis=2))
    said = np.argwhere(labels[0] != labels[1])
    assert len(said) > 50
    assert said[:, 1].max() < labels[0].shape[1] - 1  # no letter is cut off


def test_a_warning_is_written_in_red(tmp_path):
    style = OverlayStyle(alpha=0, beside=False)
    for words in ("", "Means nothing."):
        path = write_overlay(tmp_path / "a.png", np.eye(50), np.eye(50), warning=words, style=style)
        foot = read(path)[445:].reshape(-1, 4).astype(int)
        red = (foot[:, 0] > foot[:, 1] + 80) & (foot[:, 0] > 150)
        assert red.any() == bool(words)
