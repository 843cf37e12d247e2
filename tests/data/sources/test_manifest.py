"""The manifest of any hospital."""

import csv
import json

import pandas as pd
import pytest

from medclip_debias.cli import run
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.splits import seeded_split
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from tests.data.sources.trees import write_image

HEADER = ("image", "report", "patient_id", "study_id", "view", "split", "Edema")
ROWS = [
    ("a.png", "Edema, mild.", "p1", "s1", "AP", "train", "1"),
    ("b.png", "Edema, mild.", "p1", "s1", "PA", "train", ""),
    ("sub/c.png", "Clear.", "p2", "s2", "AP Supine", "val", "0"),
]


@pytest.fixture
def manifest(tmp_path):
    """A function that writes the manifest with changes; returns its path."""
    (tmp_path / "sub").mkdir()
    for name in ("a.png", "b.png", "sub/c.png"):
        write_image(tmp_path / name)

    def write(header=HEADER, rows=ROWS):
        path = tmp_path / "manifest.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return path

    return write


def without(*names):
    keep = [i for i, name in enumerate(HEADER) if name not in names]
    return [HEADER[i] for i in keep], [[row[i] for i in keep] for row in ROWS]


def changed(row, column, value):
    rows = [list(r) for r in ROWS]
    rows[row][HEADER.index(column)] = value
    return HEADER, rows


def test_images_and_studies_are_read(manifest):
    source = detect(manifest().parent)
    assert source.kind == "manifest"
    assert [(i.image_id, i.split) for i in source.images()] == [
        *(("a", "train"), ("b", "train"), ("c", "validate"))
    ]
    assert [(s.study_id, s.report, s.labels) for s in source.studies()] == [
        ("s1", "Edema, mild.", {"Edema": 1.0}),
        ("s2", "Clear.", {"Edema": 0.0}),
    ]
    assert source.phrases() == []


@pytest.mark.parametrize(
    "names",
    [
        {"patient_id": "Patient ID", "study_id": "Study-ID", "view": "View"},
        {"image": "IMAGE", "patient_id": "PatientID", "view": "ViewPosition", "report": "text"},
    ],
)
def test_columns_are_known_however_they_are_spelt(manifest, names):
    """One that was not read left patients in two splits, or laterals among the frontal images."""
    plain, spelt = (detect(manifest(h)) for h in (HEADER, [names.get(n, n) for n in HEADER]))
    for source in (plain, spelt):
        assert "No column" not in " ".join(source.describe())
        assert "not read" not in " ".join(source.describe())
    assert spelt.images() == plain.images()
    assert list(spelt.studies()) == list(plain.studies())


def test_columns_that_are_not_read_are_named(manifest):
    header, rows = [*HEADER, "Patient ID", "Plural Effusion"], [[*row, "x", "1"] for row in ROWS]
    source = detect(manifest(header, rows))
    assert {image.patient_id for image in source.images()} == {"p1", "p2"}
    said = " ".join(source.describe())
    assert "not read: column 'Patient ID', 'Plural Effusion' (did you mean 'Pleural Eff" in said


def test_optional_columns_have_documented_defaults(manifest):
    header, rows = without("patient_id", "study_id", "view", "split", "Edema")
    source = detect(manifest(header, rows))
    image = source.images()[2]
    assert (image.study_id, image.patient_id, image.view) == ("c", "c", "FRONTAL")
    assert image.split == seeded_split("c")
    assert len(source.describe()) == 4
    source = detect(manifest(), split_seed=5)
    assert all(i.split == seeded_split(i.patient_id, 5) for i in source.images())


def test_files_of_one_name_in_two_folders_stay_apart(manifest, tmp_path):
    write_image(tmp_path / "sub" / "a.png")
    images = detect(manifest(*changed(1, "image", "sub/a.png"))).images()
    assert [i.image_id for i in images] == ["a.png", "sub/a.png", "sub/c.png"]


def test_a_study_of_two_reports_is_named_with_its_rows(manifest):
    path = manifest(*changed(1, "report", "Other."))
    with pytest.raises(UserError, match="row 3: its study has another report in row 2") as caught:
        detect(path)
    assert str(path) in str(caught.value)


def test_a_link_loop_and_an_impossible_name_are_no_images(manifest, tmp_path):
    (tmp_path / "loop.png").symlink_to("loop.png")
    for name in ("loop.png", "x" * 300 + ".png"):
        with pytest.raises(UserError, match=r"1 of its 3 images are not there \(row 3\)"):
            detect(manifest(*changed(1, "image", name)))


PLACE = {"path": "files/p10/p10000032/s50414267/x.jpg"}
RELEASE = "MS_CXR_Local_Alignment_v1.0.0.json"


@pytest.mark.parametrize(
    ("patient", "study", "boxes", "listed", "out", "said"),
    [
        ("p10000032", "1", RELEASE, PLACE, "ab", "1 patient with boxes held out of training"),
        ("10000032.0", "1", RELEASE, PLACE, "ab", "1 patient with boxes held out of training"),
        ("mine", "s50414267", RELEASE, PLACE, "ab", "1 patient with boxes held out of training"),
        ("mine", "1", RELEASE, {"file_name": "a.jpg"}, "ab", "1 patient with boxes held out"),
        ("mine", "1", RELEASE, PLACE, "", "so nobody could be held out of training"),
        ("mine", "1", "my.coco.json", {"file_name": "a.png"}, "", "boxes stay in their splits"),
    ],
    ids=["patient", "number", "study", "image", "nobody", "own boxes"],
)
def test_patients_of_ms_cxr_leave_training_where_any_id_shows_who_they_are(
    tmp_path, capsys, patient, study, boxes, listed, out, said
):
    for name in "abc":
        write_image(tmp_path / f"{name}.png")
    rows = f"a.png,x,{patient},{study},train\nb.png,x,{patient},2,train\nc.png,x,9,3,train\n"
    (tmp_path / "manifest.csv").write_text(f"image,report,patient_id,study_id,split\n{rows}")
    image = {"id": 1, "file_name": "x.jpg", "width": 16, "height": 16} | listed
    box = {"id": 1, "image_id": 1, "bbox": [1, 1, 2, 2], "label_text": "Edema"}
    (tmp_path / boxes).write_text(json.dumps({"images": [image], "annotations": [box]}))
    command = ["prepare", str(tmp_path), str(tmp_path / "o"), "--size", "16", "--workers", "1"]
    assert run(command) == 0
    images = PreparedSet.open(tmp_path / "o").images.set_index("image_id")
    assert "".join(images.index[images["split"] == "held_out"]) == out
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cell", "text", "said"),
    [
        ("b'FINDINGS: Caf\\xc3\\xa9.'", "FINDINGS: Caf\u00e9.", "1 reports are written as Py"),
        ('b"Heart\'s size.\\nClear."', "Heart's size.\nClear.", "1 reports are written as Pyt"),
        (r"FINDINGS:\r\nClear.", "FINDINGS:\nClear.", "1 reports have the two characters"),
        ("One\nTwo " + r"\n", "One\nTwo " + r"\n", "as two characters beside line breaks"),
        ("NaN", "", "1 reports are a program's word for blank"),
        ("b'", "b'", ""),
        (r"b'\xff'", r"b'\xff'", ""),
        ("None seen.", "None seen.", ""),
        ('"Clear. No mass."', "Clear. No mass.", "reports are in quotation marks"),
        ('"Clear" is meant. "No"', '"Clear" is meant. "No"', ""),
        ("A.<BR>Heart &gt; 15 cm.<br />", "A.\nHeart > 15 cm.\n", "reports have HTML in them"),
        ("Nodule < 5 mm, AP > PA.", "Nodule < 5 mm, AP > PA.", ""),
    ],
)
def test_a_report_is_read_as_what_was_meant(manifest, cell, text, said):
    source = detect(manifest(*changed(2, "report", cell)))
    assert [s.report for s in source.studies()][1] == text
    reported = " ".join(source.describe())
    assert said in reported
    assert ("reports are" in reported or "reports have" in reported) == bool(said)
    mended = [name for name, unit, _, _ in source.steps() if unit == "reports"]
    assert len(mended) == bool(said)


class TestWhatIsMissing:
    """All of it is named at once, and listed in a file."""

    def write(self, tmp_path, there):
        rows = [("image", "report", "study_id")]
        for number in range(20):
            text = ("FINDINGS: Clear lungs.", "TECHNIQUE: Two views.", "", "nan")[number % 4]
            rows.append((f"{number}.png", text, f"s{number}"))
            if number < there:
                write_image(tmp_path / f"{number}.png", number)
        with (tmp_path / "manifest.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
        return ["prepare", str(tmp_path), str(tmp_path / "o"), "--size", "16", "--workers", "1"]

    @pytest.mark.parametrize("shard", [[], ["--shard", "1/2"]])
    def test_images_that_are_not_there(self, tmp_path, capsys, shard):
        assert run([*self.write(tmp_path, there=5), *shard]) == 2
        said = capsys.readouterr().err
        assert "15 of its 20 images are not there (rows 7, 8, 9" in said
        assert "15, 16 and 5 more);" in said
        listed = tmp_path / "o.missing.csv"
        assert f"All are listed in {listed}." in said
        table = pd.read_csv(listed)
        assert table["row"].tolist() == list(range(7, 22))
        assert table["path"].tolist() == [str(tmp_path / f"{n}.png") for n in range(5, 20)]
        assert not list(tmp_path.glob("o")) + list(tmp_path.glob("o.partial"))

    def test_reports_that_gave_no_sentence(self, tmp_path, capsys):
        assert run(self.write(tmp_path, there=20)) == 0
        listed = pd.read_csv(tmp_path / "o" / "unused_reports.csv", dtype=str)
        reasons = {
            "the report has no usable section with a sentence": range(1, 20, 4),
            "the report is empty": [n for n in range(20) if n % 4 > 1],
        }
        found = {reason: set(table["study_id"]) for reason, table in listed.groupby("reason")}
        assert found == {reason: {f"s{n}" for n in ns} for reason, ns in reasons.items()}
        steps = {row["step"]: row for row in PreparedSet.open(tmp_path / "o").funnel}
        assert steps["report is not a word for blank ('nan', 'None')"]["dropped"] == 5
        assert "5 reports are a program's word for blank" in capsys.readouterr().err
