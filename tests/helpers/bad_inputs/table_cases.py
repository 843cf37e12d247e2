"""Manifests, MIMIC-CXR's tables, label tables: what a spreadsheet or a script makes of them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

from bad_inputs.case import Counted, case, cases
from bad_inputs.folder_cases import flip
from bad_inputs.world import PATIENT, REPORT, STUDY, World

AREA = "manifest"


def _bytes(world: World, change: Callable[[bytes], bytes]) -> list[str]:
    path = world.manifest()
    path.write_bytes(change(path.read_bytes()))
    return world.prepare(path)


cases(
    AREA,
    _bytes,
    {
        "an empty file": lambda _: b"",
        "a header and no row": lambda text: text.splitlines()[0] + b"\n",
        "no header: a name in two cells": lambda text: b"Zebulon,Zebulon,Quackenbush\n" + text,
        "text cut off inside a quoted cell": lambda text: text[: len(text) // 2],
        "two columns of one name": lambda text: text.replace(b"study_id", b"patient_id", 1),
        "a column 'Image' beside 'image'": lambda text: text.replace(b"Edema", b"Image", 1),
        "column 'image' missing": lambda text: text.replace(b"image", b"picture", 1),
        "column 'report' missing": lambda text: text.replace(b"report", b"note", 1),
        "zero bytes inside": lambda text: text.replace(b"clear", b"cl\x00ear"),
        "UTF-16, as Excel saves 'Unicode text'": lambda text: text.decode().encode("utf-16"),
        "semicolons, a byte order mark and CRLF": Counted(
            "", lambda text: b"\xef\xbb\xbf" + text.replace(b",", b";").replace(b"\n", b"\r\n")
        ),
    },
)
cases(
    AREA,
    lambda world, **cells: world.prepare(world.manifest(**cells)),
    {
        "a blank image cell": {"image": ""},
        "an image that is not there": {"image": "images/Quackenbush.png"},
        "a folder by a patient's name": {"image": f"p{PATIENT}/1.png"},
        "a patient id of blanks": {"patient_id": "   "},
        "a split by another name": {"split": "Zebulon"},
        "a label of 2": {"Edema": "2"},
        "a patient in two splits": {"patient_id": str(int(PATIENT) + 4)},
        "one file under two spellings (./images/1.png)": {"image": "./images/1.png"},
        "an id 'nan'": {"patient_id": "nan"},
    },
)
cases(
    AREA,
    lambda world, *words: world.prepare(world.manifest(), *words),
    {"--views of a view that no image has": ("--views", "Zebulon")},
)


def _float_ids(rows: list[dict[str, str]]) -> None:
    rows[2] |= {"patient_id": rows[1]["patient_id"] + ".0", "study_id": rows[1]["study_id"] + ".0"}
    rows[2] |= {"report": rows[1]["report"], "Edema": rows[1]["Edema"]}


def _many_missing(rows: list[dict[str, str]]) -> None:
    rows += [rows[1] | {"image": f"images/x{n}.png", "study_id": f"9{n}"} for n in range(30)]


def _printed_reports(rows: list[dict[str, str]]) -> None:
    """Reports as programs print them: a word for blank, bytes, marks of line ends, nothing."""
    printed = ("nan", repr(REPORT.encode()), REPORT.replace("\n", "\\n"), "")
    for row, report in zip(rows, printed, strict=False):
        row["report"] = report


def _with_rows(world: World, change: Callable[[list[dict[str, str]]], object]) -> list[str]:
    rows = world.rows()
    change(rows)
    return world.prepare(world.manifest(rows))


cases(
    AREA,
    _with_rows,
    {
        "ids written as floats in one row (19876544.0)": _float_ids,
        "thirty images missing at once": _many_missing,
        "two patients share a study": lambda rows: rows[1].update(study_id=rows[2]["study_id"]),
        "a study of two reports": lambda rows: rows[1].update(
            rows[0], image="images/1.png", report="Quackenbush."
        ),
        "a study of two labels": lambda rows: rows[1].update(
            rows[0], image="images/1.png", Edema="1"
        ),
        "reports without a word": lambda rows: [row.update(report="", Edema="") for row in rows],
        "reports as programs print them": Counted(
            r"(?s)(?=.*1 reports are a program's word for blank)(?=.*Python's bytes)"
            r"(?=.*the two characters '\\n').*\"report is not empty\", \"kept\": 4",
            _printed_reports,
        ),
    },
)


def _parquet(world: World, cut: int | None = None, **names: str) -> list[str]:
    import pandas as pd

    path = world.here / "manifest.parquet"
    pd.DataFrame(world.rows()).rename(columns=names).to_parquet(path)
    path.write_bytes(path.read_bytes()[:cut])
    return world.prepare(path)


cases(
    AREA,
    _parquet,
    {
        "a Parquet file cut off": -40,
        "Parquet columns by a patient's name": {"image": "Zebulon", "report": PATIENT},
    },
)


@case(AREA, "beside the tables of a release")
def _beside_a_release(world: World) -> list[str]:
    path = world.manifest()
    path.with_name("Data_Entry_2017.csv").write_text("Image Index,Patient ID,Finding Labels\n")
    return world.prepare(path.parent)


@case(AREA, "every image unreadable")
def _all_unreadable(world: World) -> list[str]:
    path = world.manifest()
    for picture in (world.here / "images").iterdir():
        picture.write_bytes(b"no image")
    return world.prepare(path)


# ------------------------------------------------------------------------------- MIMIC-CXR

TREE = "MIMIC-CXR folder"


def _tree(world: World, pattern: str, damage: Callable[[Path], object]) -> list[str]:
    """A tree whose first file of a pattern is damaged."""
    tree = world.copy("tree")
    damage(sorted(tree.glob(pattern))[0])
    return world.prepare(tree)


def _text(change: Callable[[str], str]) -> Callable[[Path], object]:
    """Change a table that is packed."""

    def damage(path: Path) -> None:
        text = gzip.decompress(path.read_bytes()).decode()
        path.write_bytes(gzip.compress(change(text).encode()))

    return damage


def _rows(change: Callable[[list[str]], list[str]]) -> Callable[[Path], object]:
    def changed(text: str) -> str:
        head, *rows = text.splitlines()
        return "\n".join([head, *change(rows)]) + "\n"

    return _text(changed)


def _incomplete(files: Path) -> None:
    """Without the images of three studies, a report, the text of one, and the name of a label."""
    for place in sorted(files.glob("*/*/s*/"))[:3]:
        for path in place.glob("*.jpg"):
            path.unlink()
    reports = sorted(files.glob("*/*/s*.txt"))
    reports[-1].write_bytes(bytes(range(256)))
    reports[-2].unlink()
    _text(lambda text: text.replace("Edema", "Oedema", 1))(next(files.parent.glob(LABELS)))


METADATA, SPLIT, LABELS = "*metadata*", "*split*", "*chexpert*"
cases(
    TREE,
    _tree,
    {
        "metadata with a row twice": (METADATA, _rows(lambda rows: [*rows, rows[0]])),
        "metadata with cells one to the right": (
            *(METADATA, _rows(lambda rows: [f"Quackenbush,{rows[0].rpartition(',')[0]}"])),
        ),
        "metadata whose gzip has a flipped bit": (METADATA, lambda path: flip(path, 4)),
        "split table of other images": (SPLIT, _rows(lambda rows: ["x" + row for row in rows])),
        "no split table": (SPLIT, Path.unlink),
        "images, reports and labels that lack some": Counted(
            '(?s)(?=.*image file is there", "kept": 38)(?=.*"report can be read")'
            '(?=.*"study has a report").*Oedema',
            ("files", _incomplete),
        ),
    },
)

# -------------------------------------------------------------------- label tables, evaluate

cases(
    "label table (evaluate --labels)",
    lambda world, text: world.evaluate("--labels", str(world.file("labels.csv", text))),
    {
        "no column with ids": "Edema\n1\n",
        "ids of another set": f"study_id,Edema,Pneumonia\n{STUDY},1,0\n",
        "a study twice, with other labels": f"study_id,Edema\n{STUDY},1\n{STUDY},0\n",
    },
)
