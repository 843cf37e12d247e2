"""How often 95% intervals hold the truth, and tests call equal models different, in simulation.

    python scripts/bench/coverage.py [TRIALS]

Writes three Markdown tables to standard output: coverage of the intervals of single metrics and
of differences by number of patients, and false alarms of the comparison of groups of seeds. Every
trial samples patients with one to several items each from a population whose metric is known in
closed form. With 400 trials, the default, a share of 0.95 is known to 0.02 (two standard errors).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import Pool

import numpy as np
from scipy import stats

from medclip_debias.evaluation.bootstrap import (
    Floats,
    Replicated,
    percentile_interval,
    replicates,
    weighted_auc,
    weighted_mean,
    weighted_median,
)
from medclip_debias.evaluation.statistics import crossed_difference, paired_seeds
from medclip_debias.evaluation.statistics import difference as compared

PATIENTS = (20, 40, 80, 150, 400)
SEEDS = (2, 3, 5, 10)
Sample = tuple[list[str], Callable[[Floats], Mapping[str, Floats]], float]
Interval = tuple[float, float] | None
Coverage = tuple[Interval, Interval, float]


class Population:
    """Patients with one item or more; ``shared`` is what the items of a patient have in common."""

    def __init__(self, rng: np.random.Generator, patients: int) -> None:
        self.rng = rng
        self.owner = np.repeat(np.arange(patients), 1 + rng.poisson(1.0, patients))
        self.names = [str(number) for number in self.owner]

    def normal(self, shared: float) -> Floats:
        """One standard normal number an item; ``shared`` of its variance is the patient's."""
        own = self.rng.normal(size=self.owner.size)
        common = self.rng.normal(size=self.owner.max() + 1)[self.owner]
        return np.sqrt(shared) * common + np.sqrt(1 - shared) * own


def mean(rng: np.random.Generator, patients: int) -> Sample:
    """A skewed metric of each item, as CNR or mIoU: log-normal."""
    population = Population(rng, patients)
    values = np.exp(0.7 * population.normal(0.4))
    return population.names, lambda w: {"f": weighted_mean(values, w)}, float(np.exp(0.245))


def share(truth: float) -> Callable[[np.random.Generator, int], Sample]:
    """A share of hits, as recall or the pointing game."""

    def sample(rng: np.random.Generator, patients: int) -> Sample:
        population = Population(rng, patients)
        hits = population.normal(0.5) < stats.norm.ppf(truth)
        return population.names, lambda w: {"f": weighted_mean(hits, w)}, truth

    return sample


def auc(positive: float) -> Callable[[np.random.Generator, int], Sample]:
    """AUC of 0.8 with this share of positive items."""

    def sample(rng: np.random.Generator, patients: int) -> Sample:
        while True:
            population = Population(rng, patients)
            labels = population.normal(0.5) < stats.norm.ppf(positive)
            if 1 < labels.sum() < labels.size - 1:
                break
        shift = np.sqrt(2) * stats.norm.ppf(0.8)
        scores = population.normal(0.25) + shift * labels
        return population.names, lambda w: {"f": weighted_auc(labels, scores, w)}, 0.8

    return sample


def median(rng: np.random.Generator, patients: int) -> Sample:
    """A median rank: median of a log-normal number."""
    population = Population(rng, patients)
    values = np.exp(population.normal(0.4))
    return population.names, lambda w: {"f": weighted_median(values, w)}, 1.0


METRICS = {
    "mean of a skewed metric": mean,
    "share of hits, 0.6": share(0.6),
    "share of hits, 0.1": share(0.1),
    "AUC, 40% positive": auc(0.4),
    "AUC, 15% positive": auc(0.15),
    "median rank": median,
}


def level(name: str, rng: np.random.Generator, patients: int, trial: int) -> Coverage:
    """Of a metric: the plain percentile interval, the one that is used, and the truth."""
    names, statistics, truth = METRICS[name](rng, patients)
    one = replicates({"": statistics}, names, resamples=1000, seed=trial)[""]["f"]
    return percentile_interval(one.replicates), one.interval, truth


def two_models(name: str, rng: np.random.Generator, patients: int) -> tuple[list[str], list, float]:
    """Two models that differ on the same patients: names, statistics, true difference."""
    population = Population(rng, patients)
    common, labels = population.normal(0.5), population.normal(0.5) < -0.5
    a, b = (0.6 * common + 0.8 * population.normal(0.3) for _ in range(2))
    metric: Callable[[Floats, Floats], Floats] = weighted_mean
    values, truth = [a + 0.3, b], 0.3
    if name == "AUC, 31% positive":
        metric, shifts = partial(weighted_auc, labels), np.array([1.2, 0.8])
        values = [x + shift * labels for x, shift in zip((a, b), shifts, strict=True)]
        truth = float(np.subtract(*stats.norm.cdf(shifts / np.sqrt(2))))
    elif name == "median rank":
        metric, values = weighted_median, [np.exp(a + 0.3), np.exp(b)]
        truth = float(np.exp(0.3) - 1)
    return population.names, [lambda w, v=v: {"f": metric(v, w)} for v in values], truth


DIFFERENCES = ("mean", "AUC, 31% positive", "median rank")


def difference(name: str, rng: np.random.Generator, patients: int, trial: int) -> Coverage:
    """The same of a paired difference."""
    names, (one, two), truth = two_models(name, rng, patients)
    both = replicates({"a": one, "b": two}, names, resamples=1000, seed=trial)
    a, b = both["a"]["f"], both["b"]["f"]
    return percentile_interval(a.replicates - b.replicates), compared(a, b).interval, truth


def coverage(job: tuple[bool, str, int, int]) -> tuple[float, float]:
    """How often the plain percentile interval, and the one that is used, hold the truth."""
    single, name, patients, trials = job
    rng = np.random.default_rng([*([] if single else [1]), sum(map(ord, name)), patients])
    held = []
    for trial in range(trials):
        *both, truth = (level if single else difference)(name, rng, patients, trial)
        held.append([i is not None and i[0] <= truth <= i[1] for i in both])
    plain, used = np.mean(held, axis=0).tolist()
    return plain, used


def false_alarms(job: tuple[int, float, int]) -> tuple[float, float]:
    """Share of p <= 0.05 for equal methods: the larger of two p-values, and both in one test.

    The variance of the mean difference is 2 for patients, ``2 of_seeds`` for seeds, 0.2 for both.
    """
    seeds, of_seeds, trials = job
    patients, resamples = 60, 400
    rng = np.random.default_rng([2, seeds, int(10 * of_seeds)])
    counts = rng.multinomial(patients, np.full(patients, 1 / patients), size=resamples)
    larger = both = 0
    for _ in range(trials):
        values = rng.normal(size=(2, 1, patients)) * np.sqrt(patients)
        values = values + rng.normal(size=(2, seeds, 1)) * np.sqrt(seeds * of_seeds)
        values = values + rng.normal(size=(2, seeds, patients)) * np.sqrt(0.1 * seeds * patients)
        again = values @ counts.T / patients
        without = (values.sum(axis=-1, keepdims=True) - values) / (patients - 1)
        sides = [
            {
                s: Replicated(float(values[k, s].mean()), again[k, s], without[k, s], patients)
                for s in range(seeds)
            }
            for k in (0, 1)
        ]
        gaps = again[0].mean(axis=0) - again[1].mean(axis=0)
        p_patients = 2 * min((gaps <= 0).mean(), (gaps >= 0).mean())
        one, other = ({s: r.value for s, r in side.items()} for side in sides)
        of_seeds_alone = paired_seeds(one, other)
        crossed = crossed_difference(sides[0], sides[1])
        assert of_seeds_alone is not None
        assert crossed is not None
        larger += max(p_patients, of_seeds_alone[2]) <= 0.05
        both += crossed.p <= 0.05
    return larger / trials, both / trials


def table(title: str, rows: Mapping[str, list[tuple[float, float]]], heads: list[str]) -> None:
    print(f"\n| {title} | {' | '.join(heads)} |\n| --- |{' --- |' * len(heads)}")
    for name, pairs in rows.items():
        print(f"| {name} | {' | '.join(f'{a:.3f} / {b:.3f}' for a, b in pairs)} |", flush=True)


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    with Pool() as pool:
        found = pool.map(coverage, [(True, f, n, trials) for f in METRICS for n in PATIENTS], 1)
        gaps = pool.map(coverage, [(False, f, n, trials) for f in DIFFERENCES for n in PATIENTS], 1)
        ratios = (0.0, 0.5, 1.0, 5.0)
        alarms = pool.map(false_alarms, [(s, r, 4 * trials) for r in ratios for s in SEEDS], 1)
    heads = [f"{n} patients" for n in PATIENTS]
    per = len(PATIENTS)
    rows = {f: found[i * per : (i + 1) * per] for i, f in enumerate(METRICS)}
    table("covered: percentile / used", rows, heads)
    rows = {f: gaps[i * per : (i + 1) * per] for i, f in enumerate(DIFFERENCES)}
    table("difference covered: percentile / used", rows, heads)
    per = len(SEEDS)
    rows = {
        f"seeds make {r:g} times the patients' variance": alarms[i * per : (i + 1) * per]
        for i, r in enumerate(ratios)
    }
    table("false alarms: larger p / both in one", rows, [f"{s} seeds" for s in SEEDS])


if __name__ == "__main__":
    main()
