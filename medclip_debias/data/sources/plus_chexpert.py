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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medclip_debias.data.labels import CHEXPERT_LABELS, Labels
from medclip_debias.data.sources.archive import LabelCells, find_table, report_of
from medclip_debias.data.sources.catalog import CatalogSource, register
from medclip_debias.data.sources.ids import Ids, check_match, is_blank
from medclip_debias.data.sources.image_files import walk_files
from medclip_debias.data.sources.tables import open_text
from medclip_debias.data.sources.texts import read_report
from medclip_debias.errors import UserError
from medclip_debias.files import json_or_none

if TYPE_CHECKING:
    import pandas as pd

LABELS = {
    "impression_fixed.json": "section_impression",
    "report_fixed.json": "report",
    "findings_fixed.json": "section_findings",
}
"""Files of labels, the first that is there is read, and the column of the text behind each.

CheXpert's own labels are those of the impression.
"""

_LEFTOVER = ".azDownload-"  # begins what an interrupted download with azcopy leaves
_FOLDERS = ("", "files", "label", "labels", "chexbert_labels")


class CheXpertPlusSource(CatalogSource):
    """A folder of CheXpert Plus."""

    kind = "chexpert_plus"
    required: ClassVar = ("split", "section_findings", "section_impression")
    optional: ClassVar = ("path_to_dcm", "frontal_lateral", "ap_pa", "report")

    def _find(self, rows: pd.DataFrame) -> Callable[[tuple[str, ...]], Path]:
        left = (
            0
            if self.text_only
            else sum(p.name.startswith(_LEFTOVER) for p in walk_files(self.root))
        )
        if left:
            self.said.append(
                f"{self.root}: {left} files are leftovers of interrupted downloads"
                " (.azDownload-*); they are not read."
            )
        return super()._find(rows)

    def _read_labels(self, _: str, path: Path, table: pd.DataFrame, images: pd.Series[str]) -> None:
        rows = table.assign(image=images, study=table["owner"] + "/" + table["study"])
        self._reports = self._read_reports(path, rows)
        self._labels = self._read_lines(path, rows)

    def _read_reports(self, path: Path, rows: pd.DataFrame) -> dict[str, str | None]:
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

    def _read_lines(self, path: Path, rows: pd.DataFrame) -> dict[str, Labels]:
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
        listed: set[str] = set()
        for line in _json_lines(file):
            name = str(line.get("path_to_image")) if line is not None else ""
            wanted = name in images and name not in blank
            listed |= {name} if line is not None else set()
            counts.update(lines=1, read=line is not None, known=name in images, used=wanted)
            if line is not None and wanted:
                labels[images[name]] = {
                    label: cells.read("" if line[label] is None else str(line[label]))
                    for label in CHEXPERT_LABELS
                    if label in line
                }
        shared = len(listed & images.keys())
        check_match(file, "path_to_image", listed, shared, Ids(images), "images")
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


def _json_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the object of each line of a JSON-lines file, ``None`` for what is no object."""
    try:
        with open_text(path) as file:
            for line in filter(str.strip, file):
                content = json_or_none(line)
                yield content if isinstance(content, dict) else None
    except (UserError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as lines of JSON; download it again.") from error


register(
    CheXpertPlusSource.kind,
    CheXpertPlusSource,
    takes=("split_seed", "text_only"),
    instead={"reports": "the table of CheXpert Plus has its reports; leave out --reports"},
)
