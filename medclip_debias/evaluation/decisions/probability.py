"""From a score to a log-odds (Platt's line, a temperature, isotonic steps), at any prevalence.

Everything here is in log-odds, which stay exact where a probability would round to 1, and to which
another prevalence only adds a constant. If only the share of positives differs, and images with the
finding look alike in both places (label shift), the likelihood ratio of an image stays, and the
odds change by one factor (Saerens, Latinne & Decaestecker 2002, eq. 4). The share may be given, or
be the one that makes the scores of the new images likeliest.

Then where decisions lie: thresholds of the score, and sets of answers that hold the truth. A set is
present, absent, both (abstain) or none. Split conformal prediction: an answer is in an image's set
unless it fits worse than it fits the images, with that truth, on which the calibration was made.
Without assumptions on the model, as long as images with the finding look alike in both places, and
images without it do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from medclip_debias.config import Settings
from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import weighted_mean
from medclip_debias.evaluation.metrics import CALIBRATION_BINS, sigmoid, weighted_ece
from medclip_debias.evaluation.options import Method

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_STEPS = 20_000
_FLAT = "scores do not rise with the finding on the images to calibrate on"


class Unfit(UserError):
    """The images of a class allow no fit; the message is the reason, without a capital."""


class Line(Settings):
    """``logit p = slope * score + intercept``; the slope is positive."""

    kind: Literal["line"] = "line"
    slope: float = Field(gt=0)
    intercept: float = 0.0

    def logits(self, scores: Floats) -> Floats:
        """Log-odds of ``scores``, of their shape."""
        return np.asarray(self.slope * np.asarray(scores, dtype=np.float64) + self.intercept)


class Steps(Settings):
    """Probabilities ``probability`` at the scores ``at``, straight between them, level outside."""

    kind: Literal["steps"] = "steps"
    at: tuple[float, ...] = Field(min_length=2)
    probability: tuple[Annotated[float, Field(gt=0, lt=1)], ...]

    @model_validator(mode="after")
    def _rising(self) -> Steps:
        rising = all(np.diff(self.at) > 0) if len(self.at) > 1 else True
        if len(self.at) != len(self.probability) or not rising:
            raise ValueError("scores must rise, with one probability each")
        if any(np.diff(self.probability) < 0):
            raise ValueError("probabilities must not fall with the score")
        return self

    def logits(self, scores: Floats) -> Floats:
        """Log-odds of ``scores``, of their shape."""
        p = np.interp(np.asarray(scores, dtype=np.float64), self.at, self.probability)
        return np.asarray(np.log(p) - np.log1p(-p))


ScoreMap = Annotated[Line | Steps, Field(discriminator="kind")]


def fit(method: Method, scores: Floats, positive: Bools) -> Line | Steps:
    """Fit the log-odds of the finding to scores and labels.

    ``platt``: slope and intercept by maximum likelihood against Platt's (1999) targets
    ``(N+ + 1) / (N+ + 2)`` and ``1 / (N- + 2)``, which keep the slope finite where scores separate
    the labels. ``temperature``: the slope alone, against the same targets; it cannot mend a
    constant that all scores share. ``isotonic``: the rising steps nearest to the labels (pool
    adjacent violators), straight between steps, kept ``1 / (n + 2)`` away from 0 and 1.
    """
    scores, positive = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    if not np.isfinite(scores).all():
        count = int((~np.isfinite(scores)).sum())
        raise UserError(f"{count} of {scores.size} scores are not finite; no calibration fits.")
    if positive.all() or not positive.any():
        raise Unfit("one label value only on the images to calibrate on")
    if scores.min() == scores.max():
        raise Unfit("all scores are equal on the images to calibrate on")
    if method == "isotonic":
        from sklearn.isotonic import IsotonicRegression

        steps = IsotonicRegression(increasing=True).fit(scores, positive.astype(np.float64))
        if steps.y_thresholds_[0] == steps.y_thresholds_[-1]:
            raise Unfit(_FLAT)
        edge = 1 / (scores.size + 2)
        probability = np.clip(steps.y_thresholds_, edge, 1 - edge)
        return Steps(
            at=tuple(steps.X_thresholds_.tolist()), probability=tuple(probability.tolist())
        )
    slope, intercept = platt(scores, positive, constant=method == "platt")
    if not slope > 0:
        raise Unfit(_FLAT)
    return Line(slope=slope, intercept=intercept)


def platt(
    scores: Floats, positive: Bools, *, constant: bool = True, balanced: bool = False
) -> tuple[float, float]:
    """Slope and intercept of the log-odds against Platt's targets, by maximum likelihood.

    Without ``constant`` the intercept is 0; ``balanced``: both labels weigh the same, so that the
    probability is one at as many of one as of the other.
    """
    count = np.where(positive, positive.sum(), (~positive).sum())
    target = np.where(positive, count + 1, 1) / (count + 2)
    middle = float(scores.mean()) if constant else 0.0
    spread = float(scores.std() if constant else np.abs(scores).max()) or 1.0
    x = (scores - middle) / spread
    design = np.stack([x, np.ones_like(x)], axis=1) if constant else x[:, None]
    weights = 0.5 * len(scores) / count if balanced else np.ones_like(x)
    fitted = logistic(design, target, weights[None])[0]
    slope = float(fitted[0]) / spread
    return slope, float(fitted[1]) - slope * middle if constant else 0.0


def logistic(
    design: Floats,
    target: Floats,
    weights: Floats,
    offset: Floats | float = 0.0,
    start: Floats | None = None,
) -> Floats:
    """Logistic regression under each row of ``weights``, by Newton's method.

    ``design [n, k]``, ``target [n]`` in [0, 1], ``weights [b, n]``, ``offset [n]`` added to the
    log-odds, ``start [k]`` near the solution. Gives ``[b, k]``, NaN where nothing finite was found.
    """
    if start is None or not np.isfinite(start).all():
        start = np.zeros(design.shape[1])
    beta = np.tile(start, (len(weights), 1))
    total = np.maximum(weights.sum(axis=1), 1)[:, None]
    pairs = np.einsum("ni,nj->nij", design, design).reshape(len(design), -1)

    def loss(beta: Floats) -> Floats:
        z = beta @ design.T + offset
        return np.asarray((weights * (np.logaddexp(0, z) - target * z)).sum(axis=1))

    with np.errstate(invalid="ignore", over="ignore"):
        now = loss(beta)
        for _ in range(100):
            p = sigmoid(beta @ design.T + offset)
            slope = (weights * (p - target)) @ design
            if np.all(np.abs(slope) <= 1e-9 * total):
                break
            # The sum over images of w p (1 - p) x_i x_j, for each pair of columns.
            curve = ((weights * p * (1 - p)) @ pairs).reshape(-1, len(start), len(start))
            curve += 1e-12 * total[:, :, None] * np.eye(len(start))
            step = np.linalg.solve(curve, slope[:, :, None])[:, :, 0]
            for _ in range(30):  # halved until none makes the fit worse
                then = loss(beta - step)
                worse = ~(then <= now + 1e-12 * np.abs(now))
                if not worse.any():
                    break
                step[worse] /= 2
            beta, now = beta - step, then
    usable = np.all(np.abs(slope) <= 1e-7 * total, axis=1) & (weights.sum(axis=1) > 0)
    return np.where(usable[:, None], beta, np.nan)


# -------------------------------------------------------------------------------- prevalence


def log_odds(share: float) -> float:
    """``log(share / (1 - share))``."""
    if not 0 < share < 1:
        raise UserError(
            f"a prevalence of {share:g} leaves nothing for an image to decide; give a share"
            " strictly between 0 and 1."
        )
    return float(np.log(share) - np.log1p(-share))


def shifted(logits: Floats, prevalence: float, target: float) -> Floats:
    """Log-odds at the prevalence ``target`` of log-odds at ``prevalence``.

    Example:
        >>> odds = np.exp(shifted(np.array([0.0]), 0.5, 0.05))
        >>> round(float(odds[0]), 6) == round(0.05 / 0.95, 6)
        True
    """
    return np.asarray(logits + (log_odds(target) - log_odds(prevalence)))


def estimated_prevalence(logits: Floats, prevalence: float) -> float:
    """Share of positives among unlabelled images, by expectation and maximisation.

    Saerens et al. (2002), eq. 9: the mean of the shifted probabilities is the next share. It climbs
    the likelihood ``sum_i log(t p_i / s + (1 - t)(1 - p_i) / (1 - s))`` of the share t, s the
    prevalence behind the log-odds, which has one maximum.

    The share stays ``1 / (n + 2)`` away from 0 and 1; nearer ones are `Unfit`, as where nobody, or
    everybody, has the finding, or where these images are unlike those calibrated on.
    """
    edge = 1 / (len(logits) + 2)
    share = prevalence
    for _ in range(_STEPS if len(logits) else 0):
        then = float(sigmoid(shifted(logits, prevalence, share)).mean())
        then = min(max(then, edge / 10), 1 - edge / 10)
        if abs(then - share) < 1e-12:
            break
        share = then
    if not edge <= share <= 1 - edge:
        end = "0" if share < 0.5 else "1"
        raise Unfit(
            f"no prevalence can be estimated from the scores of these {len(logits)} images: the"
            f" likeliest is {end}, as if all images were alike or unlike those calibrated on; give"
            " it"
        )
    return share


# ------------------------------------------------------------------------- how far to trust them


def qualities(positive: Bools, logits: Floats, weights: Floats) -> dict[str, Floats]:
    """How good log-odds are, under each row of ``weights [b, n]``: ``[b]``; NaN where undefined.

    ``ece``: expected calibration error over 15 bins of equal width. ``ece_equal_mass``: the same
    over 15 bins of as many images each, as far as equal probabilities allow. ``brier``: mean of
    ``(p - y)^2``. ``intercept``: a of ``logit P(y) = a + logit p``, 0 where the mean is right,
    above 0 where the finding is commoner than said. ``slope``: b of ``logit P(y) = a + b logit p``,
    1 best, below 1 where probabilities are too extreme (Cox 1958; Van Calster et al. 2016).
    """
    p = sigmoid(logits)
    intercept, slope = recalibration(positive, logits, weights)
    return {
        "ece": weighted_ece(positive, p, weights),
        "ece_equal_mass": weighted_ece(positive, p, weights, equal_mass_bin(p)),
        "brier": weighted_mean((p - positive) ** 2, weights),
        "intercept": intercept,
        "slope": slope,
    }


def equal_mass_bin(probability: Floats, bins: int = CALIBRATION_BINS) -> NDArray[np.intp]:
    """Bin of each probability between quantiles; equal probabilities share one."""
    edges = np.quantile(probability, np.arange(1, bins) / bins)
    return np.searchsorted(edges, probability, side="right")


def recalibration(positive: Bools, logits: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Calibration intercept (slope fixed at 1) and slope; see `qualities`.

    NaN where all labels with a weight are equal, and for the slope where all log-odds are, or
    where they separate the labels, so that no finite slope is likeliest.
    """
    y = positive.astype(np.float64)
    ones = np.ones((1, y.size))
    start = logistic(ones.T, y, ones, logits)[0]
    intercept = logistic(ones.T, y, weights, logits, start)[:, 0]
    middle, spread = float(logits.mean()), float(logits.std())
    slope = np.full(len(weights), np.nan)
    # Rows in which some image without the finding lies above one with it, and the other way round.
    ends = {}
    for truth, members in ((True, positive), (False, ~positive)):
        inside = (weights > 0) & members
        low = np.where(inside, logits, np.inf).min(axis=1)
        ends[truth] = low, np.where(inside, logits, -np.inf).max(axis=1)
    mixed = (ends[False][1] > ends[True][0]) & (ends[True][1] > ends[False][0])
    if spread > 1e-12 * (1 + abs(middle)) and mixed.any():
        design = np.stack([(logits - middle) / spread, np.ones_like(y)], axis=1)
        start = logistic(design, y, ones)[0]
        slope[mixed] = logistic(design, y, weights[mixed], 0.0, start)[:, 0] / spread
    both = (weights @ y > 0) & (weights @ (1 - y) > 0)
    return np.where(both, intercept, np.nan), np.where(both, slope, np.nan)


Rule = Literal["sensitivity", "specificity", "youden", "net_benefit"]
CURVE: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""Threshold probabilities of a decision curve."""
ANSWERS = ("none", "absent", "present", "both")
"""What a set of answers may be; of ``both`` and ``none`` the model abstains."""
_ROUNDING = 1e-9


def thresholds(
    positive: Floats,
    negative: Floats,
    *,
    sensitivity: float,
    specificity: float,
    threshold_probability: float,
    prevalence: float,
) -> dict[Rule, float]:
    """The score at or above which an image counts as positive, by each rule.

    ``sensitivity``: the highest with at least that share of positives. ``specificity``: the lowest
    with at least that share of negatives below. ``youden``: of largest sensitivity + specificity
    (Youden 1950). ``net_benefit``: of largest `net_benefit` at ``threshold_probability`` where
    ``prevalence`` are positive. Of several equally good ones the highest. Candidates are the scores
    themselves and the number above them all, at which nothing is positive.
    """
    scores = np.unique(np.concatenate([positive, negative]))
    scores = np.append(scores, np.nextafter(scores[-1], np.inf))
    caught = 1 - np.searchsorted(np.sort(positive), scores, side="left") / len(positive)
    spared = np.searchsorted(np.sort(negative), scores, side="left") / len(negative)
    cost = threshold_probability / (1 - threshold_probability)
    benefit = prevalence * caught - (1 - prevalence) * (1 - spared) * cost
    return {
        "sensitivity": float(scores[caught >= sensitivity - _ROUNDING][-1]),
        "specificity": float(scores[spared >= specificity - _ROUNDING][0]),
        "youden": float(scores[_last_best(caught + spared)]),
        "net_benefit": float(scores[_last_best(benefit)]),
    }


def _last_best(values: Floats) -> int:
    return int(np.flatnonzero(values >= values.max() - _ROUNDING)[-1])


def net_benefit(
    positive: Bools, flagged: Bools, weights: Floats, threshold_probability: float
) -> Floats:
    """Findings found less false alarms at their cost, per image, under each row of ``weights``.

    ``TP/n - FP/n * t/(1 - t)`` (Vickers & Elkin 2006): flagging nobody has 0.
    """
    cost = threshold_probability / (1 - threshold_probability)
    worth = flagged * np.where(positive, 1.0, -cost)
    with np.errstate(invalid="ignore"):
        return np.asarray(weights @ worth / weights.sum(axis=1))


# ------------------------------------------------------------------------------ sets of answers


@dataclass(frozen=True)
class Sets:
    """Which values have which answers in their set.

    Attributes:
        present_from: "present" is in the set of values of at least this; may be -inf.
        absent_to: "absent" is in the set of values of at most this; may be inf.
    """

    present_from: float
    absent_to: float

    def of(self, values: Floats) -> tuple[Bools, Bools]:
        """Whether "present" and "absent" are in the set of each of ``values``."""
        return values >= self.present_from, values <= self.absent_to

    def words(self, values: Floats) -> NDArray[np.str_]:
        """One of `ANSWERS` for each of ``values``."""
        present, absent = self.of(values)
        return np.array(ANSWERS)[2 * present + 1 * absent]


def class_conditional(positive: Floats, negative: Floats, coverage: float) -> Sets:
    """Sets that hold the truth for ``coverage`` of either truth (Vovk 2012, label-conditional).

    Of n images with a truth, the ``ceil((n + 1) coverage)``-th from the side where it fits best
    sets the bound; with fewer than that the answer is in every set. As each truth has its own
    bound, the share of positives does not matter.

    Values are higher where the finding is likelier.
    """
    return Sets(-_bound(-positive, coverage), _bound(negative, coverage))


def _bound(misfit: Floats, coverage: float) -> float:
    rank = math.ceil((len(misfit) + 1) * coverage - _ROUNDING)
    return float(np.sort(misfit)[rank - 1]) if rank <= len(misfit) else math.inf


def marginal(positive: Floats, negative: Floats, coverage: float, target: float) -> Sets:
    """Sets that hold the truth for ``coverage`` of all images where ``target`` are positive.

    Weighted conformal prediction (Tibshirani et al. 2019, eq. 7) for label shift (Podkopaev &
    Ramdas 2021): a calibration image weighs the ratio of its truth's shares there and here, and so
    does the new image under each answer.

    Values are log-odds of calibration images.
    """
    count = len(positive) + len(negative)
    above = target / (len(positive) / count)
    below = (1 - target) / (len(negative) / count)
    misfit = np.concatenate([-positive, negative])
    weights = np.repeat([above, below], [len(positive), len(negative)])
    order = np.argsort(misfit, kind="stable")
    reached = np.cumsum(weights[order])

    def bound(own: float) -> float:
        needed = coverage * (reached[-1] + own)
        place = int(np.searchsorted(reached, needed * (1 - _ROUNDING)))
        return float(misfit[order[place]]) if place < count else math.inf

    return Sets(-bound(above), bound(below))
