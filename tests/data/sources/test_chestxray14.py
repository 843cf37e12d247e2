"""ChestX-ray14: its cut header, its lists, its boxes, and what is wrong in its tables."""

import pytest
from PIL import Image

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.splits import seeded_split
from medclip_debias.errors import UserError
from tests.data.sources.counts import steps
from tests.data.sources.trees import write_image, write_table

# The header of the release: a name holds a comma, and the line ends with one, as its rows do.
HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
BOX_HEADER = "Image Index,Finding Label,Bbox [x,y,w,h],,,"
ROWS = (
    "00000001_000.png,Cardiomegaly|Effusion,0,1,058Y,M,PA,2682,2749,0.143,0.143,",
    "00000001_001.png,No Finding,1,1,058Y,M,AP,2894,2729,0.143,0.143,",
    "00000002_000.png,Pleural_Thickening|Infiltration,0,2,411,F,PA,2500,2048,0.168,0.168,",
    "00000013_000.png,No Finding,0,13,060Y,F,AP,2500,2048,0.168,0.168,",
)


def write(folder, rows=ROWS, boxes=()):
    write_table(folder / "Data_Entry_2017.csv", HEADER, *rows)
    if boxes:
        write_table(folder / "BBox_List_2017.csv", BOX_HEADER, *boxes)
    for number, row in enumerate(rows):
        name = row.partition(",")[0] or "x.png"
        path = write_image(folder / f"images_{number % 2 + 1:03d}" / "images" / name, number)
        if number == 1:  # as some files of the archive are
            with Image.open(path) as image:
                image.convert("RGBA").save(path)
    return folder


def lists(folder, train, test):
    for name, images in (("train_val_list.txt", train), ("test_list.txt", test)):
        (folder / name).write_text("\n".join(images))


@pytest.fixture
def tree(tmp_path):
    """Three patients; the first two train or validate, the third is tested."""
    boxes = (
        "00000001_000.png,Cardiomegaly,225.084745762712,547.019216763771,86.78,79.18,,,",
        "00000013_000.png,Infiltrate,1.5,2.5,100,200,,,",
        "00000013_000.png,Infiltrate,512,512,256.25,128,,,",
        "00000099_000.png,Mass,1,2,3,4,,,",
        "00000002_000.png,Mass,1,2,x,4,,,",
    )
    lists(tmp_path, [row.partition(",")[0] for row in ROWS[:3]], ["00000013_000.png"])
    return write(tmp_path, boxes=boxes)


def splits(folder, **options):
    return {image.image_id: image.split for image in detect(folder, **options).images()}


def test_labels_are_yes_or_no_for_fourteen_findings_under_the_projects_names(tree):
    first, second, third, _ = detect(tree).studies()
    assert first.report is None
    present = {name for name, value in first.labels.items() if value}
    assert present == {"Cardiomegaly", "Pleural Effusion"}
    assert set(first.labels.values()) == {0.0, 1.0}
    assert len(first.labels) == 15
    assert {name for name, value in second.labels.items() if value} == {"No Finding"}
    assert third.labels["Pleural Thickening"] == third.labels["Infiltration"] == 1.0


def test_the_official_lists_split_and_without_them_the_hash(tree):
    found = splits(tree)
    for named in ("{}.jpg", "images/{}.png", "{}"):  # as the table names them
        lists(tree, [named.format(f"00000001_00{n}") for n in (0, 1)], [named.format(ROWS[3][:12])])
        assert splits(tree) == found | {"00000002_000": ""}  # which no list names
    (tree / "train_val_list.txt").unlink()
    with pytest.raises(UserError, match=r"train_val_list.txt is missing beside test_list.txt"):
        detect(tree)
    (tree / "test_list.txt").unlink()
    assert [*splits(tree).values()] == [seeded_split(p) for p in ("1", "1", "2", "13")]


def test_boxes_are_phrases_in_pixels_of_1024(tree):
    source = detect(tree)
    phrases = {(p.image_id, p.category): p for p in source.phrases()}
    assert phrases["00000001_000", "Cardiomegaly"].boxes == (
        (225.084745762712, 547.019216763771, 86.78, 79.18),
    )
    both = phrases["00000013_000", "Infiltration"]
    assert (both.text, both.annotated_size, len(both.boxes)) == ("Infiltration.", (1024, 1024), 2)
    assert steps(source)["row of BBox_List_2017.csv has a finding and four numbers"] == (4, 5)
    assert steps(source)["box of BBox_List_2017.csv has its image in the table"] == (3, 4)


def test_what_is_odd_in_the_findings_is_counted(tmp_path):
    rows = (
        "00000001_000.png,No Finding|Mass,0,1,58,M,PA,1,1,1,1,",
        "00000001_001.png,Masss|Nodule,1,1,58,M,PA,1,1,1,1,",
        "00000001_002.png,,2,1,58,M,,1,1,1,1,",
        "00000001_001.png,Nodule,1,1,58,M,PA,1,1,1,1,",
    )
    source = detect(write(tmp_path, rows))
    first, second, third = source.studies()
    assert (first.labels["Mass"], first.labels["No Finding"]) == (1.0, 0.0)
    assert (second.labels["Nodule"], second.labels["Mass"]) == (1.0, 0.0)
    assert set(third.labels.values()) == {None}
    assert steps(source) == {
        "row of Data_Entry_2017.csv is not a repeat": (3, 4),
        "finding is one of the archive's": (3, 4),
        "'No Finding' stands alone (else the finding counts)": (2, 3),
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda f: (f / "Data_Entry_2017_v2020.csv").write_text("a"), "keep one release"),
        (lambda f: write(f, [ROWS[0].replace(",1,", ",,")]), "'Patient ID' is blank"),
        (lambda f: lists(f, ["00000013_000.png"], ["x", "00000013_000.png"]), "line 2: its image"),
        (lambda f: (f / "test_list.txt").write_bytes(b"\xff\xfe\x00"), "is not text"),
    ],
)
def test_a_broken_table_is_one_sentence(tree, change, said):
    change(tree)
    with pytest.raises(UserError, match=said):
        detect(tree)


def test_a_copy_in_another_format_is_read_and_counted(tree, tmp_path):
    """As nearly every small public copy is: .jpg files, and the archive's tables."""
    for path in tree.glob("images_*/images/*.png"):
        with Image.open(path) as image:
            image.convert("L").save(path.with_suffix(".jpg"))
        path.unlink()
    said = []
    found = prepare(tree, tmp_path / "o", PrepareSettings(size=32), workers=1, say=said.append)
    step = "image file has another suffix than the table says"
    assert [row["kept"] for row in found.meta["funnel"] if row["step"] == step] == [len(ROWS)]
    assert any("4 images have another suffix than the table says" in line for line in said)
