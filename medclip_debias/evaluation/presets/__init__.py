"""Protocol presets: the same predictions scored as other papers' code scores them.

Each is a YAML file of this folder, and its name is the preset's. A file says what it sets for
zero-shot classification, grounding and retrieval, and which published code it follows; the
scorers (`zero_shot`, `grounding`, `retrieval` beside it) are ours, written from the definitions.
docs/benchmark.md has what differs, and how far one model's metrics move.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.settings_files import load_yaml

OURS = "ours"
Part = Literal["zero_shot", "grounding", "retrieval"]


class Source(Settings):
    """Published code that a preset follows: a repository's file and its functions."""

    repository: str = Field(min_length=1)
    file: str = Field(min_length=1)
    functions: tuple[str, ...] = Field(min_length=1)
    of: tuple[Part, ...] = Field(min_length=1)


class ZeroShotRule(Settings):
    """How prompts become class scores and decisions.

    Attributes:
        prompts: what of a side with several prompts is scored: ``mean`` or ``max`` of their
            scores, or the ``embedding`` that is their mean at unit length.
        score: ``difference`` of the sides, ``positive`` side alone, or ``softmax`` over the two.
        decision: where a class is said to be present: at the score where both sides are equal
            (``sides``), or at the threshold of highest ``mcc`` on validation images; ``none``: no
            decision.
        several: how one of several classes is chosen by the positive sides: the ``highest``,
            equals sharing the decision, or the ``first`` of the highest; ``standardised`` does
            that too after each class was brought to mean 0 and deviation 1 over the images.
        metrics: keys of `medclip_debias.evaluation.presets.zero_shot.METRICS`.
    """

    prompts: Literal["mean", "max", "embedding"] = "mean"
    score: Literal["difference", "positive", "softmax"] = "difference"
    decision: Literal["sides", "mcc", "none"] = "sides"
    several: Literal["highest", "first", "standardised", "none"] = "none"
    metrics: tuple[str, ...] = ()


class GroundingRule(Settings):
    """What happens between a region map and its metrics.

    Attributes:
        phrases: ``groundable`` leaves out those that deny a finding; ``all`` does not look.
        merge: phrases of one image that are one: none (``never``), or those that are equal in
            lower case (``lower_case``).
        images: ``all``, or those with ``one_box`` in total.
        frame: pixels of the ``original``, or of the padded square scaled to ``side``.
        side: of that square.
        central: part of the square's side that is scored, centred.
        grid: a region's score belongs to the centre of one of as many ``equal_cells`` of the
            model's input, as in the published code, or to where the model's ``regions`` lie.
        between: pixels between centres are ``bilinear``, or take their ``nearest`` (on a square).
        square_boxes: on the square, boxes are ``floored`` to whole pixels, or the ``nearest``
            original pixel of each pixel decides.
        smoothing: sigma of a Gaussian over the grid, in cells; None for the run's own option.
        scale: ``none``, or ``min_max`` to [-1, 1] over the scored pixels.
        thresholds: of IoU; empty for no IoU.
        above: a pixel is in where its score is ``above`` the threshold, or ``at_least`` it.
        empty: IoU of a map without a pixel in: 0 (``zero``), or left out of the mean (``skip``).
        unseen_truth: whether truth that the model did not see stays in the union.
        union_epsilon: added to the union.
        cnr: ``absolute``, ``signed``, or ``none``.
        overlap: pixels of several boxes are ``inside``, or ``left_out`` of CNR.
        pointing: ``ties_shared``: the share of the highest pixels in a box whose centre decides;
            ``first``: whether the first of them lies between the box's edges, both included;
            ``any``: whether one of them lies in a box.
        dice: ``best_on_test``: Dice of ``sigmoid(scale cosine) > t`` at the best t of 0, .01, ...,
            1 on the evaluated phrases themselves, with the model's learned scale;
            ``at_thresholds``: at those of IoU.
        average: over ``phrases``, or over the means of ``categories``.
    """

    phrases: Literal["groundable", "all"] = "all"
    merge: Literal["never", "lower_case"] = "never"
    images: Literal["all", "one_box"] = "all"
    frame: Literal["original", "square"] = "original"
    side: int = Field(224, ge=2)
    central: float = Field(1.0, gt=0, le=1)
    grid: Literal["equal_cells", "regions"] = "equal_cells"
    between: Literal["bilinear", "nearest"] = "bilinear"
    square_boxes: Literal["floored", "nearest"] = "floored"
    smoothing: float | None = Field(None, ge=0)
    scale: Literal["none", "min_max"] = "none"
    thresholds: tuple[float, ...] = ()
    above: Literal["above", "at_least"] = "at_least"
    empty: Literal["zero", "skip"] = "zero"
    unseen_truth: Literal["counts", "left_out"] = "counts"
    union_epsilon: float = Field(0.0, ge=0)
    cnr: Literal["absolute", "signed", "none"] = "none"
    overlap: Literal["inside", "left_out"] = "inside"
    pointing: Literal["ties_shared", "first", "any", "none"] = "none"
    dice: Literal["none", "best_on_test", "at_thresholds"] = "none"
    average: Literal["phrases", "categories"] = "phrases"

    @model_validator(mode="after")
    def _on_the_square(self) -> GroundingRule:
        square_alone = ("nearest" in (self.between, self.square_boxes), self.pointing == "any")
        if any(square_alone) and self.frame != "square":
            raise ValueError("between and square_boxes nearest, and pointing any, are of a square")
        return self


class RetrievalRule(Settings):
    """Which report belongs to this image?

    Attributes:
        text: what of a report is scored: its ``sentences``, put together by the option
            ``report_score``, or as one text its ``longest`` section of findings and impression,
            or its ``impression``.
        pool: every ``report`` is a candidate, or every ``distinct`` text once.
        recalls: K of R@K; with them comes the mean rank.
        precisions: K of precision@K by class, over images of exactly one class.
    """

    text: Literal["sentences", "longest", "impression"] = "sentences"
    pool: Literal["report", "distinct"] = "report"
    recalls: tuple[int, ...] = ()
    precisions: tuple[int, ...] = ()


class Preset(Settings):
    """One file of this folder.

    Attributes:
        name: its file's name, without ending.
        about: what it does, one sentence.
        paper: where it is from.
        follows: the published code it follows.
        lacking: what of the published protocol could not be found as code, or is not taken over.
        zero_shot: how prompts are scored; None where nothing is published.
        grounding: how maps are scored; None likewise.
        retrieval: how reports are ranked; None likewise.
    """

    name: str = Field(min_length=1)
    about: str = Field(min_length=1)
    paper: str = Field(min_length=1)
    follows: tuple[Source, ...] = ()
    lacking: tuple[str, ...] = ()
    zero_shot: ZeroShotRule | None = None
    grounding: GroundingRule | None = None
    retrieval: RetrievalRule | None = None


def preset_names() -> tuple[str, ...]:
    """Names of the presets: ours first, then the others by name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.yaml"))
    return (OURS, *(name for name in names if name != OURS))


def chosen_presets(names: str) -> tuple[Preset, ...]:
    """The presets beside ours that an option names: one, several between commas, or ``all``."""
    words = [word.strip() for word in names.split(",")]
    wanted = preset_names() if words == ["all"] else dict.fromkeys(words)
    return tuple(load_preset(name) for name in wanted if name != OURS)


def load_preset(name: str) -> Preset:
    """The preset ``name``, or with ``name@regions`` its maps where the model's regions lie."""
    known = preset_names()
    base, at, grid = name.partition("@")
    if at and base in known:
        preset = _read(base)
        if grid != "regions" or preset.grounding is None or preset.grounding.grid == grid:
            raise UserError(
                f"There is no protocol preset '{name}': only 'regions' may follow '@', after a"
                " preset that draws maps in equal cells (docs/benchmark.md)."
            )
        rule = preset.grounding.model_copy(update={"grid": "regions"})
        return preset.model_copy(update={"name": name, "grounding": rule})
    if name not in known:
        raise UserError(
            f"There is no protocol preset '{name}'{did_you_mean(name, known)}; the presets are "
            f"{', '.join(known)}; 'all' takes every one (docs/benchmark.md)."
        )
    return _read(name)


@cache
def _read(name: str) -> Preset:
    content = load_yaml(Path(__file__).with_name(f"{name}.yaml"))
    return validate(Preset, {"name": name, **content}, f"preset '{name}'")
