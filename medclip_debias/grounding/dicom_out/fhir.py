"""A FHIR R4 Bundle of one image: DiagnosticReport, an Observation a sentence, the model as Device.

Resources are plain dictionaries after https://hl7.org/fhir/R4. Patient, study and image are logical
references, by identifier: the server that takes the bundle knows them, this program does not.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from medclip_debias.grounding.dicom_out.found import (
    MANUFACTURER,
    RESEARCH,
    Algorithm,
    FoundSentence,
)
from medclip_debias.grounding.dicom_out.source import Source

Resource = dict[str, Any]

_TERMS = "http://terminology.hl7.org/CodeSystem"
_DICOM_UID = "urn:dicom:uid"
_RESEARCH_TAG = {"system": f"{_TERMS}/v3-ActReason", "code": "HRESCH"}
_CHEST = {"system": "http://loinc.org", "code": "30745-4", "display": "XR Chest Views"}


def bundle(source: Source | None, found: Sequence[FoundSentence], algorithm: Algorithm) -> Resource:
    """The resources of one image, as a Bundle of the type ``collection``.

    Args:
        source: of a DICOM image; None for another file, whose patient nothing says.
        found: its sentences.
        algorithm: what scored them.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    device = _entry(_device(algorithm))
    common = _subject(source) | {"device": {"reference": device["fullUrl"]}}
    observations = [_entry(_observation(one, source, now) | common) for one in found]
    report = {
        "resourceType": "DiagnosticReport",
        "meta": {"tag": [_RESEARCH_TAG]},
        "status": "preliminary",
        "category": [{"coding": [{"system": f"{_TERMS}/v2-0074", "code": "RAD"}]}],
        "code": {"coding": [_CHEST]},
        **_subject(source),
        **_study(source, "imagingStudy"),
        "issued": now,
        "result": [{"reference": entry["fullUrl"]} for entry in observations],
        "conclusion": ". ".join([RESEARCH, *([algorithm.warning] if algorithm.warning else [])]),
    }
    return {
        "resourceType": "Bundle",
        "type": "collection",
        "timestamp": now,
        "entry": [_entry(report), *observations, device],
    }


def _observation(found: FoundSentence, source: Source | None, now: str) -> Resource:
    components = []
    if found.probability is not None:
        components.append(_component("Probability that the image shows it", found.probability))
    for place, one in enumerate(found.boxes, start=1):
        place_of = ", ".join(f"{value:g}" for value in one.box)
        name = f"Box {place}"
        components.append(
            {
                "code": {"text": f"{name}: x, y, width, height in pixels from the upper left"},
                "valueString": place_of,
            }
        )
        components.append(_component(f"{name}: mean score", one.mean))
        if one.confidence is not None:
            components.append(_component(f"{name}: confidence", one.confidence))
    observation: Resource = {
        "resourceType": "Observation",
        "meta": {"tag": [_RESEARCH_TAG]},
        "status": "preliminary",
        "category": [{"coding": [{"system": f"{_TERMS}/observation-category", "code": "imaging"}]}],
        "code": {"text": found.text},
        **_study(source, "derivedFrom"),
        **_image(source),
        "issued": now,
        "valueQuantity": _number(found.score),
        "method": {"text": "Image-sentence similarity of an image-text model, -1 to 1"},
        "note": [{"text": RESEARCH}],
    }
    return observation | ({"component": components} if components else {})


def _device(algorithm: Algorithm) -> Resource:
    return {
        "resourceType": "Device",
        "identifier": [{"system": _DICOM_UID, "value": f"urn:oid:{algorithm.uid}"}],
        "manufacturer": MANUFACTURER,
        "deviceName": [{"name": f"{MANUFACTURER} model {algorithm.model}", "type": "model-name"}],
        "version": [{"value": algorithm.version}],
        "note": [{"text": text} for text in algorithm.parameters],
    }


def _subject(source: Source | None) -> Resource:
    if source is None or not source.header.PatientID:
        return {}
    identifier = {"value": str(source.header.PatientID)}
    if issuer := str(source.header.get("IssuerOfPatientID") or ""):
        identifier["assigner"] = {"display": issuer}  # type: ignore[assignment]
    return {"subject": {"type": "Patient", "identifier": identifier}}


def _study(source: Source | None, element: str) -> Resource:
    if source is None:
        return {}
    return {element: [_by_uid("ImagingStudy", source.header.StudyInstanceUID)]}


def _image(source: Source | None) -> Resource:
    if source is None:
        return {}
    return {"focus": [_by_uid("Media", source.header.SOPInstanceUID)]}


def _by_uid(kind: str, uid: Any) -> Resource:
    return {"type": kind, "identifier": {"system": _DICOM_UID, "value": f"urn:oid:{uid}"}}


def _component(name: str, value: float) -> Resource:
    return {"code": {"text": name}, "valueQuantity": _number(value)}


def _number(value: float) -> Resource:
    return {"value": round(float(value), 9), "system": "http://unitsofmeasure.org", "code": "1"}


def _entry(resource: Resource) -> Resource:
    return {"fullUrl": f"urn:uuid:{uuid.uuid4()}", "resource": resource}
