"""The whole way from a source to a prepared set."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.funnel import Funnel
from medclip_debias.data.images import prepare_image, read_radiograph
from medclip_debias.data.prepare import prepare
from medclip_debias.data.prepare.chunks import PREPARE_VERSION
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.reports import report_sentences
from medclip_debias.errors import UserError, without_patients
from tests.data.set_files import set_files

SMALL = PrepareSettings(size=32)


def counts(prepared):
    return {row["step"]: (row["kept"], row["dropped"]) for row in prepared.funnel}


@pytest.fixture
def prepared(tiny_tree, tmp_path):
    """A function that prepares the tree, to which a test may have done something."""
    return lambda: prepare(tiny_tree.root, tmp_path / "out", SMALL, workers=1)


def test_the_tables_hold_what_the_tree_holds_and_the_funnel_counts_every_step(prepared):
    found = prepared()
    assert found.images["image_id"].tolist() == ["a", "b", "d", "e"]
    assert found.images["split"].tolist() == ["train", "held_out", "validate", "test"]
    assert found.images[["height", "width"]].to_numpy().tolist() == [[48, 40]] * 4
    studies = found.studies.set_index("study_id")
    assert studies.loc["102", "split"] == "held_out"
    assert studies.loc["104", "Edema"] == 1
    assert np.isnan(studies.loc["103", "Edema"])
    columns = ["study_id", "section", "position", "text"]
    assert found.sentences[columns].to_numpy().tolist() == [
        ["101", "findings", 0, "Lungs are clear."],
        ["101", "findings", 1, "Heart is normal."],
        ["102", "impression", 0, "Left effusion."],
        ["102", "impression", 1, "No pneumothorax."],
        ["103", "findings", 0, "Mild edema."],
        ["103", "impression", 1, "Edema."],
        ["104", "last_paragraph", 0, "The heart is large."],
    ]
    steps = counts(found)
    assert steps["images listed"] == (5, 0)
    assert steps["view is frontal"] == (4, 1)
    assert steps["patient has no boxes (others move to held_out)"] == (2, 1)
    assert np.array_equal(found.pixels[0], found.pixels[3])  # of train and of test
    assert steps["image of these pixels is in one split alone"] == (2, 2)
    assert found.meta["synthetic"] is False


def test_what_this_version_makes_of_the_tree_has_not_changed(prepared):
    """If this fails, code or a library gives other pixels, sentences, labels or boxes.

    Raise `PREPARE_VERSION` then, so that work of the code before is not mixed in, and put the new
    hash here.
    """
    assert (PREPARE_VERSION, prepared().content_hash[:16]) == (1, "93959dad72879595")


def test_words_of_sections_left_aside_are_counted_printed_and_stored(tiny_tree, tmp_path, capsys):
    tiny_tree.report("103").write_text(
        "INDICATION: Cough today.\nWARDLIST: Private Name\nFINDINGS: Mild edema.\n"
    )
    out = tmp_path / "o"
    assert run(["prepare", str(tiny_tree.root), str(out), "--size", "32", "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    prepared = PreparedSet.open(out)
    rows = [row for row in prepared.funnel if row["unit"].startswith("words")]
    assert rows[0]["step"] == "words of the reports, headings aside"
    by_name = {row["step"]: row for row in rows[1:]}
    assert by_name["skipped: section 'indication'"]["dropped"] >= 2
    other = by_name["skipped: section 'other heading'"]
    assert (other["dropped"], other["unit"]) == (2, "words (1 report)")
    assert all(step in printed for step in by_name)
    assert "wardlist" not in str(prepared.meta).lower()  # a heading may hold what is private
    kept = [row["kept"] for row in rows]
    assert kept[:-1] == [row["kept"] + row["dropped"] for row in rows[1:]]
    reports = [study.report for study in detect(tiny_tree.root).studies() if study.report]
    assert kept[-1] == sum(report_sentences(report).used for report in reports)
    again = prepare(tiny_tree.root, out, SMALL, workers=1, update=True)
    assert again.funnel == prepared.funnel


class TestDropped:
    def test_an_unreadable_image_is_rejected_and_never_a_zero_row(self, tiny_tree, prepared):
        for name in ("a", "d"):
            path = tiny_tree.image(name)
            path.write_bytes(path.read_bytes()[:-300])
        found = prepared()
        assert found.images["image_id"].tolist() == ["b", "e"]
        assert (found.pixels.reshape(2, -1).max(axis=1) == 255).all()
        rejected = pd.read_csv(found.folder / "rejected.csv")
        assert rejected["image_id"].tolist() == ["a", "d"]
        assert rejected["reason"].str.contains("truncated or damaged").all()
        assert without_patients(str(tiny_tree.image("d"))) in rejected["reason"][1]
        assert set(found.sentences["study_id"]) == {"102", "104"}
        steps = counts(found)
        assert steps["image is readable"] == (2, 2)
        assert steps["study of the sentence is in the set"] == (3, 4)
        last = {row["unit"]: row["kept"] for row in found.funnel}
        for unit in ("images", "studies", "sentences", "phrases"):
            assert last[unit] == len(getattr(found, unit)), unit

    def test_an_empty_report_and_what_is_missing_are_counted_and_listed(self, tiny_tree, prepared):
        tiny_tree.report("101").write_text(" \n")
        tiny_tree.report("103").unlink()
        tiny_tree.image("e").unlink()
        found = prepared()
        assert counts(found)["study has a report"] == (2, 1)
        assert counts(found)["report is not empty"] == (1, 1)
        assert counts(found)["image file is there"] == (3, 1)
        (row,) = pd.read_csv(found.folder / "rejected.csv").itertuples()
        assert row.image_id == "a"
        assert row.reason.endswith("s101.txt: the report is empty.")

    @pytest.mark.parametrize(
        ("files", "content", "sentence"),
        [
            ("*", None, "'image file is there'"),
            (
                "../s*.txt",
                "",
                "'report is not empty' dropped 4 of 4 studies; .*s101.txt: the report",
            ),
            ("*", "x", "'image is readable' dropped 4 of 4 images; .*a.dcm: this is not a DICOM"),
        ],
    )
    def test_nothing_left_names_the_step_that_dropped_most(
        self, tiny_tree, prepared, tmp_path, files, content, sentence
    ):
        for path in tiny_tree.root.glob(f"files/*/*/*/{files}"):
            path.unlink() if content is None else path.write_text(content)
        with pytest.raises(UserError, match=sentence):
            prepared()
        assert [path.name for path in tmp_path.iterdir()] == ["mimic"]


def test_the_real_set_is_prepared_whole(shared_data, tmp_path):
    result = prepare(shared_data / "real_cxr", tmp_path / "o", SMALL, workers=2)
    assert len(result) == 215
    splits = {"train": 160, "validate": 24, "test": 31}
    assert result.meta["counts"]["images_by_split"] == splits
    assert len(result.phrases) == 430
    text = ("sentences", "words")
    assert all(r["dropped"] == 0 for r in result.funnel if not r["unit"].startswith(text))
    # "Left lung." is right of "Right lung." on a radiograph that is not mirrored.
    centre = result.phrases.assign(x=[b[0][0] + b[0][2] / 2 for b in result.phrases["boxes"]])
    wide = centre.pivot_table(index="image_id", columns="text", values="x")
    assert (wide["Left lung."] > wide["Right lung."]).mean() > 0.95


def test_the_split_of_the_annotations_is_kept(tiny_tree, prepared):
    path = next(tiny_tree.root.glob("MS_CXR*.json"))
    content = json.loads(path.read_text())
    for annotation in content["annotations"]:
        annotation["split"] = "test"
    path.write_text(json.dumps(content))
    assert prepared().phrases["split"].tolist() == ["test"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--multi-view", "none"], "multi_view"),
        (["--views", ","], "views must name at least one"),
        (["--kind", "mimic"], "is not a kind of source"),
        (["--kind", "manifest", "--tables", "."], "only MIMIC-CXR has tables of its own"),
        (["--shard", "1/2", "--update"], "--update and --shard do not go together"),
        (["--report-set", "sectoins=[findings]"], "did you mean 'sections'"),
    ],
)
def test_an_option_that_makes_no_sense_is_one_sentence(
    tiny_tree, tmp_path, capsys, words, sentence
):
    assert run(["prepare", str(tiny_tree.root), str(tmp_path / "o"), *words]) == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["mimic"]


def test_a_source_that_is_a_loop_of_links_is_one_sentence(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UserError, match="there is no such folder or file"):
        prepare(tmp_path / "loop", tmp_path / "o", SMALL)


def test_the_worst_step_is_the_one_with_the_largest_share():
    funnel = Funnel()
    funnel.step("listed", "images", 1000)
    funnel.step("many", "images", 400, before=1000)
    funnel.step("most", "images", 4, before=400)
    assert funnel.worst()["step"] == "most"
    funnel.stop_if_empty(4)
    funnel.example = "x"
    with pytest.raises(UserError, match="the step 'most' dropped 396 of 400 images; for example x"):
        funnel.stop_if_empty(0)


class TestOutput:
    def test_the_bytes_do_not_depend_on_the_number_of_workers(
        self, small_phantom, small_prepared, tmp_path
    ):
        seen = []
        prepare(small_phantom, tmp_path / "3", SMALL, workers=3, progress=lambda *s: seen.append(s))
        assert set_files(tmp_path / "3") == set_files(small_prepared)
        assert seen == sorted(seen)
        assert seen[-1][0] == seen[-1][1] > 84

    def test_the_content_hash_follows_pixels_and_text(self, tiny_tree, tmp_path):
        first = prepare(tiny_tree.root, tmp_path / "1", SMALL, workers=1).content_hash
        report = tiny_tree.report("101")
        text = report.read_text()
        report.write_text(text.replace("normal", "large"))
        second = prepare(tiny_tree.root, tmp_path / "2", SMALL, workers=1).content_hash
        report.write_text(text)
        shutil.copy(tiny_tree.image("e"), tiny_tree.image("a"))
        same = prepare(tiny_tree.root, tmp_path / "3", SMALL, workers=1).content_hash
        other = prepare(tiny_tree.root, tmp_path / "4", PrepareSettings(size=33), workers=1)
        assert first == same  # a and e hold the same picture
        assert len({first, second, other.content_hash}) == 3

    def test_an_existing_folder_is_kept_unless_asked_otherwise(self, tiny_tree, tmp_path):
        out = tmp_path / "o"
        prepare(tiny_tree.root, out, SMALL, workers=1)
        with pytest.raises(UserError, match="is not a prepared set and will not"):
            prepare(tiny_tree.root, tiny_tree.root, SMALL, overwrite=True)
        assert tiny_tree.image("a").is_file()
        with pytest.raises(UserError, match="is not empty"):
            prepare(tiny_tree.root, out, PrepareSettings(size=16), workers=1)
        new = prepare(tiny_tree.root, out, PrepareSettings(size=16), workers=1, overwrite=True)
        assert new.pixels.shape == (4, 16, 16)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["mimic", "o"]


def test_a_phantoms_rows_are_the_images_of_their_files_and_no_patient_with_boxes_learns(
    small_phantom, small_prepared
):
    prepared = PreparedSet.open(small_prepared)
    images = prepared.images
    boxed = images["image_id"].isin(prepared.phrases["image_id"])
    training = images["split"].isin(["train", "validate"])
    assert boxed.any()
    assert not set(images["patient_id"][boxed]) & set(images["patient_id"][training])
    paths = {i.image_id: i.path for i in detect(small_phantom).images()}
    for row in range(0, len(prepared), 8):
        image = read_radiograph(paths[images["image_id"][row]])
        np.testing.assert_array_equal(prepared.pixels[row], prepare_image(image, SMALL))
        assert images.loc[row, ["height", "width"]].tolist() == list(image.shape)
    assert prepared.meta["synthetic"] is True
