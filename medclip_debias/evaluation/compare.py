"""Compare evaluations of several models on one prepared set: which differences are beyond chance?

Every metric is computed again from the per-item tables, for all runs on the same resampled
patients. A group of several seeds is represented by the mean of its seeds in each resample.
With two or more seeds on both sides the variances over patients and over seeds are added
(`medclip_debias.evaluation.statistics`), and a difference is called real when its p-value, after
Holm's correction over all metrics and groups of the table, is at most 0.05. With one seed on a
side nothing is known of how another training would turn out: such a difference is never called
real, at most one that shows on these patients. What differs between the groups' settings, and how
many seeds each has, is said before any metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from medclip_debias import __version__
from medclip_debias.errors import UserError, one_of
from medclip_debias.evaluation.bootstrap import Replicated, replicates
from medclip_debias.evaluation.catalogue import COMPARED, PROTOCOLS, Metric
from medclip_debias.evaluation.item_tables import item_file, statistics_of
from medclip_debias.evaluation.protocols.zero_shot import judged_labels
from medclip_debias.evaluation.runs import (
    Group,
    Run,
    differences,
    differing_settings,
    mismatch,
    read_groups,
)
from medclip_debias.evaluation.statistics import (
    ALPHA,
    average_ranks,
    compared,
    delong,
    holm,
    mean_of,
    seed_summary,
)

FORMAT = 1
RESAMPLES = 2000
REAL, NOT_SHOWN, NOT_TESTED = "real", "not shown", "not tested"
ONE_EACH = "differs on these patients, one seed each"
ONE_SIDE = "differs on these patients, one seed on one side"
UNSEEDED = "differs on these patients"


def compare(
    words: Sequence[str],
    *,
    named: Sequence[str] = (),
    baseline: str | None = None,
    metrics: Sequence[str] | None = None,
    force: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare runs with a baseline; the content of ``comparison.json``.

    Args:
        words: runs, as for `medclip_debias.evaluation.runs.read_groups`.
        named: groups of seeds, ``label=folder,folder``.
        baseline: label or folder of the group that the others are compared with; default the
            first.
        metrics: keys of the metrics to compare (docs/metrics.md); default all. Fewer metrics chosen
            before looking leave more power to each.
        force: also compare runs that were evaluated differently, and say so; metrics whose items
            do not match are shown side by side without a test.
        resamples: number of resamples of the patients.
        seed: of the bootstrap.

    Raises:
        UserError: the runs cannot be read, or do not belong together.
    """
    groups = read_groups(words, named)
    runs = [run for group in groups for run in group.runs]
    by_name = {str(run.folder).rstrip("/"): group for group in groups for run in group.runs}
    by_name |= {group.label: group for group in groups}
    base = groups[0]
    if baseline is not None:
        labels = [group.label for group in groups]
        base = by_name.get(baseline.rstrip("/")) or by_name[one_of(baseline, labels, "run")]
    known = {metric.key: metric for metric in COMPARED}
    chosen = [known[one_of(key, list(known), "metric")] for key in dict.fromkeys(metrics or known)]
    problems = differences(groups)
    shared = [p for p in PROTOCOLS if all(p in run.tables for run in runs)]
    unpaired = {protocol: why for protocol in shared if (why := mismatch(protocol, groups))}
    problems += list(unpaired.values())
    if problems and not force:
        raise UserError(f"{problems[0]}; evaluate them alike, or give --force to compare anyway.")
    rows, lacking = [], dict[str, str]()
    for protocol in shared:
        mine = [metric for metric in chosen if metric.protocol == protocol]
        if not mine:
            continue
        paired = protocol not in unpaired
        computed = _computed(protocol, runs, resamples, seed, paired=paired)
        for metric in mine:
            of_metric = {
                folder: of_run[metric.name]
                for folder, of_run in computed.items()
                if metric.name in of_run and math.isfinite(of_run[metric.name].value)
            }
            without = [folder for folder in computed if folder not in of_metric]
            if not without:
                items = runs[0].tables[protocol] if paired else None
                rows.append(_row(metric, groups, base, of_metric, items))
            elif paired and len(without) < len(runs):  # as of an earlier version's evaluation
                lacking[metric.key] = (
                    f"{metric.title} ({metric.key}) is not compared: {len(without)} of "
                    f"{len(runs)} runs do not have it (first {without[0]}); evaluate them again, "
                    "by one version, to compare it."
                )
    if not rows:
        raise UserError("The runs share no metric that could be compared.")
    keys = {row["key"] for row in rows}
    for metric in chosen if metrics is not None else ():
        if metric.key not in keys:
            why = f"{metric.title} ({metric.key}) is not compared: the runs do not have it."
            lacking.setdefault(metric.key, why)
    tests = _judge(rows, groups, base)
    classes = [] if "zero_shot" in unpaired or "zero_shot" not in shared else _classes(groups, base)
    _judge(classes, groups, base)
    ranks = None
    if len(groups) >= 3:  # the average rank of each over the metrics
        labels = [group.label for group in groups]
        values = [[row["groups"][label]["value"] for row in rows] for label in labels]
        means = average_ranks(values, [row["lower_is_better"] for row in rows])
        ranks = dict(zip(labels, means.tolist(), strict=True))
    first = runs[0].results
    notes = [note for run in runs for note in run.results.get("notes") or ()]
    return {
        "format": FORMAT,
        "medclip_debias": __version__,
        "data_hash": first["data_hash"],
        "split": first["split"],
        "baseline": base.label,
        "options": {
            "resamples": resamples,
            "seed": seed,
            "level": 0.95,
            "alpha": ALPHA,
            "correction": "Holm",
            "tests": tests,
        },
        "forced": problems,
        "notes": [*dict.fromkeys(notes), *lacking.values()],
        "left_out": [p for p in PROTOCOLS if p not in shared and any(p in r.tables for r in runs)],
        "settings": differing_settings(groups),
        "groups": [
            {
                "label": group.label,
                "runs": [str(run.folder) for run in group.runs],
                "seeds": [run.seed for run in group.runs],
                "model_hashes": [run.results.get("model_hash") for run in group.runs],
                "code_hashes": [run.results.get("code_hash") for run in group.runs],
            }
            for group in groups
        ],
        "rows": rows,
        "classes": classes,
        "average_ranks": ranks,
    }


# ---------------------------------------------------------------------------------- rows


def _computed(
    protocol: str, runs: Sequence[Run], resamples: int, seed: int, *, paired: bool
) -> dict[str, dict[str, Replicated]]:
    """Every statistic of every run, by folder and name, from one draw of patients for all.

    Of runs whose items cannot be paired, as their results say and without a resample.
    """
    if not paired:
        none = np.empty(0)
        return {
            str(run.folder): {
                row["metric"]: Replicated(row["value"], none, none, 0)
                for row in run.results["metrics"]
                if (row["protocol"], row["class"], row["group"]) == (protocol, None, None)
            }
            for run in runs
        }
    statistics = {
        str(run.folder): statistics_of(
            protocol,
            run.results.details(protocol),
            run.tables[protocol],
            item_file(run.folder, protocol),
        )
        for run in runs
    }
    patients = [str(name) for name in runs[0].tables[protocol]["patient"]]
    return replicates(statistics, patients, resamples=resamples, seed=seed)


def _row(
    metric: Metric,
    groups: Sequence[Group],
    base: Group,
    of_metric: Mapping[str, Replicated],
    items: pd.DataFrame | None,
) -> dict[str, Any]:
    """A metric of every group, and its difference from the baseline's; ``items`` of paired runs."""
    names = ("key", "title", "lower_is_better", "digits")
    row: dict[str, Any] = {name: getattr(metric, name) for name in names} | {"groups": {}}
    row["items"] = None if items is None else len(items)
    row["patients"] = None if items is None else items["patient"].nunique()
    for group in groups:
        each = [of_metric[str(run.folder)] for run in group.runs]
        mean = mean_of(each)
        interval = mean.interval
        if items is None and len(each) == 1:
            interval = group.runs[0].results.interval(metric.protocol, metric.name)
        entry: dict[str, Any] = {"value": mean.value, "interval": interval}
        if len(each) > 1:
            values = [one.value for one in each]
            seeds = seed_summary(values)
            entry |= {"sd": seeds.sd, "seed_interval": seeds.interval, "seed_values": values}
        if group is not base:
            entry |= _difference(metric, group, base, of_metric)
        row["groups"][group.label] = entry
    return row


def _difference(
    metric: Metric, group: Group, base: Group, of_metric: Mapping[str, Replicated]
) -> dict[str, Any]:
    places = {folder: place for place, folder in enumerate(of_metric)}
    # Runs that do not name their seed get numbers that nobody shares.
    ours, theirs = (
        {
            -1 - places[folder] if run.seed is None else run.seed: of_metric[folder]
            for run in side.runs
            for folder in (str(run.folder),)
        }
        for side in (group, base)
    )
    comparison = compared(ours, theirs)
    gap, tested = comparison.patients, comparison.both
    entry: dict[str, Any] = {
        "difference": gap.difference,
        "difference_interval": comparison.interval,
        "p_patients": gap.p,
        "p": comparison.p,
        "better": _better(gap.difference, metric.lower_is_better),
    }
    if tested is not None:
        entry |= {
            "patient_difference_interval": gap.interval,
            "seed_difference_interval": tested.seed_interval,
            "p_seeds": tested.p_seeds,
            "seed_test": tested.seed_test,
            "freedom": tested.freedom if math.isfinite(tested.freedom) else None,
        }
    return entry


def _better(gap: float, lower_is_better: bool) -> bool | None:
    return None if gap == 0 else (gap < 0) == lower_is_better


# ------------------------------------------------------------------------------- classes


def _classes(groups: Sequence[Group], base: Group) -> list[dict[str, Any]]:
    """AUC of each class by DeLong's test over patients; groups of one run only."""
    single = [group for group in groups if len(group.runs) == 1]
    if len(base.runs) > 1 or len(single) < 2:
        return []
    tables = {group.label: group.runs[0].tables["zero_shot"] for group in single}
    rows = []
    for name, labels in judged_labels(tables[base.label]).items():
        known = ~np.isnan(labels)
        patients = [str(p) for p in tables[base.label]["patient"][known]]
        row: dict[str, Any] = {"class": name, "images": int(known.sum()), "groups": {}}
        scores = [t[f"score.{name}"].to_numpy(dtype=np.float64)[known] for t in tables.values()]
        try:
            test = delong(labels[known] == 1, np.stack(scores), patients)
        except ValueError as reason:
            row["reason"] = str(reason)
            rows.append(row)
            continue
        place = {label: number for number, label in enumerate(tables)}
        for group in single:
            entry: dict[str, Any] = {"value": float(test.aucs[place[group.label]])}
            if group is not base:
                gap, interval, p = test.difference(place[group.label], place[base.label])
                entry |= {"difference": gap, "difference_interval": interval, "p": p}
                entry["better"] = _better(gap, lower_is_better=False)
            row["groups"][group.label] = entry
        rows.append(row)
    return rows


# ------------------------------------------------------------------------------ judgement


def _judge(rows: Sequence[Mapping[str, Any]], groups: Sequence[Group], base: Group) -> int:
    """Add ``p_holm`` and ``verdict`` to every difference; return how many were tested."""
    runs = {group.label: len(group.runs) for group in groups}
    entries = [
        (runs[label], entry)
        for row in rows
        for label, entry in row["groups"].items()
        if "difference" in entry
    ]
    adjusted = holm([entry["p"] for _, entry in entries])
    for (count, entry), p_holm in zip(entries, adjusted, strict=True):
        entry["p_holm"] = p_holm
        if p_holm is None:
            entry["verdict"] = NOT_TESTED
        elif p_holm > ALPHA:
            entry["verdict"] = NOT_SHOWN
        elif "p_seeds" in entry:
            entry["verdict"] = REAL
        else:  # chance in the patients does not explain it
            fewest, most = sorted((count, len(base.runs)))
            entry["verdict"] = ONE_EACH if most == 1 else ONE_SIDE if fewest == 1 else UNSEEDED
    return len(adjusted) - adjusted.count(None)
