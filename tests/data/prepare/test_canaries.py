"""No path to a file says whose it is (what is in tables: tests/test_bad_inputs.py)."""

import pytest

from medclip_debias.cli import run
from medclip_debias.errors import without_patients

NAME, PATIENT = "Zebrowska", "1000000"


@pytest.mark.parametrize("damaged", ["images", "reports"])
def test_files_that_cannot_be_read(tiny_tree, tmp_path, capsys, damaged):
    for name in "abde" if damaged == "images" else ():
        tiny_tree.image(name).write_bytes(NAME.encode() * 40)
    for study in ("101", "102", "103", "104") if damaged == "reports" else ():
        tiny_tree.report(study).write_bytes(f"{NAME} nodule \xe9".encode("latin-1"))
    words = ["prepare", str(tiny_tree.root), str(tmp_path / "out"), "--size", "32"]
    assert run([*words, "--workers", "1"]) == 2
    shown = capsys.readouterr()
    assert damaged == "reports" or "p10/p*/s101/a.dcm" in shown.err
    assert not any(word in shown.out + shown.err for word in (NAME, PATIENT, "nodule"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/x/p10/p10000032/s50414267.txt: is empty.", "/x/p10/p*/s50414267.txt: is empty."),
        (r"C:\data\patient00001\study1", r"C:\data\patient*\study1"),
        ("/bids/sub-0123/anat/x.dcm", "/bids/sub-*/anat/x.dcm"),
        ("/runs/step1000/model.p100", "/runs/step1000/model.p100"),
        ("images/id_0002ab3c-91d2e9f0-77/Study_1/i.png", "images/id_*/Study_1/i.png"),
        (
            "deid_png/GRDN4X8A0PQ2/GRDN77AB12CD/studies/1/3.png",
            "deid_png/GRDN*/GRDN*/studies/1/3.png",
        ),
        ("/data/id_cards/GRDN_notes/a.png", "/data/id_cards/GRDN_notes/a.png"),
        ("row 1000000 of /data/p10: bad", "row 1000000 of /data/p10: bad"),
    ],
)
def test_the_patient_is_taken_out_of_a_path(text, shown):
    assert without_patients(text) == shown
    assert without_patients(shown) == shown
