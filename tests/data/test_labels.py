"""CheXpert and NegBio tables, and what -1 and blank stand for."""

import numpy as np
import pytest

from medclip_debias.data.labels import LabelPolicy, read_label_table
from medclip_debias.errors import UserError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_values_are_present_absent_uncertain_and_unmentioned(tmp_path):
    table = "\ufeffstudy_id,Edema,Airspace Opacity,other\r\n1,1.0,-1.0,x\r\n2,0,,y\r\n"
    assert read_label_table(write(tmp_path / "a.csv", table))[0] == {
        "1": {"Edema": 1.0, "Lung Opacity": -1.0},
        "2": {"Edema": 0.0, "Lung Opacity": None},
    }


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            "study,Edema\n1,1\n",
            r"column 'study_id' is missing; of its 2 columns these are known: study",
        ),
        ("study_id,Oedema\n1,1\n", r"no column is a CheXpert label .* known: study_id"),
        ("study_id,Edema\n1,1\n2,yes\n", r"row 3, column 'Edema': a label must be 1"),
        ("study_id,Edema\n\n\n1,1\n\n2,yes\n", r"row 6, column 'Edema': a label must be 1"),
        ("study_id,Edema\n1,1\ns1,0\n", r"row 3: its study_id is that of row 2 written in another"),
        (
            "study_id,Lung Opacity,Airspace Opacity\n1,1,0\n",
            r"columns 'Lung Opacity' and 'Airspace Opacity' both hold 'Lung Opacity'",
        ),
        ("", r"the table is empty"),
    ],
)
def test_a_broken_table_is_named_with_its_row(tmp_path, table, sentence):
    path = write(tmp_path / "a.csv", table)
    with pytest.raises(UserError, match=sentence) as caught:
        read_label_table(path)
    assert str(path) in str(caught.value)


MEANING = {"leave_out": None, "as_negative": 0.0, "as_positive": 1.0}


@pytest.mark.parametrize("uncertain", MEANING)
@pytest.mark.parametrize("blank", MEANING)
def test_named_policies_decide_on_uncertain_and_blank(uncertain, blank):
    values = np.array([1.0, 0.0, -1.0, np.nan])
    judged = LabelPolicy(uncertain=uncertain, blank=blank).apply(values)
    found = [None if np.isnan(value) else value for value in judged]
    assert found == [1.0, 0.0, MEANING[uncertain], MEANING[blank]]
