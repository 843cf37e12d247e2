"""The tables of a phantom: the truth of any layout, MIMIC-CXR's own, and the MS-CXR boxes."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medclip_debias.config import settings_hash
from medclip_debias.data.labels import CHEXPERT_LABELS
from medclip_debias.phantom.catalogue import (
    CATEGORY_OF_TYPE,
    CLASS_NAMES,
    CLASSES,
    MS_CXR_CATEGORIES,
    TRUE_LABELS,
    class_probabilities,
)
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.language import Sentence
from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.study import Study
from medclip_debias.phantom.truth import Statement, eta_true

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Written:
    """A study whose files are on disk: what the tables need to know of it."""

    study: Study
    boxes: dict[str, dict[int, tuple[Box, ...]]]  # by dicom_id, then class
    phrases: dict[str, list[tuple[int, Sentence]]]


@dataclass(frozen=True)
class Names:
    """What the files of a layout call images, studies and patients.

    Attributes:
        images: id by the ``dicom_id`` of the plan; an image without one is not in the layout.
        studies: id by the ``study_id`` of the plan.
        patients: id by the ``subject_id`` of the plan.
    """

    images: Mapping[str, str]
    studies: Mapping[int, str]
    patients: Mapping[int, str]


def write_mimic_tables(
    root: Path, settings: PhantomSettings, written: Sequence[Written]
) -> dict[str, int]:
    """Write MIMIC-CXR's tables, MS-CXR and the truth; return the counts."""
    _write_image_tables(root, settings, written)
    _write_label_tables(root, [w.study for w in written])
    boxes, phrases = _write_ms_cxr(root, written)
    return write_truth_tables(root, settings, written, counts={"phrases": phrases, "boxes": boxes})


def write_truth_tables(
    root: Path,
    settings: PhantomSettings,
    written: Sequence[Written],
    names: Names | None = None,
    counts: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Write the folder ``truth`` of a tree in any layout; return the counts."""
    studies = [w.study for w in written]
    if names is None:
        names = Names(
            images={view.dicom_id: view.dicom_id for s in studies for view in s.views},
            studies={s.study_id: str(s.study_id) for s in studies},
            patients={s.subject_id: str(s.subject_id) for s in studies},
        )
    (root / "truth").mkdir()
    _write_true_images(root, written, names)
    counts = {
        "patients": len({s.subject_id for s in studies}),
        "studies": len(written),
        "images": len(names.images),
        "sentences": _write_true_sentences(root, studies, names),
        **(counts or {}),
    }
    shares = class_probabilities(
        settings.classes, settings.probability_scale, settings.tail_exponent
    )
    about = ("name", "type", "side", "zone", "severity")
    meta = {
        "format_version": FORMAT_VERSION,
        "settings": settings.model_dump(mode="json"),
        "settings_hash": settings_hash(settings),
        "counts": counts,
        "studies_by_split": {s: sum(o.split == s for o in studies) for s in settings.counts()},
        "classes": [
            {**{name: getattr(c, name) for name in about}, "probability": float(share)}
            for c, share in zip(CLASSES, shares, strict=True)
        ],
    }
    text = json.dumps(meta, indent=1) + "\n"
    (root / "truth" / "meta.json").write_text(text, encoding="utf-8")
    return counts


# ---------------------------------------------------------------------- MIMIC-CXR's tables


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV table (gzipped when its name ends in ``.gz``); the same rows, the same bytes."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(header)
    table.writerows(rows)
    content = text.getvalue().encode()
    if path.suffix == ".gz":
        # No time and no file name in the header: the same rows give the same bytes.
        content = gzip.compress(content, compresslevel=6, mtime=0)
    path.write_bytes(content)


def _write_image_tables(root: Path, settings: PhantomSettings, written: Sequence[Written]) -> None:
    """Write the lists of images and studies, the split and the metadata."""
    import pandas as pd

    ending = "dcm" if settings.format == "dicom" else "jpg"
    coded = {"AP": "antero-posterior", "PA": "postero-anterior", "LATERAL": "lateral", "": ""}
    rows = []
    for study in (w.study for w in written):
        for view in study.views:
            portable = view.position == "AP"
            procedure = "CHEST (PORTABLE AP)" if portable else "CHEST (PA AND LAT)"
            rows.append(
                {
                    "dicom_id": view.dicom_id,
                    "subject_id": study.subject_id,
                    "study_id": study.study_id,
                    "PerformedProcedureStepDescription": procedure,
                    "ViewPosition": view.stated,
                    "Rows": view.size[0],
                    "Columns": view.size[1],
                    "StudyDate": study.date,
                    "StudyTime": study.time,
                    "ProcedureCodeSequence_CodeMeaning": procedure,
                    "ViewCodeSequence_CodeMeaning": coded[view.stated],
                    "PatientOrientationCodeSequence_CodeMeaning": "" if portable else "Erect",
                    "split": study.split,
                    "path": f"{study.folder}/{view.dicom_id}.{ending}",
                    "report": f"{study.folder}.txt",
                }
            )
    images = pd.DataFrame(rows)
    tables = {
        "cxr-record-list": images[["subject_id", "study_id", "dicom_id", "path"]],
        "cxr-study-list": images[["subject_id", "study_id", "report"]]
        .drop_duplicates()
        .rename(columns={"report": "path"}),
        "mimic-cxr-2.0.0-split": images[["dicom_id", "study_id", "subject_id", "split"]],
        "mimic-cxr-2.0.0-metadata": images.drop(columns=["split", "path", "report"]),
    }
    for name, table in tables.items():
        lines = table.itertuples(index=False, name=None)
        write_csv(root / f"{name}.csv.gz", table.columns.tolist(), lines)


def _write_label_tables(root: Path, studies: Sequence[Study]) -> None:
    """Write the labeller's table, and the radiologists' of the test set."""

    def row(study: Study) -> list[Any]:
        sentences = study.report.sentences
        labels = report_labels(p.sentence.statement for p in sentences) if sentences else {}
        values = [f"{labels[c]:.1f}" if c in labels else "" for c in CHEXPERT_LABELS]
        return [study.subject_id, study.study_id, *values]

    header = ["subject_id", "study_id", *CHEXPERT_LABELS]
    write_csv(root / "mimic-cxr-2.0.0-chexpert.csv.gz", header, map(row, studies))
    renamed = ["Airspace Opacity" if c == "Lung Opacity" else c for c in CHEXPERT_LABELS]
    tests = [s for s in studies if s.split == "test"]
    write_csv(
        root / "mimic-cxr-2.1.0-test-set-labeled.csv",
        ["study_id", *renamed],
        ([s.study_id, *true_labels(s.findings).values()] for s in tests),
    )


def report_labels(statements: Iterable[Statement]) -> dict[str, int]:
    """Labels that a rule-based labeller would read from a report's statements.

    1 wins over -1 (hedged) wins over 0; what is not mentioned has no key. ``No Finding`` is 1
    when nothing but devices is present or possible.
    """
    rank = {0: 0, -1: 1, 1: 2}
    labels: dict[str, int] = {}
    other = False
    for statement in statements:
        for clause in statement.clauses:
            value = (-1 if clause.hedged else 1) if clause.present else 0
            if clause.label is None:
                other = other or clause.present
                continue
            if clause.label not in labels or rank[value] > rank[labels[clause.label]]:
                labels[clause.label] = value
    disease = {k: v for k, v in labels.items() if k != "Support Devices"}
    if not other and all(v == 0 for v in disease.values()):
        labels["No Finding"] = 1
    return labels


def true_labels(findings: Iterable[int]) -> dict[str, int]:
    """Every CheXpert label of a study with these classes (by index): 1 or 0."""
    kinds = {CLASSES[i].type for i in findings}
    labels = {name for kind in kinds for name in TRUE_LABELS[kind]}
    if not labels - {"Support Devices"} and not kinds & {"hernia", "scoliosis"}:
        labels.add("No Finding")
    return {name: int(name in labels) for name in CHEXPERT_LABELS}


# -------------------------------------------------------------------------------- MS-CXR


def _write_ms_cxr(root: Path, written: Sequence[Written]) -> tuple[int, int]:
    number = {name: i for i, name in enumerate(MS_CXR_CATEGORIES, 1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    phrases = 0
    for w in written:
        for view in w.study.views:
            boxed_phrases = w.phrases.get(view.dicom_id)
            if not boxed_phrases:
                continue
            boxes = w.boxes[view.dicom_id]
            images.append(
                {
                    "id": len(images) + 1,
                    "file_name": f"{view.dicom_id}.jpg",
                    "width": view.size[1],
                    "height": view.size[0],
                    "num_annotations": sum(len(boxes[index]) for index, _ in boxed_phrases),
                    "path": f"{w.study.folder}/{view.dicom_id}.jpg",
                }
            )
            for index, sentence in boxed_phrases:
                category = sentence.category or CATEGORY_OF_TYPE[CLASSES[index].type]
                phrases += 1
                annotations += [
                    {
                        "id": len(annotations) + 1 + k,
                        "image_id": len(images),
                        "category_id": number[category],
                        "bbox": list(box),
                        "label_text": sentence.text.rstrip("."),
                    }
                    for k, box in enumerate(boxes[index])
                ]
    content = {
        "info": {"description": "Synthetic phantom in the layout of MS-CXR", "version": "1.0.0"},
        "categories": [
            {"id": i, "name": name, "supercategory": "finding"} for name, i in number.items()
        ],
        "images": images,
        "annotations": annotations,
    }
    path = root / "MS_CXR_Local_Alignment_v1.0.0.json"
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return len(annotations), phrases


# --------------------------------------------------------------------------------- truth


def _write_true_sentences(root: Path, studies: Sequence[Study], names: Names) -> int:
    import pandas as pd

    placed = [(study, place) for study in studies for place in study.report.sentences]
    statements = [place.sentence.statement for _, place in placed]
    train = [study for study in studies if study.split == "train"]
    frontal = [study for study in train for view in study.views if view.position != "LATERAL"]
    shares = eta_true(statements, _shown(frontal))
    rows: list[dict[str, Any]] = []
    for (study, place), statement in zip(placed, statements, strict=True):
        clauses = statement.clauses
        rows.append(
            {
                "study_id": names.studies[study.study_id],
                "section": place.section,
                "position": place.position,
                "text": place.sentence.text,
                "kind": statement.kind,
                "finding": "|".join(c.finding for c in clauses),
                "place": "|".join(" ".join(p for p in (c.side, c.zone) if p) for c in clauses),
                "severity": "|".join(c.severity or "" for c in clauses),
                "polarity": statement.polarity,
                "classes": statement.classes(),
                "statement": statement.to_json(),
                "agrees": eta_true([statement], _shown([study]))[statement] == 1.0,
                "eta_true": shares[statement],
            }
        )
    pd.DataFrame(rows).to_parquet(root / "truth" / "sentences.parquet", index=False)
    return len(rows)


def _shown(studies: Sequence[Study]) -> np.ndarray:
    """Which classes each study shows: ``[studies, classes]``."""
    shown = np.zeros((len(studies), len(CLASSES)), dtype=bool)
    for row, study in enumerate(studies):
        shown[row, list(study.findings)] = True
    return shown


def _write_true_images(root: Path, written: Sequence[Written], names: Names) -> None:
    import pandas as pd

    rows = [
        {
            "dicom_id": names.images[view.dicom_id],
            "study_id": names.studies[w.study.study_id],
            "subject_id": names.patients[w.study.subject_id],
            "split": w.study.split,
            "view": view.position,
            "forced": "" if w.study.forced is None else CLASS_NAMES[w.study.forced],
            "marker": w.study.marker and view.position != "LATERAL",
            "noisy_report": w.study.noisy_report,
            **{name: index in w.study.findings for index, name in enumerate(CLASS_NAMES)},
            "boxes": [
                {"finding": CLASS_NAMES[i], "x": b[0], "y": b[1], "width": b[2], "height": b[3]}
                for i, boxes in sorted(w.boxes[view.dicom_id].items())
                for b in boxes
            ],
        }
        for w in written
        for view in w.study.views
        if view.dicom_id in names.images
    ]
    pd.DataFrame(rows).to_parquet(root / "truth" / "images.parquet", index=False)
