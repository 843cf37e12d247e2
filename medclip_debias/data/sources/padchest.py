"""PadChest: 16-bit PNG files, a table of labels for each, and reports in Spanish.

``PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv`` has a row an image: ``ImageDir`` and
``ImageID`` name the file, ``Labels`` holds the labels of its study as Python prints a list (with
stray blanks, and labels named twice), ``LabelsLocalizationsBySentence`` the labels and places of
each sentence, ``Report`` the report in Spanish, stemmed and without headings. ``MethodLabel`` says
whether a physician or a network read the labels from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from medclip_debias.data.records import (
    Annotations,
    ImageRecord,
    StudyRecord,
    file_stem,
)
from medclip_debias.data.sources.archive import (
    ArchiveSource,
    find_table,
    without_repeats,
)
from medclip_debias.data.sources.ids import is_blank, read_ids
from medclip_debias.data.sources.label_groups import PADCHEST_SILENT, LabelColumns, label_groups
from medclip_debias.data.sources.list_cells import read_list, read_strings
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.splits import SPLIT_SEED, seeded_split
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

TABLE = "PADCHEST_chest_x_ray_images_labels_160K_*.csv"
TABLES = (TABLE, f"{TABLE}.gz")
GROUNDED = "grounded_reports_*.json"
"""PadChest-GR's file of sentences; people keep it beside PadChest's table."""

LOCALIZATIONS, METHODS = "localizations", "label_methods"
_NEEDED = ("ImageID", "ImageDir", "StudyID", "PatientID", "Projection", "Labels")
_READ = (*_NEEDED, "Report", "MethodLabel", "LabelsLocalizationsBySentence", "Pediatric")
_VIEWS = {"AP_HORIZONTAL": "AP Supine", "L": "LATERAL", "UNK": ""}
_FOLDERS = ("images", "Images", "PadChest", "padchest", "images-224")
_PHYSICIAN = "Physician"  # the others are RNN_model
_PER_STUDY = ("Labels", "Report", "MethodLabel", "LabelsLocalizationsBySentence")


class _Cell(NamedTuple):
    """A cell of labels: their names, how many it names, and how many have stray blanks."""

    names: frozenset[str]
    named: int = 0
    stray: int = 0
    readable: bool = True


@dataclass
class _Study:
    patient: str
    split: str
    origin: str
    report: str = ""
    method: str = ""
    labels: set[str] = field(default_factory=set)
    sentences: str = ""
    sentences_origin: str = ""


@source(
    title="PadChest",
    looks=f"PadChest ({TABLE})",
    give="folder of `PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv` (or `.csv.gz`)",
    needs="the images as `<ImageDir>/<ImageID>` or `<ImageID>`, also below a folder `images`",
    takes=("split_seed", "text_only"),
)
class PadChestSource(ArchiveSource):
    """A PadChest folder; there is no official split, so a hash splits the patients."""

    kind: ClassVar[str] = "padchest"
    language: ClassVar[str] = "es"
    """Of the reports."""

    def __init__(self, root: Path, given: Given) -> None:
        super().__init__(root, given)
        path = find_table([root], *TABLES)
        if path is None:
            raise UserError(f"{root}: has no {TABLE}; give the folder with it.")
        self.path = path
        self._seed = SPLIT_SEED if self.seed is None else self.seed
        table = self._read_table()
        self._studies: dict[str, _Study] = {}
        self._read_studies(table)
        self._columns = LabelColumns(
            (name for study in self._studies.values() for name in study.labels),
            label_groups("padchest"),
            PADCHEST_SILENT,
        )
        self._count_studies()
        self._localizations = list(self._read_localizations())
        if not self.text_only:
            self.image_records = self._read_images(table)
        self._describe(table)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take a folder with the table; with PadChest-GR's sentences, it is rather that one."""
        if path.is_file() or not any(any(path.glob(name)) for name in TABLES):
            return Sure.NO
        return Sure.LAYOUT if any(path.glob(GROUNDED)) else Sure.RELEASE

    def studies(self, only: Collection[str] | None = None) -> Iterator[StudyRecord]:
        """Yield the studies in the order of their first row; labels are made as they go."""
        for name, study in self._studies.items():
            if only is None or name in only:
                report = study.report or None
                labels = self._columns.values(study.labels)
                yield StudyRecord(name, study.patient, study.split, report, labels, study.origin)

    def annotations(self) -> list[Annotations]:
        """Return labels and places by sentence, and who read each study's labels."""
        columns = (("study_id", "text"), ("sentence", "number"), ("label", "text"))
        places = ("places", "texts")
        found = Annotations(
            LOCALIZATIONS, "label rows", (*columns, places), self._localizations, study="study_id"
        )
        read = [(name, study.method.lower()) for name, study in self._studies.items()]
        methods = (("study_id", "text"), ("method", "text"))
        return [found, Annotations(METHODS, "label rows", methods, read, study="study_id")]

    # --------------------------------------------------------------------------- the table

    def _read_table(self) -> pd.DataFrame:
        table = read_table(self.path, required=_NEEDED, columns=_READ)
        if table.empty:
            raise UserError(f"{self.path}: the table has no rows; download it again.")
        named = table[~table["ImageID"].map(is_blank)]
        self.count(f"row of {self.path.name} names an image", "rows", len(named), len(table))
        return without_repeats(self.path, named, "ImageID", self.counted, self.said)

    def _read_studies(self, table: pd.DataFrame) -> None:
        ids = {name: read_ids(self.path, table, name) for name in ("StudyID", "PatientID")}
        self.said += [line for name, found in ids.items() for line in found.said(self.path, name)]
        self._study_ids = ids["StudyID"].ids
        rows = table.index.tolist()
        blank = [""] * len(rows)
        columns = (table[name].tolist() if name in table else blank for name in _PER_STUDY)
        seen: dict[str, _Cell] = {}
        cells: list[_Cell] = []
        reports = differ = 0
        owners = (rows, self._study_ids, ids["PatientID"].ids)
        for row, name, patient, labels, report, method, sentences in zip(
            *owners, *columns, strict=True
        ):
            origin = f"{self.path}, row {row}"
            new = _Study(patient, seeded_split(patient, self._seed), origin)
            study = self._studies.setdefault(name, new)
            if labels not in seen:
                seen[labels] = _read_labels(labels, origin)
            cells.append(seen[labels])
            study.labels |= seen[labels].names
            if not is_blank(report):
                reports += 1
                differ += bool(study.report) and study.report != report
                study.report = study.report or report
            study.method = study.method or method
            if not study.sentences and not is_blank(sentences):
                study.sentences, study.sentences_origin = sentences, origin
        self._count_cells(cells)
        step = "row has the report of its study's first row"
        self.count(step, "reports", reports - differ, reports)

    def _count_cells(self, cells: list[_Cell]) -> None:
        readable = sum(cell.readable for cell in cells)
        step = f"cell 'Labels' of {self.path.name} is a list"
        self.count(step, "label cells", readable, len(cells))
        named = sum(cell.named for cell in cells)
        stray = sum(cell.stray for cell in cells)
        once = sum(len(cell.names) for cell in cells)
        self.counted.append(("labels named in the rows", "label cells", named, None))
        step = "label has no blank before or behind it (read without)"
        self.count(step, "label cells", named - stray, named)
        step = "label is named once in its row (others count once)"
        self.count(step, "label cells", once, named)

    def _count_studies(self) -> None:
        studies = self._studies.values()
        listed = [study for study in studies if study.labels]
        clear = [s for s in listed if self._columns.says_what_is_there(s.labels)]
        read = [s for s in listed if s.method == _PHYSICIAN]
        plain = "labels say what is there (not 'unchanged' or 'exclude' alone)"
        by_people = "labels were read by a physician (others by a network)"
        self.counted += [
            ("study has labels", "label rows", len(listed), len(self._studies)),
            (plain, "label rows", len(clear), len(listed)),
            (by_people, "label rows", len(read), len(listed)),
        ]

    def _read_localizations(self) -> Iterator[tuple[str, int, str, list[str]]]:
        """Yield study, number of the sentence, label, and its places as ``loc ...`` name them."""
        there = bad = 0
        for name, study in self._studies.items():
            if not study.sentences:
                continue
            there += 1
            try:
                sentences = read_list(study.sentences, study.sentences_origin)
            except UserError:
                bad += 1
                continue
            for number, sentence in enumerate(sentences, start=1):
                found: list[tuple[str, list[str]]] = []
                for item in _flat(sentence):
                    if not item.startswith("loc "):
                        found.append((item, []))
                    elif found:
                        found[-1][1].append(item)
                    else:  # a place without a label
                        found.append(("", [item]))
                yield from ((name, number, label, places) for label, places in found)
        step = f"cell 'LabelsLocalizationsBySentence' of {self.path.name} is a list"
        self.count(step, "label cells", there - bad, there)

    # ---------------------------------------------------------------------------- images

    def _read_images(self, table: pd.DataFrame) -> list[ImageRecord]:
        folders = [folder.removesuffix(".0") for folder in table["ImageDir"]]
        files = table["ImageID"].tolist()
        names = [
            name if is_blank(folder) else f"{folder}/{name}"
            for folder, name in zip(folders, files, strict=True)
        ]
        places = self.locate(names, _FOLDERS)
        records = []
        columns = (table.index.tolist(), names, files, self._study_ids, table["Projection"])
        for row, name, file, study, view in zip(*columns, strict=True):
            known = self._studies[study]
            shown = "" if is_blank(view) else _VIEWS.get(view.upper(), view)
            origin = f"{self.path}, row {row}"
            ids = (file_stem(file), study, known.patient)
            records.append(ImageRecord(*ids, places.path(name), shown, known.split, origin))
        return records

    def _describe(self, table: pd.DataFrame) -> None:
        what = "reports alone" if self.text_only else f"{len(table)} images"
        self.said.insert(0, f"PadChest {self.path}: {what} of {len(self._studies)} studies.")
        views = Counter(view or "none" for view in table["Projection"])
        self.said += [
            "Projections: " + ", ".join(f"{n} {view}" for view, n in views.most_common()) + "."
            " AP_horizontal counts as AP Supine.",
            "Split: PadChest has none; patients are split 80/10/10 by a hash of their id with seed"
            f" {self._seed}.",
            f"Labels: {len(self._columns.own)} of PadChest's own beside"
            f" {len(self._columns.groups)} of CheXpert's. What a study's list does not name is"
            " absent, unless the list is blank or only says 'unchanged', 'exclude' or 'suboptimal"
            " study'.",
            "Reports are in Spanish, stemmed, without headings.",
        ]
        if "Pediatric" in table:
            children = sum(cell.upper() == "PED" for cell in table["Pediatric"])
            self.said.append(f"Images of children: {children} of {len(table)}; they stay in.")
        if not self.text_only and any(self.root.glob("*.zip")):
            self.said.append("There are zip files in the folder: unpack them beside the table.")


def _read_labels(text: str, where: str) -> _Cell:
    try:
        items = read_strings(text, where)
    except UserError:  # counted
        return _Cell(frozenset(), readable=False)
    given = [(item, " ".join(item.lower().split())) for item in items if not is_blank(item)]
    stray = sum(item != item.strip() for item, _ in given)
    return _Cell(frozenset(name for _, name in given), len(given), stray)


def _flat(item: object) -> Iterator[str]:
    """Yield the strings of a list and of its inner lists, in order, without stray blanks."""
    if isinstance(item, str):
        text = " ".join(item.lower().split())
        if text:
            yield text
    elif isinstance(item, list):
        for inner in item:
            yield from _flat(inner)
