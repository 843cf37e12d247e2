"""What the cells of a grid say: differences with intervals, one Holm correction over all of them.

Every model of a grid is judged on the same patients, so both kinds of chance can be counted: which
patients were in the split (paired bootstrap) and which seeds the trainings had (paired t test).
`medclip_debias.evaluation.compare` does both for one baseline; here its differences to the
baseline and to every control, under every setting, become one family.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medclip_debias.errors import UserError, counted
from medclip_debias.evaluation.catalogue import COMPARED, Metric
from medclip_debias.evaluation.statistics import ALPHA, holm, seed_summary
from medclip_debias.experiments.differences import Difference, SeedTables, by_method, marks
from medclip_debias.experiments.experiment import Row, Summary
from medclip_debias.experiments.grid import ONLY, GridSettings
from medclip_debias.reporting.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOW = """
Every method is trained with the same seeds (batches, starting weights, augmentation) and judged on
the same patients. A difference is the mean over seeds of a method minus that of the other; its 95%
interval and its p cover the patients (paired bootstrap) and, from two seeds on, the seeds too (t).
A star, and a filled dot in the plot, marks p of at most .05
after Holm's correction over all differences of this page, to the baseline and to the controls.
The absence of a star is not proof of equality.
""".strip()
PLOTTED = (
    "zero_shot.mean_auc",
    "grounding.cnr",
    "retrieval.recall",
    "study_retrieval.report.recall",
)
"""What is plotted where the grid does not choose its metrics."""
SIDES = tuple(f"zero_shot.mean_auc{side}" for side in ("_positive", "_negative", ""))
"""What stands beside each other wherever one of them is shown."""


@dataclass
class Contrast:
    """One metric of a method minus that of another; with too ``few_seeds`` it has no star."""

    setting: str
    method: str
    against: str
    metric: str
    difference: float
    interval: tuple[float, float] | None
    p: float | None
    better: bool | None
    p_holm: float | None = None
    few_seeds: bool = False

    @property
    def gap(self) -> Difference:
        """As tables and plots take it."""
        p = math.nan if self.p_holm is None or self.few_seeds else self.p_holm
        return self.difference, self.interval, p

    @property
    def shown(self) -> bool:
        """Whether chance is ruled out."""
        return self.gap[2] <= ALPHA


@dataclass(frozen=True)
class Judged:
    """All contrasts of a grid, how they were computed, and by how many versions of the code."""

    contrasts: list[Contrast]
    tests: int
    resamples: int
    codes: int

    def between(self, setting: str, method: str, against: str) -> dict[str, Contrast]:
        """By metric."""
        pair = setting, method, against
        return {
            one.metric: one
            for one in self.contrasts
            if (one.setting, one.method, one.against) == pair
        }

    def gaps(
        self, setting: str, compared: Sequence[tuple[str, str]]
    ) -> dict[str, dict[str, Difference]]:
        """Differences by what is subtracted from what, and metric."""
        return {
            f"{method} minus {against}": {
                metric: one.gap for metric, one in self.between(setting, method, against).items()
            }
            for method, against in compared
        }


def pairs(grid: GridSettings) -> list[tuple[str, str]]:
    """What is compared: every method with the baseline, then methods with their controls."""
    compared = [(method, grid.baseline) for method in grid.methods if method != grid.baseline]
    compared += [(m, control) for m, controls in grid.controls.items() for control in controls]
    return list(dict.fromkeys(compared))


def judged(grid: GridSettings, rows: Sequence[Row], folder: Path) -> Judged:
    """Compare the runs of a grid."""
    from medclip_debias.evaluation.compare import RESAMPLES, compare

    if any(letter in str(folder) for letter in ",*?[]="):
        raise UserError(f"{folder}: holds one of , * ? [ ] =; give another folder in --out.")
    contrasts: list[Contrast] = []
    codes: set[str] = set()
    for setting in grid.settings:
        groups = by_method([row for row in rows if row["setting"] == setting])
        words = {
            method: f"{method}=" + ",".join(str(folder / row["folder"]) for row in by_seed.values())
            for method, by_seed in groups.items()
        }
        against = {other: [m for m, o in pairs(grid) if o == other] for _, other in pairs(grid)}
        for other, mine in against.items():
            given = [words[other], *(words[method] for method in mine)]
            content = compare(given, baseline=other, metrics=grid.metrics)
            contrasts += [
                Contrast(
                    setting,
                    method,
                    other,
                    row["key"],
                    entry["difference"],
                    entry["difference_interval"],
                    entry["p"],
                    entry["better"],
                )
                for row in content["rows"]
                for method, entry in row["groups"].items()
                if "difference" in entry
            ]
            codes |= {code for group in content["groups"] for code in group["code_hashes"] if code}
    needed = {metric.key: metric.seeds_needed for metric in COMPARED}
    for one, p in zip(contrasts, holm([one.p for one in contrasts]), strict=True):
        one.p_holm, one.few_seeds = p, len(grid.seeds) < needed[one.metric]
    tested = sum(one.p is not None for one in contrasts)
    return Judged(contrasts, tested, RESAMPLES, len(codes))


# ---------------------------------------------------------------------------------- saying


def shown_metrics(grid: GridSettings, rows: Sequence[Row]) -> dict[str, Metric]:
    """The grid's metrics that every cell has."""
    known = {metric.key: metric for metric in COMPARED}
    keys = grid.metrics or tuple(known)
    return {key: known[key] for key in keys if all(key in row["metrics"] for row in rows)}


def summarised(grid: GridSettings, rows: Sequence[Row], judged: Judged) -> Summary:
    """Sentences and tables of a grid."""
    metrics = shown_metrics(grid, rows)
    tables = SeedTables(metrics)
    figures: dict[str, Any] = {
        "tests": judged.tests,
        "resamples": judged.resamples,
        "contrasts": [asdict(one) for one in judged.contrasts],
        "means": {},
    }
    pages: list[Table] = []
    for setting in grid.settings:
        mine = [r for r in rows if r["setting"] == setting]
        groups = by_method(
            [row["metrics"] | {"method": row["method"], "seed": row["seed"]} for row in mine]
        )
        figures["means"][setting] = {
            str(method): {
                key: seed_summary([row[key] for row in by_seed.values()])._asdict()
                for key in metrics
            }
            for method, by_seed in groups.items()
        }
        prefix = "" if setting == ONLY else f"`{setting}`: "
        count = len(grid.seeds)
        title = f"mean and 95% interval over {count} seeds" if count > 1 else "metrics of one seed"
        pages.append(tables.means(prefix + title, groups, intervals=count > 1))
        if set(SIDES) & set(metrics) and all(s in r["metrics"] for s in SIDES for r in mine):
            title = f"{prefix}zero-shot AUC by 'X' alone, by 'no X' alone, and by both"
            sides = SeedTables({metric.key: metric for metric in COMPARED if metric.key in SIDES})
            pages.append(sides.means(title, groups, SIDES, intervals=True))
        for title, to_baseline in (
            (f"difference to {grid.baseline}", True),
            ("difference to the controls", False),
        ):
            compared = [p for p in pairs(grid) if (p[1] == grid.baseline) == to_baseline]
            if compared:
                gaps = judged.gaps(setting, compared)
                starless = tables.without_star(tables.shown, count)
                pages.append(tables.written(prefix + title + starless, gaps, tables.shown))
        # Means over seeds of what the objectives reported, where they reported anything.
        if names := list(dict.fromkeys(name for row in mine for name in row["train"])):
            body = []
            for method, by_seed in by_method(mine).items():
                trained = [row["train"] for row in by_seed.values()]
                values = [[each[n] for each in trained if n in each] for n in names]
                body.append([str(method), *(f"{np.mean(v):.4g}" if v else "" for v in values)])
            head = ["", *(name.replace("_", " ") for name in names)]
            pages.append(Table(f"{prefix}the objective at the end of training", head, body))
    return Summary(_findings(grid, rows, metrics, judged), pages, figures)


def _findings(
    grid: GridSettings, rows: Sequence[Row], metrics: Mapping[str, Metric], judged: Judged
) -> list[str]:
    sentences = []
    for setting in grid.settings:
        prefix = "" if setting == ONLY else f"`{setting}`: "
        for method, against in pairs(grid):
            by_metric = judged.between(setting, method, against)
            sentences.append(f"{prefix}{method} against {against}: {_verdict(by_metric, metrics)}.")
    if judged.contrasts:
        sentences.append(
            f"{judged.tests} differences are one family for Holm's correction;"
            f" {judged.resamples:,} resamples of the patients."
        )
    known = grid.metrics or dict.fromkeys(key for row in rows for key in row["metrics"])
    absent = ", ".join(key for key in known if key not in metrics)
    if absent:
        sentences.append(f"Not every cell has the metrics {absent}, so they are not shown.")
    untested = [one.metric for one in judged.contrasts if one.p is None]
    if untested:
        names = ", ".join(dict.fromkeys(metrics[k].title for k in untested if k in metrics))
        sentences.append(
            f"{counted(len(untested), 'difference')} not tested, since too few patients allow no "
            f"interval: {names}."
        )
    if len(grid.seeds) == 1:
        sentences.append("One seed says nothing about how another training would turn out.")
    if judged.codes > 1:
        sentences.append(
            f"The cells were measured by {judged.codes} versions of the code; part of a difference "
            "may come from that."
        )
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for protocol, reason in row["skipped"].items():
            reasons.setdefault(f"{protocol}: {reason}", []).append(row["folder"])
    for reason, cells in reasons.items():
        where = "any cell" if len(cells) == len(rows) else f"{len(cells)} of {len(rows)} cells"
        sentences.append(f"Not measured in {where}: {reason}")
    return sentences


def _verdict(by_metric: Mapping[str, Contrast], metrics: Mapping[str, Metric]) -> str:
    parts, tables = [], SeedTables(metrics)
    for word, better in (("better", True), ("worse", False)):
        texts = [
            f"{metrics[key].title} {tables.cell(key, one.gap).removesuffix(' *')}"
            for key, one in by_metric.items()
            if one.shown and one.better is better and key in metrics
        ]
        if texts:
            parts.append(f"{word} in " + ", ".join(texts))
    tested = sum(one.p is not None for one in by_metric.values())
    return "; ".join(parts) or f"no statistically significant difference in {tested} metrics"


# ---------------------------------------------------------------------------------- plotting


def plotted(grid: GridSettings, rows: Sequence[Row], judged: Judged) -> Figure:
    """Differences with their intervals: a row of panels for each setting."""
    from medclip_debias.reporting.plots import intervals, panels

    metrics = shown_metrics(grid, rows)
    keys = [key for key in (grid.metrics or PLOTTED) if key in metrics] or list(metrics)[:4]
    titles = [
        metrics[key].title if setting == ONLY else f"{setting}: {metrics[key].title}"
        for setting in grid.settings
        for key in keys
    ]
    figure, axes = panels(len(titles), titles, rows=len(grid.settings))
    lines = max(1, len(pairs(grid)))
    figure.set_size_inches(3.1 * len(keys) + 1.5, (0.9 + 0.28 * lines) * len(grid.settings))
    for place, one in enumerate(axes):
        setting, key = list(grid.settings)[place // len(keys)], keys[place % len(keys)]
        gaps = judged.gaps(setting, pairs(grid))
        of_metric = {pair: by_metric[key] for pair, by_metric in gaps.items() if key in by_metric}
        intervals(one, marks(of_metric), list(gaps), named=place % len(keys) == 0)
    return figure
