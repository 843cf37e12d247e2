"""VinDr-CXR: DICOM files, labels and boxes of three readers (train) or their consensus (test).

``image_labels_train.csv`` has a row for each image and reader (``rad_id``) and a column for each
finding, ``image_labels_test.csv`` a row an image. ``annotations_*.csv`` have a box a row in pixels
(``x_min`` ... ``y_max``), blank for "No finding". Images are ``train/<image_id>.dicom`` and
``test/<image_id>.dicom``. There are no reports, and no patient ids.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medclip_debias.data.labels import label_name
from medclip_debias.data.records import (
    Annotations,
    Box,
    ImageRecord,
    PhraseRecord,
    Step,
    StudyRecord,
)
from medclip_debias.data.sources.archive import (
    ArchiveSource,
    LabelCells,
    find_table,
    header_of,
    without_repeats,
)
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.label_groups import VINDR, LabelColumns
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.splits import seeded_split
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("train", "test")
READERS, READER_BOXES = "reader_labels", "reader_boxes"
CONSENSUS = "consensus"

_LABELS, _BOXES = "image_labels_{}.csv", "annotations_{}.csv"
_SIZES = "train_meta.csv"
_FOLDERS = (".", "annotations")
_CORNERS = ("x_min", "y_min", "x_max", "y_max")
_SPELLED = {"Other disease": "Other diseases"}  # the test table lacks the letter
_NO_FINDING = "No finding"
_ONLY_HERE = "Aortic enlargement"
_VALUES = {"1": 1.0, "0": 0.0}


@source(
    title="VinDr-CXR",
    looks=f"VinDr-CXR ({_LABELS.format('train')})",
    give="folder of `train/`, `test/` and `annotations/`",
    needs="`image_labels_train.csv` or `image_labels_test.csv`, also in `annotations/`, and the"
    " images; `annotations_*.csv` for boxes",
    takes=("split_seed",),
)
class VindrCxrSource(ArchiveSource):
    """A VinDr-CXR folder.

    A label of train is the majority's; where the readers are equally many for and against, it is
    uncertain. A phrase is the name of a finding that the majority sees, its boxes those of every
    reader. What each reader said is in tables of their own.

    Args:
        root: folder of the images and tables.
        seed: split images by a hash with this seed instead of by the archive's two parts, of
            which a tenth of train becomes validate.

    Raises:
        UserError: a table is missing or broken.
    """

    kind: ClassVar[str] = "vindr_cxr"

    def __init__(self, root: Path, *, seed: int | None = None) -> None:
        super().__init__(root)
        self.seed = seed
        folders = [root / folder for folder in _FOLDERS]
        tables = {part: _find(folders, _LABELS.format(part)) for part in PARTS}
        found = {part: path for part, path in tables.items() if path is not None}
        if not found:
            names = " nor ".join(_LABELS.format(part) for part in PARTS)
            raise UserError(f"{root}: has neither {names}; put one there or in 'annotations'.")
        self._reader_rows: list[tuple[Any, ...]] = []
        self._box_rows: list[tuple[Any, ...]] = []
        self._origins: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        readers: dict[str, dict[str, set[str]]] = {}
        findings: set[str] = set()
        for part, path in found.items():
            findings |= self._read_labels(part, path, readers)
        self._columns = LabelColumns(findings, VINDR)
        majority = self._merge(readers)
        sizes = self._read_sizes(folders)
        for part in found:
            boxes = _find(folders, _BOXES.format(part))
            if boxes is None:
                self.said.append(f"No {_BOXES.format(part)}: no boxes of {part}.")
            else:
                self._read_boxes(part, boxes, majority, sizes)
        self._add_images()
        self._describe(found)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take a folder whose tables have VinDr-CXR's names and columns."""
        if path.is_file():
            return Sure.NO
        tables = (
            table
            for folder in _FOLDERS
            for part in PARTS
            for table in (path / folder).glob(_LABELS.format(part) + "*")
        )
        # VinDr-PCXR, of children, has tables of the same names with other findings.
        known = any({"image_id", _ONLY_HERE} <= set(header_of(table)) for table in tables)
        return Sure.RELEASE if known else Sure.NO

    @classmethod
    def open(cls, path: Path, given: Given) -> VindrCxrSource:
        """Open a folder."""
        return cls(path, seed=given.split_seed)

    def annotations(self) -> list[Annotations]:
        """Return what each reader said: findings, and boxes in pixels of the archive's image."""
        who = (("image_id", "text"), ("reader", "text"), ("finding", "text"))
        image = ("image_id",)
        return [
            Annotations(READERS, "label rows", who, self._reader_rows, image),
            Annotations(READER_BOXES, "boxes", (*who, ("boxes", "boxes")), self._box_rows, image),
        ]

    # ------------------------------------------------------------------------- labels

    def _read_labels(
        self, part: str, path: Path, readers: dict[str, dict[str, set[str]]]
    ) -> set[str]:
        """Add what each reader sees on each image of a part; return the findings' names."""
        table = _read(path, "image_id", self.counted)
        who = [CONSENSUS] * len(table)
        key: str | list[str] = "image_id"
        if "rad_id" in table:
            who, key = [cell or "unnamed" for cell in table["rad_id"]], ["image_id", "rad_id"]
        elif part == "train":
            raise UserError(f"{path}: column 'rad_id' is missing; download the table again.")
        table = table.assign(reader=who)
        table = without_repeats(path, table, key, self.counted, self.said)
        named = {c: _finding(c) for c in table.columns if c not in ("image_id", "rad_id", "reader")}
        cells = LabelCells(path, _VALUES)
        images = table["image_id"].tolist()
        own: list[set[str]] = [set() for _ in images]
        blank = 0
        for column, finding in named.items():
            for at, cell in enumerate(table[column]):
                value = cells.read(cell)
                blank += is_blank(cell)
                if value:
                    own[at].add(finding)
        self.counted += cells.steps()
        if blank:
            total = len(images) * len(named)
            step = f"label cell of {path.name} is filled in (blank counts as 0)"
            self.counted.append((step, "label cells", total - blank, total))
        rows = zip(table.index.tolist(), images, table["reader"], own, strict=True)
        for row, image, reader, findings in rows:
            if self._parts.setdefault(image, part) != part:
                raise UserError(
                    f"{path}, row {row}: its image is in both parts, train and test; download the"
                    " tables again."
                )
            self._origins.setdefault(image, f"{path}, row {row}")
            readers.setdefault(image, {})[reader] = findings
            self._reader_rows += [(image, reader, finding) for finding in sorted(findings)]
        return set(named.values())

    def _merge(self, readers: dict[str, dict[str, set[str]]]) -> dict[str, set[str]]:
        """Make the studies; return the findings that the majority sees on each image."""
        majority: dict[str, set[str]] = {}
        marked = agreed = ties = 0
        for image, own in readers.items():
            votes = Counter(finding for findings in own.values() for finding in findings)
            majority[image] = {name for name, count in votes.items() if 2 * count > len(own)}
            tied = {name for name, count in votes.items() if 2 * count == len(own)}
            marked += len(votes)
            agreed += sum(count == len(own) for count in votes.values())
            ties += len(tied)
            labels = self._columns.values(majority[image] or {_NO_FINDING})
            if not majority[image]:  # each reader sees something else, so neither is a majority's
                labels["No Finding"] = 0.0
            for name, members in self._columns.groups.items():
                if labels[name] != 1.0 and members & tied:
                    labels[name] = -1.0
            labels |= dict.fromkeys((n for n in self._columns.own if n in tied), -1.0)
            split = self._split(image)
            origin = self._origins[image]
            self.study_records.append(StudyRecord(image, image, split, None, labels, origin))
        readers_alike = "every reader of the image sees a finding that one sees"
        self.counted.append((readers_alike, "label rows", agreed, marked))
        if ties:
            step = "readers are not equally many for and against (others: uncertain)"
            self.counted.append((step, "label rows", marked - ties, marked))
        return majority

    def _split(self, image: str) -> str:
        """The archive's test part is test; of its train part, a tenth is validation."""
        if self.seed is not None:
            return seeded_split(image, self.seed)
        if self._parts[image] == "test":
            return "test"
        return "validate" if seeded_split(image) == "validate" else "train"

    # -------------------------------------------------------------------------- boxes

    def _read_boxes(
        self,
        part: str,
        path: Path,
        majority: dict[str, set[str]],
        sizes: dict[str, tuple[int, int]],
    ) -> None:
        table = _read(path, "image_id", self.counted, ("class_name", *_CORNERS))
        table = without_repeats(path, table, list(table.columns), self.counted, self.said)
        found: dict[tuple[str, str], dict[str, list[Box]]] = {}
        blank = unlisted = minority = 0
        readers = table["rad_id"] if "rad_id" in table else [CONSENSUS] * len(table)
        corners = (table[name] for name in _CORNERS)
        for row, image, name, reader, *cells in zip(
            table.index.tolist(),
            *(table["image_id"], table["class_name"], readers),
            *corners,
            strict=True,
        ):
            finding = _finding(name)
            if all(is_blank(cell) for cell in cells):
                blank += 1
            elif self._parts.get(image) != part:
                unlisted += 1
            else:
                box = _box(cells, f"{path}, row {row}")
                own = found.setdefault((image, finding), {})
                own.setdefault(reader or "unnamed", []).append(box)
                minority += finding not in majority[image]
        boxed = len(table) - blank
        listed = boxed - unlisted
        seen = f"most readers see the finding of the box ({path.name})"
        self.counted += [
            (f"row of {path.name} has a box", "rows", boxed, len(table)),
            (f"image of {path.name} is in the labels' table", "boxes", listed, boxed),
            (seen, "boxes", listed - minority, listed),
        ]
        counts: Counter[str] = Counter()
        for (image, finding), own in found.items():
            for reader, boxes in own.items():
                shown = [list(box) for box in boxes]
                self._box_rows.append((image, reader, finding, shown))
            if finding not in majority[image]:
                continue
            counts[image] += 1
            name = f"{image}/{counts[image]}"
            union = tuple(box for boxes in own.values() for box in boxes)
            about = (image, label_name(finding) or finding, f"{finding}.", union)
            phrase = PhraseRecord(name, *about, sizes.get(image), self._split(image))
            self.phrase_records.append(phrase)

    def _read_sizes(self, folders: list[Path]) -> dict[str, tuple[int, int]]:
        """Read the pixels of the archive's images, which come with copies of another size."""
        path = _find(folders, _SIZES)
        if path is None:
            return {}
        table = read_table(path, required=("image_id", "dim0", "dim1"))
        sizes = {}
        columns = (table[name] for name in ("image_id", "dim0", "dim1"))
        for row, image, height, width in zip(table.index.tolist(), *columns, strict=True):
            if not (height.isdigit() and width.isdigit() and int(height) and int(width)):
                raise UserError(f"{path}, row {row}: 'dim0' and 'dim1' must be numbers of pixels.")
            sizes[image] = (int(width), int(height))
        return sizes

    # -------------------------------------------------------------------------- images

    def _add_images(self) -> None:
        names = {image: f"{part}/{image}.dicom" for image, part in self._parts.items()}
        places = self.locate(list(names.values()), ("images",))
        self.image_records = [
            ImageRecord(
                *(image, image, image, places.path(names[image]), "PA", self._split(image)),
                origin=self._origins[image],
            )
            for image in names
        ]

    def _describe(self, tables: dict[str, Path]) -> None:
        parts = Counter(self._parts.values())
        shown = ", ".join(f"{parts[part]} in {path.name}" for part, path in tables.items())
        self.said.insert(0, f"VinDr-CXR {self.root}: {len(self._parts)} images: {shown}.")
        self.said += [
            "No reports. A phrase is the name of a finding, as a sentence.",
            "No patient ids: every image counts as its own patient.",
            "No table of views: the archive says that every image is PA.",
            "Readers: a label is what most of an image's readers say, a phrase's boxes are those of"
            f" all of them; what each said is in {READERS}.parquet and {READER_BOXES}.parquet.",
        ]
        if self.seed is None:
            self.said.append(
                "Split: the archive's test part is test; of its train part, the tenth that a hash"
                " of the image's id names is validate."
            )
        else:
            self.said.append(f"Split: images 80/10/10 by a hash of their id with seed {self.seed}.")


def _find(folders: list[Path], name: str) -> Path | None:
    return find_table(folders, name, f"{name}.gz")


def _read(path: Path, key: str, counted: list[Step], more: tuple[str, ...] = ()) -> pd.DataFrame:
    table = read_table(path, required=(key, *more))
    if table.empty:
        raise UserError(f"{path}: the table has no rows; download it again.")
    named = table[~table[key].map(is_blank)]
    if len(named) < len(table):
        counted.append((f"row of {path.name} names an image", "rows", len(named), len(table)))
    return named


def _finding(name: str) -> str:
    plain = " ".join(name.split())
    return _SPELLED.get(plain, plain)


def _box(cells: list[str], where: str) -> Box:
    try:
        left, top, right, bottom = (float(cell) for cell in cells)
    except ValueError:
        raise UserError(f"{where}: x_min ... y_max must be numbers of pixels.") from None
    if not all(abs(value) < 1e9 for value in (left, top, right, bottom)):
        raise UserError(f"{where}: x_min ... y_max must be numbers of pixels.")
    return left, top, right - left, bottom - top
