"""The study before a study: against loops, and on small trees of every source that has an order."""

import csv
import gzip
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.funnel import Funnel
from medclip_debias.data.prepare import Reading, prepare, prepare_part
from medclip_debias.data.prepare.earlier import before_each, in_the_set
from medclip_debias.data.prepare.shards import merge
from medclip_debias.data.records import StudyMoment
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.verify import changes
from medclip_debias.errors import UserError

SMALL = PrepareSettings(size=16)
KEEP = SelectionSettings(earlier_studies="keep")

moments = st.one_of(
    st.none(),
    st.tuples(st.integers(1, 4).map(float)),
    st.tuples(st.integers(1, 4).map(float), st.integers(1, 3).map(float)),
)
orders = st.lists(st.tuples(st.sampled_from("pq"), moments), max_size=9)


def counts(prepared):
    return {row["step"]: (row["kept"], row["dropped"]) for row in prepared.funnel}


@given(orders)
def test_it_is_the_only_latest_one_of_those_that_were_surely_made_before(studies):
    order = {str(number): StudyMoment(*told) for number, told in enumerate(studies)}

    def coarse(study):
        """Of a day on which one study of the patient has no time, the times say nothing."""
        patient, moment = order[study]
        of_day = [m for p, m in order.values() if m and p == patient and m[0] == moment[0]]
        return moment[: min(map(len, of_day))]

    expected = {}
    for study, (patient, moment) in order.items():
        if moment is None:
            continue
        before = [
            other
            for other, (of, at) in order.items()
            if at is not None and of == patient and coarse(other) < coarse(study)
        ]
        last = [o for o in before if not any(coarse(o) < coarse(b) for b in before)]
        if len(last) == 1:
            expected[study] = last[0]
    found, steps = before_each(order)
    assert found == expected
    known = sum(moment is not None for _, moment in order.values())
    assert steps[0][2:] == (known, len(order))
    assert steps[-1][2] == len(expected)
    assert all(kept <= of for _, _, kept, of in steps)


def test_it_never_crosses_patients_or_splits_and_is_never_replaced_by_an_older_one():
    members = {"a": ("p", "train"), "c": ("p", "train"), "d": ("p", "test"), "x": ("q", "train")}
    funnel = Funnel()
    found = in_the_set({"c": "b", "d": "c", "x": "a", "a": "z"}, members, funnel)
    assert found == {}
    assert [row["kept"] for row in funnel.rows] == [4, 2, 0]
    assert in_the_set({"c": "a"}, members, Funnel()) == {"c": "a"}


@pytest.fixture
def dated(tiny_tree):
    """The tiny tree with dates; patient 2 has a second study, 105, two days after 102."""
    path = next(tiny_tree.root.glob("*metadata*"))
    folder = tiny_tree.image("b").parent
    later = folder.parent / "s105"
    later.mkdir()
    (later / "f.dcm").write_bytes(tiny_tree.image("a").read_bytes())
    (folder.parent / "s105.txt").write_text(" FINDINGS: Effusion has grown.\n")
    table = pd.read_csv(path, dtype=str)
    more = {"dicom_id": "f", "subject_id": "10000002", "study_id": "105", "ViewPosition": "AP"}
    table = pd.concat([table, pd.DataFrame([more])], ignore_index=True)
    days = {"101": "21500101", "102": "21500102", "103": "", "104": "21500301", "105": "21500104"}
    table["StudyDate"] = table["study_id"].map(days)
    table["StudyTime"] = "93000.5"
    table.to_csv(path, index=False)
    path = next(tiny_tree.root.glob("*split*"))
    split = pd.read_csv(path, dtype=str)
    more = {"dicom_id": "f", "study_id": "105", "subject_id": "10000002", "split": "train"}
    pd.concat([split, pd.DataFrame([more])], ignore_index=True).to_csv(path, index=False)
    return tiny_tree


def test_mimic_orders_studies_by_date_and_time(dated, tmp_path):
    found = prepare(dated.root, tmp_path / "keep", SMALL, selection=KEEP, workers=1)
    assert found.previous_study == {"105": "102"}
    assert counts(found)["study has a known date or number"] == (4, 1)
    assert counts(found)["its patient has an earlier study"] == (1, 3)
    assert counts(found)["earlier study is in the set"] == (1, 0)
    raw = pd.read_parquet(found.folder / "studies.parquet")
    assert list(raw.columns[:4]) == ["study_id", "patient_id", "split", "previous_study_id"]
    assert "previous_study_id" not in found.studies.columns
    assert found.meta["labels"] == list(found.studies.columns[3:])
    assert changes(found) == []


def test_an_earlier_study_that_is_not_in_the_set_is_counted(dated, tmp_path):
    dated.report("102").write_text(" FINDINGS: \n ___\n")
    next(dated.root.glob("MS_CXR*")).unlink()
    found = prepare(dated.root, tmp_path / "o", SMALL, selection=KEEP, workers=1)
    assert found.previous_study == {}
    assert counts(found)["study of the set has an earlier one"][0] == 1
    assert counts(found)["earlier study is in the set"] == (0, 1)


def test_parts_of_a_set_join_to_the_same_earlier_studies(dated, tmp_path):
    whole = prepare(dated.root, tmp_path / "whole", SMALL, selection=KEEP, workers=1)
    for part in (1, 2):
        out = tmp_path / f"part{part}"
        prepare_part(dated.root, out, SMALL, f"{part}/2", selection=KEEP, workers=1)
    joined = merge([tmp_path / "part2", tmp_path / "part1"], tmp_path / "joined")
    assert joined.content_hash == whole.content_hash
    assert joined.previous_study == whole.previous_study


def test_without_the_option_nothing_of_the_set_changes(dated, tmp_path):
    plain = prepare(dated.root, tmp_path / "plain", SMALL, workers=1)
    assert plain.previous_study is None
    assert "earlier_studies" not in plain.meta["selection"]
    assert not any("earlier" in step for step in counts(plain))
    path = next(dated.root.glob("*metadata*"))
    pd.read_csv(path, dtype=str).drop(columns=["StudyDate", "StudyTime"]).to_csv(path, index=False)
    undated = prepare(dated.root, tmp_path / "undated", SMALL, workers=1)
    assert undated.content_hash == plain.content_hash
    with pytest.raises(UserError, match=r"metadata.*StudyDate"):
        prepare(dated.root, tmp_path / "o", SMALL, selection=KEEP, workers=1)


def test_reports_alone_have_earlier_studies_too(dated, tmp_path):
    reading = Reading(text_only=True)
    found = prepare(dated.root, tmp_path / "o", SMALL, selection=KEEP, reading=reading, workers=1)
    assert found.previous_study == {"105": "102"}


def test_the_phantom_has_earlier_studies_of_its_own_dates(phantom_tree, tmp_path):
    found = prepare(phantom_tree, tmp_path / "o", SMALL, selection=KEEP, workers=1)
    table = next(phantom_tree.glob("*metadata*"))
    with gzip.open(table, "rt") as file:
        rows = list(csv.DictReader(file))
    when = {row["study_id"]: (row["StudyDate"], float(row["StudyTime"])) for row in rows}
    owner = {row["study_id"]: row["subject_id"] for row in rows}
    there = set(found.studies["study_id"])
    expected = {}
    for study in there:
        before = [s for s in when if owner[s] == owner[study] and when[s] < when[study]]
        last = max(before, key=when.get, default="")
        if last in there:
            expected[study] = last
    assert found.previous_study == expected
    assert len(expected) > 10


HEAD = ("image", "report", "patient_id", "study_id", "study_date", "split")


def manifest(folder, rows, head=HEAD):
    folder.mkdir()
    for row in rows:
        grey = np.arange(400, dtype=np.uint8).reshape(20, 20) // 2
        Image.fromarray(grey).save(folder / row[0])
    with (folder / "manifest.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return folder


def test_a_manifest_orders_studies_by_its_dates(tmp_path):
    rows = [
        ("0.png", "FINDINGS: Clear lungs.", "p", "s3", "2021-03-01", "train"),
        ("1.png", "FINDINGS: Effusion.", "p", "s1", "2020-03-01", "train"),
        ("2.png", "FINDINGS: Effusion.", "p", "s2", "20210228", "train"),
        ("3.png", "FINDINGS: Clear.", "q", "s4", "2022-03-01", "train"),
    ]
    source = manifest(tmp_path / "source", rows)
    found = prepare(source, tmp_path / "o", SMALL, selection=KEEP, workers=1)
    assert found.previous_study == {"s3": "s2", "s2": "s1"}


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ((*HEAD[:4], "day", "split"), "column 'study_date' is missing"),
        (("image", "report", "owner", *HEAD[3:]), "column 'patient_id' is missing"),
        (HEAD, r"manifest\.csv, row 3: its study has another date"),
    ],
)
def test_a_manifest_that_does_not_tell_is_one_sentence(tmp_path, head, words):
    rows = [
        ("0.png", "FINDINGS: Clear lungs.", "p", "s1", "2021-03-01", "train"),
        ("1.png", "FINDINGS: Clear lungs.", "p", "s1", "2020-03-01", "train"),
    ]
    source = manifest(tmp_path / "source", rows, head)
    with pytest.raises(UserError, match=words):
        prepare(source, tmp_path / "o", SMALL, selection=KEEP, workers=1)
    assert not (tmp_path / "o").exists()


def test_a_source_that_does_not_know_says_so(tmp_path):
    folder = tmp_path / "ecgen-radiology"
    folder.mkdir()
    text = '<AbstractText Label="FINDINGS">Clear.</AbstractText>'
    (folder / "1.xml").write_text(f'<r><uId id="CXR1"/>{text}</r>')
    with pytest.raises(UserError, match="a source of the kind 'openi' does not say which"):
        prepare(tmp_path, tmp_path / "o", SMALL, selection=KEEP, workers=1)


def test_a_set_of_an_earlier_version_is_read(prepared_phantom):
    found = PreparedSet.open(prepared_phantom)
    meta = json.loads((prepared_phantom / "meta.json").read_text())
    assert "earlier_studies" not in meta["selection"]
    assert found.previous_study is None
