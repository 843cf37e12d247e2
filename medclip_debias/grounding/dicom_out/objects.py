"""DICOM objects of a model's results: scores and boxes as SR, boxes as SEG; highdicom underneath.

Image coordinates are counted as in this project: (0, 0) is the upper left corner of the first
pixel, whose centre is (0.5, 0.5) (PS3.3, C.18.6).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.grounding.dicom_out.results import (
    MANUFACTURER,
    RESEARCH,
    Algorithm,
    SentenceResult,
    printable,
    shortened,
)
from medclip_debias.grounding.dicom_out.source import Source

if TYPE_CHECKING:
    from highdicom.sr import CodedConcept

Box = tuple[float, float, float, float]
SCHEME = "99MEDCLIP"
"""Coding scheme of what no public one has a code for; 99 says that it is private (PS3.16, 8)."""


def check_installed() -> None:
    """Make sure that highdicom is there."""
    try:
        import highdicom  # noqa: F401
    except ImportError:
        raise UserError(
            "DICOM results need the package highdicom: pip install 'medclip-debias[dicom]'; json"
            " needs nothing."
        ) from None


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
    source: Source, sentences: Sequence[SentenceResult], algorithm: Algorithm
) -> Any:
    """A Comprehensive SR after TID 1500: a group of measurements a sentence, and one a box.

    A sentence's group (TID 1501) holds its score; a box's group (TID 1410) its outline, the mean
    and highest score in it, and its confidence. A group's finding is a private code with the
    sentence as its meaning; the whole sentence is the tracking identifier.
    """
    import highdicom
    from highdicom import sr
    from pydicom.sr.codedict import codes

    made_by = sr.AlgorithmIdentification(
        name=MANUFACTURER, version=algorithm.version, parameters=list(algorithm.parameters)
    )
    device = sr.DeviceObserverIdentifyingAttributes(
        uid=algorithm.uid,
        name=MANUFACTURER,
        manufacturer_name=MANUFACTURER,
        model_name=f"model {algorithm.model}",
        serial_number=algorithm.model,
    )
    groups = []
    for one in sentences:
        finding = _own_code(one.code, shortened(one.text))
        groups.append(
            sr.MeasurementsAndQualitativeEvaluations(
                tracking_identifier=sr.TrackingIdentifier(
                    highdicom.UID(), f"{one.number}: {printable(one.text)}"
                ),
                finding_type=finding,
                algorithm_id=made_by,
                measurements=_measurements(
                    {
                        ("similarity", "Image-sentence similarity"): one.score,
                        ("probability", "Probability that the image shows it"): one.probability,
                    }
                ),
                source_images=[sr.SourceImageForMeasurementGroup.from_source_image(source.header)],
            )
        )
        groups += [
            sr.PlanarROIMeasurementsAndQualitativeEvaluations(
                tracking_identifier=sr.TrackingIdentifier(
                    highdicom.UID(), f"{one.number}.{place}: {printable(one.text)}"
                ),
                referenced_region=sr.ImageRegion(
                    "POLYLINE",
                    outline(box.box),
                    sr.SourceImageForRegion.from_source_image(source.header),
                ),
                finding_type=finding,
                algorithm_id=made_by,
                measurements=_measurements(
                    {
                        ("region mean", "Mean score of the region"): box.mean,
                        ("region peak", "Highest score of the region"): box.peak,
                        ("confidence", "Confidence that it shows the finding"): box.confidence,
                    }
                ),
            )
            for place, box in enumerate(one.boxes, start=1)
        ]
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


def _measurements(wanted: dict[tuple[str, str], float | None]) -> list[Any]:
    """Numbers without unit under their codes; those that are None are not there."""
    from highdicom.sr import Measurement
    from pydicom.sr.codedict import codes

    return [
        Measurement(name=_own_code(*name), value=value, unit=codes.UCUM.NoUnits)
        for name, value in wanted.items()
        if value is not None
    ]


def outline(box: Box) -> NDArray[np.float64]:
    """The corners of a box as a closed line ``[5, 2]`` of (x, y), clockwise from the upper left."""
    x, y, width, height = box
    right, below = x + width, y + height
    return np.array([(x, y), (right, y), (right, below), (x, below), (x, y)])


def mask(box: Box, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """The pixels ``[rows, columns]`` whose centres lie in a box."""
    x, y, width, height = box
    rows, columns = (np.arange(side) + 0.5 for side in shape)
    down = (rows >= y) & (rows < y + height)
    return down[:, None] & ((columns >= x) & (columns < x + width))[None, :]


def segmentation(source: Source, sentences: Sequence[SentenceResult], algorithm: Algorithm) -> Any:
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
            for number, text in enumerate(algorithm.parameters, start=1)
        },
    )
    descriptions: list[Any] = []
    masks = []
    for one in sentences:
        for place, box in enumerate(one.boxes, start=1):
            descriptions.append(
                SegmentDescription(
                    len(descriptions) + 1,
                    shortened(f"{one.number}.{place} {one.text}"),
                    highdicom.sr.CodedConcept("309825002", "SCT", "Spatial and Relational Concept"),
                    codes.DCM.ImageRegion,
                    SegmentAlgorithmTypeValues.AUTOMATIC,
                    made_by,
                    tracking_uid=highdicom.UID(),
                    tracking_id=f"sentence {one.number} box {place}",
                )
            )
            masks.append(mask(box.box, source.shape))
    made = highdicom.seg.Segmentation(
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
    made.PatientOrientation = list(source.orientation)
    return made
