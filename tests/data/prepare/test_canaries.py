"""Whatever is wrong with a table, no cell of it reaches the screen or a log.

Names, ids and report words are planted in tables that are damaged in many ways; each goes through
the command line. (``rejected.csv`` lies in the prepared set, which holds the ids themselves.)
"""

import gzip
import json
import logging

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from medclip_debias.cli import run
from medclip_debias.data.images import read_image
from medclip_debias.errors import UserError, without_patients

NAME, OTHER, NUMBER, WORDS = "Zebrowska", "Quillfeather", "19876543", "spiculated nodule"
CANARIES = (NAME, OTHER, NUMBER, WORDS, "nodule")
ROW = f"a.png,{NUMBER},{NAME},A {WORDS} of {OTHER}."


@pytest.fixture
def say(tmp_path, capfd, caplog):
    """Run a command line; return its code and all it said, which holds no canary."""

    def prepare(source, *words):
        caplog.set_level(logging.DEBUG)
        code = run(
            ["prepare", str(source), str(tmp_path / "out"), "--size", "32", "--workers", "1"]
            + [str(word) for word in words]
        )
        shown = capfd.readouterr()
        said = shown.out + shown.err + caplog.text
        for canary in CANARIES:
            assert canary.lower() not in said.lower(), said
        return code, said

    return prepare


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.png", "b.png"):
        grey = np.random.default_rng(0).integers(0, 255, (20, 20), dtype=np.uint8)
        Image.fromarray(grey).save(folder / name)
    return folder


HEAD = "image,patient_id,view,report\n"
BAD_MANIFESTS = {
    "no header": f"{ROW}\nb.png,1,PA,Clear.\n",
    "no header, a cell twice": f"{NAME},{NAME},{WORDS}\nb.png,1,Clear.\n",
    "no header, cells that differ in case": f"{NAME},{NAME.upper()},report,image\n",
    "no image column": f"file,patient_id,name,report\n{ROW}\n",
    "no report column": f"image,{NAME},{NUMBER},{OTHER}\n{ROW}\n",
    "a row too long": f"{HEAD}{ROW},{NAME}\n",
    "an unquoted comma": f"{HEAD}a.png,{NUMBER},PA,{NAME}, a {WORDS}\n",
    "a quote without end": f'{HEAD}a.png,{NUMBER},PA,"A {WORDS}\n',
    "cells one to the right": f"{HEAD}{NAME},a.png,{NUMBER},{WORDS}\n",
    "an image that is not there": f"{HEAD}{NAME}_{NUMBER}.png,1,PA,A {WORDS}.\n",
    "a folder named after a patient": f"{HEAD}p{NUMBER}/a.png,1,PA,A {WORDS}.\n",
    "an image twice": f"{HEAD}{ROW}\n{ROW}\n",
    "a split that is none": f"image,report,split\na.png,{WORDS},{NAME}\n",
    "a label that is none": f"image,report,Edema\na.png,{WORDS},{NAME}\n",
    "labels that disagree": "image,report,study_id,Edema\n"
    f"a.png,{WORDS},{NUMBER},1\nb.png,{WORDS},{NUMBER},0\n",
    "two labels of one name": f"image,report,Edema,edema\na.png,{NAME},1,1\n",
    "a study of two patients": "image,report,study_id,patient_id\n"
    f"a.png,{WORDS},{NUMBER},{NAME}\nb.png,{WORDS},{NUMBER},{OTHER}\n",
    "a study of two reports": "image,report,study_id\n"
    f"a.png,{WORDS} {NAME},{NUMBER}\nb.png,{WORDS},{NUMBER}\n",
    "a patient in two splits": "image,report,patient_id,split\n"
    f"a.png,{WORDS},{NAME},train\nb.png,{WORDS},{NAME},test\n",
    "reports without a word": f"image,report,patient_id\na.png,,{NAME}\nb.png,,{NUMBER}\n",
    "views that are none": f"{HEAD}a.png,{NUMBER},{NAME},A {WORDS}.\n",
    "a blank id": f"image,patient_id,report\na.png,,{WORDS} {NAME}\n",
}


@pytest.mark.parametrize("kind", BAD_MANIFESTS)
def test_a_bad_manifest(images, say, kind):
    (images / "manifest.csv").write_text(BAD_MANIFESTS[kind])
    code, said = say(images)
    assert code == 2
    assert "manifest.csv" in said


@pytest.mark.parametrize("kind", ["latin-1", "gzip", "nul", "parquet", "parquet without columns"])
def test_a_manifest_of_other_bytes(images, say, kind):
    text = HEAD + ROW + "\n"
    if kind.startswith("parquet"):
        names = ["image", "report"] if kind == "parquet" else [NAME, NUMBER]
        table = pd.DataFrame([[f"{NAME}.png", f"A {WORDS}."]], columns=names)
        path = images / "manifest.parquet"
        table.to_parquet(path)
    else:
        path = images / ("manifest.csv.gz" if kind == "gzip" else "manifest.csv")
        bad = text.replace(NAME, NAME + "\xe9").encode("latin-1")
        bad = text.replace(NAME, NAME + "\0").encode() if kind == "nul" else bad
        path.write_bytes(gzip.compress(text.encode())[:-9] if kind == "gzip" else bad)
    code, _said = say(path)
    assert code == 2


@pytest.mark.parametrize("kind", ["annotation", "image", "size", "split", "flat", "json", "csv"])
def test_boxes_with_a_bad_entry(images, say, kind):
    (images / "manifest.csv").write_text("image,report\na.png,Clear.\nb.png,Clear.\n")
    box = {"id": NAME, "image_id": NUMBER, "category_id": 1, "bbox": [1, 1, 5, 5]}
    box |= {"label_text": f"A {WORDS}"}
    image = {"id": NUMBER, "file_name": f"{NAME}.png", "width": 20, "height": 20}
    if kind == "annotation":
        box["bbox"] = [NAME]
    elif kind == "image":
        box["image_id"] = OTHER
    elif kind == "size":
        image["width"] = NAME
    elif kind == "split":
        box["split"] = NAME
    elif kind == "flat":
        box["bbox"] = [1, 1, 0, 0]
    content = {"images": [image], "categories": [{"id": 1, "name": OTHER}], "annotations": [box]}
    path = images / "boxes.coco.json"
    path.write_text(json.dumps(content)[: -5 if kind == "json" else None])
    if kind == "csv":
        path.unlink()
        path = images / "MS_CXR_x.csv"
        path.write_text(f"dicom_id,{NAME},x,y,w,h\n{NUMBER},A {WORDS},{OTHER},1,1,1\n")
    code, _ = say(images, "--phrases", path)
    assert code == (0 if kind == "flat" else 2)  # a flat box is counted, and left aside


class TestMimic:
    """Patients of the tree are 1000000N: they are canaries, too."""

    @pytest.fixture
    def patients(self, tiny_tree, say):
        def check(*words):
            code, said = say(tiny_tree.root, *words)
            assert "1000000" not in said
            return code, said

        return check

    @pytest.mark.parametrize("table", ["metadata", "split"])
    @pytest.mark.parametrize("kind", ["header", "twice", "shifted", "short"])
    def test_a_bad_table(self, tiny_tree, patients, table, kind):
        path = next(tiny_tree.root.glob(f"*{table}*"))
        head, first, *rest = gzip.decompress(path.read_bytes()).decode().splitlines()
        lines = {
            "header": [first.replace("a,", f"{NAME},"), *rest],
            "twice": [head, first, first, *rest],
            "shifted": [head, f"{NAME},{first.rsplit(',', 1)[0]}", *rest],
            "short": [head, f"{NAME},{NUMBER}", *rest],
        }[kind]
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
        code, _said = patients()
        assert code == 2 or (table, kind) == ("split", "twice")

    def test_images_and_reports_that_cannot_be_read(self, tiny_tree, patients):
        for name in "abde":
            tiny_tree.image(name).write_bytes(NAME.encode() * 40)
        code, said = patients()
        assert code == 2
        assert "p10/p*/s101/a.dcm" in said

    def test_reports_that_are_no_text(self, tiny_tree, patients):
        for study in ("101", "102", "103", "104"):
            tiny_tree.report(study).write_bytes(f"{NAME} {WORDS} \xe9".encode("latin-1"))
        code, _ = patients()
        assert code == 2

    def test_reading_one_image_names_the_file_and_not_the_patient(self, tiny_tree):
        path = tiny_tree.image("a")
        path.write_bytes(b"x")
        with pytest.raises(UserError, match=r"p10/p\*/s101/a\.dcm: this is not"):
            read_image(path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/x/p10/p10000032/s50414267.txt: is empty.", "/x/p10/p*/s50414267.txt: is empty."),
        (r"C:\data\patient00001\study1", r"C:\data\patient*\study1"),
        ("/bids/sub-0123/anat/x.dcm", "/bids/sub-*/anat/x.dcm"),
        ("/runs/step1000/model.p100", "/runs/step1000/model.p100"),
        ("images/id_0002ab3c-91d2e9f0-77/Study_1/i.png", "images/id_*/Study_1/i.png"),
        (
            "deid_png/GRDN4X8A0PQ2/GRDN77AB12CD/studies/1.2/3.png",
            "deid_png/GRDN*/GRDN*/studies/1.2/3.png",
        ),
        ("/data/id_cards/GRDN_notes/a.png", "/data/id_cards/GRDN_notes/a.png"),
        ("row 1000000 of /data/p10: bad", "row 1000000 of /data/p10: bad"),
    ],
)
def test_the_patient_is_taken_out_of_a_path(text, shown):
    assert without_patients(text) == shown
    assert without_patients(shown) == shown
