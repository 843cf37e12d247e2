"""Labels and locations from Open-i's human indexing, and the published mapping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.labels import CHEXPERT_LABELS
from medclip_debias.data.mesh import entries, openi_mapping
from medclip_debias.data.prompts import load_prompts

MAPPING = openi_mapping()


def labels(*texts):
    return MAPPING.labels(entries(texts))


def test_a_report_that_is_not_indexed_has_no_label():
    for index in ((), ("No Indexing",), ("no indexing ",)):
        assert set(labels(*index).values()) == {None}


def test_a_normal_report_is_absent_everywhere():
    found = labels("normal")
    assert found.pop("No Finding") == 1
    assert set(found.values()) == {0}


def test_an_indexed_report_without_the_heading_is_absent():
    found = labels("Pulmonary Edema/mild")
    assert found["Edema"] == 1
    assert found["Pneumothorax"] == found["No Finding"] == found["Scoliosis"] == 0


def test_borderline_is_uncertain_unless_another_entry_is_not():
    assert labels("Cardiomegaly/borderline")["Cardiomegaly"] == -1
    assert labels("Cardiac Shadow/enlarged/borderline")["Cardiomegaly"] == -1
    assert labels("Cardiomegaly/borderline", "Cardiomegaly/mild")["Cardiomegaly"] == 1
    assert labels("Cardiomegaly/borderline")["No Finding"] == -1
    assert labels("Cardiomegaly/borderline", "Scoliosis")["No Finding"] == 0


def test_a_heading_that_may_be_the_finding_leaves_its_column_blank():
    assert labels("Costophrenic Angle/left/blunted")["Pleural Effusion"] is None
    both = labels("Costophrenic Angle/left/blunted", "Pleural Effusion/left")
    assert both["Pleural Effusion"] == 1
    assert labels("Costophrenic Angle/left/obscured")["Pleural Effusion"] == 0


def test_qualifiers_decide_in_any_order_and_case():
    assert labels("Nodule/right/Lung")["Lung Lesion"] == 1
    assert labels("Nodule/breast")["Lung Lesion"] is None
    assert labels("Thoracic vertebrae/degenerative")["Degenerative Spine"] == 1
    assert labels("Lung/mild/hypoinflation ")["Hypoinflation"] == 1


@pytest.mark.parametrize(
    "heading", ["Technical Quality of Image Unsatisfactory ", "Catheters, Indwelling/left"]
)
def test_headings_that_are_no_finding_make_a_report_neither_normal_nor_abnormal(heading):
    assert labels(heading)["No Finding"] is None
    assert labels(heading, "Scoliosis")["No Finding"] == 0
    assert labels(heading, "normal")["No Finding"] == 1
    assert labels(heading)["Edema"] == 0


HEADINGS = sorted({e.split("/")[0] for c in MAPPING.columns.values() for e in c.present})
WORDS = [*MAPPING.sides, *MAPPING.zones, *MAPPING.severities, *MAPPING.regions]


@given(
    st.lists(
        st.tuples(st.sampled_from(HEADINGS), st.lists(st.sampled_from(WORDS), max_size=4)),
        min_size=1,
        max_size=4,
    ),
    st.randoms(),
)
def test_order_does_not_matter_and_more_entries_never_make_a_finding_absent(index, random):
    texts = ["/".join((heading, *words)) for heading, words in index]
    found = labels(*texts)
    mixed = random.sample(texts, len(texts))
    assert labels(*mixed) == found
    alone = labels(texts[0])
    for name, value in alone.items():
        if value == 1 and name != "No Finding":
            assert found[name] == 1


def test_locations_name_side_zone_region_and_severity():
    index = entries(
        ["Opacity/lung/base/left/mild/streaky", "Scoliosis/mild", "Deformity/ribs/right"]
    )
    assert [tuple(place) for place in MAPPING.locations(index)] == [
        ("Opacity", "lung", "left", "base", "mild"),
        ("Deformity", "ribs", "right", "", ""),
    ]
    several = entries(["Nodule/lung/upper lobe/hilum/right/small"])
    assert [(p.side, p.zone) for p in MAPPING.locations(several)] == [
        ("right", "upper lobe"),
        ("right", "hilum"),
    ]


def test_chexpert_columns_are_chexperts_and_each_is_mapped_or_left_out_with_a_reason():
    named = {*MAPPING.chexpert, *MAPPING.chexpert_left_out}
    assert named == set(CHEXPERT_LABELS)
    assert not set(MAPPING.openi) & set(CHEXPERT_LABELS)
    for name, column in MAPPING.columns.items():
        assert column.why or not column.blank, name


def test_every_column_has_prompts():
    assert list(load_prompts("openi").classes) == list(MAPPING.columns)


def test_the_real_columns_are_frequent_and_the_headings_exist(openi_studies):
    count = {n: sum(s.labels[n] == 1 for s in openi_studies) for n in MAPPING.columns}
    assert min(count[name] for name in MAPPING.openi) >= 30
    # Counted from the archive with the standard library alone, heading by heading.
    known = {"No Finding": 1391, "Atelectasis": 332, "Edema": 46, "Pneumonia": 42}
    known |= {"Scoliosis": 99, "Calcified Granuloma": 274, "Hiatal Hernia": 48, "Opacity": 455}
    assert {name: count[name] for name in known} == known
    assert sum(all(v is None for v in s.labels.values()) for s in openi_studies) == 95
