"""The tables of a run's report below its main results; ``sections.yaml`` holds their words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from medclip_debias.errors import UserError, explained
from medclip_debias.evaluation.catalogue import CHANCE
from medclip_debias.evaluation.table import Results
from medclip_debias.files import read_json
from medclip_debias.reporting.content import Rows, at, interval, number, words
from medclip_debias.reporting.plots import reliability
from medclip_debias.reporting.run_files import check_own
from medclip_debias.reporting.tables import PrintedTable
from medclip_debias.settings_files import load_yaml

_SIDES = ("auc_positive", "auc_negative", "auc")
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
    tables: Sequence[PrintedTable]
    lines: Sequence[str] = ()
    plots: Sequence[tuple[Any, str, str]] = ()


def result_sections(run: Path, results: Results) -> list[Section]:
    """Every table that the results have values for, in the order of the page."""
    with explained(
        f"{run / 'results.json'}: its details are damaged; run 'evaluate' again",
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
    ):
        sections = [
            Section(
                "Zero-shot classification, per class",
                _filled(_class_tables(run, results)),
                _not_measured(results.details("zero_shot")),
                _reliability(results),
            ),
            Section("Phrase grounding, per category", _filled(_grounding_tables(results))),
            Section("Retrieval, in detail", _filled(_retrieval_tables(results))),
            Section("The same predictions by other papers' protocols", _filled(_presets(results))),
        ]
    return [section for section in sections if section.tables or section.lines]


def _filled(tables: Iterable[PrintedTable]) -> list[PrintedTable]:
    return [table for table in tables if table.rows]


@cache
def _specs() -> dict[str, Any]:
    return load_yaml(Path(__file__).with_suffix(".yaml"))


def _table(
    name: str,
    rows: Iterable[Sequence[str]],
    more: Sequence[str] = (),
    total: bool = False,
    **values: str,
) -> PrintedTable:
    """A table of ``sections.yaml``; ``values`` fill the braces of its title and note."""
    spec = _specs()[name]
    head = [*spec["head"]]
    for title, metric in spec.get("metrics", {}).items():
        head += [title] if metric.startswith("-") else [title, "95%"]
    note, title = spec.get("note", ""), spec["title"]
    if values:
        note, title = note.format(**values), title.format(**values)
    cells = tuple(map(tuple, rows))
    return PrintedTable((*head, *more), cells, note, spec.get("words", 1), title=title, total=total)


def _cells(
    results: Results,
    name: str,
    of_class: str | None = None,
    group: str | None = None,
    metrics: Iterable[str] = (),
) -> list[str]:
    """The cells of the metrics of a table, of one row; of other ``metrics`` where given."""
    spec = _specs()[name]
    cells = []
    for word in metrics or spec["metrics"].values():
        metric, _, digits = word.removeprefix("-").partition(":")
        place, shown = (spec["protocol"], metric, of_class, group), int(digits or 3)
        cells.append(number(results.value(*place), shown))
        if not word.startswith("-"):
            cells.append(interval(results.interval(*place), shown))
    return cells


# ------------------------------------------------------------------------- classification


def _class_tables(run: Path, results: Results) -> Iterator[PrintedTable]:
    zero = results.details("zero_shot")
    yield _table(
        "classes",
        [
            [
                name,
                *(number(counts.get(key)) for key in ("positive", "negative", "left_out")),
                *_cells(results, "classes", name),
            ]
            for name, counts in (zero.get("classes") or {}).items()
        ],
    )
    aucs, rates = (results.by_class("zero_shot", name) for name in ("auc", "contradiction_rate"))
    sides = [[name, *_cells(results, "sides", name)] for name in aucs | rates]
    means = ("mean_auc_positive", "mean_auc_negative", "mean_auc", "contradiction_rate")
    sides.append(["all", *_cells(results, "sides", metrics=means)])
    chance = results.value("zero_shot", "contradiction_rate", None, CHANCE)
    random = f" (scores in random order: {number(chance)})" if chance else ""
    if results.value("zero_shot", "mean_auc_positive") is not None:
        yield _table("sides", sides, total=True, random=random)
    precise = results.by_class("zero_shot", "average_precision")
    yield _table("precision", [[name, *_cells(results, "precision", name)] for name in precise])
    several = zero.get("multiclass") or {}
    if several.get("classes") and several.get("confusion"):
        yield _confusion(results, several)
    label_map = zero.get("label_map") or {}
    counts = ("present", "absent", "uncertain", "blank", "contradictory")
    yield _table(
        "label_map",
        [
            [name, str(label["rule"]), *(number(label[count]) for count in counts)]
            for name, label in (label_map.get("classes") or {}).items()
        ],
        label_map=str(label_map.get("name")),
    )
    yield supervised_table(run, results)
    decided = zero.get("decisions") or {}
    if decided.get("classes"):
        each = ", among images with and without the finding each"
        yield _table(
            "decisions",
            [_decision(results, *one) for one in decided["classes"].items()],
            method=decided["method"],
            asked=f"{decided['coverage_asked']:.0%}",
            each=each if decided["conformal"] == "class_conditional" else "",
        )


def _confusion(results: Results, several: Mapping[str, Any]) -> PrintedTable:
    right, chance = (
        number(results.value("zero_shot", "multiclass_accuracy", None, group))
        for group in (None, CHANCE)
    )
    classes = several["classes"]
    rows = [
        [
            name,
            number(classes[name]["images"]),
            *_cells(results, "confusion", name),
            *(number(value, 0 if float(value).is_integer() else 1) for value in counts),
        ]
        for name, counts in zip(classes, several["confusion"], strict=True)
    ]
    images = number(several["images"])
    return _table("confusion", rows, list(classes), right=right, images=images, chance=chance)


def _decision(results: Results, name: str, entry: Mapping[str, Any]) -> list[str]:
    shares = entry["prevalence"]
    stages = {"uncalibrated": ["-ece"], "probabilities": ["ece", "-slope:2"]}
    stages["sets"] = ["coverage", "-abstention"]
    row = [
        name,
        number(shares["validation"]),
        f"{number(shares['target'])} ({shares['from']})",
        number(shares["observed"]),
    ]
    for stage, metrics in stages.items():
        row += _cells(results, "classes", name, f"decisions, {stage}", metrics)
    return row


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


def supervised_table(run: Path, results: Results) -> PrintedTable:
    """AUCs of classifiers that saw the labels of the same images, beside zero-shot; their means."""
    classes = results.details("zero_shot").get("classes") or {}
    zero = {name: [results.value("zero_shot", side, name) for side in _SIDES] for name in classes}
    probe = _supervised(run / "probe" / "probe.json", results)
    linear = {name: each["linear at 1"] for name, each in probe.items() if "linear at 1" in each}
    others = (linear, _supervised(run / "supervised.json", results))
    rows, aucs = [], {}
    if not any(others):
        zero = {}
    for name, sides in zero.items():
        counts = " / ".join(number(classes[name].get(key)) for key in ("positive", "negative"))
        row = [name, counts, *map(number, sides)]
        row.append(interval(results.interval("zero_shot", "auc", name)))
        for other in others:
            row += [number(at(other, name, "auc")), interval(at(other, name, "interval"))]
        rows.append(row)
        if all(name in other for other in others if other):
            aucs[name] = [*sides, *(at(other, name, "auc") for other in others)]
    if aucs:
        columns = list(zip(*aucs.values(), strict=True))
        *means, probed, trained = (
            number(None if None in column else sum(column) / len(column)) for column in columns
        )
        dash = number(None)
        rows.append([f"mean of {len(aucs)}", "", *means, dash, probed, dash, trained, dash])
    return _table("supervised", rows, total=True)


def _supervised(path: Path, results: Mapping[str, Any]) -> dict[str, Any]:
    """The classes of a file that was measured on the same images, else none."""
    check_own(path)
    if not path.is_file():
        return {}
    content = read_json(path, "measure it again")
    if any(content.get(key) != results.get(key) for key in ("data_hash", "split")):
        return {}
    classes = content.get("classes")
    if not isinstance(classes, dict) or not all(isinstance(c, dict) for c in classes.values()):
        raise UserError(f"{path}: holds no classes; measure it again.")
    return classes


# ------------------------------------------------------------- grounding, retrieval, presets


def _grounding_tables(results: Results) -> Iterator[PrintedTable]:
    def rows(name: str, metric_groups: Mapping[str, str | None]) -> Rows:
        return [
            [
                words(title),
                number((results.row("grounding", "cnr", None, group) or {}).get("n")),
                *_cells(results, name, None, group),
            ]
            for title, group in metric_groups.items()
        ]

    categories: dict[str, str | None] = {**results.groups("grounding", "cnr", "category")}
    several = len(categories) > 1
    if several:
        categories["All"] = None
    denied = results.details("grounding").get("not_groundable")
    further = (
        f" {number(denied)} further phrases say that something is absent or normal; they are"
        " reported apart in results.json."
    )
    yield _table(
        "categories",
        rows("categories", categories),
        total=several,
        further=further if denied else "",
    )
    for name in ("area", "frequency"):
        groups: dict[str, str | None] = {**results.groups("grounding", "cnr", name)}
        yield _table(name, rows(name, groups))


def _retrieval_tables(results: Results) -> Iterator[PrintedTable]:
    boxes = results.details("retrieval")
    pairs = (
        f"{number(boxes['phrases'])} box-sentence pairs, {number(boxes['distinct_sentences'])}"
        " distinct sentences. "
        if boxes
        else ""
    )
    for protocol, kinds in _WAYS.items():
        rows = []
        for ways in kinds:
            for mode, way in product(("strict", "lenient"), ways):
                group = f"{mode}, {way}"
                rank = results.row(protocol, "median_rank", None, group)
                if rank is not None:
                    cells = _cells(results, protocol, None, group)
                    rows.append([mode, way, number(rank["n"]), *cells])
        yield _table(protocol, rows, pairs=pairs)
    chance = number(results.value("study_retrieval", "precision_at_5", None, CHANCE))
    rows = []
    for way in ("report to image", "image to report"):
        direction = way if way == "report to image" else None
        first = results.row("study_retrieval", "precision_at_5", None, direction)
        if first is not None:
            cells = _cells(results, "same_class", None, direction)
            rows.append([way, number(first["n"]), *cells, chance])
    yield _table("same_class", rows, ["chance"])


def _presets(results: Results) -> Iterator[PrintedTable]:
    """Preset, part, metrics and what it does, one row a part; empty where none was asked for."""
    yield _table(
        "presets",
        [
            [name, words(protocol), line, results["presets"][name]["about"]]
            for name, protocol, line in results.preset_lines()
        ],
    )
