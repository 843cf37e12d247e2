"""Open-i's reports: one XML file each (National Library of Medicine), or two tables (Kaggle).

The tables of the "Chest X-rays (Indiana University)" data set: ``indiana_reports.csv`` (uid, MeSH,
Problems, image, indication, comparison, findings, impression) and ``indiana_projections.csv``
(uid, filename, projection).
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from medclip_debias.data.records import file_stem
from medclip_debias.data.sources.archive import ArchiveSource
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.tables import distinct_rows, named_tuples, origins, read_table
from medclip_debias.data.sources.texts import (
    BLANK,
    mended_said,
    mended_steps,
    read_report,
    spaced,
    without_markup,
)
from medclip_debias.errors import UserError
from medclip_debias.files import open_guarded

if TYPE_CHECKING:
    import pandas as pd

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
    """Read the reports of an archive or of a folder of XML files, in the order of their numbers."""
    reports: dict[str, IndianaReport] = {}
    for origin, content in _archive_members(path) if path.is_file() else _folder_members(path):
        report = _parse(origin, content)
        other = reports.setdefault(report.report_id, report)
        if other is not report:
            raise UserError(
                f"{origin}: its report is also in {other.origin}; keep one file per report."
            )
    if not reports:
        raise UserError(f"{path}: holds no XML file; download {REPORTS_TGZ} again.")
    return sorted(reports.values(), key=_number)


def _number(report: IndianaReport) -> tuple[bool, int, str]:
    """Order ``CXR2`` before ``CXR10``."""
    name = report.report_id
    return not name.removeprefix("CXR").isdecimal(), len(name), name


def _report(
    report_id: str, parts: Iterable[tuple[str, str]], index: Iterable[str], origin: str
) -> IndianaReport:
    """Put labelled parts with text under headers, as a report of MIMIC-CXR has them."""
    filled = [(label, text) for label, text in parts if text]
    lines = (f" {label}: {text}" if label else f" {text}" for label, text in filled)
    known = {label.upper() for label, _ in filled}
    sections = tuple(name for name in SECTIONS if name in known)
    entries = tuple(filter(None, map(spaced, index)))
    return IndianaReport(report_id, "\n \n".join(lines), (), entries, origin, sections=sections)


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

    report_id = "CXR" + PurePosixPath(origin.replace("\\", "/")).stem
    problem, root = content if isinstance(content, str) else "", None
    if len(content) > MAX_XML_BYTES:
        problem = f"{origin}: is larger than {MAX_XML_BYTES >> 20} MiB, so it is not a report."
    try:
        root = None if problem else fromstring(content)
    except DefusedXmlException:
        problem = f"{origin}: declares XML entities, which a report never does; remove the file."
    except (ParseError, ValueError, LookupError):  # an unknown encoding is a LookupError
        problem = f"{origin}: is not readable XML; download it again."
    if root is None:
        return IndianaReport(report_id, None, (), (), origin, problem)
    number = root.find("uId")
    report_id = report_id if number is None else number.get("id") or report_id
    images = dict.fromkeys(image.get("id") or "" for image in root.iter("parentImage"))
    written = [
        (spaced(part.get("Label") or ""), "".join(part.itertext()))
        for part in root.iter("AbstractText")
    ]
    parts = [(label, spaced(without_markup(text))) for label, text in written]
    index = (part.text or "" for part in root.iterfind("MeSH/major"))
    report = _report(report_id, parts, index, origin)
    return replace(
        report,
        text=report.text if parts else None,
        images=tuple(filter(None, images)),
        markup=any(without_markup(text) != text for _, text in written),
    )


# ----------------------------------------------------------------------------- Kaggle's tables


def read_reports(source: ArchiveSource, path: Path) -> list[IndianaReport]:
    """Read the reports of a table, without images; ``source`` notes what was odd in it."""
    columns = ["MeSH", *map(str.lower, SECTIONS)]
    others = ["MeSH", "comparison", "indication"]
    table = source.read_rows(path, ["uid", "findings", "impression"], others, {"number": "uid"})
    table["uid"] = [f"CXR{uid.upper().removeprefix('CXR')}" for uid in table["number"]]
    problem = "its uid is already in row {} with other content; keep one row per report."
    rows = distinct_rows(path, table[["uid", *columns]], "uid", problem)
    counts: Counter[str] = Counter()
    blank_cells = 0
    reports = []
    for row, origin in zip(named_tuples(rows), origins(path, rows), strict=True):
        parts, mended = [], set()
        for label in SECTIONS:
            cell = getattr(row, label.lower())
            # A comparison with "None" is what somebody dictated.
            dictated = label in SECTIONS[:2] and cell.lower() == "none"
            text, kinds = (cell, []) if dictated else read_report(cell)
            blank_cells += BLANK in kinds
            mended.update(kinds)
            parts.append((label, spaced(text)))
        counts.update(mended - {BLANK})
        index = [] if is_blank(row.MeSH) else row.MeSH.split(";")
        reports.append(_report(row.uid, parts, index, origin))
    source.said += mended_said(path, counts)
    if repeats := len(table) - len(reports):
        step = f"row of {path.name} repeats no other"
        source.count(step, "reports", len(reports), len(table))
        source.said.append(f"{path}: {repeats} rows repeat an earlier row and are skipped.")
    if blank_cells:
        step = "cell that is a word for blank is empty"
        source.counted.append((step, "cells", blank_cells, None))
        source.said.append(
            f"{path}: {blank_cells} cells are a program's word for blank ('nan', 'None') and count"
            " as empty."
        )
    source.counted += mended_steps(counts, len(reports))
    return sorted(reports, key=_number)


def read_projections(path: Path) -> tuple[pd.DataFrame, int]:
    """Read ``indiana_projections.csv``.

    Returns:
        By stem of the file name: ``view`` (in upper case, ``""`` where it is blank) and ``report``
        (``""`` where neither column nor name tells it); and how many rows the table has.
    """
    table = read_table(path, ["filename", "projection"], ["uid"])
    view, uid = table["projection"].str.upper(), table["uid"]
    numbered = "CXR" + uid.str.upper().str.removeprefix("CXR")
    files = table[[]].assign(
        stem=table["filename"].map(stem),
        view=view.mask(view.map(is_blank), ""),
        report=numbered.where(~uid.map(is_blank), table["filename"].map(report_of)),
    )
    problem = "its file is already in row {} with another view or report; keep one row per file."
    return distinct_rows(path, files, "stem", problem).set_index("stem"), len(table)


def with_images(
    reports: list[IndianaReport], projections: pd.DataFrame | None, names: list[str]
) -> list[IndianaReport]:
    """Give the reports of a table the images that the projections list, or else those there are."""
    images: dict[str, set[str]] = {}
    listed = {n: report_of(n) for n in names} if projections is None else projections["report"]
    for name, report in listed.items():
        known = str(name).upper().startswith("CXR")
        images.setdefault(report, set()).add(str(name) if known else f"CXR{name}")
    return [replace(r, images=tuple(sorted(images.get(r.report_id, ())))) for r in reports]


def stem(name: str) -> str:
    """Return a file's name without its suffixes; ``1_IM-0001.dcm.png`` has two."""
    return file_stem(file_stem(name))


def report_of(name: str) -> str:
    """Return the report that a file's name gives, or ``""``.

    >>> report_of("1000_IM-0003-1001.dcm.png"), report_of("CXR1_1_IM-0001-3001.png")
    ('CXR1000', 'CXR1')
    """
    match = _STEM.fullmatch(stem(name))
    return f"CXR{match[1]}" if match else ""
