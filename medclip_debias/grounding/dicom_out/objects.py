"""DICOM objects of a model's results: scores and boxes as SR, boxes as SEG; highdicom underneath.

Image coordinates are counted as in this project: (0, 0) is the upper left corner of the first
pixel, whose centre is (0.5, 0.5) (PS3.3, C.18.6).
"""

from __future__ import annotations

import hashlib
import logging
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from medclip_debias.grounding.boxes import box_mask
from medclip_debias.grounding.dicom_out.source import Source
from medclip_debias.markdown import one_line

if TYPE_CHECKING:
    from highdicom.sr import CodedConcept

RESEARCH = "For research, not for diagnosis"
MANUFACTURER = "medclip-debias"
SCHEME = "99MEDCLIP"
"""Coding scheme of what no public one has a code for; 99 says that it is private (PS3.16, 8)."""

_CODES = {
    "score": ("similarity", "Image-sentence similarity"),
    "probability": ("probability", "Probability that the image shows it"),
    "mean": ("region mean", "Mean score of the region"),
    "peak": ("region peak", "Highest score of the region"),
    "confidence": ("confidence", "Confidence that it shows the finding"),
}


@dataclass(frozen=True)
class Algorithm:
    """What made the results."""

    version: str
    model: str
    warning: str = ""

    @property
    def uid(self) -> str:
        """The model as a device: the same model always has the same UID."""
        return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, f'{MANUFACTURER} {self.model}').int}"

    @property
    def notes(self) -> list[str]:
        """What a reader of the results must know."""
        return [RESEARCH, f"model {self.model}", *([self.warning] if self.warning else [])]


def shortened(text: str, most: int = 64) -> str:
    """Text on one line without backslashes, cut to ``most`` characters."""
    text = one_line(text.replace("\\", "/"))
    return text if len(text) <= most else f"{text[: most - 3]}..."


@contextmanager
def quiet() -> Iterator[None]:
    """Without the warnings and log lines of pydicom and highdicom: some quote a patient's name."""
    for name in ("pydicom", "highdicom"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _own_code(value: str, meaning: str) -> CodedConcept:
    """A code of `SCHEME`."""
    from highdicom.sr import CodedConcept

    return CodedConcept(value, SCHEME, meaning)


def _instance(number: int, description: str) -> dict[str, Any]:
    """Keywords that every highdicom object takes: the only instance of a new series."""
    from highdicom import UID

    return {
        "series_instance_uid": UID(),
        "series_number": number,
        "sop_instance_uid": UID(),
        "instance_number": 1,
        "series_description": f"{description} ({RESEARCH.lower()})",
        "manufacturer": MANUFACTURER,
    }


def structured_report(
    source: Source, rows: Sequence[Mapping[str, Any]], algorithm: Algorithm
) -> Any:
    """A Comprehensive SR after TID 1500 of the sentences of an image in ``groundings.json``.

    A sentence's group (TID 1501) holds its score; a box's group (TID 1410) its outline, the mean
    and highest score in it, and its confidence. A group's finding is a private code with the
    sentence as its meaning, the same wherever it is scored; the whole sentence is the tracking
    identifier.
    """
    import highdicom
    from highdicom import sr
    from pydicom.sr.codedict import codes

    made_by = sr.AlgorithmIdentification(
        name=MANUFACTURER, version=algorithm.version, parameters=algorithm.notes
    )
    device = sr.DeviceObserverIdentifyingAttributes(
        uid=algorithm.uid,
        name=MANUFACTURER,
        manufacturer_name=MANUFACTURER,
        model_name=f"model {algorithm.model}",
        serial_number=algorithm.model,
    )

    def common(place: str, text: str, **measured: float | None) -> dict[str, Any]:
        code = f"S{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        tracking = sr.TrackingIdentifier(highdicom.UID(), f"{place}: {one_line(text)}")
        return {
            "tracking_identifier": tracking,
            "finding_type": _own_code(code, shortened(text)),
            "algorithm_id": made_by,
            # Numbers without unit under their codes; those that are None are not there.
            "measurements": [
                sr.Measurement(_own_code(*_CODES[name]), value=value, unit=codes.UCUM.NoUnits)
                for name, value in measured.items()
                if value is not None
            ],
        }

    groups: list[Any] = []
    for number, row in enumerate(rows, start=1):
        text, probability = row["text"], (row.get("in_image") or {}).get("probability")
        groups.append(
            sr.MeasurementsAndQualitativeEvaluations(
                **common(f"{number}", text, score=row["score"], probability=probability),
                source_images=[sr.SourceImageForMeasurementGroup.from_source_image(source.header)],
            )
        )
        for place, box in enumerate(row["boxes"], start=1):
            measured = {name: box[name] for name in ("mean", "peak", "confidence")}
            x, y, width, height = box["box"]
            right, below = x + width, y + height
            # A closed line, clockwise from the upper left.
            outline = np.array([(x, y), (right, y), (right, below), (x, below), (x, y)])
            image = sr.SourceImageForRegion.from_source_image(source.header)
            region = sr.ImageRegion("POLYLINE", outline, image)
            groups.append(
                sr.PlanarROIMeasurementsAndQualitativeEvaluations(
                    **common(f"{number}.{place}", text, **measured), referenced_region=region
                )
            )
    report = sr.MeasurementReport(
        observation_context=sr.ObservationContext(
            observer_device_context=sr.ObserverContext(codes.DCM.Device, device)
        ),
        procedure_reported=sr.CodedConcept("399208008", "SCT", "Plain X-ray of chest"),
        imaging_measurements=groups,
    )
    return sr.ComprehensiveSR(
        evidence=[source.header],
        content=report[0],
        is_complete=False,
        is_final=False,
        is_verified=False,
        coding_schemes=[
            highdicom.coding_schemes.CodingSchemeIdentificationItem(
                SCHEME, name=MANUFACTURER, version=algorithm.version
            )
        ],
        **_instance(9701, "Scores"),
    )


def segmentation(source: Source, rows: Sequence[Mapping[str, Any]], algorithm: Algorithm) -> Any:
    """A binary Segmentation with the rows and columns of the source: each box is a segment.

    A segment's pixels are those whose centres lie in the box.
    """
    import highdicom
    from highdicom.seg import SegmentAlgorithmTypeValues, SegmentationTypeValues, SegmentDescription
    from pydicom.sr.codedict import codes

    made_by = highdicom.AlgorithmIdentificationSequence(
        name=MANUFACTURER,
        family=codes.DCM.ArtificialIntelligence,
        version=algorithm.version,
        source=MANUFACTURER,
        # highdicom writes and reads these as name=value, split at commas.
        parameters={
            f"note {number}": text.replace(",", ";").replace("=", ":")
            for number, text in enumerate(algorithm.notes, start=1)
        },
    )
    boxes = [
        (number, place, row["text"], box["box"])
        for number, row in enumerate(rows, start=1)
        for place, box in enumerate(row["boxes"], start=1)
    ]
    descriptions: Any = [
        SegmentDescription(
            segment,
            shortened(f"{number}.{place} {text}"),
            highdicom.sr.CodedConcept("309825002", "SCT", "Spatial and Relational Concept"),
            codes.DCM.ImageRegion,
            SegmentAlgorithmTypeValues.AUTOMATIC,
            made_by,
            tracking_uid=highdicom.UID(),
            tracking_id=f"sentence {number} box {place}",
        )
        for segment, (number, place, text, _) in enumerate(boxes, start=1)
    ]
    masks = [box_mask([box], *source.shape) for *_, box in boxes]
    result = highdicom.seg.Segmentation(
        [source.header],
        np.stack(masks, axis=-1)[None].astype(np.uint8),
        SegmentationTypeValues.BINARY,
        descriptions,
        content_label="BOXES",
        content_description=RESEARCH,
        manufacturer_model_name=f"model {algorithm.model}",
        software_versions=algorithm.version,
        device_serial_number=algorithm.model,
        **_instance(9702, "Boxes, segments"),
    )
    result.PatientOrientation = list(source.orientation)
    return result
