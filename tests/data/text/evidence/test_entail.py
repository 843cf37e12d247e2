from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.text.claims import Claim, load_lexicon
from medclip_debias.data.text.claims.claim import FIELDS
from medclip_debias.data.text.evidence.entail import Said, implied, judge

YES, NO, MAYBE = 1, -1, 0


def present(side="", zone="", severity="", certain=True):
    return Said(True, certain, side, zone, severity)


def absent(side="", zone="", severity="", certain=True):
    return Said(False, certain, side, zone, severity)


@pytest.mark.parametrize(
    ("known", "asked", "open_world", "closed_world"),
    [
        # nothing is said
        ([], present(), MAYBE, NO),
        ([], absent(), MAYBE, YES),
        # the more specific claim needs one as specific
        ([present("left")], present(), YES, YES),
        ([present()], present("left"), MAYBE, MAYBE),
        ([present("left")], present("right"), MAYBE, NO),
        ([present("left", "lower", "mild")], present("left"), YES, YES),
        ([present("left", "lower", "mild")], present("left", "upper"), MAYBE, NO),
        # severities: neighbours are unknown, mild and severe exclude each other in one place
        ([present("left", "", "mild")], present("left", "", "severe"), NO, NO),
        ([present("left", "", "mild")], present("left", "", "moderate"), MAYBE, MAYBE),
        ([present("left", "", "mild")], present("", "", "severe"), MAYBE, NO),
        ([present(), present("", "", "mild")], present("", "", "mild"), YES, YES),
        # absence
        ([absent()], present("left", "", "mild"), NO, NO),
        ([absent("left")], present(), MAYBE, NO),
        ([absent("left"), absent("right")], present(), NO, NO),
        ([absent("left"), absent("right")], absent(), YES, YES),
        ([absent()], absent("right"), YES, YES),
        ([absent("right")], absent(), MAYBE, YES),
        ([absent("", "", "severe")], present(), MAYBE, NO),
        ([present("left")], absent(), NO, NO),
        ([present()], absent("left"), MAYBE, MAYBE),
        ([present("left")], absent("right"), MAYBE, YES),
        ([present("", "", "mild")], absent("", "", "severe"), MAYBE, YES),
        # doubt: what is possible is not absent, and decides nothing
        ([present(certain=False)], present(), MAYBE, MAYBE),
        ([present(certain=False)], absent(), MAYBE, MAYBE),
        ([present()], present(certain=False), MAYBE, MAYBE),
        ([absent(certain=False)], present(), MAYBE, NO),
        # a report that says both
        ([present(), absent()], present(), MAYBE, MAYBE),
        ([present("left"), absent()], absent(), MAYBE, MAYBE),
    ],
)
def test_what_is_known_decides_what_is_asked(known, asked, open_world, closed_world):
    assert judge(known, asked, False).verdict == open_world
    assert judge(known, asked, True).verdict == closed_world


SAID = st.builds(
    Said,
    st.booleans(),
    st.booleans(),
    st.sampled_from(FIELDS["side"]),
    st.sampled_from(FIELDS["zone"]),
    st.sampled_from(FIELDS["severity"]),
)


@given(st.lists(SAID, max_size=4), SAID, st.booleans())
def test_who_says_it_agrees_or_says_the_opposite_too(known, asked, always):
    found = judge([*known, asked], asked, always)
    assert found.verdict == 1 or not asked.certain or found.conflict
    assert found.verdict >= 0


@given(st.lists(SAID, max_size=4), SAID)
def test_the_closed_world_only_fills_in_what_is_unknown(known, asked):
    without, with_ = judge(known, asked, False), judge(known, asked, True)
    if without.verdict and not with_.conflict:
        assert with_.verdict == without.verdict


@given(st.lists(SAID, max_size=4), SAID)
def test_a_denied_finding_without_place_denies_every_place(known, asked):
    certain = asked._replace(certain=True, present=True)
    surely = [k for k in known if not k.present]
    assert judge([*surely, absent()], certain, False).verdict == -1


def test_the_hierarchy_is_climbed_by_presence_and_descended_by_absence():
    lexicon = load_lexicon()
    up = dict(implied(Claim("consolidation", side="left", severity="severe"), lexicon))
    assert up["opacity"] == present("left")
    assert up["consolidation"] == present("left", "", "severe")
    down = dict(implied(Claim("opacity", "absent"), lexicon))
    assert {"consolidation", "pneumonia", "infiltrate"} <= set(down)
    assert "nodule" not in down
    assert list(implied(Claim("opacity", "absent", change="new"), lexicon)) == []  # nor of old ones
