"""Open-i's reports as the National Library of Medicine gives them: one XML file each."""

from __future__ import annotations

import sys
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from medclip_debias.data.sources.texts import without_markup
from medclip_debias.errors import UserError
from medclip_debias.files import open_guarded

REPORTS_TGZ = "NLMCXR_reports.tgz"
XML_FOLDER = "ecgen-radiology"
ARCHIVES = (".tgz", ".tar.gz", ".tar")
MAX_XML_BYTES = 4 << 20
SECTIONS = ("COMPARISON", "INDICATION", "FINDINGS", "IMPRESSION")
"""The labelled parts of a report, in the order of the XML files."""


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
    if isinstance(content, str):
        return IndianaReport(fallback, None, (), (), origin, content)
    if len(content) > MAX_XML_BYTES:
        problem = f"{origin}: is larger than {MAX_XML_BYTES >> 20} MiB, so it is no report."
        return IndianaReport(fallback, None, (), (), origin, problem)
    try:
        root = fromstring(content)
    except DefusedXmlException:
        problem = f"{origin}: declares XML entities, which a report never does; remove the file."
        return IndianaReport(fallback, None, (), (), origin, problem)
    except (ParseError, ValueError, LookupError):  # an unknown encoding is a LookupError
        problem = f"{origin}: is not readable XML; download it again."
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
