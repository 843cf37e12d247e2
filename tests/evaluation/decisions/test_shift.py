"""Another prevalence: Bayes' rule in closed form, and the likeliest share by brute force."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.errors import UserError
from medclip_debias.evaluation.decisions.probability import Unfit, estimated_prevalence, shifted
from medclip_debias.evaluation.metrics import sigmoid


def normal_logits(n, share, seed, gap=2.0, at=0.4):
    """Exact log-odds at the prevalence ``at`` of scores N(+-gap/2, 1), ``share`` positive."""
    rng = np.random.default_rng(seed)
    positive = rng.random(n) < share
    scores = rng.normal(size=n) + gap * (positive - 0.5)
    return gap * scores + np.log(at / (1 - at)), positive


def test_shifted_odds_are_bayes_rule():
    from scipy.stats import norm

    x = np.linspace(-3, 3, 13)

    def posterior(share):
        yes, no = share * norm.pdf(x, 1), (1 - share) * norm.pdf(x, -1)
        return yes / (yes + no)

    logits = np.log(posterior(0.4)) - np.log1p(-posterior(0.4))
    assert sigmoid(shifted(logits, 0.4, 0.05)) == pytest.approx(posterior(0.05), abs=1e-12)
    assert shifted(logits, 0.4, 0.4) == pytest.approx(logits)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_the_estimate_is_the_likeliest_share(share):
    logits, positive = normal_logits(2000, share, seed=int(100 * share))
    found = estimated_prevalence(logits, 0.4)
    p = sigmoid(logits)
    shares = np.linspace(0.001, 0.999, 20_001)
    likelihood = [np.log(t * p / 0.4 + (1 - t) * (1 - p) / 0.6).sum() for t in shares]
    assert found == pytest.approx(shares[int(np.argmax(likelihood))], abs=1e-4)
    assert found == pytest.approx(positive.mean(), abs=0.03)


def test_a_share_of_none_or_all_is_refused_and_no_estimate_is_made_up():
    for share in (0.0, 1.0):
        with pytest.raises(UserError, match="strictly between 0 and 1"):
            shifted(np.zeros(2), 0.4, share)
    with pytest.raises(Unfit, match=r"these 50 images: the likeliest is 0"):
        estimated_prevalence(np.full(50, -4.0), 0.4)
    with pytest.raises(Unfit, match=r"likeliest is 1"):
        estimated_prevalence(np.full(50, 4.0), 0.4)
