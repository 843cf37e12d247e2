"""What every layout is: how its archive names patients, studies and images, and its tables.

Images, truth and the order of work are the same for all.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from pydantic import SerializerFunctionWrapHandler, model_serializer

from medclip_debias.data.executor import map_pieces
from medclip_debias.data.splits import seeded_split
from medclip_debias.phantom.catalogue import INDEX
from medclip_debias.phantom.files import dicom_header
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.tables import Names, Written, write_csv, write_truth_tables
from medclip_debias.phantom.writer import one_thread
from phantom_layouts.content import (
    ContentStudy,
    ContentView,
    Image,
    Studies,
    images,
    plan_content,
    rendered,
)

Pixels = NDArray[np.uint8]
Row = tuple[str, Any]
"""A file of the tree, and the cells of a row (or the entry) of it."""


class ArchiveSettings(PhantomSettings):
    """Settings of a phantom in the layout of an archive.

    ``format`` is that of MIMIC-CXR's images.
    """

    layout: str = "mimic_cxr"

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = handler(self)
        if self.layout == "mimic_cxr":
            del content["layout"]
        return content


class Layout(ABC):
    """Base of the layouts.

    Args:
        settings: of the phantom.

    Class attributes:
        kind: its name.
        title: the archive's name in sentences.
        source_kind: kind of the data source that reads it; ``kind`` by default.
        lossless: images are kept in 8 bits or more without loss, so that the prepared rows equal
            those of every other such layout.
        sections: of the report that the archive holds: of ``("findings", "impression")``, or
            ``("report",)`` for the whole text, or ``()`` for none. Layouts with the same sections
            give the same sentences.
        deep: its PNG files have 16 bits.
        square: every image of the archive is a square, so those of the phantom are, too.
        headers: of its files of rows, by their names; a file that is no CSV has none.
    """

    kind: ClassVar[str] = ""
    title: ClassVar[str]
    source_kind: ClassVar[str]
    lossless: ClassVar[bool] = True
    sections: ClassVar[tuple[str, ...]] = ("findings", "impression")
    deep: ClassVar[bool] = False
    square: ClassVar[bool] = False
    headers: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __init_subclass__(cls) -> None:
        cls.source_kind = vars(cls).get("source_kind", cls.kind)

    def __init__(self, settings: ArchiveSettings) -> None:
        squares = {"aspect": (1.0, 1.0)}
        self.settings = settings.model_copy(update=squares) if self.square else settings

    # ------------------------------------------------------------------ what a layout says

    @abstractmethod
    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        """Place of an image in the tree, with ``/``; ``""`` when the archive has no such view."""

    @abstractmethod
    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        """The id that the source gives to the image."""

    @abstractmethod
    def study_id(self, study: ContentStudy) -> str:
        """The id that the source gives to the study."""

    @abstractmethod
    def patient_id(self, study: ContentStudy) -> str:
        """The id that the source gives to the patient."""

    def owner_ids(self, study: ContentStudy, view: ContentView) -> tuple[str, str]:
        return self.study_id(study), self.patient_id(study)

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        """Rows of the ``number``-th image that the archive has, of every file."""
        return ()

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        """Boxes that the archive has of an image, in its pixels."""
        return []

    def boxes(self, studies: Studies) -> dict[str, list[Box]]:
        pairs = ((self.image_id(*item), self.boxes_of(*item)) for item in self.held(studies))
        return {image: boxes for image, boxes in pairs if boxes}

    def held(self, studies: Studies) -> list[Image]:
        """The images that the archive has."""
        return [item for item in images(studies) if self.image_file(*item)]

    # ------------------------------------------------------------------ what is done with it

    def generate(self, root: Path, workers: int) -> dict[str, int]:
        planned = plan_content(self.settings)
        size = max(1, min(32, len(planned) // (4 * workers)))
        chunks = [planned[i : i + size] for i in range(0, len(planned), size)]
        workers = min(workers, len(chunks))
        studies: list[ContentStudy] = []
        write = partial(_write_images, self, root)
        for batch in map_pieces(write, chunks, workers, start=one_thread if workers > 1 else None):
            studies += batch
        files: dict[str, list[Any]] = {name: [] for name in self.headers}
        for number, item in enumerate(self.held(studies)):
            for name, cells in self.rows(number, *item):
                files[name].append(cells)
        for name, rows in files.items():
            (root / name).parent.mkdir(exist_ok=True)
            self.write_file(root / name, rows)
        written = [_written(study) for study in studies]
        return write_truth_tables(root, self.settings, written, self._names(studies))

    def _names(self, studies: Studies) -> Names:
        return Names(
            images={view.key: self.image_id(s, view) for s, view in self.held(studies)},
            studies={s.study.study_id: self.study_id(s) for s in studies},
            patients={s.study.subject_id: self.patient_id(s) for s in studies},
        )

    def write_file(self, path: Path, rows: Sequence[Any]) -> None:
        if path.suffix == ".csv":
            header = next(h for name, h in self.headers.items() if path.match(name))
            write_csv(path, header, rows)
        else:
            path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


class FrontalLayout(Layout):
    """Frontal images alone, each of them a study, and a patient where none is named."""

    sections = ()
    names_patients: ClassVar[bool] = False

    def study_id(self, study: ContentStudy) -> str:
        frontal = (view for view in study.views if view.frontal)
        return self.image_id(study, next(frontal, study.views[0]))

    def patient_id(self, study: ContentStudy) -> str:
        return self.study_id(study)

    def owner_ids(self, study: ContentStudy, view: ContentView) -> tuple[str, str]:
        image = self.image_id(study, view)
        return image, self.patient_id(study) if self.names_patients else image


def id_in_split(name: Callable[[int], str], split: str) -> str:
    """Return the first of ``name(0)``, ``name(1)`` ... that falls into a split by its hash.

    For archives without splits of their own: patients get ids that the default split
    (`medclip_debias.data.splits.seeded_split`) puts where the phantom has them.
    """
    return next(found for n in count() if seeded_split(found := name(n)) == split)


def _write_images(layout: Layout, root: Path, planned: list[ContentStudy]) -> list[ContentStudy]:
    studies = []
    for plan in planned:
        study, pixels = rendered(layout.settings, plan)
        for view, grey in zip(study.views, pixels, strict=True):
            file = layout.image_file(study, view)
            if file:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                _write_image(layout, root / file, grey, (study, view))
        studies.append(study)
    return studies


def _write_image(layout: Layout, path: Path, pixels: Pixels, of: Image) -> None:
    """Write an image in the format that its name says: PNG, JPG of quality 95, or DICOM."""
    if path.suffix == ".png":
        grey = pixels.astype(np.uint16) * 257 if layout.deep else pixels
        PIL.Image.fromarray(grey).save(path, compress_level=1)
    elif path.suffix == ".jpg":
        PIL.Image.fromarray(pixels).save(path, quality=95)
    else:
        _write_dicom(path, pixels, of, layout.owner_ids(*of)[1])


def _write_dicom(path: Path, pixels: Pixels, of: Image, patient: str) -> None:
    """Write a DICOM file of 8 bits, MONOCHROME2 and without window."""
    study, view = of
    ds = dicom_header(study.study, view.view)
    ds.PatientSex = "F" if study.study.female else "M"
    ds.PhotometricInterpretation = "MONOCHROME2"
    ds.Rows, ds.Columns = pixels.shape
    ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 8, 8, 7, 0
    content = pixels.tobytes()
    ds.PixelData = content + b"\0" * (len(content) % 2)
    ds["PixelData"].VR = "OB"
    ds.PatientID = patient
    ds.save_as(path, enforce_file_format=True)


def _written(study: ContentStudy) -> Written:
    boxes = {v.key: {INDEX[name]: own for name, own in v.boxes.items()} for v in study.views}
    return Written(study.study, boxes, {})
