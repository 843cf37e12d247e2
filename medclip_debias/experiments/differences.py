"""What seeds say of methods: means, paired differences with intervals and Holm's p, in tables.

Every row is one training of one method with one seed, and holds its metrics by name. Methods are
compared over the seeds that they share; each seed may have data of its own, so that intervals
cover new data too. (Where all methods are judged on the same patients, the patients' own chance is
counted as well: `medclip_debias.evaluation.compare`.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from medclip_debias.evaluation.catalogue import Metric
from medclip_debias.experiments.experiment import Row, Table

Groups = Mapping[Any, Mapping[int, Row]]
"""Rows of each method by seed."""
Difference = tuple[float, tuple[float, float], float]
"""Value, 95% t interval, p after Holm's correction (nan where too few seeds forbid a verdict)."""


def by_method(rows: Sequence[Row], key: str = "method") -> dict[Any, dict[int, Row]]:
    """Rows of each method by seed, methods in order of first use."""
    found: dict[Any, dict[int, Row]] = {}
    for row in rows:
        found.setdefault(row[key], {})[row["seed"]] = row
    return found


def mean_sd(values: Sequence[float], digits: int = 3) -> str:
    """Mean, and the standard deviation over seeds in brackets."""
    if len(values) < 2:
        return f"{np.mean(values):.{digits}f}"
    return f"{np.mean(values):.{digits}f} ({np.std(values, ddof=1):.{digits}f})"


def with_interval(value: float, interval: tuple[float, float], digits: int = 3) -> str:
    """A difference and its interval, all signed: ``+0.046 [+0.024, +0.068]``."""
    low, high = interval
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


class SeedTables:
    """Tables and sentences about one list of metrics.

    Args:
        metrics: every metric by its name in the rows.
        shown: what a table holds unless its caller says otherwise; default all.
    """

    def __init__(self, metrics: Mapping[str, Metric], shown: Sequence[str] = ()) -> None:
        self.metrics = metrics
        self.shown = tuple(shown) or tuple(metrics)

    def metric(self, name: str) -> Metric:
        """How a metric is shown; one that was not declared goes by its name."""
        return self.metrics.get(name) or Metric("", name, name, "", "share")

    def digits(self, metric: str) -> int:
        """Digits after the point that a table shows."""
        return self.metric(metric).digits

    def ranks(self, groups: Groups, metrics: Sequence[str]) -> list[float]:
        """Each method's mean rank over the metrics, 1 for the best, by the means over seeds."""
        from medclip_debias.evaluation.statistics import average_ranks

        means = [
            [np.mean([row[m] for row in own.values()]) for m in metrics] for own in groups.values()
        ]
        lower = [self.metric(m).lower_is_better for m in metrics]
        return [float(rank) for rank in average_ranks(means, lower)]

    def means(self, title: str, groups: Groups, metrics: Sequence[str] | None = None) -> Table:
        """Mean and sd over seeds of every method, with its mean rank over the metrics."""
        chosen = self.shown if metrics is None else metrics
        body = [
            [
                str(name),
                *(mean_sd([row[m] for row in own.values()], self.digits(m)) for m in chosen),
                f"{rank:.1f}",
            ]
            for (name, own), rank in zip(groups.items(), self.ranks(groups, chosen), strict=True)
        ]
        return Table(title, ["", *(self.metric(m).title for m in chosen), "mean rank"], body)

    def intervals(self, title: str, groups: Groups, metrics: Sequence[str] | None = None) -> Table:
        """Mean and 95% t interval over seeds of every method, with its mean rank."""
        from medclip_debias.evaluation.statistics import seed_summary

        chosen = self.shown if metrics is None else metrics
        body = []
        for (name, own), rank in zip(groups.items(), self.ranks(groups, chosen), strict=True):
            cells = []
            for metric in chosen:
                found, d = seed_summary([r[metric] for r in own.values()]), self.digits(metric)
                low, high = found.interval or (found.mean, found.mean)
                cells.append(f"{found.mean:.{d}f} [{low:.{d}f}, {high:.{d}f}]")
            body.append([str(name), *cells, f"{rank:.1f}"])
        return Table(title, ["method", *(self.metric(m).title for m in chosen), "mean rank"], body)

    def differences(self, groups: Groups, baseline: Any, metric: str) -> dict[Any, Difference]:
        """Paired difference to ``baseline`` of every other method.

        Holm's correction is over the methods. The p of a metric with too few seeds is nan, which
        is below nothing.
        """
        from medclip_debias.evaluation.statistics import holm, paired_seeds

        base = {seed: row[metric] for seed, row in groups[baseline].items()}
        found = {}
        for name, own in groups.items():
            if name == baseline:
                continue
            result = paired_seeds({seed: row[metric] for seed, row in own.items()}, base)
            if result is not None:
                found[name] = result[:3]
        adjusted = holm([p for _, _, p in found.values()])
        if len(base) < self.metric(metric).seeds_needed:
            adjusted = [math.nan] * len(adjusted)
        return {
            name: (value, interval, p)
            for (name, (value, interval, _)), p in zip(found.items(), adjusted, strict=True)
        }

    def star_note(self, metrics: Iterable[str], seeds: int) -> str:
        """For a title: which of the metrics have too few seeds for a star; often empty."""
        chosen = set(metrics)
        return "".join(
            f" ({metric.title}: no star with fewer than {metric.seeds_needed} seeds)"
            for name, metric in self.metrics.items()
            if name in chosen and seeds < metric.seeds_needed
        )

    def difference_table(
        self, title: str, groups: Groups, baseline: Any, metrics: Sequence[str] | None = None
    ) -> Table:
        """Paired differences to ``baseline`` with 95% intervals; a star where Holm's p < .05.

        Metrics with too few seeds for a star are named in the title.
        """
        chosen = self.shown if metrics is None else metrics
        columns = {metric: self.differences(groups, baseline, metric) for metric in chosen}
        body = []
        for name in groups:
            if name == baseline:
                continue
            cells = []
            for metric in chosen:
                if name not in columns[metric]:
                    cells.append("")
                    continue
                value, interval, p = columns[metric][name]
                star = " *" if p < 0.05 else ""
                cells.append(with_interval(value, interval, self.digits(metric)) + star)
            body.append([str(name), *cells])
        title += self.star_note(chosen, len(groups[baseline]))
        return Table(title, [f"minus {baseline}", *(self.metric(m).title for m in chosen)], body)

    def verdict(
        self,
        groups: Groups,
        name: Any,
        baseline: Any,
        metrics: Sequence[str],
        among: Sequence[Any] | None = None,
    ) -> str:
        """One clause: where ``name`` is better or worse than ``baseline``.

        What is named has p < .05 after Holm's correction, and seeds enough.

        Args:
            groups: rows of each method by seed.
            name: of the method.
            baseline: what it is compared with.
            metrics: judged, each with a correction of its own.
            among: methods that the correction is over; by default this one alone.
        """
        chosen = {baseline: groups[baseline]} | {one: groups[one] for one in among or [name]}
        better: list[str] = []
        worse: list[str] = []
        for metric in metrics:
            found = self.differences(chosen, baseline, metric)
            if name not in found:
                return f"{name} against {baseline}: too few seeds to say anything"
            value, _, p = found[name]
            if not p < 0.05 or value == 0:
                continue
            shown = self.metric(metric)
            text = f"{shown.title} {value:+.{shown.digits}f}"
            (better if (value < 0) == shown.lower_is_better else worse).append(text)
        said = ["better in " + ", ".join(better)] if better else []
        said += ["worse in " + ", ".join(worse)] if worse else []
        return f"{name} against {baseline}: " + (
            "; ".join(said) or "no statistically significant difference"
        )
