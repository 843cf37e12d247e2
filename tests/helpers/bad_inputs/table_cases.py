"""Manifests, MIMIC-CXR's tables, label tables: what a spreadsheet or a script makes of them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

from bad_inputs.case import case, cases, counted, leads
from bad_inputs.folder_cases import flip, folder, halve
from bad_inputs.world import PATIENT, REPORT, STUDY, World

AREA = "manifest"
EITHER = ("refused", "counted")


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
        "no header: the first row is a patient's": lambda text: text.split(b"\n", 1)[1],
        "no header: a name in two cells": lambda text: b"Zebulon,Zebulon,Quackenbush\n" + text,
        "a header of a name in two cases": lambda text: (
            b"image,report,Zebulon,ZEBULON,a,b,c\n" + text.split(b"\n", 1)[1]
        ),
        "a web page saved as CSV": lambda _: b"<!DOCTYPE html><html><body>Zebulon</body></html>\n",
        "a PNG by the name of a table": lambda _: b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4,
        "text cut off inside a quoted cell": lambda text: text[: len(text) // 2],
        "a row with a cell too many": lambda text: text + b"a,b,c,d,e,f,g,h,i,j\n",
        "two columns of one name": lambda text: text.replace(b"study_id", b"patient_id", 1),
        "a column 'Image' beside 'image'": lambda text: text.replace(b"Edema", b"Image", 1),
        "column 'image' missing": lambda text: text.replace(b"image", b"picture", 1),
        "column 'report' missing": lambda text: text.replace(b"report", b"note", 1),
        "bytes that are no UTF-8": lambda text: text.replace(b"clear", b"cl\xe9ar"),
        "zero bytes inside": lambda text: text.replace(b"clear", b"cl\x00ear"),
        "a gzip header and nothing behind it": lambda _: b"\x1f\x8b\x08\x00",
        "UTF-16, as Excel saves 'Unicode text'": leads(
            lambda text: text.decode().encode("utf-16"), "refused", "read"
        ),
        "semicolons between the columns": leads(
            lambda text: text.replace(b",", b";"), "refused", "read"
        ),
        "byte order mark and CRLF": leads(
            lambda text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"), "read"
        ),
    },
)
cases(
    AREA,
    lambda world, **cells: world.prepare(world.manifest(**cells)),
    {
        "a blank image cell": {"image": ""},
        "an image that is not there": {"image": "images/Quackenbush.png"},
        "an image path that is a folder": {"image": "images"},
        "a folder by a patient's name": {"image": f"p{PATIENT}/1.png"},
        "a patient id of blanks": {"patient_id": "   "},
        "a split by another name": {"split": "Zebulon"},
        "a label that is no number": {"Edema": "Quackenbush"},
        "a label of 2": {"Edema": "2"},
        "a label of infinity": {"Edema": "inf"},
        "one image in two rows": {"image": "images/1.png"},
        "a patient in two splits": {"patient_id": str(int(PATIENT) + 4)},
        "one file under two spellings (./images/1.png)": {"image": "./images/1.png"},
        "an id 'nan'": leads({"patient_id": "nan"}, *EITHER, shows="(?i)nan|blank"),
        "a report 'nan'": leads({"report": "nan"}, *EITHER, shows="(?i)'nan'|blank|no text|empty"),
        "a report 'None'": leads({"report": "None"}, *EITHER, shows="(?i)none"),
        "a report printed as Python bytes (b'...')": leads(
            {"report": repr(REPORT.encode())}, *EITHER, shows=r"(?i)b'|bytes"
        ),
        r"a report with literal \n": leads(
            {"report": REPORT.replace("\n", "\\n")}, *EITHER, shows=r"(?i)\\n|line"
        ),
        "an empty report": counted("report is (not )?empty", {"report": ""}),
        "a report of a million letters": leads(
            {"report": "FINDINGS: " + "The heart is large. " * 50_000},
            *("read", "counted", "refused"),
            shows="(?i)long",
        ),
        "control characters in an id": leads(
            {"study_id": "5\x07\x1b[2J"}, *EITHER, shows="(?i)control|id"
        ),
    },
)
cases(
    AREA,
    lambda world, *words: world.prepare(world.manifest(), *words),
    {
        "--views of a view that no image has": ("--views", "Zebulon"),
        "a language that is not supported (--language it)": ("--language", "it"),
    },
)


def _float_ids(rows: list[dict[str, str]]) -> None:
    rows[2] |= {"patient_id": rows[1]["patient_id"] + ".0", "study_id": rows[1]["study_id"] + ".0"}
    rows[2] |= {"report": rows[1]["report"], "Edema": rows[1]["Edema"]}


def _lost_zeros(rows: list[dict[str, str]]) -> None:
    rows[1]["patient_id"], rows[2]["patient_id"] = "00123", "123"


def _many_missing(rows: list[dict[str, str]]) -> None:
    rows += [rows[1] | {"image": f"images/x{n}.png", "study_id": f"9{n}"} for n in range(30)]


def _every_cell(**cells: str) -> Callable[[list[dict[str, str]]], None]:
    return lambda rows: [row.update(cells) for row in rows] and None


def _with_rows(world: World, change: Callable[[list[dict[str, str]]], object]) -> list[str]:
    rows = world.rows()
    change(rows)
    return world.prepare(world.manifest(rows))


cases(
    AREA,
    _with_rows,
    {
        "ids written as floats in one row (19876544.0)": leads(
            _float_ids, "read", "refused", "counted", shows="(?i)id"
        ),
        "ids that lost their leading zeros in one row": leads(
            _lost_zeros, *EITHER, shows="(?i)zero"
        ),
        "thirty images missing at once": _many_missing,
        "two patients share a study": lambda rows: rows[1].update(study_id=rows[2]["study_id"]),
        "a study of two reports": lambda rows: rows[1].update(
            rows[0], image="images/1.png", report="Quackenbush."
        ),
        "a study of two labels": lambda rows: rows[1].update(
            rows[0], image="images/1.png", Edema="1"
        ),
        "two labels of one name": _every_cell(edema="1"),
        "views that are none": _every_cell(view="Quackenbush"),
        "reports without a word": _every_cell(report="", Edema=""),
        "cells one to the right": lambda rows: rows[0].update(
            zip(rows[0], ["Quackenbush", *rows[0].values()], strict=False)
        ),
    },
)


def _parquet(
    world: World, change: Callable[[str], object], cut: int | None = None, **names: str
) -> list[str]:
    import pandas as pd

    path = world.here / "manifest.parquet"
    frame = pd.DataFrame(world.rows())
    frame["report"] = [change(text) for text in frame["report"]]
    frame = frame.rename(columns=names)
    frame.to_parquet(path)
    path.write_bytes(path.read_bytes()[:cut])
    return world.prepare(path)


cases(
    AREA,
    _parquet,
    {
        "a Parquet file cut off": (str, -40),
        "Parquet columns by a patient's name": {
            **{"change": str, "image": "Zebulon", "report": PATIENT}
        },
        "list cells in a Parquet table": leads(lambda text: [text], "refused", "read"),
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
REPORTS = "files/*/*/s*.txt"


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


def _to_the_right(rows: list[str]) -> list[str]:
    return [f"Quackenbush,{rows[0].rpartition(',')[0]}", *rows[1:]]


def _studies(form: str) -> Callable[[Path], object]:
    """Write the ids of studies in another way."""

    def change(row: str) -> str:
        patient, study, *rest = row.split(",")
        return ",".join([patient, form.format(study), *rest])

    return _rows(lambda rows: list(map(change, rows)))


def _without_images(study: Path) -> None:
    for place in sorted(study.parents[3].glob("files/*/*/s*/"))[:3]:
        for path in place.glob("*.jpg"):
            path.unlink()


def _looped_images(study: Path) -> None:
    for path in study.glob("*.jpg"):
        path.unlink()
        path.symlink_to(path)


METADATA, SPLIT, LABELS = "*metadata*", "*split*", "*chexpert*"
cases(
    TREE,
    _tree,
    {
        "metadata without its header": (METADATA, _text(lambda text: text.split("\n", 1)[1])),
        "metadata with a row twice": (METADATA, _rows(lambda rows: [*rows, rows[0]])),
        "metadata with cells one to the right": (METADATA, _rows(_to_the_right)),
        "split table with cells one to the right": (SPLIT, _rows(_to_the_right)),
        "metadata with a row that lacks cells": (
            *(METADATA, _rows(lambda rows: [*rows, rows[0].split(",")[0]])),
        ),
        "split table with a study in two splits": leads(
            (SPLIT, _rows(lambda rows: [*rows, "zz" + rows[0].replace("train", "test")])),
            *EITHER,
            shows="split",
        ),
        "split table with an unknown split": (
            *(SPLIT, _text(lambda text: text.replace("train", "training-part"))),
        ),
        "split table of other images": (SPLIT, _rows(lambda rows: ["x" + row for row in rows])),
        "label ids as floats (50414267.0)": leads((LABELS, _studies("{}.0")), "read", "refused"),
        "label ids with the letter of the folder (s50414267)": leads(
            (LABELS, _studies("s{}")), "read", "refused"
        ),
        "labels of other studies altogether": leads(
            (LABELS, _studies("777{}")), *EITHER, shows='"step": "[^"]*label'
        ),
        "a label column of an unknown name": leads(
            (LABELS, _text(lambda text: text.replace("Edema", "Oedema", 1))),
            *EITHER,
            shows="Oedema",
        ),
        "a label of 7": (
            *(LABELS, _rows(lambda rows: [rows[0].rsplit(",", 1)[0] + ",7", *rows[1:]])),
        ),
        "the label table's gzip cut off": (
            *(LABELS, lambda path: path.write_bytes(path.read_bytes()[:-10])),
        ),
        "the metadata's gzip with a flipped bit": (METADATA, lambda path: flip(path, 4)),
        "no split table": (SPLIT, Path.unlink),
        "the images of three studies missing": counted(
            "image file is there", ("files/*/*/s*/", _without_images)
        ),
        "one report missing": counted("has a report|no report", (REPORTS, Path.unlink)),
        "a report that is empty": counted("(?i)empty", (REPORTS, lambda path: path.write_text(""))),
        "a report that is no text": counted(
            "can be read|cannot be read|usable",
            (REPORTS, lambda path: path.write_bytes(bytes(range(256)))),
        ),
        "a folder in the place of a report": leads(
            (REPORTS, folder),
            *("counted", "refused"),
            shows="has a report|no report|can be read|cannot be read",
        ),
        "a loop of links in the place of an image": counted(
            "is readable|is there", ("files/*/*/s*/", _looped_images)
        ),
        "the boxes' file cut off": ("MS_CXR*", halve),
    },
)

# -------------------------------------------------------------------- label tables, evaluate

cases(
    "label table (evaluate --labels)",
    lambda world, text: world.evaluate("--labels", str(world.file("labels.csv", text))),
    {
        "an empty file": "",
        "no column with ids": "Edema\n1\n",
        "no known class": f"study_id,Oedema\n{STUDY},1\n",
        "ids of another set": f"study_id,Edema,Pneumonia\n{STUDY},1,0\n",
        "a label that is no number": f"study_id,Edema\n{STUDY},Quackenbush\n",
        "a study twice, with other labels": f"study_id,Edema\n{STUDY},1\n{STUDY},0\n",
        "a patient's row in the place of the header": (
            f"{STUDY},Zebulon Quackenbush,1\n{STUDY},x,0\n"
        ),
    },
)
