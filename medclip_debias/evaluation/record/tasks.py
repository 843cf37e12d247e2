"""What the other protocols write: grounding, boxes, retrieval, triplets, masks, progression."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from medclip_debias.evaluation.record.part import (
    Intervals,
    LateralityMetrics,
    MaskMetrics,
    Part,
    PhraseMetrics,
    ProgressionMetrics,
    RetrievalMetrics,
    SentenceBoxMetrics,
    TripletMetrics,
)

# ------------------------------------------------------------------------------- grounding


class PhraseFigures(PhraseMetrics):
    """Means over a group of phrases."""

    phrases: int = Field(description="Phrases in the group.")
    area: float | None = Field(None, description="Mean share of the image inside the boxes.")
    interval: Intervals = Field({}, description="95% intervals.")


class Grounding(PhraseFigures):
    """Phrase grounding, over all groundable phrases and by group."""

    patients: int | None = Field(None, description="Patients of the phrases.")
    miou_floor: float | None = Field(None, description="mIoU of a map that is zero everywhere.")
    pointing_game_floor: float | None = Field(None, description="Hit rate of a random pixel.")
    area_tercile_bounds: list[float] = Field([], description="Bounds between the areas.")
    categories: dict[str, PhraseFigures] = Field({}, description="By category.")
    areas: dict[str, PhraseFigures] = Field({}, description="By box area: small, middle, large.")
    sentence_frequency: dict[str, PhraseFigures] = Field(
        {}, description="By how many training studies say the sentence."
    )
    not_groundable: Any = Field(None, description="The same for phrases that deny a finding.")
    source: Any = Field(None, description="Where the phrases come from.")
    unseen_boxes: int | None = Field(None, description="Phrases outside the model's view.")
    boxes: int | None = Field(None, description="Boxes of the groundable phrases.")
    floors: Any = Field(
        None, description="The metrics with boxes of other images, and of the mean of the boxes."
    )
    dice: Any = Field(None, description="At which share of its range each rule cuts a map.")


class SentenceBoxes(SentenceBoxMetrics):
    """Boxes for sentences that may not be in the image."""

    interval: Intervals = Field({}, description="95% intervals.")
    without_suppression: Any = Field(None, description="The same boxes, none of them withheld.")
    sentences: int = Field(description="Sentences asked, each of one image.")
    patients: int | None = Field(None, description="Their patients.")
    asked: dict[str, int] = Field({}, description="How many of each kind were found and asked.")
    choice: str | None = Field(None, description="What the kinds are, and how they were chosen.")
    suppressed_by_words: int | None = Field(None, description="Suppressed by their own words.")
    rule: Any = Field(None, description="The rule of suppression, and how it was chosen.")


# ------------------------------------------------------------------------------- retrieval


class Direction(Part):
    """One direction of a retrieval; also ``recall_at_K`` for each K of the options."""

    median_rank: float = Field(description="Median rank of the pair.")
    queries: int | None = Field(None, description="Queries.")
    recall_at_10: float = Field(description="Share of pairs among the first 10.")
    recall_at_50: float = Field(description="Share of pairs among the first 50.")
    recall_at_100: float = Field(description="Share of pairs among the first 100.")


class Retrieval(RetrievalMetrics):
    """Retrieval both ways; the metrics on top are the strict ones."""

    interval: Intervals = Field({}, description="95% intervals.")
    strict: dict[str, Any] = Field({}, description="Only the own pair counts.")
    lenient: dict[str, Any] = Field({}, description="Any pair with the same text counts.")
    chance: dict[str, float] = Field({}, description="Of a random order.")
    phrases: int | None = Field(None, description="Box-sentence pairs.")
    distinct_sentences: int | None = Field(None, description="Distinct sentences.")


class StudyRetrieval(Part):
    """Whole studies: image and report, image and sentence, precision by class."""

    report: Retrieval = Field(description="Image and report.")
    precision_classes: list[str] = Field([], description="Classes of the precision by class.")


# -------------------------------------------------------------------------------- triplets


class Triplets(TripletMetrics):
    """Each image with its report, one with a finding negated, one with it omitted."""

    interval: Intervals = Field({}, description="95% intervals.")
    images: int = Field(description="Triplets judged, one an image.")
    patients: int | None = Field(None, description="Their patients.")
    distinct_texts: int | None = Field(None, description="Distinct sentences or reports scored.")
    source: Any = Field(None, description="The file, and what of it was left aside.")


class Laterality(LateralityMetrics):
    """Sentences that name a side, each against its mirror on the same image."""

    interval: Intervals = Field({}, description="95% intervals.")
    sentences: int = Field(description="Sentences asked, each of one image.")
    distinct_sentences: int = Field(description="Of them, distinct.")
    images: int = Field(description="Their images.")
    patients: int = Field(description="Their patients.")
    left_aside: dict[str, int] = Field({}, description="Sentences with a side not asked, by why.")


# --------------------------------------------------------------------- masks and progression


class MaskClass(MaskMetrics):
    """Segmentation of one class."""

    interval: Intervals = Field({}, description="95% intervals.")
    masks: int = Field(description="Masks of the class.")


class Segmentation(MaskMetrics):
    """Maps against masks; the metrics are means over the classes."""

    interval: Intervals = Field({}, description="95% intervals.")
    classes: dict[str, MaskClass] = Field(description="Per class.")
    masks: int = Field(description="Masks judged, one a sentence and image.")
    without_mask: int = Field(description="Sentences with boxes alone, left aside.")
    patients: int | None = Field(None, description="Their patients.")
    pointing_game_floor: float | None = Field(None, description="Hit rate of a random pixel.")
    threshold: dict[str, Any] = Field(
        {}, description="Share of the range that validation chose, or why there is none."
    )
    test_threshold: dict[str, Any] = Field({}, description="That of the test itself.")


class ProgressionClass(ProgressionMetrics):
    """Progression of one finding."""

    interval: Intervals = Field({}, description="95% intervals.")
    improving: int = Field(description="Pairs in which it improved.")
    stable: int = Field(description="Pairs in which it stayed.")
    worsening: int = Field(description="Pairs in which it worsened.")


class Progression(ProgressionMetrics):
    """Improving, stable or worsening; the metrics are means over the findings."""

    interval: Intervals = Field({}, description="95% intervals.")
    classes: dict[str, ProgressionClass] = Field(description="Per finding.")
    progressions: int = Field(description="Findings of pairs judged.")
    pairs: int = Field(description="Their pairs of images.")
    patients: int | None = Field(None, description="Their patients.")
    sentences: dict[str, Any] = Field({}, description="What was said of each finding.")
