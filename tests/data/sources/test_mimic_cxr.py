"""The MIMIC-CXR tree, whole and with parts missing."""

import gzip
import json
import re
import shutil
import zipfile

import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.splits import seeded_split
from medclip_debias.errors import UserError


def table(tree, name):
    return next(tree.root.glob(f"mimic-cxr-*-{name}.csv.gz"))


def rewrite(path, change):
    with gzip.open(path, "rt") as file:
        text = file.read()
    with gzip.open(path, "wt") as file:
        file.write(change(text))


def test_images_carry_ids_view_and_split(tiny_tree):
    images = detect(tiny_tree.root).images()
    found = [(i.image_id, i.patient_id, i.study_id, i.view, i.split) for i in images]
    assert found[1] == ("b", "10000002", "102", "PA", "train")
    assert [i.path.suffix for i in images] == [".dcm", ".dcm", ".dcm", ".jpg", ".dcm"]
    assert all(i.path.is_file() for i in images)


def test_labels_join_by_study_and_radiologists_win_on_test_alone(tiny_tree):
    labels = {s.study_id: s.labels for s in detect(tiny_tree.root).studies()}
    assert labels["101"] == {"Edema": 0.0, "Lung Opacity": None, "Pleural Effusion": 0.0}
    assert labels["102"]["Lung Opacity"] == -1.0
    assert labels["103"] == {}
    assert labels["104"] == {"Lung Opacity": 0.0, "Edema": 1.0}


def texts(source):
    return {s.study_id: s.report for s in source.studies()}


def pack(root, target, prefix=""):
    """Move the reports below ``root`` into a zip."""
    with zipfile.ZipFile(target, "w") as archive:
        for path in sorted(root.glob("files/*/*/s*.txt")):
            archive.write(path, prefix + path.relative_to(root).as_posix())
            path.unlink()
    return target


def test_reports_are_read_from_a_zip_and_from_another_tree_as_from_the_tree(tiny_tree, tmp_path):
    root, other = tiny_tree.root, tmp_path / "mimic-cxr"
    expected = texts(detect(root))
    shutil.copytree(root / "files", other / "files")
    packed = pack(root, root / "mimic-cxr-reports.zip", "mimic-cxr-reports/")
    before = sorted(root.rglob("*"))
    assert texts(detect(root)) == expected
    assert sorted(root.rglob("*")) == before
    packed.unlink()
    # As the JPG release has none, they may lie elsewhere.
    with pytest.raises(UserError, match=r"has no report.*physionet\.org/content/mimic-cxr"):
        detect(root)
    assert texts(detect(root, reports=other)) == expected
    assert texts(detect(root, reports=other / "files")) == expected
    archive = pack(other, other / "mimic-cxr-reports.zip")
    for given in (other, archive):
        source = detect(root, reports=given)
        assert texts(source) == expected
        assert str(archive) in " ".join(source.describe())
    with pytest.raises(UserError, match="no such folder or file of reports"):
        detect(root, reports=tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty: holds no reports"):
        detect(root, reports=tmp_path / "empty")


def test_gzipped_dicom_is_found_and_dicom_comes_before_jpg(tiny_tree):
    packed = tiny_tree.image("a")
    packed.with_name("a.dcm.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    tiny_tree.image("b").with_name("b.jpg").write_bytes(b"x")
    paths = {i.image_id: i.path.name for i in detect(tiny_tree.root).images()}
    assert (paths["a"], paths["b"]) == ("a.dcm.gz", "b.dcm")


@pytest.mark.parametrize("name", ["../s101.txt", "files/../../s101.txt", "/s1.txt", "C:\\s1.txt"])
def test_a_zip_with_names_that_lead_out_and_a_damaged_one_are_refused(tiny_tree, name):
    path = tiny_tree.root / "mimic-cxr-reports.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(UserError, match=r"mimic-cxr-reports\.zip: .* leads out of its folder"):
        detect(tiny_tree.root)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match="is not a readable zip"):
        detect(tiny_tree.root)


def loop(path):
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    ("damage", "zipped", "problem"),
    [
        (
            lambda f: f.write_bytes(b"FINDINGS:\nd\xe9j\xe0 vu"),
            False,
            "is not UTF-8 text on line 2",
        ),
        (lambda f: f.write_bytes(b"d\xe9j\xe0 vu"), True, "is not UTF-8 text on line 1"),
        (lambda f: f.write_bytes(b"x" * (1 << 20) + b"x"), False, "is larger than 1 MiB"),
        (lambda f: f.write_bytes(b"x" * (1 << 20) + b"x"), True, "is larger than 1 MiB"),
        (lambda f: f.write_bytes(b"Right effusion"), True, "is damaged in the zip"),
        (loop, False, "cannot be read"),
    ],
)
def test_an_unusable_report_is_named_and_the_others_are_read(tiny_tree, damage, zipped, problem):
    damage(tiny_tree.report("101"))
    tiny_tree.report("102").write_bytes(b"")
    tiny_tree.report("103").unlink()
    if zipped:
        path = pack(tiny_tree.root, tiny_tree.root / "mimic-cxr-reports.zip")
        path.write_bytes(path.read_bytes().replace(b"Right effusion", b"Right Effusion"))
    found = {s.study_id: s for s in detect(tiny_tree.root).studies()}
    assert found["101"].report is None
    assert f"s101.txt: {problem}" in found["101"].problem
    assert [name for name, s in found.items() if s.problem] == ["101"]
    assert (found["102"].report, found["103"].report) == ("", None)


def test_negbio_labels_are_read_when_asked_for(tiny_tree):
    assert "No mimic-cxr-*-negbio.csv*" in " ".join(
        detect(tiny_tree.root, labeller="negbio").describe()
    )
    path = tiny_tree.root / "mimic-cxr-2.0.0-negbio.csv"
    path.write_text("subject_id,study_id,Edema\n10000001,101,-1.0\n10000004,104,0.0\n")
    labels = {s.study_id: s.labels for s in detect(tiny_tree.root, labeller="negbio").studies()}
    assert labels["101"] == {"Edema": -1.0}
    assert labels["104"] == {"Lung Opacity": 0.0, "Edema": 1.0}
    with pytest.raises(UserError, match="'chexbert' is not a labeller; known: chexpert, negbio"):
        detect(tiny_tree.root, labeller="chexbert")


def test_a_seed_splits_the_patients_instead_of_the_official_table(tiny_tree):
    table(tiny_tree, "split").unlink()
    source = detect(tiny_tree.root, split_seed=7)
    assert all(i.split == seeded_split(i.patient_id, 7) for i in source.images())
    assert "with seed 7" in " ".join(source.describe())


def test_patients_of_listed_images_that_are_elsewhere_are_held_out_too(tiny_tree):
    path = next(tiny_tree.root.glob("MS_CXR*.json"))
    coco = json.loads(path.read_text())
    place = "files/p10/p10000001/s999/zz.jpg"
    coco["images"].append({"id": 5, "file_name": "zz.jpg", "path": place})
    path.write_text(json.dumps(coco))
    assert detect(tiny_tree.root).held_out_patients() == {"10000001", "10000002"}


def test_a_missing_table_is_named_and_labels_may_be_missing(tiny_tree):
    table(tiny_tree, "chexpert").unlink()
    assert any("chexpert" in line for line in detect(tiny_tree.root).describe())
    table(tiny_tree, "metadata").unlink()
    for path in tiny_tree.root.glob("files/*/*/*/*.dcm"):  # whose headers would hold the view
        path.rename(path.with_suffix(".jpg"))
    with pytest.raises(UserError, match=r"the table mimic-cxr-\*-metadata\.csv\* is missing"):
        detect(tiny_tree.root)


def test_a_broken_table_is_named_with_its_row(tiny_tree):
    split, metadata = table(tiny_tree, "split"), table(tiny_tree, "metadata")
    rewrite(split, lambda text: text + "a,101,10000001,test\n")
    with pytest.raises(UserError, match=rf"{split.name}, row 7: its dicom_id has another split"):
        detect(tiny_tree.root)
    rewrite(metadata, lambda text: text.replace("\na,", "\n\n\n../a,"))
    with pytest.raises(UserError, match=rf"{metadata.name}, row 4: dicom_id, .* blank or not"):
        detect(tiny_tree.root)


class TestLabelTables:
    """Labels reach their studies however the tables write the ids, or the run says that not."""

    TABLES = ("mimic-cxr-2.0.0-chexpert.csv.gz", "mimic-cxr-2.1.0-test-set-labeled.csv")

    def rewrite(self, tree, change):
        for name in self.TABLES:
            path = tree.root / name
            opener = gzip.open if name.endswith(".gz") else open
            with opener(path, "rt") as file:
                head, *rows = file.read().splitlines()
            column = head.split(",").index("study_id")
            cells = [row.split(",") for row in rows]
            for row in cells:
                row[column] = change(row[column])
            with opener(path, "wt") as file:
                file.write("\n".join([head, *map(",".join, cells)]) + "\n")

    @pytest.mark.parametrize("written", ["S{}", "00{}", " {} ", "s{}.0"])
    def test_an_id_may_be_written_in_any_way_and_that_is_said(self, tiny_tree, written):
        expected = {s.study_id: s.labels for s in detect(tiny_tree.root).studies()}
        self.rewrite(tiny_tree, written.format)
        source = detect(tiny_tree.root)
        assert {s.study_id: s.labels for s in source.studies()} == expected
        said = " ".join(source.describe())
        dots, letters = "3 ids of column 'study_id' are written as numbers", "2 ids of column"
        assert (f"chexpert.csv.gz: {dots}" in said) == (".0" in written)
        assert (f"test-set-labeled.csv: {letters}" in said) == ("s" in written.lower())

    def test_the_funnel_counts_every_table(self, tiny_tree, tmp_path):
        path = table(tiny_tree, "chexpert")
        rewrite(path, lambda text: text.replace(",101,", ",999,"))
        out = tmp_path / "o"
        prepare(tiny_tree.root, out, PrepareSettings(size=16), workers=1)
        rows = json.loads((out / "funnel.json").read_text())
        found = [tuple(r.values()) for r in rows if r["unit"] in ("label rows", "test studies")]
        machine, human = self.TABLES
        assert found == [
            (f"labels read from {machine}", 3, 0, "label rows"),
            (f"study of {machine} is in the source", 2, 1, "label rows"),
            (f"labels read from {human}", 2, 0, "label rows"),
            (f"study of {human} is in the source", 2, 0, "label rows"),
            (f"study of {human} is a test study", 1, 1, "label rows"),
            ("test study has radiologists' labels", 1, 0, "test studies"),
        ]

    def test_tables_of_other_studies_are_refused(self, tiny_tree, tmp_path, capsys):
        self.rewrite(tiny_tree, "5041426{}".format)
        assert run(["prepare", str(tiny_tree.root), str(tmp_path / "o"), "--workers", "1"]) == 2
        error = capsys.readouterr().err
        sentence = "0 of its 3 ids in column 'study_id' are among the 4 studies; its ids look like"
        assert f"{sentence} '9999999999', those of the studies like '999'" in error
        assert "5041426" not in error
        assert not (tmp_path / "o").exists()

    def test_a_test_table_of_other_studies_is_refused_and_one_of_no_test_study_said(
        self, tiny_tree
    ):
        path = tiny_tree.root / self.TABLES[1]
        path.write_text("study_id,Edema\n101,1\n")
        said = " ".join(detect(tiny_tree.root).describe())
        assert "0 of the 1 test studies have radiologists', 1 have the labeller's alone" in said
        path.write_text("study_id,Edema\nCXR104,1\n")
        with pytest.raises(UserError, match=r"test-set-labeled.*its ids look like 'aaa999'"):
            detect(tiny_tree.root)

    @pytest.mark.parametrize("name", ["metadata", "split"])
    def test_the_other_tables_read_ids_alike(self, tiny_tree, name):
        expected = detect(tiny_tree.root).images()
        numbers = re.compile(r",(10[0-9]+)(?=,)")
        rewrite(table(tiny_tree, name), lambda text: numbers.sub(r",\1.0", text))
        assert detect(tiny_tree.root).images() == expected
