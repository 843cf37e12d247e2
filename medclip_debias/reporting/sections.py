"""The tables of a run's report below its main results; ``sections.yaml`` holds their words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from medclip_debias.errors import UserError, explained
from medclip_debias.evaluation.catalogue import CHANCE
from medclip_debias.evaluation.table import Results
from medclip_debias.files import read_json
from medclip_debias.reporting.content import at, interval, number, texts, words
from medclip_debias.reporting.plots import reliability
from medclip_debias.reporting.run_files import check_own
from medclip_debias.reporting.tables import Table

_SIDES = ("auc_positive", "auc_negative", "auc")
_MODES = ("strict", "lenient")
_WAYS = {
    "retrieval": [("box to sentence", "sentence to box")],
    "study_retrieval": [
        ("report to image", "image to report"),
        ("sentence to image", "image to sentence"),
    ],
}


@dataclass(frozen=True)
class Section:
    """A part of the page: tables, sentences on what is missing, plots with title and caption."""

    title: str
    tables: Sequence[Table]
    lines: Sequence[str] = ()
    plots: Sequence[tuple[Any, str, str]] = ()


class _Row(NamedTuple):
    """Cells before and after the metrics of a class or a group."""

    head: Sequence[str]
    of_class: str | None = None
    group: str | None = None
    end: Sequence[str] = ()


def result_sections(run: Path, results: Results) -> list[Section]:
    """Every table that the results have values for, in the order of the page."""
    with explained(
        f"{run / 'results.json'}: its details are damaged; run 'evaluate' again",
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):
        tables = {
            "Zero-shot classification, per class": _class_tables(run, results),
            "Phrase grounding, per category": _grounding_tables(results),
            "Retrieval, in detail": _retrieval_tables(results),
            "The same predictions by other papers' protocols": _presets(results),
        }
        sections = [
            Section(title, [table for table in several if table.rows])
            for title, several in tables.items()
        ]
        lines = _not_measured(results.details("zero_shot"))
        sections[0] = Section(sections[0].title, sections[0].tables, lines, _reliability(results))
    return [section for section in sections if section.tables or section.lines]


def _table(
    results: Results,
    name: str,
    rows: Iterable[_Row],
    more: Sequence[str] = (),
    total: bool = False,
    **values: str,
) -> Table:
    """A table of ``sections.yaml``; ``values`` fill the braces of its title and note."""
    spec = texts()[name]
    metrics = spec.get("metrics", {})
    head = [*spec["head"]]
    for title, metric in metrics.items():
        head += [title] if metric.startswith("-") else [title, "95%"]
    cells = tuple(
        (*row.head, *_cells(results, name, metrics.values(), row.of_class, row.group), *row.end)
        for row in rows
    )
    note, title = spec.get("note", ""), spec["title"]
    if values:
        note, title = note.format(**values), title.format(**values)
    return Table(title, (*head, *more), cells, note, spec.get("words", 1), total=total)


def _cells(
    results: Results,
    name: str,
    metrics: Iterable[str],
    of_class: str | None = None,
    group: str | None = None,
) -> list[str]:
    """Metrics of a table's protocol, each with its interval; ``-cnr:2``: none, two decimals."""
    cells = []
    for word in metrics:
        metric, _, digits = word.removeprefix("-").partition(":")
        place, shown = (texts()[name]["protocol"], metric, of_class, group), int(digits or 3)
        cells.append(number(results.value(*place), shown))
        if not word.startswith("-"):
            cells.append(interval(results.interval(*place), shown))
    return cells


# ------------------------------------------------------------------------- classification


def _class_tables(run: Path, results: Results) -> Iterator[Table]:
    zero = results.details("zero_shot")
    classes = (zero.get("classes") or {}).items()
    keys = ("positive", "negative", "left_out")
    counted = [_Row([name, *(number(of.get(key)) for key in keys)], name) for name, of in classes]
    yield _table(results, "classes", counted)
    if results.value("zero_shot", "mean_auc_positive") is not None:
        names = (results.by_class("zero_shot", name) for name in ("auc", "contradiction_rate"))
        sides = [_Row([name], name) for name in dict.fromkeys(n for of in names for n in of)]
        chance = results.value("zero_shot", "contradiction_rate", None, CHANCE)
        random = f" (scores in random order: {number(chance)})" if chance else ""
        table = _table(results, "sides", sides, total=True, random=random)
        means = ("mean_auc_positive", "mean_auc_negative", "mean_auc", "contradiction_rate")
        every = ("all", *_cells(results, "sides", means))
        yield replace(table, rows=(*table.rows, every))
    precise = results.by_class("zero_shot", "average_precision")
    yield _table(results, "precision", [_Row([name], name) for name in precise])
    several = zero.get("multiclass") or {}
    if several.get("classes") and several.get("confusion"):
        yield _confusion(results, several)
    label_map = zero.get("label_map") or {}
    states = ("present", "absent", "uncertain", "blank", "contradictory")
    labels = [
        _Row([name, str(label["rule"]), *(number(label[state]) for state in states)])
        for name, label in (label_map.get("classes") or {}).items()
    ]
    yield _table(results, "label_map", labels, label_map=str(label_map.get("name")))
    yield supervised_table(run, results)
    decided = zero.get("decisions") or {}
    if decided.get("classes"):
        each = ", among images with and without the finding each"
        yield _table(
            results,
            "decisions",
            [_decision(results, *one) for one in decided["classes"].items()],
            method=decided["method"],
            asked=f"{decided['coverage_asked']:.0%}",
            each=each if decided["conformal"] == "class_conditional" else "",
        )


def _confusion(results: Results, several: Mapping[str, Any]) -> Table:
    right, chance = (
        number(results.value("zero_shot", "multiclass_accuracy", None, group))
        for group in (None, CHANCE)
    )
    rows = []
    for (name, each), counts in zip(several["classes"].items(), several["confusion"], strict=True):
        predicted = [number(value, 0 if float(value).is_integer() else 1) for value in counts]
        rows.append(_Row([name, number(each["images"])], name, end=predicted))
    images = number(several["images"])
    return _table(
        results, "confusion", rows, [*several["classes"]], right=right, images=images, chance=chance
    )


def _decision(results: Results, name: str, entry: Mapping[str, Any]) -> _Row:
    shares = entry["prevalence"]
    stages = {"uncalibrated": ["-ece"], "probabilities": ["-ece", "-slope:2"]}
    stages["sets"] = ["coverage", "-abstention"]
    row = [name, number(shares["validation"]), f"{number(shares['target'])} ({shares['from']})"]
    row.append(number(shares["observed"]))
    for stage, metrics in stages.items():
        row += _cells(results, "decisions", metrics, name, f"decisions, {stage}")
    return _Row(row)


def _not_measured(zero: Mapping[str, Any]) -> list[str]:
    """What was not measured, and why."""
    decided, several = zero.get("decisions") or {}, zero.get("multiclass") or {}
    lines = [f"Decisions: {decided['reason']}."] if decided.get("reason") else []
    lines += [f"{name}: {why['reason']}." for name, why in (decided.get("skipped") or {}).items()]
    lines += decided.get("notes") or ()
    if several.get("reason"):
        lines.append(f"Multi-class accuracy was not measured. {several['reason']}")
    return lines + [
        f"Not measured: {name}: {c['reason']} ({c['positive']} present, {c['negative']} absent,"
        f" {c['left_out']} left out)."
        for name, c in (zero.get("refused") or {}).items()
    ]


def _reliability(results: Results) -> list[tuple[Any, str, str]]:
    """A reliability diagram for each class that has one."""
    plots = []
    for name, counts in (results.details("zero_shot").get("classes") or {}).items():
        if bins := counts.get("reliability"):
            ece = number(results.value("zero_shot", "ece", name))
            images = number(sum(int(each["images"]) for each in bins))
            plot = reliability(bins, f"Reliability diagram of {name}, ECE {ece}")
            plots.append((plot, name, f"ECE {ece}, {images} images; a mark's area: its images"))
    return plots


def supervised_table(run: Path, results: Results) -> Table:
    """AUCs of classifiers that saw the labels of the same images, beside zero-shot; their means."""
    classes = results.details("zero_shot").get("classes") or {}
    probe = _supervised(run / "probe" / "probe.json", results, "model_hash")
    linear = {name: each["linear at 1"] for name, each in probe.items() if "linear at 1" in each}
    others = [linear, _supervised(run / "supervised.json", results)]
    if not any(others):
        classes = {}
    rows, aucs = [], {}
    for name, of in classes.items():
        sides = [results.value("zero_shot", side, name) for side in _SIDES]
        row = [name, " / ".join(number(of.get(key)) for key in ("positive", "negative"))]
        row += [*map(number, sides), interval(results.interval("zero_shot", "auc", name))]
        for other in others:
            row += [number(at(other, name, "auc")), interval(at(other, name, "interval"))]
        rows.append(_Row(row))
        if all(name in other for other in others if other):
            aucs[name] = [*sides, *(at(other, name, "auc") for other in others)]
    if aucs:
        columns, dash = list(zip(*aucs.values(), strict=True)), number(None)
        *means, probed, trained = (
            number(None if None in column else sum(column) / len(column)) for column in columns
        )
        rows.append(_Row([f"mean of {len(aucs)}", "", *means, dash, probed, dash, trained, dash]))
    return _table(results, "supervised", rows, total=True)


def _supervised(path: Path, results: Mapping[str, Any], *same: str) -> dict[str, Any]:
    """The classes of a file of the same images, and alike in ``same``; none of another."""
    check_own(path)
    if not path.is_file():
        return {}
    content = read_json(path, "measure it again")
    if any(content.get(key) != results.get(key) for key in ("data_hash", "split", *same)):
        return {}
    classes = content.get("classes")
    if not isinstance(classes, dict) or not all(isinstance(c, dict) for c in classes.values()):
        raise UserError(f"{path}: holds no classes; measure it again.")
    return classes


# ------------------------------------------------------------- grounding, retrieval, presets


def _grounding_tables(results: Results) -> Iterator[Table]:
    denied = results.details("grounding").get("not_groundable")
    further = (
        f" {number(denied)} further phrases say that something is absent or normal; they are"
        " reported separately in results.json."
    )
    for name, kind in (("categories", "category"), ("area", "area"), ("frequency", "frequency")):
        groups: dict[str, str | None] = {**results.groups("grounding", "cnr", kind)}
        total = kind == "category" and len(groups) > 1
        if total:
            groups["All"] = None
        rows = []
        for title, group in groups.items():
            cnr = results.row("grounding", "cnr", None, group) or {}
            rows.append(_Row([words(title), number(cnr.get("n"))], group=group))
        yield _table(results, name, rows, total=total, further=further if denied else "")


def _retrieval_tables(results: Results) -> Iterator[Table]:
    boxes = results.details("retrieval")
    pairs = (
        f"{number(boxes['phrases'])} box-sentence pairs, {number(boxes['distinct_sentences'])}"
        " distinct sentences. "
        if boxes
        else ""
    )
    for protocol, kinds in _WAYS.items():
        rows = []
        for mode, way in ((mode, way) for ways in kinds for mode, way in product(_MODES, ways)):
            group = f"{mode}, {way}"
            if rank := results.row(protocol, "median_rank", None, group):
                rows.append(_Row([mode, way, number(rank["n"])], group=group))
        yield _table(results, protocol, rows, pairs=pairs)
    chance = number(results.value("study_retrieval", "precision_at_5", None, CHANCE))
    rows = []
    for way in ("report to image", "image to report"):
        direction = way if way == "report to image" else None
        if first := results.row("study_retrieval", "precision_at_5", None, direction):
            rows.append(_Row([way, number(first["n"])], group=direction, end=[chance]))
    yield _table(results, "same_class", rows, ["chance"])


def _presets(results: Results) -> Iterator[Table]:
    """Preset, part, metrics and what it does, one row a part; empty where none was asked for."""
    rows = [
        _Row([name, words(protocol), line, results["presets"][name]["about"]])
        for name, protocol, line in results.preset_lines()
    ]
    yield _table(results, "presets", rows)
