"""What sentences assert and deny, and what a report lets one say of an image."""

from __future__ import annotations

import pytest

from medclip_debias.grounding.counterparts import GENERAL, Reader, StatedFindings


@pytest.fixture(scope="module")
def reader():
    return Reader()


@pytest.mark.parametrize(
    ("text", "denies", "states", "negated"),
    [
        ("Small left pleural effusion.", False, True, "No pleural effusion."),
        ("Edema with an effusion.", False, True, "No edema or pleural effusion."),
        ("No pneumothorax.", True, False, GENERAL),
        ("The lungs are clear.", True, False, GENERAL),
        ("Possible pneumonia.", False, False, "No pneumonia."),
        ("Left effusion but no pneumothorax.", False, False, "No pleural effusion."),
        ("As before.", False, False, GENERAL),
    ],
)
def test_a_sentence_denies_or_states(reader, text, denies, states, negated):
    assert reader.denies(text) is denies
    assert reader.states(text) is states
    # The order of the findings in a denial is that of the claims, which are sorted.
    assert sorted(reader.negated(text)) == sorted(negated)


def test_a_denial_covers_the_kinds_of_a_finding_and_only_the_whole_image(reader):
    sentences = ["No opacity.", "No left pleural effusion.", "There is a nodule."]
    told = StatedFindings.of(sentences, reader)
    assert told.lacks(["pneumonia"]) or told.lacks(["consolidation"])
    assert not told.lacks(["pleural_effusion"])
    assert not told.lacks(["nodule"])
    assert not told.lacks([])
    both = StatedFindings.of(["No effusion.", "Small left effusion."], reader)
    assert not both.lacks(["pleural_effusion"])
