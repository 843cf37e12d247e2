"""View positions, by the names that archives use."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from medclip_debias.config import FRONTAL_VIEWS, PrepareSettings
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.views import is_chosen, is_frontal, view_class

NAMES = {
    "frontal": [
        *(*FRONTAL_VIEWS, "pa", "ap_supine", "AP-ERECT", "FRONTAL", "PA (erect)"),
        *("POSTERO_ANTERIOR", "antero-posterior", "Posteroanterior", "Anteroposterior supine"),
    ],
    "lateral": ["LATERAL", "Lateral", "LL", "RL", "L", "LLAT", "XTABLE LATERAL", "left lateral"],
    "other": [
        *("LAO", "RPO", "AP LLD", "AP RLD", "PA LLD", "LATERAL DECUBITUS", "AP AXIAL"),
        *("SWIMMERS", "COSTAL", "AP LORDOTIC", "thorax"),
    ],
    "blank": ["", "  "],
}


@pytest.mark.parametrize(("kind", "names"), NAMES.items())
def test_a_name_has_one_class_however_it_is_written(kind, names):
    assert {name: view_class(name) for name in names} == dict.fromkeys(names, kind)


@pytest.mark.parametrize(
    ("views", "taken"),
    [
        (["PA"], {"PA"}),
        (["PA", "LL"], {"PA", "LL"}),
        (["lateral"], {"LL", "LATERAL"}),
        (["ALL"], {"PA", "AP", "LL", "LATERAL", "RAO"}),
    ],
)
def test_words_stand_for_groups_of_names(views, taken):
    assert {v for v in ("PA", "AP", "LL", "LATERAL", "RAO") if is_chosen(v, views)} == taken


def test_an_archives_own_name_counts_as_frontal_where_it_was_asked_for():
    assert is_frontal("Thorax", ["thorax", "lateral"])
    assert not is_frontal("Thorax", ["all"])
    assert not is_frontal("LATERAL", ["LATERAL"])
    assert not is_frontal("AP LLD", ["AP LLD"])


def test_a_set_that_says_nothing_of_its_selection_is_read_by_the_names_alone():
    def frontal(**meta):
        prepared = PreparedSet(Path(), {"content_hash": "", **meta}, PrepareSettings())
        prepared.images = pd.DataFrame({"view": ["PA", "LL", "", "thorax"]})
        return prepared.frontal

    np.testing.assert_array_equal(frontal(), [1, 0, 1, 0])
    np.testing.assert_array_equal(frontal(selection={"views": ["PA", "Thorax"]}), [1, 0, 1, 1])
