"""The tables of a run's report below its main results: classes, groups, studies, decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from medclip_debias.errors import explained
from medclip_debias.evaluation.catalogue import CHANCE
from medclip_debias.evaluation.table import Results
from medclip_debias.reporting.content import Rows, interval, number
from medclip_debias.reporting.supervised import HEAD, supervised_rows

_CUTS = (5, 10, 100)


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Attributes:
        title: what it shows.
        columns: their titles, between bars; one called ``95%`` holds intervals, which the page
            puts below the value on their left.
        rows: cells, as many as columns.
        note: how to read it.
        words: how many columns, from the left, hold words.
        total: the last row is over all the others.
    """

    title: str
    columns: str
    rows: Rows
    note: str = ""
    words: int = 1
    total: bool = False

    @property
    def head(self) -> list[str]:
        """Titles of the columns."""
        return self.columns.split(" | ")


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: of the part.
        tables: those that have rows.
        lines: sentences on what is missing.
        plots: plot, title and caption of each.
    """

    title: str
    tables: Sequence[Table]
    lines: Sequence[str] = ()
    plots: Sequence[tuple[Any, str, str]] = ()


def result_sections(run: Path, results: Results) -> list[Section]:
    """Every table that the results have values for, in the order of the page.

    Args:
        run: the run's folder, for files beside ``results.json``.
        results: content of its ``results.json``.

    Raises:
        UserError: the results or a file beside them are damaged, or a file is a link.
    """
    with explained(
        f"{run / 'results.json'}: its details are damaged; run 'evaluate' again",
        *(AttributeError, KeyError, TypeError, ValueError),
    ):
        zero = results.details("zero_shot")
        classes = [*_class_tables(results), *_label_tables(run, results), *_decisions(results)]
        title = "Zero-shot classification, per class"
        sections = [
            Section(title, classes, _missing_lines(zero), _reliability(results)),
            Section("Phrase grounding, per category", list(_grounding_tables(results))),
            Section("Retrieval, in detail", list(_retrieval_tables(results))),
            Section("The same predictions by other papers' protocols", [_presets(results)]),
        ]
    kept = [Section(s.title, [t for t in s.tables if t.rows], s.lines, s.plots) for s in sections]
    return [section for section in kept if section.tables or section.lines]


def _cells(
    results: Results,
    protocol: str,
    metrics: str,
    of_class: str | None = None,
    group: str | None = None,
) -> list[str]:
    """Cells of metrics between blanks: ``cnr:2`` with two digits, ``-cnr`` without its interval."""
    cells = []
    for word in metrics.split():
        name, _, digits = word.removeprefix("-").partition(":")
        place, shown = (protocol, name, of_class, group), int(digits or 3)
        cells.append(number(results.value(*place), shown))
        if not word.startswith("-"):
            cells.append(interval(results.interval(*place), shown))
    return cells


# ------------------------------------------------------------------------- classification


def _class_tables(results: Results) -> Iterator[Table]:
    def rows(metrics: str, names: Iterable[str]) -> Rows:
        return [[name, *_cells(results, "zero_shot", metrics, name)] for name in names]

    zero = results.details("zero_shot")
    yield Table(
        "Classes",
        "class | present | absent | left out | AUC | 95% | accuracy | 95% | balanced acc. | 95%",
        [
            [
                name,
                *(number(counts.get(key)) for key in ("positive", "negative", "left_out")),
                *_cells(results, "zero_shot", "auc accuracy balanced_accuracy", name),
            ]
            for name, counts in (zero.get("classes") or {}).items()
        ],
        "Each image is scored against a sentence that states the finding and one that denies it"
        " (the prompts are under Provenance). Left out: images whose label is uncertain or blank,"
        " under the label policy of this evaluation.",
    )
    aucs, rates = (results.by_class("zero_shot", name) for name in ("auc", "contradiction_rate"))
    sides = rows("auc_positive auc_negative auc contradiction_rate", aucs | rates)
    means = "mean_auc_positive mean_auc_negative mean_auc contradiction_rate"
    chance = results.value("zero_shot", "contradiction_rate", None, CHANCE)
    random = f" (scores in random order: {number(chance)})" if chance else ""
    measured = results.value("zero_shot", "mean_auc_positive") is not None
    yield Table(
        "Each side of the prompts alone",
        "class | AUC of 'X' alone (POS) | 95% | of 'no X' alone (NEG) | 95% | of both (PNC) | 95%"
        " | contradictions | 95%",
        [*sides, ["all", *_cells(results, "zero_shot", means)]] if measured else [],
        "NEG counts a low score of 'no X' as the finding; 0.5 is chance, less is worse than chance."
        " Contradictions: share of all images whose two highest-scoring sides, among 'X' and"
        f" 'no X' of every class, are of this one class; in the last row of any{random}.",
        total=True,
    )
    yield Table(
        "Average precision, F1 and calibration",
        "class | average precision | 95% | F1 | 95% | ECE | 95%",
        rows("average_precision f1 ece", results.by_class("zero_shot", "average_precision")),
        "F1: at the threshold that was best on the validation images. ECE: expected calibration"
        " error of sigmoid(g2 x difference), 15 bins; lower is better.",
    )
    several = zero.get("multiclass") or {}
    classes, confusion = (several.get(key) or () for key in ("classes", "confusion"))
    if classes and confusion:
        whole, chance = (
            results.value("zero_shot", "multiclass_accuracy", None, group)
            for group in (None, CHANCE)
        )
        yield Table(
            f"Which class? {number(whole)} right of {number(several['images'])} images (chance"
            f" {number(chance)})",
            " | ".join(["class", "images", "recall", *classes]),
            [
                [
                    name,
                    number(classes[name]["images"]),
                    number(results.value("zero_shot", "multiclass_recall", name)),
                    *(number(value, 0 if float(value).is_integer() else 1) for value in counts),
                ]
                for name, counts in zip(classes, confusion, strict=True)
            ],
            "Images of exactly one class; the prediction is the class whose positive prompts score"
            " highest. The columns after the recall: how often each class was predicted. When"
            " classes tie, each gets an equal share of the prediction.",
        )


def _label_tables(run: Path, results: Results) -> Iterator[Table]:
    counts = ("present", "absent", "uncertain", "blank", "contradictory")
    label_map = results.details("zero_shot").get("label_map") or {}
    yield Table(
        f"Labels by the label map '{label_map.get('name')}'",
        f"class | columns of the archive | {' | '.join(counts[:-1])} | of them contradictory",
        [
            [name, str(made["rule"]), *(number(made[count]) for count in counts)]
            for name, made in (label_map.get("classes") or {}).items()
        ],
        words=2,
    )
    yield Table(
        "What the labels allow",
        " | ".join(HEAD),
        supervised_rows(run, results),
        "AUC on the same images: zero-shot by 'X' alone (POS), by 'no X' alone (NEG), by both"
        " (PNC). Linear probe: logistic regression on this model's image features,"
        " learned from all training labels. Supervised: the same image encoder, trained on the"
        " labels from scratch.",
        total=True,
    )


def _decisions(results: Results) -> Iterator[Table]:
    decided = results.details("zero_shot").get("decisions") or {}

    def row(name: str, shares: Mapping[str, Any]) -> list[str]:
        def cells(stage: str, metrics: str) -> list[str]:
            return _cells(results, "zero_shot", metrics, name, f"decisions, {stage}")

        return [
            name,
            number(shares["validation"]),
            f"{number(shares['target'])} ({shares['from']})",
            number(shares["observed"]),
            *cells("uncalibrated", "-ece"),
            *cells("probabilities", "ece -slope:2"),
            *cells("sets", "coverage -abstention"),
        ]

    classes = decided.get("classes") or {}
    if classes:
        each = ", among images with and without the finding each"
        split = each if decided["conformal"] == "class_conditional" else ""
        yield Table(
            "Decisions",
            "class | present where calibrated | present here, as taken | as observed"
            " | ECE uncalibrated | ECE calibrated | 95% | slope | coverage | 95% | abstains",
            [row(name, own["prevalence"]) for name, own in classes.items()],
            f"Probabilities by '{decided['method']}' for the share of images taken to have the"
            " finding. Slope: 1 is right, less is too sure. Coverage: how often the set of answers"
            " (present, absent, both, none) holds the truth,"
            f" {decided['coverage_asked']:.0%} asked{split}. Abstains: both answers or none.",
        )


def _missing_lines(zero: Mapping[str, Any]) -> list[str]:
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
    from medclip_debias.reporting.plots import reliability

    shown = []
    for name, own in (results.details("zero_shot").get("classes") or {}).items():
        if own.get("reliability"):
            ece = number(results.value("zero_shot", "ece", name))
            images = number(sum(int(each["images"]) for each in own["reliability"]))
            caption = f"ECE {ece}, {images} images; a mark's area: its images"
            plot = reliability(own["reliability"], f"Reliability diagram of {name}, ECE {ece}")
            shown.append((plot, name, caption))
    return shown


# ---------------------------------------------------------------------- grounding, retrieval


def _grounding_tables(results: Results) -> Iterator[Table]:
    def rows(groups: Mapping[str, str | None], metrics: str) -> Rows:
        found = []
        for name, group in groups.items():
            phrases = results.row("grounding", "cnr", None, group)
            cells = _cells(results, "grounding", metrics, None, group)
            count = number(None if phrases is None else phrases["n"])
            found.append([name, count, *cells])
        return found

    categories: dict[str, str | None] = {**results.groups("grounding", "cnr", "category")}
    if len(categories) > 1:
        categories["All"] = None
    denied = results.details("grounding").get("not_groundable") or 0
    further = (
        f" {number(denied)} further phrases say that something is absent or normal; they are"
        " reported apart in results.json."
    )
    yield Table(
        "Categories",
        "category | phrases | area | CNR | 95% | signed CNR | mIoU | 95% | mIoU .1 to .5 | pointing"
        " | 95%",
        rows(categories, "-area:2 cnr:2 -cnr_signed:2 miou -miou_middle pointing_game"),
        "Each sentence's region scores, at the original image's resolution, against the boxes that"
        " radiologists (or the phantom's truth) gave it. Area: the boxes' share of the image."
        + further
        * bool(denied),
        total=len(categories) > 1,
    )
    for title, kind in (
        ("By box area", "area"),
        ("By how many training studies say the sentence", "frequency"),
    ):
        known = results.groups("grounding", "cnr", kind).items()
        groups = {name.replace("_", " "): group for name, group in known}
        head = "group | phrases | CNR | 95% | mIoU | 95% | pointing | 95%"
        yield Table(title, head, rows(groups, "cnr:2 miou pointing_game"))


def _retrieval_tables(results: Results) -> Iterator[Table]:
    boxes = results.details("retrieval")
    pairs = (
        f"{number(boxes['phrases'])} box-sentence pairs, {number(boxes['distinct_sentences'])}"
        " distinct sentences. "
        if boxes
        else ""
    )
    ways = ("box to sentence", "sentence to box")
    yield _ranks("Boxes and sentences", results, "retrieval", [ways], (10, 50, 100), pairs)
    kinds = [("report to image", "image to report"), ("sentence to image", "image to sentence")]
    yield _ranks("Whole studies", results, "study_retrieval", kinds, (1, 5, 10, 50, 100))
    rows = []
    for way, group in (("report to image", "report to image"), ("image to report", None)):
        first = results.row("study_retrieval", f"precision_at_{_CUTS[0]}", None, group)
        if first is not None:
            metrics = " ".join(f"-precision_at_{k}" for k in _CUTS)
            cells = _cells(results, "study_retrieval", metrics, None, group)
            chance = _cells(results, "study_retrieval", "-precision_at_5", None, CHANCE)
            rows.append([way, number(first["n"]), *cells, *chance])
    yield Table(
        "Precision by class",
        "query to answer | queries | P@5 | P@10 | P@100 | chance",
        rows,
        "Share of the first K studies that have the query's positive labels; the own study is no"
        " answer.",
    )


def _ranks(
    title: str,
    results: Results,
    protocol: str,
    kinds: Sequence[Sequence[str]],
    places: Sequence[int],
    pairs: str = "",
) -> Table:
    """Recalls and median rank of each direction, strict and lenient."""
    metrics = " ".join([*(f"-recall_at_{k}" for k in places), "-median_rank:1"])
    rows = []
    for ways in kinds:
        for mode, way in product(("strict", "lenient"), ways):
            group = f"{mode}, {way}"
            rank = results.row(protocol, "median_rank", None, group)
            if rank is not None:
                cells = _cells(results, protocol, metrics, None, group)
                rows.append([mode, way, number(rank["n"]), *cells])
    recalls = " | ".join(f"R@{k}" for k in places)
    return Table(
        title,
        f"counting | query to answer | queries | {recalls} | median rank",
        rows,
        f"{pairs}R@K: share of queries that find their pair among the first K. Strict: only the"
        " paired item counts. Lenient: any item with the same sentence counts. Items with equal"
        " scores each get the mean of their ranks.",
        words=2,
    )


def _presets(results: Results) -> Table:
    """Preset, part, metrics and what it does, one row a part; empty where none was asked for."""
    return Table(
        "Presets",
        "preset | part | metrics | what it does",
        [
            [name, protocol.replace("_", " "), line, results["presets"][name]["about"]]
            for name, protocol, line in results.preset_lines()
        ],
        "Without intervals. What differs: docs/protocols.md.",
        words=4,
    )
