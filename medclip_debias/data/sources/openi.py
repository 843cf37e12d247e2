"""Open-i, the Indiana University collection, as its two homes give it.

The National Library of Medicine: one XML file a report, in ``NLMCXR_reports.tgz`` (read as it is)
or unpacked (``ecgen-radiology/*.xml``), images as PNG or DICOM. Kaggle: ``indiana_reports.csv``,
``indiana_projections.csv`` and PNG files without ``CXR`` in their names. Where both are there, the
XML is read: it has 104 reports more.

Images are the files anywhere below the folder whose names are those of a report's images:
``CXR1_1_IM-0001-3001.png``, ``1_IM-0001-3001.dcm`` as the DICOM release names them, or
``1_IM-0001-3001.dcm.png``. Without images the source is text alone. The XML does not say which
image is frontal: ``indiana_projections.csv`` does, and so do DICOM headers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from medclip_debias.data.images.headers import view_position
from medclip_debias.data.mesh import Entry, Location, entries, openi_mapping
from medclip_debias.data.named_split import NamedSplit
from medclip_debias.data.records import (
    Annotations,
    ImageRecord,
    Step,
    StudyRecord,
)
from medclip_debias.data.sources import ms_cxr
from medclip_debias.data.sources.archive import ArchiveSource
from medclip_debias.data.sources.ids import Ids, check_match
from medclip_debias.data.sources.indiana import (
    ARCHIVES,
    PROJECTIONS,
    REPORTS_CSV,
    REPORTS_TGZ,
    XML_FOLDER,
    IndianaReport,
    Projections,
    read_projections,
    read_reports,
    read_xml,
    stem,
    with_images,
)
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.texts import WITHOUT_MARKUP
from medclip_debias.data.sources.tree import is_file, walk_files
from medclip_debias.data.splits import SPLIT_SEED, seeded_split
from medclip_debias.errors import UserError

SPLIT_NAME = "openi-report-80-10-10-v1"
"""The split by report that `seeded_split` gives with its default seed."""

_IMAGES = (".dcm", ".dcm.gz", ".dicom", ".png", ".jpg", ".jpeg")
_PACKED = ("NLMCXR_png.tgz", "NLMCXR_dcm.tgz")


@source(
    title="Open-i",
    looks=f"Open-i ({REPORTS_TGZ}, a folder {XML_FOLDER} or {REPORTS_CSV})",
    give="folder, archive of the XML, or Kaggle's `indiana_reports.csv`",
    needs="`ecgen-radiology/*.xml` or `indiana_reports.csv`; without PNG or DICOM files the set"
    " holds sentences alone",
    takes=("phrases", "reports", "split_seed", "text_only"),
)
class OpeniSource(ArchiveSource):
    """Open-i reports with the images that are beside them, and labels from their MeSH index.

    There are no patient ids, so every report is its own patient, and no official split, so they
    are split by `seeded_split`. A set without image files is text alone.

    Args:
        path: a folder, the archive of the reports, or their table.
        given: its ``reports`` are the archive or folder of the XML files, or the table, when
            ``path`` holds images alone.

    Raises:
        UserError: there are no reports, an archive or table is damaged, or a report is there twice.
    """

    kind: ClassVar[str] = "openi"

    def __init__(self, path: Path, given: Given) -> None:
        super().__init__(path if path.is_dir() else path.parent, given)
        self._seed = SPLIT_SEED if self.seed is None else self.seed
        reports = _reports_path(given.reports or path)
        if reports is None:
            raise UserError(
                f"{given.reports or path}: has no reports, neither {REPORTS_TGZ} nor a folder"
                f" {XML_FOLDER} of XML files nor {REPORTS_CSV}; put one there or name it with"
                " --reports."
            )
        self.reports_path = reports
        self._projections: Projections | None = None
        self._named = 0  # projections that name an image of a report
        self._files = self._used = 0  # image files there, and those of a report
        is_table = reports.suffix.lower() == ".csv"
        self._table = read_reports(reports) if is_table else None
        self._reports = self._table.reports if self._table else read_xml(reports)
        if not self.text_only:
            self._read_images()
        boxes = given.phrases or ms_cxr.boxes_beside(self.root)
        if boxes is not None:
            self.boxes = ms_cxr.BoxFile(boxes, self.image_records, self.root)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take an archive, a table, a folder of XML files, or a folder that holds one of these."""
        if path.is_file():
            name = path.name.lower()
            return Sure.LAYOUT if name == REPORTS_CSV or name.endswith(ARCHIVES) else Sure.NO
        return Sure.FILES if _reports_path(path) is not None else Sure.NO

    def studies(self, only: Collection[str] | None = None) -> Iterator[StudyRecord]:
        """Yield one study per report, in the order of the reports' numbers."""
        mapping = openi_mapping()
        for report in self._reports:
            name = report.report_id
            if only is None or name in only:
                index = entries(report.index)
                yield StudyRecord(
                    *(name, name, seeded_split(name, self._seed), report.text),
                    *(mapping.labels(index), report.origin, report.problem),
                )

    def annotations(self) -> list[Annotations]:
        """Return where the index of each report says that something is."""
        mapping = openi_mapping()
        rows = [
            (report.report_id, *location)
            for report, index in zip(self._reports, self._indices, strict=True)
            if mapping.is_indexed(index)
            for location in mapping.locations(index)
        ]
        columns = (("study_id", "text"), *((name, "text") for name in Location._fields))
        return [Annotations("locations", "locations", columns, rows, study="study_id")]

    def held_out_patients(self) -> frozenset[str]:
        """Return the patients with boxes: Open-i has no split of its own that keeps them out."""
        if self.boxes is None:
            return frozenset()
        return self.boxes.patients() & {report.report_id for report in self._reports}

    def named_split(self) -> NamedSplit:
        """Return the split of every report, under its name."""
        other = f"openi-report-80-10-10-seed-{self._seed}"
        name = SPLIT_NAME if self._seed == SPLIT_SEED else other
        ids = (report.report_id for report in self._reports)
        return NamedSplit(name, {i: seeded_split(i, self._seed) for i in ids})

    def steps(self) -> list[Step]:
        """Return what the tables and the human indexing held, and what was left aside."""
        steps = [] if self._table is None else self._table.steps()
        markup = sum(report.markup for report in self._reports)
        if markup:
            steps.append((WITHOUT_MARKUP, "reports", markup, None))
        if self._projections is not None:
            path, rows = self._projections.path.name, self._projections.rows
            once = rows - self._projections.repeated
            if once != rows:
                steps.append((f"row of {path} repeats no other", "projection rows", once, rows))
            name = f"file named in {path} is an image of a report"
            steps.append((name, "projection rows", self._named, once))
        if self._used < self._files:
            steps.append(("image file is of a report", "image files", self._used, self._files))
        mapping, count = openi_mapping(), len(self._reports)
        indexed = [index for index in self._indices if mapping.is_indexed(index)]
        steps.append(("report is indexed by people (MeSH)", "reports", len(indexed), count))
        told = sum(len(index) for index in indexed)
        placed = sum(any(mapping.locations([e])) for index in indexed for e in index)
        steps.append(("entry of the index names a side or zone", "index entries", placed, told))
        return steps

    @cached_property
    def _indices(self) -> list[list[Entry]]:
        return [entries(report.index) for report in self._reports]

    def describe(self) -> list[str]:
        """Return what was found and what is missing."""
        listed = sum(len(report.images) for report in self._reports)
        said = [f"Open-i {self.reports_path}: {len(self._reports)} reports naming {listed} images."]
        said += self._other_reports()
        said += [] if self._table is None else self._table.said()
        parts = [set(report.sections) for report in self._reports]
        removed = sum("XXXX" in (report.text or "") for report in self._reports)
        said.append(
            f"{sum('FINDINGS' not in part for part in parts)} reports have no findings,"
            f" {sum(not {'FINDINGS', 'IMPRESSION'} & part for part in parts)} of them no impression"
            f" either; in {removed} words were replaced by XXXX before publication."
        )
        said.append(
            "No patient ids: every report counts as its own patient; patients are split 80/10/10"
            f" by a hash of their id with seed {self._seed}."
        )
        indexed = sum(map(openi_mapping().is_indexed, self._indices))
        said.append(
            f"Labels: from the human indexing of {indexed} reports ({openi_mapping().name});"
            f" {len(self._reports) - indexed} reports are not indexed and have blank labels."
        )
        if self._used < self._files:
            said.append(
                f"{self._files - self._used} of {self._files} image files have no report's name"
                " and are left aside."
            )
        there = sum(is_file(image.path) for image in self.image_records)
        if self.image_records:
            said.append(f"Images: {there} of {listed} are there.")
            views = Counter(image.view or "unknown" for image in self.image_records)
            said.append(f"Views: {', '.join(f'{n} {view}' for view, n in views.items())}.")
            if views["unknown"] and self._projections is None:
                said.append(
                    f"No {PROJECTIONS}: views are known from DICOM headers alone; without them,"
                    " choose a policy for blank views."
                )
        elif self.text_only:
            said.append("Text only: images are skipped.")
        else:
            packed = [name for name in _PACKED if is_file(self.root / name)]
            how = f"unpack {packed[0]}" if packed else f"unpack {_PACKED[0]} beside the reports"
            said.append(f"No image files: text alone ({how} to have images).")
        if self.boxes is not None:
            said += self.boxes.describe(self.held_out_patients())
        return said

    def _other_reports(self) -> list[str]:
        """Say which of two sets of reports was read, and where they differ."""
        path = self.root / REPORTS_CSV
        if self._table is not None or not is_file(path):
            return []
        try:
            other = {report.report_id: report for report in read_reports(path).reports}
        except UserError:
            return [f"{path}: is not read, as the XML is there; it is not a readable table either."]
        own = {report.report_id: report for report in self._reports}
        both = own.keys() & other.keys()
        texts = sum(own[name].text != other[name].text for name in both)
        index = sum(own[name].index != other[name].index for name in both)
        return [
            f"{path}: is not read, as the XML is there; of its {len(other)} reports {len(both)} are"
            f" in the XML, {texts} of them with another text and {index} with another index, and"
            f" {len(own) - len(both)} are in the XML alone."
        ]

    def _read_images(self) -> None:
        files = [p for p in walk_files(self.root) if p.name.lower().endswith(_IMAGES)]
        path = self.root / PROJECTIONS
        if not is_file(path):
            path = self.reports_path.parent / PROJECTIONS
        self._projections = read_projections(path) if is_file(path) and files else None
        if self._table is not None:
            names = sorted({stem(file.name) for file in files})
            self._reports = with_images(self._reports, self._projections, names)
        owners: dict[str, tuple[IndianaReport, str]] = {}
        for report in self._reports:
            for image_id in report.images:
                for name in _file_names(report.report_id, image_id):
                    owners[name] = (report, image_id)
        found: dict[str, Path] = {}
        self._files = len(files)
        for file in files:
            owner = owners.get(stem(file.name))
            if owner is not None:
                self._used += 1
                found[owner[1]] = _better(found.get(owner[1]), file)
        if not found:
            self._projections = None
            return
        views = self._views(owners)
        for report in self._reports:
            for image_id in report.images:
                # One that is not here keeps a path, so that `prepare` counts and names it.
                file = found.get(image_id, self.root / f"{image_id}.png")
                view = views.get(image_id)
                if view is None:
                    view = view_position(file)
                name = report.report_id
                about = file, view, seeded_split(name, self._seed), report.origin
                self.image_records.append(ImageRecord(image_id, name, name, *about))

    def _views(self, owners: dict[str, tuple[IndianaReport, str]]) -> dict[str, str]:
        """Return the views by image id, and count the files that are none of a report's."""
        if self._projections is None:
            return {}
        views = {}
        for name, view in self._projections.views.items():
            owner = owners.get(name)
            if owner is not None:
                self._named += 1
                views[owner[1]] = view
        path, names = self._projections.path, dict.fromkeys(self._projections.views)
        check_match(path, "filename", names, self._named, Ids(owners), "images")
        return views


def _reports_path(path: Path) -> Path | None:
    if is_file(path):
        name = path.name.lower()
        return path if name.endswith(ARCHIVES) or name == REPORTS_CSV else None
    for folder in (path / XML_FOLDER, path / "NLMCXR_reports" / XML_FOLDER, path):
        if folder.is_dir() and any(folder.glob("*.xml")):
            return folder
    files = (path / REPORTS_TGZ, path / REPORTS_CSV)
    return next((file for file in files if is_file(file)), None)


def _file_names(report_id: str, image_id: str) -> list[str]:
    """Names (without suffix) that a file of this image may have.

    >>> _file_names("CXR1", "CXR1_1_IM-0001-3001")
    ['CXR1_1_IM-0001-3001', '1_1_IM-0001-3001', '1_IM-0001-3001', 'CXR1_IM-0001-3001']
    """
    number = report_id.removeprefix("CXR")
    short = image_id.removeprefix("CXR")
    # In the first report the number is written twice; the DICOM release and Kaggle have it once.
    once = short.replace(f"{number}_{number}_", f"{number}_")
    return list(dict.fromkeys((image_id, short, once, f"CXR{once}")))


def _better(known: Path | None, path: Path) -> Path:
    """DICOM keeps more grey levels than PNG; between equals the first by name stays."""
    if known is None:
        return path
    dicom = (".dcm", ".dcm.gz", ".dicom")
    better = path.name.lower().endswith(dicom) and not known.name.lower().endswith(dicom)
    return path if better else known
