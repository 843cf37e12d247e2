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
    class_probabilities,
)
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.labels import report_labels, true_labels
from medclip_debias.phantom.language import Sentence
from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.study import Study
from medclip_debias.phantom.truth import eta_true

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
    _records(root, settings, written)
    _metadata(root, written)
    _chexpert(root, written)
    boxes, phrases = _ms_cxr(root, written)
    return write_truth_tables(root, settings, written, counts={"phrases": phrases, "boxes": boxes})


def write_truth_tables(
    root: Path,
    settings: PhantomSettings,
    written: Sequence[Written],
    names: Names | None = None,
    counts: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Write the folder ``truth`` of a tree in any layout; return the counts.

    Args:
        root: of the tree.
        settings: of the phantom.
        written: its studies.
        names: ids of the layout; those of the plan by default.
        counts: more of them, for ``meta.json`` and the result.
    """
    if names is None:
        names = Names(
            images={v.dicom_id: v.dicom_id for w in written for v in w.study.views},
            studies={w.study.study_id: str(w.study.study_id) for w in written},
            patients={w.study.subject_id: str(w.study.subject_id) for w in written},
        )
    sentences = _truth(root, written, names)
    counts = {
        "patients": len({w.study.subject_id for w in written}),
        "studies": len(written),
        "images": len(names.images),
        "sentences": sentences,
        **(counts or {}),
    }
    splits = {s: sum(w.study.split == s for w in written) for s in settings.counts()}
    meta = {
        "format_version": FORMAT_VERSION,
        "settings": settings.model_dump(mode="json"),
        "settings_hash": settings_hash(settings),
        "counts": counts,
        "studies_by_split": splits,
        "classes": [
            {
                "name": c.name,
                "type": c.type,
                "side": c.side,
                "zone": c.zone,
                "severity": c.severity,
                "probability": float(p),
            }
            for c, p in zip(
                CLASSES,
                class_probabilities(
                    settings.classes, settings.probability_scale, settings.tail_exponent
                ),
                strict=True,
            )
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


def _records(root: Path, settings: PhantomSettings, written: Sequence[Written]) -> None:
    ending = "dcm" if settings.format == "dicom" else "jpg"
    ordered = [w.study for w in written]
    write_csv(
        root / "cxr-record-list.csv.gz",
        ["subject_id", "study_id", "dicom_id", "path"],
        (
            [s.subject_id, s.study_id, v.dicom_id, f"{s.folder}/{v.dicom_id}.{ending}"]
            for s in ordered
            for v in s.views
        ),
    )
    write_csv(
        root / "cxr-study-list.csv.gz",
        ["subject_id", "study_id", "path"],
        ([s.subject_id, s.study_id, f"{s.folder}.txt"] for s in ordered),
    )
    write_csv(
        root / "mimic-cxr-2.0.0-split.csv.gz",
        ["dicom_id", "study_id", "subject_id", "split"],
        ([v.dicom_id, s.study_id, s.subject_id, s.split] for s in ordered for v in s.views),
    )


def _metadata(root: Path, written: Sequence[Written]) -> None:
    coded = {"AP": "antero-posterior", "PA": "postero-anterior", "LATERAL": "lateral", "": ""}
    header = [
        "dicom_id",
        "subject_id",
        "study_id",
        "PerformedProcedureStepDescription",
        "ViewPosition",
        "Rows",
        "Columns",
        "StudyDate",
        "StudyTime",
        "ProcedureCodeSequence_CodeMeaning",
        "ViewCodeSequence_CodeMeaning",
        "PatientOrientationCodeSequence_CodeMeaning",
    ]
    rows = (
        [
            v.dicom_id,
            s.subject_id,
            s.study_id,
            "CHEST (PORTABLE AP)" if v.position == "AP" else "CHEST (PA AND LAT)",
            v.stated,
            v.size[0],
            v.size[1],
            s.date,
            s.time,
            "CHEST (PORTABLE AP)" if v.position == "AP" else "CHEST (PA AND LAT)",
            coded[v.stated],
            "Erect" if v.position != "AP" else "",
        ]
        for s in (w.study for w in written)
        for v in s.views
    )
    write_csv(root / "mimic-cxr-2.0.0-metadata.csv.gz", header, rows)


def _chexpert(root: Path, written: Sequence[Written]) -> None:
    def row(w: Written) -> list[Any]:
        labels = report_labels(p.sentence.statement for p in w.study.report.sentences)
        if not w.study.report.sentences:
            labels = {}
        values = [f"{labels[c]:.1f}" if c in labels else "" for c in CHEXPERT_LABELS]
        return [w.study.subject_id, w.study.study_id, *values]

    write_csv(
        root / "mimic-cxr-2.0.0-chexpert.csv.gz",
        ["subject_id", "study_id", *CHEXPERT_LABELS],
        (row(w) for w in written),
    )

    def true_row(w: Written) -> list[int]:
        return [w.study.study_id, *true_labels(w.study.findings).values()]

    renamed = ["Airspace Opacity" if c == "Lung Opacity" else c for c in CHEXPERT_LABELS]
    write_csv(
        root / "mimic-cxr-2.1.0-test-set-labeled.csv",
        ["study_id", *renamed],
        (true_row(w) for w in written if w.study.split == "test"),
    )


# -------------------------------------------------------------------------------- MS-CXR


def _ms_cxr(root: Path, written: Sequence[Written]) -> tuple[int, int]:
    number = {name: i for i, name in enumerate(MS_CXR_CATEGORIES, 1)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    phrases = 0
    for w in written:
        for view in w.study.views:
            said = w.phrases.get(view.dicom_id)
            if not said:
                continue
            images.append(
                {
                    "id": len(images) + 1,
                    "file_name": f"{view.dicom_id}.jpg",
                    "width": view.size[1],
                    "height": view.size[0],
                    "num_annotations": sum(len(w.boxes[view.dicom_id][index]) for index, _ in said),
                    "path": f"{w.study.folder}/{view.dicom_id}.jpg",
                }
            )
            for index, sentence in said:
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
                    for k, box in enumerate(w.boxes[view.dicom_id][index])
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


def _truth(root: Path, written: Sequence[Written], names: Names) -> int:
    import pandas as pd

    (root / "truth").mkdir()
    _truth_images(root, written, names)
    population = training_findings(written)
    table = eta_true(
        (p.sentence.statement for w in written for p in w.study.report.sentences), population
    )
    rows: list[dict[str, Any]] = []
    for w in written:
        own = np.zeros((1, len(CLASSES)), dtype=bool)
        own[0, list(w.study.findings)] = True
        for placed in w.study.report.sentences:
            statement = placed.sentence.statement
            clauses = statement.clauses
            rows.append(
                {
                    "study_id": names.studies[w.study.study_id],
                    "section": placed.section,
                    "position": placed.position,
                    "text": placed.sentence.text,
                    "kind": statement.kind,
                    "finding": "|".join(c.finding for c in clauses),
                    "place": "|".join(" ".join(p for p in (c.side, c.zone) if p) for c in clauses),
                    "severity": "|".join(c.severity or "" for c in clauses),
                    "polarity": statement.polarity,
                    "classes": statement.classes(),
                    "statement": statement.to_json(),
                    "agrees": eta_true([statement], own)[statement] == 1.0,
                    "eta_true": table[statement],
                }
            )
    pd.DataFrame(rows).to_parquet(root / "truth" / "sentences.parquet", index=False)
    return len(rows)


def training_findings(written: Sequence[Written]) -> np.ndarray:
    """Findings of every frontal training image: the population of ``eta_true``."""
    rows = [
        w.study.findings
        for w in written
        if w.study.split == "train"
        for v in w.study.views
        if v.position != "LATERAL"
    ]
    result = np.zeros((len(rows), len(CLASSES)), dtype=bool)
    for k, present in enumerate(rows):
        result[k, list(present)] = True
    return result


def _truth_images(root: Path, written: Sequence[Written], names: Names) -> None:
    import pandas as pd

    frontal = [(w, v) for w in written for v in w.study.views if v.dicom_id in names.images]
    columns: dict[str, list[Any]] = {
        "dicom_id": [names.images[v.dicom_id] for _, v in frontal],
        "study_id": [names.studies[w.study.study_id] for w, _ in frontal],
        "subject_id": [names.patients[w.study.subject_id] for w, _ in frontal],
        "split": [w.study.split for w, _ in frontal],
        "view": [v.position for _, v in frontal],
        "forced": [
            "" if w.study.forced is None else CLASS_NAMES[w.study.forced] for w, _ in frontal
        ],
        "marker": [w.study.marker and v.position != "LATERAL" for w, v in frontal],
        "noisy_report": [w.study.noisy_report for w, _ in frontal],
    }
    for index, name in enumerate(CLASS_NAMES):
        columns[name] = [index in w.study.findings for w, _ in frontal]
    columns["boxes"] = [
        [
            {"finding": CLASS_NAMES[i], "x": b[0], "y": b[1], "width": b[2], "height": b[3]}
            for i, boxes in sorted(w.boxes[v.dicom_id].items())
            for b in boxes
        ]
        for w, v in frontal
    ]
    pd.DataFrame(columns).to_parquet(root / "truth" / "images.parquet", index=False)
