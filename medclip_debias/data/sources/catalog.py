"""Archives of labels and boxes that differ in names alone: entries of ``catalog.yaml``.

An image table, and perhaps a table of boxes and lists of a split; no reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import yaml

from medclip_debias.data.labels import Labels, label_columns
from medclip_debias.data.records import Box, ImageRecord, file_stem
from medclip_debias.data.sources.archive import (
    ArchiveSource,
    LabelCells,
    find_table,
    without_repeats,
)
from medclip_debias.data.sources.findings import FindingBoxes, box_of, class_labels, finding_name
from medclip_debias.data.sources.ids import is_blank, read_ids
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.sources.tree import is_file
from medclip_debias.data.splits import SPLIT_SEED, seeded_split, split_name
from medclip_debias.errors import UserError
from medclip_debias.files import open_guarded, read_json_value, read_text

if TYPE_CHECKING:
    import pandas as pd

_MOST_OF_A_LIST = 64 << 20
_HEAD = 1 << 16


class _Row(NamedTuple):
    """An image as the archive's table has it; a study of ``""`` is the image alone."""

    names: tuple[str, ...]
    patient: str
    study: str
    view: str
    split: str
    origin: str


@cache
def entries() -> Mapping[str, dict[str, Any]]:
    """Return the entries of ``catalog.yaml`` by kind."""
    text = files(__package__).joinpath("catalog.yaml").read_text(encoding="utf-8")
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return found


class CatalogSource(ArchiveSource):
    """An archive of the catalog.

    Of the patients that a split calls training and validation together, a tenth validates, by the
    hash of their ids.

    Args:
        root: folder of the tables.
        seed: split patients by a hash with this seed, also where the archive has a split.

    Raises:
        UserError: a table is missing or broken.
    """

    kind: ClassVar[str]

    def __init__(self, root: Path, seed: int | None = None) -> None:
        super().__init__(root)
        self.entry = entries()[self.kind]
        self._seed = SPLIT_SEED if seed is None else seed
        self._own_split = seed is None
        self._boxes = FindingBoxes(tuple(self.entry.get("boxes", {}).get("annotated", ())) or None)
        self._lists = self._official() if seed is None else None
        coco, path = _coco(root, self.entry), find_table([root], *self.entry["images"]["files"])
        if not coco and path is None:
            raise UserError(
                f"{root}: has no {self.entry['images']['files'][0].rstrip('*')} of"
                f" {self.entry['title']}; put it there."
            )
        self._labels: dict[str, Labels] = {}
        rows = self._of_coco(coco) if coco else self._of_table(path)
        self._add_images(rows)
        if not coco and "boxes" in self.entry:
            self._read_boxes()
        classes = self.entry["labels"].get("boxes")
        if classes:
            shown: dict[str, set[str]] = {}
            for phrase in self._boxes.phrases():
                shown.setdefault(phrase.image_id, set()).add(phrase.category)
            names = [finding_name(name) for name in classes]
            self._labels = {
                i.image_id: class_labels(shown.get(i.image_id, ()), names)
                for i in self.image_records
            }
        self.phrase_records = self._boxes.phrases()
        self.add_studies(self._labels)
        self._describe(", ".join(map(str, coco.values())) if coco else str(path))

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take a folder with the archive's tables."""
        entry = entries()[cls.kind]
        if not path.is_dir():
            return Sure.NO
        if _coco(path, entry):
            return Sure.RELEASE
        there = any(any(path.glob(name)) for name in entry["images"]["files"])
        if there and "recognised" in entry:  # the table has a name that any archive may give it
            return Sure.LAYOUT if _mentions(path / entry["boxes"]["file"], entry) else Sure.NO
        return Sure.RELEASE if there else Sure.NO

    @classmethod
    def open(cls, path: Path, given: Given) -> CatalogSource:
        """Open the folder of the tables."""
        return cls(path, given.split_seed)

    # ------------------------------------------------------------------------- images

    def _of_table(self, path: Path | None) -> Iterator[_Row]:
        assert path is not None
        columns = self.entry["images"]["columns"]
        needed = [columns[name] for name in ("patient", "study") if name in columns]
        table = read_table(path, required=needed)
        there = [name for name in columns["image"] if name in table.columns]
        if not there:
            names = columns["image"]
            both = f"neither column {' nor '.join(names)}" if names[1:] else f"no column {names[0]}"
            raise UserError(f"{path}: has {both}; download it again.")
        table = without_repeats(path, table, there[0], self.counted, self.said)
        if table.empty:
            raise UserError(f"{path}: has no rows; download it again.")
        table = self._named(path, table, [there[0], *needed])
        self._read_labels(path, table, there[0])
        patients = self._patients(path, table)
        blank = [""] * len(table)
        views, studies = (
            table[columns[name]].tolist() if columns.get(name) in table else blank
            for name in ("view", "study")
        )
        word = self.entry.get("split", {}).get("column")
        words = table[word].tolist() if word in table else blank
        for row, patient, study, view, split, *names in zip(
            *(table.index.tolist(), patients, studies, views, words),
            *(table[name] for name in there),
            strict=True,
        ):
            where = f"{path}, row {row}"
            split = split_name(split, where) if split else ""
            yield _Row(tuple(names), patient or file_stem(names[0]), study, view, split, where)

    def _named(self, path: Path, table: pd.DataFrame, needed: list[str]) -> pd.DataFrame:
        """Return the rows that name an image and what else they must."""
        blank = table[needed].map(is_blank)
        if not blank.any(axis=None):
            return table
        if self.entry["rows"] == "refused":
            row = table.index[blank.any(axis=1)][0]
            column = next(name for name in needed if blank.loc[row, name])
            raise UserError(f"{path}, row {row}: column '{column}' is blank; fill it in.")
        good = ~blank.any(axis=1)
        name = f"row of {path.name} names patient, study and image"
        self.counted.append((name, "rows", int(good.sum()), len(table)))
        return table[good]

    def _patients(self, path: Path, table: pd.DataFrame) -> list[str]:
        column = self.entry["images"]["columns"].get("patient")
        if column is None:
            self.said.append("No patient ids: every image counts as its own patient.")
            return [""] * len(table)
        if self.entry["rows"] == "counted":
            return list(table[column])
        patients = read_ids(path, table, column)
        self.said += patients.said(path, column)
        return patients.ids

    def _of_coco(self, lists: Mapping[str, Path]) -> Iterator[_Row]:
        """Read COCO's lists: their images, and their boxes."""
        self.said.append("No patient ids: every image counts as its own patient.")
        for split, path in lists.items():
            content = read_json_value(path, "download it again")
            try:
                names = {image["id"]: str(image["file_name"]) for image in content["images"]}
                classes = {one["id"]: finding_name(one["name"]) for one in content["categories"]}
                found = [
                    (a["image_id"], a["category_id"], a["bbox"]) for a in content["annotations"]
                ]
            except (KeyError, TypeError) as error:
                raise UserError(
                    f"{path}: is no list of images, categories and annotations; download it again."
                ) from error
            good = 0
            for image, category, sides in found:
                box = box_of(sides) if isinstance(sides, list) else None
                if box is not None and image in names and category in classes:
                    good += 1
                    self._boxes.add(file_stem(names[image]), classes[category], [box])
            self.count(f"annotation of {path.name} has image and box", "boxes", good, len(found))
            for number, name in enumerate(names.values(), start=1):
                yield _Row((name,), file_stem(name), "", "", split, f"{path}, image {number}")

    def _add_images(self, rows: Iterator[_Row]) -> None:
        listed = list(rows)
        below = self.entry["place"] == "below"
        tree = self.tree() if below else None
        count = 0 if below else len(listed[0].names)
        places = [self.locate([row.names[n] for row in listed]) for n in range(count)]
        codes = self.entry.get("views", {})
        for row in listed:
            name = row.names[0]
            if tree is not None:
                file = tree.path(Path(name).name, self.entry["below"])
            else:
                both = list(zip(places, row.names, strict=True))
                exact = (images.exact(other) for images, other in both)
                alike = (images.find(other) for images, other in both)
                file = next(filter(None, (*exact, *alike)), None) or places[0].path(name)
            view = self.entry.get("view", "") if is_blank(row.view) else row.view
            # Numbers of studies are not unique over patients.
            study = f"{row.patient}/{row.study}" if row.study else file_stem(name)
            ids = (file_stem(name), study, row.patient)
            split = self._split(row)
            shown = codes.get(view.upper(), view.upper() if codes else view)
            self.image_records.append(ImageRecord(*ids, file, shown, split, row.origin))

    # -------------------------------------------------------------------------- split

    def _split(self, row: _Row) -> str:
        seeded = seeded_split(row.patient, self._seed)
        if not self._own_split:
            return seeded
        if self._lists is not None:
            listed = self._lists.get(row.names[0], "")
            return listed if listed != "train" or seeded != "validate" else seeded
        return row.split or seeded

    def _official(self) -> dict[str, str] | None:
        """Return the list that names each image; training and validation are one.

        Raises:
            UserError: one list is missing, or an image is in both.
        """
        split = self.entry.get("split", {})
        if "train" not in split:
            return None
        paths = [self.root / split[name] for name in ("train", "test")]
        there = [is_file(path) for path in paths]
        if not any(there):
            return None
        if not all(there):
            raise UserError(
                f"{self.root}: {paths[there.index(False)].name} is missing beside"
                f" {paths[there.index(True)].name}; put it there, or give --split-seed."
            )
        splits = dict.fromkeys(_lines(paths[0]), "train")
        for line, name in enumerate(_lines(paths[1]), start=1):
            if splits.setdefault(name, "test") == "train":
                raise UserError(
                    f"{paths[1]}, line {line}: its image is also in {paths[0].name}; download both"
                    " again."
                )
        splits.pop("", None)
        return splits

    # ------------------------------------------------------------------ labels and boxes

    def _read_labels(self, path: Path, table: pd.DataFrame, image: str) -> None:
        how = self.entry["labels"]
        images = [file_stem(name) for name in table[image]]
        if "columns" in how:
            cells = LabelCells(path)
            columns = label_columns(path, table.columns)
            values = {label: [cells.read(c) for c in table[n]] for n, label in columns.items()}
            for at, image_id in enumerate(images):
                self._labels[image_id] = {label: column[at] for label, column in values.items()}
            self.counted += cells.steps()
        elif "column" in how:
            self._read_lists(path, table, images)

    def _read_lists(self, path: Path, table: pd.DataFrame, images: list[str]) -> None:
        """Read a column of lists of findings; a blank cell says nothing of any."""
        how = self.entry["labels"]
        alone = how["alone"]
        classes = (*(finding_name(name) for name in how["classes"]), alone)
        if how["column"] not in table:
            read_table(path, required=(how["column"],))  # says which columns there are
        counts: Counter[str] = Counter()
        for image_id, cell in zip(images, table[how["column"]], strict=True):
            names = [finding_name(n) for n in cell.split(how["separator"]) if not is_blank(n)]
            known = [name for name in names if name in classes]
            findings = [name for name in known if name != alone]
            counts.update(
                named=len(names), known=len(known), both=bool(findings) and alone in known
            )
            shown = class_labels(findings or known, classes)
            self._labels[image_id] = shown if known else dict.fromkeys(classes)
        step = "finding is one of the archive's"
        self.count(step, "label cells", counts["known"], counts["named"])
        step = f"'{alone}' stands alone (else the finding counts)"
        self.count(step, "label rows", len(table) - counts["both"], len(table))

    def _read_boxes(self) -> None:
        how = self.entry["boxes"]
        path = self.root / how["file"]
        if not is_file(path):
            self.said.append(f"No {path.name}: no boxes.")
            return
        needed = (how["image"], how["finding"], *how["sides"])
        table = read_table(path, required=needed)
        images = {image.image_id for image in self.image_records}
        readable = listed = 0
        for name, finding, *sides in zip(*(table[column] for column in needed), strict=True):
            box: Box | None = box_of(sides)
            if box is None or is_blank(finding):
                continue
            readable += 1
            listed += file_stem(name) in images
            self._boxes.add(file_stem(name), finding_name(finding), [box])
        step = f"row of {path.name} has a finding and four numbers"
        self.count(step, "boxes", readable, len(table))
        self.count(f"box of {path.name} has its image in the table", "boxes", listed, readable)

    def _describe(self, tables: str) -> None:
        people = len({image.patient_id for image in self.image_records})
        views = Counter(image.view or "unknown" for image in self.image_records)
        self.said += [
            f"{self.entry['title']} {tables}: {len(self.image_records)} images of"
            f" {len(self.study_records)} studies and {people} patients. It has no reports: there"
            " are no sentences to train on.",
            f"Views: {', '.join(f'{n} {view}' for view, n in sorted(views.items()))}.",
            self._split_said(),
        ]
        if self.phrase_records:
            boxes = sum(len(phrase.boxes) for phrase in self.phrase_records)
            self.said.append(f"Boxes: {boxes}, of {len(self.phrase_records)} phrases.")

    def _split_said(self) -> str:
        split = self.entry.get("split", {})
        if self._lists is not None:
            return (
                f"Split: {split['test']} is the test set; of the patients in {split['train']} a"
                " tenth, by a hash of their id, validate."
            )
        if self._own_split and "column" in split:
            return "Split: the archive's own."
        return f"Split: patients 80/10/10 by a hash of their id with seed {self._seed}."


def _coco(root: Path, entry: Mapping[str, Any]) -> dict[str, Path]:
    lists = entry["images"].get("coco", {})
    return {split: root / name for split, name in lists.items() if is_file(root / name)}


def _mentions(path: Path, entry: Mapping[str, Any]) -> bool:
    """Tell whether the first rows of a table hold the word that the archive is known by."""
    try:
        with open_guarded(path, "check the path") as file:
            return str(entry["recognised"]).encode() in file.read(_HEAD)
    except (UserError, OSError):
        return False


def _lines(path: Path) -> list[str]:
    text = read_text(path, "download it again", limit=_MOST_OF_A_LIST)
    return [line.strip() for line in text.removeprefix("\ufeff").splitlines()]


for _kind, _entry in entries().items():
    source(
        title=_entry["title"],
        looks=_entry["looks"],
        give=_entry["give"],
        needs=_entry["needs"],
        takes=("split_seed",),
        instead={"text_only": f"{_entry['title']} has no reports; leave out --text-only"},
    )(type(f"{_entry['title'].replace('-', '')}Source", (CatalogSource,), {"kind": _kind}))
