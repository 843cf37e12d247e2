"""What the GloFND study found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medclip_debias.experiments.differences import with_interval
from medclip_debias.experiments.experiment import Row, Table

POLICIES = {
    "fnc": "FNC",
    "glofnd one": "GloFND from 1",
    "glofnd quantile": "GloFND from a quantile",
}
REMOVERS = {
    "own threshold": "own thresholds",
    "batch": "batch top-k (FNC)",
    "global": "one global threshold",
    "exact": "exact quantiles",
}
RULES = ("adam, from 1", "adam, from a quantile", "sgd, from 1", "sgd, from a quantile")
# A rule's F1 with the vectors of its own network; FNC has no thresholds.
OWN_F1 = dict.fromkeys(POLICIES, "own threshold f1") | {"fnc": "batch f1"}
WORDS = {1: "better", 0: "no statistically significant difference", -1: "worse"}

Values = dict[int, float]


def main_alpha(alphas: Sequence[float]) -> float:
    """The alpha nearest to the digits' true rate of false negatives."""
    return min(alphas, key=lambda a: abs(a - 0.1))


def column(rows: Sequence[Row], name: str, policy: str, alpha: float, start: float = 0.0) -> Values:
    """Metric ``name`` of one policy by seed."""
    key = (policy, alpha, start)
    return {r["seed"]: r[name] for r in rows if (r["policy"], r["alpha"], r["start"]) == key}


def _spread(values: Values) -> str:
    each = list(values.values())
    if len(each) < 2:
        return f"{np.mean(each):.3f}"
    return f"{np.mean(each):.3f} ({np.std(each, ddof=1):.3f})"


def _gap(one: Values, other: Values) -> tuple[str, int]:
    """Paired difference with its interval, and its sign where the interval leaves 0 out."""
    from medclip_debias.evaluation.statistics import paired_seeds

    found = paired_seeds(one, other)
    if found is None:
        return "too few seeds to say anything", 0
    value, (low, high), _, _ = found
    return with_interval(value, (low, high)), int(low > 0) - int(high < 0)


def findings(fixed: Sequence[Row], train: Sequence[Row], alpha: float) -> list[str]:
    """Sentences from the rows of both parts; those on training are at ``alpha``."""
    return [
        _about_thresholds(fixed),
        _about_share(train),
        *_about_f1(train, alpha),
        *_about_probe(train, alpha),
        *_about_start(train, alpha),
        _about_cost(train, alpha),
    ]


def last_distances(fixed: Sequence[Row]) -> dict[str, float]:
    """Of each rule, the mean distance to the quantile after the last visit, over all alphas."""
    return {
        rule: float(np.mean([r["mae"][-1] for r in fixed if r["rule"] == rule])) for rule in RULES
    }


def step_ratios(train: Sequence[Row], alpha: float) -> dict[str, float]:
    """Of each policy, the median time of a step over that of plain InfoNCE."""
    return {
        policy: float(np.median(list(column(train, "step_ratio", policy, alpha).values())))
        for policy in POLICIES
    }


def _about_thresholds(fixed: Sequence[Row]) -> str:
    ends = last_distances(fixed)
    each = ", ".join(f"{rule} {value:.3f}" for rule, value in ends.items())
    best = min(ends, key=ends.__getitem__)
    return (
        "On fixed vectors, mean distance of the thresholds to the exact quantile after "
        f"{fixed[0]['visits']} visits a sample: {each}; closest is {best}."
    )


def _about_share(train: Sequence[Row]) -> str:
    alphas = sorted({r["alpha"] for r in train if r["alpha"] > 0})
    own = {a: column(train, "removed", "glofnd quantile", a) for a in alphas}
    each = [f"{a:g}: {np.mean(list(values.values())):.3f}" for a, values in own.items()]
    return f"In training, alpha and the share of pairs removed at the end: {'; '.join(each)}."


def _about_f1(train: Sequence[Row], alpha: float) -> list[str]:
    """Metrics of all rules; learned thresholds against batch top-k, as in the paper's figure 5."""
    own = {name: column(train, f"{name} f1", "glofnd quantile", alpha) for name in REMOVERS}
    each = ", ".join(f"{label} {_spread(own[name])}" for name, label in REMOVERS.items())
    gap, sign = _gap(own["own threshold"], own["batch"])
    best, above = _gap(own["exact"], own["batch"])
    against_one, apart = _gap(own["own threshold"], own["global"])
    agrees = {
        1: "as the paper says, GloFND finds false negatives better than FNC",
        0: "it is not shown here that GloFND finds false negatives better than FNC, as the paper "
        "says",
        -1: "against the paper, FNC finds false negatives better than GloFND",
    }[sign]
    limit = {1: "better than", 0: "not shown to be better than", -1: "worse than"}[above]
    return [
        f"F1 of the removed pairs at alpha = {alpha:g}, GloFND started at a quantile: {each}.",
        f"Own thresholds minus batch top-k: {gap}: {agrees}. The quantiles that the thresholds "
        f"are after are {limit} batch top-k ({best}), so that is the most to be had by learning "
        "them longer.",
        f"Own thresholds minus one global threshold: {against_one}: {WORDS[apart]}.",
    ]


def _about_probe(train: Sequence[Row], alpha: float) -> list[str]:
    """Each policy against InfoNCE, then GloFND against FNC."""
    plain = column(train, "probe", "none", 0.0)
    own = {policy: column(train, "probe", policy, alpha) for policy in POLICIES}
    parts = []
    for policy, label in POLICIES.items():
        gap, sign = _gap(own[policy], plain)
        parts.append(f"{label} {_spread(own[policy])}, {gap}, {WORDS[sign]}")
    gap, sign = _gap(own["glofnd quantile"], own["fnc"])
    return [
        f"Linear probe: InfoNCE {_spread(plain)}; at alpha = {alpha:g}, filtering from the first "
        f"step, against InfoNCE: {'; '.join(parts)}.",
        f"{POLICIES['glofnd quantile']} minus FNC: {gap}: {WORDS[sign]}.",
    ]


def _about_start(train: Sequence[Row], alpha: float) -> list[str]:
    """The latest start against the first step: the probe, and the F1 of what is removed."""
    last = max(r["start"] for r in train)
    if last == 0:
        return ["One start only: nothing to say of when to begin."]
    said = []
    for what, paper in (("Linear probe", " The paper's peak is at 70 of 200 epochs."), ("F1", "")):
        parts = []
        for policy, label in POLICIES.items():
            name = "probe" if what == "Linear probe" else OWN_F1[policy]
            late, at_once = (column(train, name, policy, alpha, at) for at in (last, 0.0))
            parts.append(f"{label} {_gap(late, at_once)[0]}")
        said.append(
            f"{what} when filtering starts after {last:.0%} of training instead of at once: "
            f"{'; '.join(parts)}.{paper}"
        )
    return said


def _about_cost(train: Sequence[Row], alpha: float) -> str:
    ratios = step_ratios(train, alpha)
    each = ", ".join(f"{POLICIES[policy]} {value:.2f}" for policy, value in ratios.items())
    return (
        f"Time of a step against InfoNCE, timed in turn (median): {each}; the network here is "
        "tiny, so this is the most that the policies can cost. The paper: 1.02."
    )


def detection_table(train: Sequence[Row], alpha: float) -> Table:
    """Precision, recall and F1 of each rule, with the vectors of GloFND from a quantile."""
    body = []
    for name, label in REMOVERS.items():
        each = [
            _spread(column(train, f"{name} {k}", "glofnd quantile", alpha))
            for k in ("precision", "recall", "f1")
        ]
        body.append([label, *each])
    return Table(
        f"Removed pairs at the end of training, alpha = {alpha:g}",
        ["rule", "precision", "recall", "F1"],
        body,
    )


def start_table(train: Sequence[Row], alpha: float) -> Table:
    """Share removed, distance, F1 and probe of every policy and start; FNC has no thresholds."""
    body = []
    for policy, label in POLICIES.items():
        for start in sorted({r["start"] for r in train}):
            names = ("removed", "mae", OWN_F1[policy], "probe")
            chosen = [r for r in train if (r["policy"], r["alpha"]) == (policy, alpha)]
            each = [
                _spread(column(chosen, name, policy, alpha, start)) if name in chosen[0] else ""
                for name in names
            ]
            body.append([label, f"{start:g}", *each])
    return Table(
        f"When filtering starts, alpha = {alpha:g}",
        ["policy", "start", "share removed", "distance to the quantile", "F1", "probe"],
        body,
    )
