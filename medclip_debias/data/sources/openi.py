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
from pathlib import Path
from typing import ClassVar

from medclip_debias.data.images.contents import SUFFIXES
from medclip_debias.data.images.headers import view_position
from medclip_debias.data.mesh import Location, entries, openi_mapping
from medclip_debias.data.named_split import NamedSplit
from medclip_debias.data.records import Annotations, ImageRecord, StudyRecord
from medclip_debias.data.sources import ms_cxr
from medclip_debias.data.sources.archive import ArchiveSource
from medclip_debias.data.sources.ids import Ids, check_match
from medclip_debias.data.sources.image_files import DICOM, is_file, walk_files
from medclip_debias.data.sources.indiana import (
    ARCHIVES,
    PROJECTIONS,
    REPORTS_CSV,
    REPORTS_TGZ,
    XML_FOLDER,
    read_projections,
    read_reports,
    read_xml,
    stem,
    with_images,
)
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.data.sources.texts import WITHOUT_MARKUP
from medclip_debias.data.splits import SPLIT_SEED
from medclip_debias.errors import UserError, counted

SPLIT_NAME = "openi-report-80-10-10-v1"
"""The split by report that `seeded_split` gives with its default seed."""

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
        self._is_table = reports.suffix.lower() == ".csv"
        if self._is_table:
            self._reports = read_reports(self, reports)
        else:
            self._reports = read_xml(reports)
            if is_file(self.root / REPORTS_CSV):
                self.said = [f"{self.root / REPORTS_CSV}: is not read, as the XML is there."]
        markup = sum(report.markup for report in self._reports)
        if markup:
            self.counted.append((WITHOUT_MARKUP, "reports", markup, None))
        self._unused = self._files = 0  # image files that are of no report, and all of them
        self._views_known = False
        if not self.text_only:
            self._read_images()
        self._indices = [entries(report.index) for report in self._reports]
        self._count_index()
        boxes = given.phrases or ms_cxr.boxes_beside(self.root)
        if boxes is not None:
            self.boxes = ms_cxr.BoxFile(boxes, self.image_records, self.root)

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        """Take an archive, a table, a folder of XML files, or a folder that holds one of these."""
        reports = _reports_path(path)
        return Sure.NO if reports is None else Sure.LAYOUT if path.is_file() else Sure.FILES

    def studies(self, only: Collection[str] | None = None) -> Iterator[StudyRecord]:
        """Yield one study per report, in the order of the reports' numbers."""
        mapping = openi_mapping()
        for report, index in zip(self._reports, self._indices, strict=True):
            name = report.report_id
            if only is None or name in only:
                about = report.text, mapping.labels(index), report.origin, report.problem
                yield StudyRecord(name, name, self.split(name), *about)

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
        other = f"openi-report-80-10-10-seed-{self._seed}"
        name = SPLIT_NAME if self._seed == SPLIT_SEED else other
        ids = (report.report_id for report in self._reports)
        return NamedSplit(name, {i: self.split(i) for i in ids})

    def describe(self) -> list[str]:
        reports = self._reports
        listed = sum(len(report.images) for report in reports)
        parts = [set(report.sections) for report in reports]
        removed = sum("XXXX" in (report.text or "") for report in reports)
        indexed = sum(map(openi_mapping().is_indexed, self._indices))
        said = [
            f"Open-i {self.reports_path}: {counted(len(reports), 'report')} naming"
            f" {counted(listed, 'image')}.",
            *self.said,
            f"{sum('FINDINGS' not in part for part in parts)} reports have no findings,"
            f" {sum(not {'FINDINGS', 'IMPRESSION'} & part for part in parts)} of them no impression"
            f" either; in {removed} words were replaced by XXXX before publication.",
            "No patient ids: every report counts as its own patient; patients are split 80/10/10"
            f" by a hash of their id with seed {self._seed}.",
            f"Labels: from the human indexing of {indexed} reports ({openi_mapping().name});"
            f" {len(reports) - indexed} reports are not indexed and have blank labels.",
        ]
        if self._unused:
            said.append(
                f"{self._unused} of {self._files} image files match no report and are skipped."
            )
        said += self._images_said(listed)
        if self.boxes is not None:
            said += self.boxes.describe(self.held_out_patients())
        return said

    def _images_said(self, listed: int) -> list[str]:
        if self.text_only:
            return ["Text only: images are skipped."]
        if not self.image_records:
            packed = [name for name in _PACKED if is_file(self.root / name)]
            how = f"unpack {packed[0]}" if packed else f"unpack {_PACKED[0]} beside the reports"
            return [f"No image files: text alone ({how} to have images)."]
        there = sum(is_file(image.path) for image in self.image_records)
        views = Counter(image.view or "unknown" for image in self.image_records)
        said = [
            f"Images: {there} of {listed} are there.",
            f"Views: {', '.join(f'{n} {view}' for view, n in views.items())}.",
        ]
        if views["unknown"] and not self._views_known:
            said.append(
                f"No {PROJECTIONS}: views are known from DICOM headers alone; without them, choose"
                " a policy for blank views."
            )
        return said

    def _count_index(self) -> None:
        mapping = openi_mapping()
        indexed = [index for index in self._indices if mapping.is_indexed(index)]
        placed = [any(mapping.locations([entry])) for index in indexed for entry in index]
        step = "report is indexed by people (MeSH)"
        self.counted += [
            (step, "reports", len(indexed), len(self._indices)),
            ("entry of the index names a side or zone", "index entries", sum(placed), len(placed)),
        ]

    def _read_images(self) -> None:
        files = [p for p in walk_files(self.root) if p.name.lower().endswith(SUFFIXES)]
        places = (self.root / PROJECTIONS, self.reports_path.parent / PROJECTIONS)
        path = next(filter(is_file, places), None) if files else None
        projections, rows = (None, 0) if path is None else read_projections(path)
        if self._is_table:
            names = sorted({stem(file.name) for file in files})
            self._reports = with_images(self._reports, projections, names)
        image_ids = {
            name: image_id
            for report in self._reports
            for image_id in report.images
            for name in _file_names(report.report_id, image_id)
        }
        known = [(image_ids[s], p) for p in files if (s := stem(p.name)) in image_ids]
        # DICOM keeps more grey levels than PNG; between equals the first by name stays.
        known.sort(key=lambda pair: not pair[1].name.lower().endswith(DICOM))
        paths: dict[str, Path] = {}
        for image_id, file in known:
            paths.setdefault(image_id, file)
        views: dict[str, str] = {}
        if path is not None and projections is not None and paths:
            self._views_known = True
            listed = projections[projections.index.isin(image_ids)]
            views = dict(zip(listed.index.map(image_ids.get), listed["view"], strict=True))
            named, once = len(listed), len(projections)
            step = f"row of {path.name} repeats no other"
            self.count(step, "projection rows", once, rows)
            step = f"file named in {path.name} is an image of a report"
            self.counted.append((step, "projection rows", named, once))
            ids = dict.fromkeys(projections.index)
            check_match(path, "filename", ids, named, Ids(image_ids), "images")
        self._files, self._unused = len(files), len(files) - len(known)
        self.count("image file is of a report", "image files", len(known), len(files))
        step = (
            "image file is the only one of its image (else DICOM, then the first by path, is read)"
        )
        self.count(step, "image files", len(paths), len(known))
        for report in self._reports if paths else ():
            for image_id in report.images:
                # One that is not here keeps a path, so that `prepare` counts and names it.
                file = paths.get(image_id, self.root / f"{image_id}.png")
                view = views[image_id] if image_id in views else view_position(file)
                name = report.report_id
                about = file, view, self.split(name), report.origin
                self.image_records.append(ImageRecord(image_id, name, name, *about))


def _reports_path(path: Path) -> Path | None:
    if is_file(path):
        name = path.name.lower()
        return path if name.endswith(ARCHIVES) or name == REPORTS_CSV else None
    for folder in (path / XML_FOLDER, path / "NLMCXR_reports" / XML_FOLDER, path):
        if folder.is_dir() and any(folder.glob("*.xml")):
            return folder
    return next(filter(is_file, (path / REPORTS_TGZ, path / REPORTS_CSV)), None)


def _file_names(report_id: str, image_id: str) -> set[str]:
    """Names (without suffix) that a file of this image may have.

    >>> sorted(_file_names("CXR1", "CXR1_1_IM-0001-3001"))
    ['1_1_IM-0001-3001', '1_IM-0001-3001', 'CXR1_1_IM-0001-3001', 'CXR1_IM-0001-3001']
    """
    number = report_id.removeprefix("CXR")
    short = image_id.removeprefix("CXR")
    # In the first report the number is written twice; the DICOM release and Kaggle have it once.
    once = short.replace(f"{number}_{number}_", f"{number}_")
    return {image_id, short, once, f"CXR{once}"}
