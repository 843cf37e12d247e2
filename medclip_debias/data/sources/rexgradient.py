"""ReXGradient-160K (Zhang et al. 2025): radiographs of 79 sites with reports in four sections.

``<split>_metadata_view_position.json`` (``train``, ``valid``, ``test``) is an object of studies:
``PatientID``, ``StudyInstanceUid``, ``Indication``, ``Comparison``, ``Findings``, ``Impression``,
and one entry for each image in ``ImagePath`` (``../deid_png/...``) and ``ImageViewPosition``.
There are no labels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from medclip_debias.data.records import ImageRecord, file_stem
from medclip_debias.data.sources.archive import (
    ArchiveSource,
    find_table,
    report_of,
    seeded_said,
)
from medclip_debias.data.sources.ids import is_blank
from medclip_debias.data.sources.registry import Given, Sure, source
from medclip_debias.errors import UserError, counted
from medclip_debias.files import read_json_value

TABLES = {
    "train": "train_metadata_view_position.json",
    "validate": "valid_metadata_view_position.json",
    "test": "test_metadata_view_position.json",
}
VIEWS = {
    "POSTERO_ANTERIOR": "PA",
    "ANTERO_POSTERIOR": "AP",
    **dict.fromkeys(("LL", "RL", "LAT"), "LATERAL"),
    **dict.fromkeys(("UNKNOWN", "N/A"), ""),
}
"""View positions that the archive also writes in another way."""

_FOLDERS = ("", "metadata", "download/metadata", "download")
_SECTIONS = ("Indication", "Comparison", "Findings", "Impression")


@source(
    title="ReXGradient-160K",
    looks="ReXGradient-160K (metadata/train_metadata_view_position.json)",
    give="folder that holds `metadata/` and `deid_png/`",
    needs="`<split>_metadata_view_position.json` of `train`, `valid` or `test`, and the unpacked"
    " PNG files; there are no labels",
    takes=("split_seed", "text_only"),
    instead={"reports": "the JSON files of ReXGradient have its reports; leave out --reports"},
)
class ReXGradientSource(ArchiveSource):
    """A folder of ReXGradient-160K: that of ``metadata``, or that folder itself."""

    kind: ClassVar[str] = "rexgradient"

    def __init__(self, root: Path, given: Given) -> None:
        super().__init__(root, given)
        tables = _tables(root)
        if not tables:
            raise UserError(f"{root}: has no {' or '.join(TABLES.values())}; check the path.")
        self._known: set[str] = set()
        reports: dict[str, str | None] = {}
        for split, path in tables.items():
            self._read(path, split, reports)
        self.add_studies(reports=reports)
        names = ", ".join(path.name for path in tables.values())
        images = counted(len(self.image_records), "image")
        studies = counted(len(self.study_records), "study")
        self.said += [
            f"ReXGradient-160K {root} ({names}): {images} of {studies}.",
            self.views_said(),
            *([] if self.seed is None else [f"Split: {seeded_said(self.seed)}."]),
            "No labels.",
        ]

    @classmethod
    def recognise(cls, path: Path) -> Sure:
        return Sure.RELEASE if path.is_dir() and _tables(path) else Sure.NO

    def _read(self, path: Path, split: str, reports: dict[str, str | None]) -> None:
        """Read one file: add its images and the reports of its studies."""
        content = read_json_value(path, "download it again")
        if not isinstance(content, dict):
            raise UserError(f"{path}: is not an object of studies; download it again.")
        entries = [(n, e) for n, e in enumerate(content.values(), start=1) if _is_study(e)]
        step = f"study of {path.name} has a patient, an id and images"
        self.count(step, "rows", len(entries), len(content))
        names = [str(name) for _, entry in entries for name in entry["ImagePath"]]
        places = None if self.text_only else self.locate(names, ("..",))
        before, short = len(self._known), 0
        for number, entry in entries:
            study, patient = str(entry["StudyInstanceUid"]), str(entry["PatientID"])
            views, paths = entry.get("ImageViewPosition"), entry["ImagePath"]
            if not isinstance(views, list) or len(views) != len(paths):
                short += 1
                views = [""] * len(paths)
            for name, view in zip(map(str, paths), map(_text, views), strict=True):
                image, view = file_stem(name), VIEWS.get(view.upper(), view.upper())
                if image not in self._known:
                    self._known.add(image)
                    file = Path() if places is None else places.path(name)
                    about = file, view, self.split(patient, split), f"{path}, study number {number}"
                    self.image_records.append(ImageRecord(image, study, patient, *about))
            sections = {name: _text(entry.get(name)) for name in _SECTIONS}
            reports[study] = reports.get(study) or report_of(sections) or None
        step = f"image of {path.name} is named once"
        self.count(step, "rows", len(self._known) - before, len(names))
        if short:
            self.said.append(
                f"{path}: {short} studies have more or fewer view positions than images; the views"
                " of their images count as unknown."
            )


def _tables(root: Path) -> dict[str, Path]:
    places = [root / name for name in _FOLDERS]
    return {s: path for s, name in TABLES.items() if (path := find_table(places, name))}


def _is_study(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("ImagePath"), list):
        return False
    named = _text(entry.get("PatientID")) and _text(entry.get("StudyInstanceUid"))
    return bool(named and entry["ImagePath"])


def _text(value: Any) -> str:
    """A value as text; JSON's ``null`` and ``NaN`` are blank."""
    text = "" if value is None else str(value)
    return "" if is_blank(text) else text
