"""Boxes on the image at hand: scaled, cut at its edges, and left aside where they mean nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.boxes import check_sizes, fit_boxes, same_shape
from medclip_debias.data.records import RELATIVE, PhraseRecord
from medclip_debias.errors import UserError


@given(
    st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
    st.integers(1, 9),
    st.lists(st.floats(-1, 2), min_size=4, max_size=4),
)
def test_scaled_boxes_lie_in_the_image(actual, times, part):
    annotated = actual[0] * times, actual[1] * times
    left, top, *sides = (p * annotated[i % 2] for i, p in enumerate(part))
    for x, y, w, h in fit_boxes([(left, top, *map(abs, sides))], annotated, actual).boxes:
        assert min(x, y) >= 0
        assert x + w <= actual[0] + 1e-6
        assert y + h <= actual[1] + 1e-6


sides = st.integers(200, 4000)


@given(sides, sides, st.integers(16, 4000))
def test_an_image_that_was_made_smaller_has_the_shape_of_the_original(width, height, longer):
    scale = longer / max(width, height)
    small = max(round(width * scale), 1), max(round(height * scale), 1)
    assert same_shape((width, height), small)
    assert same_shape(small, (width, height))


@pytest.mark.parametrize("actual", [(512, 512), (3056, 2544), (2544, 2900), (2600, 3056)])
def test_an_image_that_was_squashed_turned_or_cut_has_another_shape(actual):
    assert not same_shape((2544, 3056), actual)
    assert fit_boxes([(1, 2, 3, 4)], (2544, 3056), actual).other_shape


def test_what_becomes_of_every_box_is_counted():
    inside, flat, negative = (10, 20, 30, 40), (1, 1, 0, 5), (9, 9, 3, -1)
    over, beyond = (90, 10, 50, 10), (300, 300, 5, 5)
    fitted = fit_boxes([inside, flat, over, beyond, negative], (100, 200), (50, 100))
    assert fitted.boxes == [[5, 10, 15, 20], [45, 5, 5, 5]]
    assert fitted._asdict() | {"boxes": None} == {
        "boxes": None,
        **{"flat": 2, "outside": 1, "clipped": 1, "scaled": True, "other_shape": False},
    }
    whole = fit_boxes([inside, (60, 0, 5, 5)], None, (50, 50))
    assert (whole.boxes, whole.scaled) == ([[10, 20, 30, 30]], False)


@given(
    st.tuples(st.integers(16, 4000), st.integers(16, 4000)),
    st.tuples(*[st.integers(0, 10_000).map(lambda n: n / 10_000)] * 4),
)
def test_boxes_in_fractions_of_the_sides_fit_any_image(actual, corners):
    (left, right), (top, bottom) = sorted(corners[:2]), sorted(corners[2:])
    box = (left, top, right - left, bottom - top)
    found = fit_boxes([box], RELATIVE, actual)
    assert (found.scaled, found.other_shape, found.outside, found.clipped) == (False, False, 0, 0)
    if found.boxes:
        width, height = actual
        expected = (left * width, top * height, (right - left) * width, (bottom - top) * height)
        assert found.boxes[0] == pytest.approx(expected, abs=1e-9)
    else:
        assert found.flat == 1


@pytest.mark.parametrize(("annotated", "refused"), [(None, True), ((1024, 1024), False)])
def test_boxes_that_leave_their_images_show_that_these_were_made_smaller(annotated, refused):
    """Drawn at 1024 pixels on images of 256: those that lie inside lie at wrong places."""
    drawn = [(64.0 * n, 64.0 * n, 100.0, 100.0) for n in range(12)]
    phrases = [PhraseRecord(str(n), str(n), "", "", (b,), annotated) for n, b in enumerate(drawn)]
    fitted = [(p, fit_boxes(p.boxes, p.annotated_size, (256, 256))) for p in phrases]
    if refused:
        with pytest.raises(UserError, match="8 of 12 boxes lie outside"):
            check_sizes(fitted)
    check_sizes(fitted if not refused else [(p, f) for p, f in fitted if f.boxes])


def test_a_single_box_at_a_wrong_place_is_only_counted():
    boxes = [(1.0, 1.0, 5.0, 5.0)] * 12 + [(900.0, 1.0, 5.0, 5.0)]
    phrase = PhraseRecord("1", "1", "", "", tuple(boxes), None)
    check_sizes([(phrase, fit_boxes(boxes, None, (256, 256)))])
