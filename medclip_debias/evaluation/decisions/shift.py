"""Another prevalence: the odds that a probability has where the finding is rarer or commoner.

If only the share of positives differs, and images with the finding look alike in both places (label
shift), the likelihood ratio of an image stays, and the odds change by one factor (Saerens, Latinne
& Decaestecker 2002, eq. 4). The share may be given, or be the one that makes the scores of the new
images likeliest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.evaluation.classification import sigmoid
from medclip_debias.evaluation.decisions.probability import Unfit

Floats = NDArray[np.float64]
_STEPS = 20_000


def log_odds(share: float) -> float:
    """``log(share / (1 - share))``.

    Raises:
        UserError: the share is not strictly between 0 and 1.
    """
    if not 0 < share < 1:
        raise UserError(
            f"a prevalence of {share:g} leaves no doubt for an image to settle; give a share"
            " strictly between 0 and 1."
        )
    return float(np.log(share) - np.log1p(-share))


def shifted(logits: Floats, prevalence: float, target: float) -> Floats:
    """Log-odds at the prevalence ``target`` of log-odds at ``prevalence``.

    Raises:
        UserError: a share is not strictly between 0 and 1.

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

    Args:
        logits: ``[n]``, calibrated at ``prevalence``.
        prevalence: share of positives that they were fitted at.

    Returns:
        The share, at least ``1 / (n + 2)`` away from 0 and from 1.

    Raises:
        Unfit: the likeliest share is nearer to 0 or 1 than one image of n, as where nobody, or
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
            f" likeliest is {end}, as of images all alike or unlike those calibrated on; give it"
        )
    return share
