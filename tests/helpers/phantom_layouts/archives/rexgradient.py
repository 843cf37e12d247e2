"""ReXGradient-160K: PNG files in deep folders, an object of studies for each split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.defects import Kind, Row, setting
from phantom_layouts.layout import Layout

TABLE = "metadata/{}_metadata_view_position.json"
SPLITS = {"train": "train", "validate": "valid", "test": "test"}
LATERAL, VIEWS = "LATERAL", {"PA": "POSTERO_ANTERIOR", "AP": "AP"}
_ROOT = "2.25"  # UIDs of the arc of UUID-derived identifiers


def _letters(*parts: object) -> str:
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest().upper()
    return f"GRDN{digest[:12]}"


class ReXGradient(Layout):
    """The root holds ``metadata`` and ``deid_png``."""

    kind = "rexgradient"
    title = "ReXGradient-160K"
    headers: ClassVar = dict.fromkeys(map(TABLE.format, SPLITS.values()), ())

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        image = self.image_id(study, view)
        number = self.study_id(study)
        return (
            f"deid_png/{self.patient_id(study)}/{_letters('accession', study.place)}"
            f"/studies/{number}/series/{number}.{view.number}/instances/{image}.png"
        )

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return f"{self.study_id(study)}.{view.number}.1"

    def study_id(self, study: ContentStudy) -> str:
        return f"{_ROOT}.{study.study.study_id}"

    def patient_id(self, study: ContentStudy) -> str:
        return _letters("patient", study.patient)

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        if view.number == 1:
            entry, name = self._entry(study), f"study {study.place}"
            yield Row(TABLE.format(SPLITS[study.split]), study, view, entry, name)

    def kinds(self, rows: list[Row]) -> Iterable[Kind]:
        def twice(row: Row) -> None:
            for key in ("ImagePath", "ImageViewPosition"):
                row.cells[key].append(row.cells[key][0])

        def longer(row: Row) -> None:
            row.cells["ImageViewPosition"].append("PA")

        nobody = setting("PatientID", float("nan"))
        yield Kind("image_twice", "image of {file} is named once", twice)
        yield Kind("view_too_many", "{file}: ", longer, shown="describe")
        yield Kind("no_patient", "study of {file} has a patient, an id and images", nobody)

    def write_file(self, path: Path, rows: Sequence[Any]) -> None:
        content = {entry["id"]: entry for entry in rows}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def _entry(self, study: ContentStudy) -> dict[str, Any]:
        patient, accession = self.patient_id(study), _letters("accession", study.place)
        return {
            "id": f"p{patient}_a{accession}_st{self.study_id(study)}",
            "PatientID": patient,
            "AccessionNumber": accession,
            "StudyInstanceUid": self.study_id(study),
            "PatientSex": "F" if study.female else "M",
            "PatientAge": f"{study.age:03d}Y",
            "StudyDate": int(study.study.date),
            "Indication": None,
            "Comparison": "None",
            "Findings": study.section("findings") or float("nan"),
            "Impression": study.section("impression") or float("nan"),
            "ImagePath": [f"../{self.image_file(study, view)}" for view in study.views],
            "ImageViewPosition": [VIEWS.get(v.stated, v.stated) or None for v in study.views],
        }
