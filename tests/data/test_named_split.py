"""Split files: written, read, refused, and used in place of a source's own split."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from medclip_debias.config import PrepareSettings
from medclip_debias.data.named_split import NamedSplit, plain_split, read_split
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.records import ImageRecord
from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import UserError

SPLIT = NamedSplit("mine-v1", {"b": "test", "a": "train", "c": "validate"})

SMALL = PrepareSettings(size=32)


def test_a_split_comes_back_and_its_hash_is_that_of_the_lines_behind_the_first(tmp_path):
    path = tmp_path / "split.csv"
    SPLIT.write(path)
    first, _, rest = path.read_bytes().partition(b"\n")
    assert first.decode() == f"# mine-v1 sha256:{hashlib.sha256(rest).hexdigest()}"
    assert rest == b"study_id,split\na,train\nb,test\nc,validate\n"
    found = read_split(path)
    assert (found.name, found.sha256) == (SPLIT.name, SPLIT.sha256)
    assert dict(found.studies) == dict(SPLIT.studies)


def named(body, name="x"):
    return f"# {name} sha256:{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("study_id,split\na,train\n", "row 1: must be '# NAME sha256:HASH'"),
        (named("study_id,split\na,train\n") + "b,test\n", "do not have the hash of its first line"),
        (named("study,split\na,train\n"), "row 2: must be 'study_id,split'"),
        (named("study_id,split\na,train\na,test\n"), "row 4: its study has a row above"),
        (named("study_id,split\na,holdout\n"), "row 3: its split is not one of train"),
        (named("study_id,split\na\n"), "row 3: must hold a study's id and its split"),
        (named('study_id,split\n"a,train\n'), "is not readable CSV"),
        ("\xff\xfe", r"cannot be read as a split file \(UnicodeDecodeError\)"),
        (None, "there is no such split file"),
    ],
)
def test_a_file_that_is_no_split_is_refused(tmp_path, content, sentence):
    if content is not None:
        (tmp_path / "s.csv").write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match=rf"s\.csv.*{sentence}"):
        read_split(tmp_path / "s.csv")


@pytest.fixture
def manifest(tmp_path):
    """Three studies, all in training by the manifest's own word."""
    lines = ["image,report,study_id,patient_id,split"]
    for name, patient in zip("abc", "pqr", strict=True):
        pixels = np.arange(1024, dtype=np.uint8).reshape(32, 32)
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        lines.append(f"{name}.png,Heart is normal.,{name},{patient},train")
    (tmp_path / "manifest.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "manifest.csv"


def run(manifest, out, split=SPLIT, **options):
    path = manifest.parent / "split-file.csv"
    split.write(path)
    reading = Reading(split_file=path, **options)
    return prepare(manifest, out, PrepareSettings(size=16), reading=reading, workers=1)


@pytest.mark.parametrize("text_only", [False, True])
def test_any_source_can_be_split_by_a_file(manifest, tmp_path, text_only):
    found = run(manifest, tmp_path / "o", text_only=text_only)
    splits = dict(zip(found.studies["study_id"], found.studies["split"], strict=True))
    assert splits == dict(SPLIT.studies)
    assert found.meta["split"] == {"name": "mine-v1", "sha256": SPLIT.sha256}
    assert read_split(found.folder / "split.csv").sha256 == SPLIT.sha256
    step = {"step": "study is in the split mine-v1", "unit": "studies of the split"}
    assert step | {"kept": 3, "dropped": 0} in found.funnel


def test_a_split_that_does_not_fit_is_refused(manifest, tmp_path):
    other = NamedSplit("x", {"a": "train", "b": "test", "d": "test", "e": "test"})
    said = "1 of its 3 studies are not in the file, and 2 of the file's 4 are not in the source"
    with pytest.raises(UserError, match=said):
        run(manifest, tmp_path / "o", other)
    with pytest.raises(UserError, match="--split-file and --split-seed do not go together"):
        run(manifest, tmp_path / "o", split_seed=3)
    manifest.write_text(manifest.read_text().replace(",q,", ",p,"))
    with pytest.raises(UserError, match="the patient of this test image also has a train image"):
        run(manifest, tmp_path / "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("column", ["study_id", "patient_id", "image_id", "image"])
def test_a_plain_table_splits_by_study_patient_or_image(tiny_tree, tmp_path, column):
    """As archives give their lists; what it does not name has no split, and is counted."""
    images = {image.image_id: image for image in detect(tiny_tree.root).images()}
    key = column if column in ("study_id", "patient_id") else "image_id"
    ending = ".png" if column == "image" else ""
    chosen = {"a": "val", "b": "test", "e": "train"}
    rows = [f"{getattr(images[name], key)}{ending},{split}" for name, split in chosen.items()]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join([f"{column},split", *rows, "nothing,test"]))
    said = []
    how = {"reading": Reading(split_file=path), "workers": 1, "say": said.append}
    made = prepare(tiny_tree.root, tmp_path / "o", SMALL, **how)
    splits = dict(zip(made.images["image_id"], made.images["split"], strict=True))
    assert splits == {"a": "validate", "b": "test", "e": "train"}
    assert any("1 rows match nothing in the source" in line for line in said)
    assert any(row["step"] == "split is known" and row["dropped"] for row in made.funnel)


IMAGES = [
    ImageRecord(f"{folder}/x.png", folder, f"{number:05}", Path(folder, "x.png"), "PA", "")
    for number, folder in enumerate(("one", "two"), 101)
]


@pytest.mark.parametrize(
    ("table", "studies", "unknown"),
    [
        ("patient_id|101,test|102,train", {"one": "test", "two": "train"}, 0),
        ("patient_id|101.0,test|102.0,val", {"one": "test", "two": "validate"}, 0),
        ("patient_id|p101,test|00000102,train", {"one": "test", "two": "train"}, 0),
        ("image|one/x.png,test|x.png,train", {"one": "test"}, 1),
        ("image|./one/x.jpg,test|x.png,train", {"one": "test"}, 1),
        ("image|one/x,test|two/x,train", {"one": "test", "two": "train"}, 0),
    ],
)
def test_a_plain_table_finds_patients_and_files_as_other_programs_write_them(
    tmp_path, table, studies, unknown
):
    """Spreadsheets drop zeros, data frames add points; files of one name have their folders."""
    first, *rows = table.split("|")
    (tmp_path / "mine.csv").write_text("\n".join([f"{first},split", *rows]))
    split = plain_split(tmp_path / "mine.csv", IMAGES, ["one", "two"])
    assert (dict(split.studies), split.unknown) == (studies, unknown)


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ("patient_id,split\nx,test\n", "none of its 1 rows matches anything"),
        ("split\ntest\n", "needs a column study_id"),
        ("study_id,split\none,test\none,train\n", "row 3: its study has another split"),
        ("study_id,split\none,exam\n", "row 2: its split is not one of"),
    ],
)
def test_a_plain_table_that_names_nothing_or_two_splits_is_refused(tmp_path, table, sentence):
    (tmp_path / "mine.csv").write_text(table)
    with pytest.raises(UserError, match=sentence):
        plain_split(tmp_path / "mine.csv", IMAGES, ["one", "two"])
