"""Objects with pixels: a heatmap as Parametric Map, boxes as Segmentation.

Both have the rows and columns of the source, pixel for pixel, and name it as what they are of.

A radiograph has no frame of reference. A Segmentation needs none; a Parametric Map must have one
(PS3.3, A.75), so each has its own, related to no other: the plane of the source, its upper left
pixel at the origin, rows to the patient's left and columns to the feet, as a frontal radiograph is
shown. Its millimetres are the source's spacing (at the detector, if it says that alone), else 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from medclip_debias.grounding.dicom_out.found import (
    MANUFACTURER,
    RESEARCH,
    FoundSentence,
    shortened,
)
from medclip_debias.grounding.dicom_out.parts import Series, own_code
from medclip_debias.grounding.dicom_out.source import Source

UNSEEN = -2.0
"""Of pixels outside of what the model saw: below every cosine, and declared as padding."""


def parametric_map(source: Source, found: FoundSentence, series: Series) -> Any:
    """One sentence's heatmap, float32, the very values of the NPY file (`UNSEEN` for NaN)."""
    import highdicom
    from highdicom.pm import ParametricMap, RealWorldValueMapping
    from pydicom.sr.codedict import codes

    heatmap = found.grounding.heatmap.astype(np.float32)
    seen = heatmap[~np.isnan(heatmap)]
    low, high = float(seen.min()), float(seen.max())
    cosine = series.algorithm.maps == "cosine"
    quantity = ("region", "Region-sentence cosine") if cosine else ("attention", "Attention share")
    mapping = RealWorldValueMapping(
        f"S{found.number}",
        found.short,
        unit=codes.UCUM.NoUnits,
        value_range=(low, high),
        slope=1.0,
        intercept=0.0,
        quantity_definition=own_code(*quantity),
    )
    window = highdicom.VOILUTTransformation(
        window_center=(low + high) / 2,
        window_width=max(high - low, 1e-6),
        voi_lut_function="LINEAR_EXACT",
    )
    made = ParametricMap(
        source_images=[_on_a_plane(source)],
        pixel_array=np.where(np.isnan(heatmap), np.float32(UNSEEN), heatmap),
        contains_recognizable_visual_features=False,
        real_world_value_mappings=[mapping],
        voi_lut_transformations=[window],
        content_label="HEATMAP",
        content_description=RESEARCH,
        **series.device,
        **series.next_instance(),
    )
    made.FloatPixelPaddingValue = made.FloatPixelPaddingRangeLimit = UNSEEN
    made.BodyPartExamined = "CHEST"
    return made


def segmentation(source: Source, found: Sequence[FoundSentence], series: Series) -> Any:
    """All boxes of an image, each a segment of its own: its pixels are those inside the box."""
    import highdicom
    from highdicom.seg import SegmentAlgorithmTypeValues, SegmentationTypeValues, SegmentDescription
    from pydicom.sr.codedict import codes

    algorithm = highdicom.AlgorithmIdentificationSequence(
        name=MANUFACTURER,
        family=codes.DCM.ArtificialIntelligence,
        version=series.algorithm.version,
        source=MANUFACTURER,
        # highdicom writes and reads these as name=value, split at commas.
        parameters={
            f"note {number}": text.replace(",", ";").replace("=", ":")
            for number, text in enumerate(series.algorithm.parameters, start=1)
        },
    )
    descriptions: list[Any] = []
    masks = []
    for one in found:
        for place, box in enumerate(one.boxes, start=1):
            descriptions.append(
                SegmentDescription(
                    len(descriptions) + 1,
                    shortened(f"{one.number}.{place} {one.text}"),
                    highdicom.sr.CodedConcept("309825002", "SCT", "Spatial and Relational Concept"),
                    codes.DCM.ImageRegion,
                    SegmentAlgorithmTypeValues.AUTOMATIC,
                    algorithm,
                    tracking_uid=highdicom.UID(),
                    tracking_id=f"sentence {one.number} box {place}",
                )
            )
            masks.append(box.mask(source.shape))
    made = highdicom.seg.Segmentation(
        [source.header],
        np.stack(masks, axis=-1)[None].astype(np.uint8),
        SegmentationTypeValues.BINARY,
        descriptions,
        content_label="BOXES",
        content_description=RESEARCH,
        **series.device,
        **series.next_instance(),
    )
    made.PatientOrientation = list(source.orientation)
    return made


def _on_a_plane(source: Source) -> Any:
    """The source's header with a frame of reference of its own."""
    import highdicom
    from pydicom.dataset import Dataset

    header = Dataset()
    header.update(source.header)
    header.FrameOfReferenceUID = highdicom.UID()
    header.ImagePositionPatient = [0.0, 0.0, 0.0]
    header.ImageOrientationPatient = [1.0, 0.0, 0.0, 0.0, 0.0, -1.0]
    header.PixelSpacing = list(source.spacing)
    header.SliceThickness = 1.0
    return header
