"""Kaggle's tables of Open-i, and split files: edited, cut off, saved by another program."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from bad_inputs.case import case
from bad_inputs.world import World

AREA, SPLITS = "Kaggle's tables of Open-i", "split file"

_HEADER = "uid,MeSH,Problems,image,indication,comparison,findings,impression\n"
_ROW = "{0},normal,normal,Chest,,,Lungs are clear.,Normal chest.\n"


def _tree(world: World) -> Path:
    folder = world.here / "openi"
    folder.mkdir()
    (folder / "indiana_reports.csv").write_text(_HEADER + "".join(map(_ROW.format, range(1, 5))))
    lines = ["uid,filename,projection"]
    for uid in range(1, 5):
        name = f"{uid}_IM-0001-1001.dcm.png"
        pixels = np.random.default_rng(uid).integers(0, 255, (48, 48)).astype(np.uint8)
        cv2.imwrite(str(folder / name), pixels)
        lines.append(f"{uid},{name},Frontal")
    (folder / "indiana_projections.csv").write_text("\n".join(lines) + "\n")
    return folder


def _reports(change: Callable[[str], str]) -> Callable[[World], list[str]]:
    return _edited("indiana_reports.csv", change)


def _edited(name: str, change: Callable[[str], str]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        path = _tree(world) / name
        path.write_text(change(path.read_text()))
        return world.prepare(path.parent)

    return build


for what, change in {
    "an empty table": lambda _: "",
    "a header and no row": lambda _: _HEADER,
    "column 'findings' missing": lambda text: text.replace("findings", "notes", 1),
    "a uid of blanks": lambda text: text.replace("\n2,", "\n  ,", 1),
    "one uid with two reports": lambda text: text + _ROW.format(1).replace("clear", "dark"),
    "text cut off inside a quoted cell": lambda text: text + '5,normal,normal,Chest,,,"Lungs',
}.items():
    case(AREA, what, "refused")(_reports(change))

case(AREA, "a row that is there twice", "counted", shows="repeats")(
    _reports(lambda text: text + _ROW.format(1))
)
case(AREA, "findings 'nan'", "counted", shows="word for blank")(
    _reports(lambda text: text.replace("Lungs are clear.", "nan", 1))
)
case(AREA, "findings as Python bytes (b'...')", "counted", shows="bytes")(
    _reports(lambda text: text.replace("Lungs are clear.", "b'Lungs are clear.'", 1))
)
case(AREA, "no column MeSH", "counted", shows="0 reports|not indexed")(
    _reports(lambda text: text.replace("MeSH", "Mesh headings", 1))
)
case(AREA, "projections of other files", "counted", shows="image files match no report")(
    _edited("indiana_projections.csv", lambda text: text.replace("_IM-", "_XX-"))
)
case(AREA, "one file with two projections", "refused")(
    _edited("indiana_projections.csv", lambda text: text + text.splitlines()[1][:-7] + "Lateral\n")
)


def _named(body: str) -> str:
    return f"# mine-v1 sha256:{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def _body(ids: range) -> str:
    return "study_id,split\n" + "".join(f"CXR{n},{'train' if n < 4 else 'test'}\n" for n in ids)


def _split(content: str) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        path = world.here / "split.csv"
        path.write_text(content)
        return world.prepare(_tree(world), "--split-file", str(path))

    return build


for what, content in {
    "an empty file": "",
    "no line with name and hash, and no ids": _body(range(1, 5)).replace("study_id", "number"),
    "a row changed under its hash": _named(_body(range(1, 5))).replace("test", "train"),
    "a study of the source missing": _named(_body(range(1, 4))),
    "a study that the source has not": _named(_body(range(1, 6))),
    "a study in two rows": _named(_body(range(1, 5)) + "CXR1,test\n"),
    "a split by another name": _named(_body(range(1, 5)).replace("test", "Zebulon")),
}.items():
    case(SPLITS, what, "refused")(_split(content))


@case(SPLITS, "a seed beside it", "refused")
def _seed(world: World) -> list[str]:
    return [*_split(_named(_body(range(1, 5))))(world), "--split-seed", "3"]


@case(SPLITS, "none there", "refused")
def _none(world: World) -> list[str]:
    return world.prepare(_tree(world), "--split-file", str(world.here / "none.csv"))
