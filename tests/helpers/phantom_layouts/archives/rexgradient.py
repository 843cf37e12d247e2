"""ReXGradient-160K: PNG files in deep folders, an object of studies for each split."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.layout import Layout

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
    source_kind = "rexgradient"
    lossless = True
    sections = ("findings", "impression")

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

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        entries = {study.place: self._entry(study) for study in content.studies}
        owners = [study.place for study in content.studies]
        by_place = {study.place: study for study in content.studies}
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)
        for place in defects.choose(owners):
            entry, name = entries[place], self._file(by_place[place])
            entry["ImagePath"].append(entry["ImagePath"][0])
            entry["ImageViewPosition"].append(entry["ImageViewPosition"][0])
            step = f"image of {Path(name).name} is named once"
            defects.add("image_twice", name, f"study {place}", "funnel", step)
        for place in defects.choose(owners):
            entries[place]["ImageViewPosition"].append("PA")
            name = self._file(by_place[place])
            words = f"{Path(name).name}: "
            defects.add("view_too_many", name, f"study {place}", "describe", words)
        for place in defects.choose(owners):
            entries[place]["PatientID"] = float("nan")
            name = self._file(by_place[place])
            step = f"study of {Path(name).name} has a patient, an id and images"
            defects.add("no_patient", name, f"study {place}", "funnel", step)
        for split in SPLITS:
            chosen = {
                f"{entries[s.place]['id']}": entries[s.place]
                for s in content.studies
                if s.split == split
            }
            name = f"metadata/{SPLITS[split]}_metadata_view_position.json"
            (root / "metadata").mkdir(exist_ok=True)
            (root / name).write_text(json.dumps(chosen, indent=1) + "\n", encoding="utf-8")

    def _file(self, study: ContentStudy) -> str:
        return f"metadata/{SPLITS[study.split]}_metadata_view_position.json"

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
