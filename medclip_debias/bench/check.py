"""Checks of benchmark results before they are believed.

`faults_of` holds figures against what they follow from: the ranges of the catalogue, the counts of
the record, the items of the same folder, and the other models' results on the same images.
`validate_folder` also refuses what must not be shared (`medclip_debias.bench.sharing`). What no
check can see stands in docs/benchmark.md.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from medclip_debias.bench.record import CACHE, RECORD, RESULTS, Figure
from medclip_debias.bench.results import RESAMPLES, Result, can_be_recomputed, metric_of
from medclip_debias.bench.sharing import link_fault, model_faults
from medclip_debias.errors import UserError, counted
from medclip_debias.evaluation.bootstrap import Replicated
from medclip_debias.evaluation.catalogue import METRICS, of_protocol
from medclip_debias.evaluation.item_tables import ITEMS, differing_truth

TOLERANCE = 1e-6
"""How far a figure may lie from the one that its items give."""
BESIDE = re.compile(r"README(\.md)?|LICEN[CS]E.*|\.git.*|CONTRIBUTING\.md")
"""What may lie beside the models."""
_SAME = 1e-3
"""Scores of two models that differ less, in standard deviations, are one model's."""
_FEW = 8
"""Fewer distinct rows of scores can be equal by chance, as ranks of perfect models are."""
_COUNTED = {
    "zero_shot": ("images",),
    "grounding": ("phrases", "not_groundable"),
    "study_retrieval": ("studies",),
    "retrieval": ("phrases",),
}
"""Counts among a protocol's details that are those of its items together."""
_OF_THE_IMAGES = ("zero_shot", "study_retrieval", "triplets", "progression")
"""Protocols whose items are the same for every model that judged the same images."""


@dataclass
class Report:
    """What a check found."""

    faults: list[str] = field(default_factory=list)
    models: int = 0
    results: int = 0
    recomputed: int = 0
    taken: Counter[str] = field(default_factory=Counter)

    @property
    def sentences(self) -> list[str]:
        """The outcome in sentences."""
        return [
            f"{counted(self.models, 'model')} with {counted(self.results, 'result')}:"
            f" {counted(len(self.faults), 'fault')}. {counted(self.recomputed, 'figure')}"
            " recomputed from the items, in agreement with them.",
            *(f"{counted(n, 'figure')} not recomputed: {why}." for why, n in self.taken.items()),
        ]


def validate_folder(folder: Path) -> Report:
    """Check every model's folder, as one that others handed in."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give a folder of results.")
    report = Report()
    results: list[Result] = []
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink():
            report.faults.append(link_fault(entry))
        elif entry.is_dir() and not entry.name.startswith(".") and entry.name != CACHE:
            report.models += 1
            report.faults += model_faults(entry, results)
        elif entry.name != CACHE and not BESIDE.fullmatch(entry.name):
            report.faults.append(
                f"{entry}: does not belong here; a folder of results has one folder per model, and"
                " README.md and LICENSE beside them."
            )
    if not report.models:
        raise UserError(f"{folder}: contains no model folder; 'bench' writes one.")
    report.results = len(results)
    report.faults += faults_of(results, report)
    return report


def faults_of(results: Sequence[Result], report: Report | None = None) -> list[str]:
    """What is wrong with the figures of results, one sentence each."""
    report = report or Report()
    faults: list[str] = []
    sound: list[Result] = []
    for result in results:
        try:
            own = [*_record_faults(result), *_item_faults(result, report)]
        except UserError as error:
            own = [str(error)]
        faults += own
        sound += [] if own else [result]
    by_card: dict[tuple[str, str], list[Result]] = {}
    for result in sound:
        key = result.record.card.hash, result.record.judged.list_hash
        by_card.setdefault(key, []).append(result)
    for same in by_card.values():
        faults += _faults_between(same)
    return faults


# -------------------------------------------------------------------- figures of one result


def _record_faults(result: Result) -> Iterator[str]:
    """Impossible figures, counts that do not add up, and other figures than ``results.json``."""
    path, record, judged = result.folder / RECORD, result.record, result.record.judged
    if judged.wanted is not None and judged.found + judged.missing != judged.wanted:
        yield (
            f"{path}: found {judged.found} and missing {judged.missing} do not add up to"
            f" {judged.wanted}."
        )
    if record.status != judged.status:
        why = judged.lacks or "no more than 1% missing"
        yield f"{path}: is called {record.status}, and {why}; more than 1% is incomplete."
    boxes = result.content.details("grounding").get("boxes")
    if boxes is not None and judged.boxes is not None and boxes != judged.boxes:
        yield f"{path}: says that {judged.boxes} boxes were judged, and {RESULTS} {boxes}."
    for name, ours in (("model_hash", record.model_hash), ("data_hash", judged.set_hash)):
        if result.content.get(name) != ours:
            yield f"{result.folder / RESULTS}: its '{name}' is another than {RECORD} has."
    for key, figure in record.metrics.items():
        yield from _bounds_faults(path, key, figure)
        row = result.content.of(key) or {}
        for end, ours in figure:
            theirs = row.get(end)
            none = ours is None or theirs is None
            if not (ours is theirs if none else abs(ours - theirs) <= TOLERANCE):
                yield (
                    f"{result.folder / RESULTS}: has the {end} {theirs} for '{key}', and {RECORD}"
                    f" {ours}."
                )


def _bounds_faults(path: Path, key: str, figure: Figure) -> Iterator[str]:
    low, high = metric_of(key).bounds
    ends = [end for end in (figure.low, figure.high) if end is not None]
    for value in (figure.value, *ends):
        if not (math.isfinite(value) and low - TOLERANCE <= value <= high + TOLERANCE):
            yield f"{path}: has {value} for '{key}', which lies between {low:g} and {high:g}."
            return
    if len(ends) == 1:
        yield f"{path}: the interval of '{key}' has one end."
    elif ends and not ends[0] - TOLERANCE <= figure.value <= ends[1] + TOLERANCE:
        yield f"{path}: the interval of '{key}', {ends[0]} to {ends[1]}, does not hold its value."


def _item_faults(result: Result, report: Report) -> Iterator[str]:
    """Figures that do not follow from the items, and items that cannot be."""
    follows = {key for key in result.record.metrics if can_be_recomputed(key)}
    report.taken["such metrics cannot be computed from the items"] += len(
        result.record.metrics.keys() - follows
    )
    for protocol in result.protocols:
        path, table = result.item_file(protocol), result.items(protocol)
        faults = [
            *_count_faults(result, protocol, path, table),
            *_range_faults(protocol, path, table),
        ]
        yield from faults
        if faults:
            continue
        computed = result.replicates(protocol)
        if not computed:
            keys = [key for key in follows if metric_of(key).protocol == protocol]
            report.taken["the labels are withheld"] += len(keys)
        yield from _figure_faults(result, protocol, computed, report)
    report.taken = +report.taken


def _count_faults(result: Result, protocol: str, path: Path, table: pd.DataFrame) -> Iterator[str]:
    part = result.content.details(protocol)
    counts = [part.get(key) for key in _COUNTED.get(protocol, ())]
    number = sum(count for count in counts if isinstance(count, int))
    if any(isinstance(count, int) for count in counts) and number != len(table):
        yield f"{path}: has {len(table)} items, and {RESULTS} says {number}."
    patients, counted = table["patient"].nunique(), part.get("patients")
    of_images = protocol in ("zero_shot", "study_retrieval")
    if of_images and isinstance(counted, int) and counted != patients:
        yield f"{path}: has {patients} patients, and {RESULTS} {counted}."
    judged = result.record.judged
    by_image = result.content.get("options", {}).get("several_views") in (None, "each")
    if protocol == "zero_shot" and by_image:
        counts = result.content.get("counts", {})
        labelled = min(len(table), counts.get("labelled_images", len(table)))
        unlabelled = judged.found - labelled
        noted = f"{unlabelled} of the {judged.found} judged images have no label"
        if len(table) > judged.found:
            yield f"{path}: has {len(table)} items of {judged.found} judged images."
        elif unlabelled and not any(note.startswith(noted) for note in result.record.notes):
            yield (
                f"{path}: has {labelled} of the {judged.found} images that {RECORD} calls found,"
                " and no note says that the others have no label."
            )


def _range_faults(protocol: str, path: Path, table: pd.DataFrame) -> Iterator[str]:
    bounds = {m.item: m.bounds for m in of_protocol(protocol) if m.item in table.columns}
    for name in map(str, table.columns):
        if not is_numeric_dtype(table[name]) or is_bool_dtype(table[name]):
            continue
        values = table[name].to_numpy(dtype=np.float64)
        known = values[~np.isnan(values)]
        low, high = bounds.get(name, (-math.inf, math.inf))
        if name.startswith("rank_"):
            low, high = 1.0, math.inf
        if name.startswith("label.") and not np.isin(known, (0, 1)).all():
            yield f"{path}: the column '{name}' holds labels that are neither 0 nor 1."
        elif known.size and not (np.isfinite(known).all() and low <= known.min() <= known.max()):
            yield f"{path}: the column '{name}' holds {known.min():g}, below {low:g} or infinite."
        elif known.size and known.max() > high + TOLERANCE:
            yield f"{path}: the column '{name}' holds {known.max():g}, above {high:g}."


def _figure_faults(
    result: Result, protocol: str, computed: Mapping[str, Replicated], report: Report
) -> Iterator[str]:
    """Values and intervals that the items do not give, in the record and in ``results.json``."""
    path, content, record = result.item_file(protocol), result.content, result.record
    resamples = content.resamples
    resamples = RESAMPLES if resamples is None else resamples
    for metric in METRICS:
        if metric.protocol != protocol or metric.name not in computed:
            continue
        one, figure = computed[metric.name], record.metrics.get(metric.key)
        value = figure.value if figure else content.value(protocol, metric.name)
        if value is None:
            continue
        if not abs(one.value - value) <= TOLERANCE:
            where = RECORD if figure else RESULTS
            yield f"{path}: gives {one.value:.9g} for '{metric.key}', and {where} says {value:.9g}."
            continue
        report.recomputed += figure is not None
        interval = one.interval
        if interval is None or not resamples:
            continue
        claimed: Any = [figure.low, figure.high] if figure else None
        claimed = claimed or content.interval(protocol, metric.name)
        if figure and None in claimed:
            yield f"{result.folder / RECORD}: gives no interval for '{metric.key}'."
        elif claimed and not same_interval(claimed, interval, one, resamples):
            shown = " to ".join(f"{end:.6g}" for end in interval)
            yield (
                f"{path}: gives the interval {shown} for '{metric.key}', and"
                f" {RECORD if figure else RESULTS} says {claimed[0]:.6g} to {claimed[1]:.6g}."
            )


def same_interval(
    claimed: Sequence[float], interval: Sequence[float], one: Replicated, resamples: int
) -> bool:
    """Whether two intervals differ by no more than two draws of resamples do.

    The patients were drawn under their own names there, and under digests here. The level of an
    end, the share of resamples that lie beyond it, is a binomial one in each draw: what is allowed
    is its exact interval (Clopper and Pearson 1934) that holds all but two of a million, and a
    tenth of the interval's width, since few patients have few values.
    """
    from scipy.stats import beta

    defined = one.replicates[~np.isnan(one.replicates)]
    room = 0.1 * (interval[1] - interval[0]) + TOLERANCE
    drawn = 1 / (1 / resamples + 1 / RESAMPLES)
    for end, ours, sign in zip(claimed, interval, (1, -1), strict=True):
        below = drawn * float((sign * defined < sign * ours).mean())
        upto = drawn * float((sign * defined <= sign * ours).mean())
        low = beta.ppf(1e-6, below, drawn - below + 1) if below else 0.0
        high = beta.ppf(1 - 1e-6, upto + 1, drawn - upto) if upto < drawn else 1.0
        outer, inner = np.quantile(sign * defined, [low, high])
        if not outer - room <= sign * end <= inner + room:
            return False
    return True


# ------------------------------------------------------------- results on the same images


def _faults_between(results: Sequence[Result]) -> Iterator[str]:
    """Items, patients or labels of models that differ where they cannot, and scores that do not."""
    for protocol in ITEMS:
        having = [result for result in results if protocol in result.protocols]
        if len(having) < 2:
            continue
        every = [tuple(result.items(protocol)["item"]) for result in having]
        ((usual, _),) = Counter(every).most_common(1)
        reference, theirs = having[every.index(usual)], set(usual)
        agreed = _agreed(having, theirs, protocol)
        for result, items in zip(having, every, strict=True):
            path, ours = result.item_file(protocol), set(items)
            shared = len(ours & theirs)
            sets = {one.record.judged.set_hash for one in (result, reference)}
            of_images = protocol in _OF_THE_IMAGES or len(sets) == 1
            if shared < len(ours | theirs) and (of_images or 2 * shared < len(ours)):
                yield (
                    f"{path}: {len(ours - theirs)} of its {len(ours)} items are not those of"
                    f" {reference.item_file(protocol)}, which judged the same images, and"
                    f" {len(theirs - ours)} of those are missing."
                )
            for name in _differing(result, agreed, protocol)[:1]:
                yield (
                    f"{path}: the column '{name}' differs from the other models' on the same items,"
                    " although it does not depend on the model."
                )
        for one, two in combinations(having, 2):
            if one.record.model_hash != two.record.model_hash and _same_scores(one, two, protocol):
                yield (
                    f"{two.item_file(protocol)}: holds the scores of the model '{one.model}'"
                    f" ({one.item_file(protocol)}) under another name."
                )


def _agreed(results: Sequence[Result], usual: set[str], protocol: str) -> Result:
    """Whose labels of the usual items most of the models have, too; the first of equals."""

    def agreement(one: Result) -> tuple[bool, int, int]:
        shared = usual.intersection(one.items(protocol)["item"])
        same = sum(not _differing(one, other, protocol) for other in results)
        return one.has_truth(protocol), len(shared), same

    return max(results, key=agreement)


def _differing(one: Result, other: Result, protocol: str) -> list[str]:
    """`differing_truth` of two models, as far as their labels are not withheld.

    Areas of boxes differ with the size that an archive's images were given in.
    """
    shown = one.has_truth(protocol) and other.has_truth(protocol)
    names = differing_truth(protocol, one.items(protocol), other.items(protocol))
    return [name for name in names if name == "patient" or (shown and name != "area")]


def _same_scores(one: Result, two: Result, protocol: str) -> bool:
    """Whether every score of two models is the same but for rounding."""
    tables = one.items(protocol), two.items(protocol)
    if not tables[0]["item"].equals(tables[1]["item"]):
        return False
    names = [
        name
        for name in map(str, tables[0].columns)
        if name in tables[1].columns
        and is_numeric_dtype(tables[0][name])
        and not name.startswith((*ITEMS[protocol].truth, "sentence_count", "area"))
    ]
    ours, theirs = (table[names].to_numpy(dtype=np.float64) for table in tables)
    if len(np.unique(ours, axis=0)) < _FEW:
        return False
    spread = np.nanstd(ours, axis=0)
    return bool(np.all((np.abs(ours - theirs) <= _SAME * spread) | np.isnan(ours - theirs)))
