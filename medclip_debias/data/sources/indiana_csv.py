"""Open-i's reports and views as Kaggle gives them: ``indiana_reports.csv`` and its neighbour.

The tables of the "Chest X-rays (Indiana University)" data set: ``indiana_reports.csv`` (uid, MeSH,
Problems, image, indication, comparison, findings, impression) and ``indiana_projections.csv``
(uid, filename, projection).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from medclip_debias.data.records import Step, file_stem
from medclip_debias.data.sources.ids import is_blank, read_ids
from medclip_debias.data.sources.indiana_xml import (
    SECTIONS,
    IndianaReport,
    by_number,
    report_text,
)
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.sources.texts import BLANK, Reports, read_report
from medclip_debias.errors import UserError

REPORTS_CSV = "indiana_reports.csv"
PROJECTIONS = "indiana_projections.csv"

_STEM = re.compile(r"(?:CXR)?(\d+)_(?:\1_)?IM-.+", re.IGNORECASE)


@dataclass(frozen=True)
class ReportTable:
    """A table of reports, read.

    Attributes:
        path: its file.
        reports: in the order of their numbers, without images.
        rows: of the table.
        mended: what was read otherwise than it is written, by report.
        blank_cells: sections that are a program's word for blank.
    """

    path: Path
    reports: list[IndianaReport]
    rows: int
    mended: Reports
    blank_cells: int

    def said(self) -> list[str]:
        """Return sentences on what was left aside or mended."""
        said = self.mended.said(self.path)
        again = self.rows - len(self.reports)
        if again:
            said.append(f"{self.path}: {again} rows repeat a row above and are left aside.")
        if self.blank_cells:
            said.append(
                f"{self.path}: {self.blank_cells} cells are a program's word for blank ('nan',"
                " 'None') and count as empty."
            )
        return said

    def steps(self) -> list[Step]:
        """Return the same for the funnel."""
        steps: list[Step] = []
        if self.rows != len(self.reports):
            name = f"row of {self.path.name} repeats no other"
            steps.append((name, "reports", len(self.reports), self.rows))
        if self.blank_cells:
            steps.append(
                ("cell that is a word for blank is empty", "cells", self.blank_cells, None)
            )
        return steps + self.mended.steps()


def read_reports(path: Path) -> ReportTable:
    """Read ``indiana_reports.csv``.

    Raises:
        UserError: a column or a uid is missing, or two rows of a uid differ.
    """
    names = ("uid", "findings", "impression")
    table = read_table(path, required=names)
    optional = ("MeSH", "indication", "comparison")
    columns = {n: table[n].tolist() for n in (*names[1:], *optional) if n in table.columns}
    ids = read_ids(path, table, "uid").ids
    reports: dict[str, IndianaReport] = {}
    first: dict[str, tuple[int, tuple[str, ...]]] = {}
    mended: Counter[str] = Counter()
    blank_cells = 0
    texts = []
    for place, (row, uid) in enumerate(zip(table.index, ids, strict=True)):
        cells = tuple(column[place] for column in columns.values())
        report_id = f"CXR{uid.upper().removeprefix('CXR')}"
        if report_id in first:
            line, other = first[report_id]
            if other == cells:
                continue
            raise UserError(
                f"{path}, row {row}: its uid is already in row {line} with other content; keep one"
                " row per report."
            )
        first[report_id] = int(row), cells
        parts, kinds = [], set()
        for label in SECTIONS:
            cell = columns.get(label.lower())
            told = cell[place] if cell else ""
            # A comparison with "None" is what somebody dictated.
            dictated = label in SECTIONS[:2] and told.lower() == "none"
            text, found = (told, []) if dictated else read_report(told)
            blank_cells += BLANK in found
            kinds.update(found)
            parts.append((label, " ".join(text.split())))
        mended.update(kinds - {BLANK})
        text = report_text(parts)
        texts.append(text or "")
        mesh = columns["MeSH"][place] if "MeSH" in columns else ""
        index = () if is_blank(mesh) else tuple(" ".join(e.split()) for e in mesh.split(";"))
        reports[report_id] = IndianaReport(
            *(report_id, text, (), tuple(filter(None, index)), f"{path}, row {row}"),
            sections=tuple(label for label, text in parts if text),
        )
    if not reports:
        raise UserError(f"{path}: the table has no rows; download it again.")
    told = Reports(())
    told.texts, told.counts = texts, mended
    return ReportTable(path, sorted(reports.values(), key=by_number), len(table), told, blank_cells)


def stem(name: str) -> str:
    """Return a file's name without its suffixes; ``1_IM-0001.dcm.png`` has two."""
    return file_stem(file_stem(name))


def report_of(name: str) -> str | None:
    """Return the report that a file's name gives, or ``None``.

    >>> report_of("1000_IM-0003-1001.dcm.png"), report_of("CXR1_1_IM-0001-3001.png")
    ('CXR1000', 'CXR1')
    """
    found = _STEM.fullmatch(stem(name))
    return f"CXR{found[1]}" if found else None


@dataclass(frozen=True)
class Projections:
    """``indiana_projections.csv``, read.

    Attributes:
        path: its file.
        views: by stem of the file name, in upper case; ``""`` where the cell is blank.
        reports: by stem, the report; ``None`` where neither column nor name tells it.
        rows: of the table.
        repeated: rows that repeat another.
    """

    path: Path
    views: dict[str, str]
    reports: dict[str, str | None]
    rows: int
    repeated: int


def read_projections(path: Path) -> Projections:
    """Read ``indiana_projections.csv``.

    Raises:
        UserError: a column is missing, or a file has two rows that differ.
    """
    table = read_table(path, required=("filename", "projection"))
    uids = table["uid"].tolist() if "uid" in table.columns else [""] * len(table)
    views: dict[str, str] = {}
    reports: dict[str, str | None] = {}
    first: dict[str, int] = {}
    for row, name, view, uid in zip(
        table.index, table["filename"], table["projection"], uids, strict=True
    ):
        key, told = stem(name), "" if is_blank(view) else view.upper()
        number = uid.upper().removeprefix("CXR")
        owner = report_of(name) if is_blank(uid) else f"CXR{number}"
        if key in first and (views[key], reports[key]) != (told, owner):
            raise UserError(
                f"{path}, row {row}: its file is already in row {first[key]} with another view or"
                " report; keep one row per file."
            )
        first.setdefault(key, int(row))
        views[key], reports[key] = told, owner
    return Projections(path, views, reports, len(table), len(table) - len(views))


def with_images(
    reports: list[IndianaReport], projections: Projections | None, names: list[str]
) -> list[IndianaReport]:
    """Give the reports of a table the images that the projections list, or else those there are.

    Args:
        reports: without images.
        projections: which files belong to which report, if there is such a table.
        names: stems of the image files that are there.
    """
    owners: dict[str, list[str]] = {}
    listed = projections.reports if projections is not None else {}
    for key, owner in (listed or {name: report_of(name) for name in names}).items():
        if owner is not None:
            image_id = key if key.upper().startswith("CXR") else f"CXR{key}"
            owners.setdefault(owner, []).append(image_id)
    return [
        replace(report, images=tuple(dict.fromkeys(sorted(owners.get(report.report_id, ())))))
        for report in reports
    ]
