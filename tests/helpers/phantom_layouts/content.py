"""What a layout writes down: the studies of a phantom, free of any archive's form.

A study is planned without its pixels (`plan_content`); rendering its views gives the boxes
(`rendered`). Pixels are 8-bit grey, stretched to the full range of each image, so that every
archive that keeps 8 bits can hold the same image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from medclip_debias.phantom.catalogue import CLASS_NAMES
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.study import Study, View, plan_study, render_view
from medclip_debias.phantom.tables import report_labels, true_labels

FRONTAL = ("AP", "PA")


@dataclass(frozen=True, slots=True)
class ContentView:
    """One image of a study.

    Attributes:
        view: the plan of the image; ``view.dicom_id`` is unique in the phantom.
        number: 1 for the first image of its study.
        boxes: by finding class; known once it is rendered.
    """

    view: View
    number: int
    boxes: Mapping[str, tuple[Box, ...]]

    @property
    def key(self) -> str:
        return self.view.dicom_id

    @property
    def position(self) -> str:
        return self.view.position

    @property
    def stated(self) -> str:
        return self.view.stated

    @property
    def frontal(self) -> bool:
        return self.position in FRONTAL

    @property
    def height(self) -> int:
        return self.view.size[0]

    @property
    def width(self) -> int:
        return self.view.size[1]


@dataclass(frozen=True, slots=True)
class ContentStudy:
    """One study.

    Attributes:
        study: its plan: findings, report with its sentences, date.
        patient: number of the patient, from 1; patients of one split only.
        number: number of the study among its patient's, from 1, earliest first.
        place: number of the study in the phantom, from 1.
        previous: ``place`` of the patient's study before this one; ``None`` for the first.
        views: its images.
    """

    study: Study
    patient: int
    number: int
    place: int
    previous: int | None
    views: tuple[ContentView, ...]

    @property
    def split(self) -> str:
        return self.study.split

    @property
    def report(self) -> str:
        return self.study.report.text

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(CLASS_NAMES[i] for i in self.study.findings)

    def section(self, name: str) -> str:
        names = (name, "last_paragraph") if name == "findings" else (name,)
        placed = (p for p in self.study.report.sentences if p.section in names)
        return " ".join(p.sentence.text for p in placed)

    @property
    def true_labels(self) -> dict[str, int]:
        return true_labels(self.study.findings)

    @property
    def report_labels(self) -> dict[str, int]:
        sentences = self.study.report.sentences
        return report_labels(p.sentence.statement for p in sentences) if sentences else {}


Studies = Sequence[ContentStudy]
Image = tuple[ContentStudy, ContentView]


def images(studies: Studies) -> Iterator[Image]:
    """Every image with its study, in their order."""
    return ((study, view) for study in studies for view in study.views)


def plan_content(settings: PhantomSettings) -> list[ContentStudy]:
    """Plan every study of a phantom, without boxes."""
    planned: list[ContentStudy] = []
    patients: dict[int, list[ContentStudy]] = {}
    for split, count in settings.counts().items():
        for index in range(count):
            study = plan_study(settings, split, index)
            earlier = patients.setdefault(study.subject_id, [])
            first = earlier[0] if earlier else None
            planned.append(
                ContentStudy(
                    study=study,
                    patient=first.patient if first else len(patients),
                    number=len(earlier) + 1,
                    place=len(planned) + 1,
                    previous=earlier[-1].place if earlier else None,
                    views=tuple(ContentView(v, n, {}) for n, v in enumerate(study.views, 1)),
                )
            )
            earlier.append(planned[-1])
    return planned


def rendered(
    settings: PhantomSettings, study: ContentStudy
) -> tuple[ContentStudy, list[NDArray[np.uint8]]]:
    """Render the views of a study: the study with its boxes, and the pixels."""
    views, pixels = [], []
    for content in study.views:
        picture = render_view(settings, study.study, content.view)
        pixels.append(quantised(picture.pixels))
        boxes = {CLASS_NAMES[i]: own for i, own in sorted(picture.boxes.items())}
        views.append(replace(content, boxes=boxes))
    return replace(study, views=tuple(views)), pixels


def quantised(pixels: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return an image (any range) in 8 bits, its darkest pixel 0 and its brightest 255."""
    low, high = float(pixels.min()), float(pixels.max())
    return np.rint((pixels - low) / max(high - low, 1e-6) * 255.0).astype(np.uint8)
