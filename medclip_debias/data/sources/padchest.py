"""PadChest: 16-bit PNG files, a table of labels for each, and reports in Spanish.

``PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv`` has a row an image: ``ImageDir`` and
``ImageID`` name the file, ``Labels`` holds the labels of its study as Python prints a list (with
stray blanks, and labels named twice), ``LabelsLocalizationsBySentence`` the labels and places of
each sentence, ``Report`` the report in Spanish, stemmed and without headings. ``MethodLabel`` says
whether a physician or a network read the labels from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medclip_debias.data.records import Annotations, StudyRecord, file_stem
from medclip_debias.data.sources.archive import ArchiveSource, find_table
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.label_groups import PADCHEST_SILENT, LabelColumns, label_groups
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import named_tuples
from medclip_debias.data.sources.texts import read_list, spaced
from medclip_debias.data.splits import SPLIT_SEED
from medclip_debias.errors import UserError, counted

if TYPE_CHECKING:
    import pandas as pd

TABLE = "PADCHEST_chest_x_ray_images_labels_160K_*.csv"
TABLES = (TABLE, f"{TABLE}.gz")
GROUNDED = "grounded_reports_*.json"
"""PadChest-GR's file of sentences; people keep it beside PadChest's table."""

_NEEDED = ("ImageID", "ImageDir", "StudyID", "PatientID", "Projection", "Labels")
_SENTENCES = "LabelsLocalizationsBySentence"
_POLARITY = "PhotometricInterpretation_DICOM"
_OPTIONAL = ("Report", "MethodLabel", _SENTENCES, "Pediatric", _POLARITY)
_VIEWS = {"AP_HORIZONTAL": "AP Supine", "L": "LATERAL", "UNK": ""}
_FOLDERS = ("images", "Images", "PadChest", "padchest", "images-224")
_PHYSICIAN = "Physician"  # the others are RNN_model


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
    language = "es"

    def __init__(self, root: Path, given: Given) -> None:
        super().__init__(root, given)
        path = find_table([root], *TABLES)
        if path is None:
            raise UserError(f"{root}: has no {TABLE}; give the folder with it.")
        self.path = path
        table = self._read_table()
        self._studies = table.drop_duplicates("study").set_index("study")
        for name in ("Report", "MethodLabel", _SENTENCES):
            self._studies[name] = _first(table, name)
        self._studies["split"] = list(map(self.split, self._studies["patient"]))
        self._add_studies(table)
        self._localizations = list(self._read_localizations())
        if not self.text_only:
            self._add_images(table)
        self._describe(table)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take a folder with the table; with PadChest-GR's sentences, it is rather that one."""
        if path.is_file() or not any(any(path.glob(name)) for name in TABLES):
            return Sure.NO
        return Sure.LAYOUT if any(path.glob(GROUNDED)) else Sure.RELEASE

    def annotations(self) -> list[Annotations]:
        """Return labels and places by sentence, and who read each study's labels."""
        columns = (("study_id", "text"), ("sentence", "number"), ("label", "text"))
        about = "localizations", "label rows", (*columns, ("places", "texts"))
        methods = list(self._studies["MethodLabel"].str.lower().items())
        method = "label_methods", "label rows", (("study_id", "text"), ("method", "text"))
        return [
            Annotations(*about, self._localizations, study="study_id"),
            Annotations(*method, methods, study="study_id"),
        ]

    def _read_table(self) -> pd.DataFrame:
        path = self.path
        table = self.read_rows(path, _NEEDED, _OPTIONAL)
        named = self.keep(
            table, ~table["ImageID"].map(is_blank), f"row of {path.name} names an image"
        )
        table = self.first_rows(path, named, "ImageID").copy()
        for name, column in (("study", "StudyID"), ("patient", "PatientID")):
            table[name] = self.ids(path, table, column)
        filled = table["Report"][~table["Report"].map(is_blank)]
        same = filled == table["study"][filled.index].map(_first(table, "Report"))
        step = "row has the report of its study's first row"
        self.count(step, "reports", int(same.sum()), len(same))
        return table

    def _add_studies(self, table: pd.DataFrame) -> None:
        """Read the lists of labels, each distinct cell once; count what is odd in them."""
        lists = {cell: read_list(cell, depth=1) for cell in table["Labels"].unique()}
        labels: dict[str, set[str]] = {study: set() for study in self._studies.index}
        counts: Counter[str] = Counter()
        for study, cell in zip(table["study"], table["Labels"], strict=True):
            items = [item for item in lists[cell] or () if not is_blank(item)]
            names = {spaced(item.lower()) for item in items}
            plain = sum(item == item.strip() for item in items)
            listed = lists[cell] is not None
            counts.update(listed=listed, named=len(items), plain=plain, once=len(names))
            labels[study] |= names
        columns = LabelColumns(
            set().union(*labels.values()), label_groups("padchest"), PADCHEST_SILENT
        )
        for row in named_tuples(self._studies):
            about = row.Index, row.patient, row.split, row.Report or None
            values = columns.values(labels[row.Index])
            self.study_records.append(StudyRecord(*about, values, row.origin))
        labelled = {study: names for study, names in labels.items() if names}
        clear = sum(map(columns.says_what_is_there, labelled.values()))
        physicians = int((self._studies["MethodLabel"][list(labelled)] == _PHYSICIAN).sum())
        named, unit = counts["named"], "label cells"
        step = f"cell 'Labels' of {self.path.name} is a list"
        self.count(step, unit, counts["listed"], len(table))
        self.counted.append(("labels named in the rows", unit, named, None))
        step = "label has no blank before or behind it (read without)"
        self.count(step, unit, counts["plain"], named)
        step = "label is named once in its row (others count once)"
        self.count(step, unit, counts["once"], named)
        for step, kept, total in (
            ("study has labels", len(labelled), len(labels)),
            (
                "labels say what is there (not 'unchanged' or 'exclude' alone)",
                *(clear, len(labelled)),
            ),
            ("labels were read by a physician (others by a network)", physicians, len(labelled)),
        ):
            self.counted.append((step, "label rows", kept, total))
        self._own, self._grouped = len(columns.own), len(columns.groups)

    def _read_localizations(self) -> Iterator[tuple[Any, ...]]:
        """Yield study, number of the sentence, label, and its places as ``loc ...`` name them."""
        lists = {
            study: read_list(cell) for study, cell in self._studies[_SENTENCES].items() if cell
        }
        for study, sentences in lists.items():
            for number, sentence in enumerate(sentences or (), start=1):
                labels: list[tuple[str, list[str]]] = []
                for item in _flat(sentence):
                    if not item.startswith("loc "):
                        labels.append((item, []))
                    elif labels:
                        labels[-1][1].append(item)
                    else:  # a place without a label
                        labels.append(("", [item]))
                yield from ((study, number, label, places) for label, places in labels)
        readable = sum(sentences is not None for sentences in lists.values())
        step = f"cell '{_SENTENCES}' of {self.path.name} is a list"
        self.count(step, "label cells", readable, len(lists))

    def _add_images(self, table: pd.DataFrame) -> None:
        folders = table["ImageDir"].str.removesuffix(".0")
        names = (folders + "/" + table["ImageID"]).mask(folders.map(is_blank), table["ImageID"])
        places = self.locate(names.tolist(), _FOLDERS)
        views = table["Projection"].mask(table["Projection"].map(is_blank), "")
        rows = table.assign(
            image=table["ImageID"].map(file_stem),
            patient=table["study"].map(self._studies["patient"]),
            split=table["study"].map(self._studies["split"]),
            view=[_VIEWS.get(view.upper(), view) for view in views],
        )
        self.add_images(rows, map(places.path, names))

    def _describe(self, table: pd.DataFrame) -> None:
        what = "reports alone" if self.text_only else counted(len(table), "image")
        studies = counted(len(self._studies), "study")
        self.said.insert(0, f"PadChest {self.path}: {what} of {studies}.")
        views = Counter(table["Projection"].replace("", "none")).most_common()
        listed = ", ".join(f"{count} {view}" for view, count in views)
        seed = SPLIT_SEED if self.seed is None else self.seed
        self.said += [
            f"Projections: {listed}. AP_horizontal counts as AP Supine.",
            f"Split: PadChest has none; patients are split 80/10/10 by a hash of their id with seed"
            f" {seed}.",
            f"Labels: {self._own} of PadChest's own beside {self._grouped} of CheXpert's. What a"
            " study's list does not name is absent, unless the list is blank or only says"
            " 'unchanged', 'exclude' or 'suboptimal study'.",
            "Reports are in Spanish, stemmed, without headings.",
        ]
        if (table["Pediatric"] != "").any():
            children = int((table["Pediatric"].str.upper() == "PED").sum())
            self.said.append(f"Images of children: {children} of {len(table)}; they stay in.")
        negatives = int((table[_POLARITY].str.upper() == "MONOCHROME1").sum())
        if negatives and not self.text_only:
            step = "film is not MONOCHROME1 in its DICOM header (others may be negatives: look)"
            self.count(step, "rows", len(table) - negatives, len(table))
            self.said.append(
                f"Films of MONOCHROME1: {negatives} of {len(table)}. The archive does not say if"
                " their PNG files were inverted; they are read as they are: look at some of them."
            )
        if not self.text_only and any(self.root.glob("*.zip")):
            self.said.append("There are zip files in the folder: unpack them beside the table.")


def _first(table: pd.DataFrame, column: str) -> pd.Series[str]:
    """Return the first cell of each study that is not blank, ``""`` for none."""
    filled = table[column].mask(table[column].map(is_blank))
    return filled.groupby(table["study"], sort=False).first().fillna("")


def _flat(item: object) -> Iterator[str]:
    """Yield the strings of a list and of its inner lists, in order, without stray blanks."""
    if isinstance(item, str):
        yield from filter(None, [spaced(item.lower())])
    elif isinstance(item, list):
        for inner in item:
            yield from _flat(inner)
