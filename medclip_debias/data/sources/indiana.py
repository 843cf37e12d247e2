"""Open-i's reports: one XML file each (National Library of Medicine), or two tables (Kaggle).

The tables of the "Chest X-rays (Indiana University)" data set: ``indiana_reports.csv`` (uid, MeSH,
Problems, image, indication, comparison, findings, impression) and ``indiana_projections.csv``
(uid, filename, projection).
"""

from __future__ import annotations

import re
import sys
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from medclip_debias.data.records import Step, file_stem
from medclip_debias.data.sources.ids import is_blank, read_ids
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.sources.texts import BLANK, Reports, read_report, without_markup
from medclip_debias.errors import UserError
from medclip_debias.files import open_guarded

REPORTS_TGZ = "NLMCXR_reports.tgz"
XML_FOLDER = "ecgen-radiology"
REPORTS_CSV = "indiana_reports.csv"
PROJECTIONS = "indiana_projections.csv"
ARCHIVES = (".tgz", ".tar.gz", ".tar")
MAX_XML_BYTES = 4 << 20
SECTIONS = ("COMPARISON", "INDICATION", "FINDINGS", "IMPRESSION")
"""The labelled parts of a report, in the order of the XML files."""

_STEM = re.compile(r"(?:CXR)?(\d+)_(?:\1_)?IM-.+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class IndianaReport:
    """One report of the collection.

    Attributes:
        report_id: ``CXR`` and the number.
        text: its parts under their headings, ``None`` when it has none.
        images: ids of its images.
        index: entries of the human indexing, as they are written.
        origin: file (and row), for messages.
        problem: why it cannot be read, or ``""``.
        sections: those of `SECTIONS` that hold text.
        markup: HTML was left out of its text.
    """

    report_id: str
    text: str | None
    images: tuple[str, ...]
    index: tuple[str, ...]
    origin: str
    problem: str = ""
    sections: tuple[str, ...] = ()
    markup: bool = False


def read_xml(path: Path) -> list[IndianaReport]:
    """Read the reports of an archive or of a folder of XML files, in the order of their numbers.

    Raises:
        UserError: there are none, the archive is damaged, or a report is there twice.
    """
    members = _archive_members(path) if path.is_file() else _folder_members(path)
    seen: dict[str, str] = {}
    reports = []
    for origin, content in members:
        report = _parse(origin, content)
        other = seen.setdefault(report.report_id, origin)
        if other != origin:
            raise UserError(f"{origin}: its report is also in {other}; keep one file per report.")
        reports.append(report)
    if not reports:
        raise UserError(f"{path}: holds no XML file; download {REPORTS_TGZ} again.")
    return sorted(reports, key=by_number)


def by_number(report: IndianaReport) -> tuple[int, str]:
    """Order ``CXR2`` before ``CXR10``."""
    number = report.report_id.removeprefix("CXR")
    whole = number.isascii() and number.isdigit()
    return (int(number), "") if whole else (sys.maxsize, report.report_id)


def report_text(parts: list[tuple[str, str]]) -> str | None:
    """Put the labelled parts under headers, as a report of MIMIC-CXR has them.

    Args:
        parts: label and text of each; those without text are left out.
    """
    if not parts:
        return None
    return "\n \n".join(
        f" {label}: {text}" if label else f" {text}" for label, text in parts if text
    )


def _folder_members(folder: Path) -> Iterator[tuple[str, bytes | str]]:
    """Yield the XML files of a folder; a sentence stands for one that cannot be read."""
    for path in sorted(folder.glob("*.xml")):
        content: bytes | str
        try:
            with open_guarded(path, "download it again") as file:
                content = file.read(MAX_XML_BYTES + 1)
        except UserError as error:
            content = str(error)
        except OSError as error:
            content = f"{path}: cannot be read ({type(error).__name__})."
        yield str(path), content


def _archive_members(path: Path) -> Iterator[tuple[str, bytes | str]]:
    """Yield the XML files of an archive; nothing is unpacked."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = PurePosixPath(member.name)
                if ".." in name.parts or name.is_absolute():
                    raise UserError(
                        f"{path}: holds a file whose name leads out of its folder ('..' or an"
                        " absolute path), which the Open-i archive never does; download it again."
                    )
                if member.isfile() and name.suffix.lower() == ".xml":
                    file = archive.extractfile(member)
                    assert file is not None  # it is a file
                    yield f"{path}: {name}", file.read(MAX_XML_BYTES + 1)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise UserError(
            f"{path}: the archive is truncated or damaged; download it again."
        ) from error


def _parse(origin: str, content: bytes | str) -> IndianaReport:
    """Read one XML file; a broken one keeps its name and says what is wrong."""
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, fromstring

    fallback = "CXR" + PurePosixPath(origin.replace("\\", "/")).stem
    problem, root = content if isinstance(content, str) else "", None
    if len(content) > MAX_XML_BYTES:
        problem = f"{origin}: is larger than {MAX_XML_BYTES >> 20} MiB, so it is no report."
    try:
        root = None if problem else fromstring(content)
    except DefusedXmlException:
        problem = f"{origin}: declares XML entities, which a report never does; remove the file."
    except (ParseError, ValueError, LookupError):  # an unknown encoding is a LookupError
        problem = f"{origin}: is not readable XML; download it again."
    if root is None:
        return IndianaReport(fallback, None, (), (), origin, problem)
    number = root.find("uId")
    report_id = fallback if number is None else number.get("id") or fallback
    images = tuple(dict.fromkeys(i.get("id") or "" for i in root.iter("parentImage")))
    index = tuple(" ".join((part.text or "").split()) for part in root.iterfind("MeSH/major"))
    written = [
        (" ".join((part.get("Label") or "").split()), "".join(part.itertext()))
        for part in root.iter("AbstractText")
    ]
    parts = [(label, " ".join(without_markup(text).split())) for label, text in written]
    told = {label.upper() for label, text in parts if text}
    sections = tuple(name for name in SECTIONS if name in told)
    shown = tuple(filter(None, images))
    return IndianaReport(
        *(report_id, report_text(parts), shown, tuple(filter(None, index)), origin),
        sections=sections,
        markup=any(without_markup(text) != text for _, text in written),
    )


# ----------------------------------------------------------------------------- Kaggle's tables


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
            said.append(f"{self.path}: {again} rows repeat an earlier row and are skipped.")
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
