"""Manifests, MIMIC-CXR's tables, label tables: what a spreadsheet or a script makes of them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

from bad_inputs.case import case
from bad_inputs.world import PATIENT, REPORT, STUDY, World

AREA = "manifest"


def _bytes(change: Callable[[bytes], bytes]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        path = world.manifest()
        path.write_bytes(change(path.read_bytes()))
        return world.prepare(path)

    return build


def _cells(**cells: str) -> Callable[[World], list[str]]:
    return lambda world: world.prepare(world.manifest(**cells))


for what, change in {
    "an empty file": lambda _: b"",
    "a header and no row": lambda text: text.splitlines()[0] + b"\n",
    "no header: the first row is a patient's": lambda text: text.split(b"\n", 1)[1],
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
}.items():
    case(AREA, what, "refused")(_bytes(change))

case(AREA, "UTF-16, as Excel saves 'Unicode text'", "refused", "read")(
    _bytes(lambda text: text.decode().encode("utf-16"))
)
case(AREA, "semicolons between the columns", "refused", "read")(
    _bytes(lambda text: text.replace(b",", b";"))
)
case(AREA, "byte order mark and CRLF", "read")(
    _bytes(lambda text: b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
)

for what, cells in {
    "a blank image cell": {"image": ""},
    "an image that is not there": {"image": "images/Quackenbush.png"},
    "an image path that is a folder": {"image": "images"},
    "a patient id of blanks": {"patient_id": "   "},
    "a split by another name": {"split": "Zebulon"},
    "a label that is no number": {"Edema": "Quackenbush"},
    "a label of 2": {"Edema": "2"},
    "a label of infinity": {"Edema": "inf"},
    "one image in two rows": {"image": "images/1.png"},
    "a patient in two splits": {"patient_id": str(int(PATIENT) + 4)},
}.items():
    case(AREA, what, "refused")(_cells(**cells))


case(AREA, "--views of a view that no image has", "refused")(
    lambda world: world.prepare(world.manifest(), "--views", "Zebulon")
)
case(AREA, "one file under two spellings (./images/1.png)", "refused")(
    _cells(image="./images/1.png")
)
case(AREA, "an id 'nan'", "refused", "counted", shows="(?i)nan|blank")(_cells(patient_id="nan"))
case(AREA, "a report 'nan'", "refused", "counted", shows="(?i)'nan'|blank|no text|empty")(
    _cells(report="nan")
)
case(AREA, "a report 'None'", "refused", "counted", shows="(?i)none")(_cells(report="None"))
case(
    AREA, "a report printed as Python bytes (b'...')", "refused", "counted", shows=r"(?i)b'|bytes"
)(_cells(report=repr(REPORT.encode())))
case(AREA, r"a report with literal \n", "refused", "counted", shows=r"(?i)\\n|line")(
    _cells(report=REPORT.replace("\n", "\\n"))
)
case(AREA, "an empty report", "counted", shows="report is (not )?empty")(_cells(report=""))
case(AREA, "a report of 5 million letters", "read", "counted", "refused", shows="(?i)long")(
    _cells(report="FINDINGS: " + "The heart is large. " * 250_000)
)
case(AREA, "a language that is not supported (--language it)", "refused")(
    lambda world: world.prepare(world.manifest(), "--language", "it")
)
case(AREA, "control characters in an id", "refused", "counted", shows="(?i)control|id")(
    _cells(study_id="5\x07\x1b[2J")
)


@case(
    AREA,
    "ids written as floats in one row (19876544.0)",
    "read",
    "refused",
    "counted",
    shows="(?i)id",
)
def _float_ids(world: World) -> list[str]:
    rows = world.rows()
    rows[2] |= {"patient_id": rows[1]["patient_id"] + ".0", "study_id": rows[1]["study_id"] + ".0"}
    rows[2] |= {"report": rows[1]["report"], "Edema": rows[1]["Edema"]}
    return world.prepare(world.manifest(rows))


@case(AREA, "ids that lost their leading zeros in one row", "refused", "counted", shows="(?i)zero")
def _lost_zeros(world: World) -> list[str]:
    rows = world.rows()
    rows[1]["patient_id"], rows[2]["patient_id"] = "00123", "123"
    return world.prepare(world.manifest(rows))


@case(AREA, "thirty images missing at once", "refused")
def _many_missing(world: World) -> list[str]:
    rows = world.rows()
    rows += [rows[1] | {"image": f"images/x{n}.png", "study_id": f"9{n}"} for n in range(30)]
    return world.prepare(world.manifest(rows))


@case(AREA, "two patients share a study", "refused")
def _shared_study(world: World) -> list[str]:
    rows = world.rows()
    rows[1]["study_id"] = rows[2]["study_id"]
    return world.prepare(world.manifest(rows))


@case(AREA, "a Parquet file cut off", "refused")
def _parquet(world: World) -> list[str]:
    import pandas as pd

    path = world.here / "manifest.parquet"
    pd.DataFrame(world.rows()).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-40])
    return world.prepare(path)


@case(AREA, "list cells in a Parquet table", "refused", "read")
def _lists(world: World) -> list[str]:
    import pandas as pd

    path = world.here / "manifest.parquet"
    frame = pd.DataFrame(world.rows())
    frame["report"] = [[text] for text in frame["report"]]
    frame.to_parquet(path)
    return world.prepare(path)


@case(AREA, "every image unreadable", "refused")
def _all_unreadable(world: World) -> list[str]:
    path = world.manifest()
    for picture in (world.here / "images").iterdir():
        picture.write_bytes(b"no image")
    return world.prepare(path)


# ------------------------------------------------------------------------------- MIMIC-CXR

TREE = "MIMIC-CXR folder"
DROPPED_LABELS = '"step": "[^"]*label'
UNREAD = "has a report|no report|can be read|cannot be read"


def _table(pattern: str, change: Callable[[str], str]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        tree = world.copy("tree")
        path = next(tree.glob(pattern))
        text = gzip.decompress(path.read_bytes()).decode()
        path.write_bytes(gzip.compress(change(text).encode()))
        return world.prepare(tree)

    return build


def _rows(change: Callable[[list[str]], list[str]]) -> Callable[[str], str]:
    def whole(text: str) -> str:
        head, *rows = text.splitlines()
        return "\n".join([head, *change(rows)]) + "\n"

    return whole


case(TREE, "metadata without its header", "refused")(
    _table("*metadata*", lambda text: text.split("\n", 1)[1])
)
case(TREE, "metadata with a row twice", "refused")(
    _table("*metadata*", _rows(lambda rows: [*rows, rows[0]]))
)
case(TREE, "metadata with a row that lacks cells", "refused")(
    _table("*metadata*", _rows(lambda rows: [*rows, rows[0].split(",")[0]]))
)
case(TREE, "split table with a study in two splits", "refused", "counted", shows="split")(
    _table("*split*", _rows(lambda rows: [*rows, "zz" + rows[0].replace("train", "test")]))
)
case(TREE, "split table with an unknown split", "refused")(
    _table("*split*", lambda text: text.replace("train", "training-part"))
)
case(TREE, "split table of other images", "refused")(
    _table("*split*", _rows(lambda rows: ["x" + row for row in rows]))
)
case(TREE, "label ids as floats (50414267.0)", "read", "refused")(
    _table("*chexpert*", _rows(lambda rows: [_study(row, "{}.0") for row in rows]))
)
case(TREE, "label ids with the letter of the folder (s50414267)", "read", "refused")(
    _table("*chexpert*", _rows(lambda rows: [_study(row, "s{}") for row in rows]))
)
case(TREE, "labels of other studies altogether", "refused", "counted", shows=DROPPED_LABELS)(
    _table("*chexpert*", _rows(lambda rows: [_study(row, "777{}") for row in rows]))
)
case(TREE, "a label column of an unknown name", "refused", "counted", shows="Oedema")(
    _table("*chexpert*", lambda text: text.replace("Edema", "Oedema", 1))
)
case(TREE, "a label of 7", "refused")(
    _table("*chexpert*", _rows(lambda rows: [rows[0].rsplit(",", 1)[0] + ",7", *rows[1:]]))
)
case(TREE, "the label table's gzip cut off", "refused")(
    lambda world: _cut(world, "*chexpert*", -10)
)
case(TREE, "the metadata's gzip with a flipped bit", "refused")(
    lambda world: _flip(world, "*metadata*")
)


def _study(row: str, form: str) -> str:
    cells = row.split(",")
    cells[1] = form.format(cells[1])
    return ",".join(cells)


def _cut(world: World, pattern: str, at: int) -> list[str]:
    tree = world.copy("tree")
    path = next(tree.glob(pattern))
    path.write_bytes(path.read_bytes()[:at])
    return world.prepare(tree)


def _flip(world: World, pattern: str) -> list[str]:
    tree = world.copy("tree")
    path = next(tree.glob(pattern))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))
    return world.prepare(tree)


def _tree(world: World, change: Callable[[Path], None], *words: str) -> list[str]:
    tree = world.copy("tree")
    change(tree)
    return world.prepare(tree, *words)


def _first(tree: Path, pattern: str) -> Path:
    return next(path for path in sorted(tree.glob(pattern)))


case(TREE, "no split table", "refused")(
    lambda world: _tree(world, lambda tree: _first(tree, "*split*").unlink())
)
case(TREE, "the images of three studies missing", "counted", shows="image file is there")(
    lambda world: _tree(world, _without_images)
)
case(TREE, "one report missing", "counted", shows="has a report|no report")(
    lambda world: _tree(world, lambda tree: _first(tree, "files/*/*/s*.txt").unlink())
)
case(TREE, "a report that is empty", "counted", shows="(?i)empty")(
    lambda world: _tree(world, lambda tree: _first(tree, "files/*/*/s*.txt").write_text(""))
)
case(TREE, "a report that is no text", "counted", shows="can be read|cannot be read|usable")(
    lambda world: _tree(
        world, lambda tree: _first(tree, "files/*/*/s*.txt").write_bytes(bytes(range(256)))
    )
)
case(TREE, "a folder in the place of a report", "counted", "refused", shows=UNREAD)(
    lambda world: _tree(world, _folder_report)
)
case(TREE, "a loop of links in the place of an image", "counted", shows="is readable|is there")(
    lambda world: _tree(world, _looped_image)
)
case(TREE, "the boxes' file cut off", "refused")(
    lambda world: _tree(world, lambda tree: _halve(_first(tree, "MS_CXR*")))
)


def _without_images(tree: Path) -> None:
    for study in sorted(tree.glob("files/*/*/s*/"))[:3]:
        for path in study.glob("*.jpg"):
            path.unlink()


def _folder_report(tree: Path) -> None:
    path = _first(tree, "files/*/*/s*.txt")
    path.unlink()
    path.mkdir()


def _looped_image(tree: Path) -> None:
    for path in _first(tree, "files/*/*/s*/").glob("*.jpg"):
        path.unlink()
        path.symlink_to(path)


def _halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# -------------------------------------------------------------------- label tables, evaluate

LABELS = "label table (evaluate --labels)"


def _labels(text: str, name: str = "labels.csv") -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        path = world.here / name
        path.write_text(text, encoding="utf-8")
        return world.evaluate("--labels", str(path))

    return build


for what, text in {
    "an empty file": "",
    "no column with ids": "Edema\n1\n",
    "no known class": f"study_id,Oedema\n{STUDY},1\n",
    "ids of another set": f"study_id,Edema,Pneumonia\n{STUDY},1,0\n",
    "a label that is no number": f"study_id,Edema\n{STUDY},Quackenbush\n",
    "a study twice, with other labels": f"study_id,Edema\n{STUDY},1\n{STUDY},0\n",
    "a patient's row in the place of the header": f"{STUDY},Zebulon Quackenbush,1\n{STUDY},x,0\n",
}.items():
    case(LABELS, what, "refused")(_labels(text))
