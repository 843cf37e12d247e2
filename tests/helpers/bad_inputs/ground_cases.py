"""Images and sentences to ground: pictures, exports of a PACS, DICOMweb, DICOM results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bad_inputs.case import Counted, case, cases
from bad_inputs.world import World, write_dicom
from coco import write_coco

GROUND = "images and sentences (ground)"
STRUCTURED_REPORT = "1.2.840.10008.5.1.4.1.1.88.33"


def _picture(world: World, *words: str) -> list[str]:
    return world.ground(world.picture("a.png"), words=words)


@case(GROUND, "a folder of files that are no image")
def _notes(world: World) -> list[str]:
    return world.ground(world.file("pictures/notes.txt.bak", "Zebulon Quackenbush").parent)


@case(GROUND, "an image without a suffix in a folder", "")
def _suffixless(world: World) -> list[str]:
    world.picture("pictures/a.png")
    world.picture("pictures/b.png", seed=2).rename(world.here / "pictures" / "b")
    return world.ground(world.here / "pictures")


@case(GROUND, "a linked folder in a folder", "")
def _linked_folder(world: World) -> list[str]:
    world.picture("pictures/a.png")
    world.picture("elsewhere/b.png", seed=2)
    (world.here / "pictures" / "more").symlink_to(world.here / "elsewhere")
    return world.ground(world.here / "pictures")


@case(GROUND, "one unreadable image of two", "skipped")
def _one_of_two(world: World) -> list[str]:
    return world.ground(world.picture("a.png"), world.file("bad.png", b"no image"))


@case(GROUND, "boxes of images that share a name")
def _same_names(world: World) -> list[str]:
    names = [f"patient{n}/s1/view1_frontal.png" for n in (1, 2)]
    entries = [(name, [("Edema.", [1, 1, 9, 9])], (40, 40)) for name in names]
    path = write_coco(world.here / "boxes.json", *entries)
    return world.ground(world.picture("view1_frontal.png"), words=("--boxes", str(path)))


cases(
    GROUND,
    _picture,
    {
        "an empty sentence": ("--text", " "),
        "no rule of suppression in the model's folder": ("--suppress",),
        "kinds of results without a folder": ("--as", "sr"),
    },
)


@case(GROUND, "a rule of suppression of another model")
def _foreign_rule(world: World) -> list[str]:
    model = world.model()
    rule = {"format": 1, "evidence": "score", "threshold": 0.1, "model_hash": "0" * 16}
    world.file("model/suppression.json", rule)
    words = ["--text", "Edema.", "--suppress", "--out", str(world.out)]
    return ["ground", str(model), str(world.picture("a.png")), *words]


@case(GROUND, "a share of sentences kept that is no share (suppression)")
def _no_share(world: World) -> list[str]:
    model = str(world.base.run / "model")
    return ["evaluate", "suppression", model, str(world.base.prepared), "--share", "98"]


# ---------------------------------------------------------------------------- clinical systems


def _dicom(world: World, name: str, **elements: Any) -> Path:
    import numpy as np

    pixels = np.add.outer(np.arange(40) * 5, np.arange(40) * 3).astype(np.uint16)
    ids = {"SOPInstanceUID": "1.2.3.4", "StudyInstanceUID": "1.2.3", "SeriesInstanceUID": "1.2.3.1"}
    return write_dicom(world.here / name, pixels, **ids | elements)


def _export(world: World, radiographs: int) -> list[str]:
    for number in range(radiographs):
        _dicom(world, f"pictures/IM{number}")
    _dicom(world, "pictures/IM9", SOPClassUID=STRUCTURED_REPORT, Modality="SR")
    return world.ground(world.here / "pictures")


def _results(world: World, kinds: str) -> list[str]:
    return _picture(world, "--dicom-out", str(world.out / "back"), "--as", kinds)


def _fetched(world: World, url: str, study: str = "1.2.3") -> list[str]:
    return world.ground(words=("--dicomweb", url, "--study", study))


cases(
    GROUND,
    _export,
    {
        "an export with a structured report": Counted("1 DICOM structured reports", 1),
        "an export of structured reports alone": 0,
    },
)
cases(
    GROUND,
    _results,
    {
        "DICOM results of an image that is no DICOM": Counted("is not a DICOM file", "sr,json"),
        "results of an unknown kind": "sgm",
        "results that hold boxes, without any": "seg",
    },
)
cases(
    GROUND,
    _fetched,
    {
        "a DICOMweb address with a password": "https://Zebulon:Quackenbush@127.0.0.1/dicom-web",
        "a DICOMweb server that does not answer": "http://127.0.0.1:9/dicom-web",
        "a study that is no UID": ("http://127.0.0.1:9/dicom-web", "../../Quackenbush"),
    },
)
