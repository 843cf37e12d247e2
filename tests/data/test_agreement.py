"""The table of which studies agree with which sentences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.data.agreement import read_agreement, write_agreement
from medclip_debias.errors import UserError


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), texts=st.integers(1, 9), studies=st.integers(1, 21))
def test_any_choice_of_rows_and_columns_comes_back(tmp_path_factory, seed, texts, studies):
    rng = np.random.default_rng(seed)
    agree = rng.random((texts, studies)) < 0.5
    said = [f"Satz {n} ü" for n in range(texts)]
    names = [f"s{n}" for n in range(studies)]
    path = tmp_path_factory.mktemp("agreement") / "agreement.npz"
    write_agreement(path, said, names, agree)
    rows, columns = rng.permutation(studies), rng.integers(0, texts, 5)
    found = read_agreement(path, [said[n] for n in columns], [names[n] for n in rows])
    assert np.array_equal(found, agree.T[rows][:, columns])


def test_what_the_table_lacks_is_counted(tmp_path):
    path = tmp_path / "agreement.npz"
    write_agreement(path, ["a", "b"], ["1"], np.ones((2, 1), dtype=bool))
    with pytest.raises(UserError, match="1 of the 2 sentences are not in this table"):
        read_agreement(path, ["a", "c"], ["1"])
    with pytest.raises(UserError, match="2 of the 3 studies are not in this table"):
        read_agreement(path, ["a"], ["1", "2", "3"])


@pytest.mark.parametrize("content", [b"PK\x03\x04 no", None])
def test_another_file_is_refused_in_one_sentence(tmp_path, content):
    path = tmp_path / "agreement.npz"
    if content is None:
        np.savez(path, texts=np.array(["a"]), studies=np.array(["1"]))
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match="this is no table of agreement"):
        read_agreement(path, ["a"], ["1"])


def test_studies_are_found_however_they_are_written(tmp_path):
    path = tmp_path / "a.npz"
    write_agreement(path, ["x"], ["s50414267", "7.0"], np.array([[True, False]]))
    assert read_agreement(path, ["x"], ["7", "50414267"]).tolist() == [[False], [True]]
