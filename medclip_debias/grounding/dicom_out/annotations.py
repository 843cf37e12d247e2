"""Objects without pixels: boxes as Presentation State, scores and boxes as Structured Report.

Both count image coordinates as this project does: (0, 0) is the upper left corner of the first
pixel, whose centre is (0.5, 0.5) (PS3.3, C.10.5.1 for units of pixels, and C.18.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from medclip_debias.grounding.dicom_out.found import (
    MANUFACTURER,
    RESEARCH,
    FoundBox,
    FoundSentence,
)
from medclip_debias.grounding.dicom_out.parts import PROBABILITY, SCHEME, Series, own_code
from medclip_debias.grounding.dicom_out.source import Source

_LAYER = "BOXES"
_LONGEST_NOTE = 1024


def presentation_state(source: Source, found: Sequence[FoundSentence], series: Series) -> Any:
    """The boxes of an image as closed lines, each sentence written beside its first box."""
    import highdicom
    from highdicom.pr import (
        GraphicAnnotation,
        GraphicLayer,
        GraphicObject,
        GrayscaleSoftcopyPresentationState,
        TextObject,
    )

    layer = GraphicLayer(_LAYER, 1, RESEARCH)
    annotations = []
    for one in found:
        if not one.boxes:
            continue
        lines = [
            GraphicObject(
                "POLYLINE",
                box.outline,
                "PIXEL",
                tracking_id=f"sentence {one.number} box {place}",
                tracking_uid=highdicom.UID(),
            )
            for place, box in enumerate(one.boxes, start=1)
        ]
        x, y, _, height = one.boxes[0].box
        note = TextObject(
            _note(one)[:_LONGEST_NOTE], "PIXEL", anchor_point=(x, y + height), tracking_id=None
        )
        annotations.append(
            GraphicAnnotation([source.header], layer, graphic_objects=lines, text_objects=[note])
        )
    made = GrayscaleSoftcopyPresentationState(
        referenced_images=[source.header],
        content_label=_LAYER,
        content_description=RESEARCH,
        graphic_annotations=annotations,
        graphic_layers=[layer],
        presentation_lut_transformation=_lut(source),
        **series.device,
        **series.next_instance(),
    )
    made.BodyPartExamined = "CHEST"
    return made


def structured_report(source: Source, found: Sequence[FoundSentence], series: Series) -> Any:
    """A Comprehensive SR after TID 1500: a group of measurements a sentence, and one a box.

    A sentence's group (TID 1501) holds its score; a box's group (TID 1410) its outline, the mean
    and highest score in it, and its confidence. A group's finding is a private code with the
    sentence as its meaning; the whole sentence is the tracking identifier.
    """
    import highdicom
    from highdicom import sr
    from pydicom.sr.codedict import codes

    algorithm = series.algorithm
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
    for one in found:
        finding = own_code(one.code, one.short)
        groups.append(
            sr.MeasurementsAndQualitativeEvaluations(
                tracking_identifier=sr.TrackingIdentifier(
                    highdicom.UID(), f"{one.number}: {one.printed}"
                ),
                finding_type=finding,
                algorithm_id=made_by,
                measurements=_measurements(
                    {
                        ("similarity", "Image-sentence similarity"): one.score,
                        PROBABILITY: one.probability,
                    }
                ),
                source_images=[sr.SourceImageForMeasurementGroup.from_source_image(source.header)],
            )
        )
        groups += [
            sr.PlanarROIMeasurementsAndQualitativeEvaluations(
                tracking_identifier=sr.TrackingIdentifier(
                    highdicom.UID(), f"{one.number}.{place}: {one.printed}"
                ),
                referenced_region=sr.ImageRegion(
                    "POLYLINE",
                    box.outline,
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
        **series.next_instance(),
    )


def _measurements(wanted: dict[tuple[str, str], float | None]) -> list[Any]:
    """Numbers without unit under their codes; those that are None are not there."""
    from highdicom.sr import Measurement
    from pydicom.sr.codedict import codes

    return [
        Measurement(name=own_code(*name), value=value, unit=codes.UCUM.NoUnits)
        for name, value in wanted.items()
        if value is not None
    ]


def _note(found: FoundSentence) -> str:
    known: list[FoundBox] = [box for box in found.boxes if box.confidence is not None]
    sure = f", confidence {max(box.confidence or 0 for box in known):.2f}" if known else ""
    return f"{found.printed} (score {found.score:.2f}{sure}; {RESEARCH.lower()})"


def _lut(source: Source) -> Any:
    """Low values of MONOCHROME1 are bright, which a presentation state must say anew (C.11.6)."""
    import highdicom

    inverted = str(source.header.PhotometricInterpretation).strip() == "MONOCHROME1"
    shape = "INVERSE" if inverted else "IDENTITY"
    return highdicom.PresentationLUTTransformation(presentation_lut_shape=shape)
