"""Seeded splits, the words for splits, and leaks."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.records import ImageRecord
from medclip_debias.data.splits import SHARES, check_leak, seeded_split, split_name
from medclip_debias.errors import UserError


def image(name, study, patient, split):
    return ImageRecord(name, study, patient, Path(name), "AP", split, f"t.csv, row {name}")


def test_seeded_splits_have_their_shares_and_another_seed_is_another_split():
    one, two = ([seeded_split(str(i), seed) for i in range(10_000)] for seed in (1, 2))
    shares = pd.Series(one).value_counts(normalize=True)
    assert all(abs(shares[split] - share) < 0.015 for split, share in SHARES.items())
    same = sum(a == b for a, b in zip(one, two, strict=True)) / 10_000
    assert abs(same - sum(share**2 for share in SHARES.values())) < 0.03


@given(st.text(), st.integers(0, 2**31))
def test_every_patient_has_a_split(patient, seed):
    assert seeded_split(patient, seed) == seeded_split(patient, seed) in SHARES


def test_the_usual_words_name_splits():
    assert [split_name(word, "") for word in ("Train", " val ", "valid", "dev", "TEST")] == [
        *("train", "validate", "validate", "validate", "test")
    ]
    with pytest.raises(UserError, match="a, row 3: its split is not one of train, validate"):
        split_name("other", "a, row 3")


def test_several_images_and_studies_of_a_patient_in_one_split_are_no_leak():
    rows = [("s1", "p1", "train"), ("s1", "p1", "train"), ("s2", "p1", ""), ("s2", "p1", "train")]
    check_leak([image(str(n), *row) for n, row in enumerate([*rows, ("s3", "p2", "test")])])


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (
            image("3", "s2", "p1", "test"),
            r"row 3: the patient of this test image also has a train image \(t.csv, row 2\)",
        ),
        (
            image("3", "s1", "p1", "validate"),
            r"row 3: the study of this validate image also has a train image",
        ),
        (image("3", "s1", "p2", ""), r"row 3: the study of this image belongs to another"),
    ],
)
def test_a_leak_names_both_rows(second, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        check_leak([image("2", "s1", "p1", "train"), second])
    assert "p1" not in str(caught.value)
