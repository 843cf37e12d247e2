"""The tree that `generate` writes: reproducible, parallel, MIMIC-shaped, split by patient."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pydicom
import pytest
from pydantic import ValidationError

from medclip_debias.config import settings_hash
from medclip_debias.errors import UserError
from medclip_debias.phantom import PhantomSettings, generate
from medclip_debias.phantom.catalogue import CLASS_NAMES
from medclip_debias.phantom.truth import agreement_matrix, agrees, statement_from_json

SMALL = PhantomSettings(
    studies=60, seed=1, min_side=64, max_side=80, lateral_share=0.2, blank_view_share=0.1
)
FEW = SMALL.model_copy(update={"studies": 20})


def digests(root: Path) -> dict[str, str]:
    return {
        str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file()
    }


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("phantom") / "tree"
    generate(out, SMALL, workers=1)
    return out


def test_worker_count_changes_no_byte(tree: Path, tmp_path: Path) -> None:
    generate(tmp_path / "again", SMALL, workers=2)
    assert digests(tmp_path / "again") == digests(tree)


def test_the_settings_keep_the_hash_that_earlier_phantoms_hold() -> None:
    assert settings_hash(PhantomSettings()) == "6d46083d67b820f7"
    hospital = PhantomSettings(studies=100, seed=3, format="jpg", regime="hospital")
    assert settings_hash(hospital) == "831a9d2c465684b4"


def test_counts_and_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    root = tmp_path / "t"
    counts = generate(root, FEW, lambda a, b: seen.append((a, b)), workers=1)
    assert seen[-1] == (20, 20)
    assert counts["images"] == len(list(root.rglob("*.dcm")))
    assert counts["studies"] == len(list(root.rglob("s*.txt"))) == 20
    assert not list(root.parent.glob(".*")), "no partial folder stays behind"


def test_a_folder_that_holds_something_is_refused_and_a_failure_leaves_nothing(
    tmp_path: Path,
) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "t", FEW, stop, workers=1)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(UserError, match="not an empty folder"):
        generate(tmp_path, FEW, workers=1)
    assert (tmp_path / "mine.txt").read_text() == "keep me"


def test_ids_and_paths_are_mimic_like_and_no_patient_is_in_two_splits(tree: Path) -> None:
    records = pd.read_csv(tree / "cxr-record-list.csv.gz", dtype=str)
    for row in records.itertuples():
        assert re.fullmatch(r"1\d{7}", row.subject_id)
        assert re.fullmatch(r"5\d{7}", row.study_id)
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{8}){4}", row.dicom_id)
        folder = f"files/p{row.subject_id[:2]}/p{row.subject_id}/s{row.study_id}"
        assert row.path == f"{folder}/{row.dicom_id}.dcm"
        assert (tree / row.path).is_file()
        assert (tree / f"{folder}.txt").is_file()
    assert records.dicom_id.is_unique
    table = pd.read_csv(tree / "mimic-cxr-2.0.0-split.csv.gz")
    assert table.groupby("subject_id").split.nunique().max() == 1
    assert set(table.split) == {"train", "validate", "test"}
    assert table.study_id.nunique() > table.subject_id.nunique(), "some patients return"


def test_dicom_is_twelve_bit_and_some_is_inverted(tree: Path) -> None:
    metadata = pd.read_csv(tree / "mimic-cxr-2.0.0-metadata.csv.gz", keep_default_na=False)
    by_id = metadata.set_index("dicom_id")
    inverted = windowed = 0
    paths = sorted(tree.rglob("*.dcm"))
    for path in paths:
        ds = pydicom.dcmread(path)
        pixels = ds.pixel_array
        row = by_id.loc[path.stem]
        assert (ds.BitsAllocated, ds.BitsStored, ds.HighBit) == (16, 12, 11)
        assert pixels.max() <= 4095
        assert pixels.max() > 255
        assert pixels.shape == (row.Rows, row.Columns)
        assert ds.ViewPosition == row.ViewPosition
        assert ds.PatientID == f"p{row.subject_id}"
        # Outside the body nothing stops the beam: black on display, in either polarity.
        shown = 4095.0 - pixels if ds.PhotometricInterpretation == "MONOCHROME1" else pixels
        assert shown[:3, :3].mean() < shown[pixels.shape[0] // 2].mean()
        inverted += ds.PhotometricInterpretation == "MONOCHROME1"
        windowed += "WindowCenter" in ds
    # 20% and 40% by design; bounds of four binomial standard deviations
    for count, share in ((inverted, 0.2), (windowed, 0.4)):
        assert abs(count / len(paths) - share) < 4 * np.sqrt(share * (1 - share) / len(paths))


def test_true_sentences_are_the_reports_and_eta_the_share_of_training_images_that_agree(
    tree: Path,
) -> None:
    images = pd.read_parquet(tree / "truth" / "images.parquet")
    train = images[(images.split == "train") & (images.view != "LATERAL")]
    present = [{n for n in CLASS_NAMES if row[n]} for _, row in train.iterrows()]
    sentences = pd.read_parquet(tree / "truth" / "sentences.parquet")
    texts = {p.stem[1:]: " ".join(p.read_text().split()) for p in tree.rglob("s*.txt")}
    assert all(row.text in texts[row.study_id] for row in sentences.itertuples())
    for row in sentences.drop_duplicates("statement").itertuples():
        statement = statement_from_json(row.statement)
        share = np.mean([agrees(statement, findings) for findings in present])
        assert row.eta_true == pytest.approx(share)


def test_a_report_agrees_with_its_own_image_unless_mismatched(tree: Path, tmp_path: Path) -> None:
    sentences = pd.read_parquet(tree / "truth" / "sentences.parquet")
    assert sentences.agrees.all()
    noisy = FEW.model_copy(update={"report_noise": 1.0})
    generate(tmp_path / "t", noisy, workers=1)
    truth = pd.read_parquet(tmp_path / "t" / "truth" / "sentences.parquet")
    images = pd.read_parquet(tmp_path / "t" / "truth" / "images.parquet")
    test = truth.study_id.isin(images.study_id[images.split == "test"])
    assert truth.agrees[test].all(), "the test set keeps its own reports"
    assert truth.agrees[~test].mean() < 0.95


def test_agreement_matrix_equals_single_answers(tree: Path) -> None:
    images = pd.read_parquet(tree / "truth" / "images.parquet")
    findings = images[list(CLASS_NAMES)].to_numpy()
    sentences = pd.read_parquet(tree / "truth" / "sentences.parquet")
    statements = [statement_from_json(s) for s in sentences.statement.unique()]
    matrix = agreement_matrix(statements, findings)
    for t in range(0, len(statements), 7):
        for n in range(0, len(findings), 5):
            names = [c for c, yes in zip(CLASS_NAMES, findings[n], strict=True) if yes]
            assert matrix[t, n] == agrees(statements[t], names)


def test_labels_are_the_true_findings_or_what_an_honest_report_says(tree: Path) -> None:
    images = pd.read_parquet(tree / "truth" / "images.parquet").drop_duplicates("study_id")
    labels = pd.read_csv(tree / "mimic-cxr-2.1.0-test-set-labeled.csv", dtype={"study_id": str})
    tests = images[images.split == "test"].set_index("study_id")
    assert set(labels.study_id) == set(tests.index)
    effusion = tests[[c for c in CLASS_NAMES if c.startswith("effusion")]].any(axis=1)
    assert (labels.set_index("study_id")["Pleural Effusion"] == effusion.astype(int)).all()
    assert "Airspace Opacity" in labels
    labels = pd.read_csv(tree / "mimic-cxr-2.0.0-chexpert.csv.gz", dtype={"study_id": str})
    joined = labels.merge(images, on="study_id")
    ptx = joined[[c for c in CLASS_NAMES if c.startswith("pneumothorax")]].any(axis=1)
    assert ptx[joined["Pneumothorax"] == 1].all()
    values = labels.drop(columns=["subject_id", "study_id"]).to_numpy().ravel()
    assert set(values[~np.isnan(values)]) == {-1.0, 0.0, 1.0}
    assert len(labels.columns) == 16


def test_settings_say_what_is_wrong() -> None:
    with pytest.raises(ValidationError, match="min_side 200 is larger than max_side 100"):
        PhantomSettings(min_side=200, max_side=100)
    with pytest.raises(ValidationError, match="did you mean 'edema_mild'"):
        PhantomSettings(marker_class="edema_mil")
    hospital = PhantomSettings(regime="hospital", boilerplate=0.1)
    assert hospital.boilerplate == 0.1
    assert hospital.negation_single > PhantomSettings().negation_single
