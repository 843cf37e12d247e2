"""PadChest: its table with stray blanks, lists and views; 16-bit images; Spanish reports."""

import gzip

import numpy as np
import pytest

from medclip_debias.data.sources.detect import detect
from tests.data.sources.counts import step
from tests.data.sources.trees import write_image, write_table

NAME = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
HEADER = (
    *("", "ImageID", "ImageDir", "StudyID", "PatientID", "Projection", "Pediatric", "Report"),
    *("MethodLabel", "Labels", "LabelsLocalizationsBySentence"),
)
BOTH = "['pleural effusion', 'laminar atelectasis']"
ODD = "['pleural effusion', 'pleural effusion ', ' laminar atelectasis']"
TOLD = "[['pleural effusion', 'loc right', 'loc basal'], ['laminar atelectasis']]"
FLUID = ("No", "derram pleural derech .", "Physician")
HEART = ("No", "cardiomegali .")
ROWS = [
    ("a.png", "0", "s1", "p1", "PA", *FLUID, ODD, TOLD),
    ("b.png", "0", "s1", "p1", "L", *FLUID, BOTH, ""),
    (
        *("c.png", "3", "s2", "p2", "AP_horizontal", "PED", "sin cambi .", "RNN_model"),
        *("['unchanged']", "[['unchanged']]"),
    ),
    ("d.png", "3", "s3", "p2", "EXCLUDE", "No", "nan", "RNN_model", "['exclude']", "[['exclude']]"),
    ("e.png", "3", "s4", "p3", "COSTAL", "No", "normal .", "Physician", "['normal']", "[]"),
    ("f.png", "3", "s5", "p4", "PA", *HEART, "Physician", "[cardiomegaly]", "[['cardiomegaly'"),
    ("g.png", "3.0", "s6", "p5", "PA", *HEART, "RNN_model", "", ""),
]


def write(root, rows=ROWS, name=NAME):
    root.mkdir(exist_ok=True)
    quoted = ([f'"{cell}"' for cell in (str(at), *row)] for at, row in enumerate(rows))
    path = write_table(root / name, HEADER, *quoted)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    return root


@pytest.fixture
def archive(tmp_path):
    root = write(tmp_path / "padchest")
    for row in ROWS:
        path = root / row[1].removesuffix(".0") / row[0]
        write_image(path, shape=(24, 20), dtype=np.uint16)
    return root


def test_the_table_is_described_and_films_that_may_be_negatives_are_counted(archive):
    """Of MONOCHROME1: the archive does not say what became of them when they were made PNG."""
    path = archive / NAME
    header, *rows = path.read_text().splitlines()
    kinds = ["MONOCHROME1", "MONOCHROME2"]
    lines = [f"{row},{kinds[at % 2]}" for at, row in enumerate(rows)]
    path.write_text("\n".join([f"{header},PhotometricInterpretation_DICOM", *lines, ""]))
    source = detect(archive)
    assert source.kind == "padchest"
    said = " ".join(source.describe())
    assert "7 images of 6 studies" in said
    assert "Images of children: 1 of 7" in said
    assert "Spanish" in said
    assert "Films of MONOCHROME1: 4 of 7." in said
    assert step(source, "MONOCHROME1") == (3, 7)


def test_images_have_their_places_and_views(archive):
    found = {i.image_id: i for i in detect(archive).images()}
    assert [found[n].view for n in "abcde"] == ["PA", "LATERAL", "AP Supine", "EXCLUDE", "COSTAL"]
    assert all(image.path.is_file() for image in found.values())
    assert found["g"].path.parent.name == "3"


def test_labels_are_chexperts_and_padchests_own_and_open_where_the_archive_is_silent(archive):
    labels = {s.study_id: s.labels for s in detect(archive).studies()}
    first = labels["s1"]
    assert (first["Pleural Effusion"], first["Atelectasis"]) == (1.0, 1.0)
    assert (first["laminar atelectasis"], first["Cardiomegaly"], first["normal"]) == (1.0, 0.0, 0.0)
    assert "pleural effusion" not in first  # CheXpert's column of the same name holds it
    assert labels["s4"]["No Finding"] == 1.0
    assert labels["s2"]["unchanged"] == 1.0
    for study in ("s2", "s3", "s5", "s6"):
        assert labels[study]["Pneumonia"] is None
        assert labels[study]["laminar atelectasis"] is None


def test_stray_blanks_repeats_and_broken_lists_are_counted(tmp_path):
    other = ("b.png", "0", "s1", "p1", "L", "No", "otro inform .", "Physician", BOTH, "")
    rows = [ROWS[0], other, *ROWS[2:], ROWS[2], ("", *ROWS[3][1:])]
    source = detect(write(tmp_path / "packed", rows, name=NAME + ".gz"))
    assert step(source, "cell 'Labels'") == (6, 7)
    assert step(source, "labels named in the rows") == (8, None)
    assert step(source, "no blank before or behind") == (6, 8)
    assert step(source, "named once in its row") == (7, 8)
    assert step(source, "study has labels") == (4, 6)
    assert step(source, "labels say what is there") == (2, 4)
    assert step(source, "read by a physician") == (2, 4)
    assert step(source, "cell 'LabelsLocalizationsBySentence'") == (4, 5)
    assert step(source, f"row of {NAME}.gz names an image") == (8, 9)
    assert step(source, f"row of {NAME}.gz is not a repeat") == (7, 8)
    assert step(source, "report of its study's first row") == (5, 6)
    assert next(iter(source.studies())).report == "derram pleural derech ."


def test_labels_and_places_are_kept_by_sentence(archive):
    table, methods = detect(archive).annotations()
    assert list(methods.rows)[:2] == [("s1", "physician"), ("s2", "rnn_model")]
    assert list(table.rows)[:2] == [
        ("s1", 1, "pleural effusion", ["loc right", "loc basal"]),
        ("s1", 2, "laminar atelectasis", []),
    ]
