"""What archives say beside boxes and sentences is what the phantom shows: labels, readers, time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.store import PreparedSet
from medclip_debias.phantom.catalogue import CLASSES, INDEX
from phantom_layouts import LAYOUTS, ArchiveSettings, write_archive
from phantom_layouts.content import ContentStudy, plan_content

SETTINGS: dict[str, Any] = {
    **{"studies": 40, "seed": 7, "min_side": 64, "max_side": 80, "format": "jpg"},
    **{"blank_view_share": 0.0, "odd_report_share": 0.0, "mention_rate": 1.0, "compound_rate": 0.0},
}
SHOWN = {
    "Atelectasis": ("atelectasis",),
    "Cardiomegaly": ("cardiomegaly",),
    "Edema": ("edema",),
    "Pleural Effusion": ("effusion",),
    "Pneumonia": ("pneumonia",),
    "Pneumothorax": ("pneumothorax",),
    "Lung Lesion": ("nodule",),
}
"""Types of finding by CheXpert's column."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PreparedSet]:
    @cache
    def write(kind: str) -> PreparedSet:
        folder = tmp_path_factory.mktemp(kind)
        write_archive(folder / "tree", ArchiveSettings(**SETTINGS, layout=kind), workers=1)
        return prepare(folder / "tree", folder / "set", PrepareSettings(size=16), workers=1)

    return write


@pytest.fixture(scope="module")
def planned() -> list[ContentStudy]:
    return plan_content(ArchiveSettings(**SETTINGS))


def types_of(study: ContentStudy) -> set[str]:
    return {CLASSES[INDEX[name]].type for name in study.findings}


@pytest.mark.parametrize("kind", ["padchest", "vindr_cxr"])
def test_labels_are_those_of_what_the_study_shows(kind, made, planned):
    layout = LAYOUTS[kind](ArchiveSettings(**SETTINGS, layout=kind))
    table = made(kind).studies.set_index("study_id")
    compared = 0
    for study in planned:
        name = layout.study_id(study)
        if name not in table.index:
            continue
        for column, kinds in SHOWN.items():
            compared += 1
            assert table.loc[name, column] == float(bool(types_of(study) & set(kinds))), column
    assert compared > 40


def test_padchests_places_are_sides_and_zones(made, planned):
    layout = LAYOUTS["padchest"](ArchiveSettings(**SETTINGS, layout="padchest"))
    rows = made("padchest").annotations("localizations")
    found = {
        (row.study_id, row.label): set(row.places)
        for row in rows.itertuples()
        if row.label == "pleural effusion"
    }
    expected = {}
    for study in planned:
        sides = {
            f"loc {CLASSES[INDEX[name]].side}" for name in study.findings if "effusion" in name
        }
        if sides:
            expected[layout.study_id(study), "pleural effusion"] = sides
    assert found == expected
    assert found


def test_vindrs_readers_are_three_in_train_and_one_voice_in_test(made):
    prepared = made("vindr_cxr")
    splits = prepared.images.set_index("image_id")["split"]
    rows = prepared.annotations("reader_labels")
    readers = rows.groupby("image_id")["reader"].agg(set)
    assert set(splits[readers.index]) == {"validate", "test"}
    for image, own in readers.items():
        assert len(own) == (1 if splits[image] == "test" else 3)
        assert (own == {"consensus"}) == (splits[image] == "test")


def test_progressions_follow_the_severity_of_the_two_studies(made, planned):
    layout = LAYOUTS["ms_cxr_t"](ArchiveSettings(**SETTINGS, layout="ms_cxr_t"))
    weight = {None: 2, "mild": 1, "small": 1, "severe": 3, "large": 3}

    def severity(study: ContentStudy, kind: str) -> int:
        own = [CLASSES[INDEX[name]] for name in study.findings]
        return sum(weight[c.severity] for c in own if c.type == kind)

    of_image = {layout.image_id(s, v): s for s in planned for v in s.views}
    table = made("ms_cxr_t").annotations("progression")
    assert len(table)
    kinds = {"pleural effusion": "effusion", "consolidation": "pneumonia"}
    for row in table.itertuples():
        before, now = of_image[row.previous_image_id], of_image[row.image_id]
        assert now.previous == before.place
        kind = kinds.get(row.finding, row.finding)
        change = severity(now, kind) - severity(before, kind)
        word = "stable" if not change else "worsening" if change > 0 else "improving"
        assert row.progression == word


def test_grounded_sentences_are_those_of_the_reports_in_their_order(made, planned):
    layout = LAYOUTS["padchest_gr"](ArchiveSettings(**SETTINGS, layout="padchest_gr"))
    table = made("padchest_gr").annotations("grounded_sentences")
    told = table.groupby("image_id")
    for study in planned:
        for view in study.views:
            if view.frontal:
                rows = told.get_group(layout.image_id(study, view))
                sentences = [p.sentence for p in study.study.report.sentences]
                assert rows["text"].tolist() == [s.text for s in sentences]
                present = [any(c.present for c in s.statement.clauses) for s in sentences]
                assert rows["abnormal"].tolist() == present
