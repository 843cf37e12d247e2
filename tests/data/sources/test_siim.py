"""SIIM-ACR Pneumothorax: its own run lengths, joined masks, patients and views of the headers."""

import shutil

import numpy as np

from medclip_debias.config import PrepareSettings
from medclip_debias.data.masks import decode
from medclip_debias.data.prepare import prepare
from medclip_debias.data.prepare.reading import Reading
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.splits import seeded_split
from tests.data.sources.counts import steps

A, B, C = (f"1.2.276.0.7230010.3.1.4.8323329.{n}.1517875201.850819" for n in (6904, 7, 8))


def challenge(pixels):
    """The challenge's run lengths by its description: from the end of the run before."""
    columns = pixels.T.ravel()
    words, last, start = [], 0, None
    for at, inside in enumerate([*columns, False]):
        if inside and start is None:
            start = at
        elif not inside and start is not None:
            words += [start - last, at - start]
            last, start = at, None
    return " ".join(map(str, words))


def mask(*boxes, shape=(40, 48)):
    pixels = np.zeros(shape, dtype=bool)
    for x, y, width, height in boxes:
        pixels[y : y + height, x : x + width] = True
    return pixels


def write(folder, rows, write_dicom, patients=(("a", "PA"), ("a", "AP"), ("c", "PA"))):
    # The name of the second column begins with a blank, and so do its cells.
    text = "\n".join(["ImageId, EncodedPixels", *(f"{name}, {cell}" for name, cell in rows), ""])
    (folder / "train-rle.csv").write_text(text)
    names = list(dict.fromkeys(name for name, _ in rows))
    for name, (patient, view) in zip(names, patients, strict=False):
        path = folder / "dicom-images-train" / f"{name}1" / f"{name}2" / f"{name}.dcm"
        path.parent.mkdir(parents=True, exist_ok=True)
        array = np.random.default_rng(1).integers(0, 255, (40, 48)).astype(np.uint8)
        write_dicom(path, array, PatientID=patient, ViewPosition=view)
    return folder


def test_masks_of_an_image_are_joined_and_boxed(tmp_path, write_dicom):
    one, two, three = mask((3, 4, 5, 6)), mask((3, 9, 5, 4)), mask((30, 0, 2, 40), (40, 7, 1, 1))
    rows = [(A, challenge(one)), (A, challenge(two)), (B, "-1"), (C, challenge(three))]
    source = detect(write(tmp_path, rows, write_dicom))
    assert source.kind == "siim"
    first, second = source.phrases()
    assert (first.image_id, first.category, first.text) == (A, "Pneumothorax", "Pneumothorax.")
    assert first.boxes == ((3.0, 4.0, 5.0, 9.0),)
    assert second.boxes == ((30.0, 0.0, 2.0, 40.0), (40.0, 7.0, 1.0, 1.0))
    assert first.annotated_size == (48, 40)
    assert np.array_equal(decode(first.mask), one | two)
    assert np.array_equal(decode(second.mask), three)
    assert {s.study_id: s.labels["Pneumothorax"] for s in source.studies()} == {A: 1, B: 0, C: 1}
    assert all(kept == before for kept, before in steps(source).values())


def test_patients_and_views_are_those_of_the_headers(tmp_path, write_dicom):
    write(tmp_path, [(A, "-1"), (B, "-1"), (C, "-1")], write_dicom)
    next(tmp_path.rglob(f"{C}.dcm")).unlink()  # and it is then a patient of its own
    (tmp_path / "train-rle.csv").rename(tmp_path / "stage_2_train.csv")
    (tmp_path / "dicom-images-train").rename(tmp_path / "stage_2_images")
    source = detect(tmp_path, split_seed=5)
    found = [(i.patient_id, i.view, i.split, i.path.is_file()) for i in source.images()]
    assert found == [
        ("a", "PA", seeded_split("a", 5), True),
        ("a", "AP", seeded_split("a", 5), True),
        (C, "FRONTAL", seeded_split(C, 5), False),
    ]
    assert "1 images have no header that names a patient" in " ".join(source.describe())


def test_what_is_odd_in_the_runs_is_counted(tmp_path, write_dicom):
    good, leaves = challenge(mask((3, 4, 5, 6))), "1 1 99999999 1"
    rows = [(A, good), (A, good), (A, leaves), (B, "1 x"), (B, "-1"), (C, "-1")]
    source = detect(write(tmp_path, rows, write_dicom))
    assert steps(source) == {
        "row of train-rle.csv is not a repeat": (5, 6),
        "-1 stands alone (else the mask counts)": (4, 5),
        "mask of train-rle.csv can be read and fits its image": (1, 3),
    }
    assert {s.study_id: s.labels["Pneumothorax"] for s in source.studies()} == {A: 1, B: 1, C: 0}
    assert [p.boxes for p in source.phrases()] == [((3.0, 4.0, 5.0, 6.0),)]


def test_a_real_file_of_it_is_prepared_with_its_mask(tmp_path, shared_data):
    file = next((shared_data / "dicom").glob("*6904*.dcm"))
    pixels = mask((100, 200, 300, 400), shape=(1024, 1024))
    pixels[200, 100] = False  # no rectangle
    (tmp_path / "train-rle.csv").write_text(f"ImageId, EncodedPixels\n{A}, {challenge(pixels)}\n")
    place = tmp_path / "dicom-images-train" / "1" / "2" / f"{A}.dcm"
    place.parent.mkdir(parents=True)
    shutil.copy(file, place)
    patient = detect(tmp_path).images()[0].patient_id
    seed = next(n for n in range(999) if seeded_split(patient, n) == "test")
    how = Reading(split_seed=seed)
    out = prepare(tmp_path, tmp_path / "set", PrepareSettings(size=64), reading=how, workers=1)
    assert out.images["view"].tolist() == ["PA"]
    assert out.phrases["boxes"].iloc[0] == [[100.0, 200.0, 300.0, 400.0]]
    assert np.array_equal(decode(out.masks[f"{A}/1"]), pixels)
