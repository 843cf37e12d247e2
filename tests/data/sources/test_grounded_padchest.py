"""PadChest-GR: two languages, two readers' boxes, sentences with and without findings."""

import json

import numpy as np
import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.records import RELATIVE
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.splits import seeded_split
from medclip_debias.data.text.reports import ReportSettings
from medclip_debias.errors import UserError
from tests.data.sources.counts import step
from tests.data.sources.trees import write_image, write_table

EFFUSION = {
    "sentence_en": "Small right pleural effusion",
    "sentence_es": "Pequeño derrame pleural derecho",
    "abnormal": True,
    "boxes": [[0.1, 0.5, 0.4, 0.9], [0.2, 0.2, 0.3, 0.25]],
    "extra_boxes": [[0.12, 0.5, 0.45, 0.9]],
    "labels": ["pleural effusion", " Costophrenic angle blunting"],
    "locations": ["right"],
    "progression": "Stable",
}
NEGATIVE = {
    "sentence_en": "No pneumothorax.",
    "sentence_es": "No neumotórax.",
    "abnormal": False,
}
UNBOXED = {
    **{"sentence_en": "Kyphosis.", "sentence_es": "Cifosis.", "abnormal": True, "boxes": []},
    **{"extra_boxes": [], "labels": ["kyphosis"], "locations": [], "progression": None},
}
ENTRIES = [
    {"StudyID": "s1", "ImageID": "a.png", "findings": [EFFUSION, NEGATIVE, UNBOXED]},
    {"StudyID": "s2", "ImageID": "b.png", "findings": [NEGATIVE]},
    {"StudyID": "s3", "ImageID": "c.png", "findings": [{**EFFUSION, "extra_boxes": []}]},
]
TABLE = [
    ("s1", "a.png", "pleural effusion", "p1", "test"),
    ("s1", "a.png", "kyphosis", "p1", "test"),
    ("s2", "b.png", "Normal", "p2", "validation"),
    ("s3", "c.png", "pleural effusion", "p3", "train"),
]


def write(root, entries=ENTRIES, table=TABLE, folder="Padchest_GR_files/PadChest_GR"):
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "grounded_reports_20240819.json").write_text(json.dumps(entries))
    write_table(root / "master_table.csv", "StudyID,ImageID,label,PatientID,split", *table)
    for number, name in enumerate("abc"):
        write_image(root / folder / f"{name}.png", number, (30, 20), np.uint16)
    return root


@pytest.fixture
def archive(tmp_path):
    return write(tmp_path / "gr")


def test_it_is_recognised_also_beside_padchests_own_table(archive):
    assert detect(archive).kind == "padchest_gr"
    (archive / "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv").write_text("x\n")
    assert detect(archive).kind == "padchest_gr"


@pytest.mark.parametrize(
    ("language", "report"),
    [
        (None, "FINDINGS: Small right pleural effusion. No pneumothorax. Kyphosis."),
        ("es", "FINDINGS: Pequeño derrame pleural derecho. No neumotórax. Cifosis."),
    ],
)
def test_sentences_are_read_in_either_language(archive, language, report):
    source = detect(archive, language=language)
    assert next(iter(source.studies())).report == report
    assert source.phrases()[0].text == report.removeprefix("FINDINGS: ").split(".")[0]
    with pytest.raises(UserError, match="no sentences in 'fr'; its languages are en and es"):
        detect(archive, language="fr")


def test_labels_are_those_of_the_positive_sentences(archive):
    labels = {s.study_id: s.labels for s in detect(archive).studies()}
    assert labels["s1"]["Pleural Effusion"] == labels["s1"]["costophrenic angle blunting"] == 1.0
    assert labels["s1"]["Pneumothorax"] == 0.0
    assert labels["s2"]["No Finding"] == 1.0
    assert labels["s1"]["No Finding"] == 0.0


def test_phrases_have_the_first_readers_boxes_and_the_table_has_all(archive):
    source = detect(archive)
    first = source.phrases()[0]
    assert (first.category, first.split, first.annotated_size) == (
        *("pleural effusion", "test"),
        RELATIVE,
    )
    assert np.allclose(first.boxes, [[0.1, 0.5, 0.3, 0.4], [0.2, 0.2, 0.1, 0.05]], atol=1e-12)
    (table,) = source.annotations()
    rows = [dict(zip((n for n, _ in table.columns), row, strict=True)) for row in table.rows]
    assert [row["abnormal"] for row in rows] == [True, False, True, False, True]
    assert rows[0]["extra_boxes"] == EFFUSION["extra_boxes"]
    assert (rows[0]["progression"], rows[1]["progression"]) == ("stable", None)
    assert rows[1]["boxes"] == rows[1]["labels"] == []


def test_what_is_kept_and_left_aside_is_counted(tmp_path):
    blank = {"sentence_en": "", "sentence_es": "", "abnormal": False}
    elsewhere = {"StudyID": "s4", "ImageID": "d.png", "findings": []}
    entries = [*ENTRIES, {**ENTRIES[1], "findings": [blank]}, elsewhere]
    entries[1] = {**ENTRIES[1], "findings": [NEGATIVE, blank]}
    source = detect(write(tmp_path, entries, [*TABLE, ("s5", "e.png", "x", "p5", "train")]))
    assert step(source, "entry of grounded_reports_20240819.json is not a repeat") == (4, 5)
    assert step(source, "is in master_table.csv") == (3, 4)
    assert step(source, "image of master_table.csv is in") == (3, 4)
    assert step(source, "sentence is not blank") == (5, 6)
    assert step(source, "sentence is positive") == (3, 5)
    assert step(source, "positive sentence has boxes") == (2, 3)
    assert step(source, "has a second reader's") == (1, 2)
    assert step(source, "box is the first reader's") == (4, 5)
    assert step(source, "phrase has one label") == (0, 2)


def test_an_update_takes_new_boxes_of_the_second_reader(archive, tmp_path):
    settings = PrepareSettings(size=16)
    made = prepare(archive, tmp_path / "o", settings, workers=1)
    sentences = made.annotations("grounded_sentences")
    assert sentences["boxes"].iloc[0][0].tolist() == EFFUSION["boxes"][0]
    changed = json.loads(json.dumps(ENTRIES))
    changed[0]["findings"][0]["extra_boxes"] = [[0, 0, 1, 1]]
    write(archive, changed)
    made = prepare(archive, tmp_path / "o", settings, workers=1, update=True)
    boxes = made.annotations("grounded_sentences")["extra_boxes"].iloc[0]
    assert [box.tolist() for box in boxes] == [[0, 0, 1, 1]]
    with pytest.raises(UserError, match="had no table 'readers'; it had grounded_sentences"):
        made.annotations("readers")


def test_reports_alone_keep_the_sentences_by_study(archive, tmp_path):
    made = prepare(
        *(archive, tmp_path / "o", PrepareSettings(size=16)),
        reading=Reading(text_only=True, split_seed=3, text=ReportSettings(language="es")),
        workers=1,
    )
    assert set(made.annotations("grounded_sentences")["study_id"]) == {"s1", "s2", "s3"}
    assert made.meta["options"]["reports"]["language"] == "es"
    assert made.meta["languages"] == {"es": 3}
    splits = dict(zip(made.studies["patient_id"], made.studies["split"], strict=True))
    assert splits == {patient: seeded_split(patient, 3) for patient in ("p1", "p2", "p3")}


@pytest.mark.parametrize(
    ("changes", "row", "sentence"),
    [
        ({"findings": ["x"]}, TABLE[0], "entry 1, finding 1: is not an object"),
        ({"findings": [{**EFFUSION, "abnormal": "yes"}]}, TABLE[0], "'abnormal' is not true or"),
        ({}, ("s1", "", "x", "p1", "train"), "row 6: column 'ImageID' is blank"),
        ({}, ("s4", "d.png", "x", "p4", "later"), "row 6: its split is not one of"),
    ],
)
def test_what_is_broken_is_named(tmp_path, changes, row, sentence):
    with pytest.raises(UserError, match=sentence):
        detect(write(tmp_path, [{**ENTRIES[0], **changes}], [*TABLE, row]))
