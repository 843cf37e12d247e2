"""Label maps: those that come along decide every class, and one's own fits or is refused."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.data.label_maps import NO_RULE, LabelMap, load_label_map, packaged_maps
from medclip_debias.data.labels import CHEXPERT_LABELS
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.sources.entries import entries
from medclip_debias.data.sources.findings import finding_name
from medclip_debias.data.sources.label_groups import LabelColumns, label_groups
from medclip_debias.data.sources.registry import formats
from medclip_debias.errors import UserError


def my_map(**content):
    return LabelMap(name="mine", **content)


@pytest.mark.parametrize("name", packaged_maps())
def test_a_packaged_map_decides_every_class_or_says_why_not(name):
    found = load_label_map(name)
    known = {*CHEXPERT_LABELS, *load_prompts("openi").classes}
    listed = [c for names in found.left_out.values() for c in names]
    assert set(found.classes) | set(listed) == known
    assert len(listed) == len(set(listed))
    assert found.name == name
    assert set(found.kinds) <= set(formats())
    assert all(rule.why for rule in found.classes.values())


def test_the_maps_columns_are_those_that_the_sources_write():
    """Both spellings: the archive's own table, and the set that `prepare` makes of it."""
    archives = {
        "chestxray14": [*entries()["chestxray14"]["labels"]["classes"], "No Finding"],
        "chestx_det": entries()["chestx_det"]["labels"]["shown"],
    }
    for name, own in archives.items():
        found = load_label_map(name)
        for columns in (own, [finding_name(column) for column in own]):
            bound = found.bind(columns, list(found.classes), "a table")
            assert not bound.not_judged
            assert not bound.lacking
    three = ["Cardiomegaly", "Mass", "Atelectasis"]
    shown = entries()["chestx_det"]["labels"]["shown"][:10]
    ten = load_label_map("chestx_det").bind(shown, three, "a table")
    assert ten.not_judged["Cardiomegaly"] == "none of its rule's columns is there (Cardiomegaly)"
    assert ten.not_judged["Mass"] == NO_RULE


@pytest.mark.parametrize("name", ["padchest", "vindr_cxr"])
def test_a_map_and_prepare_agree_on_chexperts_classes(name):
    """With and without the map, the set's images have the same labels of CheXpert's classes."""
    groups = label_groups(name)
    found = load_label_map(name)
    members = sorted({member for group in groups.values() for member in group})
    named = LabelColumns(members, groups)
    for member in members:
        cells = named.values([member])
        prepared = {c: np.array([float(v or 0)]) for c, v in cells.items()}
        bound = found.bind(list(prepared), list(groups), "a set")
        values = bound.values(prepared.__getitem__, str)
        assert set(values) == set(groups)
        assert {c: v[0] for c, v in values.items()} == {c: cells[c] for c in groups}, member


def test_rare_columns_count_as_zero_where_another_one_is_there():
    label_map = my_map(classes={"A": ["x", "y"], "B": "z"}, rare=("y", "z"))
    bound = label_map.bind(["x"], ["A", "B"], "a table")
    values = bound.values({"x": np.array([1.0, 0.0, -1.0, np.nan])}.__getitem__, str)
    np.testing.assert_equal(values["A"], [1, 0, -1, np.nan])
    assert bound.lacking == ["y"]
    assert bound.not_judged == {"B": "none of its rule's columns is there (z)"}
    counted = dict.fromkeys(("present", "absent", "uncertain", "blank"), 1)
    assert bound.counts["A"] == counted | {"contradictory": 0}


def test_columns_are_found_by_other_spellings_and_never_two():
    label_map = my_map(
        classes={"A": "Pleural_Thickening"}, spellings={"Pleural_Thickening": ["PT"]}
    )
    for there in ("Pleural_Thickening", "pleural thickening", "PT", "pt"):
        assert label_map.bind([there, "other"], ["A"], "t").columns == {"Pleural_Thickening": there}
    both = label_map.bind(["PT", "pleural thickening"], ["A"], "t")
    assert both.columns == {"Pleural_Thickening": "PT"}  # as it is written
    with pytest.raises(UserError, match="the columns 'pt' and 'pleural thickening' may both be"):
        label_map.bind(["pt", "pleural thickening"], ["A"], "t")


def test_a_map_that_does_not_fit_is_one_sentence():
    label_map = my_map(classes={"A": {"any": ["Effusion"]}}, left_out={"no such label": ["B"]})
    for columns, wanted, sentence in (
        (
            ["Efusion"],
            ["A"],
            r"t: has no column 'Effusion', .*for 'A' \(did you mean 'Efusion'\?\)",
        ),
        ([], ["A"], "has no column 'Effusion'.*; it has none"),
        (["Effusion"], ["C"], "'mine' has no rule for C; it has rules for: A"),
    ):
        with pytest.raises(UserError, match=sentence):
            label_map.bind(columns, wanted, "t")
    bound = label_map.bind(["Effusion"], ["A", "B", "C"], "t")
    assert bound.not_judged == {"B": "no such label", "C": NO_RULE}
    with pytest.raises(UserError, match=r"has no column that the label map 'padchest' reads"):
        load_label_map("padchest").bind(["Effusion"], ["Edema"], "t")


def test_contradictions_are_refused_or_left_blank_and_counted():
    rule = {"present": "P", "absent": "N"}
    table = {"P": np.array([1.0, 1.0, 0.0]), "N": np.array([0.0, 1.0, 1.0])}
    bound = my_map(classes={"A": rule}).bind(["P", "N"], ["A"], "t")
    with pytest.raises(UserError, match=r"^row 1: 'A' is both present and absent .*1 of 3 images"):
        bound.values(table.__getitem__, lambda n: f"row {n}")
    bound = my_map(classes={"A": rule}, contradictory="blank").bind(["P", "N"], ["A"], "t")
    np.testing.assert_equal(bound.values(table.__getitem__, str)["A"], [1, np.nan, 0])
    assert bound.counts["A"]["contradictory"] == bound.counts["A"]["blank"] == 1
    assert bound.describe()["classes"]["A"]["rule"] == "P; absent: N"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("classes: {A: {anyof: [B]}}", "'classes.A' is wrong: 'anyof' is not one of any, all, not"),
        ("clases: {A: B}", "unknown setting 'clases' .did you mean 'classes'"),
        ("classes: {A: B}\nrare: [Bc]", "'Bc' of rare is in no rule"),
        ("classes: {A: B}\nleft_out: {why: [A]}", "'A' has a rule and is left out"),
        ("- A", "expected 'key: value' lines"),
    ],
)
def test_a_file_that_is_no_map_is_one_sentence(tmp_path, text, sentence):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence) as caught:
        load_label_map(path)
    assert str(caught.value).startswith(str(path))


def test_a_map_is_found_by_name_or_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("classes: {Edema: Oedema}")
    assert load_label_map(tmp_path / "mine.yaml").name == "mine"
    with pytest.raises(UserError, match=r"padchst: is neither .*did you mean 'padchest'"):
        load_label_map("padchst")
