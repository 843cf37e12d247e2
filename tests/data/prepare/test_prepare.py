"""The whole way from a source to a prepared set."""

import json
import shutil
import tarfile
from itertools import islice

import numpy as np
import pandas as pd
import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings
from medclip_debias.data.funnel import table
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images import prepare_image, read_image
from medclip_debias.data.prepare import prepare
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.reports import report_sentences
from medclip_debias.errors import UserError
from tests.data.set_files import set_files

SMALL = PrepareSettings(size=32)


def counts(prepared):
    return {row["step"]: (row["kept"], row["dropped"]) for row in prepared.funnel}


@pytest.fixture
def prepared(tiny_tree, tmp_path):
    return prepare(tiny_tree.root, tmp_path / "out", SMALL, workers=1)


class TestTinyTree:
    def test_the_tables_hold_what_the_tree_holds(self, prepared):
        assert prepared.images["image_id"].tolist() == ["a", "b", "d", "e"]
        assert prepared.images["split"].tolist() == ["train", "held_out", "validate", "test"]
        assert prepared.images[["height", "width"]].to_numpy().tolist() == [[48, 40]] * 4
        studies = prepared.studies.set_index("study_id")
        assert studies.loc["102", "split"] == "held_out"
        assert studies.loc["104", "Edema"] == 1
        assert np.isnan(studies.loc["103", "Edema"])
        assert prepared.sentences[
            ["study_id", "section", "position", "text"]
        ].to_numpy().tolist() == [
            ["101", "findings", 0, "Lungs are clear."],
            ["101", "findings", 1, "Heart is normal."],
            ["102", "impression", 0, "Left effusion."],
            ["102", "impression", 1, "No pneumothorax."],
            ["103", "findings", 0, "Mild edema."],
            ["103", "impression", 1, "Edema."],
            ["104", "last_paragraph", 0, "The heart is large."],
        ]

    def test_the_funnel_counts_every_step(self, prepared):
        found = counts(prepared)
        assert found["images listed"] == (5, 0)
        assert found["view is frontal"] == (4, 1)
        assert found["patient has no boxes (others move to held_out)"] == (2, 1)
        assert "view is frontal" in table(prepared.funnel)

    def test_sentences_of_studies_whose_images_cannot_be_read_are_counted(
        self, tiny_tree, tmp_path
    ):
        """The last count of every unit is what the set holds."""
        image = next(tiny_tree.root.rglob("a.dcm"))
        image.write_bytes(image.read_bytes()[:400])
        prepared = prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1)
        last = {row["unit"]: row["kept"] for row in prepared.funnel}
        for unit in ("images", "studies", "sentences", "phrases"):
            assert last[unit] == len(getattr(prepared, unit)), unit
        step = counts(prepared)["study of the sentence is in the set"]
        assert step == (len(prepared.sentences), 2)

    def test_one_film_in_two_splits_is_counted(self, prepared):
        """Found by comparing every pair of images."""
        splits = prepared.images["split"]
        copies = {
            row
            for row, one in enumerate(prepared.pixels)
            for other, two in enumerate(prepared.pixels)
            if splits[row] != splits[other] and np.array_equal(one, two)
        }
        assert copies
        step = counts(prepared)["image of these pixels is in one split alone"]
        assert step == (len(prepared) - len(copies), len(copies))

    def test_words_of_sections_left_aside_are_counted_printed_and_stored(
        self, tiny_tree, tmp_path, capsys
    ):
        tiny_tree.report("103").write_text(
            "INDICATION: Cough today.\nWARDLIST: Private Name\nFINDINGS: Mild edema.\n"
        )
        out = tmp_path / "o"
        assert (
            run(["prepare", str(tiny_tree.root), str(out), "--size", "32", "--workers", "1"]) == 0
        )
        printed = capsys.readouterr().out
        prepared = PreparedSet.open(out)
        rows = [row for row in prepared.funnel if row["unit"].startswith("words")]
        assert rows[0]["step"] == "words of the reports, headings aside"
        by_name = {row["step"]: row for row in rows[1:]}
        indication = by_name["skipped: section 'indication'"]
        assert indication["dropped"] >= 2
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

    def test_progress_ends_at_its_total(self, tiny_tree, tmp_path):
        seen = []
        prepare(
            tiny_tree.root, tmp_path / "o", SMALL, workers=2, progress=lambda *s: seen.append(s)
        )
        assert seen[-1] == (8, 8)
        assert seen == sorted(seen)


class TestDropped:
    def test_an_unreadable_image_is_rejected_and_never_a_zero_row(self, tiny_tree, tmp_path):
        for name in ("a", "d"):
            path = tiny_tree.image(name)
            path.write_bytes(path.read_bytes()[:-300])
        result = prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1)
        assert result.images["image_id"].tolist() == ["b", "e"]
        assert (result.pixels.reshape(2, -1).max(axis=1) == 255).all()
        rejected = pd.read_csv(result.folder / "rejected.csv")
        assert rejected["image_id"].tolist() == ["a", "d"]
        assert rejected["reason"].str.contains("truncated or damaged").all()
        assert counts(result)["image is readable"] == (2, 2)
        assert set(result.sentences["study_id"]) == {"102", "104"}

    def test_an_empty_report_is_counted_and_listed(self, tiny_tree, tmp_path):
        tiny_tree.report("101").write_text(" \n")
        tiny_tree.report("103").unlink()
        result = prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1)
        assert counts(result)["report is not empty"] == (2, 1)
        assert counts(result)["study has a report"] == (3, 1)
        (row,) = pd.read_csv(result.folder / "rejected.csv").itertuples()
        assert row.image_id == "a"
        assert row.reason.endswith("s101.txt: the report is empty.")

    def test_a_missing_image_file_of_a_partial_download_is_counted(self, tiny_tree, tmp_path):
        tiny_tree.image("e").unlink()
        result = prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1)
        assert counts(result)["image file is there"] == (3, 1)

    @pytest.mark.parametrize(
        ("damage", "sentence"),
        [
            (lambda t: [p.unlink() for p in t.root.glob("files/*/*/*/*")], "'image file is there'"),
            (
                lambda t: [p.write_text("\n") for p in t.root.glob("files/*/*/s*.txt")],
                "'report is not empty' dropped 4 of 4 studies; .*s101.txt: the report is empty",
            ),
            (
                lambda t: [p.write_text("text") for p in t.root.glob("files/*/*/*/*")],
                "'image is readable' dropped 4 of 4 images; .*a.dcm: this is not a DICOM",
            ),
        ],
    )
    def test_nothing_left_names_the_step_that_dropped_most(
        self, tiny_tree, tmp_path, damage, sentence
    ):
        damage(tiny_tree)
        with pytest.raises(UserError, match=sentence):
            prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1)
        assert [path.name for path in tmp_path.iterdir()] == ["mimic"]


class TestManifest:
    def test_an_empty_report_names_file_and_row(self, tmp_path, write_dicom):
        write_dicom(tmp_path / "in" / "a.dcm", np.arange(256, dtype=np.uint16).reshape(16, 16))
        (tmp_path / "in" / "manifest.csv").write_text("image,report\na.dcm, \n")
        with pytest.raises(UserError, match=r"manifest\.csv, row 2: the report is empty"):
            prepare(tmp_path / "in", tmp_path / "o", SMALL, workers=1)

    def test_a_patient_in_two_splits_stops(self, tmp_path, write_dicom):
        for name in "ab":
            write_dicom(tmp_path / "in" / f"{name}.dcm", np.eye(16, dtype=np.uint8))
        rows = "image,report,patient_id,split\na.dcm,x,secret,train\nb.dcm,y,secret,test\n"
        (tmp_path / "in" / "manifest.csv").write_text(rows)
        with pytest.raises(
            UserError, match=r"row 3: the patient .* test .* train .*row 2"
        ) as caught:
            prepare(tmp_path / "in", tmp_path / "o", SMALL, workers=1)
        assert "secret" not in str(caught.value)

    def test_the_real_set_is_prepared_whole(self, shared_data, tmp_path):
        result = prepare(shared_data / "real_cxr", tmp_path / "o", SMALL, workers=2)
        assert len(result) == 215
        assert result.meta["counts"]["images_by_split"] == {
            "train": 160,
            "validate": 24,
            "test": 31,
        }
        assert len(result.phrases) == 430
        text = ("sentences", "words")
        assert all(r["dropped"] == 0 for r in result.funnel if not r["unit"].startswith(text))
        # "Left lung." is right of "Right lung." on a radiograph that is not mirrored.
        centre = result.phrases.assign(x=[b[0][0] + b[0][2] / 2 for b in result.phrases["boxes"]])
        wide = centre.pivot_table(index="image_id", columns="text", values="x")
        assert (wide["Left lung."] > wide["Right lung."]).mean() > 0.95


def test_the_split_of_the_annotations_is_kept(tiny_tree, tmp_path):
    path = next(tiny_tree.root.glob("MS_CXR*.json"))
    content = json.loads(path.read_text())
    for annotation in content["annotations"]:
        annotation["split"] = "test"
    path.write_text(json.dumps(content))
    result = prepare(tiny_tree.root, tmp_path / "o", SMALL, workers=1)
    assert result.phrases["split"].tolist() == ["test"]


def test_reports_alone_make_a_set_of_sentences(shared_data, tmp_path):
    out, source = tmp_path / "o", tmp_path / "openi"
    source.mkdir()  # without the images that lie beside the archive
    name = "NLMCXR_reports.tgz"
    with (
        tarfile.open(shared_data / "openi" / name) as real,
        tarfile.open(source / name, "w") as few,
    ):
        for member in islice(real, 400):
            few.addfile(member, real.extractfile(member) if member.isfile() else None)
    result = prepare(source, out, SMALL, workers=2)
    assert len(result) == 0
    assert result.pixels.shape == (0, 32, 32)
    assert len(result.studies) > 300
    assert set(result.sentences["study_id"]) == set(result.studies["study_id"])
    manifest = pd.read_parquet(out / "manifest.parquet")
    assert manifest["study_id"].tolist() == result.studies["study_id"].tolist()


class TestOutput:
    def test_the_bytes_do_not_depend_on_the_number_of_workers(
        self, small_phantom, small_prepared, tmp_path
    ):
        prepare(small_phantom, tmp_path / "3", SMALL, workers=3)
        assert set_files(tmp_path / "3") == set_files(small_prepared)

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

    def test_a_failed_run_leaves_an_older_set_alone(self, tiny_tree, tmp_path):
        out = tmp_path / "o"
        before = prepare(tiny_tree.root, out, SMALL, workers=1).content_hash
        for path in tiny_tree.root.glob("files/*/*/*/*"):
            path.write_bytes(b"damaged")
        with pytest.raises(UserError, match="nothing is left"):
            prepare(tiny_tree.root, out, SMALL, workers=1, overwrite=True)
        assert PreparedSet.open(out).content_hash == before


class TestPhantom:
    def test_the_set_follows_the_tables(self, small_phantom, small_prepared):
        prepared = PreparedSet.open(small_prepared)
        metadata = pd.read_csv(small_phantom / "mimic-cxr-2.0.0-metadata.csv.gz", dtype=str)
        split = pd.read_csv(small_phantom / "mimic-cxr-2.0.0-split.csv.gz", dtype=str)
        joined = metadata.merge(split, on="dicom_id").set_index("dicom_id")
        frontal = joined[joined["ViewPosition"].isin(["AP", "PA"])]
        images = prepared.images.set_index("image_id")
        assert set(images.index) <= set(frontal.index)
        assert len(images) >= 0.95 * len(frontal)
        given = frontal.loc[images.index, "split"]
        moved = images["split"] != given
        assert (images["split"][moved] == "held_out").all()
        rows = frontal.loc[images.index]
        assert (images["height"] == rows["Rows"].astype(int)).all()
        assert (images["width"] == rows["Columns"].astype(int)).all()

    def test_no_patient_with_boxes_is_in_training(self, small_prepared):
        prepared = PreparedSet.open(small_prepared)
        images = prepared.images
        boxed = images["image_id"].isin(prepared.phrases["image_id"])
        training = images.loc[images["split"].isin(["train", "validate"]), "patient_id"]
        assert boxed.any()
        assert not set(images.loc[boxed, "patient_id"]) & set(training)

    def test_rows_are_the_images_of_their_files(self, small_phantom, small_prepared):
        prepared = PreparedSet.open(small_prepared)
        paths = {i.image_id: i.path for i in detect(small_phantom).images()}
        for row in range(0, len(prepared), 8):
            image = prepare_image(
                read_image(paths[prepared.images["image_id"][row]]), prepared.settings
            )
            np.testing.assert_array_equal(prepared.pixels[row], image)
            geometry = SquareGeometry(
                *prepared.images.loc[row, ["height", "width"]], *[prepared.settings.size] * 2
            )
            inside = geometry.box_to_model([0, 0, geometry.width, geometry.height])
            assert inside.max() <= prepared.settings.size
