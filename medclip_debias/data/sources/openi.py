"""Open-i, the Indiana University collection: one XML file a report, images as PNG or DICOM.

Reports come from ``NLMCXR_reports.tgz`` (read as it is) or an unpacked ``ecgen-radiology/*.xml``.
Images are the files anywhere below the folder whose names are those of a report's
``parentImage`` ids: ``CXR1_1_IM-0001-3001.png``, or ``1_IM-0001-3001.dcm`` as the DICOM release
names them. Without images the source is text alone. The XML does not say which image is frontal:
``indiana_projections.csv`` does (columns ``filename``, ``projection``), and so do DICOM headers.
"""

from __future__ import annotations

import sys
import tarfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from medclip_debias.data.images.headers import view_position
from medclip_debias.data.records import (
    ImageRecord,
    PhraseRecord,
    Source,
    Step,
    StudyRecord,
    file_stem,
)
from medclip_debias.data.sources import ms_cxr
from medclip_debias.data.sources.ids import Ids, check_match, is_blank
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.sources.tree import is_file, walk_files
from medclip_debias.data.splits import SPLIT_SEED, seeded_split
from medclip_debias.errors import UserError

REPORTS_TGZ = "NLMCXR_reports.tgz"
XML_FOLDER = "ecgen-radiology"
PROJECTIONS = "indiana_projections.csv"
ARCHIVES = (".tgz", ".tar.gz", ".tar")
MAX_XML_BYTES = 4 << 20

_IMAGES = (".dcm", ".dcm.gz", ".dicom", ".png", ".jpg", ".jpeg")
_PACKED = ("NLMCXR_png.tgz", "NLMCXR_dcm.tgz")


@dataclass(frozen=True, slots=True)
class _Report:
    report_id: str
    text: str | None
    images: tuple[str, ...]
    origin: str
    problem: str = ""


@source(
    title="Open-i",
    looks=f"Open-i ({REPORTS_TGZ} or a folder {XML_FOLDER})",
    give="folder or archive of the XML",
    needs="`ecgen-radiology/*.xml`; without PNG or DICOM files the set holds sentences alone",
    takes=("phrases", "reports", "split_seed", "text_only"),
)
class OpeniSource(Source):
    """Open-i reports with the images that are beside them.

    There are no patient ids, so every report is its own patient, and no official split, so they
    are split by `seeded_split`.

    Args:
        path: a folder, or the archive of the reports.
        phrases: COCO boxes of the images, if any.
        reports: the archive or folder of the XML files, when ``path`` holds images alone.
        seed: of the split.
        text_only: leave images aside; also without, a set without image files is text alone.

    Raises:
        UserError: there are no reports, an archive is damaged, or a report is there twice.
    """

    kind: ClassVar[str] = "openi"

    def __init__(
        self,
        path: Path,
        phrases: Path | None = None,
        *,
        reports: Path | None = None,
        seed: int | None = None,
        text_only: bool = False,
    ) -> None:
        self.path = path
        self.text_only = text_only
        self.root = path if path.is_dir() else path.parent
        self.phrases_path = phrases
        self.seed = SPLIT_SEED if seed is None else seed
        self.reports_path = _reports_path(path if reports is None else reports)
        if self.reports_path is None:
            raise UserError(
                f"{reports or path}: has no reports, neither {REPORTS_TGZ} nor a folder"
                f" {XML_FOLDER} of XML files; put one there or name it with --reports."
            )
        self._reports = self._read_reports(self.reports_path)
        self._images = [] if text_only else self._read_images()

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take an archive, a folder of XML files, or a folder that holds one of these."""
        if path.is_file():
            return Sure.LAYOUT if path.name.lower().endswith(ARCHIVES) else Sure.NO
        return Sure.FILES if _reports_path(path) is not None else Sure.NO

    @classmethod
    def open(cls, path: Path, given: Given) -> OpeniSource:
        """Open a folder, or the archive of the reports."""
        boxes = given.phrases or ms_cxr.boxes_beside(path if path.is_dir() else path.parent)
        seed, text_only = given.split_seed, given.text_only
        return cls(path, boxes, reports=given.reports, seed=seed, text_only=text_only)

    def images(self) -> list[ImageRecord]:
        """Return the images in the order of their reports; none when there is no image file."""
        return self._images

    def studies(self, only: Collection[str] | None = None) -> Iterator[StudyRecord]:
        """Yield one study per report, in the order of the reports' numbers."""
        for report in self._reports:
            name = report.report_id
            if only is None or name in only:
                split = seeded_split(name, self.seed)
                yield StudyRecord(name, name, split, report.text, {}, report.origin, report.problem)

    def phrases(self) -> list[PhraseRecord]:
        """Return the phrases of the COCO file."""
        if self.phrases_path is None:
            return []
        return ms_cxr.read_phrases(self.phrases_path, self._images, self.root)

    def held_out_patients(self) -> frozenset[str]:
        """Return the patients with boxes: Open-i has no split of its own that keeps them out."""
        if self.phrases_path is None:
            return frozenset()
        found = ms_cxr.patients(self.phrases_path, self._images, self.root)
        return found & {report.report_id for report in self._reports}

    def steps(self) -> list[Step]:
        """Return nothing: Open-i has no table of labels."""
        return []

    def describe(self) -> list[str]:
        """Return what was found and what is missing."""
        listed = sum(len(report.images) for report in self._reports)
        said = [
            f"Open-i {self.reports_path}: {len(self._reports)} reports naming {listed} images.",
            "No patient ids: every report counts as its own patient; patients are split 80/10/10"
            f" by a hash of their id with seed {self.seed}.",
        ]
        there = sum(is_file(image.path) for image in self._images)
        if self._images:
            said.append(f"Images: {there} of {listed} are there.")
            views = Counter(image.view or "unknown" for image in self._images)
            said.append(f"Views: {', '.join(f'{n} {view}' for view, n in views.items())}.")
            if views["unknown"] and not is_file(self.root / PROJECTIONS):
                said.append(
                    f"No {PROJECTIONS}: views are known from DICOM headers alone; without them,"
                    " choose a policy for blank views."
                )
        elif self.text_only:
            said.append("Text alone: images are left aside.")
        else:
            packed = [name for name in _PACKED if is_file(self.root / name)]
            how = f"unpack {packed[0]}" if packed else f"unpack {_PACKED[0]} beside the reports"
            said.append(f"No image files: text alone ({how} to have images).")
        if self.phrases_path is not None:
            said += ms_cxr.describe(self.phrases_path, self.held_out_patients())
            said += ms_cxr.describe_match(self.phrases_path, self._images, self.root)
        return said

    def _read_reports(self, path: Path) -> list[_Report]:
        members = _archive_members(path) if path.is_file() else _folder_members(path)
        seen: dict[str, str] = {}
        reports = []
        for origin, content in members:
            report = _parse(origin, content)
            other = seen.setdefault(report.report_id, origin)
            if other != origin:
                raise UserError(
                    f"{origin}: its report is also in {other}; keep one file per report."
                )
            reports.append(report)
        if not reports:
            raise UserError(f"{path}: holds no XML file; download {REPORTS_TGZ} again.")
        return sorted(reports, key=lambda report: _by_number(report.report_id))

    def _read_images(self) -> list[ImageRecord]:
        owners: dict[str, tuple[_Report, str]] = {}
        for report in self._reports:
            for image_id in report.images:
                for name in _file_names(report.report_id, image_id):
                    owners[name] = (report, image_id)
        found: dict[str, Path] = {}
        for path in walk_files(self.root):
            if path.name.lower().endswith(_IMAGES):
                owner = owners.get(_stem(path.name))
                if owner is not None:
                    found[owner[1]] = _better(found.get(owner[1]), path)
        if not found:
            return []
        views = self._projections(owners)
        records = []
        for report in self._reports:
            for image_id in report.images:
                # One that is not here keeps a path, so that `prepare` counts and names it.
                path = found.get(image_id, self.root / f"{image_id}.png")
                view = views.get(image_id)
                if view is None:
                    view = view_position(path)
                name = report.report_id
                records.append(
                    ImageRecord(
                        *(image_id, name, name, path, view),
                        seeded_split(name, self.seed),
                        report.origin,
                    )
                )
        return records

    def _projections(self, owners: dict[str, tuple[_Report, str]]) -> dict[str, str]:
        path = self.root / PROJECTIONS
        if not is_file(path):
            return {}
        table = read_table(path, required=("filename", "projection"))
        views = {}
        for name, view in zip(table["filename"], table["projection"], strict=True):
            owner = owners.get(_stem(name))
            if owner is not None:
                views[owner[1]] = "" if is_blank(view) else view.upper()
        names = dict.fromkeys(table["filename"])
        check_match(path, "filename", names, len(views), Ids(owners), "images")
        return views


def _reports_path(path: Path) -> Path | None:
    if is_file(path):
        return path if path.name.lower().endswith(ARCHIVES) else None
    for folder in (path / XML_FOLDER, path / "NLMCXR_reports" / XML_FOLDER, path):
        if folder.is_dir() and any(folder.glob("*.xml")):
            return folder
    archive = path / REPORTS_TGZ
    return archive if is_file(archive) else None


def _folder_members(folder: Path) -> Iterator[tuple[str, bytes | str]]:
    """Yield the XML files of a folder; a sentence stands for one that cannot be read."""
    for path in sorted(folder.glob("*.xml")):
        content: bytes | str
        try:
            with path.open("rb") as file:
                content = file.read(MAX_XML_BYTES + 1)
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


def _parse(origin: str, content: bytes | str) -> _Report:
    """Read one XML file; a broken one keeps its name and says what is wrong."""
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, fromstring

    fallback = "CXR" + PurePosixPath(origin.replace("\\", "/")).stem
    if isinstance(content, str):
        return _Report(fallback, None, (), origin, content)
    if len(content) > MAX_XML_BYTES:
        problem = f"{origin}: is larger than {MAX_XML_BYTES >> 20} MiB, so it is no report."
        return _Report(fallback, None, (), origin, problem)
    try:
        root = fromstring(content)
    except DefusedXmlException:
        problem = f"{origin}: declares XML entities, which a report never does; remove the file."
        return _Report(fallback, None, (), origin, problem)
    except (ParseError, ValueError, LookupError):  # an unknown encoding is a LookupError
        problem = f"{origin}: is not readable XML; download it again."
        return _Report(fallback, None, (), origin, problem)
    number = root.find("uId")
    report_id = fallback if number is None else number.get("id") or fallback
    images = tuple(dict.fromkeys(i.get("id") or "" for i in root.iter("parentImage")))
    return _Report(report_id, _text(root), tuple(filter(None, images)), origin)


def _by_number(report_id: str) -> tuple[int, str]:
    """Order ``CXR2`` before ``CXR10``."""
    number = report_id.removeprefix("CXR")
    return (int(number), "") if number.isascii() and number.isdigit() else (sys.maxsize, report_id)


def _text(root: Any) -> str | None:
    """Put the labelled parts under headers, as a report of MIMIC-CXR has them."""
    parts = [
        (" ".join((part.get("Label") or "").split()), " ".join("".join(part.itertext()).split()))
        for part in root.iter("AbstractText")
    ]
    if not parts:
        return None
    return "\n \n".join(
        f" {label}: {text}" if label else f" {text}" for label, text in parts if text
    )


def _file_names(report_id: str, image_id: str) -> list[str]:
    """Names (without suffix) that a file of this image may have.

    >>> _file_names("CXR1", "CXR1_1_IM-0001-3001")
    ['CXR1_1_IM-0001-3001', '1_1_IM-0001-3001', '1_IM-0001-3001']
    """
    number = report_id.removeprefix("CXR")
    short = image_id.removeprefix("CXR")
    # In the first reports the number is written twice; the DICOM release has it once.
    return list(
        dict.fromkeys((image_id, short, short.replace(f"{number}_{number}_", f"{number}_")))
    )


def _stem(name: str) -> str:
    """Return a file's name without its suffixes; ``1_IM-0001.dcm.png`` has two."""
    return file_stem(file_stem(name))


def _better(known: Path | None, path: Path) -> Path:
    """DICOM keeps more grey levels than PNG; between equals the first by name stays."""
    if known is None:
        return path
    dicom = (".dcm", ".dcm.gz", ".dicom")
    better = path.name.lower().endswith(dicom) and not known.name.lower().endswith(dicom)
    return path if better else known
