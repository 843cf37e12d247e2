"""What every source yields: plain records of images, studies and phrases.

A source (one file each in ``data/sources/``) reads one layout and hands over these records;
everything after it (`medclip_debias.data.prepare`) knows nothing about layouts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Protocol

Box = tuple[float, float, float, float]
"""``x, y, width, height`` in pixels (see docs/architecture.md, Coordinates)."""

RELATIVE = (1, 1)
"""Size of an annotated image whose boxes are fractions of its sides, 0 to 1."""

Step = tuple[str, str, int, int | None]
"""A step of the funnel: its name, the unit, how many are kept, and of how many (``None``: all)."""

SPLITS = ("train", "validate", "test", "held_out")
"""Known splits. ``held_out`` is given by `prepare` alone, to patients who have MS-CXR boxes."""


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image file of a study.

    Attributes:
        image_id: unique in the source; the DICOM id in MIMIC-CXR, the file's stem in a manifest.
        study_id: study the image belongs to.
        patient_id: patient of that study.
        path: where the file should be; it may be missing.
        view: view position as the source calls it (``AP``, ``PA``, ``LATERAL``, ``""`` unknown).
        split: one of `SPLITS`, or ``""`` when the source's split table does not name the image.
        origin: file and row of the record, for messages.
        view_in_header: the source has no table of views; the file's DICOM header holds it.
    """

    image_id: str
    study_id: str
    patient_id: str
    path: Path
    view: str
    split: str
    origin: str = ""
    view_in_header: bool = False


@dataclass(frozen=True, slots=True)
class StudyRecord:
    """One study: a report, and labels for the whole study.

    Attributes:
        study_id: unique in the source.
        patient_id: patient of the study.
        split: split of the study's images.
        report: raw text; ``None`` when the source has no report for it.
        labels: label name to 1 present, 0 absent, -1 uncertain, ``None`` not mentioned.
        origin: file (and row) the report came from, for messages.
        problem: why the report that is there cannot be used (``report`` is then ``None``), as
            one sentence naming the file; ``""`` when nothing is wrong with it.
    """

    study_id: str
    patient_id: str
    split: str
    report: str | None
    labels: dict[str, float | None] = field(default_factory=dict)
    origin: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Mask:
    """Which pixels of an image a phrase covers, as COCO writes it.

    ``medclip_debias.data.masks`` reads and makes them.

    Attributes:
        height: rows of the image that was annotated.
        width: columns of that image.
        counts: lengths of runs of pixels outside and inside, in turns, column by column, in
            COCO's compressed form.
    """

    height: int
    width: int
    counts: str


@dataclass(frozen=True, slots=True)
class PhraseRecord:
    """One phrase grounded in one image: the union of its boxes.

    Attributes:
        phrase_id: unique in the source.
        image_id: image it describes; names no known image when the source lacks that image.
        category: finding (or structure) the phrase is about.
        text: the phrase.
        boxes: in pixels of the annotated image.
        annotated_size: width and height of the image when it was annotated, ``None`` unknown;
            `RELATIVE` for boxes in fractions of the image's sides.
        split: split of the annotations themselves (MS-CXR 1.1), one of `SPLITS`; ``""`` when they
            have none.
        mask: the pixels themselves, where the source has them, at the annotated size.
    """

    phrase_id: str
    image_id: str
    category: str
    text: str
    boxes: tuple[Box, ...]
    annotated_size: tuple[int, int] | None
    split: str = ""
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class Annotations:
    """A table that an archive has beside images, labels and phrases; a file of its own in the set.

    Rows about images or studies that the set lacks are left aside when it is made, and counted.

    Attributes:
        name: of the file in the prepared set, without suffix.
        unit: what a row is, in the plural, for the funnel.
        columns: name and type of each column: ``text``, ``number``, ``yes_no``, ``texts`` (a list)
            or ``boxes`` (a list of four numbers each).
        rows: as tuples or lists of JSON values, ``None`` where nothing is known.
        images: columns that hold image ids.
        study: column that holds the study id, if no column holds an image's.
    """

    name: str
    unit: str
    columns: tuple[tuple[str, str], ...]
    rows: Sequence[Sequence[Any]]
    images: tuple[str, ...] = ()
    study: str = ""


def file_stem(name: str) -> str:
    """Return a file's name without folder and image suffix; ids may hold dots themselves.

    >>> file_stem("files/p10/1.2.276.dcm.gz"), file_stem("a.b.jpg")
    ('1.2.276', 'a.b')
    """
    name = PurePosixPath(name.replace("\\", "/")).name
    for suffixes in ((".gz",), (".dcm", ".dicom", ".jpg", ".jpeg", ".png")):
        ending = next((s for s in suffixes if name.lower().endswith(s)), "")
        name = name[: len(name) - len(ending)]
    return name


class Source(Protocol):
    """One input format, read.

    A class that has this one as its base needs `images` and `studies` alone, if it has no boxes
    and nothing to say.
    """

    kind: ClassVar[str]
    """Name of the format, as in ``mimic_cxr``."""
    language: str = "en"
    """Code of the language of its reports."""

    def images(self) -> list[ImageRecord]:
        """Return every image that the source lists, in a stable order.

        An empty list says that the source has reports alone: `studies` then yields them all,
        each with its split.
        """
        ...

    def studies(self, only: Collection[str] | None = None) -> Iterator[StudyRecord]:
        """Yield the studies (those named in ``only``), in a stable order."""
        ...

    def phrases(self) -> list[PhraseRecord]:
        """Return the grounded phrases; an empty list when the source has none."""
        return []

    def annotations(self) -> list[Annotations]:
        """Return the archive's other tables, each to be a file of the prepared set."""
        return []

    def held_out_patients(self) -> frozenset[str]:
        """Return the patients who must leave training and validation."""
        return frozenset()

    def steps(self) -> list[Step]:
        """Return what reading the source's own tables kept and left aside, for the funnel."""
        return []

    def describe(self) -> list[str]:
        """Return sentences on what was found and what is missing, by file name."""
        return []
