"""Labels and locations from Open-i's human indexing, and the published mapping."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.labels import CHEXPERT_LABELS
from medclip_debias.data.mesh import entries, openi_mapping

MAPPING = openi_mapping()


def labels(*texts):
    return MAPPING.labels(entries(texts))


EFFUSION, BLUNTED = "Pleural Effusion", "Costophrenic Angle/left/blunted"
LINE = "Catheters, Indwelling/left"


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (["Pulmonary Edema/mild"], {"Edema": 1, "Pneumothorax": 0, "No Finding": 0}),
        (["Cardiomegaly/borderline"], {"Cardiomegaly": -1, "No Finding": -1}),
        (["Cardiac Shadow/enlarged/borderline"], {"Cardiomegaly": -1}),
        (["Cardiomegaly/borderline", "Cardiomegaly/mild"], {"Cardiomegaly": 1}),
        (["Cardiomegaly/borderline", "Scoliosis"], {"No Finding": 0}),
        ([BLUNTED], {EFFUSION: None}),  # which may be the finding
        ([BLUNTED, "Pleural Effusion/left"], {EFFUSION: 1}),
        (["Costophrenic Angle/left/obscured"], {EFFUSION: 0}),
        (["Nodule/right/Lung"], {"Lung Lesion": 1}),
        (["Nodule/breast"], {"Lung Lesion": None}),
        (["Lung/mild/hypoinflation "], {"Hypoinflation": 1}),
        ([LINE], {"No Finding": None, "Edema": 0}),  # neither normal nor abnormal
        ([LINE, "Scoliosis"], {"No Finding": 0}),
        ([LINE, "normal"], {"No Finding": 1}),
        (["Technical Quality of Image Unsatisfactory "], {"No Finding": None}),
    ],
)
def test_headings_and_their_qualifiers_are_labels(index, expected):
    found = labels(*index)
    assert {name: found[name] for name in expected} == expected


def test_a_normal_report_is_absent_everywhere_and_one_without_index_says_nothing():
    found = labels("normal")
    assert found.pop("No Finding") == 1
    assert set(found.values()) == {0}
    for index in ((), ("No Indexing",), ("no indexing ",)):
        assert set(labels(*index).values()) == {None}


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


def test_the_real_columns_are_frequent_and_the_headings_exist(openi_studies):
    count = {n: sum(s.labels[n] == 1 for s in openi_studies) for n in MAPPING.columns}
    assert min(count[name] for name in MAPPING.openi) >= 30
    # Counted from the archive with the standard library alone, heading by heading.
    known = {"No Finding": 1391, "Atelectasis": 332, "Edema": 46, "Pneumonia": 42}
    known |= {"Scoliosis": 99, "Calcified Granuloma": 274, "Hiatal Hernia": 48, "Opacity": 455}
    assert {name: count[name] for name in known} == known
    assert sum(all(v is None for v in s.labels.values()) for s in openi_studies) == 95
