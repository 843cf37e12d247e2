"""What a path holds, found out from the files in it."""

import json
import shutil

import pytest

from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import UserError

XML = "<eCitation><uId id='CXR1'/><AbstractText Label='FINDINGS'>Clear.</AbstractText></eCitation>"


def test_unknown_layouts_have_their_sentences(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    nested = tmp_path / "vindr"
    nested.mkdir()
    (nested / "train.csv").write_text("image_id\n1\n")
    (tmp_path / "mimic" / "files" / "p10" / "p10000032").mkdir(parents=True)
    (tmp_path / "mimic" / "files" / "p10" / "p10000032" / "s50414267.txt").write_text("Clear.")
    cases = [
        (tmp_path / "none", "auto", "there is no such folder or file"),
        (tmp_path, "auto", "is not a known layout"),
        (tmp_path, "manifest", "has no manifest.csv"),
        (tmp_path, "openi", "has no reports, neither NLMCXR_reports.tgz"),
        (tmp_path, "mimic", r"not a kind of source \(did you mean 'mimic_cxr'"),
        (tmp_path / "notes.txt", "auto", "is not a manifest"),
        (tmp_path / "notes.txt", "mimic_cxr", "is a file"),
        (shutil.make_archive(tmp_path / "vindr", "zip", nested), "auto", "is packed; unpack it"),
        (
            shutil.make_archive(tmp_path / "renamed", "zip", tmp_path / "mimic"),
            *("auto", "is a zip of reports without images"),
        ),
    ]
    for path, kind, sentence in cases:
        with pytest.raises(UserError, match=sentence):
            detect(path, kind)


def test_a_folder_above_the_data_points_to_it(tiny_tree, tmp_path):
    nested = tmp_path / "physionet.org" / "files" / "mimic-cxr"
    nested.parent.mkdir(parents=True)
    shutil.move(tiny_tree.root, nested)
    with pytest.raises(UserError, match=rf"did you mean {nested}\?"):
        detect(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {"train.json": '{"images": []}'},
        {"train.csv": "image,label\n1.png,0\n"},
        {"image_labels_train.csv": "image_id,rad_ID,Bronchitis\na,R1,1\n"},  # VinDr-PCXR's
        {
            "images.csv": "image,class\na.png,train\n",
            "boxes.csv": "image,finding,x,y,width,height\na.png,Nodule,1,1,2,2\n",
        },
    ],
    ids=lambda files: " and ".join(files),
)
def test_a_file_by_an_archives_name_is_not_taken_for_it(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="is not a known layout"):
        detect(tmp_path)


def test_a_manifest_beside_xml_files_wins_and_a_kind_may_be_forced(tmp_path):
    (tmp_path / "1.xml").write_text(XML)
    (tmp_path / "manifest.csv").write_text("image,report\na.png,Clear.\n")
    (tmp_path / "a.png").touch()
    assert detect(tmp_path).kind == "manifest"
    assert detect(tmp_path, "openi").kind == "openi"


def test_a_manifest_beside_a_release_is_not_passed_over(nih_folder):
    folder = nih_folder("nih", {"00000001_000": ("Mass", "test")})
    (folder / "manifest.csv").write_text("image,report\nimages/00000001_000.png,Clear.\n")
    with pytest.raises(UserError, match=r"may be chestxray14 or manifest; say which with --kind"):
        detect(folder)
    for kind in ("chestxray14", "manifest"):
        assert detect(folder, kind).kind == kind


def test_boxes_may_be_named_as_a_file_or_a_folder(tiny_tree, tmp_path):
    name = "MS_CXR_Local_Alignment_v1.0.0.json"
    folder = tmp_path / "ms-cxr"
    folder.mkdir()
    shutil.move(tiny_tree.root / name, folder / name)
    assert "No MS_CXR_*.json" in " ".join(detect(tiny_tree.root).describe())
    assert detect(tiny_tree.root).phrases() == []
    for given in (folder, folder / name):
        source = detect(tiny_tree.root, phrases=given)
        assert len(source.phrases()) == 1
        assert source.held_out_patients() == {"10000002"}
    with pytest.raises(UserError, match="no such file of boxes"):
        detect(tiny_tree.root, phrases=tmp_path / "no.json")
    with pytest.raises(UserError, match="has no boxes"):
        detect(tiny_tree.root, phrases=tiny_tree.root)


def test_two_files_of_boxes_ask_for_one(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    (tmp_path / "manifest.csv").write_text("image,report\na.png,Clear.\n")
    for name in ("a.coco.json", "b.coco.json"):
        (tmp_path / name).write_text(json.dumps({"images": [], "annotations": []}))
    with pytest.raises(UserError, match=r"both a\.coco\.json and b\.coco\.json hold boxes"):
        detect(tmp_path)
