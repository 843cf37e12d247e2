"""CheXpert Plus (Chambon et al. 2024): CheXpert's images as DICOM or PNG, with their reports.

``df_chexpert_plus_240401.csv`` has a row for each image: ``path_to_image``, ``path_to_dcm``,
``frontal_lateral``, ``ap_pa``, ``deid_patient_id``, ``split``, ``report``, ``section_findings``,
``section_impression`` and others. Studies have no column; they are the folders of the paths.
Labels are in ``impression_fixed.json``, ``report_fixed.json`` and ``findings_fixed.json`` (a JSON
object a line, by ``path_to_image``). The labeller that was run on an empty section says "No
Finding": such rows are left aside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from medclip_debias.data.labels import CHEXPERT_LABELS, Labels
from medclip_debias.data.sources.archive import (
    ArchiveSource,
    LabelCells,
    find_table,
    read_json_lines,
    report_of,
)
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.stanford import named_rows, view_of
from medclip_debias.data.sources.tables import origins, read_table
from medclip_debias.data.sources.texts import read_report
from medclip_debias.data.sources.tree import walk_files
from medclip_debias.data.splits import split_name
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

TABLE = "df_chexpert_plus_*.csv*"
LABELS = {
    "impression_fixed.json": "section_impression",
    "report_fixed.json": "report",
    "findings_fixed.json": "section_findings",
}
"""Files of labels, the first that is there is read, and the column of the text behind each.

CheXpert's own labels are those of the impression.
"""

_LEFTOVER = ".azDownload-"  # begins what an interrupted download with azcopy leaves
_NEEDED = ("path_to_image", "deid_patient_id", "split", "section_findings", "section_impression")
_OPTIONAL = ("path_to_dcm", "frontal_lateral", "ap_pa", "report")
_FOLDERS = ("", "files", "label", "labels", "chexbert_labels")
_IMAGES = ("DICOM", "PNG", "PNG/PNG", "images", "CheXpert-v1.0", "CheXpert-v1.0-small")


@source(
    title="CheXpert Plus",
    looks="CheXpert Plus (df_chexpert_plus_240401.csv)",
    give="folder with `df_chexpert_plus_240401.csv`",
    needs="DICOM, PNG or JPG files at the paths of the table; labels from"
    " `impression_fixed.json` (or `report_fixed.json`, `findings_fixed.json`) where one is there",
    takes=("split_seed", "text_only"),
    instead={"reports": "the table of CheXpert Plus has its reports; leave out --reports"},
)
class CheXpertPlusSource(ArchiveSource):
    """A folder of CheXpert Plus."""

    kind: ClassVar[str] = "chexpert_plus"

    def __init__(self, root: Path, given: Given) -> None:
        super().__init__(root, given)
        path = _table(root)
        if path is None:
            raise UserError(
                f"{root}: has no df_chexpert_plus_240401.csv, the table of CheXpert Plus; check"
                " the path."
            )
        table = self.first_rows(path, read_table(path, _NEEDED, _OPTIONAL), "path_to_image")
        rows = named_rows(self, path, table, "path_to_image")
        owners, patients = rows["owner"] + "/" + rows["study"], rows["deid_patient_id"]
        rows["image"], rows["study"] = owners + "/" + rows["image"], owners
        rows["patient"] = patients.mask(patients.map(is_blank), rows["owner"])
        sides = (rows[name] for name in ("frontal_lateral", "ap_pa", "path_to_image"))
        rows["view"] = list(map(view_of, *sides))
        rows["origin"] = origins(path, rows)
        if self.seed is None:
            rows["split"] = list(map(split_name, rows["split"], rows["origin"]))
        rows["split"] = list(map(self.split, rows["patient"], rows["split"]))
        self.add_images(rows, self._files(rows))
        reports = self._reports(path, rows)
        self.add_studies(self._labels(path, rows), reports)
        self.describe_images(f"CheXpert Plus {path}")

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        return Sure.RELEASE if path.is_dir() and _table(path) is not None else Sure.NO

    def _files(self, rows: pd.DataFrame) -> Iterator[Path]:
        """Yield the file of each row: DICOM where it is there, else PNG or JPG."""
        if self.text_only:
            yield from repeat(Path(), len(rows))
            return
        left = sum(path.name.startswith(_LEFTOVER) for path in walk_files(self.root))
        if left:
            self.said.append(
                f"{self.root}: {left} files are leftovers of interrupted downloads"
                " (.azDownload-*); they are not read."
            )
        dicoms = self.locate(rows["path_to_dcm"].tolist(), _IMAGES)
        rasters = self.locate(rows["path_to_image"].tolist(), _IMAGES)
        for name, dicom in zip(rows["path_to_image"], rows["path_to_dcm"], strict=True):
            if is_blank(dicom):
                yield rasters.path(name)
            else:
                yield dicoms.exact(dicom) or rasters.find(name) or dicoms.path(dicom)

    def _reports(self, path: Path, rows: pd.DataFrame) -> dict[str, str | None]:
        """Return the report of each study: its two sections, else the whole text."""
        sections = zip(rows["section_findings"], rows["section_impression"], strict=True)
        rows["text"] = [report_of({"findings": f, "impression": i}) for f, i in sections]
        lacking = rows["text"] == ""
        rows.loc[lacking, "text"] = [read_report(text)[0] for text in rows["report"][lacking]]
        filled = rows["text"].str.strip() != ""
        first = rows[rows["text"] != ""].drop_duplicates("study").set_index("study")["text"]
        other = filled & (rows["text"] != rows["study"].map(first))
        for which, what in (
            (
                lacking & filled,
                "neither section of findings nor of impression; their whole report is read",
            ),
            (other, "another report beside another image; that of the first image counts"),
        ):
            if studies := rows["study"][which].nunique():
                self.said.append(f"{path}: {studies} studies have {what}.")
        known = first.to_dict()
        return {study: known.get(study, "") for study in rows["study"]}

    def _labels(self, path: Path, rows: pd.DataFrame) -> dict[str, Labels]:
        """Return the labels of each image, and count those of no use."""
        places = [path.parent / name for name in _FOLDERS]
        file = next((f for name in LABELS if (f := find_table(places, name))), None)
        if file is None:
            self.said.append(f"No {' or '.join(LABELS)}: studies have no labels.")
            return {}
        images = dict(zip(rows["path_to_image"], rows["image"], strict=True))
        blank = {*rows["path_to_image"][rows[LABELS[file.name]].map(is_blank)]}
        cells = LabelCells(file)
        labels: dict[str, Labels] = {}
        counts: Counter[str] = Counter()
        for line in read_json_lines(file):
            name = str(line.get("path_to_image")) if line is not None else ""
            wanted = name in images and name not in blank
            counts.update(lines=1, read=line is not None, known=name in images, used=wanted)
            if line is not None and wanted:
                labels[images[name]] = {
                    label: cells.read("" if line[label] is None else str(line[label]))
                    for label in CHEXPERT_LABELS
                    if label in line
                }
        self.count(f"line of {file.name} is a JSON object", "rows", counts["read"], counts["lines"])
        read, known, used = (counts[name] for name in ("read", "known", "used"))
        self.counted += [
            (f"labels read from {file.name}", "label rows", read, None),
            (f"image of {file.name} is in the source", "label rows", known, read),
            (f"text behind a row of {file.name} is not blank", "label rows", used, known),
        ]
        self.count(cells.step, "label cells", cells.good, cells.all)
        self.said.append(f"Labels: {file.name} ({len(labels)} images).")
        return labels


def _table(root: Path) -> Path | None:
    return find_table((root / name for name in _FOLDERS[:2]), TABLE)
