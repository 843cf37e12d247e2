"""What ``results.json`` holds: one model for both formats, and how the file is read.

Format 2 keeps every key of format 1 and adds to it, so that one description serves both: what
format 1 lacks is optional here. Keys that this version does not know are kept, not refused, so
that an older version can read what a newer one of the same format wrote.
docs/results.md says the same in words, docs/results.schema.json as JSON Schema.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import Metric, of_protocol
from medclip_debias.files import read_json

FORMATS = (1, 2)
Interval = tuple[float, float] | None
Intervals = dict[str, Interval]


class Part(BaseModel):
    """Base of all parts: what is declared is checked, what is not is kept."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


def _with_metrics(protocol: str, *, per_class: bool = False) -> type[Part]:
    """A part that holds the metrics of ``protocol``, as the catalogue declares them.

    Args:
        protocol: whose metrics stand directly in the part.
        per_class: the metrics of one class instead of their means.
    """
    fields: dict[str, Any] = {}
    for metric in of_protocol(protocol):
        key = metric.per_class if per_class else metric.name
        if metric.path or not key:
            continue
        about = _about(metric, per_class)
        name = key.replace(".", "_")  # a key may hold a dot, the name of a field may not
        if metric.required:
            fields[name] = (float, Field(alias=key, description=about))
        else:
            fields[name] = (float | None, Field(None, alias=key, description=about))
    return create_model("Metrics", __base__=Part, **fields)


def _about(metric: Metric, per_class: bool) -> str:
    return re.split("; (?:mean|sum) over", metric.definition)[0] if per_class else metric.definition


if TYPE_CHECKING:  # their fields are known when the program runs

    class ClassMetrics(Part):
        """Zero-shot metrics of one class."""

    class ZeroShotMetrics(Part):
        """Zero-shot metrics, means over the classes."""

    class PhraseMetrics(Part):
        """Metrics of phrase grounding."""

    class SentenceBoxMetrics(Part):
        """Metrics of boxes for sentences that may not be there."""

    class RetrievalMetrics(Part):
        """Metrics of a retrieval."""

    class TripletMetrics(Part):
        """Metrics of report triplets."""

    class MaskMetrics(Part):
        """Metrics of segmentation."""

    class ProgressionMetrics(Part):
        """Metrics of progression."""

else:
    ClassMetrics = _with_metrics("zero_shot", per_class=True)
    ZeroShotMetrics = _with_metrics("zero_shot")
    PhraseMetrics = _with_metrics("grounding")
    SentenceBoxMetrics = _with_metrics("sentence_boxes")
    RetrievalMetrics = _with_metrics("retrieval")
    TripletMetrics = _with_metrics("triplets")
    MaskMetrics = _with_metrics("segmentation")
    ProgressionMetrics = _with_metrics("progression")


# ------------------------------------------------------------------------------- zero-shot


class Bin(Part):
    """One bin of a reliability diagram."""

    lower: float = Field(alias="from", description="Lower bound of the probability.")
    upper: float = Field(alias="to", description="Upper bound of the probability.")
    images: int = Field(description="Images in the bin.")
    probability: float = Field(description="Their mean probability.")
    positive: float = Field(description="Share of them that are positive.")


class Threshold(Part):
    """Where F1's decision lies, or why there is none."""

    value: float | None = Field(None, description="Score difference at or above which is positive.")
    reason: str | None = Field(None, description="Why there is no threshold.")
    f1_there: float | None = Field(None, description="F1 on the validation images.")
    images: int | None = Field(None, description="Validation images.")
    positive: int | None = Field(None, description="Of them, positive.")
    negative: int | None = Field(None, description="Of them, negative.")
    uncertain: int | None = Field(None, description="Of them, labelled -1.")
    blank: int | None = Field(None, description="Of them, without a label.")


class ClassCounts(Part):
    """How many images a class has, under the label policy."""

    images: int | None = Field(None, description="Images of the split.")
    positive: int = Field(description="Judged positive.")
    negative: int = Field(description="Judged negative.")
    uncertain: int | None = Field(None, description="Labelled -1.")
    blank: int | None = Field(None, description="Without a label.")
    left_out: int = Field(description="Neither positive nor negative under the label policy.")


class ClassResult(ClassCounts, ClassMetrics):
    """Zero-shot metrics of one class."""

    interval: Intervals = Field({}, description="95% interval of each metric.")
    threshold: Threshold | None = Field(None, description="Of F1.")
    reliability: list[Bin] = Field([], description="Bins that hold images.")


class Refused(ClassCounts):
    """A class that could not be measured; its prompts compete with the others' all the same."""

    reason: str = Field(description="Why.")
    contradiction_rate: float | None = Field(None, description="As of the other classes.")


class MultiClassCount(Part):
    """One class of the multi-class protocol."""

    images: int = Field(description="Images of the class.")
    recall: float | None = Field(description="Share of them that were named rightly.")


class MultiClass(Part):
    """Multi-class accuracy, as on CheXpert 5x200; ``reason`` alone when not measured."""

    reason: str | None = Field(None, description="Why it was not measured.")
    accuracy: float | None = Field(None, description="Share of images named rightly.")
    balanced_accuracy: float | None = Field(None, description="Mean recall of the classes.")
    interval: Intervals = Field({}, description="95% intervals.")
    chance: float | None = Field(None, description="Accuracy of guessing.")
    images: int | None = Field(None, description="Images that count.")
    classes: dict[str, MultiClassCount] = Field({}, description="Per class.")
    confusion: list[list[float]] = Field([], description="Rows the truth, columns the answers.")
    source: Any = Field(None, description="Where the images and their classes come from.")


class UsedOffsets(Part):
    """Constants that were taken off the scores of each prompt."""

    whose: str = Field(alias="from", description="Whose unlabelled images set them.")
    images: int = Field(description="How many images; 0 where the model's folder kept them.")
    of_prompt: dict[str, float] = Field(description="Constant of each prompt, a cosine.")


class MappedClass(Part):
    """What a label map made of one class, before the label policy."""

    rule: str = Field(description="Which columns make it present.")
    present: int = Field(description="Images labelled 1.")
    absent: int = Field(description="Images labelled 0.")
    uncertain: int = Field(description="Images labelled -1.")
    blank: int = Field(description="Images without a label.")
    contradictory: int = Field(description="Of the blank, both present and absent by the rule.")


class UsedLabelMap(Part):
    """The label map that made the classes' labels of columns with other names."""

    name: str = Field(description="Its name.")
    hash: str = Field(description="16 hex digits naming its content.")
    columns: dict[str, str] = Field(description="Column in the map to column that was read.")
    lacking_columns: list[str] = Field([], description="Rare columns that are not there: 0.")
    contradictory: Literal["refuse", "blank"] = Field(
        description="What happens to images that are both present and absent."
    )
    classes: dict[str, MappedClass] = Field(description="Per class.")
    not_judged: dict[str, str] = Field({}, description="Classes without labels, and why.")


class Probabilities(Part):
    """How far probabilities can be trusted."""

    ece: float | None = Field(None, description="Calibration error, 15 bins of equal width.")
    ece_equal_mass: float | None = Field(None, description="The same, bins of as many images each.")
    brier: float | None = Field(None, description="Mean square of probability less truth.")
    intercept: float | None = Field(None, description="Of the recalibration with slope 1; 0 best.")
    slope: float | None = Field(None, description="Of the logistic recalibration; 1 best.")
    interval: Intervals = Field({}, description="95% intervals.")
    reliability: list[Bin] = Field([], description="Bins that hold images.")


class TakenPrevalence(Part):
    """The share of positives that probabilities are for."""

    validation: float = Field(description="Share among the images of the fit.")
    target: float = Field(description="Share that was taken for the evaluated images.")
    whence: Literal["given", "calibration", "estimated", "validation"] = Field(
        alias="from", description="Where that share is from."
    )
    observed: float = Field(description="Share among the evaluated images.")


class DecisionThreshold(Part):
    """A threshold chosen on the images of the fit, and what it does on those evaluated."""

    score: float = Field(description="Score difference at or above which is positive.")
    probability: float = Field(description="The probability there.")
    sensitivity: float | None = Field(None, description="Positives at or above.")
    specificity: float | None = Field(None, description="Negatives below.")
    ppv: float | None = Field(None, description="Share of those at or above that are positive.")
    npv: float | None = Field(None, description="Share of those below that are negative.")
    flagged: float | None = Field(None, description="Share of images at or above.")
    interval: Intervals = Field({}, description="95% intervals.")


class Benefit(Part):
    """Net benefit per image at one threshold probability; of flagging nobody it is 0."""

    threshold_probability: float = Field(description="Probability from which one acts.")
    model: float = Field(description="Of acting where the probability reaches it.")
    all: float = Field(description="Of acting on every image.")


class AnswerSets(Part):
    """Conformal sets of answers."""

    present_from: float | None = Field(description="Lowest value with 'present'; null for any.")
    absent_to: float | None = Field(description="Highest value with 'absent'; null for any.")
    images: int = Field(description="Images.")
    coverage: float | None = Field(None, description="Share whose set holds the truth.")
    coverage_present: float | None = Field(None, description="Of those with the finding.")
    coverage_absent: float | None = Field(None, description="Of those without it.")
    abstention: float | None = Field(None, description="Share with both answers or none.")
    both: float | None = Field(None, description="Share with both answers.")
    none: float | None = Field(None, description="Share with no answer.")
    right_when_single: float | None = Field(None, description="Share right of single answers.")
    interval: Intervals = Field({}, description="95% intervals.")


class ClassDecision(Part):
    """Probabilities, thresholds and sets of answers of one class."""

    fitted: dict[str, Any] = Field(description="Counts of the images of the fit, and the map.")
    prevalence: TakenPrevalence = Field(description="Shares of positives.")
    uncalibrated: Probabilities | None = Field(None, description="By the model's own scale.")
    validation: Probabilities = Field(description="Calibrated, at the prevalence of the fit.")
    probabilities: Probabilities = Field(description="Calibrated, at the prevalence taken.")
    thresholds: dict[str, DecisionThreshold] = Field(description="By rule.")
    net_benefit: list[Benefit] = Field(description="Decision curve.")
    sets: AnswerSets = Field(description="Conformal sets.")


class Decisions(Part):
    """Decisions of zero-shot classification; ``reason`` alone where none were made."""

    method: Literal["platt", "temperature", "isotonic"] = Field(description="What was fitted.")
    reason: str | None = Field(None, description="Why nothing was decided.")
    split: str | None = Field(None, description="Whose images were calibrated on.")
    data_hash: str | None = Field(None, description="Their set, of a calibration file.")
    coverage_asked: float | None = Field(None, description="Coverage that the sets are made for.")
    conformal: str | None = Field(None, description="What the coverage is kept among.")
    ece: float | None = Field(None, description="Of the probabilities; mean over classes.")
    coverage: float | None = Field(None, description="Of the sets; mean over classes.")
    abstention: float | None = Field(None, description="Of the sets; mean over classes.")
    interval: Intervals = Field({}, description="95% intervals of the means.")
    classes: dict[str, ClassDecision] = Field({}, description="Per class.")
    skipped: dict[str, Any] = Field({}, description="Classes without decisions, and why.")
    notes: list[str] = Field([], description="What a reader must know.")


class ZeroShot(ZeroShotMetrics):
    """Zero-shot classification; the metrics are means over the classes."""

    interval: Intervals = Field({}, description="95% intervals of the means.")
    classes: dict[str, ClassResult] = Field(description="Per class.")
    refused: dict[str, Refused] = Field({}, description="Classes that were not measured.")
    contradiction_chance: float | None = Field(
        None, description="Contradiction rate of scores in random order."
    )
    images: int | None = Field(None, description="Images judged.")
    studies: int | None = Field(None, description="Studies judged, each by the mean of its images.")
    patients: int | None = Field(None, description="Their patients.")
    scale: float | None = Field(None, description="g2, from difference to logit; null for none.")
    source: Any = Field(None, description="Where the labels come from.")
    offsets: UsedOffsets | None = Field(None, description="One constant per prompt, if any.")
    label_map: UsedLabelMap | None = Field(None, description="The label map, if any.")
    multiclass: MultiClass | None = Field(None, description="Multi-class accuracy.")
    decisions: Decisions | None = Field(None, description="Probabilities and decisions, if asked.")


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


# ------------------------------------------------------------------------------- the whole


class Counts(Part):
    """What was looked at."""

    images: int = Field(description="Images encoded.")
    labelled_images: int | None = Field(None, description="Images with labels.")
    phrases: int | None = Field(None, description="Phrases.")
    asked_sentences: int | None = Field(None, description="Sentences asked, each of one image.")
    sentences: int | None = Field(None, description="Distinct sentences encoded.")
    cut_sentences: int | None = Field(None, description="Sentences longer than the encoder reads.")


class SelfTest(Part):
    """Whether the model still gives the scores that were stored with it."""

    status: Literal["passed", "weights", "tokens", "drift", "damaged", "absent", "off"] = Field(
        description="Outcome (docs/results.md)."
    )
    largest_difference: float | None = Field(None, description="Of any stored number.")
    tolerance: float | None = Field(None, description="Largest that passes on this device.")
    sentence: str | None = Field(None, description="The warning, when there was one.")


class Archive(Part):
    """What a model was trained on, or is tested on."""

    kind: str | None = Field(description="Kind of source; null where the model does not say.")
    synthetic: bool | None = Field(description="Whether it is a phantom.")
    data_hash: str | None = Field(description="Names the prepared set's content.")


class Archives(Part):
    """Whether the model is tested on the archive that it was trained on."""

    model: Archive = Field(description="What the model was trained on.")
    data: Archive = Field(description="What it is tested on.")
    relation: Literal["same set", "same archive", "another archive", "unknown"] = Field(
        description="How the two are related."
    )


class PresetResults(Part):
    """The same predictions as a published protocol counts them (docs/protocols.md)."""

    about: str = Field(description="What the preset does.")
    paper: str = Field(description="Where it is from.")
    follows: list[dict[str, Any]] = Field([], description="Published code that it follows.")
    lacking: list[str] = Field([], description="What is not published, or not taken over.")
    zero_shot: dict[str, Any] | None = Field(None, description="Its metrics, and per class.")
    grounding: dict[str, Any] | None = Field(None, description="Its metrics, and per category.")
    study_retrieval: dict[str, Any] | None = Field(None, description="Its metrics.")


class Results(Part):
    """The content of ``results.json``."""

    format: Literal[1, 2] = Field(description="Version of this file.")
    split: str = Field(description="Split of the images.")
    zero_shot: ZeroShot | None = Field(None, description="Zero-shot classification.")
    grounding: Grounding | None = Field(None, description="Phrase grounding.")
    sentence_boxes: SentenceBoxes | None = Field(
        None, description="Boxes for sentences that may not be in the image."
    )
    retrieval: Retrieval | None = Field(None, description="Box-sentence retrieval.")
    study_retrieval: StudyRetrieval | None = Field(None, description="Whole-study retrieval.")
    triplets: Triplets | None = Field(None, description="Report triplets.")
    segmentation: Segmentation | None = Field(None, description="Maps against masks.")
    progression: Progression | None = Field(None, description="Findings over time.")
    presets: dict[str, PresetResults] = Field({}, description="By preset, beside our own.")
    skipped: dict[str, str] = Field({}, description="Protocols left out, and why.")
    notes: list[str] = Field([], description="What a reader must know, in sentences.")
    counts: Counts | None = Field(None, description="What was looked at.")
    data_hash: str = Field(description="64 hex digits naming the prepared set's content.")
    model_hash: str | None = Field(description="16 hex digits naming the model's content.")
    code_hash: str | None = Field(None, description="16 hex digits naming the package's files.")
    seed: int = Field(description="Of the bootstrap.")
    prompts: dict[str, Any] = Field({}, description="The prompt set, word for word.")
    options: dict[str, Any] = Field({}, description="Every choice behind the metrics.")
    model: dict[str, Any] = Field({}, description="Architecture, preprocessing, provenance.")
    archives: Archives | None = Field(None, description="The model's archive, and this one.")
    data: dict[str, Any] = Field({}, description="Source, counts, splits, funnel, settings.")
    self_test: SelfTest | None = Field(None, description="The model's golden samples.")
    versions: dict[str, str] = Field({}, description="Versions of what computed the metrics.")
    timing: dict[str, float | None] = Field({}, description="Seconds taken.")


def read_results(path: Path) -> dict[str, Any]:
    """Read and check ``results.json``; the content as it stands in the file.

    Raises:
        UserError: no such file, no JSON, another format, or a part that is missing or wrong.
    """
    content = read_json(path, "run 'medclip-debias evaluate' to write it")
    check_results(content, str(path))
    return content


def check_results(content: Any, where: str) -> None:
    """Refuse what is no results file, in one sentence that names the first wrong key.

    Raises:
        UserError: as said.
    """
    if not isinstance(content, dict):
        raise UserError(f"{where}: is not a results file; run 'evaluate' again.")
    if content.get("format") not in FORMATS:
        known = " and ".join(str(number) for number in FORMATS)
        raise UserError(
            f"{where}: results of format {content.get('format')!r}, but this version reads the "
            f"formats {known}; evaluate again, or with the version that wrote it."
        )
    try:
        Results.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise UserError(
            f"{where}: is damaged at '{place}' ({message}); run 'evaluate' again."
        ) from None


def json_schema() -> str:
    """The JSON Schema of `Results`, as docs/results.schema.json holds it."""
    schema = Results.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2) + "\n"
