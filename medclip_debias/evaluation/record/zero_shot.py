"""What zero-shot classification writes: classes, label maps, decisions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from medclip_debias.evaluation.record.part import ClassMetrics, Intervals, Part, ZeroShotMetrics


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
    unsaid_prompts: list[str] | None = Field(
        None, description="Prompts that the model's training text does not say; null: not known."
    )
    warnings: list[str] = Field([], description="What is wrong with the prompts, in sentences.")
    multiclass: MultiClass | None = Field(None, description="Multi-class accuracy.")
    decisions: Decisions | None = Field(None, description="Probabilities and decisions, if asked.")
