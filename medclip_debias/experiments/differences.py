"""What seeds say of methods: means, paired differences with intervals and Holm's p, in tables.

Every row is one training of one method with one seed, and holds its metrics by name. Methods are
compared over the seeds that they share; each seed may have data of its own, so that intervals
cover new data too. (Where all methods are judged on the same patients, the patients' own chance is
counted as well: `medclip_debias.evaluation.compare`.)

A family is what one table of differences holds: every method times every metric that is shown, or
every contrast named. Holm's correction is over the family, so that the chance of even one false
star in a table is at most 5%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from medclip_debias.evaluation.catalogue import Metric
from medclip_debias.evaluation.statistics import (
    ALPHA,
    average_ranks,
    holm,
    paired_seeds,
    seed_summary,
)
from medclip_debias.experiments.experiment import Row
from medclip_debias.reporting.plots import Mark
from medclip_debias.reporting.tables import Table

Groups = Mapping[Any, Mapping[int, Row]]
"""Rows of each method by seed."""
Difference = tuple[float, tuple[float, float] | None, float]
"""Value, 95% interval, p after Holm's correction (nan where too few seeds forbid a verdict)."""
Contrasts = Mapping[Any, tuple[Mapping[int, Row], Mapping[int, Row]]]
"""Rows by seed of one side and of the other, for each contrast by its name."""


def marks(differences: Mapping[Any, Difference]) -> dict[Any, Mark]:
    """Differences as they are drawn: filled where chance is ruled out."""
    return {
        name: (value, ends, "full" if p <= ALPHA else "none")
        for name, (value, ends, p) in differences.items()
    }


def by_method(rows: Sequence[Row], key: str = "method") -> dict[Any, dict[int, Row]]:
    """Rows of each method by seed, methods in order of first use."""
    methods: dict[Any, dict[int, Row]] = {}
    for row in rows:
        methods.setdefault(row[key], {})[row["seed"]] = row
    return methods


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

    def ranks(self, groups: Groups, metrics: Sequence[str]) -> list[float]:
        """Each method's mean rank over the metrics, 1 for the best, by the means over seeds."""
        means = [
            [np.mean([row[m] for row in own.values()]) for m in metrics] for own in groups.values()
        ]
        lower = [self.metric(m).lower_is_better for m in metrics]
        return [float(rank) for rank in average_ranks(means, lower)]

    def means(
        self,
        title: str,
        groups: Groups,
        metrics: Sequence[str] | None = None,
        *,
        intervals: bool = False,
    ) -> Table:
        """Mean and sd (or 95% t interval) over seeds of every method, and its mean rank."""
        chosen = self.shown if metrics is None else metrics

        def cell(values: Sequence[float], digits: int) -> str:
            if not intervals:
                return mean_sd(values, digits)
            mean, _, ends = seed_summary(values)
            bounds = f" [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if ends else ""
            return f"{mean:.{digits}f}{bounds}"

        body = []
        for (name, rows), rank in zip(groups.items(), self.ranks(groups, chosen), strict=True):
            cells = [cell([r[m] for r in rows.values()], self.metric(m).digits) for m in chosen]
            body.append([str(name), *cells, f"{rank:.1f}"])
        head = "method" if intervals else ""
        return Table(title, [head, *(self.metric(m).title for m in chosen), "mean rank"], body)

    def contrasts(
        self, pairs: Contrasts, metrics: Sequence[str]
    ) -> dict[str, dict[Any, Difference]]:
        """Paired differences of every contrast in every metric: one family for Holm's correction.

        Args:
            pairs: each contrast's two sides.
            metrics: by which they are compared.

        Returns:
            By metric and contrast, those with seeds enough for a difference. The p of a metric
            with too few seeds for a verdict is nan, which is below nothing, and is not counted.
        """
        family: dict[tuple[str, Any], Difference] = {}
        for metric, name in product(metrics, pairs):
            one, other = ({s: row[metric] for s, row in side.items()} for side in pairs[name])
            if (result := paired_seeds(one, other)) is not None:
                value, interval, p, _ = result
                enough = len(other) >= self.metric(metric).seeds_needed
                family[metric, name] = value, interval, p if enough else math.nan
        adjusted = holm([p for _, _, p in family.values()])
        differences: dict[str, dict[Any, Difference]] = {metric: {} for metric in metrics}
        for (metric, name), p_holm in zip(family, adjusted, strict=True):
            gap, ends, _ = family[metric, name]
            differences[metric][name] = gap, ends, math.nan if p_holm is None else p_holm
        return differences

    def differences(self, groups: Groups, baseline: Any, metric: str) -> dict[Any, Difference]:
        """Paired difference to ``baseline`` of every other method in one metric.

        Holm's correction is over the methods times this metric and those that a table shows, as
        far as every row holds them.
        """
        rows = [row for own in groups.values() for row in own.values()]
        held = [m for m in self.shown if all(m in row for row in rows)]
        family = list(dict.fromkeys((*held, metric)))
        return self.contrasts(_to_baseline(groups, baseline), family)[metric]

    def difference_table(
        self, title: str, groups: Groups, baseline: Any, metrics: Sequence[str] | None = None
    ) -> Table:
        """Paired differences to ``baseline`` with 95% intervals; a star where Holm's p <= .05.

        The correction is over the whole table. Metrics with too few seeds for a star are named in
        the title.
        """
        chosen = self.shown if metrics is None else metrics
        title += self.without_star(chosen, len(groups[baseline]))
        pairs = _to_baseline(groups, baseline)
        return self.contrast_table(title, pairs, metrics, head=f"minus {baseline}")

    def without_star(self, metrics: Sequence[str], seeds: int) -> str:
        """What the title of a table says of metrics that need more than ``seeds`` for a star."""
        return "".join(
            f" ({metric.title}: no star with fewer than {metric.seeds_needed} seeds)"
            for name, metric in self.metrics.items()
            if name in metrics and seeds < metric.seeds_needed
        )

    def contrast_table(
        self, title: str, pairs: Contrasts, metrics: Sequence[str] | None = None, *, head: str = ""
    ) -> Table:
        """Differences with 95% intervals, a row for each contrast; a star where Holm's p <= .05."""
        chosen = self.shown if metrics is None else metrics
        columns = self.contrasts(pairs, chosen)
        rows = {name: {m: columns[m][name] for m in chosen if name in columns[m]} for name in pairs}
        return self.written(title, rows, chosen, head=head)

    def written(
        self,
        title: str,
        rows: Mapping[Any, Mapping[str, Difference]],
        metrics: Sequence[str],
        *,
        head: str = "",
    ) -> Table:
        """A table of differences by name and metric; one that is not there is blank."""
        body = [
            [str(name), *(self.cell(m, of_name[m]) if m in of_name else "" for m in metrics)]
            for name, of_name in rows.items()
        ]
        return Table(title, [head, *(self.metric(m).title for m in metrics)], body)

    def cell(self, metric: str, difference: Difference) -> str:
        """A difference, its interval where it has one, and a star where p is at most .05."""
        value, interval, p = difference
        digits = self.metric(metric).digits
        words = with_interval(value, interval, digits) if interval else f"{value:+.{digits}f}"
        return words + (" *" if p <= ALPHA else "")


def _to_baseline(groups: Groups, baseline: Any) -> Contrasts:
    return {name: (own, groups[baseline]) for name, own in groups.items() if name != baseline}
