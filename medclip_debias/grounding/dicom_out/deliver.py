"""Write results on images as files that other systems take, an image at a time."""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medclip_debias.errors import UserError, need_packages, one_of
from medclip_debias.files import atomic_file, write_json
from medclip_debias.grounding.dicom_out.objects import (
    RESEARCH,
    Algorithm,
    quiet,
    segmentation,
    structured_report,
)
from medclip_debias.grounding.dicom_out.source import Source, read_source
from medclip_debias.models.interface import ImageTextModel

KINDS = ("sr", "seg", "json")
DEFAULT = ("sr", "json")
_OBJECTS: dict[str, tuple[str, Callable[..., Any]]] = {  # file and maker of each DICOM kind
    "sr": ("scores_sr.dcm", structured_report),
    "seg": ("boxes_seg.dcm", segmentation),
}
FORMAT = 1


@dataclass(frozen=True)
class DeliverTo:
    """What is written, and where."""

    folder: Path
    kinds: tuple[str, ...]


def deliver_to(
    folder: Path | None, kinds: Sequence[str] | None, finds_boxes: bool
) -> DeliverTo | None:
    """What of `KINDS` (None: `DEFAULT`) to write into a folder, checked before any work begins."""
    if folder is None:
        if kinds is not None:
            raise UserError("--as says what is written into a folder; give it with --dicom-out.")
        return None
    words = DEFAULT if kinds is None else kinds
    asked = tuple(dict.fromkeys(kind.strip().lower() for kind in words if kind.strip()))
    for kind in asked:
        one_of(kind, KINDS, "kind of results")
    if not asked:
        raise UserError(f"no kind of results is named; choose from {', '.join(KINDS)}.")
    if "seg" in asked and not finds_boxes:
        raise UserError(
            "there are no boxes to write (seg), since none are searched for; give --threshold,"
            " --share or --suppress too."
        )
    if any(kind in _OBJECTS for kind in asked):
        need_packages("DICOM results", "dicom", "highdicom")
    return DeliverTo(folder, asked)


class Delivery:
    """Writes the kinds that were asked for.

    Each image gets ``scores_sr.dcm``, ``boxes_seg.dcm`` and ``found.json``; the DICOM files have
    UIDs and series of their own. What cannot be written is counted with its reason.
    """

    def __init__(self, to: DeliverTo, model: ImageTextModel, warning: str = "") -> None:
        self.kinds, self.folder = to.kinds, to.folder
        version = importlib.metadata.version("medclip-debias")
        self.algorithm = Algorithm(version, model.content_hash or "in memory", warning)
        self.written: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()

    def write(
        self,
        path: Path,
        folder: Path,
        shape: tuple[int, int],
        rows: Sequence[Mapping[str, Any]],
        source: Source | None = None,
    ) -> list[str]:
        """Write the results of one image; return the files."""
        source, files = self._source(path, shape, source), []
        for kind in self.kinds:
            if kind == "json":
                file = folder / "found.json"
                write_json(file, plain(source, shape, rows, self.algorithm))
            elif source is None:
                continue
            elif kind == "seg" and not any(row["boxes"] for row in rows):
                self.left_out["seg left out: no box was found on the image"] += 1
                continue
            else:
                name, make = _OBJECTS[kind]
                file = folder / name
                try:
                    with quiet(), atomic_file(file) as temporary:
                        result = make(source, rows, self.algorithm)
                        result.save_as(temporary, enforce_file_format=True)
                # What a damaged header makes highdicom raise may quote it: its kind is said.
                except Exception as error:
                    reason = f"the image's header does not allow it ({type(error).__name__})"
                    self.left_out[f"{kind} left out: {reason}"] += 1
                    continue
            self.written[kind] += 1
            files.append(str(file))
        return files

    def counts(self) -> dict[str, dict[str, int]]:
        """Files written by kind, and what was left out, by reason, in images."""
        return {"written": dict(self.written), "left_out": dict(self.left_out)}

    def _source(self, path: Path, shape: tuple[int, ...], source: Source | None) -> Source | None:
        """The header that DICOM results refer to; None, and counted, where there is none."""
        try:
            source = source or read_source(path)
        except UserError as error:
            # A PNG is complete in JSON; that it has no patient is said only where one is needed.
            if wanted := [kind for kind in self.kinds if kind in _OBJECTS]:
                reason = str(error).split(": ", 1)[-1].rstrip(".")
                self.left_out[f"{', '.join(wanted)} left out: {reason}"] += 1
            return None
        if source.shape != shape:
            self.left_out["DICOM left out: the image's rows and columns are not the map's"] += 1
            return None
        if source.left_blank:
            names = ", ".join(source.left_blank)
            self.left_out[f"without a valid DICOM value, left blank in the results: {names}"] += 1
        return source


def plain(
    source: Source | None,
    shape: tuple[int, ...],
    rows: Sequence[Mapping[str, Any]],
    algorithm: Algorithm,
) -> dict[str, Any]:
    """One image's results as JSON: identifiers of the image, sentences, scores and boxes."""
    ids = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID", "SOPInstanceUID", "SOPClassUID")
    height, width = shape
    return {
        "format": FORMAT,
        "notice": RESEARCH,
        "warning": algorithm.warning or None,
        "program": f"medclip-debias {algorithm.version}",
        "model_hash": algorithm.model,
        "image": {"height": height, "width": width}
        | ({name: str(source.header.get(name) or "") for name in ids} if source else {}),
        "coordinates": "x, y, width, height in pixels; (0, 0) is the upper left corner of the"
        " first pixel",
        "sentences": [
            {
                "text": row["text"],
                "score": row["score"],
                "probability": (row.get("in_image") or {}).get("probability"),
                "boxes": [
                    {name: box[name] for name in ("box", "mean", "peak", "confidence")}
                    for box in row["boxes"]
                ],
            }
            for row in rows
        ],
    }
