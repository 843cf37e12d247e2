"""Kaggle's tables of Open-i, and split files: edited, cut off, saved by another program."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from bad_inputs.case import Counted, cases
from bad_inputs.world import World

_HEADER = "uid,MeSH,Problems,image,indication,comparison,findings,impression\n"
_ROW = "{0},normal,normal,Chest,,,Lungs are clear.,Normal chest.\n"


def _tree(world: World) -> Path:
    lines = ["uid,filename,projection"]
    for uid in range(1, 5):
        name = f"{uid}_IM-0001-1001.dcm.png"
        pixels = np.random.default_rng(uid).integers(0, 255, (48, 48)).astype(np.uint8)
        world.file(f"openi/{name}", cv2.imencode(".png", pixels)[1].tobytes())
        lines.append(f"{uid},{name},Frontal")
    world.file("openi/indiana_projections.csv", "\n".join(lines) + "\n")
    rows = "".join(map(_ROW.format, range(1, 5)))
    return world.file("openi/indiana_reports.csv", _HEADER + rows).parent


def _edited(
    world: World, change: Callable[[str], str], name: str = "indiana_reports.csv"
) -> list[str]:
    path = _tree(world) / name
    path.write_text(change(path.read_text()))
    return world.prepare(path.parent)


cases(
    "Kaggle's tables of Open-i",
    _edited,
    {
        "text cut off inside a quoted cell": lambda text: text + '5,normal,normal,Chest,,,"Lungs',
        "a header and no row": lambda _: _HEADER,
        "column 'findings' missing": lambda text: text.replace("findings", "notes", 1),
        "one uid with two reports": lambda text: text + _ROW.format(1).replace("clear", "dark"),
        "a row that is there twice": Counted("repeats", lambda text: text + _ROW.format(1)),
        "findings 'nan'": Counted(
            "word for blank", lambda text: text.replace("Lungs are clear.", "nan", 1)
        ),
        "findings as Python bytes (b'...')": Counted(
            "bytes", lambda text: text.replace("Lungs are clear.", "b'Lungs are clear.'", 1)
        ),
        "projections of other files": Counted(
            "image files match no report",
            (lambda text: text.replace("_IM-", "_XX-"), "indiana_projections.csv"),
        ),
        "one file with two projections": (
            lambda text: text + text.splitlines()[1][:-7] + "Lateral\n",
            "indiana_projections.csv",
        ),
    },
)


def _named(body: str) -> str:
    return f"# mine-v1 sha256:{hashlib.sha256(body.encode()).hexdigest()}\n{body}"


def _body(last: int) -> str:
    lines = (f"CXR{n},{'train' if n < 4 else 'test'}\n" for n in range(1, last + 1))
    return "study_id,split\n" + "".join(lines)


def _split(world: World, content: str | None, *words: str) -> list[str]:
    path = world.here / "split.csv"
    if content is not None:
        path.write_text(content)
    return world.prepare(_tree(world), "--split-file", str(path), *words)


cases(
    "split file",
    _split,
    {
        "no line with name and hash, and no ids": _body(4).replace("study_id", "number"),
        "a row changed under its hash": _named(_body(4)).replace("test", "train"),
        "a study that the source has not": _named(_body(5)),
        "a split by another name": _named(_body(4).replace("test", "Zebulon")),
        "a study in two rows": _named(_body(4) + "CXR1,test\n"),
        "a seed beside it": (_named(_body(4)), "--split-seed", "3"),
        "none there": None,
    },
)
