"""The phrases of an evaluation: the set's own, or those of another box file on its images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from medclip_debias.data.boxes import Fitted, check_sizes, fit_boxes
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.records import ImageRecord, PhraseRecord
from medclip_debias.data.sources.ms_cxr import BoxFile
from medclip_debias.data.views import Views
from medclip_debias.evaluation.protocol import HELD_OUT, Request, Skipped, geometry_of
from medclip_debias.files import file_hash
from medclip_debias.grounding.denials import is_groundable, normalised, study_counts

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet

VALIDATE = "validate"
COUNTS = (
    *("other_splits", "other_annotation_splits", "other_views", "without_image", "without_box"),
    *("zero_area_boxes", "outside_boxes", "clipped_boxes", "scaled", "other_shape"),
)
AnnotationSplit = Literal["as_split", "all"]
Merge = Literal["none", "phrase", "category"]


@dataclass(frozen=True)
class Phrase:
    """One phrase of the set, on the image in ``row``.

    ``boxes`` are ``[x, y, width, height]`` in original pixels, inside the image; ``groundable``
    and ``sentence_count`` are those of `medclip_debias.grounding.denials`.
    """

    phrase_id: str
    row: int
    category: str
    text: str
    boxes: list[list[float]]
    geometry: SquareGeometry
    patient: str
    groundable: bool = True
    sentence_count: int = 0


@dataclass
class Phrases:
    """Phrases to evaluate, in the order of the source, and what was left out or mended on the way.

    Of ``counts``, ``zero_area_boxes`` and ``outside_boxes`` are boxes that are left out,
    ``clipped_boxes`` boxes that reached over the image's edge, ``scaled`` phrases that were
    annotated at another size, and the others phrases that are left out. ``source`` says where they
    are from and, where any has one, how many phrases have each split of their own.
    """

    phrases: list[Phrase] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)


def select_phrases(
    data: PreparedSet,
    split: str,
    input_size: int,
    file: Path | None = None,
    annotation_split: AnnotationSplit = "as_split",
    views: Views = "frontal",
    merge: Merge = "none",
    *,
    may_be_none: bool = False,
) -> Phrases:
    """Phrases on images of ``split`` or held out.

    The images of MS-CXR are held out whatever split its authors gave them, so phrases chosen by the
    images' split alone are the same for ``validate`` and ``test``. Version 1.1 gives every phrase a
    split of its own, and those of another one are left out.

    ``file``, a COCO file or MS-CXR CSV, takes the place of the set's own boxes; its images are
    found by path or file name. ``annotation_split`` ``all`` does not look at phrases' own splits.
    Raises `Skipped` where no phrase is left, unless there ``may_be_none``.
    """
    source: dict[str, Any] = {"phrases": "the prepared set"}
    if file is not None:
        source = {"phrases": file.name, "hash": file_hash(file) if file.is_file() else ""}
    images, splits = data.images, data.images["split"].tolist()
    row_of = {str(name): row for row, name in enumerate(images["image_id"])}
    frontal = data.frontal | (views == "all")
    training = set(data.studies.loc[data.studies["split"] == "train", "study_id"])
    sentences = data.sentences[data.sentences["study_id"].isin(training)]
    studies_of = study_counts(sentences["text"], sentences["study_id"])
    counts, own_splits, phrases = Counter[str](), Counter[str](), list[Phrase]()
    by_annotation = annotation_split == "as_split" and split != HELD_OUT
    for record, fitted in _own(data) if file is None else _of_file(file, data):
        row = row_of.get(record.image_id)
        if row is None:
            counts["without_image"] += 1
            continue
        own_splits[record.split] += bool(record.split)
        reasons = {
            "other_splits": splits[row] not in (split, HELD_OUT),
            "other_annotation_splits": by_annotation and record.split not in ("", split),
            "other_views": not frontal[row],
            "other_shape": fitted.other_shape,
            "without_box": not fitted.boxes,
        }
        reason = next((name for name, holds in reasons.items() if holds), None)
        if reason:
            counts[reason] += 1
        if reason in (None, "without_box"):
            counts["zero_area_boxes"] += fitted.flat
            counts["outside_boxes"] += fitted.outside
            counts["clipped_boxes"] += fitted.clipped
            counts["scaled"] += fitted.scaled
        if reason is None:
            phrases.append(
                Phrase(
                    phrase_id=record.phrase_id,
                    row=row,
                    category=record.category,
                    text=record.text,
                    boxes=fitted.boxes,
                    geometry=geometry_of(data, row, input_size),
                    patient=str(images["patient_id"].iloc[row]),
                    groundable=is_groundable(record.text, record.category),
                    sentence_count=studies_of.get(normalised(record.text), 0),
                )
            )
    if +own_splits:
        source["annotation_splits"] = dict(sorted((+own_splits).items()))
    selected = Phrases(phrases, {name: counts[name] for name in COUNTS}, source)
    if merge != "none":
        selected.phrases, selected.counts["merged"] = merge_phrases(phrases, merge)
    if selected.phrases or may_be_none:
        return selected
    if not any(counts[name] for name in (*COUNTS[:5], "other_shape")):
        raise Skipped(f"{'The set' if file is None else file.name} has no phrases with boxes.")
    listed = "the set's phrases" if file is None else f"the phrases in {file.name}"
    raise Skipped(
        f"None of {listed} can be"
        f" used: {counts['other_splits']} are on images of other splits than '{split}' and"
        f" '{HELD_OUT}', {counts['other_annotation_splits']} have another split of their own (the"
        f" option annotation_split: all takes them), {counts['other_views']} are on images that"
        f" are not frontal (views: all takes them), {counts['without_image']} are on images that"
        f" are not in the set, {counts['without_box']} have no box with an area inside their image,"
        f" {counts['other_shape']} were annotated on an image of another shape."
    )


def phrases_of(request: Request) -> Phrases:
    """The phrases of an evaluation, for `Request.once`."""
    grid, options = request.model.grid, request.options
    if grid.rows * grid.columns < 2:
        raise Skipped("The model has no regions: one vector per image shows no place in it.")
    return select_phrases(
        request.data,
        request.split,
        request.model.preprocessing.input_size,
        request.phrases,
        options.annotation_split,
        options.views,
        options.merge_phrases,
    )


def validation_phrases(request: Request) -> Phrases:
    """Phrases of validation images, to choose a threshold on, for `Request.once`.

    Those of patients whose phrases are evaluated are left out and counted (``shared``).
    """
    if request.split == VALIDATE:
        raise Skipped(f"the phrases of '{VALIDATE}' are those evaluated")
    evaluated = {phrase.patient for phrase in request.once(phrases_of).phrases}
    others = phrases_of(replace(request, split=VALIDATE, _shared={}))
    own = [phrase for phrase in others.phrases if phrase.patient not in evaluated]
    others.counts["shared"] = len(others.phrases) - len(own)
    others.phrases = own
    if not own:
        raise Skipped(f"every phrase of '{VALIDATE}' is of a patient that is evaluated")
    return others


def merge_phrases(phrases: Sequence[Phrase], merge: Merge) -> tuple[list[Phrase], int]:
    """Phrases with those of one image that say the same made one, and how many went into others.

    The first of them speaks for all, with the boxes of all, equal boxes once.

    ``phrase`` merges those of the same words (letter case, blanks and the full stop aside),
    ``category`` those of one category (and equally groundable).
    """
    groups: dict[tuple[object, ...], list[Phrase]] = {}
    for phrase in phrases:
        same = normalised(phrase.text) if merge == "phrase" else phrase.category
        groups.setdefault((phrase.row, same, phrase.groundable), []).append(phrase)
    merged = []
    for group in groups.values():
        boxes = dict.fromkeys(tuple(box) for phrase in group for box in phrase.boxes)
        merged.append(replace(group[0], boxes=[list(box) for box in boxes]))
    return merged, len(phrases) - len(merged)


def _own(data: PreparedSet) -> Iterator[tuple[PhraseRecord, Fitted]]:
    """The phrases of the source and what became of their boxes, as it was counted once."""
    records: dict[str, PhraseRecord] = {}
    columns = ["phrase_id", "image_id", "category", "text", "split", "boxes"]
    for cells in data.phrases[columns].to_numpy().tolist():
        phrase, image, category, text, split = map(str, cells[:5])
        boxes = tuple((float(x), float(y), float(w), float(h)) for x, y, w, h in cells[5])
        records[phrase] = PhraseRecord(phrase, image, category, text, boxes, None, split)
    counted = data.phrase_boxes
    named = ["phrase_id", "image_id", "split"]
    figures = ["flat", "outside", "clipped", "scaled", "other_shape"]
    for name, image, split, *counts in counted[named + figures].to_numpy().tolist():
        # Without a box it is not in the table of phrases, nor needed beyond its counts.
        record = records.get(name) or PhraseRecord(name, image, "", "", (), None, split)
        yield record, Fitted([list(box) for box in record.boxes], *counts)


def _of_file(file: Path, data: PreparedSet) -> Iterator[tuple[PhraseRecord, Fitted]]:
    """The phrases of another file of boxes, on the images of the set."""
    columns = ["image_id", "study_id", "patient_id", "view", "split"]
    images = [
        ImageRecord(image, study, patient, Path(image), view, split)
        for image, study, patient, view, split in data.images[columns].astype(str).to_numpy()
    ]
    sizes = data.images.set_index("image_id")[["width", "height"]].T.to_dict("list")
    pairs = []
    for phrase in BoxFile(file, images, Path()).phrases():
        fitted = Fitted([])  # of other images, whose boxes are not looked at
        if size := sizes.get(phrase.image_id):
            width, height = map(int, size)
            fitted = fit_boxes(phrase.boxes, phrase.annotated_size, (width, height))
        pairs.append((phrase, fitted))
    check_sizes(pair for pair in pairs if pair[0].image_id in sizes)
    return iter(pairs)
