"""Ground sentences in image files: pictures, maps, and one JSON with boxes and scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from medclip_debias.config import Settings
from medclip_debias.data.synthetic import all_of_phantoms
from medclip_debias.errors import UserError
from medclip_debias.files import atomic_file, check_out, write_json
from medclip_debias.grounding.absent import AbsentFindings
from medclip_debias.grounding.dicom_out.deliver import DeliverTo, Delivery
from medclip_debias.grounding.ground import Grounder, Grounding, highest_pixel, region_grid
from medclip_debias.grounding.overlay import OverlayStyle, slug, value_range, write_overlay
from medclip_debias.grounding.reference import Match, ReferenceBoxes
from medclip_debias.grounding.regions import (
    Connectivity,
    ScoredRegion,
    boxes_of_share,
    threshold_regions,
)
from medclip_debias.grounding.saliency import with_maps
from medclip_debias.grounding.sentences import checked_sentences, cut_sentences
from medclip_debias.grounding.settings import MapMethod, Sharpen, SuppressionRule
from medclip_debias.models.synthetic import synthetic_warning

if TYPE_CHECKING:
    from medclip_debias.data.images.radiograph import Radiograph
    from medclip_debias.models.interface import ImageTextModel

FORMAT = 1
RESULTS = "groundings.json"
NOTICE = (
    "The pictures show patients, and the sentences are in this list and in the names of files:"
    " share them only under the terms of the data."
)

Progress = Callable[[int, int], None]


class GroundOptions(Settings):
    """What is drawn and written (docs/grounding.md, Pictures); stored with the results."""

    smoothing: float = Field(0.0, ge=0)  # sigma in cells of the region grid
    method: MapMethod = "similarity"
    threshold: float | None = None
    share: float | None = Field(None, gt=0, le=1)
    sharpen: Sharpen = "none"
    min_area: float = Field(1.0, ge=1)  # pixels of a found region
    connectivity: Connectivity = 8
    scale: Literal["one", "image", "each"] = "one"
    limits: tuple[float, float] | None = None  # scores at the ends of the colours, for any scale
    maps: bool = True
    batch_size: int = Field(4, ge=1)
    style: OverlayStyle = OverlayStyle()

    @model_validator(mode="after")
    def _rising(self) -> GroundOptions:
        if self.limits is not None and not self.limits[0] < self.limits[1]:
            raise ValueError(f"limits must rise, got {self.limits[0]}, {self.limits[1]}")
        if self.threshold is not None and self.share is not None:
            raise ValueError("boxes are found by a threshold or by a share of the range, not both")
        return self

    @property
    def finds_boxes(self) -> bool:
        """Whether boxes are cut from the maps, also without a rule of suppression."""
        return self.threshold is not None or self.share is not None


def ground_files(
    model: ImageTextModel,
    images: Sequence[Path],
    texts: Sequence[str],
    out: Path,
    options: GroundOptions | None = None,
    *,
    boxes: Path | None = None,
    deliver: DeliverTo | None = None,
    rule: SuppressionRule | None = None,
    maps_warning: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a picture and a map for each image and sentence, and ``groundings.json``.

    ``NN_words.png`` and ``NN_words.npy`` lie in ``out``, or for several images in a folder of
    ``out`` named after each. A map is float32 ``[height, width]`` of the original image, NaN
    where the model did not see it. A single image that cannot be read is an error; of several,
    those are left out and listed under ``rejected``.

    Args:
        model: a trained dual encoder.
        images: image files.
        texts: sentences.
        out: folder; created when missing.
        options: what is drawn and written.
        boxes: MS-CXR or COCO file of reference boxes to draw.
        deliver: where the results of each image are written for other systems, too.
        rule: by which sentences that are not in an image get no box; None for no such question.
        maps_warning: what stands under every picture (`medclip_debias.grounding.validation`).
        progress: called with images done and images in total.

    Returns:
        The content of ``groundings.json`` (docs/grounding.md).

    Raises:
        UserError: no sentence, an empty one, a model without regions, no image that can be read,
            or a file of boxes that does not fit.
    """
    options, out = options or GroundOptions(), Path(out)
    check_out(out)
    sentences = checked_sentences(texts)
    model = with_maps(model, options.method)
    region_grid(model)
    references = ReferenceBoxes.read(boxes, images) if boxes is not None else None
    grounder = Grounder(
        model,
        sentences,
        smoothing=options.smoothing,
        absent=AbsentFindings(model) if options.limits is None and options.scale == "one" else None,
        sharpen=options.sharpen,
        rule=rule,
    )
    folders = dict(zip(images, _folders(out, images), strict=True))
    warning = synthetic_warning(model.provenance, all_of_phantoms(images))
    warnings = " ".join(filter(None, (warning, maps_warning)))
    delivery = Delivery(deliver, model, warnings) if deliver is not None else None
    entries: list[dict[str, Any]] = []
    rejected: list[dict[str, str]] = []
    for path, image, groundings in _grounded(grounder, images, options.batch_size, rejected):
        grey, folder = image.stretched(model.preprocessing.prepare), folders[path]
        limits, coloured_from = _colours(groundings, options)
        drawn = {"limits": limits, "reference": coloured_from, "warning": warnings}
        drawn["kind"] = model.outputs.map_kind
        rows = []
        for number, one in enumerate(groundings, start=1):
            reference: tuple[list[list[float]], Match] = ([], "none")
            if references:
                reference = references.of(path, one.text, image.shape)
            place = folder / f"{number:02d}_{slug(one.text)}"
            rows.append(_write_grounding(place, one, grey, options, reference, drawn))
        absent = groundings[0].absent
        entry = {
            "image": str(path),
            "height": image.shape[0],
            "width": image.shape[1],
            "absent": asdict(absent) | {"classes": list(absent.classes)} if absent else None,
            "sentences": rows,
        }
        if delivery is not None:
            delivered = delivery.folder / folder.relative_to(out)
            entry["delivered"] = delivery.write(path, delivered, image.shape, rows)
        entries.append(entry)
        if progress:
            progress(len(entries) + len(rejected), len(images))
    if not entries:
        first = rejected[0]["reason"]
        raise UserError(f"none of the {len(images)} images can be used; the first: {first}")
    result = {
        "format": FORMAT,
        "notice": NOTICE,
        "warning": warning,
        "maps": maps_warning,
        "model_hash": model.content_hash,
        "scores": model.outputs.map_kind,
        "options": options.model_dump(mode="json"),
        "suppression": rule.model_dump(mode="json", exclude={"level"}) if rule else None,
        "cut_sentences": [place + 1 for place in cut_sentences(model, sentences)],
        "images": entries,
        "rejected": rejected,
        "delivered": delivery.counts() if delivery is not None else None,
        "boxes_left_aside": references.left_aside() if references is not None else [],
    }
    write_json(out / RESULTS, result)
    return result


def _grounded(
    grounder: Grounder, images: Sequence[Path], batch_size: int, rejected: list[dict[str, str]]
) -> Iterator[tuple[Path, Radiograph, list[Grounding]]]:
    """Each image that can be read, with its groundings; of several ``rejected`` takes the others.

    Only a batch of images is held at a time.
    """
    from medclip_debias.data.images import read_radiograph

    settings = grounder.model.preprocessing.prepare
    for start in range(0, len(images), batch_size):
        batch = []
        for path in images[start : start + batch_size]:
            try:
                image = read_radiograph(path, settings.window)
                low, high = image.percentiles(settings.clip)
                if not low < high:
                    raise UserError(
                        f"{path}: holds a single grey value between its clipping percentiles, so"
                        " nothing can be seen on it."
                    )
            except UserError as error:
                if len(images) == 1:
                    raise
                rejected.append({"image": str(path), "reason": str(error)})
            else:
                batch.append((path, image))
        groundings = grounder.of_images((image for _, image in batch), batch_size)
        for (path, image), of_image in zip(batch, groundings, strict=True):
            yield path, image, of_image


def _folders(out: Path, images: Sequence[Path]) -> list[Path]:
    """Where each image's files go: ``out`` itself for one image, else a folder of its own."""
    from medclip_debias.data.records import file_stem

    if len(images) == 1:
        return [out]
    names: dict[str, None] = {}
    counts: dict[str, int] = {}
    for image in images:
        stem = name = file_stem(image.name) or "image"
        while name in names:  # also by a file that is itself called like this
            counts[stem] = counts.get(stem, 1) + 1
            name = f"{stem}_{counts[stem]}"
        names[name] = None
    return [out / name for name in names]


def _write_grounding(
    place: Path,
    grounding: Grounding,
    grey: Any,
    options: GroundOptions,
    reference: tuple[list[list[float]], Match],
    drawn: dict[str, Any],
) -> dict[str, Any]:
    """Write the picture and map of a sentence at ``place``, whose suffix is added; its row."""
    heatmap, (boxes, match) = grounding.heatmap, reference
    how: dict[str, Any] = {"min_area": options.min_area, "connectivity": options.connectivity}
    share, verdict = options.share, grounding.verdict
    if options.threshold is not None:
        cut_at = f"score >= {options.threshold}"
        there = verdict is None or verdict.there
        regions = threshold_regions(heatmap, options.threshold, **how) if there else []
    else:
        share = share or (0.5 if verdict else None)
        cut_at = f"{100 * (share or 0.5):.0f}% of the range"
        regions = boxes_of_share(heatmap, share, verdict, **how) if share else []
    row = grounding_row(grounding, heatmap, regions)
    lowest, highest, coloured_from = row["lowest"], row["highest"], drawn["reference"]
    form = ".2f" if highest - lowest >= 0.05 else ".1g"
    numbers = f"score {grounding.score:.2f}, regions {lowest:{form}} to {highest:{form}}"
    if coloured_from is not None:
        reached = "coloured from" if highest >= coloured_from else "none reaches the reference"
        numbers += f", {reached} {coloured_from:{form}}"
    reasons = {"words": ": it denies a finding", "image": ": not found in this image", "": ""}
    numbers += reasons[verdict.why] if verdict else ""
    picture, map_file = (place.with_name(f"{place.name}.{kind}") for kind in ("png", "npy"))
    write_overlay(
        picture,
        grey,
        heatmap,
        boxes=boxes,
        found=[region.box for region in regions],
        caption=f"{grounding.text} ({numbers})",
        names=("reference" if match == "phrase" else "reference (all of the image)", cut_at),
        style=options.style,
        **drawn,
    )
    if options.maps:
        with atomic_file(map_file) as temporary, temporary.open("wb") as file:
            np.save(file, heatmap, allow_pickle=False)
    return row | {
        "reference": {"match": match, "boxes": boxes},
        "picture": str(picture),
        "map": str(map_file) if options.maps else None,
    }


def grounding_row(
    grounding: Grounding, heatmap: NDArray[np.floating[Any]], regions: Sequence[ScoredRegion]
) -> dict[str, Any]:
    """What is said about one sentence on one image: ``text`` to ``in_image`` of `ground_files`."""
    return {
        "text": grounding.text,
        "score": grounding.score,
        "lowest": float(np.nanmin(heatmap)),
        "highest": float(np.nanmax(heatmap)),
        "peak": list(highest_pixel(heatmap)),
        "boxes": [asdict(region) | {"box": list(region.box)} for region in regions],
        "in_image": asdict(grounding.verdict) if grounding.verdict else None,
    }


def _colours(
    groundings: Sequence[Grounding], options: GroundOptions
) -> tuple[tuple[float, float] | None, float | None]:
    """Scores at the ends of the colours (None: each map's own), and where colour begins."""
    if options.limits is not None or options.scale == "each":
        return options.limits, None
    ranges = [value_range(one.heatmap) for one in groundings]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    absent = groundings[0].absent
    if options.scale == "image" or absent is None:
        return (low, high), None
    return absent.limits(high), absent.reference
