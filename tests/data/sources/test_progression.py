"""MS-CXR-T beside MIMIC-CXR: pairs of images, counted, and their patients held out."""

import gzip

import pytest

from medclip_debias.config import PrepareSettings, SelectionSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.records import ImageRecord
from medclip_debias.data.sources import ms_cxr
from medclip_debias.data.sources.archive import ArchiveSource
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.sources.progression import read_progression
from medclip_debias.data.sources.registry import Given
from medclip_debias.errors import UserError
from tests.data.sources.trees import write_table

NAME = "MS_CXR_T_temporal_image_classification_v1.0.0.csv"
HEADER = (
    *("dicom_id", "previous_dicom_id", "study_id", "subject_id"),
    *("edema_progression", "edema_label_quality"),
    *("pleural_effusion_progression", "pleural_effusion_label_quality"),
)
IMAGES = [
    ImageRecord(name, f"s{name}", patient, None, "AP", "train")
    for name, patient in (("a", "1"), ("b", "1"), ("c", "1"), ("d", "2"))
]
ROWS = [
    ("b", "a", "s", "1", "improving", "one_expert", "Stable", "multiple_experts"),
    ("p10/p1/sc/c", "p10/p1/sb/b", "s", "1", "", "", "worsening", ""),
]


def write(folder, rows=ROWS, header=HEADER):
    return write_table(folder / NAME, header, *rows)


@pytest.fixture
def source(tmp_path):
    """An archive that has these images."""
    archive = ArchiveSource(tmp_path, Given())
    archive.image_records += IMAGES
    return archive


def counts(steps):
    return {
        step[0].replace(f" of {NAME}", "").replace(f" ({NAME})", ""): step[2:] for step in steps
    }


def test_each_judged_finding_of_a_pair_is_a_row_and_all_others_are_counted(tmp_path, source):
    rows = [
        *ROWS,
        ("b", "z", "s", "1", "stable", "x", "", ""),  # not listed
        ("d", "a", "s", "1", "stable", "x", "stable", "x"),  # two patients
        ROWS[0],
        ("c", "b", "s", "1", "", "", "improving", ""),  # otherwise than above
    ]
    changes, patients = read_progression(source, write(tmp_path, rows))
    assert changes.rows == [
        ("a", "b", "edema", "improving", "one_expert"),
        ("a", "b", "pleural effusion", "stable", "multiple_experts"),
    ]
    assert patients == {"1"}
    assert "2 progressions of" in source.said[0]
    assert counts(source.counted) == {
        "both images of a row are listed": (5, 6),
        "both are of one patient": (4, 5),
        "progression has such a pair": (6, 9),
        "progression is not a repeat": (3, 6),
        "repeats of a progression agree (others: skipped)": (2, 3),
    }


@pytest.mark.parametrize(
    ("rows", "header", "sentence"),
    [
        ([ROWS[0][:4]], HEADER[:4], "has no column '<finding>_progression'"),
        ([("x", "y", *ROWS[0][2:])] * 3, HEADER, "0 of its 3 ids in column 'dicom_id'"),
        ([ROWS[0]], ("image", *HEADER[1:]), "column 'dicom_id' is missing"),
    ],
)
def test_a_broken_table_is_refused(tmp_path, rows, header, sentence, source):
    with pytest.raises(UserError, match=sentence):
        read_progression(source, write(tmp_path, rows, header))


@pytest.fixture
def followed(tiny_tree):
    """The tiny tree, whose patient 2 has a second frontal image."""
    for table in ("metadata", "split"):
        path = next(tiny_tree.root.glob(f"mimic-cxr-*-{table}.csv.gz"))
        text = gzip.decompress(path.read_bytes()).decode()
        path.write_bytes(gzip.compress(text.replace("LATERAL", "AP").encode()))
    return tiny_tree


def test_the_set_has_a_table_of_progressions_and_the_patients_are_held_out(followed, tmp_path):
    next(followed.root.glob("MS_CXR_Local*")).unlink()
    assert detect(followed.root).held_out_patients() == frozenset()
    path = write(followed.root, [("c", "b", *ROWS[0][2:])])
    assert ms_cxr.find(path.parent) is None  # its name begins as that of the boxes' does
    source = detect(followed.root)
    assert source.held_out_patients() == {"10000002"}
    assert any("MS-CXR-T" in line for line in source.describe())
    made = prepare(followed.root, tmp_path / "o", PrepareSettings(size=16), workers=1)
    table = made.annotations("progression")
    assert table.to_dict("records")[0] == {
        "previous_image_id": "b",
        "image_id": "c",
        "finding": "edema",
        "progression": "improving",
        "label_quality": "one_expert",
    }
    assert made.studies.set_index("study_id")["split"]["102"] == "held_out"
    steps = {row["step"]: row for row in made.funnel}
    assert steps["images are in the set, of progressions in progression"]["kept"] == 2
    lacking = prepare(
        *(followed.root, tmp_path / "pa", PrepareSettings(size=16)),
        selection=SelectionSettings(views=("PA",)),
        workers=1,
    )
    assert len(lacking.annotations("progression")) == 0
    steps = {row["step"]: row for row in lacking.funnel}
    assert steps["images are in the set, of progressions in progression"]["dropped"] == 2
